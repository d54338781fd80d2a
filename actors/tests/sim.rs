//! Whole nodes in virtual time, each world from one seed: a storm, then calm, then fresh rooms.
//!
//! ```text
//!   cargo test --test sim                                            a hundred and more seeds, sweeps, planted bugs
//!   KVROOM_SIM_SEEDS=2000 cargo test --release --test sim            as many seeds as you like
//!   KVROOM_SIM_SEEDS=1 KVROOM_SIM_FIRST_SEED=7 cargo test …          one of them
//! ```
//!
//! `sim/mod.rs` says what of it is shipped code and what is played. Planted bugs are for builds with
//! debug assertions, where rules of the cores can be turned off.

#![allow(clippy::unwrap_used, clippy::expect_used)]

// The shipped files below name these as their own crate does.
pub(crate) use kvroom_actors::{ids, limits, peer, room, slice};

#[allow(dead_code, unreachable_pub)]
#[path = "../src/peer/actor/clock.rs"]
mod clock;
#[path = "sim/memory.rs"]
mod memory;
#[path = "sim/mod.rs"]
mod sim;
#[allow(dead_code, unreachable_pub)]
#[path = "../src/supervisor/timers.rs"]
mod timers;

use sim::run::{story, world, worlds};
use sim::world::Options;
use std::time::Instant;

fn from_env(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|e| panic!("{name}={text}: {e}")),
        Err(_) => default,
    }
}

#[test]
fn every_promise_holds_in_every_world() {
    let first = from_env("KVROOM_SIM_FIRST_SEED", 1);
    let seeds = from_env("KVROOM_SIM_SEEDS", 150);
    let options = Options::default();
    let began = Instant::now();
    let (sums, failed) = worlds(first, seeds, options);
    println!("{sums:?} in {:?}", began.elapsed());
    if let Some(seed) = failed {
        panic!("{}", story(seed, options));
    }
    assert!(
        sums.done * 4 > sums.ended,
        "hardly anything is ever done: {sums:?}"
    );
    if seeds >= 150 {
        // A limit that is never reached is not tried.
        let peak = sums.peak;
        let is = [
            peak.from_peers,
            peak.early_of_one,
            peak.pipe,
            peak.remembered,
        ];
        let (inbox, pipe) = (sim::control::INBOX, sim::control::PIPE);
        let most = [inbox, sim::node::EARLY, pipe, sim::node::SPENT];
        for (is, most) in is.into_iter().zip(most) {
            assert!(is >= most, "some limit is never reached: {peak:?}");
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    for seed in 1..=25 {
        let (one, two) = (
            world(seed, Options::default()),
            world(seed, Options::default()),
        );
        assert_eq!(one.hash, two.hash, "seed {seed} went two ways");
        assert_eq!(one.steps, two.steps);
    }
    let (one, two) = (world(1, Options::default()), world(2, Options::default()));
    assert_ne!(one.hash, two.hash, "the hash sees nothing");
}

#[test]
fn a_world_that_panics_is_told_like_a_broken_promise() {
    let options = Options {
        plant: Some(sim::plant::Plant::Panics),
        ..Options::default()
    };
    let (_, failed) = worlds(1, 3, options);
    let story = story(failed.expect("it panics"), options);
    assert!(story.starts_with("seed 1: panic: planted"), "{story}");
    assert!(story.contains("KVROOM_SIM_FIRST_SEED=1"), "{story}");
}

#[cfg(not(debug_assertions))]
#[test]
fn planted_bugs_are_looked_for_in_builds_with_debug_assertions() {
    use std::io::Write;
    let text = "SKIPPED: planted bugs and rules turned off are in builds with debug assertions only. \
                To check: cargo test --test sim\n";
    // Not by a macro: what those print is kept from who runs the tests.
    let _ = std::io::stderr().write_all(text.as_bytes());
}
