//! A node's own table of which pages are leased: what it gives away, and when it takes them back.
//!
//! ```text
//!   free ──lease──▶ leased ──Return──▶ free
//!                     └─ process dies, pool survives ─▶ left ─ all writers are out ─▶ free
//! ```
//!
//! It goes by what the node was told. `Truth` has its own account, and checks this one by it.

use kvroom_actors::ids::LifeId;
use std::collections::BTreeMap;

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Pages {
    taken: BTreeMap<u32, Taken>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Taken {
    life: LifeId,
    /// Its process is over.
    left: bool,
}

impl Pages {
    /// The first pages that are free.
    pub(crate) fn lease(&mut self, life: LifeId) -> u32 {
        let mut at = 0;
        while self.taken.contains_key(&at) {
            at += 1;
        }
        self.taken.insert(at, Taken { life, left: false });
        at
    }

    /// The pages that this life has.
    pub(crate) fn of(&self, life: LifeId) -> Option<u32> {
        let mut taken = self.taken.iter();
        taken.find(|(_, t)| t.life == life).map(|(at, _)| *at)
    }

    /// The pages that are not free.
    pub(crate) fn taken(&self) -> impl Iterator<Item = (u32, LifeId)> {
        self.taken.iter().map(|(at, t)| (*at, t.life))
    }

    pub(crate) fn give_back(&mut self, life: LifeId) {
        self.taken.retain(|_, t| t.life != life);
    }

    /// The process that leased them is over, and the pool with it unless that survives.
    pub(crate) fn die(&mut self, survives: bool) {
        self.taken.retain(|_, _| survives);
        self.taken.values_mut().for_each(|t| t.left = true);
    }

    /// What a former life left is free where nobody is `busy`. Says which.
    pub(crate) fn settle(&mut self, busy: impl Fn(u32, LifeId) -> bool) -> Vec<u32> {
        let taken = self.taken.iter();
        let free = taken.filter(|(at, t)| t.left && !busy(**at, t.life));
        let free: Vec<u32> = free.map(|(at, _)| *at).collect();
        self.taken.retain(|at, _| !free.contains(at));
        free
    }
}
