//! What wedged the old design, one thing after the other; here each ends one room, or none.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use kvroom::actors::supervisor::actor::Inbound;
use kvroom::actors::supervisor::io::Input;
use kvroom::{
    Chunk, Class, Code, Deadlines, LeaseError, Limits, Node, Outcome, Pool, ReadLease, RoomId,
    StateName, Which,
};
use std::time::Duration;

/// The steps of a transfer between which an abort can come.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    Claimed,
    Sent,
    Pushed,
    PushedAll,
    Finished,
}

const STEPS: [Step; 5] = [
    Step::Claimed,
    Step::Sent,
    Step::Pushed,
    Step::PushedAll,
    Step::Finished,
];

over_copies!(
    a_steady_transfer_may_take_longer_than_the_stall_time,
    a_transfer_of_which_nothing_lands_is_ended_by_the_stall_clock_and_its_memory_is_not,
    a_push_of_a_hundred_thousand_descriptors_lets_other_rooms_through,
    a_healthy_transfer_is_not_behind_ten_cancelled_ones,
);

over_each!(an_abort_after_any_step_from_either_side_or_both_wedges_nothing);

async fn an_abort_after_any_step_from_either_side_or_both_wedges_nothing(over: Over) {
    let duo = Duo::over(over).await;
    let mut id = 0;
    for stop in STEPS {
        for who in ["decode", "prefill", "both", "abort_where"] {
            id += 1;
            let receiver = duo.receive(id, 0, &[0, 1]).await;
            let mut sender = None;
            let reached = |step: Step| stop != step;
            if reached(Step::Claimed) {
                sender = Some(duo.send(id, 0).await);
            }
            if let Some(sender) = &sender
                && reached(Step::Sent)
            {
                push(sender, 0..TOKENS, duo.prefill.stamped(&[0], id, 0)).await;
                if reached(Step::Pushed) {
                    let lease = duo.prefill.stamped(&[1], id, 1);
                    push(sender, TOKENS..2 * TOKENS, lease).await;
                    if reached(Step::PushedAll) {
                        sender.finish(2 * TOKENS, None).unwrap();
                    }
                }
            }
            if who == "decode" || who == "both" {
                receiver.abort("sweep");
            }
            if who == "prefill" || who == "both" {
                match &sender {
                    Some(sender) => sender.abort("sweep"),
                    None => {
                        let all = Which::Room(RoomId(id));
                        duo.prefill.node.abort_where(all, "sweep").await;
                        // The claim may not have arrived; then the decode side has to say it.
                        receiver.abort("sweep");
                    }
                }
            }
            if who == "abort_where" {
                let room = Which::Room(RoomId(id));
                duo.decode.node.abort_where(room, "sweep").await;
            }
            within(receiver.outcome()).await;
            drop(within(receiver.released()).await);
            if let Some(sender) = sender {
                within(sender.outcome()).await;
                drop(within(sender.released()).await);
            }
            all_free(&duo.decode.pool).await;
            all_free(&duo.prefill.pool).await;
            duo.moves(1_000 + id, 0, &[2, 3], &[2, 3]).await;
        }
    }
    duo.end().await;
}

/// What can be wrong with a chunk, and what the error names.
#[allow(
    clippy::reversed_empty_ranges,
    reason = "one of the things that are wrong"
)]
fn poisons(duo: &Duo) -> Vec<(&'static str, Chunk, Vec<&'static str>)> {
    let lease = |pages: &[u32]| -> ReadLease { duo.prefill.stamped(pages, 3, 0) };
    let whole = |range, pages: &[u32]| Chunk::tokens(range).pages(lease(pages));
    vec![
        ("empty", whole(16..16, &[4]), vec!["16..16", "empty"]),
        ("backwards", whole(32..16, &[5]), vec!["32..16", "empty"]),
        (
            "off the page",
            whole(8..24, &[6]),
            vec!["token 8", "page boundary"],
        ),
        (
            "too few pages",
            whole(16..48, &[7]),
            vec!["fill 2 pages", "lease has 1"],
        ),
        (
            "too many pages",
            whole(16..32, &[8, 9]),
            vec!["fill 1 pages", "lease has 2"],
        ),
        ("overlapping", whole(0..32, &[10, 11]), vec!["chunk 1"]),
        (
            "beyond the claim",
            whole(16..64, &[12, 13, 14]),
            vec!["token 64", "ends at 32"],
        ),
        (
            "far away",
            whole(1 << 60..(1 << 60) + 16, &[15]),
            vec!["chunk 1", "2^32"],
        ),
        (
            "no such layer",
            Chunk::tokens(16..32).layers(1..9).pages(lease(&[3])),
            vec!["layers 1..9", "0..2"],
        ),
    ]
}

#[tokio::test]
async fn a_poisoned_chunk_ends_its_own_room_with_an_error_that_names_what_is_wrong() {
    let duo = Duo::with(Setup {
        layout: kv(32, 4096),
        ..Setup::default()
    })
    .await;
    for (i, (what, chunk, words)) in (0..).zip(poisons(&duo)) {
        let receiver = duo.receive(i, 0, &[0, 1]).await;
        let bystander_d = duo.receive(1_000 + i, 0, &[2]).await;
        let sender = duo.send(i, 0).await;
        let bystander_p = duo.send(1_000 + i, 0).await;
        push(&sender, 0..TOKENS, duo.prefill.stamped(&[0], 1, 0)).await;
        until("it is bound", || {
            receiver.poll().state == StateName::Transferring
        })
        .await;
        let slot = within(sender.reserve()).await.unwrap();
        let poisoned = slot.push(chunk).unwrap();
        let outcome = within(sender.outcome()).await;
        assert!(
            matches!(code(&outcome), Code::BadChunk | Code::LengthMismatch),
            "{what}: {outcome}"
        );
        names(&text(&outcome), &words);
        let told = within(receiver.outcome()).await;
        names(&text(&told), &words);
        assert!(within(poisoned.released()).await.is_some(), "{what}");
        drop(within(receiver.released()).await);
        drop(within(sender.released()).await);

        let lease = duo.prefill.stamped(&[20], 7, 0);
        push(&bystander_p, 0..TOKENS, lease).await;
        bystander_p.finish(TOKENS, None).unwrap();
        assert_eq!(within(bystander_d.outcome()).await, Outcome::Done);
        verify(&within(bystander_d.released()).await.leases[0], 7, 0);
        within(bystander_p.outcome()).await;
        drop(within(bystander_p.released()).await);
    }
    duo.end().await;
}

#[tokio::test]
async fn pages_of_a_strange_pool_are_handed_back_and_the_room_goes_on() {
    let duo = Duo::new().await;
    let receiver = duo.receive(1, 0, &[0]).await;
    let sender = duo.send(1, 0).await;
    let strange = Pool::owned(kv(4, 4096)).unwrap();
    let chunk = Chunk::tokens(0..TOKENS).pages(strange.lease_read(&[2]).unwrap());
    let slot = within(sender.reserve()).await.unwrap();
    let error = slot.push(chunk).unwrap_err();
    assert_eq!(error.reason.code, Code::BadChunk);
    names(&error, &["1#0", "\"kv\"", "not one of this node's"]);
    assert!(!error.to_string().contains("over"), "{error}");
    drop(error);
    assert_eq!(strange.leased_pages(), 0);

    push(&sender, 0..TOKENS, duo.prefill.stamped(&[0], 1, 0)).await;
    sender.finish(TOKENS, None).unwrap();
    assert_eq!(within(receiver.outcome()).await, Outcome::Done);
    drop((sender, receiver));
    duo.end().await;
}

#[tokio::test]
async fn a_page_index_out_of_range_is_refused_where_the_lease_is_taken() {
    let duo = Duo::new().await;
    let error = duo.prefill.pool.lease_read(&[3, 99]).unwrap_err();
    names(&error, &["page 99", "position 1", "0 to 15"]);
    let error = duo.decode.pool.lease_write(&[3, 4, 3]).unwrap_err();
    assert!(matches!(error, LeaseError::Twice { page: 3, .. }));
    let held = duo.decode.pool.lease_write(&[3]).unwrap();
    let error = duo.decode.pool.lease_write(&[2, 3]).unwrap_err();
    names(
        &error,
        &["page 3", "position 1", "a write lease", "choose another"],
    );
    drop(held);
    duo.end().await;
}

fn explode(node: &Node, id: u64, life: kvroom::actors::ids::LifeId) {
    let explode = Inbound::Core(Input::Explode { life });
    node.runtime().inbox(RoomId(id)).put(explode).unwrap();
}

#[tokio::test]
async fn a_panic_in_any_state_of_either_side_ends_that_room_and_nothing_else() {
    let duo = Duo::of_pieces().await;
    let mut id = 0;
    for side in ["decode", "prefill"] {
        for state in ["registered", "transferring", "in flight", "draining"] {
            id += 1;
            let bystander_d = duo.receive(100 + id, 0, &[8]).await;
            let receiver = duo.receive(id, 0, &[0, 1]).await;
            let sender = duo.send(id, 0).await;
            let mut chunk = None;
            if state != "registered" {
                until("it is bound", || {
                    receiver.poll().state == StateName::Transferring
                })
                .await;
            }
            if state == "in flight" || state == "draining" {
                duo.brake.hold_after(1);
                chunk = Some(push(&sender, 0..TOKENS, duo.prefill.stamped(&[0], 1, 0)).await);
                until("a piece is under way", || duo.brake.held() == 1).await;
            }
            if state == "draining" {
                receiver.abort("first");
                within(receiver.outcome()).await;
                within(sender.outcome()).await;
            }
            match side {
                "decode" => explode(&duo.decode.node, id, receiver.life()),
                _ => explode(&duo.prefill.node, id, sender.life()),
            }
            let (r, s) = (
                within(receiver.outcome()).await,
                within(sender.outcome()).await,
            );
            let mine = if side == "decode" { &r } else { &s };
            match state {
                "draining" => assert_eq!(code(mine), Code::Requested, "{side}, {state}"),
                _ => {
                    assert_eq!(code(&r), Code::ActorPanicked, "{side}, {state}");
                    assert_eq!(code(&s), Code::ActorPanicked, "{side}, {state}");
                }
            }
            if let Some(chunk) = &chunk {
                settle(&[&duo.decode.node, &duo.prefill.node]).await;
                assert!(receiver.try_released().is_none(), "{side}, {state}");
                assert!(chunk.try_released().is_none(), "{side}, {state}");
                duo.brake.release();
            }
            assert_eq!(within(receiver.released()).await.leases.len(), 1);
            if let Some(chunk) = chunk {
                assert!(within(chunk.released()).await.is_some());
            }
            drop(within(sender.released()).await);

            // The shard serves on, rooms from before among them.
            let bystander_p = duo.send(100 + id, 0).await;
            push(&bystander_p, 0..TOKENS, duo.prefill.stamped(&[9], 4, 0)).await;
            bystander_p.finish(TOKENS, None).unwrap();
            assert_eq!(within(bystander_d.outcome()).await, Outcome::Done);
            verify(&within(bystander_d.released()).await.leases[0], 4, 0);
            within(bystander_p.outcome()).await;
            drop(within(bystander_p.released()).await);
            let node = if side == "decode" {
                &duo.decode.node
            } else {
                &duo.prefill.node
            };
            until_stats("it is counted", node, |s| s.panicked > 0).await;
        }
    }
    assert_eq!(duo.decode.node.stats().await.panicked, 4);
    assert_eq!(duo.prefill.node.stats().await.panicked, 4);
    duo.end().await;
}

#[tokio::test]
async fn two_full_pools_do_not_freeze_each_other_when_prefill_serves_early_claims_first() {
    // Both sides have memory and rooms for two requests at a time, and meet them in opposite order.
    let limits = Limits {
        rooms: 2,
        ..Limits::default()
    };
    let duo = Duo::with(Setup {
        layout: kv(4, 4096),
        limits,
        ..Setup::default()
    })
    .await;
    const REQUESTS: u64 = 12;
    let decode = async {
        let mut live = Vec::new();
        for id in 0..REQUESTS {
            let pages = [2 * (id as u32 % 2), 2 * (id as u32 % 2) + 1];
            let lease = loop {
                // Full: the engine waits for its oldest room.
                match duo.decode.pool.lease_write(&pages) {
                    Ok(lease) => break lease,
                    Err(error) => {
                        names(&error, &["held by", "wait"]);
                        let (id, room): (u64, kvroom::ReceiveRoom) = live.remove(0);
                        assert_eq!(within(room.outcome()).await, Outcome::Done);
                        verify(&within(room.released()).await.leases[0], id, 0);
                    }
                }
            };
            let room = duo.decode.node.receive(RoomId(id)).from(&duo.peer);
            live.push((id, within(room.into(lease).start()).await.unwrap()));
        }
        for (id, room) in live {
            assert_eq!(within(room.outcome()).await, Outcome::Done);
            verify(&within(room.released()).await.leases[0], id, 0);
        }
    };
    let prefill = async {
        let mut wanted: Vec<u64> = (0..REQUESTS).rev().collect();
        while !wanted.is_empty() {
            let claims = within(duo.prefill.node.early_claims()).await;
            let Some(claim) = claims.first() else {
                tokio::task::yield_now().await;
                continue;
            };
            assert_eq!((claim.peer.as_str(), claim.pages), ("d", 2));
            let id = claim.key.id.0;
            wanted.retain(|w| *w != id);
            let pages = [id as u32 % 4, (id as u32 + 1) % 4];
            until("source pages are free", || {
                duo.prefill.pool.lease_write(&pages).is_ok()
            })
            .await;
            let sender = duo.send(id, 0).await;
            push(&sender, 0..2 * TOKENS, duo.prefill.stamped(&pages, id, 0)).await;
            sender.finish(2 * TOKENS, None).unwrap();
            sender.detach();
        }
    };
    within(async { tokio::join!(decode, prefill) }).await;
    duo.end().await;
}

#[tokio::test]
async fn a_full_node_makes_start_wait_until_a_room_has_drained() {
    let limits = Limits {
        rooms: 1,
        ..Limits::default()
    };
    let duo = Duo::with(Setup {
        layout: kv(16, PIECE),
        limits,
        ..Setup::default()
    })
    .await;
    let receiver = duo.receive(1, 0, &[0]).await;
    let sender = duo.send(1, 0).await;
    duo.brake.hold_after(0);
    push(&sender, 0..TOKENS, duo.prefill.stamped(&[0], 1, 0)).await;
    until("a piece is under way", || duo.brake.held() == 1).await;

    let room = duo.decode.node.receive(RoomId(2)).from(&duo.peer);
    let lease = duo.decode.pool.lease_write(&[1]).unwrap();
    let mut second = std::pin::pin!(room.into(lease).start());
    assert!(poll_once(&mut second).await.is_none());
    receiver.abort("make room");
    within(receiver.outcome()).await;
    // Over, and still in the way: its memory is not proven quiet.
    settle(&[&duo.decode.node]).await;
    assert!(poll_once(&mut second).await.is_none());
    duo.brake.release();
    let second = within(second).await.unwrap();
    assert_eq!(second.try_outcome(), None);
    drop((second, receiver, sender));
    duo.end().await;
}

async fn a_steady_transfer_may_take_longer_than_the_stall_time(over: Over) {
    let stall = Duration::from_millis(400);
    let duo = Duo::with(Setup {
        deadlines: Deadlines {
            outcome: None,
            stall,
            ..Deadlines::default()
        },
        ..Setup::over(over)
    })
    .await;
    let pages: Vec<u32> = (0..16).collect();
    let receiver = duo.receive(1, 0, &pages).await;
    let sender = duo.send(1, 0).await;
    let start = std::time::Instant::now();
    for page in pages {
        let at = u64::from(page);
        let lease = duo.prefill.stamped(&[page], 1, at);
        let chunk = push(&sender, at * TOKENS..(at + 1) * TOKENS, lease).await;
        assert!(within(chunk.released()).await.is_some());
        // Slow: prefill computes the next chunk, and nothing is posted meanwhile.
        tokio::time::sleep(stall / 8).await;
    }
    sender.finish(16 * TOKENS, None).unwrap();
    assert!(start.elapsed() > stall);
    assert_eq!(within(receiver.outcome()).await, Outcome::Done);
    verify(&within(receiver.released()).await.leases[0], 1, 0);
    drop(sender);
    duo.end().await;
}

async fn a_transfer_of_which_nothing_lands_is_ended_by_the_stall_clock_and_its_memory_is_not(
    over: Over,
) {
    let duo = Duo::with(Setup {
        layout: kv(16, PIECE),
        deadlines: Deadlines {
            stall: Duration::from_millis(30),
            ..Deadlines::default()
        },
        ..Setup::over(over)
    })
    .await;
    let receiver = duo.receive(1, 0, &[0]).await;
    let sender = duo.send(1, 0).await;
    duo.brake.hold_after(0);
    push(&sender, 0..TOKENS, duo.prefill.stamped(&[0], 1, 0)).await;
    assert_eq!(code(&within(receiver.outcome()).await), Code::Stalled);
    settle(&[&duo.decode.node]).await;
    assert!(receiver.try_released().is_none());
    duo.brake.release();
    assert_eq!(within(receiver.released()).await.leases.len(), 1);
    drop(sender);
    duo.end().await;
}

#[tokio::test]
async fn a_deadline_ends_the_outcome_of_a_room_that_nobody_serves() {
    let duo = Duo::new().await;
    // Or prefill, which knows the deadline from the claim, says it first.
    let silent = Silence::of(&duo.prefill.node).await;
    let lease = duo.decode.pool.lease_write(&[0]).unwrap();
    let room = duo.decode.node.receive(RoomId(1)).from(&duo.peer);
    let room = room.into(lease).deadline(Duration::from_millis(20));
    let room = room.start().await.unwrap();
    assert_eq!(code(&within(room.outcome()).await), Code::DeadlineExceeded);
    assert_eq!(within(room.released()).await.leases.len(), 1);
    drop(silent);
    let sender = duo.prefill.node.send(RoomId(2));
    let sender = sender.deadline(Duration::from_millis(20)).start().await;
    let sender = sender.unwrap();
    assert_eq!(
        code(&within(sender.outcome()).await),
        Code::DeadlineExceeded
    );
    drop((room, sender));
    duo.end().await;
}

/// A clock that ran out is behind what has arrived already, in whatever order the shard is woken for
/// the two: what has arrived may be what the clock waits for.
#[tokio::test]
async fn what_has_arrived_counts_before_a_clock_that_ran_out_meanwhile() {
    const DEADLINE: Duration = Duration::from_millis(40);
    let duo = Duo::new().await;
    let lease = duo.decode.pool.lease_write(&[0]).unwrap();
    let room = duo.decode.node.receive(RoomId(1)).from(&duo.peer);
    let room = room.into(lease).deadline(DEADLINE).start().await.unwrap();
    let (held, mut is_held) = tokio::sync::oneshot::channel();
    let (go_on, wait) = std::sync::mpsc::channel::<()>();
    let hold = Inbound::Ask(Box::new(move |shard, _| {
        let _ = held.send(std::time::Instant::now());
        let _ = wait.recv();
        shard.ring_the_alarm();
    }));
    duo.decode
        .node
        .runtime()
        .inbox(RoomId(1))
        .put(hold)
        .unwrap();
    let since = within(async { (&mut is_held).await.unwrap() }).await;
    room.abort("no longer wanted");
    // The shard stands still meanwhile, so the clock runs out and is not looked at.
    tokio::time::sleep_until((since + 2 * DEADLINE).into()).await;
    drop(go_on);
    assert_eq!(code(&within(room.outcome()).await), Code::Requested);
    drop(room);
    duo.end().await;
}

async fn a_push_of_a_hundred_thousand_descriptors_lets_other_rooms_through(over: Over) {
    const PAGES: u32 = 50_000;
    let duo = Duo::with(Setup {
        layout: kv(2 * PAGES + 16, 64),
        ..Setup::over(over)
    })
    .await;
    // Every second page, so that nothing can be merged: a descriptor for each page and layer.
    let pages: Vec<u32> = (0..PAGES).map(|i| 2 * i).collect();
    let total = u64::from(PAGES) * TOKENS;
    let receiver = duo.receive(1, 0, &pages).await;
    let sender = duo.send(1, 0).await;
    // A piece is up to 128 KiB, or 2,048 of these descriptors.
    duo.brake.hold_after(2);
    push(&sender, 0..total, duo.prefill.stamped(&pages, 1, 0)).await;
    sender.finish(total, None).unwrap();
    until("it has begun", || duo.brake.held() == 1).await;

    let (from, to) = ([2 * PAGES, 2 * PAGES + 2], [2 * PAGES + 1, 2 * PAGES + 3]);
    let small = duo.receive(2, 0, &to).await;
    let s2 = duo.send(2, 0).await;
    push(&s2, 0..2 * TOKENS, duo.prefill.stamped(&from, 2, 0)).await;
    s2.finish(2 * TOKENS, None).unwrap();
    until("it is bound", || {
        small.poll().state == StateName::Transferring
    })
    .await;
    settle(&[&duo.prefill.node]).await;
    duo.brake.release_for(8);
    until("the lane is held again", || duo.brake.held() == 1).await;
    // A fifth of the big one has landed at most, and the small one is through.
    assert_eq!(within(small.outcome()).await, Outcome::Done);
    assert_eq!(receiver.try_outcome(), None);
    duo.brake.release();
    verify(&within(small.released()).await.leases[0], 2, 0);
    assert_eq!(within(receiver.outcome()).await, Outcome::Done);
    let back = within(receiver.released()).await;
    assert_eq!(back.landed.pieces, u64::from(PAGES * LAYERS));
    verify(&back.leases[0], 1, 0);
    drop((back, sender, s2));
    duo.end().await;
}

async fn a_healthy_transfer_is_not_behind_ten_cancelled_ones(over: Over) {
    let pages = 64;
    let duo = Duo::with(Setup {
        layout: kv(11 * pages, PIECE),
        ..Setup::over(over)
    })
    .await;
    duo.brake.hold_after(0);
    let mut long = Vec::new();
    for id in 0..10u64 {
        let first = id as u32 * pages;
        let list: Vec<u32> = (first..first + pages).collect();
        let receiver = duo.receive(id, 0, &list).await;
        let sender = duo.send(id, 0).await;
        let lease = duo.prefill.pool.lease_read(&list).unwrap();
        push(&sender, 0..u64::from(pages) * TOKENS, lease).await;
        long.push((receiver, sender));
    }
    until("one is under way", || duo.brake.held() == 1).await;
    for (receiver, _) in &long {
        receiver.abort("cancelled");
    }
    for (receiver, sender) in &long {
        within(receiver.outcome()).await;
        within(sender.outcome()).await;
    }
    let room = duo.decode.node.receive(RoomId(99)).from(&duo.peer);
    let lease = duo.decode.pool.lease_write(&[10 * pages]).unwrap();
    let healthy = room.into(lease).start().await.unwrap();
    let sender = duo.prefill.node.send(RoomId(99)).class(Class::Bulk);
    let sender = sender.start().await.unwrap();
    let lease = duo.prefill.stamped(&[10 * pages], 9, 0);
    push(&sender, 0..TOKENS, lease).await;
    sender.finish(TOKENS, None).unwrap();
    duo.brake.release();
    assert_eq!(within(healthy.outcome()).await, Outcome::Done);
    // One piece was inside its gate; of the other 160 MiB nothing was copied first, or at all.
    let copied = duo.prefill.node.stats().await.bytes_copied;
    assert_eq!(copied, (1 + u64::from(LAYERS)) * PIECE);
    verify(&within(healthy.released()).await.leases[0], 9, 0);
    drop((long, sender, healthy));
    duo.end().await;
}

#[tokio::test]
async fn a_small_room_is_done_while_the_only_lane_stands_still() {
    let duo = Duo::new().await;
    let held = duo.receive(1, 0, &[0]).await;
    let sender = duo.send(1, 0).await;
    duo.brake.hold_after(0);
    push(&sender, 0..TOKENS, duo.prefill.stamped(&[0], 1, 0)).await;
    sender.finish(TOKENS, None).unwrap();
    until("the lane stands still", || duo.brake.held() == 1).await;
    // It goes on standing there; whatever comes now may pass, and needs no lane.
    duo.brake.hold_after(u64::MAX);
    duo.moves(2, 0, &[2, 3], &[4, 5]).await;
    assert_eq!(duo.brake.held(), 1);
    assert_eq!(held.try_outcome(), None);
    duo.brake.release();
    assert_eq!(within(held.outcome()).await, Outcome::Done);
    assert_eq!(within(sender.outcome()).await, Outcome::Done);
    drop((held, sender));
    duo.end().await;
}
