//! What every script must be, whatever the seed.

use super::*;
use clap::ValueEnum;
use std::collections::HashSet;

fn every_script(check: impl Fn(Storm, usize, &Script)) {
    for storm in Storm::value_variants() {
        for (sessions, seed) in [(1, 1), (2, 2), (7, 3), (80, 4), (80, 5)] {
            let load = Load::generated(sessions, seed);
            check(*storm, sessions, &Script::new(*storm, &load, seed));
        }
    }
}

fn kills(script: &Script) -> Vec<Kill> {
    let of = |step: &Step| match step {
        Step::Abort(kills) => kills.clone(),
        _ => Vec::new(),
    };
    script.steps.iter().flat_map(of).collect()
}

#[test]
fn the_same_seed_writes_the_same_script() {
    for storm in Storm::value_variants() {
        let load = Load::generated(20, 9);
        assert_eq!(Script::new(*storm, &load, 9), Script::new(*storm, &load, 9));
    }
}

#[test]
fn a_room_is_started_once_and_before_it_is_aborted() {
    every_script(|storm, sessions, script| {
        let mut started = HashSet::new();
        let mut senders = HashSet::new();
        for step in &script.steps {
            match step {
                Step::Start(starts) => {
                    for start in starts {
                        assert!(started.insert(start.room), "{storm:?} {sessions}");
                        assert!(!start.prefill || senders.insert(start.room));
                    }
                }
                Step::StartSenders(rooms) => {
                    assert!(rooms.iter().all(|room| senders.insert(*room)));
                    assert!(rooms.iter().all(|room| started.contains(room)));
                }
                Step::Abort(kills) => assert!(kills.iter().all(|k| started.contains(&k.room))),
                Step::AwaitInFlight { rooms, .. }
                | Step::AwaitAnswered { rooms, .. }
                | Step::Strike { rooms, .. } => {
                    assert!(rooms.iter().all(|room| started.contains(room)));
                }
                Step::AwaitPeer | Step::At(_) => {}
            }
        }
        assert!(
            !started.contains(&script.probe()),
            "the probe is the driver's to start"
        );
        assert!(
            !kills(script).is_empty() || storm == Storm::PeerKill,
            "{storm:?} with {sessions} sessions aborts nothing"
        );
    });
}

#[test]
fn a_key_is_used_once() {
    every_script(|storm, sessions, script| {
        let keys: HashSet<(u64, u32)> = script
            .rooms
            .iter()
            .map(|room| (room.id, room.attempt))
            .collect();
        assert_eq!(keys.len(), script.rooms.len(), "{storm:?} {sessions}");
    });
}

#[test]
fn the_incident_kills_every_session_and_leaves_some_senders_unstarted() {
    let load = Load::generated(80, 1);
    let script = Script::new(Storm::Incident, &load, 1);
    let killed: HashSet<u32> = kills(&script)
        .iter()
        .map(|kill| script.rooms[kill.room].session)
        .collect();
    assert_eq!(killed.len(), 80);
    assert!(
        kills(&script)
            .iter()
            .all(|kill| kill.by_tag && kill.side == Side::Decode)
    );
    let unstarted = script
        .steps
        .iter()
        .filter_map(|step| match step {
            Step::Start(starts) => Some(starts.iter().filter(|start| !start.prefill).count()),
            _ => None,
        })
        .sum::<usize>();
    assert!((1..=20).contains(&unstarted), "{unstarted}");
}

#[test]
fn both_sides_abort_every_room_in_both_orders() {
    let load = Load::generated(80, 1);
    let script = Script::new(Storm::BothSides, &load, 1);
    let mut first = HashSet::new();
    let mut orders = HashSet::new();
    for kill in kills(&script) {
        if first.insert(kill.room) {
            orders.insert(kill.side == Side::Decode);
        }
    }
    assert_eq!(kills(&script).len(), 160);
    assert_eq!(orders.len(), 2);
}

#[test]
fn a_convoy_is_ten_or_more_of_the_longest_rooms() {
    let load = Load::generated(80, 1);
    let script = Script::new(Storm::Convoy, &load, 1);
    let kills = kills(&script);
    assert!(kills.len() >= 10);
    assert!(
        kills
            .iter()
            .all(|kill| script.rooms[kill.room].turn.pages == LARGEST_PAGES)
    );
}

fn strikes(script: &Script) -> Vec<Strike> {
    let of = |step: &Step| match step {
        Step::Strike { strike, .. } => Some(*strike),
        _ => None,
    };
    script.steps.iter().filter_map(of).collect()
}

#[test]
fn only_the_storms_for_two_processes_strike_and_they_do_it_once() {
    every_script(|storm, sessions, script| {
        let expected = usize::from(storm.strikes());
        assert_eq!(strikes(script).len(), expected, "{storm:?} {sessions}");
    });
}

#[test]
fn a_stop_is_well_within_what_a_session_is_kept_or_well_beyond_it_and_seeds_have_both() {
    use crate::rooms::{SHORT_LIVENESS, SHORT_RESUME};
    let kept = SHORT_LIVENESS + SHORT_RESUME;
    let (mut short, mut long) = (0, 0);
    for seed in 1..=20 {
        let load = Load::generated(4, seed);
        let script = Script::with_survivor(Storm::PeerStop, &load, seed, Side::Prefill);
        let [Strike::Stop(time)] = strikes(&script)[..] else {
            panic!("no stop");
        };
        assert_eq!(script.resumes, time < kept);
        assert!(time.abs_diff(kept) >= kept / 4, "{time:?}");
        short += u32::from(time < kept);
        long += u32::from(time > kept);
        assert!(kills(&script).iter().all(|kill| kill.side == Side::Prefill));
    }
    assert!(short > 3 && long > 3, "{short} {long}");
}

#[test]
fn without_aborts_nobody_aborts_and_every_sender_starts() {
    every_script(|_, _, script| {
        let script = script.clone().without_aborts();
        assert!(kills(&script).is_empty() && strikes(&script).is_empty());
        for step in &script.steps {
            if let Step::Start(starts) = step {
                assert!(starts.iter().all(|start| start.prefill));
            }
        }
    });
}

#[test]
fn pools_are_bounded_and_hold_the_largest_room_and_the_probe() {
    every_script(|_, _, script| {
        let shape = script.shape(32);
        let largest = script
            .rooms
            .iter()
            .map(|room| room.turn.pages)
            .max()
            .unwrap_or(0);
        assert!(shape.destination_pages >= largest + PROBE_PAGES);
        assert!(shape.destination_pages <= 8192);
    });
    let huge = Turn {
        pages: 20_000,
        skip_pages: 0,
        tokens: 20_000 * 512,
    };
    let load = Load {
        page_tokens: 512,
        sessions: vec![vec![huge]],
    };
    let shape = Script::new(Storm::Incident, &load, 1).shape(512);
    assert_eq!(shape.destination_pages, 20_000 + PROBE_PAGES);
}
