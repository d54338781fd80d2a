//! Processes that are joined by UCX, and one of them dies, is stopped, or ends and comes back under its address:
//! it serves again, others never notice, and what came back from it is nobody else's.
//!
//! ```text
//!   p: another process ─┐  struck, and started again at its address
//!                       ├─▶ d: this one, its pages watched
//!   q: another process ─┘  goes on
//! ```
#![allow(clippy::unwrap_used)]

mod common;

use common::process::*;
use common::*;
use kvroom::{
    Deadlines, Fabric, LocalHub, Outcome, Peer, Pool, Proof, ReceiveRoom, RoomId, StateName,
    WriteLease,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const PLAYER: &str = "plays_the_other_process_when_told_to";

/// Every way that bytes take without a NIC.
const WAYS: [&str; 3] = [
    "tcp;messages;10000",
    "posix,sysv;messages;10000",
    "posix,sysv;puts;10000",
];

/// Silence after which a peer is given up, where one stands still.
const SILENCE: Duration = Duration::from_millis(1500);

#[test]
fn plays_the_other_process_when_told_to() {
    play_if_told();
}

async fn is_here(test: &'static str) -> bool {
    let here = tokio::task::spawn_blocking(move || ucx_is_here(test));
    here.await.unwrap()
}

fn role(name: &'static str, ucx: &str, pages: u32) -> Role {
    Role {
        name,
        pages,
        page_bytes: PIECE,
        liveness_ms: 30_000,
        ucx: Some(ucx.to_owned()),
        ..Role::default()
    }
}

async fn here(name: &str, ucx: &str, pages: u32, liveness: Duration) -> Side {
    let mut setup = Setup {
        over: Over::Ucx,
        layout: kv(pages, PIECE),
        deadlines: Deadlines {
            ping: liveness / 4,
            liveness,
            resume: Duration::from_millis(500),
            backoff_first: Duration::from_millis(5),
            backoff_most: Duration::from_millis(50),
            ..Deadlines::default()
        },
        ..Setup::default()
    };
    setup.net.ucx = ucx_of(ucx);
    Side::start(&LocalHub::new(), name, &setup, &Default::default()).await
}

/// Another process, and this one's view of it.
struct Far {
    name: &'static str,
    ucx: &'static str,
    pages: u32,
    process: Other,
    peer: Peer,
}

impl Far {
    async fn start(d: &Side, name: &'static str, ucx: &'static str, pages: u32) -> Far {
        let process = Other::start(PLAYER, &role(name, ucx, pages)).await;
        let peer = within(d.node.connect(&process.address)).await.unwrap();
        assert_eq!(peer.fabric(), Some(Fabric::Ucx));
        Far {
            name,
            ucx,
            pages,
            process,
            peer,
        }
    }

    /// Its next life, under its address; it is connected to without being asked for.
    async fn again(&mut self, d: &Side) {
        let role = Role {
            listen: self.process.address.clone(),
            ..role(self.name, self.ucx, self.pages)
        };
        self.process = Other::start(PLAYER, &role).await;
        let before = self.peer.incarnation();
        self.is_met(d, |peer| peer.incarnation() != before).await;
    }

    async fn is_met(&mut self, d: &Side, fits: impl Fn(&Peer) -> bool) {
        let begun = Instant::now();
        loop {
            let peer = d.node.peer(self.name).await;
            if let Some(peer) = peer.filter(|peer| peer.is_up().is_ok() && fits(peer)) {
                assert_eq!(peer.fabric(), Some(Fabric::Ucx));
                self.peer = peer;
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "{} is not met again", self.name);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// A room from it into these pages, bound.
    async fn bound(&mut self, d: &Side, id: u64, pages: &[u32]) -> ReceiveRoom {
        let lease = d.pool.lease_write(pages).unwrap();
        let room = d.node.receive(RoomId(id)).from(&self.peer).into(lease);
        let room = within(room.start()).await.unwrap();
        self.process
            .ask(&format!("send {id} 0"), &format!("@sending {id} 0"))
            .await;
        until("it is bound", || room.poll().state != StateName::Registered).await;
        room
    }

    /// A whole room from it.
    async fn sends(&mut self, d: &Side, id: u64, pages: &[u32]) {
        let room = self.bound(d, id, pages).await;
        let count = pages.len();
        self.process.tell(&format!("push {id} 0 0 {count}"));
        self.process.tell(&format!("finish {id} 0 {count}"));
        assert_eq!(within(room.outcome()).await, Outcome::Done, "{}", self.ucx);
        verify(&within(room.released()).await.leases[0], stamp_of(id, 0), 0);
        self.process.hears(&format!("@released s {id} 0")).await;
    }

    /// A whole room to it.
    async fn receives(&mut self, d: &Side, id: u64, pages: &[u32]) {
        self.process
            .ask(
                &format!("receive {id} 0 d 0,1"),
                &format!("@receiving {id} 0"),
            )
            .await;
        let room = within(d.node.send(RoomId(id)).start()).await.unwrap();
        push(&room, 0..2 * TOKENS, d.stamped(pages, stamp_of(id, 0), 0)).await;
        room.finish(2 * TOKENS, None).unwrap();
        assert_eq!(within(room.outcome()).await, Outcome::Done, "{}", self.ucx);
        drop(within(room.released()).await);
        self.process.hears(&format!("@done r {id} 0")).await;
    }

    /// Its process ends as an operator would have it.
    async fn ends(&mut self) {
        self.process.ask("end", "@ended").await;
        self.process.ends().await;
    }
}

#[tokio::test]
async fn a_peer_that_is_killed_or_ends_and_starts_again_serves_again_over_ucx_in_both_directions() {
    let test =
        "a_peer_that_is_killed_or_ends_and_starts_again_serves_again_over_ucx_in_both_directions";
    if !is_here(test).await {
        return;
    }
    for ucx in WAYS {
        let d = here("d", ucx, 16, PATIENCE).await;
        let mut p = Far::start(&d, "p", ucx, 16).await;
        for life in 0..4 {
            let id = 10 * life;
            p.sends(&d, id, &[0, 1]).await;
            p.receives(&d, id + 1, &[2, 3]).await;
            // One of each direction that is not over when it goes.
            let to_here = p.bound(&d, id + 2, &[4, 5, 6]).await;
            let line = format!("push {} 0 0 2", id + 2);
            p.process
                .ask(&line, &format!("@pushed {} 0 0", id + 2))
                .await;
            let line = format!("receive {} 0 d 8,9,10", id + 3);
            p.process
                .ask(&line, &format!("@receiving {} 0", id + 3))
                .await;
            let from_here = within(d.node.send(RoomId(id + 3)).start()).await.unwrap();
            let lease = d.stamped(&[8, 9], stamp_of(id + 3, 0), 0);
            let chunk = push(&from_here, 0..2 * TOKENS, lease).await;
            match life % 2 {
                0 => p.process.kill(),
                _ => p.ends().await,
            }
            assert!(matches!(
                within(to_here.outcome()).await,
                Outcome::Aborted(_)
            ));
            assert!(matches!(
                within(from_here.outcome()).await,
                Outcome::Aborted(_)
            ));
            drop(within(to_here.released()).await);
            assert!(within(chunk.released()).await.is_some());
            drop(within(from_here.released()).await);
            p.again(&d).await;
        }
        p.sends(&d, 100, &[0, 1]).await;
        p.receives(&d, 101, &[2, 3]).await;
        p.process.ask("free", "@free").await;
        d.quiet().await;
    }
}

/// Rooms of one peer, one after the other, until told to stop.
struct Stream {
    moved: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    task: tokio::task::JoinHandle<Far>,
}

impl Stream {
    fn of(d: &Arc<Side>, mut q: Far) -> Stream {
        let (moved, stop) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let (d, count, ends) = (Arc::clone(d), Arc::clone(&moved), Arc::clone(&stop));
        let task = tokio::spawn(async move {
            while !ends.load(Ordering::Relaxed) {
                let id = 1_000_000 + count.load(Ordering::Relaxed);
                q.sends(&d, id, &[12, 13]).await;
                count.fetch_add(1, Ordering::Relaxed);
            }
            q
        });
        Stream { moved, stop, task }
    }

    /// Its rooms go on.
    async fn goes_on(&self, when: &str) {
        let upto = self.moved.load(Ordering::Relaxed) + 5;
        until(when, || {
            assert!(!self.task.is_finished(), "{when}: its rooms ended");
            self.moved.load(Ordering::Relaxed) >= upto
        })
        .await;
    }

    async fn end(self) -> Far {
        self.stop.store(true, Ordering::Relaxed);
        within(self.task).await.unwrap()
    }
}

#[tokio::test]
async fn a_third_process_that_is_killed_stopped_or_restarted_does_not_touch_the_rooms_of_another() {
    let test =
        "a_third_process_that_is_killed_stopped_or_restarted_does_not_touch_the_rooms_of_another";
    if !is_here(test).await {
        return;
    }
    for ucx in WAYS {
        let d = Arc::new(here("d", ucx, 16, SILENCE).await);
        let mut p = Far::start(&d, "p", ucx, 16).await;
        let q = Far::start(&d, "q", ucx, 16).await;
        let life = q.peer.incarnation();
        let stream = Stream::of(&d, q);
        stream.goes_on("before anything").await;
        for (id, how) in [(10, "killed"), (20, "stopped"), (30, "ended")] {
            p.sends(&d, id, &[0, 1]).await;
            let room = p.bound(&d, id + 1, &[2, 3, 4]).await;
            let line = format!("push {} 0 0 2", id + 1);
            p.process
                .ask(&line, &format!("@pushed {} 0 0", id + 1))
                .await;
            match how {
                "killed" => p.process.kill(),
                "stopped" => p.process.stop(),
                _ => p.ends().await,
            }
            stream.goes_on(&format!("{ucx}: p is {how}")).await;
            assert!(matches!(within(room.outcome()).await, Outcome::Aborted(_)));
            let back = within(room.released()).await;
            let proofs: &[Proof] = match (how, ucx.contains("puts")) {
                // It may have had the time to say that it is out.
                ("ended", true) => &[Proof::PathFenced, Proof::PeerDrained],
                (_, true) => &[Proof::PathFenced],
                (_, false) => &[Proof::GateClosed],
            };
            let [proof] = &back.proofs[..] else {
                panic!("{ucx}: {how}: {:?}", back.proofs);
            };
            assert!(proofs.contains(proof), "{ucx}: {how}: {proof:?}");
            drop(back);
            stream.goes_on(&format!("{ucx}: p's pages are back")).await;
            if how == "stopped" {
                p.process.go_on();
                p.process.hears(&format!("@aborted s {} 0", id + 1)).await;
                p.is_met(&d, |_| true).await;
            } else {
                p.again(&d).await;
            }
            p.sends(&d, id + 2, &[0, 1]).await;
            stream.goes_on(&format!("{ucx}: p is back")).await;
        }
        let mut q = stream.end().await;
        // The session that it began with.
        assert_eq!(q.peer.incarnation(), life);
        assert!(q.peer.is_up().is_ok());
        q.process.ask("free", "@free").await;
        p.process.ask("free", "@free").await;
        d.quiet().await;
    }
}

/// What happens in the middle of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Strike {
    AbortHere,
    AbortThere,
    Disconnect,
    Kill,
    Stop,
}

const STRIKES: [Strike; 5] = [
    Strike::AbortHere,
    Strike::AbortThere,
    Strike::Disconnect,
    Strike::Kill,
    Strike::Stop,
];

/// Pages of a room that is struck.
const MANY: u32 = 64;

/// Pages that have come back and were filled by their owner.
struct Owned {
    strike: Strike,
    name: String,
    lease: WriteLease,
    stamp: u64,
    d: Side,
    p: Far,
}

/// How many cells of the room have its first word.
fn landed(pool: &Pool, pages: u32, stamp: u64) -> u32 {
    let mut seen = [0; 8];
    let mut count = 0;
    for (layer, page) in (0..LAYERS).flat_map(|layer| (0..pages).map(move |page| (layer, page))) {
        pool.observe(layer, page, &mut seen).unwrap();
        count += u32::from(holds(&seen, stamp, layer, page.into()));
    }
    count
}

/// A room is struck while some of its bytes are there and some are not; its pages come back, and are filled anew.
async fn struck(ucx: &'static str, strike: Strike) -> Owned {
    let d = here("d", ucx, MANY + 2, SILENCE).await;
    let mut p = Far::start(&d, "p", ucx, MANY).await;
    let all: Vec<u32> = (0..MANY).collect();
    for id in 1..=20 {
        let room = p.bound(&d, id, &all).await;
        p.process.tell(&format!("push {id} 0 0 {MANY}"));
        let cells = MANY * LAYERS;
        let begun = Instant::now();
        // Busy: what is waited for is over in some milliseconds.
        while landed(&d.pool, MANY, stamp_of(id, 0)) == 0 {
            assert!(
                begun.elapsed() < PATIENCE,
                "{ucx} {strike:?}: nothing lands"
            );
            tokio::task::yield_now().await;
        }
        match strike {
            Strike::AbortHere => room.abort("the user left"),
            Strike::AbortThere => p.process.tell(&format!("abort {id} 0")),
            Strike::Disconnect => p.process.tell("disconnect d"),
            Strike::Kill => p.process.kill(),
            Strike::Stop => p.process.stop(),
        }
        let outcome = within(room.outcome()).await;
        let mut lease = within(room.released()).await.leases.remove(0);
        assert!(
            matches!(outcome, Outcome::Aborted(_)),
            "{ucx} {strike:?}: {outcome}"
        );
        let there = landed(&d.pool, MANY, stamp_of(id, 0));
        let stamp = 0xca_0000 + id;
        fill(&mut lease, stamp, 0);
        if there < cells {
            let name = format!("{ucx}, {strike:?}: {there} of {cells} cells had landed");
            println!("{name}");
            return Owned {
                strike,
                name,
                lease,
                stamp,
                d,
                p,
            };
        }
        // All of it was there before: once more.
        drop(lease);
        match strike {
            Strike::AbortHere | Strike::AbortThere => {}
            Strike::Kill => p.again(&d).await,
            Strike::Disconnect => {
                p.peer = within(d.node.connect(&p.process.address)).await.unwrap();
            }
            Strike::Stop => {
                p.process.go_on();
                p.is_met(&d, |_| true).await;
            }
        }
    }
    panic!("{ucx} {strike:?}: never in the middle of a transfer");
}

/// Reads every byte of all, again and again, for this long.
async fn watch(owned: &[Owned], time: Duration) {
    let begun = Instant::now();
    let mut rounds = 0;
    while rounds < 2 || begun.elapsed() < time {
        for Owned {
            name, lease, stamp, ..
        } in owned
        {
            for (layer, at) in (0..LAYERS).flat_map(|l| (0..MANY as usize).map(move |at| (l, at))) {
                let page = lease.page(layer, at);
                assert!(
                    holds(page, *stamp, layer, at as u64),
                    "{name}; after that its owner filled it, and somebody wrote it: layer {layer}, page {at}"
                );
            }
            tokio::task::yield_now().await;
        }
        rounds += 1;
    }
}

#[tokio::test]
async fn nothing_lands_in_pages_that_came_back_from_a_transfer_that_was_struck_in_its_middle() {
    let test =
        "nothing_lands_in_pages_that_came_back_from_a_transfer_that_was_struck_in_its_middle";
    if !is_here(test).await {
        return;
    }
    let mut owned = Vec::new();
    for (ucx, strike) in WAYS
        .iter()
        .flat_map(|ucx| STRIKES.map(|strike| (*ucx, strike)))
    {
        owned.push(struck(ucx, strike).await);
    }
    watch(&owned, Duration::from_secs(2)).await;
    // Who was stopped goes on with what it had posted.
    for other in &owned {
        if other.strike == Strike::Stop {
            other.p.process.go_on();
        }
    }
    watch(&owned, Duration::from_secs(2)).await;
    for Owned { lease, d, .. } in owned {
        drop(lease);
        d.quiet().await;
    }
}
