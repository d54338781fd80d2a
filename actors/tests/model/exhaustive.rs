//! Every order of everything, for one room over real sessions: a stateright search of the world.
//!
//! ```text
//!   aborts · reset and resume · session given up, then the next attempt · panic
//!      each searched whole within its size; every property in every state
//! ```
//!
//! Inner steps of a node are taken at once here; `random.rs` lets mailboxes fall behind. With
//! `KVROOM_MODEL_LARGE=1` in the environment the larger sizes are searched too (minutes).

use crate::model::reach::Graph;
use crate::model::size::{Kind, Mortal, Size};
use crate::model::truth::Broken;
use crate::model::world::{Action, World};
use kvroom_actors::room::Outcome;
use stateright::{Checker, Model, Property};

/// One room on each node, and how much may go wrong.
pub(crate) struct OneRoom(pub(crate) Size);

impl Model for OneRoom {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(self.0)]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        actions.extend(world.fair());
        actions.extend(world.calls());
        actions.extend(world.aborts());
        actions.extend(world.clocks());
        actions.extend(world.faults());
        actions.extend(world.healing());
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let mut next = world.clone();
        next.apply(&action);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        fn kept(world: &World, broken: Broken) -> bool {
            !world.truth.broken.contains(&broken)
        }
        fn all(world: &World, done: bool) -> bool {
            let stories = &world.truth.stories;
            stories.len() == world.nodes.len() * (world.size.attempts * world.size.rooms) as usize
                && stories
                    .values()
                    .all(|s| (s.outcome == Some(Outcome::Done)) == done)
                && world.is_empty()
        }
        vec![
            Property::always("S1: no late write", |_, w| kept(w, Broken::S1LateWrite)),
            Property::always("S1x: nothing into another's pages", |_, w| {
                kept(w, Broken::S1WriteIntoAnother)
            }),
            Property::always("S2: no torn source", |_, w| kept(w, Broken::S2TornSource)),
            Property::always("S3: done means all", |_, w| kept(w, Broken::S3DoneIsNotAll)),
            Property::always("S4: one owner", |_, w| kept(w, Broken::S4TwoOwners)),
            Property::always("S5: one end", |_, w| kept(w, Broken::S5TwoEnds)),
            Property::always("S6: proof, not patience", |_, w| kept(w, Broken::S6NoProof)),
            Property::always("S7: done with this request's bytes", |_, w| {
                kept(w, Broken::S7WrongBytes)
            }),
            Property::always("S8: no room is harmed by another", |_, w| {
                kept(w, Broken::S8HarmedByAnother)
            }),
            Property::always("a sender is done only when its receivers are", |_, w| {
                kept(w, Broken::SenderDoneAlone)
            }),
            Property::always("a leg is told its end once", |_, w| {
                kept(w, Broken::ToldTwice)
            }),
            Property::always("quiesced means out", |_, w| {
                kept(w, Broken::QuiescedWhileOut)
            }),
            Property::always("credits are counted", |_, w| {
                kept(w, Broken::CreditMiscounted)
            }),
            Property::always("nobody is accused", |_, w| kept(w, Broken::Accused)),
            Property::always("at rest nothing is held", |_, w: &World| {
                !w.is_at_rest() || w.is_empty() || w.is_wanted_quarantine(false)
            }),
            Property::sometimes("all are done", |_, w| all(w, true)),
            Property::sometimes("all are aborted", |_, w| all(w, false)),
        ]
    }
}

/// One receiver, one chunk, a caller of few words, no faults.
pub(crate) const SIZE: Size = Size {
    plane: Kind::Local,
    senders: 1,
    receivers: 1,
    rooms: 1,
    attempts: 1,
    checksum: false,
    chunks: &[(0, 4)],
    pushes: 2,
    prepared: true,
    credit: 1,
    progress: 0,
    acks: false,
    resets: 0,
    losses: 0,
    panics: 0,
    aborts: 0,
    at_once: true,
    eager: true,
    clocks: false,
    failures: false,
    mortal: Mortal::Nobody,
    crashes: 0,
    stops: 0,
    survives: false,
    resends: 0,
    flush_errors: 0,
    fence: false,
    plant: None,
};

/// Searches all of it; fails unless it sees at least so many states.
pub(crate) fn search(name: &str, floor: usize, size: Size) {
    let started = std::time::Instant::now();
    let checker = OneRoom(size).checker().threads(2).spawn_bfs().join();
    let states = checker.unique_state_count();
    println!("{name}: {states} unique states, {:.1?}", started.elapsed());
    if let Some(path) = checker.discovery("at rest nothing is held") {
        println!("{name}: left are {:?}", path.last_state().leftovers());
    }
    checker.assert_properties();
    assert!(states >= floor, "the search saw only {states} states");
}

/// Searches all of it if that is asked for; says so if not.
pub(crate) fn search_large(name: &str, floor: usize, size: Size) {
    if is_large() {
        search(&format!("{name} (large)"), floor, size);
    } else {
        crate::skipped(&format!(
            "{name}: takes minutes. To do so: KVROOM_MODEL_LARGE=1"
        ));
    }
}

/// Searches `small`, and `large` too if that is asked for; each with its floor.
fn search_both(name: &str, small: (usize, Size), large: (usize, Size)) {
    search(name, small.0, small.1);
    search_large(name, large.0, large.1);
}

pub(crate) fn is_large() -> bool {
    std::env::var_os("KVROOM_MODEL_LARGE").is_some_and(|v| v == "1")
}

#[test]
fn one_room_with_aborts_of_both_sides_keeps_the_contract() {
    let small = Size {
        aborts: 2,
        pushes: 1,
        prepared: false,
        ..SIZE
    };
    let large = Size {
        clocks: true,
        progress: 8,
        acks: true,
        ..small
    };
    search_both("aborts", (2_000, small), (20_000, large));
}

#[test]
fn one_room_over_a_session_that_is_reset_and_resumed_keeps_the_contract() {
    let small = Size {
        aborts: 1,
        resets: 1,
        acks: true,
        ..SIZE
    };
    let large = Size {
        aborts: 2,
        resets: 2,
        pushes: 1,
        prepared: false,
        acks: true,
        ..SIZE
    };
    search_both("reset", (4_500, small), (50_000, large));
}

/// The session is given up on one side, then on the other, and begun again on each, with anything in
/// between. Whatever came, the next attempt can still be done.
#[test]
fn two_attempts_around_a_session_that_is_given_up_keep_the_contract_and_can_end() {
    let small = Size {
        attempts: 2,
        losses: 1,
        ..SIZE
    };
    search_large("given up", 15_000, Size { aborts: 1, ..small });
    let started = std::time::Instant::now();
    let graph = Graph::of(&OneRoom(small));
    let states = graph.len();
    println!(
        "given up: {states} unique states, {:.1?}",
        started.elapsed()
    );
    assert_eq!(graph.broken, None, "broken, by these steps");
    assert!(graph.never_seen.is_empty(), "{:?}", graph.never_seen);
    assert!(states > 12_000, "the search saw only {states} states");
    assert_eq!(graph.cannot_reach(|_| true, World::is_empty_at_rest), None);
    let fresh = |w: &World| w.started.iter().all(|n| *n < 2);
    let second_is_done = |w: &World| {
        let stories = w.truth.stories.values();
        let mut second = stories.filter(|s| s.key.attempt == 1);
        w.started == [2, 2] && second.all(|s| s.outcome == Some(Outcome::Done))
    };
    assert_eq!(graph.cannot_reach(fresh, second_is_done), None);
}

/// As above for one attempt, with commands, frames and greetings that wait for each other.
#[test]
fn one_room_with_owners_of_sessions_that_fall_behind_keeps_the_contract() {
    let small = Size {
        losses: 1,
        eager: false,
        ..SIZE
    };
    let large = Size { aborts: 1, ..small };
    search_both("falls behind", (14_000, small), (17_000, large));
}

#[test]
fn one_room_with_a_panic_keeps_the_contract() {
    let small = Size {
        panics: 1,
        pushes: 1,
        prepared: false,
        checksum: true,
        acks: true,
        ..SIZE
    };
    let large = Size {
        panics: 2,
        losses: 1,
        pushes: 1,
        prepared: false,
        checksum: true,
        acks: true,
        ..SIZE
    };
    search_both("panic", (2_000, small), (25_000, large));
}
