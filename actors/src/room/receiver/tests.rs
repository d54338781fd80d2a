//! What a receiver room promises, one sentence a test. Every pair of state and event is in
//! `room::table`.

use crate::reason::{Code, Side};
use crate::room::event::{Effect, Event, Note, Say, Timer};
use crate::room::testing::*;
use crate::room::{Outcome, StateName};
use kvroom_kernels::coverage::Coverage;

fn open() -> Bench {
    Bench::receiver(1, false).with([Event::ClaimOpened(LEG), Event::Bound(LEG)])
}

fn open_two() -> Bench {
    let events = [
        Event::ClaimOpened(LEG),
        Event::ClaimOpened(OTHER),
        Event::Bound(LEG),
    ];
    Bench::receiver(2, false)
        .with(events)
        .with([Event::Bound(OTHER)])
}

fn outcome(effects: &[Effect<W>]) -> Option<(Side, Code)> {
    effects.iter().find_map(|e| match e {
        Effect::Publish(Outcome::Aborted(reason)) => Some((reason.side, reason.code)),
        _ => None,
    })
}

fn abort() -> Event<W> {
    Event::Abort(why(Code::Requested))
}

fn says_abort(effects: &[Effect<W>], to: crate::ids::LegNo) -> bool {
    let is = |e: &Effect<W>| matches!(e, Effect::Say { leg, say: Say::Abort(_) } if *leg == to);
    effects.iter().any(is)
}

fn returns(effects: &[Effect<W>]) -> bool {
    effects.iter().any(|e| matches!(e, Effect::ReturnLease(_)))
}

#[test]
fn one_claim_is_asked_for_on_each_leg() {
    let asked = [Effect::OpenClaim(LEG), Effect::OpenClaim(OTHER)];
    assert_eq!(Bench::receiver(2, false).last()[1..], asked);
}

#[test]
fn done_needs_the_coverage_then_closed_gates_then_the_proof() {
    let mut b = open();
    let out = b.tell(complete(LEG, cells(0..4, true)));
    assert_eq!(out[1..], [Effect::CloseGate(LEG), Effect::Seal]);
    let out = b.tell(quiet());
    let accepted = Effect::Say {
        leg: LEG,
        say: Say::Accepted,
    };
    assert_eq!(out[1..3], [accepted, Effect::Publish(Outcome::Done)]);
    assert!(returns(&out));
    assert_eq!(b.room.state(), StateName::Done);
}

#[test]
fn a_coverage_that_lacks_a_cell_ends_the_room() {
    for short in [cells(0..3, true), cells(0..4, false), Coverage::new()] {
        let out = open().tell(complete(LEG, short));
        assert_eq!(outcome(&out), Some((Side::Local, Code::CoverageIncomplete)));
        assert!(says_abort(&out, LEG));
    }
}

#[test]
fn a_coverage_with_a_cell_of_somebody_else_ends_the_room() {
    let out = open().tell(complete(LEG, cells(0..5, true)));
    assert_eq!(outcome(&out), Some((Side::Local, Code::CoverageOverlap)));
}

#[test]
fn a_coverage_that_is_not_canonical_ends_the_room() {
    // Two rectangles that hold the same cells, as only a broken peer would send them.
    let twice: Coverage = {
        let rect = *cells(0..4, false).rects().first().unwrap();
        let bytes = bincode::serde::encode_to_vec(vec![rect, rect], bincode::config::standard());
        let config = bincode::config::standard();
        bincode::serde::decode_from_slice(&bytes.unwrap(), config)
            .unwrap()
            .0
    };
    assert_eq!(twice.rects().len(), 2);
    let out = open().tell(complete(LEG, twice));
    assert_eq!(outcome(&out), Some((Side::Local, Code::ProtocolViolation)));
}

#[test]
fn another_total_than_the_claims_ends_the_room() {
    let event = Event::Complete {
        leg: LEG,
        total: TOTAL + 2,
        coverage: cells(0..4, true),
        checksum: None,
    };
    assert_eq!(
        outcome(&open().tell(event)),
        Some((Side::Local, Code::LengthMismatch))
    );
}

#[test]
fn two_legs_must_both_complete() {
    let mut b = open_two();
    let out = b.tell(complete(OTHER, cells(0..4, true)));
    assert!(!out.contains(&Effect::Seal));
    let out = b.tell(complete(OTHER, cells(0..4, true)));
    assert_eq!(
        out,
        [Effect::Note(Note::Stale("Complete"))],
        "one leg does not count twice"
    );
    assert!(
        b.tell(complete(LEG, cells(0..4, true)))
            .contains(&Effect::Seal)
    );
}

#[test]
fn the_end_of_one_leg_aborts_the_other() {
    let mut b = open_two();
    let out = b.tell(peer_ended(LEG));
    assert_eq!(outcome(&out), Some((Side::Peer, Code::Requested)));
    assert!(!says_abort(&out, LEG) && says_abort(&out, OTHER));
    let closed = [LEG, OTHER].map(|leg| out.contains(&Effect::CloseGate(leg)));
    assert_eq!(closed, [true, true]);
}

#[test]
fn checksums_of_all_legs_are_compared_with_the_pages_before_done() {
    for (sum, state) in [(10, StateName::Done), (11, StateName::Aborted)] {
        let mut b = Bench::receiver(2, true).with([Event::ClaimOpened(LEG), Event::Bound(LEG)]);
        b = b.with([Event::ClaimOpened(OTHER), Event::Bound(OTHER)]);
        b = b.with([LEG, OTHER].map(|leg| complete(leg, cells(0..4, true))));
        let out = b.tell(quiet());
        assert_eq!(out, [Effect::Sum], "nothing is handed over before");
        let out = b.tell(Event::Summed(sum));
        assert_eq!(b.room.state(), state);
        assert!(returns(&out));
    }
}

#[test]
fn a_checksum_mismatch_is_told_to_the_sender() {
    let mut b = Bench::receiver(1, true).with([Event::ClaimOpened(LEG), Event::Bound(LEG)]);
    b = b.with([complete(LEG, cells(0..4, true)), quiet()]);
    let out = b.tell(Event::Summed(6));
    assert_eq!(outcome(&out), Some((Side::Local, Code::ChecksumMismatch)));
    let rejected = |e: &Effect<W>| {
        matches!(
            e,
            Effect::Say {
                say: Say::Rejected(_),
                ..
            }
        )
    };
    assert!(out.iter().any(rejected));
}

#[test]
fn a_checksum_that_was_asked_for_and_does_not_come_ends_the_room() {
    let mut b = Bench::receiver(1, true).with([Event::ClaimOpened(LEG), Event::Bound(LEG)]);
    let event = Event::Complete {
        leg: LEG,
        total: TOTAL,
        coverage: cells(0..4, true),
        checksum: None,
    };
    assert_eq!(
        outcome(&b.tell(event)),
        Some((Side::Local, Code::ProtocolViolation))
    );
}

#[test]
fn an_abort_while_summing_answers_at_once_and_keeps_the_pages_until_they_are_read() {
    let mut b = Bench::receiver(1, true).with([Event::ClaimOpened(LEG), Event::Bound(LEG)]);
    b = b.with([complete(LEG, cells(0..4, true)), quiet()]);
    let out = b.tell(abort());
    assert_eq!(outcome(&out), Some((Side::Local, Code::Requested)));
    assert!(says_abort(&out, LEG) && !returns(&out));
    let out = b.tell(Event::Summed(5));
    assert!(returns(&out));
    assert_eq!((outcome(&out), b.room.state()), (None, StateName::Aborted));
}

#[test]
fn the_stall_clock_runs_only_while_more_was_posted_than_has_landed() {
    let mut b = open();
    let (set, clear) = (
        Effect::SetTimer(Timer::Stall),
        Effect::ClearTimer(Timer::Stall),
    );
    assert_eq!(
        b.tell(Event::Timer(Timer::Stall)),
        [Effect::Note(Note::Stale("Timer"))]
    );
    assert_eq!(b.tell(progress(LEG, 10, 0)), std::slice::from_ref(&set));
    assert_eq!(
        b.tell(progress(LEG, 20, 0)),
        [],
        "posting more is not progress"
    );
    assert_eq!(b.tell(progress(LEG, 20, 0)), [], "a repeat is not progress");
    assert_eq!(b.tell(progress(LEG, 20, 5)), [set], "landing is");
    assert_eq!(
        b.tell(progress(LEG, 20, 20)),
        [clear],
        "nothing is posted: it waits in a queue"
    );
    assert_eq!(
        b.tell(Event::Timer(Timer::Stall)),
        [Effect::Note(Note::Stale("Timer"))]
    );
    b.tell(progress(LEG, 30, 20));
    let out = b.tell(Event::Timer(Timer::Stall));
    assert_eq!(outcome(&out), Some((Side::Local, Code::Stalled)));
}

#[test]
fn progress_that_overtook_bound_starts_the_stall_clock_with_it() {
    let mut b = Bench::receiver(1, false).with([Event::ClaimOpened(LEG), progress(LEG, 10, 0)]);
    assert_eq!(b.tell(Event::Bound(LEG)), [Effect::SetTimer(Timer::Stall)]);
}

#[test]
fn a_leg_that_is_complete_no_longer_stalls() {
    let mut b = open_two().with([progress(LEG, 10, 0)]);
    let out = b.tell(complete(LEG, cells(0..4, true)));
    assert_eq!(out, [Effect::ClearTimer(Timer::Stall)]);
}

#[test]
fn a_sender_that_is_out_without_a_word_ends_the_room() {
    let out = open().tell(Event::PeerOut(LEG));
    assert_eq!(outcome(&out), Some((Side::Peer, Code::SessionLost)));
    assert!(!says_abort(&out, LEG), "it has nothing to stop");
}

#[test]
fn an_end_before_the_number_takes_the_claim_back() {
    let out = Bench::receiver(1, false).tell(abort());
    assert!(out.contains(&Effect::WithdrawClaim(LEG)));
    assert!(!says_abort(&out, LEG));
}

#[test]
fn a_claim_that_was_numbered_before_its_withdrawal_came_is_closed_and_aborted() {
    let mut b = Bench::receiver(1, false).with([abort()]);
    let out = b.tell(Event::ClaimOpened(LEG));
    assert_eq!(out[0], Effect::CloseGate(LEG));
    assert!(says_abort(&out, LEG));
}

#[test]
fn a_claim_that_cannot_be_opened_ends_the_room_with_its_reason() {
    let mut b = Bench::receiver(2, false).with([Event::ClaimOpened(OTHER)]);
    let out = b.tell(Event::ClaimNotOpened {
        leg: LEG,
        reason: why(Code::SessionLost),
    });
    assert_eq!(outcome(&out), Some((Side::Local, Code::SessionLost)));
    assert!(says_abort(&out, OTHER) && !says_abort(&out, LEG));
}

#[test]
fn a_lost_legs_claim_is_withdrawn_closed_and_aborted_in_the_next_session() {
    let out = open().tell(lost(LEG));
    assert_eq!(outcome(&out), Some((Side::Local, Code::SessionLost)));
    assert!(out.contains(&Effect::WithdrawClaim(LEG)) && out.contains(&Effect::CloseGate(LEG)));
    assert!(says_abort(&out, LEG));
}

#[test]
fn no_timer_returns_a_lease() {
    for (name, room) in receivers().into_iter().chain(senders()) {
        for timer in Timer::ALL {
            let mut out = Vec::new();
            let next = room.clone().handle(Event::Timer(timer), &mut out);
            assert!(!returns(&out), "{name} {timer:?}");
            assert_eq!(next.is_over(), room.is_over(), "{name} {timer:?}");
        }
    }
}

#[test]
fn every_live_state_ends_at_once_when_aborted_and_keeps_its_lease_until_the_proof() {
    for (name, room) in receivers() {
        if !matches!(
            room.state(),
            StateName::Registered | StateName::Transferring
        ) {
            continue;
        }
        let mut out = Vec::new();
        let room = room.handle(abort(), &mut out);
        assert_eq!(
            outcome(&out),
            Some((Side::Local, Code::Requested)),
            "{name}"
        );
        assert!(!returns(&out), "{name}");
        let last = if name.ends_with("summing") {
            Event::Summed(5)
        } else {
            quiet()
        };
        out.clear();
        let room = room.handle(last, &mut out);
        assert!(returns(&out), "{name}");
        assert_eq!(room.state(), StateName::Aborted, "{name}");
    }
}

#[test]
fn the_loss_of_a_leg_that_the_room_does_not_have_changes_nothing() {
    let mut b = open();
    let before = b.room.clone();
    let out = b.tell(lost(crate::ids::LegNo(7)));
    assert_eq!(out, [Effect::Note(Note::Stale("LegLost"))]);
    assert_eq!(b.room, before);
}

#[test]
fn a_room_is_over_in_its_two_ends_and_in_no_other_state() {
    for (name, room) in receivers().into_iter().chain(senders()) {
        let end = matches!(name, "Done" | "Aborted");
        assert_eq!(room.is_over(), end, "{name}");
    }
}

#[test]
fn a_leg_that_waits_for_nothing_does_not_start_the_stall_clock_of_another_anew() {
    let mut b = open_two().with([progress(OTHER, 10, 0), progress(LEG, 5, 5)]);
    assert_eq!(b.tell(progress(LEG, 5, 5)), [], "a repeat moves nothing");
    let out = b.tell(Event::Timer(Timer::Stall));
    assert_eq!(outcome(&out), Some((Side::Local, Code::Stalled)));
}

#[test]
fn as_many_cells_as_were_asked_for_are_not_enough_if_one_is_another() {
    let out = open().tell(complete(LEG, cells(1..5, true)));
    assert_eq!(outcome(&out), Some((Side::Local, Code::CoverageIncomplete)));
}
