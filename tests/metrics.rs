//! What a node counts: bytes by peer, how rooms end and how long that takes, what is held past its
//! time, and who had to wait.
#![allow(clippy::unwrap_used)] // Tests and their helpers.

mod common;

use common::*;
use kvroom::metrics::{Durations, Metrics};
use kvroom::{
    Code, Deadlines, Fabric, LegBytes, Limits, Outcome, Role, RoomId, RoomKey, Side as Where,
    StateName, Trace,
};
use std::time::{Duration, Instant};

/// Bytes to and from the one peer, over this fabric.
fn bytes(metrics: &Metrics, peer: &str, fabric: Fabric) -> (u64, u64) {
    let peer = (metrics.peers.iter()).find(|p| p.name.as_deref() == Some(peer));
    let peer = peer.unwrap();
    let of = |all: &[(Fabric, u64)]| all.iter().find(|(f, _)| *f == fabric).unwrap().1;
    (of(&peer.sent), of(&peer.received))
}

fn rooms(metrics: &Metrics, role: Role, state: StateName) -> u64 {
    let found = (metrics.rooms.iter()).find(|r| r.role == role && r.state == state);
    found.unwrap().count
}

fn ends(metrics: &Metrics, role: Role, aborted: Option<(Code, Where)>) -> u64 {
    let found = (metrics.ends.iter()).find(|e| e.role == role && e.aborted == aborted);
    found.unwrap().count
}

fn of(all: &[(Role, Durations)], role: Role) -> &Durations {
    &all.iter().find(|(r, _)| *r == role).unwrap().1
}

/// Polls a node's metrics until they are so.
async fn until_metrics(what: &str, side: &Side, so: impl Fn(&Metrics) -> bool) -> Metrics {
    until(what, || so(&side.node.metrics())).await;
    side.node.metrics()
}

async fn bytes_are_counted_by_peer_fabric_and_direction(over: Over) {
    let duo = Duo::of_pieces_over(over).await;
    let fabric = duo.peer.fabric().unwrap();
    for id in 0..20 {
        duo.moves(id, 0, &[0, 1], &[2, 3]).await;
    }
    let moved = 20 * 2 * u64::from(LAYERS) * PIECE;
    let prefill = until_metrics("what was sent is known", &duo.prefill, |m| {
        bytes(m, "d", fabric) == (moved, 0)
    })
    .await;
    let decode = until_metrics("what came is known", &duo.decode, |m| {
        bytes(m, "p", fabric) == (0, moved)
    })
    .await;
    for other in [Fabric::Local, Fabric::Shm, Fabric::Tcp, Fabric::Ucx] {
        if other != fabric {
            assert_eq!(bytes(&prefill, "d", other), (0, 0), "{other}");
            assert_eq!(bytes(&decode, "p", other), (0, 0), "{other}");
        }
    }
    let up = |m: &Metrics, name| {
        m.peers
            .iter()
            .find(|p| p.name.as_deref() == Some(name))
            .map(|p| p.up)
    };
    assert_eq!((up(&prefill, "d"), up(&decode, "p")), (Some(1), Some(1)));
    // One piece in sixteen is timed; there were eighty at least.
    let (_, pieces) = prefill
        .piece_duration
        .iter()
        .find(|(f, _)| *f == fabric)
        .unwrap();
    assert!(pieces.count() >= 2, "{pieces:?}");
    assert!(pieces.quantile(0.5).unwrap() < Duration::from_secs(5));
    // Jobs of 512 KiB go through a lane's queue, and out of it; those through UCX wait for windows of its thread.
    if fabric == Fabric::Ucx {
        return duo.end().await;
    }
    // The last one may be counted there a moment after its room has ended.
    until_metrics("all are out of the queue", &duo.prefill, |m| {
        let jobs: u64 = m.queues.iter().map(|q| q.jobs).sum();
        let waits: u64 = m.queues.iter().map(|q| q.wait.count()).sum();
        let queued: u64 = m.queues.iter().map(|q| q.queued).sum();
        jobs >= 20 && waits == jobs && queued == 0
    })
    .await;
    duo.end().await;
}

async fn rooms_are_counted_by_state_and_end(over: Over) {
    let duo = Duo::over(over).await;
    duo.moves(1, 0, &[0, 1], &[2, 3]).await;
    let receiver = duo.receive(2, 0, &[4, 5]).await;
    let metrics = duo.decode.node.metrics();
    assert_eq!(rooms(&metrics, Role::Receiver, StateName::Registered), 1);
    let sender = duo.send(2, 0).await;
    let there = (Role::Receiver, StateName::Transferring);
    until_metrics("it is bound", &duo.decode, |m| {
        rooms(m, there.0, there.1) == 1
    })
    .await;
    receiver.abort("enough");
    assert_eq!(code(&within(receiver.outcome()).await), Code::Requested);
    assert_eq!(code(&within(sender.outcome()).await), Code::Requested);
    drop((
        within(receiver.released()).await,
        within(sender.released()).await,
    ));
    for (side, role, whose) in [
        (&duo.decode, Role::Receiver, Where::Local),
        (&duo.prefill, Role::Sender, Where::Peer),
    ] {
        let m = until_metrics("all rooms are gone", side, |m| {
            m.rooms.iter().all(|r| r.count == 0)
        })
        .await;
        assert_eq!(ends(&m, role, None), 1);
        assert_eq!(ends(&m, role, Some((Code::Requested, whose))), 1);
        assert_eq!(m.ends.iter().map(|e| e.count).sum::<u64>(), 2);
        assert_eq!(of(&m.room_duration, role).count(), 2);
        let started: Vec<_> = m.started.iter().filter(|(_, n)| *n > 0).collect();
        assert_eq!(started, [&(role, 2)]);
        let moves = |from, to| {
            m.steps
                .iter()
                .any(|s| (s.role, s.from, s.to) == (role, from, to))
        };
        assert!(
            moves(StateName::Registered, StateName::Transferring),
            "{:?}",
            m.steps
        );
        // Only one side asked; the memory of both came back.
        let answered = u64::from(whose == Where::Local);
        assert_eq!(m.abort_to_answer.count(), answered);
        assert_eq!(m.abort_to_reusable.count(), 1);
    }
    duo.end().await;
}

async fn the_legs_of_a_room_tell_what_was_posted_and_what_was_written(over: Over) {
    for duo in [Duo::of_pieces_over(over).await, Duo::over(over).await] {
        let receiver = duo.receive(1, 0, &[2, 3]).await;
        let sender = duo.send(1, 0).await;
        push(&sender, 0..TOKENS, duo.prefill.stamped(&[0], 7, 0)).await;
        let bytes = u64::from(LAYERS) * duo.prefill.pool.layout().page_bytes;
        for (side, role, posted) in [
            (&duo.prefill, Role::Sender, Some(bytes)),
            (&duo.decode, Role::Receiver, None),
        ] {
            let room = [(RoomKey::new(1, 0), role)];
            let wanted = [LegBytes {
                posted,
                written: bytes,
            }];
            let start = Instant::now();
            let moved = async || side.node.rooms_of(&room).await[0].moved.clone();
            while within(moved()).await != wanted {
                assert!(start.elapsed() < PATIENCE, "{role:?}: {:?}", moved().await);
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        receiver.abort("enough");
        drop((
            within(receiver.released()).await,
            within(sender.released()).await,
        ));
        duo.end().await;
    }
}

over_each!(
    bytes_are_counted_by_peer_fabric_and_direction,
    rooms_are_counted_by_state_and_end,
    the_legs_of_a_room_tell_what_was_posted_and_what_was_written,
);

#[tokio::test]
async fn an_abort_is_answered_before_its_memory_comes_back() {
    let duo = Duo::of_pieces().await;
    let receiver = duo.receive(1, 0, &[2, 3]).await;
    let sender = duo.send(1, 0).await;
    duo.brake.hold_after(1);
    let chunk = push(&sender, 0..2 * TOKENS, duo.prefill.stamped(&[0, 1], 7, 0)).await;
    until("a lane is inside", || duo.brake.held() == 1).await;
    duo.decode
        .node
        .abort_where(kvroom::Which::All, "enough")
        .await;
    assert_eq!(code(&within(receiver.outcome()).await), Code::Requested);
    let m = duo.decode.node.metrics();
    assert_eq!(
        (m.abort_to_answer.count(), m.abort_to_reusable.count()),
        (1, 0)
    );
    assert_eq!(rooms(&m, Role::Receiver, StateName::Draining), 1);
    let held = Duration::from_millis(20);
    tokio::time::sleep(held).await;
    duo.brake.release();
    drop((
        within(receiver.released()).await,
        within(chunk.released()).await,
    ));
    let m = until_metrics("it is counted", &duo.decode, |m| {
        m.abort_to_reusable.count() == 1
    })
    .await;
    assert!(
        m.abort_to_reusable.sum() >= held,
        "{:?}",
        m.abort_to_reusable.sum()
    );
    assert!(m.abort_to_answer.sum() <= m.abort_to_reusable.sum());
    drop(sender);
    duo.end().await;
}

#[tokio::test]
async fn what_passes_its_drain_deadline_is_counted_until_it_is_proven_quiet() {
    let duo = Duo::with(Setup {
        layout: kv(16, PIECE),
        deadlines: Deadlines {
            drain: Duration::from_millis(5),
            ..Deadlines::default()
        },
        ..Setup::default()
    })
    .await;
    let receiver = duo.receive(1, 0, &[2, 3]).await;
    let sender = duo.send(1, 0).await;
    duo.brake.hold_after(0);
    push(&sender, 0..2 * TOKENS, duo.prefill.stamped(&[0, 1], 7, 0)).await;
    until("a lane is inside", || duo.brake.held() == 1).await;
    assert_eq!(duo.decode.node.metrics().quarantine.oldest, None);
    receiver.abort("enough");
    let m = until_metrics("it is quarantined", &duo.decode, |m| {
        m.quarantine.rooms == 1
    })
    .await;
    assert_eq!(m.quarantine.pages, 2);
    let of_peer = |m: &Metrics| {
        let p = m.peers.iter().find(|p| p.name.as_deref() == Some("p"));
        p.unwrap().quarantined_pages
    };
    assert_eq!(of_peer(&m), 2);
    assert_eq!(m.counts.quarantined, 1);
    let first = m.quarantine.oldest.unwrap();
    let older = |m: &Metrics| m.quarantine.oldest.is_some_and(|age| age > first);
    until_metrics("it grows older", &duo.decode, older).await;
    duo.brake.release();
    drop(within(receiver.released()).await);
    let m = until_metrics("it is free", &duo.decode, |m| m.quarantine.rooms == 0).await;
    assert_eq!(
        (m.quarantine.pages, m.quarantine.oldest, of_peer(&m)),
        (0, None, 0)
    );
    assert_eq!(m.counts.quarantined, 1, "a counter never goes down");
    drop(sender);
    duo.end().await;
}

#[tokio::test]
async fn whoever_waits_for_room_is_counted() {
    let duo = Duo::with(Setup {
        limits: Limits {
            rooms: 2,
            chunks_in_flight: 1,
            claims_per_peer: 1,
            ..Limits::default()
        },
        ..Setup::default()
    })
    .await;
    let sender = duo.send(1, 0).await;
    let slot = within(sender.reserve()).await.unwrap();
    let before = duo.prefill.node.metrics().pressure;
    assert_eq!(
        (
            before.reserve_waited_for_window,
            before.reserve_refused_by_window
        ),
        (0, 0)
    );
    assert_eq!((before.rooms_limit, before.rooms_free), (2, 1));
    assert!(sender.try_reserve().is_err());
    {
        let mut waits = Box::pin(sender.reserve());
        assert!(
            tokio::time::timeout(Duration::from_millis(5), &mut waits)
                .await
                .is_err()
        );
        drop(slot);
        drop(within(waits).await.unwrap());
    }
    let other = duo.send(2, 0).await;
    let mut third = Box::pin(duo.prefill.node.send(RoomId(3)).start());
    assert!(
        tokio::time::timeout(Duration::from_millis(5), &mut third)
            .await
            .is_err()
    );
    let batch = vec![duo.prefill.node.send(RoomId(4))];
    assert!(duo.prefill.node.start_sends(batch).await.remove(0).is_err());
    other.abort("make room");
    let third = within(third).await.unwrap();
    let p = duo.prefill.node.metrics().pressure;
    assert_eq!((p.start_waited, p.start_refused), (1, 1));
    assert_eq!(
        (p.reserve_waited_for_window, p.reserve_refused_by_window),
        (1, 1)
    );
    assert_eq!(
        (p.reserve_waited_for_lanes, p.reserve_refused_by_lanes),
        (0, 0)
    );
    drop((sender, other, third));

    // The prefill node gives its peer one credit: the second claim waits for it.
    let first = duo.receive(5, 0, &[0]).await;
    let second = duo.receive(6, 0, &[1]).await;
    let waiting = |n| move |m: &Metrics| m.pressure.claims_waiting == n;
    until_metrics("the second claim waits", &duo.decode, waiting(1)).await;
    first.abort("make room");
    let m = until_metrics("it waits no more", &duo.decode, waiting(0)).await;
    assert_eq!(m.pressure.claims_waited, 1);
    drop((first, second));
    duo.end().await;
}

/// The decode side starts with a trace context; the prefill side learns of it by the claim.
async fn a_trace_is_known_on_both_sides(over: Over) {
    let duo = Duo::over(over).await;
    let trace = Trace {
        trace_id: 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736,
        span_id: 0x00f0_67aa_0ba9_02b7,
    };
    let lease = duo.decode.pool.lease_write(&[0]).unwrap();
    let room = duo
        .decode
        .node
        .receive(RoomId(1))
        .from(&duo.peer)
        .into(lease);
    let receiver = room
        .trace(trace.trace_id, trace.span_id)
        .start()
        .await
        .unwrap();
    let plain = duo.receive(2, 0, &[1]).await;
    // One claim waits for its room, the other one finds it.
    until_stats("both claims wait", &duo.prefill.node, |s| {
        s.early_claims == 2
    })
    .await;
    let (sender, other) = (duo.send(1, 0).await, duo.send(2, 0).await);
    for (side, role) in [(&duo.decode, Role::Receiver), (&duo.prefill, Role::Sender)] {
        let bound = |m: &Metrics| rooms(m, role, StateName::Transferring) == 2;
        until_metrics("both are bound", side, bound).await;
        let mut known: Vec<_> = side
            .node
            .rooms()
            .await
            .into_iter()
            .map(|r| (r.key.id.0, r.trace))
            .collect();
        known.sort_by_key(|(id, _)| *id);
        assert_eq!(known, [(1, Some(trace)), (2, None)], "{role}");
    }
    assert_eq!(
        trace.to_string(),
        "4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7"
    );
    for room in [&receiver, &plain] {
        room.abort("seen");
        assert_ne!(within(room.outcome()).await, Outcome::Done);
    }
    drop((sender, other, receiver, plain));
    duo.end().await;
}

mod traces {
    use super::*;
    over_each!(a_trace_is_known_on_both_sides);
}
