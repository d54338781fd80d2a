//! Bugs put in on purpose: a simulator that misses one of them proves nothing.
//!
//! ```text
//!   Plant    in what is around the cores     ─┐
//!   Switch   a rule of the cores turned off  ─┴▶ the same seeds ─▶ the promise named here is broken
//! ```
//!
//! Without them all the same seeds keep every promise: see `sim.rs`.

use super::invariants::all;
use super::plan::{Fabric, Fault, FaultKind, MS, Plan, Request};
use super::plant::Plant;
use super::run::world;
use super::sweeps::plan;
use super::world::{Options, World};

/// What is put in, the promise that it breaks, and within how many seeds.
const ROWS: &[(Plant, &str, u64)] = &[
    (Plant::LateWrite, "S1", 40),
    (Plant::WitnessBeforeEmpty, "S6", 40),
    (Plant::WitnessLost, "L4", 40),
    (Plant::PagesKept, "S4", 40),
    (Plant::LeaseLeaked, "L4", 40),
    (Plant::FailureCountsAsLanded, "S3", 200),
    (Plant::CellLeftOut, "S3", 40),
    (Plant::WrongPlace, "S3", 40),
    (Plant::TicketBeforeRead, "S2", 40),
    (Plant::WaitingForgotten, "L4", 200),
    (Plant::CreditAcrossSessions, "L5", 200),
    (Plant::ResumedTooFar, "L4", 200),
    (Plant::OutcomeTwice, "S5", 40),
    (Plant::DeadClocks, "L1", 200),
    (Plant::FailedTwice, "L3", 40),
];

/// Some seed of the first so many breaks the promise of this row; which.
fn found(plant: Plant) -> u64 {
    let row = ROWS.iter().find(|(of, ..)| *of == plant);
    let (_, promise, seeds) = *row.expect("it has a row");
    let options = Options {
        plant: Some(plant),
        ..Options::default()
    };
    let mut others = std::collections::BTreeSet::new();
    for seed in 1..=seeds {
        let Some(violation) = world(seed, options).violation else {
            continue;
        };
        if violation.starts_with(promise) {
            println!("{plant:?}: found by seed {seed}: {violation}");
            return seed;
        }
        others.insert(violation.split(':').next().unwrap_or_default().to_owned());
    }
    panic!("{plant:?} is not found by {promise:?} within {seeds} seeds; by others: {others:?}");
}

#[test]
fn every_promise_is_broken_by_a_bug_of_the_rows() {
    for invariant in all() {
        let name = invariant.name();
        let row = ROWS
            .iter()
            .find(|(_, promise, _)| name.starts_with(promise));
        assert!(row.is_some(), "nothing here breaks {name:?}");
    }
}

#[test]
fn pages_that_two_hold_are_found() {
    found(Plant::PagesKept);
}

#[test]
fn a_page_that_is_written_after_it_came_back_is_found() {
    found(Plant::LateWrite);
}

#[test]
fn a_gate_that_yields_its_witness_while_a_writer_is_inside_is_found() {
    found(Plant::WitnessBeforeEmpty);
}

#[test]
fn a_witness_that_is_lost_is_found() {
    found(Plant::WitnessLost);
}

#[test]
fn a_lease_that_is_leaked_is_found() {
    found(Plant::LeaseLeaked);
}

#[test]
fn a_copy_that_failed_and_counts_as_landed_is_found() {
    found(Plant::FailureCountsAsLanded);
}

#[test]
fn a_cell_that_is_left_out_is_found() {
    found(Plant::CellLeftOut);
}

#[test]
fn a_cell_in_the_wrong_place_is_found() {
    found(Plant::WrongPlace);
}

#[test]
fn a_ticket_that_ends_before_its_source_is_read_is_found() {
    found(Plant::TicketBeforeRead);
}

#[test]
fn a_waiting_claim_that_is_forgotten_with_its_session_is_found() {
    found(Plant::WaitingForgotten);
}

#[test]
fn a_credit_that_is_given_back_in_a_later_session_is_found() {
    found(Plant::CreditAcrossSessions);
}

#[test]
fn a_frame_that_a_greeting_skips_is_found() {
    found(Plant::ResumedTooFar);
}

#[test]
fn an_outcome_that_is_delivered_twice_is_found() {
    found(Plant::OutcomeTwice);
}

#[test]
fn clocks_that_never_run_out_are_found() {
    found(Plant::DeadClocks);
}

/// A hundred claims come at once to a shard that takes its time.
fn crowd() -> Plan {
    let mut plan = plan(Fabric::Tcp, 3_000 * MS);
    plan.links[0].credit = 128;
    for node in &mut plan.nodes {
        node.pages = 1_024;
    }
    let one = plan.requests[0].clone();
    plan.requests.extend((1..100).map(|room| Request {
        room,
        sender_late: (200 + room) * MS,
        ..one.clone()
    }));
    plan.faults = vec![Fault {
        at: 4 * MS,
        lasts: 100 * MS,
        kind: FaultKind::SlowShard {
            node: 0,
            times: 2_000,
        },
    }];
    plan
}

#[test]
fn a_reader_that_does_not_wait_for_its_shard_is_found() {
    let options = Options {
        plant: Some(Plant::ReaderDoesNotWait),
        ..Options::default()
    };
    let violation = World::new(crowd(), options).run().violation;
    let violation = violation.unwrap_or_default();
    assert!(violation.starts_with("L5"), "{violation}");
    assert_eq!(
        World::new(crowd(), Options::default()).run().violation,
        None
    );
}

#[test]
fn an_end_that_is_told_twice_is_found() {
    found(Plant::FailedTwice);
}
