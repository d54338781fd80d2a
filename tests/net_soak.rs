//! Very many rooms, reconnects and fresh sessions over TCP, and the memory of the process meanwhile.
//!
//! A short run by default. `KVROOM_SOAK=full` runs a million rooms and a thousand reconnects and
//! prints the series; `cargo test --release --test net_soak -- --nocapture` shows it.
#![allow(clippy::unwrap_used)]

mod common;

use common::process::resident_of;
use common::*;
use kvroom::{Deadlines, Limits, Outcome, PeerState, RoomId};
use std::time::Duration;

struct Size {
    rounds: u64,
    reconnects: u64,
    /// Fresh sessions in each round.
    sessions: u64,
    rooms: u64,
}

fn size() -> Size {
    match std::env::var("KVROOM_SOAK").as_deref() {
        Ok("full") => Size {
            rounds: 20,
            reconnects: 50,
            sessions: 20,
            rooms: 50_000,
        },
        Ok(other) => panic!("KVROOM_SOAK = {other:?} is no size: full, or not set"),
        Err(_) => Size {
            rounds: 6,
            reconnects: 10,
            sessions: 4,
            rooms: 2_000,
        },
    }
}

/// Open file descriptors and threads of this process.
fn held() -> (usize, usize) {
    let count = |what: &str| {
        std::fs::read_dir(format!("/proc/self/{what}"))
            .unwrap()
            .count()
    };
    (count("fd"), count("task"))
}

/// `n` rooms, one in eight with a page of data, in batches.
async fn rooms(duo: &Duo, first: u64, n: u64) {
    const BATCH: u64 = 250;
    for at in (first..first + n).step_by(BATCH as usize) {
        let (mut receives, mut sends) = (Vec::new(), Vec::new());
        for id in at..at + BATCH {
            let room = duo.decode.node.receive(RoomId(id)).from(&duo.peer);
            receives.push(match id % 8 {
                0 => room.into(
                    duo.decode
                        .pool
                        .lease_write(&[(id / 8 % 32) as u32])
                        .unwrap(),
                ),
                _ => room,
            });
            sends.push(duo.prefill.node.send(RoomId(id)));
        }
        let receivers = within(duo.decode.node.start_receives(receives)).await;
        let senders = within(duo.prefill.node.start_sends(sends)).await;
        for (id, sender) in (at..).zip(&senders) {
            let sender = sender.as_ref().unwrap();
            if id % 8 == 0 {
                let page = (id / 8 % 32) as u32;
                push(sender, 0..TOKENS, duo.prefill.stamped(&[page], id, 0)).await;
                sender.finish(TOKENS, None).unwrap();
            } else {
                sender.finish(0, None).unwrap();
            }
        }
        for (id, (receiver, sender)) in (at..).zip(receivers.iter().zip(&senders)) {
            let (receiver, sender) = (receiver.as_ref().unwrap(), sender.as_ref().unwrap());
            assert_eq!(within(receiver.outcome()).await, Outcome::Done);
            assert_eq!(within(sender.outcome()).await, Outcome::Done);
            let back = within(receiver.released()).await;
            if id % 8 == 0 {
                verify(&back.leases[0], id, 0);
            }
            drop(within(sender.released()).await);
        }
    }
}

#[tokio::test]
async fn memory_is_flat_over_many_rooms_and_reconnects() {
    let size = size();
    let mut duo = Duo::with(Setup {
        over: Over::Tcp,
        proxied: true,
        layout: kv(32, 4096),
        limits: Limits {
            // What is remembered by intent does not grow here.
            spent_keys: 1_000,
            ..Limits::default()
        },
        deadlines: Deadlines {
            backoff_first: Duration::from_millis(1),
            backoff_most: Duration::from_millis(5),
            ..Deadlines::default()
        },
        ..Setup::default()
    })
    .await;
    let mut series = Vec::new();
    for round in 0..size.rounds {
        let each = size.rooms / size.reconnects;
        for i in 0..size.reconnects {
            let first = (round * size.reconnects + i) * 1_000_000;
            rooms(&duo, first, each.next_multiple_of(250)).await;
            let lost = duo.decode.node.stats().await.transports_lost;
            duo.proxy().reset();
            let node = &duo.decode.node;
            until_stats("it is noticed", node, |s| s.transports_lost > lost).await;
            assert!(within(duo.peer.wait_up()).await);
            duo.proxy().forget();
        }
        for i in 0..size.sessions {
            within(duo.decode.node.disconnect(&duo.peer)).await;
            let address = duo.proxy().address().to_owned();
            duo.peer = within(duo.decode.node.connect(&address)).await.unwrap();
            let first = ((size.rounds + round) * size.reconnects + i) * 1_000_000;
            rooms(&duo, first, 250).await;
            duo.proxy().forget();
        }
        duo.moves(u64::MAX - round, 0, &[0, 1], &[0, 1]).await;
        assert_quiet(&duo.decode.node).await;
        assert_quiet(&duo.prefill.node).await;
        let (fds, threads) = held();
        let resident = resident_of("self");
        println!(
            "round {round}: {} rooms, {} reconnects, {} KiB resident, {fds} fds, {threads} threads",
            (round + 1) * (size.reconnects * each.next_multiple_of(250) + size.sessions * 250),
            (round + 1) * (size.reconnects + size.sessions),
            resident >> 10
        );
        series.push((resident, fds, threads));
    }
    let stats = duo.decode.node.stats().await;
    let sessions = 1 + size.rounds * size.sessions;
    assert_eq!(stats.sessions_opened, sessions, "{stats:?}");
    assert!(stats.sessions_resumed >= size.rounds * size.reconnects);
    assert_eq!(duo.peer.state(), PeerState::Up);
    // The first third warms up: allocators, tables, stacks. What leaks would grow in every round.
    let warm = series[series.len() / 3];
    let last = series[series.len() - 1];
    let grown = last.0.saturating_sub(warm.0);
    let bound = 2 << 20;
    assert!(grown < bound, "{grown} bytes more: {series:?}");
    assert!(last.1 <= warm.1 + 8, "file descriptors leak: {series:?}");
    assert!(last.2 <= warm.2 + 2, "threads leak: {series:?}");
    duo.end().await;
}
