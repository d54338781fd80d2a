//! Processes of one host that are stopped and killed inside each other's gates.
//!
//! ```text
//!   this process: decode, its pool and its gates        the other one: prefill
//!        mapped there ◀──────────── its lane is inside a gate (a `Brake`), and it is stopped or killed
//! ```
//!
//! Over shared memory it is the sender's process that writes. What is asked of the receiver is the
//! same as ever: its outcomes at once, its memory on proof.
#![allow(clippy::unwrap_used)]

mod common;

use common::process::*;
use common::*;
use kvroom::actors::copy::plant::Brake;
use kvroom::{
    Code, Deadlines, Fabric, LocalHub, Node, Outcome, Peer, PeerState, Proof, ReceiveRoom, RoomId,
    StateName,
};
use std::time::{Duration, Instant};

const PLAYER: &str = "plays_the_other_process_when_told_to";

#[test]
fn plays_the_other_process_when_told_to() {
    play_if_told();
}

async fn start(role: &Role) -> Other {
    Other::start(PLAYER, role).await
}

/// Another process with a pool that can be mapped, found by TCP: that it is near it says itself.
fn role(name: &'static str) -> Role {
    Role {
        name,
        page_bytes: PIECE,
        shared: true,
        liveness_ms: 30_000,
        ..Role::default()
    }
}

/// A peer is given up for being dead, or not at all.
fn patient() -> Deadlines {
    Deadlines {
        liveness: PATIENCE,
        resume: PATIENCE,
        drain: Duration::from_millis(200),
        backoff_first: Duration::from_millis(5),
        backoff_most: Duration::from_millis(50),
        ..Deadlines::default()
    }
}

/// A peer that is silent for [`SHORT`] has lost its connection.
fn impatient(resume: Duration) -> Deadlines {
    Deadlines {
        ping: SHORT / 4,
        liveness: SHORT,
        resume,
        ..patient()
    }
}

const SHORT: Duration = Duration::from_millis(400);

/// This process's node.
async fn here(name: &str, deadlines: Deadlines) -> (Side, Brake) {
    here_with(name, deadlines, PIECE).await
}

async fn here_with(name: &str, deadlines: Deadlines, page_bytes: u64) -> (Side, Brake) {
    let setup = Setup {
        over: Over::Shm,
        layout: kv(16, page_bytes),
        deadlines,
        ..Setup::default()
    };
    let brake = Brake::default();
    let side = Side::start(&LocalHub::new(), name, &setup, &brake).await;
    (side, brake)
}

/// Connects to another process, which is near.
async fn meet(node: &Node, address: &str) -> Peer {
    let peer = within(node.connect(address)).await.unwrap();
    assert_eq!(peer.fabric(), Some(Fabric::Shm));
    peer
}

/// This process's decode and another one's prefill.
struct Pair {
    decode: Side,
    prefill: Other,
    peer: Peer,
}

async fn pair(deadlines: Deadlines) -> Pair {
    pair_with(deadlines, &role("p")).await
}

async fn pair_with(deadlines: Deadlines, role: &Role) -> Pair {
    let (decode, _) = here_with("d", deadlines, role.page_bytes).await;
    let prefill = start(role).await;
    let peer = meet(&decode.node, &prefill.address).await;
    let mut pair = Pair {
        decode,
        prefill,
        peer,
    };
    pair.moves(1).await;
    pair
}

/// The stamp of a page before anything is written into it.
const BEFORE: u64 = 0xcaa1;

impl Pair {
    /// A room on these pages, bound.
    async fn bound(&mut self, id: u64, pages: &[u32]) -> ReceiveRoom {
        let room = self.receive(id, pages).await;
        self.binds(id, &room).await;
        room
    }

    async fn binds(&mut self, id: u64, room: &ReceiveRoom) {
        let line = format!("send {id} 0");
        self.prefill.ask(&line, &format!("@sending {id} 0")).await;
        until("it is bound", || room.poll().state != StateName::Registered).await;
    }

    /// A room on pages that are stamped.
    async fn receive(&self, id: u64, pages: &[u32]) -> ReceiveRoom {
        let mut lease = self.decode.pool.lease_write(pages).unwrap();
        fill(&mut lease, BEFORE, 0);
        let room = self.decode.node.receive(RoomId(id)).from(&self.peer);
        within(room.into(lease).start()).await.unwrap()
    }

    /// Pushes pages of a room.
    async fn pushes(&mut self, id: u64, first: u64, pages: u32) {
        self.prefill.tell(&format!("push {id} 0 {first} {pages}"));
        self.prefill.hears(&format!("@pushed {id} 0 {first}")).await;
    }

    /// A room on these pages, in whose gate the other process's lane stands: some pieces have landed.
    async fn inside(&mut self, id: u64, pages: &[u32]) -> ReceiveRoom {
        let room = self.bound(id, pages).await;
        let pieces = (pages.len() * LAYERS as usize).saturating_sub(2);
        self.prefill
            .ask(&format!("hold {pieces}"), "@holding")
            .await;
        self.pushes(id, 0, pages.len() as u32).await;
        self.prefill.ask("held", "@held").await;
        room
    }

    /// A whole room from the other process to this one.
    async fn moves(&mut self, id: u64) {
        moves(&self.decode, &mut self.prefill, &self.peer, id).await;
    }

    /// All bytes of these pages.
    fn bytes_of(&self, pages: &[u32]) -> Vec<u8> {
        let mut all = Vec::new();
        for page in pages {
            for layer in 0..LAYERS {
                let mut bytes = vec![0; PIECE as usize];
                self.decode.pool.observe(layer, *page, &mut bytes).unwrap();
                all.extend(bytes);
            }
        }
        all
    }

    /// Waits until this room, and no other, is counted as quarantined, and gives the reason.
    async fn quarantined(&self, id: u64, pages: u64) -> String {
        let node = &self.decode.node;
        until_stats("it is quarantined", node, |s| s.quarantined_pages > 0).await;
        let rooms = within(node.rooms()).await;
        let held: Vec<_> = rooms.iter().filter(|room| room.quarantined).collect();
        let [room] = held[..] else {
            panic!("{rooms:?}")
        };
        assert_eq!((room.key.id, room.pages), (RoomId(id), pages));
        let stats = node.stats().await;
        assert_eq!(stats.quarantined_pages, pages);
        room.held_because.clone().unwrap()
    }
}

async fn moves(decode: &Side, prefill: &mut Other, peer: &Peer, id: u64) {
    let lease = decode.pool.lease_write(&[0, 1]).unwrap();
    let room = decode.node.receive(RoomId(id)).from(peer);
    let room = within(room.into(lease).start()).await.unwrap();
    prefill.tell(&format!("send {id} 0"));
    prefill.tell(&format!("push {id} 0 0 2"));
    prefill.tell(&format!("finish {id} 0 2"));
    assert_eq!(within(room.outcome()).await, Outcome::Done);
    verify(&within(room.released()).await.leases[0], stamp_of(id, 0), 0);
    prefill.hears(&format!("@released s {id} 0")).await;
}

/// An end that is what it must be when the other side's process has died.
#[track_caller]
fn is_lost(outcome: &Outcome) {
    let lost = [Code::PeerLost, Code::PeerRestarted, Code::SessionLost];
    assert!(lost.contains(&code(outcome)), "{outcome}");
}

/// The newest life of a peer, once it is up and not that one.
async fn newer(node: &Node, than: &Peer) -> Peer {
    let start = Instant::now();
    loop {
        if let Some(peer) = node.peer(than.name()).await
            && peer.incarnation() != than.incarnation()
            && peer.is_up().is_ok()
        {
            assert_eq!(peer.fabric(), Some(Fabric::Shm));
            return peer;
        }
        assert!(start.elapsed() < PATIENCE, "its next life never came up");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// The lease has not come back, though a drain deadline has passed.
async fn is_still_out(room: &ReceiveRoom) {
    assert!(poll_once(room.released()).await.is_none());
}

#[tokio::test]
async fn a_writer_that_is_stopped_inside_a_gate_keeps_exactly_the_pages_of_its_claim() {
    let mut p = pair(patient()).await;
    // Another peer, in this process, which works on.
    let (other, _) = here("p2", patient()).await;
    let second = meet(&p.decode.node, &other.address).await;

    let room = p.inside(10, &[4, 5]).await;
    // Of the same peer, and nobody is inside its gate.
    let empty = p.receive(11, &[6, 7]).await;
    p.prefill.stop();
    let asked = Instant::now();
    room.abort("the user left");
    empty.abort("the user left");
    assert_eq!(code(&within(room.outcome()).await), Code::Requested);
    assert_eq!(code(&within(empty.outcome()).await), Code::Requested);
    assert!(asked.elapsed() < Duration::from_secs(2), "{asked:?}");
    let back = within(empty.released()).await;
    assert_eq!(back.proofs, [Proof::GateClosed]);
    verify(&back.leases[0], BEFORE, 0);
    drop(back);

    let why = p.quarantined(10, 2).await;
    names(&why, &["a writer is inside its closed gate"]);
    is_still_out(&room).await;
    // Exactly these.
    assert_eq!(p.decode.pool.leased_pages(), 2);
    let rest: Vec<u32> = (0..16).filter(|page| ![4, 5].contains(page)).collect();
    drop(p.decode.pool.lease_write(&rest).unwrap());
    for page in [4, 5] {
        assert!(p.decode.pool.lease_write(&[page]).is_err());
    }
    for id in 20..30 {
        let lease = p.decode.pool.lease_write(&[0, 1, 2]).unwrap();
        let room = p.decode.node.receive(RoomId(id)).from(&second);
        let room = within(room.into(lease).start()).await.unwrap();
        let sender = within(other.node.send(RoomId(id)).start()).await.unwrap();
        push(&sender, 0..3 * TOKENS, other.stamped(&[3, 4, 5], id, 0)).await;
        sender.finish(3 * TOKENS, None).unwrap();
        assert_eq!(within(room.outcome()).await, Outcome::Done);
        verify(&within(room.released()).await.leases[0], id, 0);
        drop(within(sender.released()).await);
    }
    is_still_out(&room).await;

    // Its lane goes on only when it is told to: for as long it is inside, though its process runs.
    p.prefill.go_on();
    p.prefill.ask("ping", "@pong").await;
    settle(&[&p.decode.node]).await;
    is_still_out(&room).await;
    p.prefill.ask("release", "@going").await;
    let mut back = within(room.released()).await;
    assert_eq!(back.proofs, [Proof::GateClosed]);
    fill(&mut back.leases[0], 0xbee5, 0);
    p.prefill.hears("@aborted s 10 0").await;
    p.prefill.hears("@released s 10 0").await;
    // Nothing of it is left that could write, and the session is what it was.
    p.moves(40).await;
    verify(&back.leases[0], 0xbee5, 0);
    drop((back, room, empty));
    assert_eq!(p.decode.node.stats().await.transports_lost, 0);
    p.prefill.ask("free", "@free").await;
    p.decode.quiet().await;
    other.quiet().await;
}

#[tokio::test]
async fn a_writer_that_comes_back_after_its_gate_was_closed_changes_no_byte() {
    let mut p = pair(patient()).await;
    for id in [10_u64, 20, 30] {
        // Its lane stands in the first room's gate, with the second one's copy behind it.
        let first = p.inside(id, &[4, 5]).await;
        let behind = p.bound(id + 1, &[6, 7, 8, 9]).await;
        p.pushes(id + 1, 0, 4).await;
        p.prefill.stop();
        behind.abort("the user left");
        let mut back = within(behind.released()).await;
        assert_eq!(back.proofs, [Proof::GateClosed]);
        verify(&back.leases[0], BEFORE, 0);
        // The pages belong to somebody else now.
        fill(&mut back.leases[0], 0xbee5, 0);
        p.prefill.go_on();
        p.prefill.ask("release", "@going").await;
        p.prefill.tell(&format!("finish {id} 0 2"));
        assert_eq!(within(first.outcome()).await, Outcome::Done);
        verify(
            &within(first.released()).await.leases[0],
            stamp_of(id, 0),
            0,
        );
        let line = format!("@released s {} 0", id + 1);
        p.prefill.hears(&line).await;
        verify(&back.leases[0], 0xbee5, 0);
    }
    p.moves(40).await;
    p.prefill.ask("free", "@free").await;
    p.decode.quiet().await;
}

#[tokio::test]
async fn a_writer_that_is_stopped_in_the_middle_of_a_copy_writes_nothing_when_it_goes_on() {
    // A copy that takes longer than a signal: 24 MiB in pieces, of which the lane is nearly always
    // between two, or in one.
    let role = Role {
        page_bytes: 1 << 20,
        ..role("p")
    };
    let mut p = pair_with(patient(), &role).await;
    let pages: Vec<u32> = (4..16).collect();
    let (mut midway, mut inside) = (0, 0);
    for id in 10..30 {
        let lease = p.decode.pool.lease_write(&pages).unwrap();
        let room = p.decode.node.receive(RoomId(id)).from(&p.peer);
        let room = within(room.into(lease).start()).await.unwrap();
        p.binds(id, &room).await;
        p.pushes(id, 0, 12).await;
        p.prefill.stop();
        room.abort("the user left");
        code(&within(room.outcome()).await);
        // At once if nobody is inside; else not before it goes on.
        let soon = tokio::time::timeout(Duration::from_millis(100), room.released());
        let mut back = soon.await.ok();
        let stood_inside = back.is_none();
        let stamp = |lease: &mut kvroom::WriteLease| {
            for page in 0..12 {
                lease.page_mut(1, page).fill(0xee);
            }
        };
        if let Some(back) = &mut back {
            let part = back.landed.bytes;
            midway += u32::from(part > 0 && part < back.landed.wanted);
            stamp(&mut back.leases[0]);
        }
        p.prefill.go_on();
        let back = match back {
            Some(back) => back,
            None => {
                let mut back = within(room.released()).await;
                stamp(&mut back.leases[0]);
                back
            }
        };
        inside += u32::from(stood_inside);
        p.prefill.hears(&format!("@released s {id} 0")).await;
        for page in 0..12 {
            let bytes = back.leases[0].page(1, page);
            assert!(bytes.iter().all(|b| *b == 0xee), "room {id}, page {page}");
        }
    }
    assert!(
        midway + inside > 2,
        "{midway} midway, {inside} inside a gate"
    );
    p.prefill.ask("free", "@free").await;
    p.decode.quiet().await;
}

#[tokio::test]
async fn a_writer_that_is_killed_inside_a_gate_is_proven_dead_and_not_a_moment_before() {
    let mut p = pair(patient()).await;
    let room = p.inside(10, &[4, 5]).await;
    room.abort("the user left");
    assert_eq!(code(&within(room.outcome()).await), Code::Requested);
    // A drain deadline passes; that is no proof.
    let why = p.quarantined(10, 2).await;
    names(&why, &["a writer is inside its closed gate"]);
    is_still_out(&room).await;
    // A stopped process is not a dead one.
    p.prefill.stop();
    settle(&[&p.decode.node]).await;
    is_still_out(&room).await;

    p.prefill.kill();
    let mut back = within(room.released()).await;
    assert_eq!(back.proofs, [Proof::WriterDead]);
    fill(&mut back.leases[0], 0xbee5, 0);
    until("the session is over", || p.peer.is_up().is_err()).await;
    settle(&[&p.decode.node]).await;
    verify(&back.leases[0], 0xbee5, 0);
    drop((back, room));
    p.decode.quiet().await;
}

#[tokio::test]
async fn the_death_of_a_writer_is_known_long_before_any_deadline() {
    let deadlines = Deadlines {
        drain: PATIENCE,
        ..patient()
    };
    let mut p = pair(deadlines).await;
    let inside = p.inside(10, &[4, 5]).await;
    let outside = p.bound(11, &[6, 7]).await;
    let begun = Instant::now();
    p.prefill.kill();
    is_lost(&within(inside.outcome()).await);
    is_lost(&within(outside.outcome()).await);
    let dead = within(inside.released()).await;
    let closed = within(outside.released()).await;
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(5), "{took:?}");
    assert_eq!(dead.proofs, [Proof::WriterDead]);
    // In this one nobody was.
    assert_eq!(closed.proofs, [Proof::GateClosed]);
    verify(&closed.leases[0], BEFORE, 0);
    drop((dead, closed, inside, outside));
    let stats = p.decode.node.stats().await;
    assert_eq!(stats.rooms_quarantined, 0, "{stats:?}");
    p.decode.quiet().await;
}

/// Where a room of two pages stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The claim is there and the other side's room is not.
    Alone,
    Bound,
    /// One of two pages has landed.
    Half,
    /// The lane is inside the gate.
    Inside,
    /// Everything has been said and done.
    Done,
}

const STEPS: [Step; 5] = [
    Step::Alone,
    Step::Bound,
    Step::Half,
    Step::Inside,
    Step::Done,
];

#[tokio::test]
async fn a_prefill_that_is_killed_at_any_step_is_served_again_under_its_address() {
    let mut role = role("p");
    let mut p = pair_with(patient(), &role).await;
    role.listen = p.prefill.address.clone();
    for (i, step) in STEPS.into_iter().enumerate() {
        let id = 10 * (i as u64 + 1);
        let room = match step {
            Step::Alone => p.receive(id, &[4, 5]).await,
            Step::Inside => p.inside(id, &[4, 5]).await,
            _ => p.bound(id, &[4, 5]).await,
        };
        if matches!(step, Step::Half | Step::Done) {
            p.pushes(id, 0, 1).await;
        }
        if step == Step::Half {
            let landed = || holds(&p.bytes_of(&[4])[..PIECE as usize], stamp_of(id, 0), 0, 0);
            until("a page has landed", landed).await;
        }
        if step == Step::Done {
            p.pushes(id, 1, 1).await;
            p.prefill.tell(&format!("finish {id} 0 2"));
            assert_eq!(within(room.outcome()).await, Outcome::Done);
        }
        p.prefill.kill();
        let outcome = within(room.outcome()).await;
        let mut back = within(room.released()).await;
        let proof = match step {
            Step::Inside => Proof::WriterDead,
            _ => Proof::GateClosed,
        };
        assert_eq!(back.proofs, [proof], "{step:?}");
        if step == Step::Done {
            assert_eq!(outcome, Outcome::Done);
            verify(&back.leases[0], stamp_of(id, 0), 0);
        } else {
            is_lost(&outcome);
        }
        fill(&mut back.leases[0], 0xbee5, 0);

        // The same address, a new life; this side connects by itself.
        let before = p.peer.clone();
        p.prefill = start(&role).await;
        p.peer = newer(&p.decode.node, &before).await;
        assert!(before.is_up().is_err());
        p.moves(id + 2).await;
        verify(&back.leases[0], 0xbee5, 0);
        drop((back, room));
        p.decode.quiet().await;
    }
}

#[tokio::test]
async fn a_decode_that_is_killed_while_it_is_written_to_ends_its_rooms_and_frees_their_sources() {
    let (prefill, brake) = here("p", patient()).await;
    let mut role = role("d");
    let mut decode = start(&role).await;
    for (i, step) in STEPS.into_iter().enumerate() {
        let id = 10 * (i as u64 + 1);
        let line = format!("connect {}", prefill.address);
        decode.ask(&line, "@connected p").await;
        let peer = within(prefill.node.peer("d")).await.unwrap();
        assert_eq!(peer.fabric(), Some(Fabric::Shm));
        moves_there(&prefill, &mut decode, id + 1).await;

        let room = within(prefill.node.send(RoomId(id)).start()).await.unwrap();
        if step != Step::Alone {
            let line = format!("receive {id} 0 p 4,5");
            decode.ask(&line, &format!("@receiving {id} 0")).await;
            until("it is bound", || room.poll().state != StateName::Registered).await;
        }
        if step == Step::Inside {
            brake.hold_after(1);
        }
        let mut chunks = Vec::new();
        if matches!(step, Step::Half | Step::Inside | Step::Done) {
            let lease = prefill.stamped(&[4], stamp_of(id, 0), 0);
            chunks.push(push(&room, 0..TOKENS, lease).await);
        }
        match step {
            Step::Half => assert!(within(chunks.remove(0).released()).await.is_some()),
            Step::Inside => until("the lane is held", || brake.held() == 1).await,
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
            _ => assert_eq!(code(&within(room.outcome()).await), Code::PeerLost),
        }
        if step == Step::Inside {
            // The lane reads the source for as long as it is in there, whoever is dead.
            settle(&[&prefill.node]).await;
            assert!(prefill.pool.lease_write(&[4]).is_err());
            brake.release();
        }
        for chunk in chunks {
            assert!(within(chunk.released()).await.is_some());
        }
        drop(within(room.released()).await);
        drop(room);
        prefill.quiet().await;
        decode = start(&role).await;
        role.listen = decode.address.clone();
    }
    let line = format!("connect {}", prefill.address);
    decode.ask(&line, "@connected p").await;
    moves_there(&prefill, &mut decode, 1_000).await;
    decode.ask("free", "@free").await;
    decode.kill();
    assert!(within(prefill.node.shutdown()).await.drained);
}

/// A whole room from this process to the other one.
async fn moves_there(prefill: &Side, decode: &mut Other, id: u64) {
    decode.tell(&format!("receive {id} 0 p 0,1"));
    let room = within(prefill.node.send(RoomId(id)).start()).await;
    let room = room.unwrap();
    let lease = prefill.stamped(&[0, 1], stamp_of(id, 0), 0);
    push(&room, 0..2 * TOKENS, lease).await;
    room.finish(2 * TOKENS, None).unwrap();
    assert_eq!(within(room.outcome()).await, Outcome::Done);
    decode.hears(&format!("@done r {id} 0")).await;
    drop(within(room.released()).await);
}

#[tokio::test]
async fn a_decode_that_is_killed_at_any_moment_of_a_copy_frees_every_source() {
    let (prefill, _) = here("p", patient()).await;
    let pages: Vec<u32> = (0..16).collect();
    let list: Vec<String> = pages.iter().map(u32::to_string).collect();
    for id in 0..8 {
        let mut decode = start(&role("d")).await;
        let line = format!("connect {}", prefill.address);
        decode.ask(&line, "@connected p").await;
        let line = format!("receive {id} 0 p {}", list.join(","));
        decode.ask(&line, &format!("@receiving {id} 0")).await;
        let room = within(prefill.node.send(RoomId(id)).start()).await.unwrap();
        until("it is bound", || room.poll().state != StateName::Registered).await;
        let chunk = push(&room, 0..16 * TOKENS, prefill.stamped(&pages, id, 0)).await;
        tokio::time::sleep(Duration::from_micros(id * 200)).await;
        decode.kill();
        is_lost(&within(room.outcome()).await);
        assert!(within(chunk.released()).await.is_some());
        drop(within(room.released()).await);
        drop(room);
        prefill.quiet().await;
    }
}

#[tokio::test]
async fn a_peer_that_is_stopped_with_megabytes_under_way_holds_nobody_up_and_goes_on() {
    let (prefill, _) = here("p", patient()).await;
    let mut decode = start(&role("d")).await;
    let line = format!("connect {}", prefill.address);
    decode.ask(&line, "@connected p").await;
    moves_there(&prefill, &mut decode, 1).await;
    let pages: Vec<u32> = (0..12).collect();
    let list: Vec<String> = pages.iter().map(u32::to_string).collect();
    let line = format!("receive 2 0 p {}", list.join(","));
    decode.ask(&line, "@receiving 2 0").await;
    let room = within(prefill.node.send(RoomId(2)).start()).await.unwrap();
    until("it is bound", || room.poll().state != StateName::Registered).await;
    decode.stop();
    let chunk = push(
        &room,
        0..12 * TOKENS,
        prefill.stamped(&pages, stamp_of(2, 0), 0),
    )
    .await;
    room.finish(12 * TOKENS, None).unwrap();
    // Its memory is there, though its process is not: all of it lands, and the source is free.
    assert!(within(chunk.released()).await.is_some());
    assert_eq!(prefill.pool.leased_pages(), 0);

    // Others are served meanwhile, and what is for the stopped one does not pile up.
    let (other, _) = here("d2", patient()).await;
    let peer = meet(&other.node, &prefill.address).await;
    let before = resident_of("self");
    for id in 100..200 {
        let lease = other.pool.lease_write(&[0, 1, 2, 3]).unwrap();
        let room = other.node.receive(RoomId(id)).from(&peer);
        let receiver = within(room.into(lease).start()).await.unwrap();
        let sender = within(prefill.node.send(RoomId(id)).start()).await;
        let sender = sender.unwrap();
        push(
            &sender,
            0..4 * TOKENS,
            prefill.stamped(&[4, 5, 6, 7], id, 0),
        )
        .await;
        sender.finish(4 * TOKENS, None).unwrap();
        assert_eq!(within(receiver.outcome()).await, Outcome::Done);
        verify(&within(receiver.released()).await.leases[0], id, 0);
        drop(within(sender.released()).await);
    }
    let grown = resident_of("self").saturating_sub(before);
    assert!(grown < 24 << 20, "{grown} bytes more");
    // Only the other process can say that it has all of it.
    assert_eq!(room.try_outcome(), None);

    decode.go_on();
    assert_eq!(within(room.outcome()).await, Outcome::Done);
    decode.hears("@done r 2 0").await;
    drop(within(room.released()).await);
    moves_there(&prefill, &mut decode, 3).await;
    drop(room);
    decode.ask("free", "@free").await;
    prefill.quiet().await;
    other.quiet().await;
}

#[tokio::test]
async fn a_peer_that_is_stopped_inside_a_gate_for_too_long_is_given_up_and_keeps_only_its_claim() {
    let mut p = pair_with(
        impatient(SHORT),
        &Role {
            resume_ms: 400,
            ..role("p")
        },
    )
    .await;
    let inside = p.inside(10, &[4, 5]).await;
    let outside = p.bound(11, &[6, 7]).await;
    p.prefill.stop();
    is_lost(&within(inside.outcome()).await);
    is_lost(&within(outside.outcome()).await);
    assert!(p.peer.is_up().is_err());
    let back = within(outside.released()).await;
    assert_eq!(back.proofs, [Proof::GateClosed]);
    let why = p.quarantined(10, 2).await;
    names(&why, &["a writer is inside its closed gate"]);
    is_still_out(&inside).await;
    let before = p.bytes_of(&[6, 7]);

    // It goes on, and hears that its session is over; its lane is inside still.
    p.prefill.go_on();
    p.prefill.hears("@aborted s 10 0").await;
    p.prefill.hears("@aborted s 11 0").await;
    is_still_out(&inside).await;
    p.prefill.ask("release", "@going").await;
    let mut back_too = within(inside.released()).await;
    assert_eq!(back_too.proofs, [Proof::GateClosed]);
    fill(&mut back_too.leases[0], 0xbee5, 0);
    // The same two lives, a new session, new gates.
    p.peer = meet(&p.decode.node, &p.prefill.address).await;
    p.moves(20).await;
    verify(&back_too.leases[0], 0xbee5, 0);
    assert!(before == p.bytes_of(&[6, 7]), "a byte has changed");
    drop((back, back_too, inside, outside));
    p.prefill.ask("free", "@free").await;
    p.decode.quiet().await;
}

#[tokio::test]
async fn a_session_whose_connection_was_given_up_goes_on_over_a_fresh_ring() {
    let mut p = pair(impatient(PATIENCE)).await;
    for id in [10_u64, 20, 30] {
        let room = p.bound(id, &[4, 5]).await;
        p.pushes(id, 0, 1).await;
        p.prefill.stop();
        until("the connection is given up", || {
            matches!(p.peer.state(), PeerState::Resuming(_))
        })
        .await;
        p.prefill.go_on();
        // Nothing of the room is lost, nor of the session's numbers.
        p.pushes(id, 1, 1).await;
        p.prefill.tell(&format!("finish {id} 0 2"));
        assert_eq!(within(room.outcome()).await, Outcome::Done);
        verify(&within(room.released()).await.leases[0], stamp_of(id, 0), 0);
        assert_eq!(p.peer.state(), PeerState::Up);
        assert_eq!(p.peer.fabric(), Some(Fabric::Shm));
        p.prefill.hears(&format!("@released s {id} 0")).await;
    }
    let stats = p.decode.node.stats().await;
    assert!(stats.sessions_resumed >= 3, "{stats:?}");
    assert_eq!(stats.sessions_opened, 1, "{stats:?}");
    p.moves(40).await;
    p.prefill.ask("free", "@free").await;
    p.decode.quiet().await;
}
