//! Sessions between the sender (node 0) and each receiver: in order, lossy only as a whole.
//!
//! Stands in for the session core: numbers claims in the order in which they are queued, and says
//! `ClaimNotOpened` for those that it will never send.

use kvroom_actors::ids::{ClaimId, ClaimNo, Incarnation, LegNo, LifeId, RoomKey};
use kvroom_actors::peer::message::{Body, ClaimTag};
use kvroom_actors::room::event::LegTerms;
use std::collections::VecDeque;
use std::sync::Arc;

/// What travels.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Msg {
    Claim { tag: ClaimTag, terms: Arc<LegTerms> },
    Body(Body),
}

/// A claim without a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Pending {
    pub(crate) life: LifeId,
    pub(crate) leg: LegNo,
    pub(crate) key: RoomKey,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Session {
    receiver: u64,
    up: bool,
    last: u64,
    pub(crate) pending: VecDeque<Pending>,
    pub(crate) to_sender: VecDeque<Msg>,
    pub(crate) to_receiver: VecDeque<Msg>,
}

impl Session {
    pub(crate) fn new(receiver: usize) -> Self {
        Session {
            receiver: receiver as u64,
            up: true,
            last: 0,
            pending: VecDeque::new(),
            to_sender: VecDeque::new(),
            to_receiver: VecDeque::new(),
        }
    }

    pub(crate) fn is_up(&self) -> bool {
        self.up
    }

    /// The oldest waiting claim gets its number.
    pub(crate) fn number(&mut self) -> Option<(Pending, ClaimTag)> {
        let pending = self.pending.pop_front()?;
        self.last += 1;
        let life = |node| Incarnation {
            started_ns: node,
            nonce: 0,
        };
        let tag = ClaimTag {
            id: ClaimId {
                receiver: life(self.receiver),
                sender: life(0),
                number: ClaimNo(self.last),
            },
            room: pending.key,
        };
        Some((pending, tag))
    }

    /// Takes a waiting claim back; false if it has its number already.
    pub(crate) fn withdraw(&mut self, life: LifeId, leg: LegNo) -> bool {
        let before = self.pending.len();
        self.pending.retain(|p| (p.life, p.leg) != (life, leg));
        before != self.pending.len()
    }

    pub(crate) fn send_to_sender(&mut self, msg: Msg) {
        if self.up {
            self.to_sender.push_back(msg);
        }
    }

    pub(crate) fn send_to_receiver(&mut self, msg: Msg) {
        if self.up {
            self.to_receiver.push_back(msg);
        }
    }

    /// All that is under way is lost. Gives back the claims that will never be sent.
    pub(crate) fn lose(&mut self) -> Vec<Pending> {
        self.up = false;
        self.to_sender.clear();
        self.to_receiver.clear();
        self.pending.drain(..).collect()
    }

    pub(crate) fn back(&mut self) {
        self.up = true;
    }
}
