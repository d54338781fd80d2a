//! A node says which of its parts does not get on, without asking any of them.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use kvroom::health::{Part, PartPulse, PulseWatch, StillWhy};
use kvroom::{Node, Outcome, RoomId, StartErrorKind};
use std::time::{Duration, Instant};

/// How long something is still before the tests believe it.
const STILL: Duration = Duration::from_millis(300);

fn pulse_of(node: &Node, part: &Part) -> PartPulse {
    let pulse = node.pulse();
    let found = pulse.parts.into_iter().find(|p| p.part == *part);
    found.unwrap()
}

/// Looks until some part is still for long enough, and names those that are.
async fn still_parts(node: &Node) -> Vec<(Part, StillWhy)> {
    let (mut watch, start) = (PulseWatch::default(), Instant::now());
    loop {
        node.ask();
        let still = watch.look(&node.pulse());
        let long: Vec<_> = (still.iter().filter(|s| s.since >= STILL))
            .map(|s| (s.part.clone(), s.why))
            .collect();
        if !long.is_empty() {
            return long;
        }
        assert!(start.elapsed() < PATIENCE, "nothing is still");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn a_lane_that_stands_still_in_a_copy_is_named_and_the_other_parts_answer(over: Over) {
    let duo = Duo::with(Setup {
        layout: kv(16, PIECE),
        lanes: 2,
        ..Setup::over(over)
    })
    .await;
    let receiver = duo.receive(1, 0, &[0]).await;
    let sender = duo.prefill.node.send(RoomId(1)).lane(0);
    let sender = within(sender.start()).await.unwrap();
    duo.brake.hold_after(0);
    push(&sender, 0..TOKENS, duo.prefill.stamped(&[0], 1, 0)).await;
    sender.finish(TOKENS, None).unwrap();
    until("a lane stands still", || duo.brake.held() == 1).await;
    // Over sockets it is the receiving side that is inside the gate.
    let node = match over {
        Over::Local | Over::Shm => &duo.prefill.node,
        _ => &duo.decode.node,
    };
    let still = within(still_parts(node)).await;
    assert_eq!(still, [(Part::Lane(0), StillWhy::InTurn)]);
    let answers = within(node.probe(Duration::from_millis(200))).await;
    for answer in &answers {
        let is_lane = answer.part == Part::Lane(0);
        assert_eq!(answer.took.is_none(), is_lane, "{answers:?}");
        assert_eq!(answer.waits.is_some(), is_lane, "{answers:?}");
        assert!(!answer.gone);
    }
    duo.brake.release();
    assert_eq!(within(receiver.outcome()).await, Outcome::Done);
    let answers = within(node.probe(PATIENCE)).await;
    let asked = ["lane 0", "lane 1", "node"];
    let mut names: Vec<String> = answers.iter().map(|a| a.part.to_string()).collect();
    names.sort();
    assert_eq!(names[..3], asked, "{names:?}");
    assert!(names[3].starts_with("session "), "{names:?}");
    assert_eq!(names[4..], ["shard 0"], "{names:?}");
    assert!(answers.iter().all(|a| a.took.is_some()), "{answers:?}");
    drop((receiver, sender));
    duo.end().await;
}

#[tokio::test]
async fn a_lane_that_stands_still_within_the_process_is_named() {
    a_lane_that_stands_still_in_a_copy_is_named_and_the_other_parts_answer(Over::Local).await;
}

#[tokio::test]
async fn a_lane_that_stands_still_in_shared_memory_is_named() {
    a_lane_that_stands_still_in_a_copy_is_named_and_the_other_parts_answer(Over::Shm).await;
}

#[tokio::test]
async fn a_lane_that_stands_still_reading_a_socket_is_named() {
    a_lane_that_stands_still_in_a_copy_is_named_and_the_other_parts_answer(Over::Tcp).await;
}

#[tokio::test]
async fn a_room_that_is_kept_to_a_lane_is_copied_by_it_and_by_nobody_else() {
    let duo = Duo::with(Setup {
        lanes: 3,
        ..Setup::default()
    })
    .await;
    let node = &duo.prefill.node;
    let turns = || [0, 1, 2].map(|n| pulse_of(node, &Part::Lane(n)).turns);
    for lane in [2, 0, 1_usize] {
        let before = turns();
        let id = lane as u64;
        let receiver = duo.receive(id, 0, &[3, 4]).await;
        let sender = node.send(RoomId(id)).lane(lane as u16);
        let sender = within(sender.start()).await.unwrap();
        // Small enough for the shard to copy it itself, if it were not kept to a lane.
        let lease = duo.prefill.stamped(&[1, 2], id, 0);
        push(&sender, 0..2 * TOKENS, lease).await;
        sender.finish(2 * TOKENS, None).unwrap();
        assert_eq!(within(receiver.outcome()).await, Outcome::Done);
        verify(&within(receiver.released()).await.leases[0], id, 0);
        assert_eq!(within(sender.outcome()).await, Outcome::Done);
        let after = turns();
        for other in 0..3 {
            let turned = after[other] > before[other];
            assert_eq!(turned, other == lane, "{before:?} {after:?}");
        }
        drop(within(sender.released()).await);
    }
    let refused = within(node.send(RoomId(9)).lane(3).start())
        .await
        .unwrap_err();
    assert!(matches!(&refused.kind, StartErrorKind::BadRequest(why) if why.contains("lane(3)")));
    duo.end().await;
}

#[tokio::test]
async fn a_shard_that_stands_still_is_named_by_what_waits_for_it() {
    let duo = Duo::new().await;
    let node = &duo.decode.node;
    let (held, is_held) = tokio::sync::oneshot::channel();
    let (go_on, wait) = std::sync::mpsc::channel::<()>();
    let hold = kvroom::actors::supervisor::actor::Inbound::Ask(Box::new(move |_, _| {
        let _ = held.send(());
        let _ = wait.recv();
    }));
    node.runtime().inbox(RoomId(1)).put(hold).unwrap();
    within(is_held).await.unwrap();
    let still = within(still_parts(node)).await;
    assert_eq!(still, [(Part::Shard(0), StillWhy::InTurn)]);
    drop(go_on);
    let answers = within(node.probe(PATIENCE)).await;
    assert!(answers.iter().all(|a| a.took.is_some()), "{answers:?}");
    duo.end().await;
}

#[tokio::test]
async fn an_idle_node_is_not_still_and_one_that_has_stopped_is_gone() {
    let duo = Duo::new().await;
    let node = duo.decode.node.clone();
    within(node.probe(PATIENCE)).await;
    let mut watch = PulseWatch::default();
    until("nothing is to be done", || {
        watch.look(&node.pulse()).is_empty()
    })
    .await;
    duo.end().await;
    let answers = within(node.probe(PATIENCE)).await;
    assert!(answers.iter().all(|a| a.gone), "{answers:?}");
    let still = watch.look(&node.pulse());
    assert!(still.iter().all(|s| s.why == StillWhy::Gone), "{still:?}");
}

#[tokio::test]
async fn a_listener_says_where_it_is_and_that_it_accepts() {
    let duo = Duo::over(Over::Tcp).await;
    let listeners = duo.prefill.node.listeners();
    let addresses: Vec<&str> = listeners.iter().map(|l| &*l.address).collect();
    assert_eq!(addresses, duo.prefill.node.addresses());
    assert!(listeners.iter().all(|l| l.failing.is_none()));
    duo.end().await;
}

#[tokio::test]
async fn whoever_asks_while_another_does_is_told_of_the_sessions_too() {
    let duo = Duo::new().await;
    let node = &duo.decode.node;
    let sessions = |answers: &[kvroom::health::Answer]| {
        let parts = answers.iter().map(|a| &a.part);
        parts.filter(|p| matches!(p, Part::Session(_))).count()
    };
    for _ in 0..100 {
        node.ask();
        let both = within(async { tokio::join!(node.probe(PATIENCE), node.probe(PATIENCE)) }).await;
        assert_eq!((sessions(&both.0), sessions(&both.1)), (1, 1));
    }
    duo.end().await;
}

#[tokio::test]
async fn a_session_that_stands_still_is_named_also_when_the_last_question_was_not_answered() {
    let duo = Duo::new().await;
    let node = &duo.decode.node;
    within(node.probe(PATIENCE)).await;
    let silence = Silence::of(node).await;
    for _ in 0..2 {
        let answers = within(node.probe(Duration::from_millis(50))).await;
        let session = answers.iter().find(|a| matches!(a.part, Part::Session(_)));
        let session = session.expect("the session is one of the parts");
        assert!(
            session.took.is_none() && session.waits.is_some(),
            "{answers:?}"
        );
    }
    drop(silence);
    let answers = within(node.probe(PATIENCE)).await;
    assert!(answers.iter().all(|a| a.took.is_some()), "{answers:?}");
    duo.end().await;
}

#[tokio::test]
async fn a_shard_that_dies_before_it_has_answered_is_gone_and_not_only_still() {
    let hub = kvroom::LocalHub::new();
    let node = Node::builder("lonely")
        .hub(&hub)
        .shards(1)
        .start()
        .await
        .unwrap();
    let silence = Silence::of(&node).await;
    let die = |_: &mut _, _: &mut _| panic!("told to die");
    let die = kvroom::actors::supervisor::actor::Inbound::Ask(Box::new(die));
    node.runtime().inbox(RoomId(0)).put(die).unwrap();
    node.ask();
    assert!(pulse_of(&node, &Part::Shard(0)).asked.is_some());
    drop(silence);
    until("the shard is gone", || {
        node.ask();
        pulse_of(&node, &Part::Shard(0)).gone
    })
    .await;
}
