//! Nodes in processes of their own, and everything that can happen to them and between them, while
//! rooms run all the time and every page is watched.
//!
//! `KVROOM_CHAOS_SECONDS` (20 if not set) is how long in all, `KVROOM_CHAOS_SEED` (1) where the faults
//! come from. A failure prints both; the faults come again in the same order, though not at the same
//! moments of the rooms.
#![allow(clippy::unwrap_used)]

mod common;

#[path = "chaos/canary.rs"]
mod canary;
#[path = "chaos/fault.rs"]
mod fault;
#[path = "chaos/node.rs"]
mod node;
#[path = "chaos/rng.rs"]
mod rng;
#[path = "chaos/storm.rs"]
mod storm;

use common::PATIENCE;
use kvroom::actors::copy::plant::Plant;
use rng::Rng;
use std::time::Duration;
use storm::{Plan, Report, run};

#[test]
fn plays_a_node_of_the_storm_when_told_to() {
    node::play_if_told();
}

fn number(name: &str, otherwise: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{name} = {text:?} is no number")),
        Err(_) => otherwise,
    }
}

/// Says how to run it again if it fails.
struct Replay {
    seed: u64,
    seconds: u64,
}

impl Drop for Replay {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Replay { seed, seconds } = self;
            eprintln!(
                "to run these faults again: KVROOM_CHAOS_SEED={seed} KVROOM_CHAOS_SECONDS={seconds} \
                 cargo test --test chaos every_page -- --nocapture"
            );
        }
    }
}

#[tokio::test]
async fn every_page_is_its_owners_whatever_happens_to_processes_and_networks_and_all_heals() {
    let (seed, seconds) = (
        number("KVROOM_CHAOS_SEED", 1),
        number("KVROOM_CHAOS_SECONDS", 20),
    );
    // At least one round of each number of nodes.
    let rounds = (seconds / 60).max(1) * 4;
    let mut all = Report::default();
    for round in 0..rounds {
        let seed = seed + round / 4;
        let _replay = Replay { seed, seconds };
        let nodes = 2 + round as usize % 4;
        let mut rng = Rng::of(seed, &[nodes as u64]);
        // One at least shares no memory, so that there is a network.
        let mut shared: Vec<bool> = (0..nodes).map(|i| i != 0 && rng.percent(65)).collect();
        rng.shuffle(&mut shared);
        let report = run(&Plan {
            seed: rng.next(),
            shared: shared.clone(),
            time: Duration::from_millis(seconds * 1_000 / rounds),
            faults: true,
            plant: None,
            patience: PATIENCE,
        })
        .await;
        println!("seed {seed}, {nodes} nodes, shared {shared:?}: {report:?}");
        assert!(report.wrong.is_empty(), "{:#?}", report.wrong);
        all.add(report);
    }
    println!("in all: {all:?}");
    // A run that moves nothing, or in which nothing is ended, shows nothing.
    let n = |what: &str| all.tally.get(what).copied().unwrap_or(0);
    assert!(n("r_Done") > 100 && n("s_Done") > 100, "{all:?}");
    assert!(n("r_Requested") > 5 && n("s_Requested") > 5, "{all:?}");
    let mut never = fault::KINDS.map(fault::Fault::name).to_vec();
    never.retain(|fault| !all.faults.contains_key(fault));
    assert!(never.is_empty(), "never happened: {never:?}");
}

/// A storm without faults, in which the lanes of one node do something wrong.
async fn planted(shared: bool, plant: Plant) -> Report {
    let report = run(&Plan {
        seed: 7,
        shared: vec![shared; 2],
        time: Duration::from_secs(10),
        faults: false,
        plant: Some(plant),
        patience: Duration::from_secs(2),
    })
    .await;
    println!("{plant:?}, shared {shared}: {report:?}");
    report
}

#[tokio::test]
async fn a_byte_that_is_written_late_is_noticed() {
    for shared in [false, true] {
        let report = planted(shared, Plant::LateWrite).await;
        let mut wrong = report.wrong.iter();
        assert!(wrong.any(|w| w.contains("not what it may hold")));
    }
}
