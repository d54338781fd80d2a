//! Every rule that can be turned off, and every planted bug: the shortest story of what it breaks.
//!
//! ```text
//!   rules_rows.rs: what is off, in which size, what must break
//!     │ breadth first, one property at a time ─▶ the shortest story ─▶ stories/NAME.snap
//!     └ the same size with nothing off, as deep ─▶ nothing of it is broken
//! ```
//!
//! - The number of steps is part of the story: a search that finds a longer one, or none, fails.
//! - What only shows as waiting for ever, or for a clock, is found backward, in the whole graph: a
//!   state from which no good end can be reached. The story is the shortest way there.
//! - `INSTA_UPDATE=always cargo test -p kvroom-actors --test model stories` writes the stories anew.

use crate::exhaustive::{OneRoom, SIZE};
use crate::model::node::In;
use crate::model::reach::{Class, Found, Graph, shortest};
use crate::model::size::{Plant, Size};
use crate::model::story_text::{broken_promise, tell, tell_on};
use crate::model::truth::Broken;
use crate::model::world::{Action, World};
use crate::rules_goals::Wrong;
use crate::rules_rows::{
    COPIES_AND_ENDS, KEPT_TWICE, LEASES, NAMES, NOT_YET, PLANTED, Row, SESSIONS, rows,
};
use kvroom_actors::ids::{PeerRef, RoomKey};
use kvroom_actors::peer::message::Body;
use kvroom_actors::switch::{Switch, with};
use std::time::Instant;

/// Longer than any story.
const DEEP: usize = 25;

/// Does it with all of these rules turned off.
fn without<R>(off: &[Switch], f: impl FnOnce() -> R) -> R {
    match off.split_first() {
        Some((first, others)) => with(*first, || without(others, f)),
        None => f(),
    }
}

impl Row {
    fn name(&self) -> String {
        let switches = self.off.iter().map(|s| format!("{s:?}"));
        let plant = self.plant.iter().map(|p| format!("{p:?}"));
        let names: Vec<String> = switches.chain(plant).collect();
        let name = names.join("_and_");
        // A second row of the same says what else it breaks.
        let same = rows().take_while(|row| !std::ptr::eq(*row, self));
        let mut same = same.filter(|row| row.off == self.off && row.plant == self.plant);
        match self.wrong {
            Wrong::Promise(broken) if same.next().is_some() => format!("{name}_breaks_{broken:?}"),
            _ => name,
        }
    }

    fn search(&self, size: Size, deep: usize) -> Found {
        let start = World::new(size);
        match self.wrong {
            Wrong::Promise(broken) => {
                shortest(start, deep, |_, w| w.truth.broken.contains(&broken))
            }
            Wrong::Step(_, is_wrong) => shortest(start, deep, is_wrong),
            Wrong::Stuck(goal) => {
                let graph = Graph::within(&OneRoom(size), goal.within);
                Found {
                    story: graph.cannot_reach_by(goal.by, goal.from, goal.to),
                    states: graph.len(),
                }
            }
        }
    }

    /// What is off, what happens, and what is broken by it.
    fn tell(&self, size: Size, story: &[Action]) -> String {
        let off = self
            .off
            .iter()
            .map(|s| format!("Off: {s:?}:{}\n", s.text()));
        let planted = self.plant.iter().map(|p| format!("Planted: {p:?}\n"));
        let head: String = off.chain(planted).collect();
        let start = World::new(size);
        let told = match self.wrong {
            Wrong::Promise(broken) => tell(start, story, broken_promise(broken)),
            Wrong::Step(name, _) => tell(start, story, name),
            Wrong::Stuck(goal) => {
                let in_time = !goal.by.contains(&Class::Deadline);
                tell_on(start, story, goal.name, in_time)
            }
        };
        format!("{head}\n{told}")
    }
}

fn are_found(rows: &[Row]) {
    for row in rows {
        let (name, started) = (row.name(), Instant::now());
        let size = Size {
            plant: row.plant,
            ..row.size
        };
        let (found, text) = without(row.off, || {
            let found = row.search(size, DEEP);
            let text = found.story.as_ref().map(|story| row.tell(size, story));
            (found, text)
        });
        let (Some(story), Some(text)) = (found.story, text) else {
            panic!("{name} is not found, in {} states", found.states);
        };
        insta::with_settings!({
            snapshot_path => "stories",
            prepend_module_to_snapshot => false,
            omit_expression => true,
        }, {
            insta::assert_snapshot!(name.clone(), text);
        });
        // What is planted beside a rule that is off does no harm by itself.
        let control = match row.off {
            [] => row.size,
            _ => size,
        };
        let clean = row.search(control, story.len());
        if let Some(story) = clean.story {
            panic!("{name}: broken without it\n{}", row.tell(control, &story));
        }
        println!(
            "{name}: {} steps, found in {} states; control {} states; {:.1?}",
            story.len(),
            found.states,
            clean.states,
            started.elapsed()
        );
    }
}

#[test]
fn a_rule_of_leases_that_is_off_is_found_with_its_shortest_story() {
    are_found(LEASES);
}

#[test]
fn a_rule_of_copies_and_ends_that_is_off_is_found_with_its_shortest_story() {
    are_found(COPIES_AND_ENDS);
}

#[test]
fn a_rule_of_names_that_is_off_is_found_with_its_shortest_story() {
    are_found(NAMES);
}

#[test]
fn a_rule_of_sessions_that_is_off_is_found_with_its_shortest_story() {
    are_found(SESSIONS);
}

#[test]
fn a_planted_bug_is_found_with_its_shortest_story() {
    are_found(PLANTED);
}

/// Who begins first makes no difference to the state, but one step of the two is the bad one.
#[test]
fn a_bad_step_is_found_where_another_way_leads_to_the_same_state() {
    let size = Size {
        prepared: false,
        ..SIZE
    };
    for first in [0, 1] {
        let bad = |before: &World, after: &World| {
            let one = before.started[first] == 1 && before.started[1 - first] == 0;
            one && after.started == [1, 1]
        };
        let found = shortest(World::new(size), 3, bad);
        assert_eq!(found.story.map(|s| s.len()), Some(2), "first {first}");
    }
}

#[test]
fn every_rule_that_can_be_turned_off_is_in_a_row() {
    for switch in Switch::ALL {
        let in_rows = rows().any(|row| row.off.contains(switch));
        let elsewhere = NOT_YET.iter().any(|(s, _)| s == switch);
        assert!(in_rows != elsewhere, "{switch:?}: {}", switch.text());
    }
    // Who is off only together with another one is said to do no harm alone.
    for switch in Switch::ALL {
        let has = |row: &Row| row.off.contains(switch);
        let is_alone = rows().any(|row| row.off.len() == 1 && has(row));
        let in_pair = rows().any(|row| row.off.len() > 1 && has(row));
        let is_kept_twice = KEPT_TWICE.iter().any(|(s, _)| s == switch);
        assert_eq!(in_pair && !is_alone, is_kept_twice, "{switch:?}");
    }
}

#[test]
fn every_promise_is_broken_in_a_row_and_every_planted_bug_is_in_one() {
    for broken in Broken::ALL {
        let breaks = |row: &Row| matches!(row.wrong, Wrong::Promise(b) if b == *broken);
        assert!(rows().any(breaks), "{broken:?} was never seen broken");
    }
    for plant in Plant::ALL {
        assert!(rows().any(|row| row.plant == Some(*plant)), "{plant:?}");
    }
    let mut names: Vec<String> = rows().map(Row::name).collect();
    names.sort();
    assert!(names.windows(2).all(|w| w[0] != w[1]), "{names:?}");
}

#[test]
fn rules_that_are_kept_twice_do_no_harm_when_one_is_off() {
    for (switch, size) in KEPT_TWICE {
        let pair = rows().find(|row| row.off.len() > 1 && row.off.contains(switch));
        let pair = pair.expect("it is off with another one in a row");
        let both = without(pair.off, || {
            let size = Size {
                plant: pair.plant,
                ..pair.size
            };
            pair.search(size, DEEP).story
        });
        // One more than the story of both.
        let deep = both.expect("both together do harm").len() + 1;
        let found = with(*switch, || {
            shortest(World::new(*size), deep, |_, w| !w.truth.broken.is_empty())
        });
        if let Some(story) = found.story {
            let text = with(*switch, || tell(World::new(*size), &story, "something"));
            panic!("{switch:?} alone\n{text}");
        }
        println!("{switch:?} alone: {} states, {deep} deep", found.states);
        assert!(found.states > 2_000, "{switch:?}: {} states", found.states);
    }
}

/// No world of the model has a peer that lies, so this one is told a lie.
#[test]
fn a_message_that_names_another_claim_moves_nothing() {
    let moved = || {
        let mut world = World::new(SIZE);
        world.apply(&Action::Start(1));
        let (tag, _) = world.plane.gates.iter().next().unwrap();
        let mut tag = *tag;
        tag.room = RoomKey::new(43, 0);
        let body = Body::Bound { tag };
        let peer = PeerRef(0);
        let node = &mut world.nodes[1];
        node.inbox.push_back(In::Message { peer, body });
        let _ = node.step_core();
        !node.mail.is_empty()
    };
    assert!(!moved());
    assert!(with(Switch::MessageByNumberAlone, moved));
}
