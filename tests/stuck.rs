//! What is stuck is told as it is, briefly, and in time.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use kvroom::actors::supervisor::actor::Inbound;
use kvroom::health::Part;
use kvroom::{Deadlines, Node, RoomId};
use std::time::{Duration, Instant};

const SHARD: Part = Part::Shard(0);

fn waiting(node: &Node) -> u64 {
    let pulse = node.pulse();
    let shard = pulse.parts.iter().find(|p| p.part == SHARD);
    shard.unwrap().waiting
}

/// The process is stopped, or the machine, for longer than the deadline of a room: its clocks have not
/// run meanwhile, and nothing is late.
#[tokio::test]
async fn a_room_is_not_stuck_by_time_in_which_its_shard_did_not_run() {
    let duo = Duo::new().await;
    let node = &duo.decode.node;
    let lease = duo.decode.pool.lease_write(&[1]).unwrap();
    let room = node.receive(RoomId(1)).from(&duo.peer).into(lease);
    let deadline = Duration::from_millis(2_500);
    let room = within(room.deadline(deadline).start()).await.unwrap();
    let started = Instant::now();
    let (still, is_still) = tokio::sync::oneshot::channel();
    let stand = Inbound::Ask(Box::new(move |_, _| {
        let _ = still.send(());
        std::thread::sleep(deadline + Duration::from_millis(500));
    }));
    node.runtime().inbox(RoomId(1)).put(stand).unwrap();
    within(is_still).await.unwrap();
    let stuck = node.stuck_rooms(Duration::ZERO, PATIENCE).await;
    assert!(started.elapsed() > deadline);
    assert!(
        stuck.rooms.is_empty() && stuck.silent.is_empty(),
        "{stuck:?}"
    );
    room.abort("over");
    drop(within(room.released()).await);
    duo.end().await;
}

#[tokio::test]
async fn a_shard_that_is_silent_has_one_question_to_answer_however_often_it_is_asked() {
    let duo = Duo::new().await;
    let node = &duo.decode.node;
    let silence = Silence::of(node).await;
    let before = waiting(node);
    for _ in 0..5 {
        let stuck = node
            .stuck_rooms(Duration::ZERO, Duration::from_millis(10))
            .await;
        assert_eq!(stuck.silent, [0]);
    }
    let both = tokio::join!(
        node.stuck_rooms(Duration::ZERO, Duration::from_millis(10)),
        node.stuck_rooms(Duration::ZERO, Duration::from_millis(10))
    );
    assert_eq!((&*both.0.silent, &*both.1.silent), (&[0][..], &[0][..]));
    assert_eq!(waiting(node) - before, 1);
    drop(silence);
    let stuck = within(node.stuck_rooms(Duration::ZERO, PATIENCE)).await;
    assert!(
        stuck.silent.is_empty() && stuck.rooms.is_empty(),
        "{stuck:?}"
    );
    duo.end().await;
}

#[tokio::test]
async fn many_stuck_rooms_are_counted_and_the_oldest_of_them_are_told() {
    let (rooms, listed) = (300_u32, 256);
    let duo = Duo::with(Setup {
        layout: kv(rooms, 4096),
        deadlines: Deadlines {
            drain: Duration::from_millis(50),
            ..Deadlines::default()
        },
        ..Setup::default()
    })
    .await;
    duo.brake.hold_after(0);
    let node = &duo.prefill.node;
    drop(duo.prefill.stamped(&[0], 1, 0));
    let mut all = Vec::new();
    for n in 0..rooms {
        let receiver = duo.receive(n.into(), 0, &[n]).await;
        let sender = duo.send(n.into(), 0).await;
        let lease = duo.prefill.pool.lease_read(&[0]).unwrap();
        push(&sender, 0..TOKENS, lease).await;
        all.push((receiver, sender));
    }
    // All copies are with the lane that stands still: one that has not come there is no debt of its room.
    until("all jobs are queued", || {
        let queues = node.metrics().queues;
        queues.iter().map(|queue| queue.queued).sum::<u64>() == u64::from(rooms)
    })
    .await;
    for (_, sender) in &all {
        sender.abort("enough");
    }
    let start = Instant::now();
    let stuck = loop {
        let stuck = within(node.stuck_rooms(Duration::ZERO, PATIENCE)).await;
        if stuck.rooms.len() as u64 + stuck.more == u64::from(rooms) {
            break stuck;
        }
        assert!(
            start.elapsed() < PATIENCE,
            "{} and {}",
            stuck.rooms.len(),
            stuck.more
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    assert_eq!(stuck.rooms.len(), listed);
    assert!(
        stuck
            .rooms
            .iter()
            .all(|r| r.quarantined && r.peers == ["d"])
    );
    let overdue = node.quarantined().await;
    assert_eq!(overdue.by_peer["d"], u64::from(rooms));
    duo.brake.release();
    for (receiver, sender) in all {
        drop(within(sender.released()).await);
        drop(within(receiver.released()).await);
    }
    let stuck = within(node.stuck_rooms(Duration::ZERO, PATIENCE)).await;
    assert!(stuck.rooms.is_empty() && stuck.more == 0, "{stuck:?}");
    duo.end().await;
}
