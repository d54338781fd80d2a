//! The proof that fabric `local` works: a real room between two nodes of this process.

use super::super::exit::Failure;
use super::super::pair::{self, Pair, Setup};
use kvroom::{Chunk, Limits, RoomId};
use std::time::Duration;

const LAYERS: u32 = 2;
const PAGE_BYTES: u64 = 4096;
const SOURCE: [u32; 4] = [6, 1, 4, 3];
const DESTINATION: [u32; 4] = [0, 5, 2, 7];

/// How long the room may take. It needs a few milliseconds.
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

/// Moves some pages through a room, compares them, and shuts both nodes down.
pub(crate) fn self_test() -> SelfTest {
    match pair::block_on(move_and_compare()) {
        Ok(how) => SelfTest::Passed(how),
        Err(why) => SelfTest::Failed(why.to_string()),
    }
}

async fn move_and_compare() -> Result<String, Failure> {
    let layout = pair::layout(LAYERS, 8, PAGE_BYTES);
    let setup = Setup {
        layout: Some(layout),
        lanes: 1,
        limits: Limits::default(),
    };
    let pair = Pair::start(setup).await?;
    let (id, tokens) = (RoomId(1), SOURCE.len() as u64);
    let mut source = pair.lease_source(&SOURCE)?;
    pair::stamp(&mut source, 7);

    let receiver = pair.decode.receive(id).from(&pair.sender);
    let receiver = receiver
        .into(pair.lease_destination(&DESTINATION)?)
        .deadline(DEADLINE);
    let receiver = receiver
        .start()
        .await
        .map_err(pair::failed("cannot start a receiver"))?;
    let sender = pair.prefill.send(id).deadline(DEADLINE).start().await;
    let sender = sender.map_err(pair::failed("cannot start a sender"))?;
    let slot = sender
        .reserve()
        .await
        .map_err(pair::failed("cannot reserve a chunk"))?;
    let chunk = Chunk::tokens(0..tokens).pages(source.into_read());
    let pushed = slot
        .push(chunk)
        .map_err(pair::failed("cannot push a chunk"))?;
    sender
        .finish(tokens, None)
        .map_err(pair::failed("cannot finish the request"))?;

    pair::require_done(receiver.outcome().await, "receiver")?;
    pair::require_done(sender.outcome().await, "sender")?;
    let destination = pair::only_lease(receiver.released().await, "receiver")?;
    let source = pushed.released().await.ok_or_else(pair::source_kept)?;
    if let Some(difference) = pair::first_difference(&source, &destination) {
        return Err(Failure::Failed(format!("bytes were lost: {difference}")));
    }
    drop((source, destination, sender, receiver));
    pair.shut_down().await?;
    let bytes = u64::from(LAYERS) * tokens * PAGE_BYTES;
    Ok(format!(
        "a room between two nodes of this process moved {bytes} bytes, all compared"
    ))
}
