//! What really happened, and what may never happen. Nodes do not read this.

use super::node::Lease;
use kvroom_actors::ids::{LifeId, RoomKey};
use kvroom_actors::room::{Outcome, Role};
use std::collections::{BTreeMap, BTreeSet};

/// A broken promise of the contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Broken {
    /// A destination was written after its lease was returned.
    S1LateWrite,
    /// A source was read after its lease was returned.
    S2TornSource,
    /// A receiver is `Done`, and not all of it is there.
    S3DoneIsNotAll,
    /// Two outcomes, or a lease returned twice.
    S5TwoEnds,
    /// A lease came back while a gate was open or entered, a claim could still be sent, or a job
    /// still carried it.
    S6NoProof,
    /// The sender is `Done`, and a receiver is not.
    SenderDoneAlone,
    /// A leg was told its end twice.
    ToldTwice,
    /// A sender said that it is out of a claim, and a copy was not.
    QuiescedWhileOut,
    /// A session counts another number of open claims than there are.
    CreditMiscounted,
    /// A session of two correct nodes accused one of them.
    Accused,
}

/// The life of one room, as an onlooker sees it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Story {
    pub(crate) key: RoomKey,
    pub(crate) role: Role,
    pub(crate) outcome: Option<Outcome>,
    pub(crate) returned: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Truth {
    pub(crate) broken: BTreeSet<Broken>,
    pub(crate) stories: BTreeMap<(usize, LifeId), Story>,
    pub(crate) lent: BTreeSet<Lease>,
    next_lease: u32,
}

impl Truth {
    pub(crate) fn lend(&mut self) -> Lease {
        let lease = Lease(self.next_lease);
        self.next_lease += 1;
        self.lent.insert(lease);
        lease
    }

    pub(crate) fn take_back(&mut self, lease: Lease) {
        if !self.lent.remove(&lease) {
            self.broken.insert(Broken::S5TwoEnds);
        }
    }

    pub(crate) fn publish(&mut self, node: usize, life: LifeId, outcome: Outcome) {
        match self.stories.get_mut(&(node, life)) {
            Some(story) if story.outcome.is_none() && !story.returned => {
                story.outcome = Some(outcome);
            }
            _ => {
                self.broken.insert(Broken::S5TwoEnds);
            }
        }
    }

    pub(crate) fn returned(&mut self, node: usize, life: LifeId) {
        match self.stories.get_mut(&(node, life)) {
            Some(story) if story.outcome.is_some() && !story.returned => story.returned = true,
            _ => {
                self.broken.insert(Broken::S5TwoEnds);
            }
        }
    }

    pub(crate) fn is_returned(&self, node: usize, life: LifeId) -> bool {
        self.stories.get(&(node, life)).is_none_or(|s| s.returned)
    }
}
