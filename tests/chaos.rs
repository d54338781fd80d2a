//! Nodes in processes of their own, and everything that can happen to them and between them, while
//! rooms run all the time and every page is watched.
//!
//! `KVROOM_CHAOS_SECONDS` (14 if not set) is how long in all, `KVROOM_CHAOS_SEED` (1) where the faults
//! come from. A failure prints both; the same kinds of faults come again, drawn the same way, though not at
//! the same moments of the rooms, so that others of them may find nothing to strike and be put off. Each
//! round has a deck of its own: what an earlier one left does not change it, but that one that is only there
//! because something has not happened yet begins with that.
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
#[path = "chaos/rooms.rs"]
mod rooms;
#[path = "chaos/seat.rs"]
mod seat;
#[path = "chaos/storm.rs"]
mod storm;

use common::namespace::{is_inside, run_inside};
use common::process::{Other, Role};
use common::*;
use kvroom::actors::copy::plant::Plant;
use kvroom::{Deadlines, LocalHub, Outcome, RoomId};
use rng::Rng;
use std::process::Command;
use std::time::{Duration, Instant};
use storm::{Plan, Report, run};

#[test]
fn plays_a_node_of_the_storm_when_told_to() {
    node::play_if_told();
}

#[test]
fn plays_the_other_process_when_told_to() {
    common::process::play_if_told();
}

/// How long in all, if nothing else is said.
const SECONDS: u64 = 14;

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
    /// A part of the test's name.
    test: &'static str,
}

impl Drop for Replay {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Replay {
                seed,
                seconds,
                test,
            } = self;
            eprintln!(
                "to run these faults again: KVROOM_CHAOS_SEED={seed} KVROOM_CHAOS_SECONDS={seconds} \
                 cargo test --test chaos {test} -- --nocapture"
            );
        }
    }
}

#[tokio::test]
async fn every_page_is_its_owners_whatever_happens_to_processes_and_networks_and_all_heals() {
    let (seed, seconds) = (
        number("KVROOM_CHAOS_SEED", 1),
        number("KVROOM_CHAOS_SECONDS", SECONDS),
    );
    // At least one round of each number of nodes.
    let rounds = (seconds / 60).max(1) * 4;
    let mut all = Report::default();
    for round in 0..rounds * MOST_TIMES {
        // A machine that is slow, or busy, gets through less in the same time.
        if round >= rounds && round % 4 == 0 && lacks(&all).is_empty() {
            break;
        }
        let seed = seed + round / 4;
        let test = "every_page";
        let _replay = Replay {
            seed,
            seconds,
            test,
        };
        let nodes = 2 + round as usize % 4;
        let mut rng = Rng::of(seed, &[nodes as u64]);
        // One at least shares no memory, so that there is a network.
        let mut shared: Vec<bool> = (0..nodes).map(|i| i != 0 && rng.percent(65)).collect();
        rng.shuffle(&mut shared);
        let mut deck = deck(seed, nodes - 2);
        if round >= rounds {
            // The last one is drawn first.
            deck.sort_by_key(|fault| !all.faults.contains_key(fault.name()));
        }
        let plan = Plan {
            seed: rng.next(),
            shared: shared.clone(),
            time: Duration::from_millis(seconds * 1_000 / rounds),
            faults: true,
            plant: None,
            patience: PATIENCE,
            deck,
        };
        let report = run(&plan).await;
        println!("seed {seed}, {nodes} nodes, shared {shared:?}: {report:?}");
        assert!(report.wrong.is_empty(), "{:#?}", report.wrong);
        all.add(report);
    }
    println!("in all: {all:?}");
    assert_eq!(lacks(&all), Vec::<String>::new(), "{all:?}");
}

/// The faults of one of the four rounds of a seed. They are short: each begins where no other does.
fn deck(seed: u64, round: usize) -> Vec<fault::Fault> {
    let mut deck = fault::KINDS.to_vec();
    Rng::of(seed, &[]).shuffle(&mut deck);
    let begun = deck.len() * round / 4;
    deck.rotate_right(begun);
    deck
}

/// So many times as long as it was told to, if it must, until it has shown something.
const MOST_TIMES: u64 = 4;

/// What a run has not shown yet. One that moves nothing, or in which nothing is ended, shows nothing.
fn lacks(all: &Report) -> Vec<String> {
    let mut lacks = floors(
        all,
        &[
            ("r_Done", 61),
            ("s_Done", 61),
            // Of nodes that live on, as both of them say.
            ("both_Done", 30),
            ("r_Requested", 6),
            ("s_Requested", 6),
            // A lane that was inside a gate for long.
            ("held", 1),
        ],
    );
    let never = fault::KINDS.map(fault::Fault::name).into_iter();
    let never = never.filter(|fault| !all.faults.contains_key(fault));
    lacks.extend(never.map(|fault| format!("never happened: {fault}")));
    lacks
}

/// Which of these the nodes have not counted so often.
fn floors(all: &Report, floors: &[(&str, u64)]) -> Vec<String> {
    let below = floors.iter().filter(|(what, floor)| all.n(what) < *floor);
    let say = |(what, floor): &(&str, u64)| format!("{what}: {} of {floor}", all.n(what));
    below.map(say).collect()
}

/// A storm without faults, in which the lanes of one node do something wrong.
async fn planted(shared: bool, plant: Plant, seed: u64) -> Report {
    let plan = Plan {
        seed,
        shared: vec![shared; 2],
        time: Duration::from_secs(10),
        faults: false,
        plant: Some(plant),
        patience: Duration::from_secs(2),
        deck: Vec::new(),
    };
    let report = run(&plan).await;
    println!("{plant:?}, shared {shared}: {report:?}");
    report
}

#[test]
fn the_same_holds_over_a_network_that_loses_packets() {
    // Kernels without netem can still drop what comes too fast.
    let worse = "ip link set lo mtu 1500 up
        tc qdisc add dev lo root netem delay 2ms 1ms loss 1% duplicate 1% reorder 10% 50% 2>&1 ||
        tc qdisc add dev lo root tbf rate 40mbit burst 16kb latency 4ms";
    run_inside('n', worse, "storms_over_a_bad_network_when_inside");
}

#[tokio::test]
async fn storms_over_a_bad_network_when_inside() {
    if !is_inside() {
        return;
    }
    let seconds = number("KVROOM_CHAOS_SECONDS", SECONDS);
    let seed = number("KVROOM_CHAOS_SEED", 1);
    let test = "loses_packets";
    let _replay = Replay {
        seed,
        seconds,
        test,
    };
    // Now and then nothing gets through, and nobody is told; sometimes for longer than a silence that
    // is borne.
    let time = Duration::from_secs((seconds / 4).max(4));
    let mut all = Report::default();
    for round in 0..MOST_TIMES {
        let plan = Plan {
            seed: seed + round,
            shared: vec![false, true, true],
            time,
            faults: true,
            plant: None,
            patience: PATIENCE,
            deck: Vec::new(),
        };
        let holes = std::thread::spawn(move || holes(time));
        let report = run(&plan).await;
        assert!(holes.join().unwrap() > 0);
        println!("seed {}, in a namespace: {report:?}", plan.seed);
        assert!(report.wrong.is_empty(), "{:#?}", report.wrong);
        all.add(report);
        if lacks_over_holes(&all).is_empty() {
            break;
        }
    }
    assert_eq!(lacks_over_holes(&all), Vec::<String>::new(), "{all:?}");
}

/// What runs over a bad network have not shown yet.
fn lacks_over_holes(all: &Report) -> Vec<String> {
    let mut lacks = floors(
        all,
        &[("r_Done", 10), ("both_Done", 10), ("r_Requested", 1)],
    );
    if dropped() == 0 {
        lacks.push("no packet was lost".into());
    }
    lacks
}

/// Packets that the loopback device's queue has dropped.
fn dropped() -> u64 {
    let tc = Command::new("tc")
        .args(["-s", "qdisc", "show", "dev", "lo"])
        .output();
    let said = String::from_utf8_lossy(&tc.unwrap().stdout).into_owned();
    println!("{said}");
    let after = said.split("dropped ").skip(1);
    let numbers = after.map(|text| text.split([',', ')', ' ']).next().unwrap().parse::<u64>());
    numbers.map(Result::unwrap).sum()
}

/// Takes the network away, again and again. Gives how often.
fn holes(time: Duration) -> u64 {
    let link = |state: &str| {
        let ip = Command::new("ip")
            .args(["link", "set", "lo", state])
            .status();
        assert!(ip.unwrap().success(), "ip link set lo {state}");
    };
    let begun = Instant::now();
    let mut n = 0;
    // Over before everything is healed.
    while begun.elapsed() + Duration::from_millis(2_700) < time {
        std::thread::sleep(Duration::from_millis(900));
        link("down");
        std::thread::sleep(Duration::from_millis(200 + n * 700 % 1_500));
        link("up");
        n += 1;
    }
    n
}

#[tokio::test]
async fn a_source_that_is_read_late_or_never_given_back_is_noticed() {
    let torn = planted(true, Plant::TornRead, 7).await;
    let mut wrong = torn.wrong.iter();
    assert!(wrong.any(|w| w.contains("not what it may hold") || w.contains("ChecksumMismatch")));
    for shared in [false, true] {
        // A page that is read for ever never comes back as one that can be written.
        let leak = planted(shared, Plant::Leak, 7).await;
        let mut wrong = leak.wrong.iter();
        assert!(wrong.any(|w| w.contains("somebody reads them")));
    }
}

#[tokio::test]
async fn a_byte_that_is_written_late_is_noticed() {
    for shared in [false, true] {
        // Every time. Who notices first is chance: whoever looks at the page, or the sum of the room that
        // has it next; within a few it is the one that looks.
        let mut by_its_page = false;
        for seed in 7..12 {
            let report = planted(shared, Plant::LateWrite, seed).await;
            assert!(!report.wrong.is_empty(), "shared {shared}, seed {seed}");
            let mut wrong = report.wrong.iter();
            by_its_page = wrong.any(|w| w.contains("not what it may hold"));
            if by_its_page {
                break;
            }
        }
        assert!(by_its_page, "shared {shared}");
    }
}

#[tokio::test]
async fn a_node_without_a_file_descriptor_left_goes_on_with_its_peers_and_accepts_again_later() {
    let mut prefill = Other::start("plays_the_other_process_when_told_to", &Role::default()).await;
    let setup = Setup::over(Over::Tcp);
    // Only who is to be refused gives up soon.
    let hasty = Setup {
        deadlines: Deadlines {
            connect: Duration::from_millis(500),
            ..Deadlines::default()
        },
        ..Setup::over(Over::Tcp)
    };
    let (hub, brake) = (LocalHub::new(), Default::default());
    let known = Side::start(&hub, "d", &setup, &brake).await;
    let peer = within(known.node.connect(&prefill.address)).await.unwrap();
    moves(&known, &peer, &mut prefill, 1).await;
    fault::limit(prefill.pid(), "--nofile=3:");
    // No new connection, and nothing that is there is the worse for it.
    let late = Side::start(&hub, "late", &hasty, &brake).await;
    let refused = within(late.node.connect(&prefill.address)).await;
    assert!(refused.is_err(), "{refused:?}");
    for id in 2..12 {
        moves(&known, &peer, &mut prefill, id).await;
    }
    fault::limit(prefill.pid(), "--nofile=1024:");
    let start = Instant::now();
    let met = loop {
        match within(late.node.connect(&prefill.address)).await {
            Ok(peer) => break peer,
            Err(why) => assert!(start.elapsed() < PATIENCE, "{why}"),
        }
    };
    moves(&late, &met, &mut prefill, 100).await;
    prefill.ask("free", "@free").await;
    known.quiet().await;
    late.quiet().await;
}

/// A room from the other process.
async fn moves(decode: &Side, from: &kvroom::Peer, prefill: &mut Other, id: u64) {
    let lease = decode.pool.lease_write(&[0, 1]).unwrap();
    let room = decode.node.receive(RoomId(id)).from(from).into(lease);
    let room = within(room.start()).await.unwrap();
    prefill.tell(&format!("send {id} 0"));
    prefill.tell(&format!("push {id} 0 0 2"));
    prefill.tell(&format!("finish {id} 0 2"));
    assert_eq!(within(room.outcome()).await, Outcome::Done);
    let back = within(room.released()).await;
    verify(&back.leases[0], common::process::stamp_of(id, 0), 0);
    prefill.hears(&format!("@released s {id} 0")).await;
}
