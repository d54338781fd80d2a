//! Every order of everything, for one room: a stateright search of the whole world.
//!
//! Inner steps of a node are taken at once here; `random.rs` lets mailboxes fall behind.

use crate::model::truth::Broken;
use crate::model::world::{Action, Size, World};
use kvroom_actors::room::Outcome;
use stateright::{Checker, Model, Property};

/// One room on each node, and how much may go wrong.
struct OneRoom(Size);

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
            world.is_empty()
                && stories.len() == world.nodes.len()
                && stories
                    .values()
                    .all(|s| (s.outcome == Some(Outcome::Done)) == done)
        }
        vec![
            Property::always("S1: no late write", |_, w| kept(w, Broken::S1LateWrite)),
            Property::always("S2: no torn source", |_, w| kept(w, Broken::S2TornSource)),
            Property::always("S3: done means all", |_, w| kept(w, Broken::S3DoneIsNotAll)),
            Property::always("S5: one end", |_, w| kept(w, Broken::S5TwoEnds)),
            Property::always("S6: proof, not patience", |_, w| kept(w, Broken::S6NoProof)),
            Property::always("a sender is done only when its receivers are", |_, w| {
                kept(w, Broken::SenderDoneAlone)
            }),
            Property::always("a leg is told its end once", |_, w| {
                kept(w, Broken::ToldTwice)
            }),
            Property::always("at rest nothing is held", |_, w: &World| {
                w.is_empty() || !w.is_at_rest()
            }),
            Property::sometimes("all are done", |_, w| all(w, true)),
            Property::sometimes("all are aborted", |_, w| all(w, false)),
        ]
    }
}

fn search(name: &str, size: Size) -> usize {
    let checker = OneRoom(size).checker().threads(2).spawn_bfs().join();
    println!("{name}: {} unique states", checker.unique_state_count());
    checker.assert_properties();
    checker.unique_state_count()
}

const SIZE: Size = Size {
    receivers: 1,
    attempts: 1,
    checksum: false,
    chunks: &[(0, 4)],
    pushes: 1,
    losses: 0,
    panics: 0,
    aborts: 2,
    at_once: true,
    failures: false,
};

#[test]
fn one_room_with_aborts_of_both_sides_keeps_the_contract() {
    let states = search("aborts", SIZE);
    assert!(states > 500, "the search saw only {states} states");
}

#[test]
fn one_room_with_a_lost_session_keeps_the_contract() {
    let states = search(
        "lost session",
        Size {
            aborts: 1,
            losses: 1,
            ..SIZE
        },
    );
    assert!(states > 500, "the search saw only {states} states");
}

#[test]
fn one_room_with_a_panic_keeps_the_contract() {
    let states = search(
        "panic",
        Size {
            aborts: 0,
            panics: 1,
            checksum: true,
            ..SIZE
        },
    );
    assert!(states > 500, "the search saw only {states} states");
}
