//! Every byte arrives where it belongs, or the room says that it did not.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use kvroom::actors::copy::plant::{Brake, Plant};
use kvroom::{
    Chunk, Code, FinishProblem, LocalHub, Node, Outcome, Peer, Pool, ReadLease, ReceiveRoom,
    RoomId, SendRoom, StateName, WriteLease,
};

over_copies!(done_waits_for_the_data_of_the_slower_lane,);

over_each!(
    every_destination_page_equals_its_source_over_a_long_run_with_aborts,
    a_request_of_another_length_than_the_claim_ends_both_sides,
    a_hole_in_what_was_pushed_ends_both_sides_and_is_named,
    a_room_without_pages_moves_its_aux_row_and_is_done,
    a_room_without_anything_is_done,
    an_aux_row_that_is_wanted_and_not_given_ends_both_sides,
    a_prefix_that_decode_has_is_not_sent,
    chunks_may_come_layer_by_layer_and_twice,
    a_chunk_repeated_with_other_pages_is_an_error,
    two_pipeline_stages_fill_one_room_by_layers,
    one_stage_that_fails_ends_the_room_for_the_other_one_too,
);

/// A small seeded generator (splitmix64), so that a failure can be run again.
struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }
}

/// A room of the long run, on both sides.
struct Both {
    id: u64,
    skip: u64,
    receiver: ReceiveRoom,
    sender: SendRoom,
}

impl Both {
    /// Waits for its end; true if it was done, and then every byte is right.
    async fn ends(self) -> bool {
        let outcome = within(self.receiver.outcome()).await;
        let back = within(self.receiver.released()).await;
        if outcome == Outcome::Done {
            verify(&back.leases[0], self.id, self.skip / TOKENS);
        }
        within(self.sender.outcome()).await;
        drop(within(self.sender.released()).await);
        outcome == Outcome::Done
    }
}

/// Free pages of a pool, leased; none if there are not as many.
fn lease_some(pool: &Pool, n: usize, rng: &mut Rng) -> Option<WriteLease> {
    let first = rng.below(64) as u32;
    let order = (0..64).map(|i| (first + 7 * i) % 64);
    let free = order.filter(|page| pool.lease_write(&[*page]).is_ok());
    let pages: Vec<u32> = free.take(n).collect();
    (pages.len() == n).then(|| pool.lease_write(&pages).unwrap())
}

async fn every_destination_page_equals_its_source_over_a_long_run_with_aborts(over: Over) {
    for (lanes, page_bytes) in [(1, 4096), (3, 1000)] {
        let duo = Duo::with(Setup {
            layout: kv(64, page_bytes),
            lanes,
            ..Setup::over(over)
        })
        .await;
        let mut rng = Rng(42 + lanes as u64);
        let mut done = 0;
        let mut live: Vec<Both> = Vec::new();
        for id in 0..300u64 {
            let n = 1 + rng.below(8) as usize;
            let lease = loop {
                if live.len() < 6
                    && let Some(lease) = lease_some(&duo.decode.pool, n, &mut rng)
                {
                    break lease;
                }
                let at = rng.below(live.len() as u64) as usize;
                done += u32::from(live.swap_remove(at).ends().await);
            };
            let skip = rng.below(3) * TOKENS;
            let total = skip + n as u64 * TOKENS - rng.below(TOKENS);
            let room = duo.decode.node.receive(RoomId(id)).from(&duo.peer);
            let room = room.into(lease).skip(skip).total(total);
            let receiver = room.checksum(rng.below(2) == 0).start().await.unwrap();
            let sender = duo.send(id, 0).await;
            // Chunks come in any order, and sometimes the end comes before them.
            let mut places: Vec<u64> = (skip / TOKENS..total.div_ceil(TOKENS)).collect();
            let mut whole = true;
            while whole && !places.is_empty() {
                let place = places.swap_remove(rng.below(places.len() as u64) as usize);
                let mut lease = loop {
                    if let Some(lease) = lease_some(&duo.prefill.pool, 1, &mut rng) {
                        break lease;
                    }
                    tokio::task::yield_now().await;
                };
                fill(&mut lease, id, place);
                let tokens = place * TOKENS..total.min((place + 1) * TOKENS);
                let Ok(slot) = within(sender.reserve()).await else {
                    break;
                };
                // A room that is over hands the chunk back.
                let _ = slot.push(Chunk::tokens(tokens).pages(lease.into_read()));
                whole = rng.below(16) > 0;
            }
            match whole {
                true => drop(sender.finish(total, None)),
                false if rng.below(2) == 0 => receiver.abort("storm"),
                false => sender.abort("storm"),
            }
            if rng.below(10) == 0 {
                receiver.abort("storm");
            }
            live.push(Both {
                id,
                skip,
                receiver,
                sender,
            });
        }
        for both in live {
            done += u32::from(both.ends().await);
        }
        assert!((100..300).contains(&done), "{done} rooms were done");
        duo.end().await;
    }
}

#[tokio::test]
async fn a_destination_list_that_is_not_as_long_as_its_tokens_is_refused_with_its_lease() {
    let duo = Duo::new().await;
    for (pages, total) in [(&[0u32, 1][..], 16), (&[0][..], 17), (&[0, 1, 2][..], 64)] {
        let lease = duo.decode.pool.lease_write(pages).unwrap();
        let room = duo.decode.node.receive(RoomId(1)).from(&duo.peer);
        let error = room.into(lease).total(total).start().await.unwrap_err();
        names(
            &error,
            &[
                &format!("0..{total}"),
                &format!("its lease has {}", pages.len()),
                "\"kv\"",
            ],
        );
        assert_eq!(error.leases[0].pages(), pages);
    }
    duo.end().await;
}

async fn a_request_of_another_length_than_the_claim_ends_both_sides(over: Over) {
    let duo = Duo::over(over).await;
    for (id, said) in [(1u64, 1u64), (2, 3)] {
        let receiver = duo.receive(id, 0, &[0, 1]).await;
        let sender = duo.send(id, 0).await;
        let pages: Vec<u32> = (0..said as u32).collect();
        let lease = duo.prefill.stamped(&pages, 1, 0);
        let chunk = push(&sender, 0..said * TOKENS, lease).await;
        // Refused already if the chunk was too long.
        let _ = sender.finish(said * TOKENS, None);
        let (r, s) = (
            within(receiver.outcome()).await,
            within(sender.outcome()).await,
        );
        assert_eq!(
            (code(&r), code(&s)),
            (Code::LengthMismatch, Code::LengthMismatch)
        );
        names(&text(&r), &["32", &(said * TOKENS).to_string()]);
        names(&text(&s), &["32", &(said * TOKENS).to_string()]);
        assert_eq!(within(receiver.released()).await.leases.len(), 1);
        assert!(within(chunk.released()).await.is_some());
        drop(sender);
    }
    duo.end().await;
}

async fn a_hole_in_what_was_pushed_ends_both_sides_and_is_named(over: Over) {
    let duo = Duo::over(over).await;
    let receiver = duo.receive(1, 0, &[0, 1, 2]).await;
    let sender = duo.send(1, 0).await;
    push(&sender, 0..TOKENS, duo.prefill.stamped(&[0], 1, 0)).await;
    let last = duo.prefill.stamped(&[2], 1, 2);
    push(&sender, 2 * TOKENS..3 * TOKENS, last).await;
    sender.finish(3 * TOKENS, None).unwrap();
    let outcome = within(receiver.outcome()).await;
    assert_eq!(code(&outcome), Code::CoverageIncomplete);
    names(&text(&outcome), &["never pushed", "page 1"]);
    assert_eq!(
        code(&within(sender.outcome()).await),
        Code::CoverageIncomplete
    );
    drop((receiver, sender));
    duo.end().await;
}

#[tokio::test]
async fn a_byte_that_changed_on_its_way_is_found_by_the_checksum() {
    let duo = Duo::with(Setup {
        plant: Some(Plant::LateWrite),
        ..Setup::default()
    })
    .await;
    let room = duo.decode.node.receive(RoomId(1)).from(&duo.peer);
    let lease = duo.decode.pool.lease_write(&[0, 1]).unwrap();
    let receiver = room.into(lease).checksum(true).start().await.unwrap();
    let sender = duo.send(1, 0).await;
    let first = push(&sender, 0..TOKENS, duo.prefill.stamped(&[0], 1, 0)).await;
    assert!(within(first.released()).await.is_some());
    let mut cell = vec![0; 4096];
    until("the wrong write has come", || {
        duo.decode.pool.observe(0, 0, &mut cell).unwrap();
        cell.iter().all(|byte| *byte == 0xab)
    })
    .await;
    push(&sender, TOKENS..2 * TOKENS, duo.prefill.stamped(&[1], 1, 1)).await;
    sender.finish(2 * TOKENS, None).unwrap();
    let (r, s) = (
        within(receiver.outcome()).await,
        within(sender.outcome()).await,
    );
    assert_eq!(
        (code(&r), code(&s)),
        (Code::ChecksumMismatch, Code::ChecksumMismatch)
    );
    let back = within(receiver.released()).await;
    assert_eq!(back.outcome, r);
    assert_eq!(back.leases.len(), 1);
    drop((back, sender));
    duo.end().await;
}

async fn done_waits_for_the_data_of_the_slower_lane(over: Over) {
    let duo = Duo::with(Setup {
        layout: kv(16, PIECE),
        lanes: 2,
        ..Setup::over(over)
    })
    .await;
    let receiver = duo.receive(1, 0, &[0, 1]).await;
    let sender = duo.send(1, 0).await;
    duo.brake.hold_after(0);
    let slow = push(&sender, 0..TOKENS, duo.prefill.stamped(&[0], 1, 0)).await;
    until("one lane is held", || duo.brake.held() == 1).await;
    duo.brake.hold_after(u64::MAX);
    let lease = duo.prefill.stamped(&[1], 1, 1);
    let fast = push(&sender, TOKENS..2 * TOKENS, lease).await;
    sender.finish(2 * TOKENS, None).unwrap();
    assert!(within(fast.released()).await.is_some());
    settle(&[&duo.prefill.node, &duo.decode.node]).await;
    assert_eq!(receiver.try_outcome(), None);
    assert_eq!(receiver.poll().state, StateName::Transferring);
    assert!(slow.try_released().is_none());
    duo.brake.release();
    assert_eq!(within(receiver.outcome()).await, Outcome::Done);
    verify(&within(receiver.released()).await.leases[0], 1, 0);
    drop((sender, slow));
    duo.end().await;
}

/// Two nodes with a pool of pages and one of aux rows each.
struct WithAux {
    duo: Duo,
    from: Pool,
    to: Pool,
}

impl WithAux {
    async fn new(setup: Setup) -> WithAux {
        let over = setup.over;
        let duo = Duo::with(setup).await;
        let (from, to) = (over.pool(aux(8)), over.pool(aux(8)));
        duo.prefill.node.add_pool(from.clone()).await.unwrap();
        duo.decode.node.add_pool(to.clone()).await.unwrap();
        WithAux { duo, from, to }
    }

    fn row(&self, row: u32, stamp: u64) -> ReadLease {
        let mut lease = self.from.lease_write(&[row]).unwrap();
        fill(&mut lease, stamp, 0);
        lease.into_read()
    }

    async fn end(self) {
        all_free(&self.from).await;
        all_free(&self.to).await;
        self.duo.end().await;
    }
}

#[tokio::test]
async fn the_aux_row_is_written_after_all_pages_and_done_waits_for_it() {
    let both = WithAux::new(Setup {
        layout: kv(16, PIECE),
        lanes: 2,
        ..Setup::default()
    })
    .await;
    let duo = &both.duo;
    let room = duo.decode.node.receive(RoomId(1)).from(&duo.peer);
    let pages = duo.decode.pool.lease_write(&[0, 1]).unwrap();
    let room = room.into(pages).aux(both.to.lease_write(&[5]).unwrap());
    let receiver = room.start().await.unwrap();
    let sender = duo.send(1, 0).await;
    duo.brake.hold_after(2 * u64::from(LAYERS));
    let lease = duo.prefill.stamped(&[0, 1], 1, 0);
    let chunk = push(&sender, 0..2 * TOKENS, lease).await;
    sender.finish(2 * TOKENS, Some(both.row(3, 8))).unwrap();
    assert!(within(chunk.released()).await.is_some());
    until("the row is under way", || duo.brake.held() == 1).await;
    settle(&[&duo.prefill.node, &duo.decode.node]).await;
    assert_eq!(receiver.try_outcome(), None);
    // A visible row means visible data; the other way round is where it stands now.
    let mut row = vec![1; 512];
    both.to.observe(0, 5, &mut row).unwrap();
    assert!(row.iter().all(|byte| *byte == 0));
    duo.brake.release();
    assert_eq!(within(receiver.outcome()).await, Outcome::Done);
    let back = within(receiver.released()).await;
    verify(&back.leases[0], 1, 0);
    verify(back.aux.as_ref().unwrap(), 8, 0);
    assert_eq!(within(sender.outcome()).await, Outcome::Done);
    assert_eq!(within(sender.released()).await.aux.unwrap().pages(), [3]);
    drop(back);
    both.end().await;
}

async fn a_room_without_pages_moves_its_aux_row_and_is_done(over: Over) {
    let both = WithAux::new(Setup::over(over)).await;
    let duo = &both.duo;
    for (id, empty_lease) in [(1, false), (2, true)] {
        let mut room = duo.decode.node.receive(RoomId(id)).from(&duo.peer);
        if empty_lease {
            room = room.into(duo.decode.pool.lease_write(&[]).unwrap());
        }
        let row = both.to.lease_write(&[2]).unwrap();
        // The whole request is in decode's cache already.
        let room = room.skip(4 * TOKENS).total(4 * TOKENS).aux(row);
        let receiver = room.start().await.unwrap();
        let sender = duo.send(id, 0).await;
        sender.finish(4 * TOKENS, Some(both.row(1, id))).unwrap();
        assert_eq!(within(receiver.outcome()).await, Outcome::Done);
        assert_eq!(within(sender.outcome()).await, Outcome::Done);
        let back = within(receiver.released()).await;
        verify(back.aux.as_ref().unwrap(), id, 0);
        assert_eq!(back.leases.len(), usize::from(empty_lease));
    }
    both.end().await;
}

async fn a_room_without_anything_is_done(over: Over) {
    let duo = Duo::over(over).await;
    let room = duo.decode.node.receive(RoomId(1)).from(&duo.peer);
    let receiver = room.start().await.unwrap();
    let sender = duo.send(1, 0).await;
    sender.finish(0, None).unwrap();
    assert_eq!(within(receiver.outcome()).await, Outcome::Done);
    assert_eq!(within(sender.outcome()).await, Outcome::Done);
    drop((receiver, sender));
    duo.end().await;
}

async fn an_aux_row_that_is_wanted_and_not_given_ends_both_sides(over: Over) {
    let both = WithAux::new(Setup::over(over)).await;
    let duo = &both.duo;
    let room = duo.decode.node.receive(RoomId(1)).from(&duo.peer);
    let receiver = room.aux(both.to.lease_write(&[0]).unwrap());
    let receiver = receiver.start().await.unwrap();
    let sender = duo.send(1, 0).await;
    sender.finish(0, None).unwrap();
    let outcome = within(receiver.outcome()).await;
    names(&text(&outcome), &["aux row", "finish gave none"]);
    assert_eq!(code(&outcome), code(&within(sender.outcome()).await));
    assert!(within(receiver.released()).await.aux.is_some());
    drop(sender);
    both.end().await;
}

#[tokio::test]
async fn an_aux_lease_that_is_no_row_is_handed_back_and_the_room_goes_on() {
    let both = WithAux::new(Setup::default()).await;
    let duo = &both.duo;
    let sender = duo.send(1, 0).await;
    {
        let two = both.from.lease_read(&[0, 1]).unwrap();
        let error = sender.finish(0, Some(two)).unwrap_err();
        assert!(matches!(error.why, FinishProblem::BadAux(_)));
        names(&error, &["one page of an aux pool", "2 of pool \"aux\""]);
        assert_eq!(error.aux.unwrap().pages(), [0, 1]);
    }
    {
        let page = duo.prefill.pool.lease_read(&[4]).unwrap();
        let error = sender.finish(0, Some(page)).unwrap_err();
        names(&error, &["aux pool", "\"kv\""]);
        let slot = within(sender.reserve()).await.unwrap();
        let row = Chunk::tokens(0..16).pages(both.row(0, 1));
        names(&slot.push(row).unwrap_err(), &["\"aux\"", "finish()"]);
    }
    sender.finish(TOKENS, None).unwrap();
    let error = sender.finish(2 * TOKENS, None).unwrap_err();
    assert_eq!(error.why, FinishProblem::Twice(TOKENS));
    names(&error, &["finish(16)", "before"]);
    {
        let room = duo.decode.node.receive(RoomId(2)).from(&duo.peer);
        let room = room.aux(both.to.lease_write(&[0, 1]).unwrap());
        let error = room.start().await.unwrap_err();
        names(&error, &["one page of an aux pool"]);
        assert_eq!(error.aux.unwrap().pages(), [0, 1]);
    }
    {
        let room = duo.decode.node.receive(RoomId(2)).from(&duo.peer);
        let room = room.into(both.to.lease_write(&[0]).unwrap());
        names(&room.start().await.unwrap_err(), &["\"aux\"", "aux()"]);
    }
    drop(sender);
    both.end().await;
}

#[tokio::test]
async fn pages_are_not_read_before_they_are_pushed() {
    let duo = Duo::new().await;
    let mut pages: WriteLease = duo.prefill.pool.lease_write(&[0, 1]).unwrap();
    let receiver = duo.receive(1, 0, &[0, 1]).await;
    let sender = duo.send(1, 0).await;
    until("it is bound", || {
        receiver.poll().state == StateName::Transferring
    })
    .await;
    // The engine computes; nobody can get the right to read.
    fill(&mut pages, 1, 0);
    assert!(duo.prefill.pool.lease_read(&[0]).is_err());
    settle(&[&duo.prefill.node, &duo.decode.node]).await;
    assert_eq!(duo.prefill.node.stats().await.bytes_copied, 0);
    fill(&mut pages, 2, 0);
    push(&sender, 0..2 * TOKENS, pages.into_read()).await;
    sender.finish(2 * TOKENS, None).unwrap();
    assert_eq!(within(receiver.outcome()).await, Outcome::Done);
    verify(&within(receiver.released()).await.leases[0], 2, 0);
    drop(sender);
    duo.end().await;
}

async fn a_prefix_that_decode_has_is_not_sent(over: Over) {
    let duo = Duo::over(over).await;
    let lease = duo.decode.pool.lease_write(&[5, 6]).unwrap();
    let room = duo.decode.node.receive(RoomId(1)).from(&duo.peer);
    let room = room.into(lease).skip(2 * TOKENS);
    let receiver = room.start().await.unwrap();
    let sender = duo.send(1, 0).await;
    let lease = duo.prefill.stamped(&[0, 1, 2, 3], 1, 0);
    push(&sender, 0..4 * TOKENS, lease).await;
    sender.finish(4 * TOKENS, None).unwrap();
    assert_eq!(within(receiver.outcome()).await, Outcome::Done);
    let back = within(receiver.released()).await;
    verify(&back.leases[0], 1, 2);
    assert_eq!(back.landed.bytes, 2 * u64::from(LAYERS) * 4096);
    drop((back, sender));
    duo.end().await;
}

#[tokio::test]
async fn a_prefix_off_the_page_or_beyond_the_end_is_refused_with_its_lease() {
    let duo = Duo::new().await;
    let error = async |skip: u64, total: Option<u64>| {
        let lease = duo.decode.pool.lease_write(&[0]).unwrap();
        let room = duo.decode.node.receive(RoomId(1)).from(&duo.peer);
        let mut room = room.into(lease).skip(skip);
        if let Some(total) = total {
            room = room.total(total);
        }
        let error = room.start().await.unwrap_err();
        assert_eq!(error.leases[0].pages(), [0]);
        error.to_string()
    };
    names(&error(8, None).await, &["skip(8)", "16 tokens a page"]);
    names(&error(32, Some(16)).await, &["skip(32)", "total(16)"]);
    names(
        &error(u64::MAX, None).await,
        &["skip(18446744073709551615)"],
    );
    duo.end().await;
}

async fn chunks_may_come_layer_by_layer_and_twice(over: Over) {
    let duo = Duo::over(over).await;
    let receiver = duo.receive(1, 0, &[0, 1]).await;
    let sender = duo.send(1, 0).await;
    for layer in [1, 0, 0] {
        let lease = match layer {
            // The same pages for both layers: read leases share them.
            1 => duo.prefill.stamped(&[2, 3], 1, 0),
            _ => duo.prefill.pool.lease_read(&[2, 3]).unwrap(),
        };
        let slot = within(sender.reserve()).await.unwrap();
        let chunk = Chunk::tokens(0..2 * TOKENS).layers(layer..layer + 1);
        let chunk = slot.push(chunk.pages(lease)).unwrap();
        assert!(within(chunk.released()).await.is_some());
    }
    sender.finish(2 * TOKENS, None).unwrap();
    assert_eq!(within(receiver.outcome()).await, Outcome::Done);
    verify(&within(receiver.released()).await.leases[0], 1, 0);
    let stats = duo.prefill.node.stats().await;
    assert_eq!(stats.repeated_chunks, 1);
    assert_eq!(stats.bytes_copied, 2 * u64::from(LAYERS) * 4096);
    drop(sender);
    duo.end().await;
}

async fn a_chunk_repeated_with_other_pages_is_an_error(over: Over) {
    let duo = Duo::over(over).await;
    let receiver = duo.receive(1, 0, &[0]).await;
    let sender = duo.send(1, 0).await;
    let first = push(&sender, 0..TOKENS, duo.prefill.stamped(&[0], 1, 0)).await;
    assert!(within(first.released()).await.is_some());
    let again = push(&sender, 0..TOKENS, duo.prefill.stamped(&[1], 1, 0)).await;
    let outcome = within(sender.outcome()).await;
    assert_eq!(code(&outcome), Code::BadChunk);
    names(&text(&outcome), &["chunk 1", "0..16", "other pages"]);
    assert!(within(again.released()).await.is_some());
    names(&text(&within(receiver.outcome()).await), &["other pages"]);
    drop((sender, receiver));
    duo.end().await;
}

#[tokio::test]
async fn two_receivers_of_one_sender_get_the_same_bytes_and_its_lease_comes_back_after_both() {
    let (hub, brake) = (LocalHub::new(), Brake::default());
    let setup = Setup {
        layout: kv(16, PIECE),
        ..Setup::default()
    };
    let prefill = Side::start(&hub, "p", &setup, &brake).await;
    let mut ranks = Vec::new();
    for rank in 0..2u16 {
        let side = Side::start(&hub, &format!("d{rank}"), &setup, &brake).await;
        let peer = side.node.connect("local://p").await.unwrap();
        let room = side.node.receive(RoomId(5)).receivers(2).rank(rank);
        let lease = side.pool.lease_write(&[1, 2]).unwrap();
        let room = room.from(&peer).into(lease).start().await.unwrap();
        ranks.push((side, room));
    }
    let sender = prefill.node.send(RoomId(5)).receivers(2).start().await;
    let sender = sender.unwrap();
    brake.hold_after(2 * u64::from(LAYERS));
    let chunk = push(&sender, 0..2 * TOKENS, prefill.stamped(&[3, 4], 1, 0)).await;
    sender.finish(2 * TOKENS, None).unwrap();
    until("half of it is there", || brake.held() == 1).await;
    settle(&[&prefill.node]).await;
    assert!(chunk.try_released().is_none());
    brake.release();
    for (side, room) in &ranks {
        assert_eq!(within(room.outcome()).await, Outcome::Done);
        verify(&within(room.released()).await.leases[0], 1, 0);
        side.quiet().await;
    }
    assert_eq!(within(sender.outcome()).await, Outcome::Done);
    assert_eq!(within(chunk.released()).await.unwrap().pages(), [3, 4]);
    drop(sender);
    prefill.quiet().await;
}

async fn stages(over: Over, hub: &LocalHub, decode: &Node) -> Vec<(Side, Peer)> {
    let mut stages = Vec::new();
    for i in 0..2 {
        let name = format!("stage{i}");
        let side = Side::start(hub, &name, &Setup::over(over), &Brake::default()).await;
        let peer = decode.connect(&side.address).await.unwrap();
        stages.push((side, peer));
    }
    stages
}

async fn two_pipeline_stages_fill_one_room_by_layers(over: Over) {
    let hub = LocalHub::new();
    let decode = Side::start(&hub, "d", &Setup::over(over), &Brake::default()).await;
    let stages = stages(over, &hub, &decode.node).await;
    let lease = decode.pool.lease_write(&[0, 1]).unwrap();
    let mut room = decode.node.receive(RoomId(1)).into(lease).checksum(true);
    for (i, (_, peer)) in (0..).zip(&stages) {
        room = room.from_layers(peer, i..i + 1);
    }
    let receiver = room.start().await.unwrap();
    let mut senders = Vec::new();
    for (i, (side, _)) in (0..).zip(&stages) {
        let sender = side.node.send(RoomId(1)).start().await.unwrap();
        let slot = within(sender.reserve()).await.unwrap();
        let chunk = Chunk::tokens(0..2 * TOKENS).layers(i..i + 1);
        slot.push(chunk.pages(side.stamped(&[4, 5], 1, 0))).unwrap();
        sender.finish(2 * TOKENS, None).unwrap();
        senders.push(sender);
    }
    assert_eq!(within(receiver.outcome()).await, Outcome::Done);
    let back = within(receiver.released()).await;
    assert_eq!(back.proofs.len(), 2);
    verify(&back.leases[0], 1, 0);
    for sender in &senders {
        assert_eq!(within(sender.outcome()).await, Outcome::Done);
    }
    drop((back, senders));
    for (side, _) in &stages {
        side.quiet().await;
    }
    decode.quiet().await;
}

async fn one_stage_that_fails_ends_the_room_for_the_other_one_too(over: Over) {
    let hub = LocalHub::new();
    let decode = Side::start(&hub, "d", &Setup::over(over), &Brake::default()).await;
    let stages = stages(over, &hub, &decode.node).await;
    let lease = decode.pool.lease_write(&[0]).unwrap();
    let mut room = decode.node.receive(RoomId(1)).into(lease);
    for (i, (_, peer)) in (0..).zip(&stages) {
        room = room.from_layers(peer, i..i + 1);
    }
    let receiver = room.start().await.unwrap();
    let first = stages[0].0.node.send(RoomId(1)).start().await.unwrap();
    let second = stages[1].0.node.send(RoomId(1)).start().await.unwrap();
    let slot = within(second.reserve()).await.unwrap();
    let chunk = Chunk::tokens(0..TOKENS).layers(1..2);
    let chunk = chunk.pages(stages[1].0.stamped(&[4], 1, 0));
    let chunk = slot.push(chunk).unwrap();
    assert!(within(chunk.released()).await.is_some());
    second.abort("stage 1 lost its GPU");
    for outcome in [
        within(receiver.outcome()).await,
        within(first.outcome()).await,
    ] {
        assert_eq!(code(&outcome), Code::Requested);
        names(&text(&outcome), &["stage 1 lost its GPU"]);
    }
    drop((receiver, first, second));
    for (side, _) in &stages {
        side.quiet().await;
    }
    decode.quiet().await;
}

#[tokio::test]
async fn senders_that_leave_a_layer_out_or_cover_one_twice_are_refused() {
    let hub = LocalHub::new();
    let decode = Side::start(&hub, "d", &Setup::default(), &Brake::default()).await;
    let stages = stages(Over::Local, &hub, &decode.node).await;
    let (a, b) = (&stages[0].1, &stages[1].1);
    let room = || {
        let lease = decode.pool.lease_write(&[0]).unwrap();
        decode.node.receive(RoomId(1)).into(lease)
    };
    let refused = async |room: kvroom::ReceiveBuilder| {
        let error = room.start().await.unwrap_err();
        assert_eq!(error.leases.len(), 1);
        error.to_string()
    };
    let text = refused(room().from_layers(a, 0..1)).await;
    names(&text, &["no sender covers", "layer 1"]);
    let text = refused(room().from(a).from(b)).await;
    names(&text, &["sender 1", "from_layers()"]);
    let text = refused(room().from_layers(a, 0..1).from_layers(b, 1..5)).await;
    names(&text, &["sender 1", "1..5", "has 2"]);
    let text = refused(room()).await;
    names(&text, &["no sender", "from(&peer)"]);
    decode.quiet().await;
}
