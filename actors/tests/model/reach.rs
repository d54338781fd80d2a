//! The whole graph of a model, kept: from where can its ends be reached? And the shortest way to a
//! state that breaks something.
//!
//! ```text
//!   forward   breadth first from the start, every action        properties, shortest stories
//!   backward  from the ends, over actions of chosen classes      states that can reach none
//!
//!   fair      happens if nobody interferes      deadline  a clock runs out
//!   call      callers go on                     abort     callers end it
//!   healing   somebody connects again           fault     something goes wrong
//! ```
//!
//! The checker of stateright has no answer for "from everywhere an end can be reached" in a graph
//! with cycles, and its first counter-example is not the shortest; this has, for a graph that fits in
//! memory.

use super::world::{Action, World};
use crate::exhaustive::OneRoom;
use stateright::{Expectation, Model};
use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

/// What kind of thing an action is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Fair,
    Call,
    Healing,
    Deadline,
    Abort,
    Fault,
}

/// All of them.
pub(crate) const EVERY: &[Class] = &[
    Class::Fair,
    Class::Call,
    Class::Healing,
    Class::Deadline,
    Class::Abort,
    Class::Fault,
];
/// What may be counted on, with time.
pub(crate) const PROGRESS: &[Class] = &[Class::Fair, Class::Call, Class::Healing, Class::Deadline];
/// The same for who does not wait for a clock.
pub(crate) const IN_TIME: &[Class] = &[Class::Fair, Class::Call, Class::Healing];

/// How a state came to be seen first: its parent, and what was done there.
type Parent = Option<(u32, Action)>;

pub(crate) struct Graph {
    parents: Vec<Parent>,
    worlds: Vec<World>,
    /// Edges, backward.
    back: Vec<Vec<(u32, Class)>>,
    /// The first property that some state breaks, and the shortest way there.
    pub(crate) broken: Option<(&'static str, Vec<Action>)>,
    /// What should happen somewhere, and does not.
    pub(crate) never_seen: BTreeSet<&'static str>,
}

impl Graph {
    pub(crate) fn of(model: &OneRoom) -> Graph {
        Graph::within(model, EVERY)
    }

    /// What actions of these classes alone can bring about.
    pub(crate) fn within(model: &OneRoom, classes: &[Class]) -> Graph {
        Graph::since(World::new(model.0), classes)
    }

    /// The same for a world in which something has happened already.
    pub(crate) fn since(start: World, classes: &[Class]) -> Graph {
        let model = &OneRoom(start.size);
        let properties = model.properties();
        let sometimes = properties.iter();
        let sometimes = sometimes.filter(|p| p.expectation == Expectation::Sometimes);
        let mut graph = Graph {
            parents: Vec::new(),
            worlds: Vec::new(),
            back: Vec::new(),
            broken: None,
            never_seen: sometimes.map(|p| p.name).collect(),
        };
        let mut known = HashMap::new();
        let mut queue = VecDeque::new();
        queue.push_back(graph.see(&mut known, start, None).0);
        while let Some(at) = queue.pop_front() {
            let world = &graph.worlds[at as usize];
            for p in &properties {
                let holds = (p.condition)(model, world);
                if p.expectation == Expectation::Sometimes && holds {
                    graph.never_seen.remove(p.name);
                }
                if p.expectation == Expectation::Always && !holds && graph.broken.is_none() {
                    graph.broken = Some((p.name, graph.story(at)));
                }
            }
            let next = actions(world).into_iter();
            for (action, class) in next.filter(|(_, class)| classes.contains(class)) {
                let next = after(&graph.worlds[at as usize], &action);
                let (to, new) = graph.see(&mut known, next, Some((at, action)));
                if new {
                    queue.push_back(to);
                }
                graph.back[to as usize].push((at, class));
            }
        }
        graph
    }

    pub(crate) fn len(&self) -> usize {
        self.worlds.len()
    }

    /// The way to the first state of `from` that can reach none of `to`, whatever is done but aborts
    /// and faults.
    pub(crate) fn cannot_reach(
        &self,
        from: impl Fn(&World) -> bool,
        to: impl Fn(&World) -> bool,
    ) -> Option<Vec<Action>> {
        self.cannot_reach_by(PROGRESS, from, to)
    }

    /// The shortest way to a state of `from` that can reach none of `to` by actions of `classes`.
    pub(crate) fn cannot_reach_by(
        &self,
        classes: &[Class],
        from: impl Fn(&World) -> bool,
        to: impl Fn(&World) -> bool,
    ) -> Option<Vec<Action>> {
        let mut can: Vec<bool> = self.worlds.iter().map(to).collect();
        let mut open: Vec<u32> = (0..self.worlds.len() as u32)
            .filter(|at| can[*at as usize])
            .collect();
        while let Some(at) = open.pop() {
            for (before, class) in &self.back[at as usize] {
                let by = classes.contains(class);
                if by && !std::mem::replace(&mut can[*before as usize], true) {
                    open.push(*before);
                }
            }
        }
        let stuck = can.iter().zip(&self.worlds);
        let at = stuck.enumerate().find(|(_, (can, w))| !**can && from(w))?.0;
        Some(self.story(at as u32))
    }

    /// Gives the state its place; true if it is new.
    fn see(&mut self, known: &mut HashMap<u64, u32>, world: World, by: Parent) -> (u32, bool) {
        let next = self.worlds.len() as u32;
        let at = *known.entry(fingerprint(&world)).or_insert(next);
        if at == next {
            self.worlds.push(world);
            self.parents.push(by);
            self.back.push(Vec::new());
        }
        (at, at == next)
    }

    fn story(&self, at: u32) -> Vec<Action> {
        way_to(&self.parents, at)
    }
}

/// What a search for one kind of state found.
pub(crate) struct Found {
    /// The shortest way there, if there is one.
    pub(crate) story: Option<Vec<Action>>,
    /// States looked at.
    pub(crate) states: usize,
}

/// The shortest way to a step that is `bad`, told by the states around it, breadth first. Without one,
/// all states were looked at that are fewer than `deep` steps away.
pub(crate) fn shortest(start: World, deep: usize, bad: impl Fn(&World, &World) -> bool) -> Found {
    let mut parents: Vec<Parent> = vec![None];
    let mut known = HashSet::from([fingerprint(&start)]);
    let mut queue = VecDeque::from([(0u32, 0usize, start)]);
    while let Some((at, depth, world)) = queue.pop_front() {
        if depth == deep {
            break;
        }
        for (action, _) in actions(&world) {
            let next = after(&world, &action);
            // A step may be bad although another way led to the same state.
            let is_bad = bad(&world, &next);
            if !known.insert(fingerprint(&next)) && !is_bad {
                continue;
            }
            let to = parents.len() as u32;
            parents.push(Some((at, action)));
            if is_bad {
                return Found {
                    story: Some(way_to(&parents, to)),
                    states: parents.len(),
                };
            }
            queue.push_back((to, depth + 1, next));
        }
    }
    Found {
        story: None,
        states: parents.len(),
    }
}

fn way_to(parents: &[Parent], mut at: u32) -> Vec<Action> {
    let mut story = Vec::new();
    while let Some((parent, action)) = &parents[at as usize] {
        story.push(action.clone());
        at = *parent;
    }
    story.reverse();
    story
}

fn fingerprint(world: &World) -> u64 {
    let mut hasher = DefaultHasher::new();
    world.hash(&mut hasher);
    hasher.finish()
}

fn after(world: &World, action: &Action) -> World {
    let mut next = world.clone();
    next.apply(action);
    next
}

/// What can happen, and what kind of thing it is.
fn actions(world: &World) -> Vec<(Action, Class)> {
    let all = [
        (world.fair(), Class::Fair),
        (world.calls(), Class::Call),
        (world.clocks(), Class::Deadline),
        (world.healing(), Class::Healing),
        (world.aborts(), Class::Abort),
        (world.faults(), Class::Fault),
    ];
    let of = |(actions, class): (Vec<Action>, Class)| actions.into_iter().map(move |a| (a, class));
    all.into_iter().flat_map(of).collect()
}
