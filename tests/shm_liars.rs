//! What a peer of this host passes is looked at before it is used, and nothing of it is left behind.
//!
//! Descriptors and mappings of this process are counted, so these tests run one after the other.
#![allow(clippy::unwrap_used)]

mod common;

use common::fake_peer::{dial, hello, incarnation};
use common::near_fake::*;
use common::*;
use kvroom::actors::copy::plant::near;
use kvroom::actors::ids::PoolId;
use kvroom::actors::peer::hello::{Host, LinkTable};
use kvroom::actors::peer::wire::{Greeting, encode_first_greeting, encode_greeting};
use kvroom::{Deadlines, Fabric, LocalHub, Net, Node, Outcome, Peer, Pool, RoomId};
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// How many descriptors and mappings this process has.
fn things() -> (usize, usize) {
    let fds = std::fs::read_dir("/proc/self/fd").unwrap().count();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    // Anonymous memory comes and goes with the heap and with threads; what is shared has a name.
    let named = maps.lines().filter(|line| line.contains("/memfd:"));
    (fds, named.count())
}

/// What the descriptors are.
fn names_of_fds() -> Vec<String> {
    let fds = std::fs::read_dir("/proc/self/fd").unwrap();
    let name = |fd: std::fs::DirEntry| std::fs::read_link(fd.path()).unwrap_or_default();
    let mut names: Vec<_> = fds
        .map(|fd| name(fd.unwrap()).display().to_string())
        .collect();
    names.sort();
    names
}

/// Waits until there are not more of them than then.
async fn back_to((fds, maps): (usize, usize), what: &str) {
    let mut now = things();
    let start = std::time::Instant::now();
    while now.0 > fds || now.1 > maps {
        let why = format!("{what}: {now:?} descriptors and mappings, {fds} and {maps} before");
        assert!(start.elapsed() < PATIENCE, "{why}: {:#?}", names_of_fds());
        tokio::time::sleep(Duration::from_millis(5)).await;
        now = things();
    }
}

/// The node under test, with a good peer that is on this host, too.
struct Served {
    node: Side,
    good: Side,
    peer: Peer,
    next: u64,
}

impl Served {
    async fn start() -> Served {
        let setup = Setup {
            deadlines: Deadlines {
                connect: Duration::from_millis(500),
                ..Deadlines::default()
            },
            ..Setup::over(Over::Shm)
        };
        let hub = LocalHub::new();
        let node = Side::start(&hub, "n", &setup, &Default::default()).await;
        let good = Side::start(&hub, "good", &setup, &Default::default()).await;
        let peer = within(good.node.connect(&node.address)).await.unwrap();
        assert_eq!(peer.fabric(), Some(Fabric::Shm));
        let mut served = Served {
            node,
            good,
            peer,
            next: 1,
        };
        served.moves().await;
        served
    }

    /// A whole room from the node under test to its good peer.
    async fn moves(&mut self) {
        let id = self.next;
        self.next += 1;
        let lease = self.good.pool.lease_write(&[4, 5]).unwrap();
        let room = self.good.node.receive(RoomId(id)).from(&self.peer);
        let receiver = within(room.into(lease).start()).await.unwrap();
        let sender = within(self.node.node.send(RoomId(id)).start()).await;
        let sender = sender.unwrap();
        push(&sender, 0..2 * TOKENS, self.node.stamped(&[1, 2], id, 0)).await;
        sender.finish(2 * TOKENS, None).unwrap();
        assert_eq!(within(receiver.outcome()).await, Outcome::Done);
        verify(&within(receiver.released()).await.leases[0], id, 0);
        drop(within(sender.released()).await);
    }

    async fn end(self) {
        self.good.quiet().await;
        self.node.quiet().await;
        assert!(within(self.good.node.shutdown()).await.drained);
        assert!(within(self.node.node.shutdown()).await.drained);
    }
}

/// Blocks, so it is kept off the test's runtime.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    within(tokio::task::spawn_blocking(work)).await.unwrap()
}

fn null() -> OwnedFd {
    File::open("/dev/null").unwrap().into()
}

/// A file of so many bytes, which nothing keeps from being cut.
fn file(bytes: u64) -> OwnedFd {
    let path = std::env::temp_dir().join(format!("kvroom-liar-{}", std::process::id()));
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(true);
    let file = options.open(&path).unwrap();
    file.set_len(bytes).unwrap();
    std::fs::remove_file(path).unwrap();
    file.into()
}

type Lie = (&'static str, fn(&mut Truth), &'static [&'static str]);

/// What is shared otherwise than it should be, and what the refusal names.
const LIES: &[Lie] = &[
    ("nothing", |t| t.fds.clear(), &["no descriptor", "process"]),
    (
        "a file for a process",
        |t| t.fds[0] = null(),
        &["not one of a process"],
    ),
    (
        "another process",
        |t| t.fds[0] = near::pidfd(1).unwrap(),
        &["of process 1", "was to be"],
    ),
    ("no table", |t| drop(t.fds.drain(2..)), &["gate table"]),
    (
        "a table of zeroes",
        |t| t.fds[2] = near::memory(8192).unwrap(),
        &["gate table"],
    ),
    (
        "a table that is too small",
        |t| {
            t.link.table = Some(LinkTable {
                slots: 1_000,
                file: false,
            });
        },
        &["gate table"],
    ),
    (
        "a table that can be cut",
        |t| t.fds[2] = file(8192),
        &["gate table"],
    ),
    (
        "a table that is none",
        |t| t.fds[2] = null(),
        &["gate table"],
    ),
    (
        "no table, and none said",
        |t| {
            t.link.table = None;
            t.fds.remove(2);
        },
        &["session"],
    ),
    (
        "a pool that is too small",
        |t| t.fds[3] = near::memory(4096).unwrap(),
        &["pool"],
    ),
    (
        "a pool that can be cut",
        |t| t.fds[3] = file(16 << 20),
        &["pool"],
    ),
    ("a pool that is none", |t| t.fds[3] = null(), &["pool"]),
    ("no pool", |t| drop(t.fds.pop()), &["no descriptor", "pool"]),
    (
        "a pool that was not offered",
        |t| {
            t.link.pools[0].pool = PoolId(7);
        },
        &["pool 7", "not offered"],
    ),
    (
        "a second ring",
        |t| {
            t.link.ring = true;
            t.fds.insert(3, near::memory(1 << 20).unwrap());
        },
        &["ring"],
    ),
    (
        "a doorbell that is none",
        |t| t.fds[1] = null(),
        &["doorbell"],
    ),
    (
        "a doorbell that is a pipe",
        |t| t.fds[1] = std::io::pipe().unwrap().1.into(),
        &["doorbell"],
    ),
];

/// Greets, lies, and waits for the end.
fn lies(mut fake: NearFake, lie: fn(&mut Truth)) -> Heard {
    let mut truth = Truth::of(&kv(16, 4096));
    lie(&mut truth);
    assert!(matches!(fake.hears_link(), Heard::Link(_)));
    fake.share(truth.link, &truth.fds);
    drop(truth.fds);
    fake.hears_end()
}

#[tokio::test]
async fn what_is_shared_otherwise_than_it_should_be_is_refused_and_nothing_of_it_is_left() {
    let _alone = ALONE.lock().await;
    let mut served = Served::start().await;
    let before = things();
    for (i, &(what, lie, words)) in LIES.iter().enumerate() {
        // Of one that comes: it is counted.
        let refused = served.node.node.stats().await.greetings_refused;
        let (address, name) = (served.node.address.clone(), format!("liar-{i}"));
        let end = blocking(move || {
            let layout = kv(16, 4096);
            lies(NearFake::greet(&address, &name, &layout, Some(host())), lie)
        })
        .await;
        assert!(!matches!(end, Heard::Go), "{what}: {end:?}");
        until_stats(what, &served.node.node, |s| s.greetings_refused > refused).await;
        back_to(before, what).await;

        // Of one that is connected to: whoever asked for that is told what is wrong.
        let path = socket_path();
        let listener = UnixListener::bind(&path).unwrap();
        let lying = tokio::task::spawn_blocking(move || {
            let layout = kv(16, 4096);
            let fake = NearFake::greeted(&listener, "liar", &layout, Some(host()));
            lies(fake, lie)
        });
        let address = format!("unix://{}", path.display());
        let error = within(served.node.node.connect(&address))
            .await
            .unwrap_err();
        names(&error, words);
        let end = within(lying).await.unwrap();
        assert!(!matches!(end, Heard::Go), "{what}: {end:?}");
        std::fs::remove_file(path).unwrap();
        back_to(before, what).await;
        served.moves().await;
    }
    served.end().await;
}

#[tokio::test]
async fn what_is_shared_as_it_should_be_is_taken_and_given_back() {
    let _alone = ALONE.lock().await;
    let mut served = Served::start().await;
    let before = things();
    for i in 0..10 {
        let address = served.node.address.clone();
        let name = format!("honest-{i}");
        let fake = blocking(move || {
            let layout = kv(16, 4096);
            let truth = Truth::of(&layout);
            let mut fake = NearFake::greet(&address, &name, &layout, Some(host()));
            assert!(matches!(fake.hears_link(), Heard::Link(link) if link.willing && link.ring));
            fake.share(truth.link, &truth.fds);
            let end = fake.hears_end();
            assert!(matches!(end, Heard::Go), "{end:?}");
            fake
        })
        .await;
        let peer = within(served.node.node.peer(&format!("honest-{i}"))).await;
        let peer = peer.unwrap();
        until("it is up", || peer.is_up().is_ok()).await;
        assert_eq!(peer.fabric(), Some(Fabric::Shm));
        within(served.node.node.disconnect(&peer)).await;
        drop(fake);
        back_to(before, "a peer that has gone").await;
    }
    served.moves().await;
    served.end().await;
}

#[tokio::test]
async fn a_peer_that_will_not_share_or_is_elsewhere_is_joined_by_sockets() {
    let _alone = ALONE.lock().await;
    let mut served = Served::start().await;
    let before = things();
    let elsewhere = Host {
        boot: [7; 16],
        ..host()
    };
    let hosts = [Some(elsewhere), None];
    for (i, host) in hosts.into_iter().enumerate() {
        let (address, name) = (served.node.address.clone(), format!("far-{i}"));
        let fake = blocking(move || {
            let mut fake = NearFake::greet(&address, &name, &kv(16, 4096), host);
            // It is not even asked.
            assert!(matches!(fake.hears_end(), Heard::Go));
            fake
        })
        .await;
        let peer = within(served.node.node.peer(&format!("far-{i}"))).await;
        assert_eq!(peer.unwrap().fabric(), Some(Fabric::Tcp));
        drop(fake);
        back_to(before, "a peer elsewhere").await;
    }
    let address = served.node.address.clone();
    let fake = blocking(move || {
        let layout = kv(16, 4096);
        let mut fake = NearFake::greet(&address, "unwilling", &layout, Some(host()));
        assert!(matches!(fake.hears_link(), Heard::Link(link) if link.willing));
        let mut link = Truth::of(&layout).link;
        link.willing = false;
        fake.share(link, &[]);
        assert!(matches!(fake.hears_end(), Heard::Go));
        fake
    })
    .await;
    let peer = within(served.node.node.peer("unwilling")).await;
    assert_eq!(peer.unwrap().fabric(), Some(Fabric::Tcp));
    drop(fake);
    back_to(before, "an unwilling peer").await;
    served.moves().await;
    served.end().await;
}

#[tokio::test]
async fn descriptors_that_come_at_the_wrong_time_or_in_heaps_are_closed() {
    let _alone = ALONE.lock().await;
    let mut served = Served::start().await;
    let before = things();
    let heap = || (0..200).map(|_| null()).collect::<Vec<_>>();

    // With the very first word, from somebody who is nobody yet.
    let address = served.node.address.clone();
    let stranger = blocking(move || {
        let path = address.strip_prefix("unix://").unwrap();
        let stream = UnixStream::connect(path).unwrap();
        let mut out = Vec::new();
        let first = Greeting::Hello(hello("stranger", incarnation()));
        encode_first_greeting(&first, &mut out).unwrap();
        send_with(&stream, &out, &heap());
        stream
    })
    .await;
    // It may be heard out or not; what it passed is not kept while it is thought about.
    back_to((before.0 + 2, before.1), "descriptors of a stranger").await;
    drop(stranger);
    back_to(before, "a stranger").await;

    // With every message, and far more than there is to share.
    for i in 0..5 {
        let (address, name) = (served.node.address.clone(), format!("heaps-{i}"));
        let end = blocking(move || {
            let layout = kv(16, 4096);
            let truth = Truth::of(&layout);
            let mut fake = NearFake::greet(&address, &name, &layout, Some(host()));
            assert!(matches!(fake.hears_link(), Heard::Link(_)));
            let mut out = Vec::new();
            encode_greeting(&Greeting::Link(truth.link), &mut out).unwrap();
            for byte in &out {
                fake.say(&[*byte], &heap());
            }
            fake.hears_end()
        })
        .await;
        assert!(!matches!(end, Heard::Go), "{end:?}");
        back_to(before, "heaps of descriptors").await;
    }
    served.moves().await;

    // Behind a good greeting: what nobody announced.
    let address = served.node.address.clone();
    let fake = blocking(move || {
        let layout = kv(16, 4096);
        let truth = Truth::of(&layout);
        let mut fake = NearFake::greet(&address, "later", &layout, Some(host()));
        assert!(matches!(fake.hears_link(), Heard::Link(_)));
        fake.share(truth.link, &truth.fds);
        assert!(matches!(fake.hears_end(), Heard::Go));
        for _ in 0..20 {
            fake.say(&[0; 16], &heap());
        }
        fake
    })
    .await;
    let peer = within(served.node.node.peer("later")).await.unwrap();
    until("it is given up", || peer.is_up().is_err()).await;
    drop(fake);
    back_to(before, "descriptors that nobody announced").await;
    served.moves().await;
    served.end().await;
}

#[tokio::test]
async fn sharing_without_being_asked_is_refused() {
    let _alone = ALONE.lock().await;
    let mut served = Served::start().await;
    let before = things();
    // Not on this host, as it says itself.
    let address = served.node.address.clone();
    let end = blocking(move || {
        let layout = kv(16, 4096);
        let truth = Truth::of(&layout);
        let path = address.strip_prefix("unix://").unwrap();
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut out = Vec::new();
        let first = Greeting::Hello(hello("eager", incarnation()));
        encode_first_greeting(&first, &mut out).unwrap();
        encode_greeting(&Greeting::Link(truth.link), &mut out).unwrap();
        send_with(&stream, &out, &truth.fds);
        drop(truth.fds);
        let mut rest = Vec::new();
        (&stream).read_to_end(&mut rest)
    })
    .await;
    assert!(end.is_ok(), "{end:?}");
    back_to(before, "sharing in place of an offer").await;

    // Over TCP nothing is shared, whatever is said.
    let net = Net {
        listen: vec!["tcp://127.0.0.1:0".into()],
        ..Net::default()
    };
    let pool = Pool::shared(kv(16, 4096)).unwrap();
    let node = Node::builder("t")
        .net(net)
        .pool(pool)
        .start()
        .await
        .unwrap();
    let address = node.addresses()[0].clone();
    let before_it = things();
    let closed = blocking(move || {
        let mut stream = dial(&address);
        let mut out = Vec::new();
        let first = Greeting::Hello(hello("eager", incarnation()));
        encode_first_greeting(&first, &mut out).unwrap();
        let link = Truth::of(&kv(16, 4096)).link;
        encode_greeting(&Greeting::Link(link), &mut out).unwrap();
        std::io::Write::write_all(&mut stream, &out).unwrap();
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest)
    })
    .await;
    assert!(closed.is_ok(), "{closed:?}");
    back_to(before_it, "sharing over tcp").await;
    assert!(within(node.shutdown()).await.drained);
    served.moves().await;
    served.end().await;
}

#[tokio::test]
async fn a_peer_that_breaks_off_while_it_shares_leaves_nothing_behind() {
    let _alone = ALONE.lock().await;
    let mut served = Served::start().await;
    let before = things();
    // After nothing, after half of what it shares, with another word in its place; or it says nothing
    // more and stays.
    let mut staying = Vec::new();
    for how in 0..4 {
        let (address, name) = (served.node.address.clone(), format!("breaks-{how}"));
        let fake = blocking(move || {
            let layout = kv(16, 4096);
            let truth = Truth::of(&layout);
            let mut fake = NearFake::greet(&address, &name, &layout, Some(host()));
            assert!(matches!(fake.hears_link(), Heard::Link(_)));
            let mut out = Vec::new();
            encode_greeting(&Greeting::Link(truth.link), &mut out).unwrap();
            match how {
                0 => {}
                1 => fake.say(&out[..out.len() / 2], &truth.fds),
                2 => {
                    out.clear();
                    let mac = Greeting::Mac([7; 32]);
                    encode_greeting(&mac, &mut out).unwrap();
                    fake.say(&out, &truth.fds);
                }
                _ => {
                    fake.say(&out[..out.len() / 2], &truth.fds);
                    return Some(fake);
                }
            }
            None
        })
        .await;
        staying.extend(fake);
        if staying.is_empty() {
            back_to(before, &format!("broken off, {how}")).await;
        }
    }
    // Its own end of the socket is all that is left, once its time is up.
    back_to((before.0 + 1, before.1), "a peer that stalls").await;
    drop(staying);
    back_to(before, "a peer that stalled").await;
    served.moves().await;
    served.end().await;
}

#[tokio::test]
async fn two_hundred_sessions_over_shared_memory_leave_no_descriptor_and_no_mapping() {
    let _alone = ALONE.lock().await;
    let duo = Duo::over(Over::Shm).await;
    let mut peer = duo.peer.clone();
    let mut before = None;
    for id in 0..200 {
        let lease = duo.decode.pool.lease_write(&[4, 5]).unwrap();
        let room = duo.decode.node.receive(RoomId(id)).from(&peer);
        let room = within(room.into(lease).start()).await.unwrap();
        let sender = duo.send(id, 0).await;
        push(&sender, 0..2 * TOKENS, duo.prefill.stamped(&[1, 2], id, 0)).await;
        sender.finish(2 * TOKENS, None).unwrap();
        assert_eq!(within(room.outcome()).await, Outcome::Done);
        verify(&within(room.released()).await.leases[0], id, 0);
        drop((within(sender.released()).await, room, sender));
        // Every third one is left with a room in it.
        let left = match id % 3 {
            0 => {
                let lease = duo.decode.pool.lease_write(&[6]).unwrap();
                let room = duo.decode.node.receive(RoomId(1_000 + id)).from(&peer);
                Some(within(room.into(lease).start()).await.unwrap())
            }
            _ => None,
        };
        within(duo.decode.node.disconnect(&peer)).await;
        if let Some(room) = left {
            within(room.outcome()).await;
            drop(within(room.released()).await);
        }
        if id == 20 {
            // Whatever is made once has been made.
            before = Some(things());
        }
        if let Some(before) = before {
            back_to(before, &format!("session {id}")).await;
        }
        peer = within(duo.decode.node.connect(&duo.prefill.address))
            .await
            .unwrap();
        assert_eq!(peer.fabric(), Some(Fabric::Shm));
    }
    duo.end().await;
}

#[tokio::test]
async fn a_pool_of_a_session_is_unmapped_when_it_is_retired() {
    let _alone = ALONE.lock().await;
    let duo = Duo::over(Over::Shm).await;
    duo.moves(1, 0, &[1, 2], &[3, 4]).await;
    let before = things();
    for _ in 0..50 {
        let layout = kvroom::PoolLayout {
            name: "more".into(),
            ..kv(4, 4096)
        };
        let pool = Pool::shared(layout).unwrap();
        within(duo.decode.node.add_pool(pool)).await.unwrap();
        settle(&[&duo.decode.node, &duo.prefill.node]).await;
        within(duo.decode.node.retire_pool("more")).await.unwrap();
    }
    back_to(before, "pools that came and went").await;
    duo.moves(2, 0, &[1, 2], &[3, 4]).await;
    duo.end().await;
}
