//! Aborts over sockets with data under way: in the middle of a frame, before it, inside a gate.
//! Whose pages come back when, and what still arrives for them afterwards.
//!
//! What needs no data under way is in `abort_and_reuse.rs`, for every kind of connection.
#![allow(clippy::unwrap_used)]

mod common;

use common::proxy::{Act, Link, Way};
use common::*;
use kvroom::actors::copy::schedule::Class;
use kvroom::{Code, Deadlines, Net, Outcome, Proof, RoomId, Side as Where, StateName};
use std::time::Duration;

/// Over TCP with a proxy in between; pages are so large that a frame holds a part of one.
fn setup() -> Setup {
    Setup {
        over: Over::Tcp,
        proxied: true,
        layout: kv(16, 4 * PIECE),
        ..Setup::default()
    }
}

/// Data connections that are open, once each has carried something or been greeted.
fn data(duo: &Duo) -> Vec<Link> {
    let mut links = duo.proxy().open();
    links.retain(|link| link.number() > 0);
    links
}

/// Lets this many bytes of data through to the decode node, and holds what comes after.
fn hold_after(duo: &Duo, bytes: u64) {
    for link in data(duo) {
        link.after(Way::Down, link.came(Way::Down) + bytes, Act::Stop);
    }
}

async fn is_held(duo: &Duo) {
    until("data is held on its way", || {
        data(duo)
            .iter()
            .any(|link| link.has_acted(Way::Down) && link.came(Way::Down) > 0)
    })
    .await;
}

fn heal(duo: &Duo) {
    for link in duo.proxy().links() {
        link.heal();
    }
}

#[tokio::test]
async fn bytes_that_come_after_an_abort_change_no_page_and_are_counted() {
    let duo = Duo::with(setup()).await;
    duo.moves(1, 0, &[0, 1], &[0, 1]).await;
    // In the middle of the second page.
    hold_after(&duo, 5 * PIECE);
    let a = duo.receive(2, 0, &[4, 5]).await;
    let sender = duo.send(2, 0).await;
    push(&sender, 0..2 * TOKENS, duo.prefill.stamped(&[4, 5], 2, 0)).await;
    is_held(&duo).await;
    let silent = Silence::of(&duo.prefill.node).await;
    a.abort("the user left");
    assert_eq!(code(&within(a.outcome()).await), Code::Requested);
    // No round trip: prefill has not even heard of it.
    let back = within(a.released()).await;
    assert_eq!(back.proofs, [Proof::GateClosed]);
    assert!(back.landed.bytes < back.landed.wanted, "{:?}", back.landed);
    let mut lease = back.leases.into_iter().next().unwrap();
    fill(&mut lease, 77, 0);

    // The same pages are another room's now, and A's bytes arrive.
    heal(&duo);
    let node = &duo.decode.node;
    until_counts("late bytes come", node, |s| s.late_bytes > 0).await;
    drop(silent);
    assert_eq!(code(&within(sender.outcome()).await), Code::Requested);
    drop(within(sender.released()).await);
    settle(&[&duo.decode.node, &duo.prefill.node]).await;
    verify(&lease, 77, 0);
    let b = duo.receive_into(3, 0, lease).await;
    let s3 = duo.send(3, 0).await;
    push(&s3, 0..2 * TOKENS, duo.prefill.stamped(&[6, 7], 3, 0)).await;
    s3.finish(2 * TOKENS, None).unwrap();
    assert_eq!(within(b.outcome()).await, Outcome::Done);
    verify(&within(b.released()).await.leases[0], 3, 0);
    drop((a, b, sender, s3));
    duo.end().await;
}

#[tokio::test]
async fn the_source_of_an_aborted_sender_is_free_in_the_middle_of_a_frame_and_nothing_torn_counts()
{
    let duo = Duo::with(setup()).await;
    duo.moves(1, 0, &[0, 1], &[0, 1]).await;
    // Now and then the abort comes when a frame has just ended.
    let void = || duo.decode.node.runtime().shared().stats.read().void_frames;
    let mut id = 1;
    while void() == 0 {
        id += 1;
        assert!(id < 30, "no frame ever ended as void");
        aborted_in_the_middle(&duo, id).await;
    }
    duo.moves(1, 1, &[0, 1], &[2, 3]).await;
    duo.end().await;
}

/// A sender that is aborted with frames under way; its source is overwritten at once.
async fn aborted_in_the_middle(duo: &Duo, id: u64) {
    hold_after(duo, PIECE);
    let pages: Vec<u32> = (0..16).collect();
    let mut lease = duo.decode.pool.lease_write(&pages).unwrap();
    for (layer, page) in (0..LAYERS).flat_map(|l| (0..16).map(move |p| (l, p))) {
        lease.page_mut(layer, page).fill(0);
    }
    let receiver = duo.receive_into(id, 0, lease).await;
    let sender = duo.send(id, 0).await;
    let lease = duo.prefill.stamped(&pages, id, 0);
    let chunk = push(&sender, 0..16 * TOKENS, lease).await;
    sender.finish(16 * TOKENS, None).unwrap();
    is_held(duo).await;
    sender.abort("prefill gave up");
    assert_eq!(code(&within(sender.outcome()).await), Code::Requested);
    // Though decode has read next to nothing of it.
    let source = within(chunk.released()).await.unwrap();
    let mut source = source.into_write().unwrap();
    fill(&mut source, 99, 0);
    match within(receiver.outcome()).await {
        Outcome::Aborted(reason) => {
            assert_eq!((reason.code, reason.side), (Code::Requested, Where::Peer));
            names(&reason, &["prefill gave up"]);
        }
        Outcome::Done => panic!("done"),
    }
    heal(duo);
    let back = within(receiver.released()).await;
    for layer in 0..LAYERS {
        for page in 0..16 {
            let bytes = back.leases[0].page(layer, page);
            // Nothing that the source got after it came back: old bytes, zeroes, or untouched.
            let torn = bytes.chunks(8).enumerate().any(|(i, part)| {
                part.iter().any(|b| *b != 0) && !is_word(part, id, layer, page as u64, i)
            });
            assert!(!torn, "layer {layer} of page {page}");
        }
    }
    drop((source, back, receiver, sender));
    // What was under way has arrived, or been thrown away.
    duo.moves(id, 1, &[0, 1], &[2, 3]).await;
}

#[tokio::test]
async fn a_lease_stays_as_long_as_a_lane_is_inside_its_gate_and_never_comes_by_a_timer() {
    let duo = Duo::with(Setup {
        over: Over::Tcp,
        layout: kv(16, PIECE),
        deadlines: Deadlines {
            drain: Duration::from_millis(10),
            ..Deadlines::default()
        },
        ..Setup::default()
    })
    .await;
    let receiver = duo.receive(1, 0, &[0, 1]).await;
    let sender = duo.send(1, 0).await;
    duo.brake.hold_after(1);
    let lease = duo.prefill.stamped(&[0, 1], 1, 0);
    let pushed = push(&sender, 0..2 * TOKENS, lease).await;
    until("a read is under way", || duo.brake.held() == 1).await;
    receiver.abort("enough");
    assert_eq!(code(&within(receiver.outcome()).await), Code::Requested);
    let node = &duo.decode.node;
    let stats = until_stats("it is quarantined", node, |s| s.rooms_quarantined == 1).await;
    assert_eq!((stats.rooms_draining, stats.quarantined_pages), (1, 2));
    assert!(receiver.try_released().is_none());
    let room = node.rooms().await.remove(0);
    names(&room.held_because.unwrap(), &["a writer is inside"]);
    // The source does not wait for that.
    assert!(within(pushed.released()).await.is_some());

    // A retry runs meanwhile, on the connection for small pieces.
    let lease = duo.decode.pool.lease_write(&[4]).unwrap();
    let retry = node.receive(RoomId(1)).attempt(1).class(Class::Interactive);
    let retry = within(retry.from(&duo.peer).into(lease).start())
        .await
        .unwrap();
    let again = duo.prefill.node.send(RoomId(1)).attempt(1);
    let again = within(again.class(Class::Interactive).start())
        .await
        .unwrap();
    duo.brake.hold_after(u64::MAX);
    push(&again, 0..TOKENS, duo.prefill.stamped(&[6], 8, 0)).await;
    again.finish(TOKENS, None).unwrap();
    assert_eq!(within(retry.outcome()).await, Outcome::Done);
    verify(&within(retry.released()).await.leases[0], 8, 0);
    assert_eq!(duo.brake.held(), 1);
    assert!(!receiver.poll().released);

    duo.brake.release();
    let back = within(receiver.released()).await;
    assert_eq!(back.proofs, [Proof::GateClosed]);
    drop((back, receiver, sender, retry, again));
    duo.end().await;
}

#[tokio::test]
async fn a_dropped_handle_with_one_of_three_chunks_in_flight_ends_each_side_once() {
    let duo = Duo::with(setup()).await;
    duo.moves(1, 0, &[0], &[0]).await;
    let receiver = duo.receive(2, 0, &[0, 1, 2]).await;
    let sender = duo.send(2, 0).await;
    let mut chunks = Vec::new();
    for i in 0..2u32 {
        let at = u64::from(i);
        let lease = duo.prefill.stamped(&[i], 2, at);
        chunks.push(push(&sender, at * TOKENS..(at + 1) * TOKENS, lease).await);
    }
    for landed in chunks {
        assert!(within(landed.released()).await.is_some());
    }
    hold_after(&duo, PIECE);
    let lease = duo.prefill.stamped(&[2], 2, 2);
    let third = push(&sender, 2 * TOKENS..3 * TOKENS, lease).await;
    is_held(&duo).await;
    drop(sender);
    assert_eq!(code(&within(receiver.outcome()).await), Code::HandleDropped);
    assert!(within(third.released()).await.is_some());
    let back = within(receiver.released()).await;
    assert_eq!(back.leases.len(), 1);
    assert!(within(receiver.released()).await.leases.is_empty());
    let landed = back.landed.bytes;
    let two = 2 * u64::from(LAYERS) * 4 * PIECE;
    assert!((two..two * 3 / 2).contains(&landed), "{landed} of {two}");
    drop(back);
    heal(&duo);
    for node in [&duo.prefill.node, &duo.decode.node] {
        assert_quiet(node).await;
        assert_eq!(node.stats().await.aborted, 1);
    }
    duo.end().await;
}

#[tokio::test]
async fn decode_learns_why_prefill_aborted_whatever_was_in_flight() {
    let duo = Duo::with(setup()).await;
    duo.moves(1, 0, &[0], &[0]).await;
    for (id, held) in [(2, 10), (3, 64), (4, 64 + PIECE), (5, 3 * PIECE)] {
        let receiver = duo.receive(id, 0, &[0, 1]).await;
        let sender = duo.send(id, 0).await;
        hold_after(&duo, held);
        push(&sender, 0..TOKENS, duo.prefill.stamped(&[0], 1, 0)).await;
        is_held(&duo).await;
        sender.abort(format!("because of {held}"));
        let outcome = within(receiver.outcome()).await;
        assert_eq!(code(&outcome), Code::Requested);
        names(&text(&outcome), &[&format!("because of {held}")]);
        drop(within(receiver.released()).await);
        drop(within(sender.released()).await);
        heal(&duo);
        duo.moves(100 + id, 0, &[0], &[0]).await;
    }
    duo.end().await;
}

#[tokio::test]
async fn everything_is_aborted_with_all_connections_full_and_the_next_rooms_complete() {
    let duo = Duo::with(Setup {
        net: Net {
            connections: 2,
            ..Net::default()
        },
        ..setup()
    })
    .await;
    duo.moves(1, 0, &[0], &[0]).await;
    for round in 0..4u64 {
        hold_after(&duo, (round + 1) * PIECE);
        let mut rooms = Vec::new();
        for i in 0..8u32 {
            let id = 100 + round * 10 + u64::from(i);
            let receiver = duo.receive(id, 0, &[2 * i, 2 * i + 1]).await;
            let sender = duo.send(id, 0).await;
            let lease = duo.prefill.stamped(&[2 * i, 2 * i + 1], id, 0);
            push(&sender, 0..2 * TOKENS, lease).await;
            rooms.push((receiver, sender));
        }
        is_held(&duo).await;
        let which = || kvroom::Which::All;
        match round % 2 {
            0 => duo.decode.node.abort_where(which(), "storm").await,
            _ => duo.prefill.node.abort_where(which(), "storm").await,
        };
        for (receiver, sender) in &rooms {
            assert_eq!(code(&within(receiver.outcome()).await), Code::Requested);
            drop(within(receiver.released()).await);
            assert_eq!(code(&within(sender.outcome()).await), Code::Requested);
            drop(within(sender.released()).await);
        }
        // All memory is back although every connection is stuck.
        all_free(&duo.decode.pool).await;
        all_free(&duo.prefill.pool).await;
        heal(&duo);
        duo.moves(1_000 + round, 0, &[0, 1], &[0, 1]).await;
    }
    duo.end().await;
}

#[tokio::test]
async fn a_chunk_that_is_pushed_while_its_abort_is_on_the_wire_comes_back_with_the_reason() {
    let duo = Duo::with(setup()).await;
    let receiver = duo.receive(2, 0, &[0, 1]).await;
    let sender = duo.send(2, 0).await;
    until("it is bound", || {
        receiver.poll().state == StateName::Transferring
    })
    .await;
    // The abort waits in the proxy, on the control connection.
    let control = duo.proxy().link(0).await;
    control.now(Way::Up, Act::Stop);
    receiver.abort("user closed the page");
    drop(within(receiver.released()).await);
    let chunk = push(&sender, 0..TOKENS, duo.prefill.stamped(&[3], 1, 0)).await;
    // Its bytes find the gate closed.
    let node = &duo.decode.node;
    until_counts("its frames were late", node, |s| s.late_frames > 0).await;
    control.heal();
    let outcome = within(sender.outcome()).await;
    assert_eq!(code(&outcome), Code::Requested, "{outcome}");
    names(&text(&outcome), &["user closed the page"]);
    assert_eq!(within(chunk.released()).await.unwrap().pages(), [3]);
    assert!(sender.try_reserve().is_err());
    drop((receiver, sender));
    duo.moves(3, 0, &[0, 1], &[0, 1]).await;
    duo.end().await;
}

fn is_word(part: &[u8], stamp: u64, layer: u32, place: u64, i: usize) -> bool {
    part == &word(stamp, layer, place, i).to_le_bytes()[..part.len()]
}
