//! Bugs put into the glue on purpose: a search that misses one of them proves nothing.
//!
//! ```text
//!   Plant ─▶ the same search as in exhaustive.rs ─▶ a story that breaks the property named here
//! ```
//!
//! Without the plant the same sizes, or larger ones, keep every property: see `exhaustive.rs`.

use crate::exhaustive::{OneRoom, SIZE};
use crate::model::reach::Graph;
use crate::model::size::{Plant, Size};
use crate::model::world::World;
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
