//! The flows of one class that have work, in a ring, each with what it may still copy this round.
//!
//! ```text
//!   ring:  ▶ flow 7 (40 KiB left) ─▶ flow 3 ─▶ flow 9 ─┐      a flow is in the ring exactly while
//!            ▲ serves until its budget is spent        │      it has jobs; its place in the table
//!            └─────────── then goes to the end ◀───────┘      is given to another one after that
//! ```

use super::list::{Linked, Links, List};
use std::collections::HashMap;

/// A flow with at least one job.
#[derive(Debug)]
pub(super) struct Flow {
    id: u64,
    pub(super) jobs: List,
    /// Bytes it may still copy in this round; above 0 while it is in the ring.
    deficit: i64,
    links: Links,
}

impl Linked for Flow {
    fn links(&mut self) -> &mut Links {
        &mut self.links
    }
}

/// All flows of one class.
#[derive(Debug)]
pub(super) struct Flows {
    table: Vec<Flow>,
    free: Vec<u32>,
    by_id: HashMap<u64, u32>,
    ring: List,
    quantum: i64,
}

impl Flows {
    /// `quantum` is what a flow may copy in one round, in bytes; at least 1.
    pub(super) fn new(quantum: i64) -> Self {
        Flows {
            table: Vec::new(),
            free: Vec::new(),
            by_id: HashMap::new(),
            ring: List::EMPTY,
            quantum,
        }
    }

    /// The flow whose turn it is; `NIL` if none has work.
    pub(super) fn front(&self) -> u32 {
        self.ring.head()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ring.is_empty()
    }

    /// How many flows have work.
    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    pub(super) fn find(&self, id: u64) -> Option<u32> {
        self.by_id.get(&id).copied()
    }

    /// The flow `id`, put at the end of the ring if it had no work.
    pub(super) fn find_or_add(&mut self, id: u64) -> u32 {
        if let Some(at) = self.find(id) {
            return at;
        }
        let flow = Flow {
            id,
            jobs: List::EMPTY,
            deficit: self.quantum,
            links: Links::NONE,
        };
        let at = match self.free.pop() {
            Some(at) => {
                self.table[at as usize] = flow;
                at
            }
            None => {
                self.table.push(flow);
                (self.table.len() - 1) as u32
            }
        };
        self.by_id.insert(id, at);
        self.ring.push_back(&mut self.table, at);
        at
    }

    pub(super) fn id(&self, at: u32) -> u64 {
        self.table[at as usize].id
    }

    pub(super) fn jobs(&mut self, at: u32) -> &mut List {
        &mut self.table[at as usize].jobs
    }

    /// Takes a flow that has no jobs left out of the ring. What it had left of its round is lost.
    pub(super) fn remove_if_empty(&mut self, at: u32) {
        if !self.table[at as usize].jobs.is_empty() {
            return;
        }
        self.ring.unlink(&mut self.table, at);
        self.by_id.remove(&self.table[at as usize].id);
        self.free.push(at);
        if self.by_id.is_empty() {
            // A burst of flows is forgotten with its last one.
            self.free.clear();
            self.table.clear();
            self.table.shrink_to(KEPT);
            self.by_id.shrink_to(KEPT);
            self.free.shrink_to(KEPT);
        }
    }

    /// The front flow copied `bytes`, at most one piece. With its round spent it goes to the end.
    pub(super) fn charge(&mut self, at: u32, bytes: u64) {
        let flow = &mut self.table[at as usize];
        flow.deficit -= i64::try_from(bytes).unwrap_or(i64::MAX);
        if flow.deficit <= 0 {
            flow.deficit += self.quantum;
            self.ring.unlink(&mut self.table, at);
            self.ring.push_back(&mut self.table, at);
        }
    }
}

/// How much of a table outlives its contents.
const KEPT: usize = 1024;
