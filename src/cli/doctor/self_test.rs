//! The proof that a fabric works: a real room between two nodes of this process.

use super::super::args::{NetArgs, UcxWhen};
use super::super::exit::Failure;
use super::super::node::protocol::{Pages, Send};
use super::super::pair::{self, Link, POOL, Pair, Setup};
use kvroom::{Limits, RoomId};
use std::time::Duration;
use tokio::time::timeout;

const LAYERS: u32 = 2;
const PAGE_BYTES: u64 = 4096;
const SOURCE: [u32; 4] = [6, 1, 4, 3];
const DESTINATION: [u32; 4] = [0, 5, 2, 7];

const SEED: u64 = 7;
const ID: u64 = 1;

/// How long all of it may take. It needs a few milliseconds.
const DEADLINE: Duration = Duration::from_secs(10);

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SelfTest {
    /// It could not be tried; why.
    #[allow(dead_code, reason = "only made where the fabric cannot be tried")]
    NotRun(String),
    /// Bytes were moved and compared; how many and how.
    Passed(String),
    /// It was tried and went wrong; how.
    Failed(String),
}

/// What came of each fabric that this build has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SelfTests {
    /// Within the process.
    pub(crate) local: SelfTest,
    /// Over 127.0.0.1.
    pub(crate) tcp: SelfTest,
    /// Over a Unix socket.
    pub(crate) unix: SelfTest,
    /// Into shared memory, with a Unix socket to find it.
    pub(crate) shm: SelfTest,
}

/// Moves some pages through a room of each, compares them, and shuts all nodes down.
pub(crate) fn self_tests() -> SelfTests {
    SelfTests {
        local: self_test(Link::Local, false, NetArgs::default()),
        tcp: self_test(Link::Tcp, false, NetArgs::default()),
        unix: self_test(Link::Unix, false, NetArgs::default()),
        shm: self_test(Link::Unix, true, NetArgs::default()),
    }
}

/// The same through UCX, as it is said how to use it; to be called where UCX may be opened.
pub(crate) fn through_ucx(net: NetArgs) -> SelfTest {
    self_test(Link::Tcp, false, net)
}

fn self_test(link: Link, shared: bool, net: NetArgs) -> SelfTest {
    let work = async {
        let moved = timeout(DEADLINE, move_and_compare(link, shared, net)).await;
        moved.map_err(pair::failed("it did not end within ten seconds"))?
    };
    match pair::block_on(work) {
        Ok(how) => SelfTest::Passed(how),
        Err(why) => SelfTest::Failed(why.to_string()),
    }
}

async fn move_and_compare(link: Link, shared: bool, net: NetArgs) -> Result<String, Failure> {
    let layout = pair::layout(LAYERS, 8, PAGE_BYTES);
    let is_ucx = net.ucx != UcxWhen::Off;
    let setup = Setup {
        link,
        shared,
        net,
        ..Setup::local(Some(layout), Limits::default())
    };
    let mut pair = Pair::start(setup).await?;
    pair.fill_source(&SOURCE, SEED).await?;
    let receiver = pair.decode.receive(RoomId(ID)).from(&pair.sender);
    let receiver = receiver.into(pair.lease_destination(&DESTINATION)?);
    let receiver = receiver
        .start()
        .await
        .map_err(pair::failed("cannot start a receiver"))?;
    let send = Send {
        pool: Some(POOL.to_owned()),
        pages: Some(Pages::List(SOURCE.to_vec())),
        ..Send::empty(ID, 1)
    };
    pair.send(send).await?;

    pair::require_done(receiver.outcome().await, "receiver")?;
    let destination = pair::only_lease(receiver.released().await, "receiver")?;
    pair::all_done(&pair.waited(ID, 1).await?)?;
    pair::require_pattern(&destination, SEED)?;
    drop((destination, receiver));
    pair.shut_down().await?;
    let bytes = u64::from(LAYERS) * SOURCE.len() as u64 * PAGE_BYTES;
    let way = match link {
        Link::Local => "",
        Link::Tcp | Link::Unix if shared => " into shared memory",
        Link::Tcp if is_ucx => " through UCX",
        Link::Tcp => " over 127.0.0.1",
        Link::Unix => " over a Unix socket",
    };
    Ok(format!(
        "a room between two nodes of this process{way} moved {bytes} bytes, all compared"
    ))
}
