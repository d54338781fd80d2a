//! Whole nodes in virtual time, each world from one seed: storms, then calm, then fresh rooms.
//!
//! ```text
//!   KVROOM_SIM_SEEDS=2000 KVROOM_SIM_FIRST_SEED=1 cargo test --release --test sim
//! ```

#![allow(clippy::unwrap_used, clippy::expect_used)]

pub(crate) use kvroom_actors::{ids, limits, peer, room};

#[path = "sim/memory.rs"]
mod memory;
#[path = "sim/mod.rs"]
mod sim;

#[allow(dead_code, unreachable_pub)]
#[path = "../src/supervisor/timers.rs"]
mod timers;
#[allow(dead_code, unreachable_pub)]
#[path = "../src/peer/actor/clock.rs"]
mod clock;

use sim::plan::Plan;
use sim::world::{Options, World};

#[test]
fn every_promise_holds_in_every_world() {
    let first: u64 = std::env::var("KVROOM_SIM_FIRST_SEED").ok().map_or(1, |s| s.parse().unwrap());
    let seeds: u64 = std::env::var("KVROOM_SIM_SEEDS").ok().map_or(100, |s| s.parse().unwrap());
    let t = std::time::Instant::now();
    let mut bad = 0;
    let (mut steps, mut ended, mut done) = (0, 0, 0);
    for seed in first..first + seeds {
        let report = World::new(Plan::of(seed), Options { trace: seeds == 1, ..Options::default() }).run();
        steps += report.steps; ended += report.ended; done += report.done;
        if report.steps > 200_000 { println!("seed {seed}: {} steps", report.steps); }
        if let Some(v) = &report.violation { bad += 1; println!("seed {seed}: {v}"); }
        if seeds == 1 { println!("{}", Plan::of(seed)); for l in &report.trace { println!("{l}"); } println!("{:?}", report.violation);}
    }
    println!("{seeds} seeds, {steps} steps, {ended} ended, {done} done, {bad} bad, {:?}", t.elapsed());
    assert_eq!(bad, 0);
}
