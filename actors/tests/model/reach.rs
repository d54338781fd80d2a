//! The whole graph of a model, kept: from where can its ends be reached?
//!
//! ```text
//!   forward   breadth first from the start, every action        properties, shortest stories
//!   backward  from the ends, over all but aborts and faults      states that can reach none
//! ```
//!
//! The checker of stateright has no answer for "from everywhere an end can be reached" in a graph
//! with cycles; this has, for a graph that fits in memory.

use super::world::{Action, World};
use crate::exhaustive::OneRoom;
use stateright::{Expectation, Model};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

/// How a state came to be seen first: its parent, and what was done there.
type Parent = Option<(u32, Action)>;

pub(crate) struct Graph {
    parents: Vec<Parent>,
    worlds: Vec<World>,
    /// Edges of progress, backward.
    back: Vec<Vec<u32>>,
    /// The first property that some state breaks, and the shortest way there.
    pub(crate) broken: Option<(&'static str, Vec<Action>)>,
    /// What should happen somewhere, and does not.
    pub(crate) never_seen: BTreeSet<&'static str>,
}

impl Graph {
    pub(crate) fn of(model: &OneRoom) -> Graph {
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
        for world in model.init_states() {
            queue.push_back(graph.see(&mut known, world, None).0);
        }
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
            for (action, is_progress, next) in successors(world) {
                let (to, new) = graph.see(&mut known, next, Some((at, action)));
                if new {
                    queue.push_back(to);
                }
                if is_progress {
                    graph.back[to as usize].push(at);
                }
            }
        }
        graph
    }

    pub(crate) fn len(&self) -> usize {
        self.worlds.len()
    }

    /// The way to the first state of `from` that can reach none of `to`.
    pub(crate) fn cannot_reach(
        &self,
        from: impl Fn(&World) -> bool,
        to: impl Fn(&World) -> bool,
    ) -> Option<Vec<Action>> {
        let mut can: Vec<bool> = self.worlds.iter().map(to).collect();
        let mut open: Vec<u32> = (0..self.worlds.len() as u32)
            .filter(|at| can[*at as usize])
            .collect();
        while let Some(at) = open.pop() {
            for before in &self.back[at as usize] {
                if !std::mem::replace(&mut can[*before as usize], true) {
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
        let mut hasher = DefaultHasher::new();
        world.hash(&mut hasher);
        let next = self.worlds.len() as u32;
        let at = *known.entry(hasher.finish()).or_insert(next);
        if at == next {
            self.worlds.push(world);
            self.parents.push(by);
            self.back.push(Vec::new());
        }
        (at, at == next)
    }

    fn story(&self, mut at: u32) -> Vec<Action> {
        let mut story = Vec::new();
        while let Some((parent, action)) = &self.parents[at as usize] {
            story.push(action.clone());
            at = *parent;
        }
        story.reverse();
        story
    }
}

/// What can happen, whether it is progress, and the world after it.
fn successors(world: &World) -> Vec<(Action, bool, World)> {
    let progress = [world.fair(), world.calls(), world.clocks(), world.healing()];
    let others = [world.aborts(), world.faults()];
    let progress = progress.into_iter().flatten().map(|a| (a, true));
    let others = others.into_iter().flatten().map(|a| (a, false));
    let apply = |(action, is_progress)| {
        let mut next = world.clone();
        next.apply(&action);
        (action, is_progress, next)
    };
    progress.chain(others).map(apply).collect()
}
