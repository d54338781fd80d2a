//! A very large number of rooms that are registered and never transferred, in a process of its own,
//! since its memory is measured.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use kvroom::{Code, Limits, ReceiveRoom, RoomId, SendRoom, Which};

/// How many, both roles together: 100,000, or what `KVROOM_TEST_ROOMS` says (1000000).
fn rooms() -> u64 {
    match std::env::var("KVROOM_TEST_ROOMS") {
        Ok(n) => match n.parse() {
            Ok(n) => n,
            Err(_) => panic!("KVROOM_TEST_ROOMS = {n:?} is no number of rooms"),
        },
        Err(_) => 100_000,
    }
}

/// Resident memory of this process in bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with("VmRSS:")).unwrap();
    let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kib << 10
}

/// Registers `n` rooms whose ids begin at `first`, three in four of them senders. One in eight of
/// all is a pair that binds, one in eight a claim that waits for its send.
async fn register(duo: &Duo, first: u64, n: u64) -> (Vec<SendRoom>, Vec<ReceiveRoom>) {
    const BATCH: u64 = 4_096;
    let (mut senders, mut receivers) = (Vec::new(), Vec::new());
    let mut at = 0;
    while at < n {
        let ids = first + at..first + n.min(at + BATCH);
        let (mut sends, mut receives) = (Vec::new(), Vec::new());
        for id in ids.clone() {
            // A pair counts as two rooms.
            match id % 8 {
                0 | 1 => receives.push(duo.decode.node.receive(RoomId(id)).from(&duo.peer)),
                2 => {}
                3 => {
                    receives.push(duo.decode.node.receive(RoomId(id)).from(&duo.peer));
                    sends.push(duo.prefill.node.send(RoomId(id)).tag("agent"));
                }
                _ => sends.push(duo.prefill.node.send(RoomId(id)).tag("agent")),
            }
        }
        for room in duo.decode.node.start_receives(receives).await {
            receivers.push(room.unwrap());
        }
        for room in duo.prefill.node.start_sends(sends).await {
            senders.push(room.unwrap());
        }
        at += BATCH;
    }
    (senders, receivers)
}

#[tokio::test]
async fn rooms_that_never_transfer_leave_no_memory_behind_when_they_are_aborted() {
    let n = rooms();
    let limits = Limits {
        rooms: n as usize,
        gates: n as usize,
        claims_per_peer: u32::try_from(n).unwrap(),
        early_claims_per_peer: n as usize,
        spent_keys: 1_000,
        ..Limits::default()
    };
    let duo = Duo::with(Setup {
        limits,
        ..Setup::default()
    })
    .await;
    let mut after = Vec::new();
    for round in 0..2u64 {
        let (senders, receivers) = register(&duo, round * n, n).await;
        let registered = senders.len() + receivers.len();
        let stats = duo.prefill.node.stats().await;
        let expect = senders.len() as u64;
        assert_eq!((stats.rooms_live, stats.actors), (expect, expect));
        let node = &duo.prefill.node;
        until_stats("the claims wait", node, |s| s.early_claims == n / 4).await;
        let peak = resident();
        duo.prefill.node.abort_where(Which::All, "the end").await;
        duo.decode.node.abort_where(Which::All, "the end").await;
        for room in &senders {
            assert_eq!(code(&within(room.outcome()).await), Code::Requested);
        }
        for room in &receivers {
            assert_eq!(code(&within(room.outcome()).await), Code::Requested);
            drop(within(room.released()).await);
        }
        drop((senders, receivers));
        assert_quiet(&duo.prefill.node).await;
        assert_quiet(&duo.decode.node).await;
        for side in [&duo.prefill, &duo.decode] {
            let stats = side.node.stats().await;
            assert!(stats.remembered_keys <= 1_000, "{stats:?}");
        }
        duo.moves(u64::MAX - round, 0, &[0, 1], &[0, 1]).await;
        let now = resident();
        println!(
            "round {round}: {registered} rooms, {} bytes of peak each, {} MiB after",
            peak / registered as u64,
            now >> 20
        );
        after.push(now);
    }
    // What the allocator keeps for the next round is kept once; what leaks would grow each time.
    let growth = after[1].saturating_sub(after[0]) / n;
    assert!(
        growth < 512,
        "{growth} bytes for each room that is gone: {after:?}"
    );
    duo.end().await;
}
