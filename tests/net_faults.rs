//! What a network does to two nodes: resets at every byte, half closes, black holes, slow and
//! corrupting links. Rooms end as Done with every byte right, or with the reason; nothing is stuck.
#![allow(clippy::unwrap_used)]

mod common;

use common::proxy::{Act, Link, Plan, Way};
use common::*;
use kvroom::{Code, Deadlines, Net, NodeStats, Outcome, Pool, ReceiveRoom, RoomId, SendRoom};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A lost connection is dialed again at once, and a silent one is found out soon.
fn quick() -> Deadlines {
    Deadlines {
        ping: Duration::from_millis(50),
        liveness: Duration::from_millis(400),
        backoff_first: Duration::from_millis(2),
        backoff_most: Duration::from_millis(20),
        ..Deadlines::default()
    }
}

/// As [`quick`], but silence is never taken for a loss.
fn patient() -> Deadlines {
    Deadlines {
        ping: Duration::from_millis(500),
        liveness: PATIENCE,
        ..quick()
    }
}

fn setup(page_bytes: u64, deadlines: Deadlines) -> Setup {
    Setup {
        over: Over::Tcp,
        proxied: true,
        layout: kv(16, page_bytes),
        deadlines,
        ..Setup::default()
    }
}

/// Connections that carry data: all but the first, which is the control connection.
fn data(duo: &Duo) -> Vec<Link> {
    let mut links = duo.proxy().open();
    links.retain(|link| link.number() > 0);
    links
}

/// A room of two pages that is bound, with its sender's pages pushed and finished.
async fn begin(duo: &Duo, id: u64) -> (ReceiveRoom, SendRoom) {
    let receiver = duo.receive(id, 0, &[0, 1]).await;
    let sender = duo.send(id, 0).await;
    push(&sender, 0..2 * TOKENS, duo.prefill.stamped(&[2, 3], id, 0)).await;
    sender.finish(2 * TOKENS, None).unwrap();
    (receiver, sender)
}

/// Both ends are done with every byte right.
async fn completes(id: u64, receiver: &ReceiveRoom, sender: &SendRoom) {
    assert_eq!(within(receiver.outcome()).await, Outcome::Done);
    verify(&within(receiver.released()).await.leases[0], id, 0);
    assert_eq!(within(sender.outcome()).await, Outcome::Done);
    drop(within(sender.released()).await);
}

#[tokio::test]
async fn a_room_is_done_whatever_byte_of_the_control_connection_it_is_reset_at() {
    for way in [Way::Up, Way::Down] {
        let duo = Duo::with(setup(512, patient())).await;
        let mut bytes = 0;
        for round in 0..40u64 {
            // Wherever the resets fall: in a length, a sum, a claim, an acknowledgement.
            let control = control(&duo).await;
            bytes = (bytes + 13) % 331;
            let at = control.came(way) + bytes;
            control.after(way, at, Act::Reset);
            let (receiver, sender) = begin(&duo, round).await;
            completes(round, &receiver, &sender).await;
        }
        let stats = duo.decode.node.stats().await;
        assert!(stats.sessions_resumed >= 20, "{stats:?}");
        assert_eq!(stats.sessions_opened, 1, "{stats:?}");
        duo.end().await;
    }
}

/// The control connection that is open now: the one that the decode node's last greeting came on.
async fn control(duo: &Duo) -> Link {
    within(duo.peer.wait_up()).await;
    let mut found = None;
    until("there is a control connection", || {
        // A data connection's greeting is all that it has carried, as long as nothing moves, and
        // is shorter than a handshake.
        found = duo.proxy().open().into_iter().find(|link| {
            link.passed(Way::Down) > 0 && link.passed(Way::Up) > 0 && is_control(link)
        });
        found.is_some()
    })
    .await;
    found.unwrap()
}

/// Its first message from the dialer was a `Hello` and not a `DataHello`.
fn is_control(link: &Link) -> bool {
    // Behind length, sum and "KVRM" stands which message it is.
    link.head(Way::Up).get(12) == Some(&0)
}

#[tokio::test]
async fn a_room_is_done_whatever_byte_of_its_data_connection_it_is_reset_at() {
    // Two pages of two layers, a header and a trailer a frame.
    for way in [Way::Up, Way::Down] {
        let duo = Duo::with(setup(4096, patient())).await;
        let most = if way == Way::Down { 16_700 } else { 64 };
        for round in 0..24u64 {
            duo.moves(1_000 + round, 0, &[0, 1], &[0, 1]).await;
            for link in data(&duo) {
                link.after(way, link.came(way) + round * most / 24, Act::Reset);
            }
            let (receiver, sender) = begin(&duo, round).await;
            completes(round, &receiver, &sender).await;
        }
        let stats = duo.decode.node.stats().await;
        assert_eq!(stats.sessions_opened, 1, "{stats:?}");
        let lost = duo.proxy().links().iter().filter(|l| !l.is_open()).count();
        assert!(lost >= 12, "only {lost} connections were lost");
        duo.end().await;
    }
}

#[tokio::test]
async fn a_room_is_done_though_the_connection_is_reset_between_complete_and_its_reading() {
    let duo = Duo::with(setup(4096, patient())).await;
    duo.moves(1, 0, &[0, 1], &[0, 1]).await;
    let control = control(&duo).await;
    let receiver = duo.receive(2, 0, &[0, 1]).await;
    let sender = duo.send(2, 0).await;
    until("it is bound", || {
        receiver.poll().state == kvroom::StateName::Transferring
    })
    .await;
    // What prefill says from now on is lost on the way.
    control.now(Way::Down, Act::Swallow);
    let before = control.came(Way::Down);
    let landed = push(&sender, 0..2 * TOKENS, duo.prefill.stamped(&[2, 3], 2, 0)).await;
    let all_landed = within(landed.released()).await.is_some();
    assert!(all_landed);
    sender.finish(2 * TOKENS, None).unwrap();
    until("Complete is lost", || control.came(Way::Down) > before + 40).await;
    settle(&[&duo.decode.node, &duo.prefill.node]).await;
    assert_eq!(receiver.try_outcome(), None);
    control.now(Way::Up, Act::Reset);
    completes(2, &receiver, &sender).await;
    let stats = duo.decode.node.stats().await;
    assert_eq!((stats.sessions_opened, stats.sessions_resumed), (1, 1));
    duo.end().await;
}

#[tokio::test]
async fn a_half_closed_control_connection_is_replaced_and_rooms_go_on() {
    for way in [Way::Up, Way::Down] {
        let duo = Duo::with(setup(4096, quick())).await;
        let (first, _) = (duo.receive(1, 0, &[4]).await, ());
        control(&duo).await.now(way, Act::HalfClose);
        until("it is replaced", || !duo.proxy().links()[0].is_open()).await;
        let sender = duo.send(1, 0).await;
        push(&sender, 0..TOKENS, duo.prefill.stamped(&[5], 1, 0)).await;
        sender.finish(TOKENS, None).unwrap();
        completes(1, &first, &sender).await;
        drop((first, sender));
        duo.moves(2, 0, &[0, 1], &[0, 1]).await;
        duo.end().await;
    }
}

#[tokio::test]
async fn a_half_closed_data_connection_is_replaced_and_rooms_go_on() {
    for way in [Way::Up, Way::Down] {
        let duo = Duo::with(setup(4096, quick())).await;
        duo.moves(1, 0, &[0, 1], &[0, 1]).await;
        for link in data(&duo) {
            link.after(way, link.came(way) + 30, Act::HalfClose);
        }
        for id in 2..5 {
            let (receiver, sender) = begin(&duo, id).await;
            completes(id, &receiver, &sender).await;
        }
        duo.end().await;
    }
}

/// The room's pages come back to both sides, and whatever they hold is not changed afterwards.
async fn ends_and_leaves_the_pages_alone(duo: &Duo, receiver: ReceiveRoom, sender: SendRoom) {
    let start = Instant::now();
    let outcome = within(receiver.outcome()).await;
    let lost = [Code::PeerLost, Code::SessionLost];
    assert!(lost.contains(&code(&outcome)), "{outcome}");
    let outcome = within(sender.outcome()).await;
    assert!(lost.contains(&code(&outcome)), "{outcome}");
    assert!(start.elapsed() < Duration::from_secs(10));
    let back = within(receiver.released()).await;
    assert!(!back.proofs.is_empty(), "{back:?}");
    let mut lease = back.leases.into_iter().next().unwrap();
    fill(&mut lease, 0xca_a1, 0);
    drop(within(sender.released()).await);
    // Everything is let through now that was held back.
    for link in duo.proxy().links() {
        link.heal();
    }
    settle(&[&duo.decode.node, &duo.prefill.node]).await;
    verify(&lease, 0xca_a1, 0);
}

#[tokio::test]
async fn a_black_hole_in_either_direction_is_found_out_and_no_page_is_written_after_it_came_back() {
    for (way, act) in [
        (Way::Up, Act::Swallow),
        (Way::Down, Act::Swallow),
        (Way::Up, Act::Stop),
        (Way::Down, Act::Stop),
    ] {
        let duo = Duo::with(Setup {
            deadlines: Deadlines {
                resume: Duration::from_millis(300),
                ..quick()
            },
            ..setup(PIECE, Deadlines::default())
        })
        .await;
        duo.moves(1, 0, &[0, 1], &[0, 1]).await;
        let receiver = duo.receive(2, 0, &[4, 5]).await;
        let sender = duo.send(2, 0).await;
        // Half of it is on its way.
        for link in data(&duo) {
            link.after(Way::Down, link.came(Way::Down) + PIECE, Act::Stop);
        }
        push(&sender, 0..2 * TOKENS, duo.prefill.stamped(&[4, 5], 2, 0)).await;
        until("it is half there", || {
            data(&duo).iter().any(|link| link.has_acted(Way::Down))
        })
        .await;
        // The network is gone in one direction, and no new connection comes through.
        duo.proxy().plan(move |_| vec![(way, 0, act)]);
        duo.proxy().all(way, act);
        ends_and_leaves_the_pages_alone(&duo, receiver, sender).await;
        // It heals: new connections pass, and this side makes them by itself.
        duo.proxy().plan(|_| Plan::new());
        duo.proxy().reset();
        assert!(within(duo.peer.wait_up()).await);
        duo.moves(3, 0, &[0, 1], &[4, 5]).await;
        duo.end().await;
    }
}

#[tokio::test]
async fn a_black_hole_that_ends_before_the_session_is_given_up_ends_no_room() {
    for way in [Way::Up, Way::Down] {
        let duo = Duo::with(setup(PIECE, quick())).await;
        duo.moves(1, 0, &[0, 1], &[0, 1]).await;
        let (receiver, sender) = (duo.receive(2, 0, &[0, 1]).await, duo.send(2, 0).await);
        let hole = Arc::new(AtomicBool::new(true));
        let there = Arc::clone(&hole);
        duo.proxy()
            .plan(move |_| match there.load(Ordering::SeqCst) {
                true => vec![(way, 0, Act::Swallow)],
                false => Plan::new(),
            });
        duo.proxy().all(way, Act::Swallow);
        push(&sender, 0..2 * TOKENS, duo.prefill.stamped(&[2, 3], 2, 0)).await;
        sender.finish(2 * TOKENS, None).unwrap();
        until("it is found out", || duo.peer.is_up().is_err()).await;
        assert_eq!(receiver.try_outcome(), None);
        hole.store(false, Ordering::SeqCst);
        duo.proxy().reset();
        completes(2, &receiver, &sender).await;
        drop((receiver, sender));
        duo.end().await;
    }
}

#[tokio::test]
async fn data_connections_that_go_silent_are_replaced_and_later_rooms_are_served() {
    /// Many times the silence after which they are found out, and less than any other clock.
    const SOON: Duration = Duration::from_secs(5);
    for way in [Way::Up, Way::Down] {
        let duo = Duo::with(setup(PIECE, quick())).await;
        duo.moves(1, 0, &[0, 1], &[0, 1]).await;
        let silent = data(&duo);
        assert!(!silent.is_empty());
        // Nothing is closed, reset or refused: the bytes of one direction just do not come.
        for link in &silent {
            link.now(way, Act::Swallow);
        }
        let (receiver, sender) = begin(&duo, 2).await;
        match within(receiver.outcome()).await {
            Outcome::Done => completes(2, &receiver, &sender).await,
            Outcome::Aborted(why) => {
                assert_eq!(why.code, Code::Stalled, "{why}");
                within(sender.outcome()).await;
                drop(within(receiver.released()).await);
                drop(within(sender.released()).await);
            }
        }
        for id in 3..6 {
            let moves = duo.moves(id, 0, &[0, 1], &[4, 5]);
            let served = tokio::time::timeout(SOON, moves).await;
            assert!(served.is_ok(), "room {id} is not served in {SOON:?}");
        }
        assert!(
            silent.iter().any(|link| !link.is_open()),
            "none is replaced"
        );
        let stats = duo.decode.node.stats().await;
        assert_eq!(stats.sessions_opened, 1, "{stats:?}");
        drop((receiver, sender));
        duo.end().await;
    }
}

#[tokio::test]
async fn a_changed_bit_on_the_control_connection_costs_the_connection_and_no_room() {
    for way in [Way::Up, Way::Down] {
        let duo = Duo::with(setup(512, patient())).await;
        let mut flips = 0;
        for round in 0..24u64 {
            let control = control(&duo).await;
            let at = control.came(way) + round * 7;
            control.after(way, at, Act::Flip(1 << (round % 8)));
            let (receiver, sender) = begin(&duo, round).await;
            completes(round, &receiver, &sender).await;
            flips += control.flipped(way);
        }
        assert!(flips >= 12, "{flips} bits were changed");
        let stats = duo.decode.node.stats().await;
        assert_eq!(stats.sessions_opened, 1, "{stats:?}");
        assert!(stats.sessions_resumed >= 6, "{stats:?}");
        duo.end().await;
    }
}

#[tokio::test]
async fn a_length_that_grew_on_its_way_costs_the_connection_and_holds_no_room_up() {
    // Of the four bytes of a length; the last ones make it a megabyte, and sixteen, too long.
    for (byte, bits) in [(0, 8), (1, 1), (2, 0x10), (3, 1), (3, 0x80)] {
        for way in [Way::Up, Way::Down] {
            let duo = Duo::with(setup(512, quick())).await;
            let control = control(&duo).await;
            settle(&[&duo.decode.node, &duo.prefill.node]).await;
            // Frames are written whole, so that the next one begins here.
            control.after(way, control.came(way) + byte, Act::Flip(bits));
            let start = Instant::now();
            let (receiver, sender) = begin(&duo, 1).await;
            completes(1, &receiver, &sender).await;
            let took = start.elapsed();
            assert!(took < Duration::from_secs(5), "{took:?}");
            assert_eq!(control.flipped(way), 1);
            assert_eq!(duo.decode.node.stats().await.sessions_opened, 1);
            drop((receiver, sender));
            duo.end().await;
        }
    }
}

#[tokio::test]
async fn a_changed_bit_in_a_handshake_is_never_accepted_and_the_next_try_is() {
    // A data connection that is made in the very moment of a plan has its bit changed, too, perhaps in a
    // payload: with sums that is found.
    let duo = Duo::with(Setup {
        net: Net {
            payload_crc: true,
            ..Net::default()
        },
        ..setup(512, patient())
    })
    .await;
    for way in [Way::Up, Way::Down] {
        for at in (0..400u64).step_by(23) {
            // They come up by and by, and one that came next would be changed in its payload.
            until("both data connections are there", || {
                let carry = |link: &Link| link.came(Way::Up) > 0 && !is_control(link);
                duo.proxy().open().iter().filter(|link| carry(link)).count() == 2
            })
            .await;
            // Every connection but the first one after this passes.
            let mut first = true;
            duo.proxy().plan(move |_| match std::mem::take(&mut first) {
                true => vec![(way, at, Act::Flip(4))],
                false => Plan::new(),
            });
            control(&duo).await.now(Way::Up, Act::Reset);
            duo.moves(at, way as u32, &[0, 1], &[0, 1]).await;
        }
    }
    let stats = duo.decode.node.stats().await;
    assert_eq!(stats.sessions_opened, 1, "{stats:?}");
    duo.end().await;
}

#[tokio::test]
async fn a_changed_bit_in_a_data_frames_frame_costs_the_connection_and_every_byte_is_right() {
    let duo = Duo::with(setup(4096, patient())).await;
    // Headers and acknowledgements have 64 bytes; the trailer stands behind the payload.
    let places = [(Way::Up, 5), (Way::Up, 40), (Way::Down, 0), (Way::Down, 63)];
    for (id, (way, at)) in places.into_iter().enumerate() {
        let id = id as u64;
        duo.moves(100 + id, 0, &[0, 1], &[0, 1]).await;
        for link in data(&duo) {
            link.after(way, link.came(way) + at, Act::Flip(2));
        }
        let (receiver, sender) = begin(&duo, id).await;
        completes(id, &receiver, &sender).await;
        let flips: u64 = duo.proxy().links().iter().map(|l| l.flipped(way)).sum();
        assert!(flips > 0, "{way:?} {at}");
    }
    assert_eq!(duo.decode.node.stats().await.sessions_opened, 1);
    duo.end().await;
}

/// Changes one bit in the middle of the payload of the next data frame.
fn change_a_payload(duo: &Duo) {
    for link in data(duo) {
        link.after(Way::Down, link.came(Way::Down) + 64 + 5_000, Act::Flip(1));
    }
}

#[tokio::test]
async fn a_changed_bit_in_a_payload_is_a_checksum_mismatch_and_the_pages_are_not_handed_over_as_good()
 {
    let duo = Duo::with(setup(4096, patient())).await;
    duo.moves(1, 0, &[0, 1], &[0, 1]).await;
    change_a_payload(&duo);
    let lease = duo.decode.pool.lease_write(&[0, 1]).unwrap();
    let room = duo.decode.node.receive(RoomId(2)).checksum(true);
    let receiver = within(room.from(&duo.peer).into(lease).start())
        .await
        .unwrap();
    let sender = duo.send(2, 0).await;
    push(&sender, 0..2 * TOKENS, duo.prefill.stamped(&[2, 3], 2, 0)).await;
    sender.finish(2 * TOKENS, None).unwrap();
    let outcome = within(receiver.outcome()).await;
    assert_eq!(code(&outcome), Code::ChecksumMismatch, "{outcome}");
    let outcome = within(sender.outcome()).await;
    let codes = [Code::ChecksumMismatch, Code::Rejected];
    assert!(codes.contains(&code(&outcome)), "{outcome}");
    let back = within(receiver.released()).await;
    assert_eq!(code(&back.outcome), Code::ChecksumMismatch);
    // The change really was made, and is there.
    let wrong = (0..LAYERS).any(|layer| {
        (0..2).any(|page| !holds(back.leases[0].page(layer, page), 2, layer, page as u64))
    });
    assert!(wrong, "nothing was changed");
    drop((back, receiver, sender));
    duo.moves(3, 0, &[0, 1], &[0, 1]).await;
    duo.end().await;
}

#[tokio::test]
async fn with_payload_sums_a_changed_bit_is_found_and_sent_again() {
    let duo = Duo::with(Setup {
        net: Net {
            payload_crc: true,
            ..Net::default()
        },
        ..setup(4096, patient())
    })
    .await;
    duo.moves(1, 0, &[0, 1], &[0, 1]).await;
    change_a_payload(&duo);
    let (receiver, sender) = begin(&duo, 2).await;
    completes(2, &receiver, &sender).await;
    let flips: u64 = duo
        .proxy()
        .links()
        .iter()
        .map(|l| l.flipped(Way::Down))
        .sum();
    assert!(flips > 0);
    duo.end().await;
}

#[tokio::test]
async fn done_waits_for_the_connection_that_is_behind_and_for_the_aux_row() {
    let deadlines = patient();
    let net = Net {
        connections: 3,
        ..Net::default()
    };
    let duo = Duo::with(Setup {
        net,
        // Each has a connection of its own, and jobs take turns.
        lanes: 3,
        layout: kv(16, PIECE),
        ..setup(PIECE, deadlines)
    })
    .await;
    let (from, to) = (Pool::owned(aux(4)).unwrap(), Pool::owned(aux(4)).unwrap());
    duo.prefill.node.add_pool(from.clone()).await.unwrap();
    duo.decode.node.add_pool(to.clone()).await.unwrap();
    let pages: Vec<u32> = (0..12).collect();
    // They come up by and by: until more than one carries large pieces.
    let mut busy: Vec<Link> = Vec::new();
    for attempt in 0..30 {
        duo.moves(1, attempt, &pages, &pages).await;
        busy = data(&duo);
        busy.retain(|link| link.came(Way::Down) > 1_000);
        if busy.len() == 3 {
            break;
        }
    }
    // One of them is held as soon as it has begun; the others go on.
    let held = busy.pop().unwrap();
    held.after(Way::Down, held.came(Way::Down) + 1_000, Act::Stop);
    let before: Vec<u64> = busy.iter().map(|link| link.came(Way::Down)).collect();

    let lease = duo.decode.pool.lease_write(&pages).unwrap();
    let room = duo
        .decode
        .node
        .receive(RoomId(2))
        .from(&duo.peer)
        .into(lease);
    let room = room.aux(to.lease_write(&[1]).unwrap());
    let receiver = within(room.start()).await.unwrap();
    let sender = duo.send(2, 0).await;
    for first in [0, 4, 8] {
        let lease = duo.prefill.stamped(&pages[first as usize..][..4], 2, first);
        push(&sender, first * TOKENS..(first + 4) * TOKENS, lease).await;
    }
    let mut row = from.lease_write(&[3]).unwrap();
    fill(&mut row, 5, 0);
    sender.finish(12 * TOKENS, Some(row.into_read())).unwrap();
    until("it is held", || held.has_acted(Way::Down)).await;
    assert!(!busy.is_empty(), "no other connection carries large pieces");
    until("the others are through", || {
        let mut others = busy.iter().zip(&before);
        others.all(|(link, before)| link.passed(Way::Down) > before + 4 * PIECE)
    })
    .await;
    settle(&[&duo.decode.node, &duo.prefill.node]).await;
    assert_eq!(receiver.try_outcome(), None);
    let mut seen = vec![0; 512];
    to.observe(0, 1, &mut seen).unwrap();
    assert!(
        seen.iter().all(|b| *b == 0),
        "the aux row is visible before the data"
    );
    held.heal();
    assert_eq!(within(receiver.outcome()).await, Outcome::Done);
    let back = within(receiver.released()).await;
    verify(&back.leases[0], 2, 0);
    verify(&back.aux.unwrap(), 5, 0);
    assert_eq!(within(sender.outcome()).await, Outcome::Done);
    drop((back.leases, receiver, sender));
    duo.end().await;
}

#[tokio::test]
async fn a_slow_and_late_network_is_only_slow() {
    let duo = Duo::with(setup(PIECE, patient())).await;
    for link in duo.proxy().open() {
        link.delay(Way::Up, Duration::from_millis(3));
        link.delay(Way::Down, Duration::from_millis(3));
        link.throttle(Way::Down, 16 << 20);
    }
    for id in 0..3 {
        let (receiver, sender) = begin(&duo, id).await;
        completes(id, &receiver, &sender).await;
    }
    duo.end().await;
}

#[tokio::test]
async fn a_peer_that_reads_no_data_holds_nobody_else_up() {
    let duo = Duo::with(setup(PIECE, patient())).await;
    let other = Side::start(&duo.hub, "d2", &setup(PIECE, patient()), &duo.brake).await;
    let peer = within(other.node.connect(&duo.prefill.address))
        .await
        .unwrap();
    let pages: Vec<u32> = (0..8).collect();
    duo.moves(1, 0, &pages, &pages).await;
    for link in data(&duo) {
        link.now(Way::Down, Act::Stop);
    }
    let stuck = duo.receive(2, 0, &pages).await;
    let s2 = duo.send(2, 0).await;
    push(&s2, 0..8 * TOKENS, duo.prefill.stamped(&pages, 2, 0)).await;
    s2.finish(8 * TOKENS, None).unwrap();
    let more: Vec<u32> = (8..16).collect();
    for id in 10..20 {
        let lease = other.pool.lease_write(&more).unwrap();
        let room = other.node.receive(RoomId(id)).from(&peer).into(lease);
        let receiver = within(room.start()).await.unwrap();
        let sender = duo.send(id, 0).await;
        push(&sender, 0..8 * TOKENS, duo.prefill.stamped(&more, id, 0)).await;
        sender.finish(8 * TOKENS, None).unwrap();
        completes(id, &receiver, &sender).await;
    }
    assert_eq!(stuck.try_outcome(), None);
    for link in duo.proxy().open() {
        link.heal();
    }
    completes(2, &stuck, &s2).await;
    drop((stuck, s2));
    other.quiet().await;
    duo.end().await;
}

#[tokio::test]
async fn a_healthy_room_completes_after_a_storm_of_resets_and_aborts() {
    let duo = Duo::with(setup(PIECE, patient())).await;
    let mut ends = (0, 0);
    for round in 0..30u64 {
        let (receiver, sender) = begin(&duo, round).await;
        match round % 3 {
            0 => duo.proxy().reset(),
            1 => {
                receiver.abort("storm");
                duo.proxy().reset();
            }
            _ => {
                duo.proxy().reset();
                sender.abort("storm");
            }
        }
        match within(receiver.outcome()).await {
            Outcome::Done => ends.0 += 1,
            Outcome::Aborted(why) => {
                assert_eq!(why.code, Code::Requested, "{why}");
                ends.1 += 1;
            }
        }
        within(sender.outcome()).await;
        drop(within(receiver.released()).await);
        drop(within(sender.released()).await);
    }
    assert!(ends.0 >= 10 && ends.1 > 0, "{ends:?}");
    duo.moves(1_000, 0, &[0, 1], &[2, 3]).await;
    let nothing = |s: &NodeStats| s.rooms_draining == 0 && s.claims == 0;
    until_stats("nothing drains", &duo.prefill.node, nothing).await;
    duo.end().await;
}
