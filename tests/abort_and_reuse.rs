//! Aborts in every order, and what may be used again when.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use kvroom::actors::peer::message::{Body, ClaimTag};
use kvroom::actors::supervisor::actor::Inbound;
use kvroom::actors::supervisor::io::Input;
use kvroom::{
    Chunk, Code, Deadlines, LocalHub, Outcome, Proof, RoomId, RoomKey, Side as Where,
    StartErrorKind, StateName, Which,
};
use std::time::Duration;

over_copies!(
    pages_of_an_aborted_room_are_safe_from_its_delayed_writes,
    a_lease_comes_back_one_piece_after_an_abort_and_never_by_a_timer,
    no_drained_answer_before_the_last_of_three_chunks_is_out,
    the_next_attempt_runs_while_the_memory_of_the_first_is_quarantined,
    decode_learns_why_prefill_aborted_in_every_state,
);

over_each!(
    two_decode_ranks_that_abort_each_get_their_own_answer,
    an_abort_that_comes_before_the_room_ends_it_at_once_and_no_other_attempt,
    a_claim_for_a_room_that_prefill_has_ended_is_answered_at_once_and_leaves_nothing,
    a_done_room_is_opened_again_with_the_next_attempt_only,
    late_messages_of_a_life_that_is_over_are_counted_and_dropped,
    a_second_start_with_a_live_key_is_refused_and_the_first_is_unharmed,
    an_abort_that_crosses_the_completion_ends_each_side_once_and_loses_no_lease,
    a_retry_with_another_decode_node_does_not_wait_for_a_silent_first_one,
    everything_is_aborted_twice_while_new_rooms_come_and_these_complete,
    the_second_rank_is_served_though_it_claims_after_the_first_is_done,
    a_chunk_pushed_after_the_decode_side_aborted_gets_the_reason_and_its_lease_back,
);

async fn pages_of_an_aborted_room_are_safe_from_its_delayed_writes(over: Over) {
    let duo = Duo::of_pieces_over(over).await;
    // The lane stands in another room's piece, so that A's copy is posted and has not begun.
    let first = duo.receive(1, 0, &[0]).await;
    let s1 = duo.send(1, 0).await;
    duo.brake.hold_after(0);
    push(&s1, 0..TOKENS, duo.prefill.stamped(&[0], 1, 0)).await;
    until("the lane is held", || duo.brake.held() == 1).await;
    let a = duo.receive(2, 0, &[4, 5]).await;
    let s2 = duo.send(2, 0).await;
    let pushed = push(&s2, 0..2 * TOKENS, duo.prefill.stamped(&[4, 5], 2, 0)).await;
    until("A is bound", || a.poll().state == StateName::Transferring).await;

    // Prefill hears nothing of the abort; decode gets its pages back all the same.
    let silent = Silence::of(&duo.prefill.node).await;
    a.abort("the user left");
    assert_eq!(code(&within(a.outcome()).await), Code::Requested);
    let mut lease = within(a.released()).await.leases.remove(0);
    fill(&mut lease, 77, 0);

    // A's write comes now, and comes late.
    duo.brake.release();
    until("the lane is done", || duo.brake.held() == 0).await;
    drop(silent);
    assert_eq!(code(&within(s2.outcome()).await), Code::Requested);
    assert!(within(pushed.released()).await.is_some());
    verify(&lease, 77, 0);

    // The same pages in room B.
    let b = duo.receive_into(3, 0, lease).await;
    let s3 = duo.send(3, 0).await;
    push(&s3, 0..2 * TOKENS, duo.prefill.stamped(&[6, 7], 3, 0)).await;
    s3.finish(2 * TOKENS, None).unwrap();
    assert_eq!(within(b.outcome()).await, Outcome::Done);
    verify(&within(b.released()).await.leases[0], 3, 0);
    s1.finish(TOKENS, None).unwrap();
    assert_eq!(within(first.outcome()).await, Outcome::Done);
    verify(&within(first.released()).await.leases[0], 1, 0);
    drop((s1, s2, s3));
    duo.end().await;
}

async fn a_lease_comes_back_one_piece_after_an_abort_and_never_by_a_timer(over: Over) {
    let duo = Duo::with(Setup {
        layout: kv(16, PIECE),
        deadlines: Deadlines {
            drain: Duration::from_millis(10),
            ..Deadlines::default()
        },
        ..Setup::over(over)
    })
    .await;
    let pages: Vec<u32> = (0..16).collect();
    let receiver = duo.receive(1, 0, &pages).await;
    let sender = duo.send(1, 0).await;
    duo.brake.hold_after(3);
    let pushed = push(&sender, 0..16 * TOKENS, duo.prefill.stamped(&pages, 1, 0)).await;
    until("a piece is under way", || duo.brake.held() == 1).await;
    receiver.abort("enough");
    let outcome = within(receiver.outcome()).await;
    assert_eq!(code(&outcome), Code::Requested);
    names(&text(&outcome), &["enough"]);

    // Both sides are past their drain deadline, and both still hold on.
    for side in [&duo.decode, &duo.prefill] {
        let node = &side.node;
        let stats = until_stats("it is quarantined", node, |s| s.rooms_quarantined == 1).await;
        assert_eq!((stats.rooms_draining, stats.quarantined_pages), (1, 16));
    }
    let status = receiver.poll();
    assert_eq!(status.state, StateName::Draining);
    assert!(status.ended && !status.released);
    assert!(receiver.try_released().is_none());
    assert!(pushed.try_released().is_none());
    assert_eq!(duo.decode.pool.leased_pages(), 16);
    assert_eq!(duo.prefill.pool.leased_pages(), 16);
    let room = duo.decode.node.rooms().await.remove(0);
    assert!(room.quarantined);
    names(&room.held_because.unwrap(), &["a writer is inside"]);
    let room = duo.prefill.node.rooms().await.remove(0);
    names(&room.held_because.unwrap(), &["copies have not come back"]);

    duo.brake.release();
    let back = within(receiver.released()).await;
    assert_eq!(back.leases.len(), 1);
    assert_eq!(back.proofs, [Proof::GateClosed]);
    // Three passed, the fourth was inside.
    assert_eq!(back.landed.pieces, 4);
    assert_eq!(back.landed.bytes, 4 * PIECE);
    assert_eq!(back.landed.wanted, 16 * u64::from(LAYERS) * PIECE);
    assert!(receiver.poll().released);
    assert!(within(pushed.released()).await.is_some());
    drop((back, sender));
    duo.end().await;
}

async fn no_drained_answer_before_the_last_of_three_chunks_is_out(over: Over) {
    let duo = Duo::of_pieces_over(over).await;
    let receiver = duo.receive(1, 0, &[0, 1, 2]).await;
    let sender = duo.send(1, 0).await;
    duo.brake.hold_after(2 * u64::from(LAYERS));
    let mut chunks = Vec::new();
    for i in 0..3u32 {
        let at = u64::from(i);
        let lease = duo.prefill.stamped(&[i], 9, at);
        chunks.push(push(&sender, at * TOKENS..(at + 1) * TOKENS, lease).await);
    }
    let third = chunks.pop().unwrap();
    for landed in chunks {
        assert!(within(landed.released()).await.is_some());
    }
    until("the third is under way", || duo.brake.held() == 1).await;
    drop(sender);

    let outcome = within(receiver.outcome()).await;
    assert_eq!(code(&outcome), Code::HandleDropped);
    let nodes = [&duo.prefill.node, &duo.decode.node];
    settle(&nodes).await;
    assert!(third.try_released().is_none());
    assert!(receiver.try_released().is_none());
    for node in nodes {
        assert_eq!(node.stats().await.rooms_draining, 1);
    }
    assert_eq!(duo.prefill.pool.leased_pages(), 1);

    duo.brake.release();
    assert!(within(third.released()).await.is_some());
    let back = within(receiver.released()).await;
    assert_eq!(back.leases.len(), 1);
    assert!(within(receiver.released()).await.leases.is_empty());
    drop(back);
    let (p, d) = (duo.prefill.node.clone(), duo.decode.node.clone());
    assert_quiet(&p).await;
    assert_eq!((p.stats().await.aborted, d.stats().await.aborted), (1, 1));
    duo.end().await;
}

async fn two_decode_ranks_that_abort_each_get_their_own_answer(over: Over) {
    let (hub, setup) = (LocalHub::new(), Setup::over(over));
    let brake = Default::default();
    let prefill = Side::start(&hub, "p", &setup, &brake).await;
    let mut ranks = Vec::new();
    for rank in 0..2u16 {
        let side = Side::start(&hub, &format!("d{rank}"), &setup, &brake).await;
        let peer = side.node.connect(&prefill.address).await.unwrap();
        let lease = side.pool.lease_write(&[1, 2]).unwrap();
        let room = side.node.receive(RoomId(5)).receivers(2).rank(rank);
        let room = room.from(&peer).into(lease).start().await.unwrap();
        ranks.push((side, room));
    }
    let sender = prefill.node.send(RoomId(5)).receivers(2).start().await;
    let sender = sender.unwrap();
    let pushed = push(&sender, 0..TOKENS, prefill.stamped(&[0], 1, 0)).await;
    for (_, room) in &ranks {
        until("the rank is bound", || {
            room.poll().state == StateName::Transferring
        })
        .await;
    }
    ranks[0].1.abort("rank 0 left");
    ranks[1].1.abort("rank 1 left");
    for (rank, (side, room)) in ranks.iter().enumerate() {
        let reason = match within(room.outcome()).await {
            Outcome::Aborted(reason) => reason,
            Outcome::Done => panic!("done"),
        };
        // Its own word, or the other's that prefill passed on first.
        assert_eq!(reason.code, Code::Requested, "rank {rank}: {reason}");
        assert_eq!(within(room.released()).await.leases.len(), 1);
        side.quiet().await;
        assert_eq!(side.node.stats().await.aborted, 1);
    }
    assert_eq!(code(&within(sender.outcome()).await), Code::Requested);
    assert!(within(pushed.released()).await.is_some());
    drop(within(sender.released()).await);
    prefill.quiet().await;
    assert_eq!(prefill.node.stats().await.aborted, 1);
}

async fn an_abort_that_comes_before_the_room_ends_it_at_once_and_no_other_attempt(over: Over) {
    let duo = Duo::over(over).await;
    let receiver = duo.receive(7, 0, &[0]).await;
    until_stats("the claim waits", &duo.prefill.node, |s| {
        s.early_claims == 1
    })
    .await;
    receiver.abort("first reason");
    drop(within(receiver.released()).await);
    until_stats("the claim is gone", &duo.prefill.node, |s| {
        s.early_claims == 0
    })
    .await;

    let late = duo.send(7, 0).await;
    let outcome = within(late.outcome()).await;
    assert_eq!(code(&outcome), Code::Requested);
    names(&text(&outcome), &["first reason", "peer"]);
    drop(within(late.released()).await);
    assert_eq!(duo.prefill.node.stats().await.bytes_copied, 0);

    let next = duo.send(7, 1).await;
    settle(&[&duo.prefill.node]).await;
    assert_eq!(next.try_outcome(), None);
    let receiver = duo.receive(7, 1, &[0]).await;
    push(&next, 0..TOKENS, duo.prefill.stamped(&[0], 1, 0)).await;
    next.finish(TOKENS, None).unwrap();
    assert_eq!(within(receiver.outcome()).await, Outcome::Done);
    verify(&within(receiver.released()).await.leases[0], 1, 0);
    drop((late, next));
    duo.end().await;
}

async fn a_claim_for_a_room_that_prefill_has_ended_is_answered_at_once_and_leaves_nothing(
    over: Over,
) {
    let duo = Duo::over(over).await;
    let sender = duo.send(8, 0).await;
    sender.abort("prefill gave up");
    within(sender.outcome()).await;
    let receiver = duo.receive(8, 0, &[3]).await;
    let outcome = within(receiver.outcome()).await;
    assert_eq!(within(receiver.released()).await.leases.len(), 1);
    match &outcome {
        Outcome::Aborted(reason) => assert_eq!(reason.side, Where::Peer),
        Outcome::Done => panic!("done"),
    }
    assert_eq!(code(&outcome), Code::Requested, "{outcome}");
    let stats = duo.prefill.node.stats().await;
    assert_eq!((stats.early_claims, stats.claims_refused), (0, 1));
    duo.moves(8, 1, &[0, 1], &[3, 4]).await;
    duo.end().await;
}

async fn a_done_room_is_opened_again_with_the_next_attempt_only(over: Over) {
    let duo = Duo::over(over).await;
    duo.moves(9, 0, &[0, 1], &[2, 3]).await;
    duo.moves(9, 1, &[4, 5], &[2, 3]).await;

    let lease = duo.decode.pool.lease_write(&[2, 3]).unwrap();
    let again = duo.decode.node.receive(RoomId(9)).from(&duo.peer);
    let error = again.into(lease).start().await.unwrap_err();
    assert!(matches!(error.kind, StartErrorKind::KeySpent { .. }));
    names(&error, &["9#0", "spent", "Done", "next attempt"]);
    assert_eq!(error.leases[0].pages(), [2, 3]);
    drop(error);
    let error = duo.prefill.node.send(RoomId(9)).start().await.unwrap_err();
    names(&error, &["9#0", "spent", "Done", "next attempt"]);
    duo.end().await;
}

async fn late_messages_of_a_life_that_is_over_are_counted_and_dropped(over: Over) {
    let duo = Duo::over(over).await;
    duo.moves(9, 0, &[0], &[2]).await;
    let tag = ClaimTag {
        id: kvroom::actors::ids::ClaimId {
            receiver: duo.decode.node.incarnation(),
            sender: duo.prefill.node.incarnation(),
            number: kvroom::actors::ids::ClaimNo(1),
        },
        room: RoomKey::new(9, 0),
    };
    let second = duo.receive(9, 1, &[2]).await;
    let late = Input::Message {
        peer: duo.peer.id(),
        body: Body::Bound { tag },
    };
    let inbox = duo.decode.node.runtime().inbox(RoomId(9));
    inbox.put(Inbound::Core(late)).unwrap();
    until_stats("it is counted", &duo.decode.node, |s| s.stale_messages == 1).await;
    assert_eq!(second.poll().state, StateName::Registered);
    drop(second);
    duo.end().await;
}

async fn a_second_start_with_a_live_key_is_refused_and_the_first_is_unharmed(over: Over) {
    let duo = Duo::over(over).await;
    let receiver = duo.receive(4, 0, &[0, 1]).await;
    let sender = duo.send(4, 0).await;
    let lease = duo.decode.pool.lease_write(&[5, 6]).unwrap();
    let twin = duo.decode.node.receive(RoomId(4)).from(&duo.peer);
    let error = twin.into(lease).start().await.unwrap_err();
    assert_eq!(error.kind, StartErrorKind::RoomExists(RoomKey::new(4, 0)));
    names(&error, &["4#0", "alive", "next attempt"]);
    assert_eq!(error.leases[0].pages(), [5, 6]);
    let error2 = duo.prefill.node.send(RoomId(4)).start().await.unwrap_err();
    assert_eq!(error2.kind, StartErrorKind::RoomExists(RoomKey::new(4, 0)));

    push(&sender, 0..2 * TOKENS, duo.prefill.stamped(&[0, 1], 4, 0)).await;
    sender.finish(2 * TOKENS, None).unwrap();
    assert_eq!(within(receiver.outcome()).await, Outcome::Done);
    verify(&within(receiver.released()).await.leases[0], 4, 0);
    assert_eq!(within(sender.outcome()).await, Outcome::Done);
    drop((error, error2));
    duo.end().await;
}

async fn the_next_attempt_runs_while_the_memory_of_the_first_is_quarantined(over: Over) {
    let duo = Duo::with(Setup {
        layout: kv(16, PIECE),
        lanes: 2,
        deadlines: Deadlines {
            drain: Duration::from_millis(5),
            ..Deadlines::default()
        },
        ..Setup::over(over)
    })
    .await;
    let first = duo.receive(6, 0, &[0]).await;
    let s0 = duo.send(6, 0).await;
    duo.brake.hold_after(0);
    push(&s0, 0..TOKENS, duo.prefill.stamped(&[0], 1, 0)).await;
    until("the copy is under way", || duo.brake.held() == 1).await;
    first.abort("again, please");
    within(first.outcome()).await;
    within(s0.outcome()).await;
    for side in [&duo.decode, &duo.prefill] {
        let node = &side.node;
        until_stats("it is quarantined", node, |s| s.rooms_quarantined == 1).await;
    }
    // The other lane serves the retry; the first one stays inside its gate.
    duo.brake.hold_after(u64::MAX);
    let second = duo.receive(6, 1, &[1]).await;
    let s1 = duo.send(6, 1).await;
    push(&s1, 0..TOKENS, duo.prefill.stamped(&[1], 2, 0)).await;
    s1.finish(TOKENS, None).unwrap();
    assert_eq!(within(second.outcome()).await, Outcome::Done);
    verify(&within(second.released()).await.leases[0], 2, 0);
    assert!(!first.poll().released && !s0.poll().released);
    assert_eq!(duo.brake.held(), 1);
    duo.brake.release();
    drop(within(first.released()).await);
    drop((first, s0, s1));
    duo.end().await;
}

async fn an_abort_that_crosses_the_completion_ends_each_side_once_and_loses_no_lease(over: Over) {
    let duo = Duo::over(over).await;
    let mut kinds = std::collections::BTreeMap::new();
    for round in 0..150u64 {
        let receiver = duo.receive(round, 0, &[0, 1]).await;
        let sender = duo.send(round, 0).await;
        let chunk = push(
            &sender,
            0..2 * TOKENS,
            duo.prefill.stamped(&[2, 3], round, 0),
        )
        .await;
        sender.finish(2 * TOKENS, None).unwrap();
        for _ in 0..round % 25 {
            tokio::task::yield_now().await;
            std::thread::sleep(Duration::from_micros(round % 11));
        }
        if round % 2 == 0 {
            sender.abort("crossing");
        } else {
            receiver.abort("crossing");
        }
        let (r, s) = (
            within(receiver.outcome()).await,
            within(sender.outcome()).await,
        );
        let back = within(receiver.released()).await;
        assert_eq!(back.leases.len(), 1);
        assert_eq!(back.outcome, r);
        assert!(within(chunk.released()).await.is_some());
        match (&r, &s) {
            (Outcome::Done, _) => verify(&back.leases[0], round, 0),
            (Outcome::Aborted(_), Outcome::Done) => {
                panic!("round {round}: the sender is done and the receiver is not: {r}")
            }
            (Outcome::Aborted(_), Outcome::Aborted(_)) => {}
        }
        let done = |o: &Outcome| *o == Outcome::Done;
        *kinds.entry((done(&r), done(&s))).or_insert(0) += 1;
        drop(back);
        drop(within(sender.released()).await);
    }
    let (p, d) = (
        duo.prefill.node.stats().await,
        duo.decode.node.stats().await,
    );
    assert_eq!((p.done + p.aborted, d.done + d.aborted), (150, 150));
    assert!(
        kinds.len() > 1,
        "the race was never lost or never won: {kinds:?}"
    );
    duo.end().await;
}

async fn decode_learns_why_prefill_aborted_in_every_state(over: Over) {
    let duo = Duo::of_pieces_over(over).await;
    for (i, state) in ["waiting", "between chunks", "in flight"]
        .iter()
        .enumerate()
    {
        let id = i as u64;
        let receiver = duo.receive(id, 0, &[0, 1]).await;
        let sender = duo.send(id, 0).await;
        until("it is bound", || {
            receiver.poll().state == StateName::Transferring
        })
        .await;
        match *state {
            "between chunks" => {
                let chunk = push(&sender, 0..TOKENS, duo.prefill.stamped(&[0], 1, 0)).await;
                assert!(within(chunk.released()).await.is_some());
            }
            "in flight" => {
                duo.brake.hold_after(1);
                push(&sender, 0..TOKENS, duo.prefill.stamped(&[0], 1, 0)).await;
                until("a piece is under way", || duo.brake.held() == 1).await;
            }
            _ => {}
        }
        sender.abort(format!("because {state}"));
        // Told before anything is drained.
        match within(receiver.outcome()).await {
            Outcome::Aborted(reason) => {
                assert_eq!((reason.code, reason.side), (Code::Requested, Where::Peer));
                names(&reason, &["because", state]);
            }
            Outcome::Done => panic!("done"),
        }
        duo.brake.release();
        drop(within(receiver.released()).await);
        drop(within(sender.released()).await);
    }
    duo.end().await;
}

async fn a_retry_with_another_decode_node_does_not_wait_for_a_silent_first_one(over: Over) {
    let duo = Duo::over(over).await;
    let setup = Setup::over(over);
    let other = Side::start(&duo.hub, "d2", &setup, &duo.brake).await;
    let peer = other.node.connect(&duo.prefill.address).await.unwrap();

    let first = duo.receive(3, 0, &[0, 1]).await;
    let s0 = duo.send(3, 0).await;
    let part = push(&s0, 0..TOKENS, duo.prefill.stamped(&[0], 5, 0)).await;
    let part = within(part.released()).await.unwrap();
    let silent = Silence::of(&duo.decode.node).await;
    s0.abort("decode node d is silent");
    within(s0.outcome()).await;
    drop(within(s0.released()).await);

    let room = other.node.receive(RoomId(3)).attempt(1).from(&peer);
    let lease = other.pool.lease_write(&[8]).unwrap();
    let second = room.into(lease).start().await.unwrap();
    let s1 = duo.send(3, 1).await;
    push(&s1, 0..TOKENS, part).await;
    s1.finish(TOKENS, None).unwrap();
    assert_eq!(within(second.outcome()).await, Outcome::Done);
    verify(&within(second.released()).await.leases[0], 5, 0);
    assert_eq!(within(s1.outcome()).await, Outcome::Done);

    assert_eq!(first.try_outcome(), None);
    drop(silent);
    assert_eq!(code(&within(first.outcome()).await), Code::Requested);
    let back = within(first.released()).await;
    assert_eq!(back.landed.bytes, u64::from(LAYERS) * 4096);
    drop((back, s0, s1));
    other.quiet().await;
    duo.end().await;
}

async fn everything_is_aborted_twice_while_new_rooms_come_and_these_complete(over: Over) {
    let duo = Duo::over(over).await;
    let mut old = Vec::new();
    for id in 0..8 {
        old.push((
            duo.receive(id, 0, &[id as u32]).await,
            duo.send(id, 0).await,
        ));
    }
    for round in 0..2u64 {
        let (all_p, all_d) = (Which::All, Which::All);
        tokio::join!(
            duo.prefill.node.abort_where(all_p, "storm"),
            duo.decode.node.abort_where(all_d, "storm"),
        );
        duo.moves(100 + round, 0, &[12, 13], &[12, 13]).await;
    }
    for (receiver, sender) in old {
        assert_eq!(code(&within(receiver.outcome()).await), Code::Requested);
        assert_eq!(code(&within(sender.outcome()).await), Code::Requested);
    }
    duo.end().await;
}

async fn the_second_rank_is_served_though_it_claims_after_the_first_is_done(over: Over) {
    let duo = Duo::over(over).await;
    let other = Side::start(&duo.hub, "d2", &Setup::over(over), &duo.brake).await;
    let peer = other.node.connect(&duo.prefill.address).await.unwrap();
    let sender = duo.prefill.node.send(RoomId(1)).receivers(2).start().await;
    let sender = sender.unwrap();
    let chunk = push(&sender, 0..TOKENS, duo.prefill.stamped(&[0], 1, 0)).await;
    sender.finish(TOKENS, None).unwrap();

    let lease = duo.decode.pool.lease_write(&[0]).unwrap();
    let room = duo.decode.node.receive(RoomId(1)).receivers(2).rank(0);
    let first = room.from(&duo.peer).into(lease).start().await.unwrap();
    assert_eq!(within(first.outcome()).await, Outcome::Done);
    assert_eq!(sender.try_outcome(), None);
    assert!(chunk.try_released().is_none());

    // A claim that disagrees on the number of receivers is refused and harms nothing.
    let lease = other.pool.lease_write(&[0]).unwrap();
    let wrong = other.node.receive(RoomId(1)).receivers(3).rank(1);
    let wrong = wrong.from(&peer).into(lease).start().await.unwrap();
    let outcome = within(wrong.outcome()).await;
    assert_eq!(code(&outcome), Code::BadClaim);
    names(&text(&outcome), &["3 receivers", "opened for 2"]);
    let lease = within(wrong.released()).await.leases.remove(0);
    // The key is spent on that node; a third one has the second rank.
    let third = Side::start(&duo.hub, "d3", &Setup::over(over), &duo.brake).await;
    let peer3 = third.node.connect(&duo.prefill.address).await.unwrap();
    drop(lease);
    let lease = third.pool.lease_write(&[0]).unwrap();
    let second = third.node.receive(RoomId(1)).receivers(2).rank(1);
    let second = second.from(&peer3).into(lease).start().await.unwrap();
    assert_eq!(within(second.outcome()).await, Outcome::Done);
    verify(&within(second.released()).await.leases[0], 1, 0);
    verify(&within(first.released()).await.leases[0], 1, 0);
    assert_eq!(within(sender.outcome()).await, Outcome::Done);
    assert!(within(chunk.released()).await.is_some());
    drop(sender);
    other.quiet().await;
    third.quiet().await;
    duo.end().await;
}

async fn a_chunk_pushed_after_the_decode_side_aborted_gets_the_reason_and_its_lease_back(
    over: Over,
) {
    let duo = Duo::over(over).await;
    let receiver = duo.receive(2, 0, &[0, 1]).await;
    let sender = duo.send(2, 0).await;
    let slot = within(sender.reserve()).await.unwrap();
    receiver.abort("user closed the page");
    within(sender.outcome()).await;
    let lease = duo.prefill.stamped(&[3], 1, 0);
    let error = slot
        .push(Chunk::tokens(0..TOKENS).pages(lease))
        .unwrap_err();
    assert_eq!(error.reason.code, Code::Requested);
    names(&error, &["2#0", "user closed the page", "not taken"]);
    assert_eq!(error.chunk.into_lease().pages(), [3]);
    let error = within(sender.reserve()).await.unwrap_err();
    names(&error, &["2#0", "is over", "user closed the page"]);
    let error = sender.finish(TOKENS, None).unwrap_err();
    names(&error, &["2#0", "is over"]);
    drop((sender, receiver));
    duo.end().await;
}
