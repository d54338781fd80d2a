//! The room machine: one life of one room, as typed states and pure transitions.
//!
//! ```text
//!     Registered ──▶ Transferring ──▶ Done
//!         │               │
//!         └──▶ Draining ◀─┘ ──▶ Aborted
//! ```
//!
//! A [`Room`] is told an [`Event`] and answers with its next state and a list of [`Effect`]s, which
//! are data: the room never sends, copies, closes, asks for the time or touches memory. Each state
//! is its own type in [`sender`] and [`receiver`]; a transition consumes the old state, so what the
//! picture does not show does not compile. Both ends (`Done`, `Aborted`) take a [`Quiescence`]:
//! the proof that no read or write of this life can happen any more. Only the custody record of the
//! supervisor makes one, out of witnesses.
//!
//! The outcome is published when it is known; the lease is returned with the `Quiescence`. For an
//! aborted room the first comes before the second, and `Draining` is what lies between.
//!
//! Generic over the witness type `W`: the runtime uses move-only witnesses that only gates and
//! tickets make, the model checker a cloneable stand-in.

pub(crate) mod actor;
pub mod event;
pub mod quiescence;
pub mod receiver;
pub mod sender;
#[cfg(test)]
mod table;
#[cfg(test)]
pub(crate) mod testing;

pub use event::{Chunk, Effect, Event, JobEnd, JobSpec, Note, Say, Timer};
pub use quiescence::Quiescence;

use crate::reason::Reason;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Which end of the transfer a room is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Role {
    /// Prefill: owns the source pages.
    Sender,
    /// Decode: owns the destination pages.
    Receiver,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Role::Sender => "sender",
            Role::Receiver => "receiver",
        })
    }
}

/// How a room ended. Delivered exactly once.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Outcome {
    /// Every piece of every leg was written, accounted once, and is visible.
    Done,
    /// It will not be done, and this is why.
    Aborted(Reason),
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Done => f.write_str("Done"),
            Outcome::Aborted(reason) => write!(f, "Aborted ({reason})"),
        }
    }
}

/// A state's name, for tables, logs and people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum StateName {
    /// Waits for its first leg.
    Registered,
    /// At least one leg is bound.
    Transferring,
    /// Ended; waits for proof that nobody touches its memory.
    Draining,
    /// Ended well; the lease is back.
    Done,
    /// Ended; the lease is back.
    Aborted,
}

impl fmt::Display for StateName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// One life of a room, in whichever state it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Room<W> {
    /// A prefill room.
    Sender(sender::Sender),
    /// A decode room.
    Receiver(receiver::Receiver<W>),
}

impl<W> Room<W> {
    /// Consumes the room, tells it `event`, and gives back its next state. What is to be done
    /// about it is appended to `out`.
    #[must_use]
    pub fn handle(self, event: Event<W>, out: &mut Vec<Effect<W>>) -> Room<W> {
        match self {
            Room::Sender(s) => Room::Sender(s.handle(event, out)),
            Room::Receiver(r) => Room::Receiver(r.handle(event, out)),
        }
    }

    /// The state's name.
    pub fn state(&self) -> StateName {
        match self {
            Room::Sender(s) => s.state(),
            Room::Receiver(r) => r.state(),
        }
    }

    /// Whether nothing can happen to the room any more: its actor may stop.
    pub fn is_over(&self) -> bool {
        matches!(self.state(), StateName::Done | StateName::Aborted)
    }

    /// The role.
    pub fn role(&self) -> Role {
        match self {
            Room::Sender(_) => Role::Sender,
            Room::Receiver(_) => Role::Receiver,
        }
    }
}
