//! What really happened, and what may never happen. Nodes do not read this.
//!
//! ```text
//!   stories   each room, as an onlooker sees it
//!   places    destination pages: whose they are, and whose bytes are in them
//!   lent      sources that are out
//! ```

use super::node::Lease;
use kvroom_actors::ids::{LifeId, RoomKey};
use kvroom_actors::reason::Code;
use kvroom_actors::room::{Outcome, Role};
use std::collections::{BTreeMap, BTreeSet};

macro_rules! promises {
    ($($(#[doc = $text:literal])* $name:ident,)*) => {
        /// A broken promise of the contract.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub(crate) enum Broken { $($(#[doc = $text])* $name,)* }

        impl Broken {
            /// All of them.
            pub(crate) const ALL: &[Broken] = &[$(Broken::$name,)*];
        }
    };
}

promises! {
    /// A destination was written after its lease was returned.
    S1LateWrite,
    /// The same, and somebody else had leased it.
    S1WriteIntoAnother,
    /// A source was read after its lease was returned.
    S2TornSource,
    /// A receiver is `Done`, and not all of it is there.
    S3DoneIsNotAll,
    /// Pages were leased that a life had.
    S4TwoOwners,
    /// Two outcomes, or a lease returned twice.
    S5TwoEnds,
    /// A lease came back while a gate was open or entered, a claim could still be sent, or a job
    /// still carried it.
    S6NoProof,
    /// A receiver is `Done` with bytes of another request.
    S7WrongBytes,
    /// A room ended for nothing that happened to its request.
    S8HarmedByAnother,
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
    /// Its process died before its lease was back.
    pub(crate) died: bool,
}

/// A receiver's node, which life of its pool, and which of its pages.
pub(crate) type Place = (usize, u32, u32);

/// Destination pages that are not free.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Held {
    pub(crate) life: LifeId,
    /// Whose process died; the pool's next life keeps them until their writers are out.
    pub(crate) quarantined: bool,
    /// Whose bytes are in which cell, since they were leased.
    pub(crate) bytes: BTreeMap<u32, RoomKey>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Truth {
    pub(crate) broken: BTreeSet<Broken>,
    pub(crate) stories: BTreeMap<(usize, LifeId), Story>,
    pub(crate) places: BTreeMap<Place, Held>,
    /// Sources that are out, and on which node.
    pub(crate) lent: BTreeMap<Lease, usize>,
    /// Requests to which something was done.
    pub(crate) hurt: BTreeSet<RoomKey>,
    /// Something happened that every request may have felt.
    pub(crate) shaken: bool,
    next_lease: u32,
}

impl Truth {
    pub(crate) fn lend(&mut self, node: usize) -> Lease {
        let lease = Lease(self.next_lease);
        self.next_lease += 1;
        self.lent.insert(lease, node);
        lease
    }

    pub(crate) fn take_back(&mut self, lease: Lease) {
        if self.lent.remove(&lease).is_none() {
            self.broken.insert(Broken::S5TwoEnds);
        }
    }

    /// A caller leases these destination pages.
    pub(crate) fn occupy(&mut self, place: Place, life: LifeId) {
        let held = Held {
            life,
            quarantined: false,
            bytes: BTreeMap::new(),
        };
        if self
            .places
            .insert(place, held)
            .is_some_and(|old| !old.quarantined)
        {
            self.broken.insert(Broken::S4TwoOwners);
        }
    }

    /// What a dead process had leased is in nobody's way any more, its pool's next life says.
    pub(crate) fn freed(&mut self, place: Place) {
        self.places.remove(&place);
    }

    /// Bytes of request `key` change `cells` of `place`, on a claim of `life`.
    pub(crate) fn write(&mut self, place: Place, life: LifeId, cells: Vec<u32>, key: RoomKey) {
        match self.places.get_mut(&place) {
            Some(held) if held.life == life => {
                held.bytes.extend(cells.into_iter().map(|cell| (cell, key)));
            }
            other => {
                if other.is_some() {
                    self.broken.insert(Broken::S1WriteIntoAnother);
                }
                self.broken.insert(Broken::S1LateWrite);
            }
        }
    }

    /// Whose bytes are where, in the destination of a life.
    pub(crate) fn bytes(&self, node: usize, life: LifeId) -> BTreeMap<u32, RoomKey> {
        let mut held = self.places.iter();
        let of = held.find(|((n, ..), h)| *n == node && h.life == life);
        of.map(|(_, h)| h.bytes.clone()).unwrap_or_default()
    }

    pub(crate) fn publish(&mut self, node: usize, life: LifeId, outcome: Outcome) {
        match self.stories.get_mut(&(node, life)) {
            Some(story) if story.outcome.is_none() && !story.returned => {
                if let Outcome::Aborted(reason) = &outcome {
                    let lost = matches!(
                        reason.code,
                        Code::SessionLost | Code::PeerLost | Code::PeerRestarted
                    );
                    let has_cause = self.hurt.contains(&story.key) || (lost && self.shaken);
                    if !has_cause {
                        self.broken.insert(Broken::S8HarmedByAnother);
                    }
                }
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
        self.places
            .retain(|(n, ..), held| *n != node || held.life != life);
    }

    pub(crate) fn is_returned(&self, node: usize, life: LifeId) -> bool {
        self.stories.get(&(node, life)).is_none_or(|s| s.returned)
    }

    /// A node's process dies, and its memory with it, but for a pool that survives.
    pub(crate) fn die(&mut self, node: usize, survives: bool) {
        self.shaken = true;
        for ((n, _), story) in &mut self.stories {
            story.died |= *n == node && !story.returned;
        }
        self.lent.retain(|_, n| *n != node);
        self.places.retain(|(n, ..), held| {
            held.quarantined |= *n == node;
            *n != node || survives
        });
    }
}
