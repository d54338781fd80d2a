//! Nodes in processes of their own that are killed, stopped and started again at any moment.
#![allow(clippy::unwrap_used)]

mod common;

use common::process::*;
use common::proxy::{Act, Proxy, Way};
use common::*;
use kvroom::{Code, Deadlines, LocalHub, NodeStats, Outcome, Peer, StateName};
use std::time::{Duration, Instant};

const PLAYER: &str = "plays_the_other_process_when_told_to";

#[test]
fn plays_the_other_process_when_told_to() {
    play_if_told();
}

async fn start(role: &Role) -> Other {
    Other::start(PLAYER, role).await
}

fn quick() -> Deadlines {
    Deadlines {
        ping: Duration::from_millis(100),
        liveness: Duration::from_millis(1_000),
        resume: Duration::from_millis(500),
        backoff_first: Duration::from_millis(5),
        backoff_most: Duration::from_millis(50),
        ..Deadlines::default()
    }
}

/// This process's node.
async fn here(name: &str, page_bytes: u64, deadlines: Deadlines) -> Side {
    let setup = Setup {
        over: Over::Tcp,
        layout: kv(16, page_bytes),
        deadlines,
        ..Setup::default()
    };
    Side::start(&LocalHub::new(), name, &setup, &Default::default()).await
}

/// Where a room of two pages stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The claim is there and the other side's room is not, or the other way round.
    Alone,
    Bound,
    /// One of two pages has landed.
    Half,
    /// Data is on the wire, and held there.
    InFlight,
    /// Everything has been said and done.
    Done,
}

const STEPS: [Step; 5] = [
    Step::Alone,
    Step::Bound,
    Step::Half,
    Step::InFlight,
    Step::Done,
];

/// An end that is what it must be when the other side's process has died.
#[track_caller]
fn is_lost(outcome: &Outcome) {
    let lost = [Code::PeerLost, Code::PeerRestarted, Code::SessionLost];
    assert!(lost.contains(&code(outcome)), "{outcome}");
}

/// The newest life of a peer, once it is up and not that one.
async fn newer(node: &kvroom::Node, than: &Peer) -> Peer {
    let start = Instant::now();
    loop {
        if let Some(peer) = node.peer(than.name()).await
            && peer.incarnation() != than.incarnation()
            && peer.is_up().is_ok()
        {
            return peer;
        }
        assert!(start.elapsed() < PATIENCE, "its next life never came up");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Holds what comes down on every data connection when one page more has passed.
fn hold(proxy: &Proxy, bytes: u64) {
    for link in proxy.open() {
        if link.number() > 0 {
            link.after(Way::Down, link.came(Way::Down) + bytes, Act::Stop);
        }
    }
}

fn is_held(proxy: &Proxy) -> bool {
    let links = proxy.open();
    links
        .iter()
        .any(|l| l.number() > 0 && l.has_acted(Way::Down) && l.came(Way::Down) > 0)
}

#[tokio::test]
async fn a_prefill_that_is_killed_at_any_step_ends_its_rooms_and_its_next_life_serves_new_ones() {
    let decode = here("d", PIECE, quick()).await;
    let mut role = Role {
        name: "p",
        page_bytes: PIECE,
        ..Role::default()
    };
    let mut prefill = start(&role).await;
    role.listen = prefill.address.clone();
    let proxy = Proxy::tcp(&prefill.address);
    let mut peer = within(decode.node.connect(proxy.address())).await.unwrap();
    for (i, step) in STEPS.into_iter().enumerate() {
        let id = 10 * (i as u64 + 1);
        // Data connections carry something, so that they are there to be held.
        moves_here(&decode, &mut prefill, &peer, id + 1).await;

        let mut lease = decode.pool.lease_write(&[4, 5]).unwrap();
        fill(&mut lease, 0xca_a1, 0);
        let room = decode.node.receive(kvroom::RoomId(id)).from(&peer);
        let room = within(room.into(lease).start()).await.unwrap();
        if step != Step::Alone {
            let line = format!("send {id} 0");
            prefill.ask(&line, &format!("@sending {id} 0")).await;
            until("it is bound", || room.poll().state != StateName::Registered).await;
        }
        if step == Step::InFlight {
            hold(&proxy, PIECE / 2);
        }
        if matches!(step, Step::Half | Step::InFlight | Step::Done) {
            prefill.tell(&format!("push {id} 0 0 1"));
            prefill.hears(&format!("@pushed {id} 0 0")).await;
        }
        match step {
            Step::Half => {
                let page = u64::from(LAYERS) * PIECE;
                until_landed(&decode, page).await;
            }
            Step::InFlight => until("it is held", || is_held(&proxy)).await,
            Step::Done => {
                prefill.tell(&format!("push {id} 0 1 1"));
                prefill.tell(&format!("finish {id} 0 2"));
                assert_eq!(within(room.outcome()).await, Outcome::Done);
            }
            _ => {}
        }
        prefill.kill();
        let outcome = within(room.outcome()).await;
        if step == Step::Done {
            assert_eq!(outcome, Outcome::Done);
        } else {
            is_lost(&outcome);
        }
        // The pages come back, and nothing touches them any more.
        let mut back = within(room.released()).await;
        if step == Step::Done {
            verify(&back.leases[0], stamp_of(id, 0), 0);
        }
        fill(&mut back.leases[0], 0xbe_e5, 0);

        // The same address, a new life; this side connects by itself.
        let before = peer.clone();
        prefill = start(&role).await;
        peer = newer(&decode.node, &before).await;
        assert!(before.is_up().is_err());
        moves_here(&decode, &mut prefill, &peer, id + 2).await;
        verify(&back.leases[0], 0xbe_e5, 0);
        drop((back, room));
        decode.quiet().await;
    }
    let stats = decode.node.stats().await;
    assert_eq!(stats.quarantined_pages, 0);
    prefill.kill();
    assert!(within(decode.node.shutdown()).await.drained);
}

/// A whole room from the other process to this one.
async fn moves_here(decode: &Side, prefill: &mut Other, peer: &Peer, id: u64) {
    let lease = decode.pool.lease_write(&[0, 1]).unwrap();
    let room = decode.node.receive(kvroom::RoomId(id)).from(peer);
    let room = within(room.into(lease).start()).await.unwrap();
    prefill.tell(&format!("send {id} 0"));
    prefill.tell(&format!("push {id} 0 0 2"));
    prefill.tell(&format!("finish {id} 0 2"));
    assert_eq!(within(room.outcome()).await, Outcome::Done);
    verify(&within(room.released()).await.leases[0], stamp_of(id, 0), 0);
    prefill.hears(&format!("@released s {id} 0")).await;
}

/// Bytes of the last room have landed, as far as this node knows.
async fn until_landed(decode: &Side, bytes: u64) {
    let page = (bytes / u64::from(LAYERS)) as usize;
    let mut seen = vec![0; page];
    until("a page has landed", || {
        decode.pool.observe(LAYERS - 1, 4, &mut seen).unwrap();
        !holds(&seen, 0xca_a1, LAYERS - 1, 0)
    })
    .await;
}

#[tokio::test]
async fn a_decode_that_is_killed_at_any_step_ends_its_rooms_and_its_next_life_is_served() {
    let prefill = here("p", PIECE, quick()).await;
    let mut role = Role {
        name: "d",
        page_bytes: PIECE,
        ..Role::default()
    };
    let mut decode = start(&role).await;
    role.listen = decode.address.clone();
    for (i, step) in STEPS.into_iter().enumerate() {
        let id = 10 * (i as u64 + 1);
        let proxy = Proxy::tcp(&prefill.address);
        let line = format!("connect {}", proxy.address());
        decode.ask(&line, "@connected p").await;
        let peer = within(prefill.node.peer("d")).await.unwrap();
        moves_there(&prefill, &mut decode, id + 1).await;

        let room = within(prefill.node.send(kvroom::RoomId(id)).start()).await;
        let room = room.unwrap();
        if step != Step::Alone {
            let line = format!("receive {id} 0 p 4,5");
            decode.ask(&line, &format!("@receiving {id} 0")).await;
            until("it is bound", || room.poll().state != StateName::Registered).await;
        }
        if step == Step::InFlight {
            hold(&proxy, PIECE / 2);
        }
        let mut chunks = Vec::new();
        if matches!(step, Step::Half | Step::InFlight | Step::Done) {
            let lease = prefill.stamped(&[4], stamp_of(id, 0), 0);
            chunks.push(push(&room, 0..TOKENS, lease).await);
        }
        match step {
            Step::Half => {
                let back = chunks.pop().unwrap();
                assert!(within(back.released()).await.is_some());
            }
            Step::InFlight => until("it is held", || is_held(&proxy)).await,
            Step::Done => {
                let lease = prefill.stamped(&[5], stamp_of(id, 0), 1);
                push(&room, TOKENS..2 * TOKENS, lease).await;
                room.finish(2 * TOKENS, None).unwrap();
                assert_eq!(within(room.outcome()).await, Outcome::Done);
            }
            _ => {}
        }
        decode.kill();
        match step {
            Step::Done => assert_eq!(within(room.outcome()).await, Outcome::Done),
            // Nobody had claimed it, so nobody's death ends it.
            Step::Alone => {
                until("it is noticed", || peer.is_up().is_err()).await;
                assert_eq!(room.try_outcome(), None);
                room.abort("nobody came");
            }
            _ => is_lost(&within(room.outcome()).await),
        }
        for chunk in chunks {
            assert!(within(chunk.released()).await.is_some());
        }
        drop(within(room.released()).await);
        drop(room);
        prefill.quiet().await;
        decode = start(&role).await;
    }
    decode
        .ask(&format!("connect {}", prefill.address), "@connected p")
        .await;
    moves_there(&prefill, &mut decode, 1_000).await;
    decode.ask("free", "@free").await;
    decode.kill();
    assert!(within(prefill.node.shutdown()).await.drained);
}

/// A whole room from this process to the other one.
async fn moves_there(prefill: &Side, decode: &mut Other, id: u64) {
    decode.tell(&format!("receive {id} 0 p 0,1"));
    let room = within(prefill.node.send(kvroom::RoomId(id)).start()).await;
    let room = room.unwrap();
    let lease = prefill.stamped(&[0, 1], stamp_of(id, 0), 0);
    push(&room, 0..2 * TOKENS, lease).await;
    room.finish(2 * TOKENS, None).unwrap();
    assert_eq!(within(room.outcome()).await, Outcome::Done);
    decode.hears(&format!("@done r {id} 0")).await;
    drop(within(room.released()).await);
}

/// This process's prefill with 32 MiB under way to a decode that is stopped.
struct Stopped {
    prefill: Side,
    decode: Other,
    peer: Peer,
    room: kvroom::SendRoom,
    chunk: kvroom::PushedChunk,
    _alone: tokio::sync::MutexGuard<'static, ()>,
}

/// The memory of this process is measured, so that only one test of it at a time has large pools.
static LARGE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

const BIG: u64 = 1 << 20;

async fn stopped(liveness: Duration, resume: Duration) -> Stopped {
    let alone = LARGE.lock().await;
    let deadlines = Deadlines {
        liveness,
        resume,
        ..quick()
    };
    let prefill = here("p", BIG, deadlines).await;
    let mut decode = start(&Role {
        name: "d",
        page_bytes: BIG,
        ..Role::default()
    })
    .await;
    decode
        .ask(&format!("connect {}", prefill.address), "@connected p")
        .await;
    moves_there(&prefill, &mut decode, 1).await;
    let peer = within(prefill.node.peer("d")).await.unwrap();
    let pages: Vec<u32> = (0..16).collect();
    let list: Vec<String> = pages.iter().map(u32::to_string).collect();
    let line = format!("receive 2 0 p {}", list.join(","));
    decode.ask(&line, "@receiving 2 0").await;
    let room = within(prefill.node.send(kvroom::RoomId(2)).start()).await;
    let room = room.unwrap();
    until("it is bound", || room.poll().state != StateName::Registered).await;
    decode.stop();
    let lease = prefill.stamped(&pages, stamp_of(2, 0), 0);
    let chunk = push(&room, 0..16 * TOKENS, lease).await;
    room.finish(16 * TOKENS, None).unwrap();
    Stopped {
        prefill,
        decode,
        peer,
        room,
        chunk,
        _alone: alone,
    }
}

/// Rooms with another peer go on, and memory does not grow, while one is stopped.
async fn others_are_served(prefill: &Side) {
    // A page more than prefill's pool has left is not needed: the sources are elsewhere.
    let extra = kvroom::Pool::owned(kvroom::PoolLayout {
        name: "kv2".into(),
        ..kv(16, 64 << 10)
    });
    let extra = extra.unwrap();
    prefill.node.add_pool(extra.clone()).await.unwrap();
    let other = here("d2", BIG, quick()).await;
    let there = kvroom::Pool::owned(extra.layout().as_ref().clone()).unwrap();
    other.node.add_pool(there.clone()).await.unwrap();
    let peer = within(other.node.connect(&prefill.address)).await.unwrap();
    let before = resident_of("self");
    for id in 100..200 {
        let lease = there.lease_write(&[0, 1, 2, 3]).unwrap();
        let room = other.node.receive(kvroom::RoomId(id)).from(&peer);
        let receiver = within(room.into(lease).start()).await.unwrap();
        let sender = within(prefill.node.send(kvroom::RoomId(id)).start()).await;
        let sender = sender.unwrap();
        let mut lease = extra.lease_write(&[4, 5, 6, 7]).unwrap();
        fill(&mut lease, id, 0);
        push(&sender, 0..4 * TOKENS, lease.into_read()).await;
        sender.finish(4 * TOKENS, None).unwrap();
        assert_eq!(within(receiver.outcome()).await, Outcome::Done);
        verify(&within(receiver.released()).await.leases[0], id, 0);
        drop(within(sender.released()).await);
    }
    let grown = resident_of("self").saturating_sub(before);
    assert!(grown < 24 << 20, "{grown} bytes more");
    other.quiet().await;
}

#[tokio::test]
async fn a_peer_that_is_stopped_for_a_while_goes_on_where_it_was() {
    let mut s = stopped(PATIENCE, PATIENCE).await;
    others_are_served(&s.prefill).await;
    assert_eq!(s.room.try_outcome(), None);
    s.decode.go_on();
    assert_eq!(within(s.room.outcome()).await, Outcome::Done);
    s.decode.hears("@done r 2 0").await;
    assert!(within(s.chunk.released()).await.is_some());
    drop(within(s.room.released()).await);
    moves_there(&s.prefill, &mut s.decode, 3).await;
    drop(s.room);
    s.prefill.node.retire_pool("kv2").await.unwrap();
    s.prefill.quiet().await;
    s.decode.ask("free", "@free").await;
}

#[tokio::test]
async fn a_peer_that_is_stopped_for_too_long_is_given_up_and_served_again_when_it_goes_on() {
    let short = Duration::from_millis(400);
    let mut s = stopped(short, short).await;
    // No witness of it comes from the other side: the connections are gone, and nothing reads
    // the source any more.
    is_lost(&within(s.room.outcome()).await);
    assert!(within(s.chunk.released()).await.is_some());
    drop(within(s.room.released()).await);
    drop(s.room);
    s.prefill.quiet().await;
    assert!(s.peer.is_up().is_err());
    others_are_served(&s.prefill).await;
    s.decode.go_on();
    // It hears of it, its room ends, and its memory comes back.
    s.decode.hears("@aborted r 2 0").await;
    s.decode.hears("@released r 2 0").await;
    s.decode
        .ask(&format!("connect {}", s.prefill.address), "@connected p")
        .await;
    moves_there(&s.prefill, &mut s.decode, 3).await;
    s.decode.ask("free", "@free").await;
}

#[tokio::test]
async fn being_stopped_oneself_kills_no_peer() {
    // The other process is stopped for longer than its own liveness. When it goes on it must not
    // take its own absence for this side's silence.
    let prefill = here("p", 4096, Deadlines::default()).await;
    let role = Role {
        name: "d",
        liveness_ms: 400,
        ..Role::default()
    };
    let mut decode = start(&role).await;
    decode
        .ask(&format!("connect {}", prefill.address), "@connected p")
        .await;
    let peer = within(prefill.node.peer("d")).await.unwrap();
    let room = within(prefill.node.send(kvroom::RoomId(2)).start()).await;
    let room = room.unwrap();
    decode.ask("receive 2 0 p 0,1", "@receiving 2 0").await;
    until("it is bound", || room.poll().state != StateName::Registered).await;
    decode.stop();
    // Longer than that liveness, by this side's clock.
    tokio::time::sleep(Duration::from_millis(900)).await;
    decode.go_on();
    decode.ask("ping", "@pong").await;
    let lease = prefill.stamped(&[0, 1], stamp_of(2, 0), 0);
    push(&room, 0..2 * TOKENS, lease).await;
    room.finish(2 * TOKENS, None).unwrap();
    assert_eq!(within(room.outcome()).await, Outcome::Done);
    decode.hears("@done r 2 0").await;
    assert_eq!(peer.state(), kvroom::PeerState::Up);
    let never_lost = |s: &NodeStats| s.transports_lost == 0;
    assert!(never_lost(&prefill.node.stats().await));
}

#[tokio::test]
async fn both_processes_live_on_when_everything_between_them_is_reset_again_and_again() {
    let prefill = here("p", PIECE, quick()).await;
    let mut decode = start(&Role {
        name: "d",
        page_bytes: PIECE,
        ..Role::default()
    })
    .await;
    let proxy = Proxy::tcp(&prefill.address);
    decode
        .ask(&format!("connect {}", proxy.address()), "@connected p")
        .await;
    for id in 1..=20 {
        decode.tell(&format!("receive {id} 0 p 0,1"));
        let room = within(prefill.node.send(kvroom::RoomId(id)).start()).await;
        let room = room.unwrap();
        let lease = prefill.stamped(&[0, 1], stamp_of(id, 0), 0);
        push(&room, 0..2 * TOKENS, lease).await;
        proxy.reset();
        room.finish(2 * TOKENS, None).unwrap();
        assert_eq!(within(room.outcome()).await, Outcome::Done, "{id}");
        decode.hears(&format!("@done r {id} 0")).await;
        drop(within(room.released()).await);
    }
    decode.ask("free", "@free").await;
    prefill.quiet().await;
}
