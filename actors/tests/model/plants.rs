//! Bugs put into the glue on purpose: a search that misses one of them proves nothing.
//!
//! ```text
//!   Plant ─▶ the same search as in exhaustive.rs ─▶ a story that breaks the property named here
//! ```
//!
//! Without the plant the same sizes, or larger ones, keep every property: see `exhaustive.rs`.

use crate::exhaustive::{OneRoom, SIZE};
use crate::model::reach::Graph;
use crate::model::size::{Kind, Plant, Size};
use crate::model::world::World;
use crate::mortals::{pool_survives, sender_dies};
use crate::planes::{TCP, UCX};
use stateright::{Checker, HasDiscoveries, Model};

/// Searches until this property is broken.
fn is_found(plant: Plant, property: &'static str, size: Size) {
    let size = Size {
        plant: Some(plant),
        ..size
    };
    let wanted = HasDiscoveries::AnyOf([property].into());
    let checker = OneRoom(size).checker().finish_when(wanted);
    let checker = checker.spawn_bfs().join();
    let story = checker.discovery(property);
    let states = checker.unique_state_count();
    let Some(story) = story else {
        panic!("{plant:?} was not found by {property:?} in {states} states");
    };
    let steps = story.into_actions().len();
    println!("{plant:?}: found in {states} states, {steps} steps");
}

#[test]
fn a_gate_that_yields_its_witness_while_a_writer_is_inside_is_found() {
    let size = Size { aborts: 1, ..SIZE };
    is_found(Plant::GateYieldsEarly, "S1: no late write", size);
    is_found(Plant::GateYieldsEarly, "S6: proof, not patience", size);
}

#[test]
fn a_copy_that_is_said_to_have_landed_when_it_begins_is_found() {
    is_found(Plant::LandedBeforeTheFlush, "S3: done means all", SIZE);
    is_found(Plant::LandedBeforeTheFlush, "S1: no late write", SIZE);
    is_found(Plant::LandedBeforeTheFlush, "S2: no torn source", SIZE);
}

#[test]
fn an_abort_that_is_answered_while_a_copy_is_out_is_found() {
    let size = Size { aborts: 1, ..SIZE };
    is_found(Plant::QuiescedWhileOut, "quiesced means out", size);
}

#[test]
fn a_credit_that_is_given_back_in_a_later_session_is_found() {
    let size = Size {
        attempts: 2,
        losses: 1,
        ..SIZE
    };
    is_found(Plant::CreditAcrossSessions, "credits are counted", size);
}

#[test]
fn a_waiting_claim_that_is_forgotten_with_its_session_is_found() {
    let size = Size {
        credit: 0,
        losses: 1,
        ..SIZE
    };
    is_found(Plant::WaitingForgotten, "at rest nothing is held", size);
    // A quarantine, which this plane allows, does not explain it.
    let ucx = Size {
        plane: Kind::Ucx,
        ..size
    };
    is_found(Plant::WaitingForgotten, "at rest nothing is held", ucx);
    let graph = Graph::of(&OneRoom(Size {
        plant: Some(Plant::WaitingForgotten),
        ..size
    }));
    let stuck = graph.cannot_reach(|_| true, World::is_empty_at_rest);
    assert!(stuck.is_some(), "what is forgotten for ever can still end");
}

#[test]
fn a_frame_that_a_greeting_skips_is_found() {
    let size = Size { resets: 1, ..SIZE };
    is_found(Plant::ResumedTooFar, "nobody is accused", size);
}

/// What a plant must not break where something else carries safety.
const SAFETY: [&str; 8] = [
    "S1: no late write",
    "S1x: nothing into another's pages",
    "S2: no torn source",
    "S3: done means all",
    "S4: one owner",
    "S6: proof, not patience",
    "S7: done with this request's bytes",
    "a sender is done only when its receivers are",
];

/// Searches all of it; the plant breaks nothing of memory.
fn is_harmless(plant: Plant, size: Size) {
    let size = Size {
        plant: Some(plant),
        ..size
    };
    let checker = OneRoom(size).checker().threads(2).spawn_bfs().join();
    let states = checker.unique_state_count();
    for property in SAFETY {
        let story = checker.discovery(property);
        assert!(story.is_none(), "{plant:?} breaks {property:?}: {story:?}");
    }
    println!("{plant:?} on {:?}: harmless in {states} states", size.plane);
    assert!(states > 300, "the search saw only {states} states");
}

#[test]
fn a_frame_that_is_still_inside_when_its_second_copy_completes_is_found() {
    let size = Size { resends: 1, ..TCP };
    is_found(Plant::GateYieldsEarly, "S1: no late write", size);
    is_found(Plant::GateYieldsEarly, "S6: proof, not patience", size);
}

#[test]
fn a_forced_close_that_is_taken_for_a_fence_is_found() {
    let size = Size { aborts: 1, ..UCX };
    is_found(Plant::ForcedCloseIsAFence, "S1: no late write", size);
    is_found(Plant::ForcedCloseIsAFence, "S2: no torn source", size);
}

#[test]
fn a_dead_writer_whose_path_was_not_destroyed_is_found() {
    let size = sender_dies(Kind::Ucx);
    is_found(Plant::DeathEndsPuts, "S1: no late write", size);
    is_found(
        Plant::DeathEndsPuts,
        "S1x: nothing into another's pages",
        size,
    );
}

#[test]
fn a_fence_that_is_not_sticky_is_found() {
    let size = Size {
        aborts: 1,
        losses: 1,
        fence: true,
        ..UCX
    };
    is_found(Plant::FenceNotSticky, "S1: no late write", size);
}

#[test]
fn a_flush_that_failed_and_counts_as_one_is_found() {
    let size = Size {
        flush_errors: 1,
        ..UCX
    };
    is_found(Plant::FailedFlushIsAFlush, "S3: done means all", size);
}

#[test]
fn a_route_that_is_changed_after_something_was_posted_is_found() {
    let size = Size {
        flush_errors: 1,
        ..UCX
    };
    is_found(Plant::RouteChanged, "S1: no late write", size);
    is_found(Plant::RouteChanged, "S2: no torn source", size);
}

#[test]
fn a_writer_that_is_given_up_because_a_newer_life_says_hello_is_found() {
    let size = Size {
        crashes: 0,
        stops: 1,
        ..sender_dies(Kind::Shm)
    };
    is_found(Plant::DiscountedOnHello, "S1: no late write", size);
    is_found(
        Plant::DiscountedOnHello,
        "S1x: nothing into another's pages",
        size,
    );
}

#[test]
fn an_abort_of_an_old_claim_that_the_new_life_answers_is_found_where_no_gate_is() {
    let plant = Plant::AbortToTheNewLife;
    is_found(plant, "S1: no late write", sender_dies(Kind::Ucx));
    let one = |plane| Size {
        attempts: 1,
        ..sender_dies(plane)
    };
    is_harmless(plant, one(Kind::Tcp));
    is_harmless(plant, one(Kind::Shm));
}

#[test]
fn a_pool_that_is_attached_with_its_old_gates_open_is_found() {
    let size = pool_survives(Kind::Shm);
    let plant = Plant::AttachedWithoutClosing;
    is_found(plant, "S1x: nothing into another's pages", size);
}

#[test]
fn pages_that_are_free_before_their_lease_is_back_are_found() {
    let size = Size {
        attempts: 2,
        pushes: 8,
        aborts: 1,
        ..SIZE
    };
    is_found(Plant::FreedAtTheOutcome, "S4: one owner", size);
}

#[test]
fn claim_numbers_that_begin_again_in_a_pools_next_life_are_found() {
    let size = pool_survives(Kind::Shm);
    is_found(
        Plant::NumbersBeginAgain,
        "S1x: nothing into another's pages",
        size,
    );
}

#[test]
fn an_abort_that_is_answered_too_early_is_harmless_where_the_receiver_has_the_gate() {
    let size = Size { aborts: 1, ..SIZE };
    for plane in [Kind::Tcp, Kind::Shm] {
        is_harmless(Plant::QuiescedWhileOut, Size { plane, ..size });
    }
    let size = Size { aborts: 1, ..UCX };
    is_found(Plant::QuiescedWhileOut, "S1: no late write", size);
}
