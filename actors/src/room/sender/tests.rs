//! What a sender room promises, one sentence a test. Every pair of state and event is in
//! `room::table`.

use crate::ids::{ChunkNo, LegNo, PoolId};
use crate::reason::{Code, Reason};
use crate::room::event::{Effect, Event, JobEnd, JobSpec, LegTerms, Note, Say, Timer};
use crate::room::testing::*;
use crate::room::{Outcome, StateName};

type Effects = Vec<Effect<W>>;

fn posts(effects: &[Effect<W>]) -> Vec<(LegNo, u32, JobSpec)> {
    let post = |e: &Effect<W>| match e {
        Effect::Post { leg, job, spec } => Some((*leg, *job, spec.clone())),
        _ => None,
    };
    effects.iter().filter_map(post).collect()
}

/// Where jobs of pages go: (leg, first page of the chunk, first page of the claim, how many).
fn places(effects: &[Effect<W>]) -> Vec<(u16, u32, u32, u32)> {
    let place = |(leg, _, spec): (LegNo, u32, JobSpec)| match spec {
        JobSpec::Pages { from, to, .. } => {
            assert_eq!(from.len(), to.len());
            Some((leg.0, from.start, to.start, to.len() as u32))
        }
        JobSpec::Aux => None,
    };
    posts(effects).into_iter().filter_map(place).collect()
}

fn released(effects: &[Effect<W>]) -> Vec<u32> {
    let chunk = |e: &Effect<W>| match e {
        Effect::ReleaseChunk(ChunkNo(no)) => Some(*no),
        _ => None,
    };
    effects.iter().filter_map(chunk).collect()
}

fn outcome(effects: &[Effect<W>]) -> Option<Code> {
    effects.iter().find_map(|e| match e {
        Effect::Publish(Outcome::Aborted(reason)) => Some(reason.code),
        _ => None,
    })
}

fn text(effects: &[Effect<W>]) -> String {
    let text = effects.iter().find_map(|e| match e {
        Effect::Publish(Outcome::Aborted(reason)) => Some(reason.text.clone()),
        _ => None,
    });
    text.unwrap_or_default()
}

fn said(effects: &[Effect<W>], to: LegNo) -> Vec<Say> {
    let say = |e: &Effect<W>| match e {
        Effect::Say { leg, say } if *leg == to => Some(say.clone()),
        _ => None,
    };
    effects.iter().filter_map(say).collect()
}

fn completes(effects: &[Effect<W>]) -> bool {
    let is = |e: &Effect<W>| {
        matches!(
            e,
            Effect::Say {
                say: Say::Complete { .. },
                ..
            }
        )
    };
    effects.iter().any(is)
}

fn push(pages: std::ops::Range<u64>, no: u32) -> Event<W> {
    Event::Push(chunk(no, pages))
}

#[test]
fn each_chunk_becomes_one_job_a_leg() {
    let mut b = Bench::sender(2).with([bind(LEG, claim(2, 0, 0)), bind(OTHER, claim(2, 1, 0))]);
    let out = b.tell(push(1..3, 0));
    assert_eq!(places(&out), [(0, 0, 1, 2), (1, 0, 1, 2)]);
}

#[test]
fn a_leg_that_binds_late_gets_all_earlier_chunks() {
    let mut b = Bench::sender(2).with([push(0..1, 0), bind(LEG, claim(2, 0, 0)), push(1..4, 1)]);
    let out = b.tell(bind(OTHER, claim(2, 1, 0)));
    assert_eq!(places(&out), [(1, 0, 0, 1), (1, 0, 1, 3)]);
    assert_eq!(said(&out, OTHER)[0], Say::Bound);
}

#[test]
fn what_lies_below_a_legs_skip_is_not_sent_on_it() {
    let mut b = Bench::sender(1).with([bind(LEG, claim(1, 0, 2))]);
    let out = b.tell(push(0..2, 0));
    assert_eq!(places(&out), []);
    assert_eq!(released(&out), [0], "no leg wants it, so its lease is free");
    let mut b = Bench::sender(1).with([bind(LEG, claim(1, 0, 2))]);
    assert_eq!(places(&b.tell(push(1..4, 0))), [(0, 1, 0, 2)]);
}

#[test]
fn only_the_requests_end_may_be_inside_a_page() {
    let mut b = Bench::sender(1);
    b.tell(push(2..4, 0));
    let mut ragged = chunk(1, 0..1);
    ragged.tokens.end = 1;
    assert_eq!(outcome(&b.tell(Event::Push(ragged))), Some(Code::BadChunk));

    let mut ragged = chunk(0, 0..2);
    ragged.tokens.end = 3;
    let mut b = Bench::sender(1).with([Event::Push(ragged)]);
    let out = b.tell(finish());
    assert_eq!(outcome(&out), Some(Code::BadChunk));
    assert!(text(&out).contains("token 3"), "{}", text(&out));
}

#[test]
fn a_chunk_repeated_with_the_same_pages_changes_nothing_and_its_lease_goes_back() {
    let mut b = Bench::sender(1).with([bind(LEG, claim(1, 0, 0)), push(0..4, 0)]);
    let before = b.room.clone();
    let out = b.tell(push(0..4, 1));
    assert_eq!(
        out,
        [
            Effect::Note(Note::RepeatedChunk),
            Effect::ReleaseChunk(ChunkNo(1))
        ]
    );
    assert_eq!(b.room, before);
}

#[test]
fn a_chunk_repeated_after_finish_changes_nothing_and_a_new_one_ends_the_room() {
    let finish = Event::Finish {
        total: TOTAL,
        aux: true,
    };
    let mut b = Bench::sender(1).with([bind(LEG, claim(1, 0, 0)), push(0..4, 0), finish]);
    let before = b.room.clone();
    let out = b.tell(push(0..4, 1));
    assert_eq!(
        out,
        [
            Effect::Note(Note::RepeatedChunk),
            Effect::ReleaseChunk(ChunkNo(1))
        ]
    );
    assert_eq!(b.room, before);
    let out = b.tell(push(1..2, 2));
    assert_eq!(outcome(&out), Some(Code::BadChunk));
    assert!(text(&out).contains("pushed after finish(7)"), "{out:?}");
}

#[test]
fn a_chunk_repeated_with_other_pages_ends_the_room() {
    let mut b = Bench::sender(1).with([push(0..4, 0)]);
    let out = b.tell(Event::Push(chunk_at(1, 0..4, 50)));
    assert_eq!(outcome(&out), Some(Code::BadChunk));
    assert!(matches!(
        out[0],
        Effect::BounceChunk {
            chunk: ChunkNo(1),
            ..
        }
    ));
}

#[test]
fn a_chunk_that_overlaps_an_earlier_one_ends_the_room_and_names_it() {
    let mut b = Bench::sender(1).with([push(0..3, 0)]);
    let out = b.tell(push(2..4, 1));
    assert_eq!(outcome(&out), Some(Code::BadChunk));
    assert!(
        text(&out).starts_with("chunk 1: overlaps"),
        "{}",
        text(&out)
    );
}

#[test]
fn a_poisoned_chunk_ends_its_room_and_names_what_is_wrong() {
    type Poison = fn(&mut crate::room::Chunk);
    let poisons: [(&str, Poison); 6] = [
        ("is empty", |c| c.tokens.end = c.tokens.start),
        ("not at a page boundary", |c| c.tokens.start = 1),
        ("its lease has 2", |c| c.tokens.end = 6),
        ("layers 0..2", |c| c.layers.end = 2),
        ("layers 1..1", |c| c.layers.start = 1),
        ("beyond 2^32 pages", |c| c.tokens = 0..u64::MAX),
    ];
    for (says, poison) in poisons {
        let mut bad = chunk(3, 0..2);
        poison(&mut bad);
        let mut b = Bench::sender(1).with([bind(LEG, claim(1, 0, 0))]);
        let out = b.tell(Event::Push(bad));
        assert_eq!(outcome(&out), Some(Code::BadChunk), "{says}");
        assert!(text(&out).starts_with("chunk 3: "), "{}", text(&out));
        assert!(text(&out).contains(says), "{} / {says}", text(&out));
        assert!(matches!(
            out[0],
            Effect::BounceChunk {
                chunk: ChunkNo(3),
                ..
            }
        ));
        assert_eq!(b.room.state(), StateName::Draining);
    }
}

#[test]
fn a_claim_and_a_finish_that_disagree_end_the_room_whichever_comes_first() {
    let short = || Event::Finish {
        total: 6,
        aux: true,
    };
    let mut b = Bench::sender(1).with([bind(LEG, claim(1, 0, 0))]);
    assert_eq!(outcome(&b.tell(short())), Some(Code::LengthMismatch));
    let mut b = Bench::sender(1).with([short()]);
    let out = b.tell(bind(LEG, claim(1, 0, 0)));
    assert_eq!(outcome(&out), Some(Code::LengthMismatch));
    let failed = said(&out, LEG)
        .into_iter()
        .any(|s| matches!(s, Say::Failed(_)));
    assert!(failed, "the receiver learns of it");
}

#[test]
fn a_chunk_beyond_a_claims_total_ends_the_room_whichever_comes_first() {
    let long = || {
        let mut long = chunk(0, 0..5);
        long.tokens.end = 10;
        Event::Push(long)
    };
    let mut b = Bench::sender(1).with([bind(LEG, claim(1, 0, 0))]);
    assert_eq!(outcome(&b.tell(long())), Some(Code::LengthMismatch));
    let mut b = Bench::sender(1).with([long()]);
    assert_eq!(
        outcome(&b.tell(bind(LEG, claim(1, 0, 0)))),
        Some(Code::LengthMismatch)
    );
}

#[test]
fn a_finish_that_leaves_pages_out_ends_the_room() {
    let mut b = Bench::sender(1).with([bind(LEG, claim(1, 0, 0)), push(0..3, 0), finish()]);
    let out = b.tell(landed(LEG, 0));
    assert_eq!(outcome(&out), Some(Code::CoverageIncomplete));
    assert!(!completes(&out));
}

#[test]
fn the_aux_row_is_posted_after_all_pages_have_landed_and_complete_follows_it() {
    let mut b = Bench::sender(1).with([bind(LEG, claim(1, 0, 0)), push(0..2, 0), push(2..4, 1)]);
    assert_eq!(posts(&b.tell(finish())), []);
    assert_eq!(posts(&b.tell(landed(LEG, 1))), []);
    let out = b.tell(landed(LEG, 0));
    assert_eq!(posts(&out), [(LEG, 2, JobSpec::Aux)]);
    assert!(!completes(&out));
    let out = b.tell(landed(LEG, 2));
    let Some(Say::Complete {
        total,
        coverage,
        checksum,
    }) = said(&out, LEG).pop()
    else {
        panic!("no Complete in {out:?}");
    };
    assert_eq!(
        (total, coverage, checksum),
        (TOTAL, cells(0..4, true), None)
    );
}

#[test]
fn a_room_without_pages_moves_its_aux_row_and_is_done() {
    let full_hit = claim(1, 0, 4);
    let mut b = Bench::sender(1).with([finish()]);
    let out = b.tell(bind(LEG, full_hit));
    assert_eq!(posts(&out), [(LEG, 0, JobSpec::Aux)]);
    assert!(completes(&b.tell(landed(LEG, 0))));
    b.tell(Event::Accepted(LEG));
    assert_eq!(b.tell(quiet())[1], Effect::Publish(Outcome::Done));
    assert_eq!(b.room.state(), StateName::Done);
}

#[test]
fn a_leg_that_wants_an_aux_row_and_gets_none_ends_the_room() {
    let none = Event::Finish {
        total: TOTAL,
        aux: false,
    };
    let mut b = Bench::sender(1).with([bind(LEG, claim(1, 0, 0)), push(0..4, 0), none]);
    assert_eq!(outcome(&b.tell(landed(LEG, 0))), Some(Code::BadClaim));
}

#[test]
fn checksums_of_a_legs_jobs_add_up_and_are_told_if_asked_for() {
    let terms = LegTerms {
        checksum: true,
        aux: false,
        ..claim(1, 0, 0)
    };
    let mut b = Bench::sender(1).with([bind(LEG, terms), push(0..2, 0), push(2..4, 1), finish()]);
    b.tell(landed(LEG, 0));
    let out = b.tell(landed(LEG, 1));
    assert!(matches!(
        said(&out, LEG).pop(),
        Some(Say::Complete {
            checksum: Some(10),
            ..
        })
    ));
}

#[test]
fn a_chunks_lease_goes_back_once_when_it_has_landed_on_every_leg() {
    let mut b = Bench::sender(2).with([bind(LEG, claim(2, 0, 0)), push(0..4, 0)]);
    assert!(
        released(&b.tell(landed(LEG, 0))).is_empty(),
        "the other leg has not come yet"
    );
    assert!(released(&b.tell(bind(OTHER, claim(2, 1, 0)))).is_empty());
    assert_eq!(released(&b.tell(landed(OTHER, 1))), [0]);
    let mut rest: Effects = b.tell(finish());
    for event in [landed(LEG, 0), landed(LEG, 2), landed(OTHER, 3)] {
        rest.extend(b.tell(event));
    }
    assert!(released(&rest).is_empty());
}

#[test]
fn a_refused_claim_harms_nothing() {
    let mut wrong = vec![
        ("receivers", claim(3, 0, 0)),
        ("rank 2 of 2", claim(2, 2, 0)),
        ("has claimed before", claim(2, 0, 0)),
    ];
    let mut short = claim(2, 1, 0);
    short.sections[0].pages = 3;
    wrong.push(("the claim lists 3", short));
    let mut odd = claim(2, 1, 1);
    odd.skip = 3;
    wrong.push(("not at a page boundary", odd));
    let mut no_layer = claim(2, 1, 0);
    no_layer.sections[0].layer_end = 0;
    wrong.push(("which is none", no_layer));
    let mut twice = claim(2, 1, 0);
    twice.sections = [twice.sections[0], twice.sections[0]].into();
    wrong.push(("a second time", twice));

    let mut b = Bench::sender(2).with([bind(LEG, claim(2, 0, 0)), push(0..4, 0)]);
    let before = b.room.clone();
    for (says, terms) in wrong {
        let out = b.tell(bind(LegNo(5), terms));
        let [
            Effect::RefuseClaim {
                leg: LegNo(5),
                reason,
            },
        ] = out.as_slice()
        else {
            panic!("{says}: {out:?}");
        };
        assert_eq!(reason.code, Code::BadClaim);
        assert!(reason.text.contains(says), "{} / {says}", reason.text);
        assert_eq!(b.room, before, "{says}");
    }
}

#[test]
fn the_first_rank_may_be_served_before_the_second_claims() {
    let mut b = Bench::sender(2).with([push(0..4, 0), finish(), bind(LEG, claim(2, 0, 0))]);
    b = b.with([landed(LEG, 0), landed(LEG, 1), Event::Accepted(LEG)]);
    assert_eq!(b.room.state(), StateName::Transferring);
    b = b.with([
        bind(OTHER, claim(2, 1, 0)),
        landed(OTHER, 2),
        landed(OTHER, 3),
    ]);
    assert_eq!(b.tell(Event::Accepted(OTHER)), [Effect::Seal]);
    b.tell(quiet());
    assert_eq!(b.room.state(), StateName::Done);
}

#[test]
fn a_rank_that_has_all_may_leave_while_the_other_is_served() {
    let mut b = Bench::sender(2).with([push(0..4, 0), finish(), bind(LEG, claim(2, 0, 0))]);
    b = b.with([
        landed(LEG, 0),
        landed(LEG, 1),
        Event::Accepted(LEG),
        lost(LEG),
    ]);
    assert_eq!(b.room.state(), StateName::Transferring);
}

#[test]
fn the_end_of_one_leg_is_told_to_the_others_and_quiesced_to_all() {
    let mut b = Bench::sender(2).with([bind(LEG, claim(2, 0, 0)), bind(OTHER, claim(2, 1, 0))]);
    let out = b.tell(peer_ended(LEG));
    assert_eq!(said(&out, LEG), []);
    assert!(matches!(said(&out, OTHER).as_slice(), [Say::Failed(_)]));
    let out = b.tell(quiet());
    for leg in [LEG, OTHER] {
        assert!(matches!(said(&out, leg).as_slice(), [Say::Quiesced { .. }]));
    }
}

#[test]
fn every_live_state_ends_at_once_when_aborted_and_keeps_its_lease_until_the_proof() {
    for (name, room) in senders() {
        let live = matches!(
            room.state(),
            StateName::Registered | StateName::Transferring
        );
        if !live || name == "Transferring/sealed" {
            continue;
        }
        let mut out = Vec::new();
        let room = room.handle(Event::Abort(why(Code::Requested)), &mut out);
        assert_eq!(outcome(&out), Some(Code::Requested), "{name}");
        assert_eq!(room.state(), StateName::Draining, "{name}");
        let returned = |out: &[Effect<W>]| out.iter().any(|e| matches!(e, Effect::ReturnLease(_)));
        assert!(!returned(&out), "{name}");
        out.clear();
        let room = room.handle(quiet(), &mut out);
        assert!(returned(&out), "{name}");
        assert_eq!(room.state(), StateName::Aborted, "{name}");
    }
}

#[test]
fn a_second_abort_changes_nothing() {
    let mut b = Bench::sender(1).with([Event::Abort(why(Code::Requested))]);
    assert_eq!(b.tell(Event::Abort(why(Code::HandleDropped))), []);
}

#[test]
fn an_abort_after_every_receiver_accepted_is_too_late() {
    let events = [
        bind(LEG, claim(1, 0, 0)),
        push(0..4, 0),
        finish(),
        landed(LEG, 0),
    ];
    let mut b = Bench::sender(1)
        .with(events)
        .with([landed(LEG, 1), Event::Accepted(LEG)]);
    assert_eq!(b.tell(Event::Abort(why(Code::Requested))), []);
    b.tell(quiet());
    assert_eq!(b.room.state(), StateName::Done);
}

#[test]
fn a_refused_piece_waits_for_the_peers_reason() {
    let mut b = Bench::sender(1).with([bind(LEG, claim(1, 0, 0)), push(0..4, 0)]);
    let out = b.tell(over(LEG, 0, JobEnd::Refused));
    assert_eq!(out, [Effect::SetTimer(Timer::Explain)]);
    let out = b.tell(peer_ended(LEG));
    assert_eq!(outcome(&out), Some(Code::Requested));
    assert!(out.contains(&Effect::ClearTimer(Timer::Explain)));
}

#[test]
fn a_refused_piece_that_nobody_explains_ends_the_room() {
    let mut b = Bench::sender(1).with([bind(LEG, claim(1, 0, 0)), push(0..4, 0)]);
    b.tell(over(LEG, 0, JobEnd::Refused));
    assert_eq!(
        outcome(&b.tell(Event::Timer(Timer::Explain))),
        Some(Code::CopyRefused)
    );
}

#[test]
fn a_refused_piece_is_never_counted_as_written() {
    let mut b = Bench::sender(1).with([bind(LEG, claim(1, 0, 0)), push(0..2, 0), push(2..4, 1)]);
    b = b.with([finish(), over(LEG, 0, JobEnd::Refused)]);
    let out = b.tell(landed(LEG, 1));
    assert!(!completes(&out) && posts(&out).is_empty());
}

#[test]
fn a_chunk_pushed_after_the_end_comes_back_with_the_rooms_reason() {
    let reason = Reason::new(Code::Requested, "user left");
    let mut b = Bench::sender(1).with([Event::Abort(reason.clone())]);
    let chunk = ChunkNo(4);
    assert_eq!(
        b.tell(push(0..4, 4)),
        [Effect::BounceChunk { chunk, reason }]
    );
}

#[test]
fn what_lands_while_draining_is_told_with_quiesced() {
    let mut b = Bench::sender(1).with([bind(LEG, claim(1, 0, 0)), push(0..2, 0), push(2..4, 1)]);
    b = b.with([landed(LEG, 0), peer_ended(LEG), landed(LEG, 1)]);
    let out = b.tell(quiet());
    assert_eq!(
        said(&out, LEG),
        [Say::Quiesced {
            landed: cells(0..4, false)
        }]
    );
}

#[test]
fn a_lost_leg_is_told_nothing_until_it_asks_again() {
    let start = || Bench::sender(1).with([bind(LEG, claim(1, 0, 0)), lost(LEG)]);
    assert_eq!(said(&start().tell(quiet()), LEG), []);
    let out = start().with([peer_ended(LEG)]).tell(quiet());
    assert!(matches!(said(&out, LEG).as_slice(), [Say::Quiesced { .. }]));
}

#[test]
fn chunks_of_a_pool_that_no_section_names_are_not_sent() {
    let mut other = chunk(0, 0..4);
    other.pool = PoolId(9);
    let mut b = Bench::sender(1).with([bind(LEG, claim(1, 0, 0))]);
    let out = b.tell(Event::Push(other));
    assert_eq!((posts(&out).len(), released(&out)), (0, vec![0]));
}

#[test]
#[should_panic(expected = "told to explode")]
fn explode_panics_so_that_tests_can_lose_a_room() {
    Bench::sender(1).tell(Event::Explode);
}

#[test]
fn a_finish_short_of_what_was_pushed_ends_the_room_before_anyone_claims() {
    let short = Event::Finish {
        total: 4,
        aux: true,
    };
    let out = Bench::sender(1).with([push(0..3, 0)]).tell(short);
    assert_eq!(outcome(&out), Some(Code::LengthMismatch));
    assert!(text(&out).contains("token 6"), "{}", text(&out));
}

#[test]
fn each_layer_of_the_requests_last_page_may_end_inside_it() {
    let mut b = Bench::sender(1);
    for layer in 0..2 {
        let mut last = chunk(layer, 2..4);
        (last.layers, last.pool_layers) = (layer..layer + 1, 2);
        assert_eq!(outcome(&b.tell(Event::Push(last))), None, "layer {layer}");
    }
    assert_eq!(outcome(&b.tell(finish())), None);
    assert_eq!(b.room.state(), StateName::Registered);
}

#[test]
fn a_chunk_with_other_pages_after_finish_is_told_that_finish_was_said() {
    let mut b = Bench::sender(1).with([push(0..4, 0), finish()]);
    let out = b.tell(Event::Push(chunk_at(1, 0..4, 50)));
    assert_eq!(outcome(&out), Some(Code::BadChunk));
    assert!(text(&out).contains("pushed after finish(7)"), "{out:?}");
}

#[test]
fn the_bytes_posted_are_those_of_the_layers_that_the_leg_wants() {
    let mut terms = claim(1, 0, 0);
    (terms.sections[0].layer, terms.sections[0].layer_end) = (1, 3);
    let mut all = chunk(0, 0..4);
    (all.layers, all.pool_layers) = (0..3, 3);
    let mut b = Bench::sender(1).with([bind(LEG, terms)]);
    let out = b.tell(Event::Push(all));
    // Four pages of ten bytes a layer, of two layers.
    let (posted, written) = (80, 0);
    assert_eq!(said(&out, LEG), [Say::Progress { posted, written }]);
}

#[test]
fn a_chunk_is_released_when_it_has_landed_on_every_leg_and_not_on_the_first() {
    let mut b = Bench::sender(2).with([bind(LEG, claim(2, 0, 0)), bind(OTHER, claim(2, 1, 0))]);
    b.tell(push(0..4, 0));
    assert_eq!(released(&b.tell(landed(LEG, 0))), []);
    assert_eq!(released(&b.tell(landed(OTHER, 1))), [0]);
}

#[test]
fn after_the_requests_last_page_only_what_lies_before_it_may_be_pushed() {
    let ragged = |pages: std::ops::Range<u64>, end| {
        let mut ragged = chunk(0, pages);
        ragged.tokens.end = end;
        Event::Push(ragged)
    };
    let mut b = Bench::sender(1).with([ragged(2..4, 7)]);
    assert_eq!(outcome(&b.tell(push(0..2, 1))), None, "it lies before");
    let mut b = Bench::sender(1).with([ragged(0..2, 3)]);
    let out = b.tell(push(2..3, 1));
    assert_eq!(outcome(&out), Some(Code::BadChunk), "it lies behind");
    assert!(text(&out).contains("inside a page at 3"), "{}", text(&out));
}
