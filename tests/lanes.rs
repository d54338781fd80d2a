//! One large job on all lanes of a node, over every way within a host.
#![allow(clippy::unwrap_used)] // Tests and their helpers.

mod common;

use common::*;
use kvroom::{Code, Outcome, RoomId};

const PAGES: u32 = 8;

async fn with_lanes(over: Over, lanes: usize) -> Duo {
    Duo::with(Setup {
        layout: kv(2 * PAGES, PIECE),
        lanes,
        ..Setup::over(over)
    })
    .await
}

/// A chunk of 2 MiB is worth two lanes, and to its room it is one job all the same.
async fn one_large_chunk_is_copied_by_all_lanes_at_once(over: Over) {
    let duo = with_lanes(over, 2).await;
    let (from, to): (Vec<u32>, Vec<u32>) = ((0..PAGES).collect(), (PAGES..2 * PAGES).collect());
    let receiver = duo.receive(1, 0, &to).await;
    let sender = duo.send(1, 0).await;
    duo.brake.hold_after(0);
    let total = u64::from(PAGES) * TOKENS;
    let chunk = push(&sender, 0..total, duo.prefill.stamped(&from, 7, 0)).await;
    sender.finish(total, None).unwrap();
    until("both lanes are inside", || duo.brake.held() == 2).await;
    settle(&[&duo.prefill.node, &duo.decode.node]).await;
    assert!(chunk.try_released().is_none());
    duo.brake.release();
    assert_eq!(within(receiver.outcome()).await, Outcome::Done);
    assert_eq!(within(sender.outcome()).await, Outcome::Done);
    verify(&within(receiver.released()).await.leases[0], 7, 0);
    assert_eq!(within(chunk.released()).await.unwrap().pages(), from);
    let bytes = u64::from(LAYERS * PAGES) * PIECE;
    assert_eq!(duo.prefill.node.stats().await.bytes_copied, bytes);
    drop((sender, receiver));
    duo.end().await;
}

/// The lease of a chunk comes back when the last lane is out, not when the first one is.
async fn an_abort_with_two_lanes_inside_waits_for_both(over: Over) {
    let duo = with_lanes(over, 2).await;
    let (from, to): (Vec<u32>, Vec<u32>) = ((0..PAGES).collect(), (PAGES..2 * PAGES).collect());
    let receiver = duo.receive(1, 0, &to).await;
    let sender = duo.send(1, 0).await;
    duo.brake.hold_after(3);
    let total = u64::from(PAGES) * TOKENS;
    let chunk = push(&sender, 0..total, duo.prefill.stamped(&from, 7, 0)).await;
    sender.finish(total, None).unwrap();
    until("both lanes are inside", || duo.brake.held() == 2).await;
    receiver.abort("enough");
    assert_eq!(code(&within(receiver.outcome()).await), Code::Requested);
    assert_eq!(code(&within(sender.outcome()).await), Code::Requested);
    settle(&[&duo.prefill.node, &duo.decode.node]).await;
    assert!(chunk.try_released().is_none());
    assert!(receiver.try_released().is_none());
    duo.brake.release();
    let released = within(receiver.released()).await;
    assert!(released.landed.bytes >= 3 * PIECE, "{:?}", released.landed);
    assert_eq!(within(chunk.released()).await.unwrap().pages(), from);
    drop((sender, receiver, released));
    duo.moves(2, 0, &[0, 1], &[2, 3]).await;
    duo.end().await;
}

/// The sums of the parts make the sum of the whole.
async fn a_sum_over_a_job_of_three_lanes_agrees(over: Over) {
    let duo = with_lanes(over, 3).await;
    let pages: Vec<u32> = (0..PAGES).collect();
    let lease = duo.decode.pool.lease_write(&pages).unwrap();
    let room = duo.decode.node.receive(RoomId(1)).checksum(true);
    let receiver = room.from(&duo.peer).into(lease).start().await.unwrap();
    let sender = duo.send(1, 0).await;
    let total = u64::from(PAGES) * TOKENS;
    push(&sender, 0..total, duo.prefill.stamped(&pages, 9, 0)).await;
    sender.finish(total, None).unwrap();
    assert_eq!(within(receiver.outcome()).await, Outcome::Done);
    assert_eq!(within(sender.outcome()).await, Outcome::Done);
    verify(&within(receiver.released()).await.leases[0], 9, 0);
    drop((sender, receiver));
    duo.end().await;
}

over_each!(@ local Local one_large_chunk_is_copied_by_all_lanes_at_once an_abort_with_two_lanes_inside_waits_for_both a_sum_over_a_job_of_three_lanes_agrees);
over_each!(@ shm Shm one_large_chunk_is_copied_by_all_lanes_at_once an_abort_with_two_lanes_inside_waits_for_both a_sum_over_a_job_of_three_lanes_agrees);
