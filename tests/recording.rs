//! The flight recorder over whole transfers: what it shows of a stuck room, that a recording replayed
//! goes the same way, and that two recordings make one timeline.
#![allow(clippy::unwrap_used)] // Tests and their helpers.

use kvroom::actors::copy::plant::Brake;
use kvroom::record::{Entry, GateIs, PeerIs, What};
use kvroom::recording::merge::merge;
use kvroom::recording::replay::{Replayed, replay};
use kvroom::recording::{Recording, load, read, write};
use kvroom::{
    Chunk, Code, LocalHub, Node, NodeBuilder, Order, Outcome, Pool, PoolKind, PoolLayout,
    ReceiveRoom, Role, RoomId, RoomKey, SendRoom, StateName,
};
use std::time::{Duration, Instant};

const PAGES: u32 = 64;
const PATIENCE: Duration = Duration::from_secs(20);

fn layout() -> PoolLayout {
    PoolLayout {
        name: "kv".into(),
        kind: PoolKind::Kv,
        order: Order::LayersFirst,
        layers: 2,
        pages: PAGES,
        page_bytes: 64 << 10,
        page_tokens: 4,
    }
}

struct Pair {
    decode: Node,
    prefill: Node,
    source: Pool,
    destination: Pool,
}

impl Pair {
    async fn start(change: impl Fn(NodeBuilder) -> NodeBuilder) -> Pair {
        let hub = LocalHub::new();
        let pool = || Pool::owned(layout()).unwrap();
        let (source, destination) = (pool(), pool());
        let node = |name, pool: &Pool| change(Node::builder(name).hub(&hub).pool(pool.clone()));
        let prefill = node("prefill-0", &source).start().await.unwrap();
        let decode = node("decode-0", &destination).start().await.unwrap();
        decode.connect("local://prefill-0").await.unwrap();
        Pair {
            decode,
            prefill,
            source,
            destination,
        }
    }

    async fn receive(&self, id: u64, pages: &[u32]) -> ReceiveRoom {
        let peer = self.decode.peer("prefill-0").await.unwrap();
        let lease = self.destination.lease_write(pages).unwrap();
        let room = self.decode.receive(RoomId(id)).from(&peer).into(lease);
        room.start().await.unwrap()
    }

    async fn send(&self, id: u64) -> SendRoom {
        self.prefill.send(RoomId(id)).start().await.unwrap()
    }

    async fn feed(&self, room: &SendRoom, pages: u32) {
        let all: Vec<u32> = (0..pages).collect();
        let lease = self.source.lease_read(&all).unwrap();
        let tokens = u64::from(pages) * 4;
        let slot = room.reserve().await.unwrap();
        slot.push(Chunk::tokens(0..tokens).pages(lease)).unwrap();
        room.finish(tokens, None).unwrap();
    }

    async fn stop(self) {
        for node in [self.decode, self.prefill] {
            assert!(node.shutdown().await.drained);
        }
    }
}

/// As a file would have it.
fn recorded(node: &Node) -> Recording {
    let recording = Recording::of(node, "test");
    let mut text = Vec::new();
    write(&recording, &mut text).unwrap();
    assert_eq!(read("test", &*text).unwrap(), recording);
    recording
}

fn life(recording: &Recording, id: u64) -> Replayed {
    let lives = replay(recording);
    let mut lives = lives
        .into_iter()
        .filter(|life| life.key == RoomKey::new(id, 0));
    lives
        .next()
        .unwrap_or_else(|| panic!("room {id} was not recorded"))
}

async fn until(what: &str, mut is: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is() {
        assert!(began.elapsed() < PATIENCE, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Rooms that are done, aborted by either side, refused, and never met.
async fn mixed(pair: &Pair) {
    for id in 0..20 {
        let pages: Vec<u32> = (0..8).collect();
        let receiver = pair.receive(id, &pages).await;
        let sender = pair.send(id).await;
        match id % 4 {
            0 | 1 => pair.feed(&sender, 8).await,
            2 => receiver.abort("by decode"),
            _ => sender.abort("by prefill"),
        }
        receiver.outcome().await;
        sender.outcome().await;
        drop(receiver.released().await);
        drop(sender.released().await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recording_replayed_gives_the_same_states() {
    let pair = Pair::start(|builder| builder).await;
    mixed(&pair).await;
    for (node, role) in [
        (&pair.decode, Role::Receiver),
        (&pair.prefill, Role::Sender),
    ] {
        let recording = recorded(node);
        let lives = replay(&recording);
        assert_eq!(lives.len(), 20);
        for life in &lives {
            assert_eq!(life.role, role);
            assert!(life.whole && life.returned && !life.is_stuck(), "{life:?}");
            assert_eq!(life.differences, [], "{life:?}");
            assert!(life.held.is_empty() && life.missing.is_empty());
            for step in &life.steps {
                assert_eq!(step.machine, Some(step.recorded.1), "{step:?}");
            }
            let expected = match life.key.id.0 % 4 {
                0 | 1 => StateName::Done,
                _ => StateName::Aborted,
            };
            assert_eq!(life.state, expected);
        }
    }
    pair.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_that_goes_another_way_than_the_recording_is_shown() {
    let pair = Pair::start(|builder| builder).await;
    mixed(&pair).await;
    let mut recording = recorded(&pair.decode);
    // As if the sender had said that it wrote less.
    let entry = recording
        .entries
        .iter_mut()
        .find_map(|entry| match &mut entry.what {
            What::Room(step) => match &mut step.told {
                kvroom::record::Told::Complete { cells, .. } => Some((entry.seq, cells)),
                _ => None,
            },
            _ => None,
        });
    let (seq, cells) = entry.unwrap();
    *cells -= 1;
    let lives = replay(&recording);
    let different: Vec<_> = lives.iter().flat_map(|life| &life.differences).collect();
    assert_eq!(different.len(), 1, "{different:?}");
    assert_eq!(different[0].seq, seq);
    assert!(
        different[0].why.contains("the machine is Draining"),
        "{different:?}"
    );
    pair.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_room_whose_sender_never_came_is_shown_with_the_event_that_is_missing() {
    let pair = Pair::start(|builder| builder).await;
    let waiting = pair.receive(7, &[1, 2]).await;
    let node = pair.decode.clone();
    let opened = |entry: &Entry| {
        matches!(
            &entry.what,
            What::Gate {
                is: GateIs::Open,
                ..
            }
        )
    };
    until("the claim is opened", || {
        node.recorder().read_all().entries.iter().any(opened)
    })
    .await;
    let stuck = life(&recorded(&node), 7);
    assert!(
        stuck.is_stuck() && stuck.differences.is_empty(),
        "{stuck:?}"
    );
    assert_eq!(stuck.missing.len(), 1, "{stuck:?}");
    assert_eq!(
        (stuck.missing[0].event, stuck.missing[0].leg),
        ("Bound", Some(0))
    );
    assert!(stuck.missing[0].from.contains("prefill-0"), "{stuck:?}");
    assert!(
        stuck.held[0].contains("is open to \"prefill-0\""),
        "{stuck:?}"
    );
    waiting.abort("enough");
    drop(waiting.released().await);
    assert!(!life(&recorded(&node), 7).is_stuck());
    pair.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_does_not_come_back_is_shown_with_its_lane_and_the_room_is_stuck() {
    let brake = Brake::default();
    let of_lanes = brake.clone();
    let pair = Pair::start(move |builder| {
        let (brake, deadlines) = (of_lanes.clone(), kvroom::Deadlines::default());
        let deadlines = kvroom::Deadlines {
            drain: Duration::from_millis(50),
            ..deadlines
        };
        builder
            .deadlines(deadlines)
            .configure(move |config| config.brake = Some(brake))
    })
    .await;
    brake.hold_after(0);
    let receiver = pair.receive(9, &(0..8).collect::<Vec<_>>()).await;
    let sender = pair.send(9).await;
    pair.feed(&sender, 8).await;
    until("a lane is held inside the gate", || brake.held() > 0).await;
    let before = life(&recorded(&pair.prefill), 9);
    assert_eq!(before.missing[0].event, "JobOver", "{before:?}");
    receiver.abort("enough");
    assert!(matches!(receiver.outcome().await, Outcome::Aborted(r) if r.code == Code::Requested));
    sender.outcome().await;
    let (decode, prefill) = (pair.decode.clone(), pair.prefill.clone());
    let grace = Duration::ZERO;
    let began = Instant::now();
    while decode.stuck_rooms(grace, PATIENCE).await.rooms.is_empty()
        || prefill.stuck_rooms(grace, PATIENCE).await.rooms.is_empty()
    {
        assert!(began.elapsed() < PATIENCE, "the rooms were not quarantined");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let stuck = life(&recorded(&decode), 9);
    assert_eq!((stuck.state, stuck.returned), (StateName::Draining, false));
    assert!(
        stuck.held[0].contains("is inside the closed gate"),
        "{stuck:?}"
    );
    assert_eq!(stuck.missing[0].event, "Quiet", "{stuck:?}");
    let stuck = life(&recorded(&prefill), 9);
    assert!(stuck.held[0].contains("is with lane 0"), "{stuck:?}");
    assert_eq!(stuck.missing[0].event, "JobOver", "{stuck:?}");
    brake.release();
    drop(receiver.released().await);
    drop(sender.released().await);
    for node in [&decode, &prefill] {
        let over = life(&recorded(node), 9);
        assert!(
            over.returned && !over.is_stuck() && over.differences.is_empty(),
            "{over:?}"
        );
        assert!(node.stuck_rooms(grace, PATIENCE).await.rooms.is_empty());
    }
    pair.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_recordings_make_one_timeline_and_the_offset_of_their_clocks_is_found() {
    let pair = Pair::start(|builder| builder).await;
    mixed(&pair).await;
    let decode = recorded(&pair.decode);
    let mut prefill = recorded(&pair.prefill);
    let ahead = Duration::from_secs(5);
    prefill.header.started += ahead;
    let timeline = merge(&decode, &prefill);
    let clocks = timeline.clocks;
    assert!(clocks.matched > 60, "{clocks:?}");
    assert_eq!(clocks.reversed, 0, "{clocks:?}");
    let off = clocks.offset_us + ahead.as_micros() as i64;
    assert!(off.abs() < 1_000_000, "{clocks:?}");
    // No message comes before it was sent, and each recording keeps its order.
    let mut sent = std::collections::HashSet::new();
    let mut last = [None, None];
    for moment in &timeline.moments {
        assert!(last[moment.of] < Some(moment.entry.seq));
        last[moment.of] = Some(moment.entry.seq);
        match &moment.entry.what {
            What::Sent(word) => {
                sent.insert((moment.of, word.message, word.claim, word.frame));
            }
            What::Received(word) if word.claim.is_some() && word.frame != 0 => {
                let key = (1 - moment.of, word.message, word.claim, word.frame);
                assert!(sent.contains(&key), "{word:?} came before it was sent");
            }
            _ => {}
        }
    }
    pair.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recording_read_as_load_has_its_arrivals_sizes_and_aborts() {
    let pair = Pair::start(|builder| builder).await;
    mixed(&pair).await;
    let requests = load::requests(&recorded(&pair.decode));
    assert_eq!(requests.len(), 20);
    for (id, request) in (0..).zip(&requests) {
        assert_eq!((request.key, request.pages), (RoomKey::new(id, 0), 8));
        assert_eq!(request.aborted.is_some(), id % 4 == 2, "{request:?}");
    }
    assert!(requests.windows(2).all(|pair| pair[0].at <= pair[1].at));
    let requests = load::requests(&recorded(&pair.prefill));
    assert!(
        requests.iter().all(|r| r.key.id.0 % 4 > 1 || r.pages == 8),
        "{requests:?}"
    );
    pair.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blocked_shard_is_read_without_asking_it() {
    let pair = Pair::start(|builder| builder.shards(1)).await;
    mixed(&pair).await;
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let (blocked, is_blocked) = std::sync::mpsc::channel();
    let ask = move |_: &mut _, _: &mut _| {
        let _ = blocked.send(());
        let _ = wait.recv_timeout(PATIENCE);
    };
    let ask = kvroom::actors::supervisor::actor::Inbound::Ask(Box::new(ask));
    pair.decode.runtime().inboxes()[0].put(ask).unwrap();
    is_blocked.recv_timeout(PATIENCE).unwrap();
    let stuck = pair
        .decode
        .stuck_rooms(Duration::ZERO, Duration::from_millis(50))
        .await;
    assert_eq!(stuck.silent, [0]);
    assert_eq!(replay(&recorded(&pair.decode)).len(), 20);
    go.send(()).unwrap();
    pair.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn peers_and_the_node_itself_are_recorded_and_nothing_is_with_a_recorder_of_size_0() {
    let pair = Pair::start(|builder| builder).await;
    let entries = pair.decode.recorder().read_all().entries;
    let up = |e: &Entry| matches!(&e.what, What::Peer { is: PeerIs::Up, .. });
    let up = entries.iter().find(|e| up(e)).unwrap();
    assert_eq!(up.peer.as_deref(), Some("prefill-0"));
    let serves = |e: &Entry| matches!(&e.what, What::Note(note) if note.contains("serves"));
    assert!(entries.iter().any(serves));
    pair.stop().await;
    let silent = Pair::start(|builder| builder.recorder(0)).await;
    mixed(&silent).await;
    assert_eq!(silent.decode.recorder().next_seq(), 0);
    silent.stop().await;
}
