//! The greeting, and what both sides conclude from it without asking further.
//!
//! ```text
//!   Hello ───────▶          ◀─────── Hello        both at once, first on every transport
//!
//!   accept(mine, theirs, known):
//!     cannot work together ─▶ Refusal, naming who has to change what
//!     lower incarnation    ─▶ Refusal::Superseded
//!     higher or unknown    ─▶ Fresh
//!     same, same session   ─▶ Resume
//!     same, other session  ─▶ Fresh, and the old session is lost
//! ```
//!
//! Both sides come to the same conclusion because each compares the same two greetings. Equal
//! incarnations are not enough to resume: when one side has given the session up, its numbers begin
//! again, and the other must not take them for numbers it has seen. So a session is named by the
//! nonces of the greetings it began with, and resumed only if both name the same one.

use crate::ids::{Incarnation, PoolId};
use kvroom_kernels::layout::{Mismatch, PoolLayout, explain};
use serde::{Deserialize, Serialize};

#[cfg(test)]
mod tests;

/// The protocol that this build speaks.
pub const PROTOCOL: u32 = 1;
/// Longest name of a node or a pool in bytes.
pub const MAX_NAME: usize = 64;
/// Most pools in one greeting.
pub const MAX_POOLS: usize = 64;

/// What a node can do, as a set of bits. Bits that this build does not know are ignored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Capabilities(pub u32);

impl Capabilities {
    /// It answers an abort with `Quiesced` only when no write can happen any more. Mandatory.
    pub const QUIESCENCE: Capabilities = Capabilities(1);
    /// It can sum what it wrote into `Complete`.
    pub const CHECKSUM: Capabilities = Capabilities(1 << 1);

    /// Both sets together.
    #[must_use]
    pub fn and(self, more: Capabilities) -> Capabilities {
        Capabilities(self.0 | more.0)
    }

    /// What both sets have.
    #[must_use]
    pub fn common(self, other: Capabilities) -> Capabilities {
        Capabilities(self.0 & other.0)
    }

    /// Whether all of `wanted` is here.
    pub fn has(self, wanted: Capabilities) -> bool {
        self.0 & wanted.0 == wanted.0
    }
}

/// A session's name: the nonces of the two greetings that it began with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SessionId {
    /// Nonce of the lower incarnation.
    pub lower: u64,
    /// Nonce of the higher incarnation.
    pub higher: u64,
}

/// The first message of each side on every transport.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Hello {
    /// Which protocol it speaks.
    pub protocol: u32,
    /// The node's name; 1 to [`MAX_NAME`] bytes.
    pub node: String,
    /// Its life.
    pub incarnation: Incarnation,
    /// Random, new for every greeting.
    pub nonce: u64,
    /// What it can do.
    pub capabilities: Capabilities,
    /// Its pools; at most [`MAX_POOLS`], ids and names unique.
    pub pools: Vec<(PoolId, PoolLayout)>,
    /// How many claims the other side may open at once in a new session.
    pub credit: u32,
    /// The session that it would resume, if it still has one with this peer.
    pub resume: Option<SessionId>,
    /// Highest number received in order in that session; 0 without one.
    pub received: u64,
}

/// What the two greetings agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// The session's name; put it in [`Hello::resume`] when the transport is lost.
    pub session: SessionId,
    /// What both can do.
    pub capabilities: Capabilities,
    /// How the session begins.
    pub start: Start,
}

/// How a session begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// A new session. The peer's `credit` holds.
    Fresh {
        /// What became of what was there before.
        before: Before,
    },
    /// The session goes on: call `Session::resume` with this.
    Resume {
        /// Highest number that the peer has received in order.
        received: u64,
    },
}

/// What was there before a fresh session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Before {
    /// Nothing that this node knows of.
    Unknown,
    /// An older life of the peer: the outcomes of its rooms end, their leases do not.
    OlderIncarnation,
    /// A session with this very incarnation that one side has given up. Give it up here too, and
    /// send `Abort` again for every draining claim.
    LostSession,
}

/// Who has to change something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// This node.
    Local,
    /// The other one.
    Peer,
    /// Whoever configures both.
    Configuration,
}

/// Why two nodes cannot talk.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Different protocols.
    #[error("{node} speaks protocol {theirs}, this node speaks {mine}: upgrade the lower one")]
    Protocol {
        /// The peer.
        node: String,
        /// This node's.
        mine: u32,
        /// The peer's.
        theirs: u32,
    },
    /// The peer cannot prove that it has stopped writing.
    #[error("{node} lacks the quiescence capability: its writes could never be proven over")]
    PeerLacksQuiescence {
        /// The peer.
        node: String,
    },
    /// This node did not offer what it demands.
    #[error("this node's greeting lacks the quiescence capability: a bug of this node")]
    LacksQuiescence,
    /// The address leads back to this node.
    #[error("the address leads back to this node ({node}): connect to another one")]
    SelfConnection {
        /// This node.
        node: String,
    },
    /// An older life of a node that was already here in a newer one.
    #[error("{node} is incarnation {theirs}, but {known} of it is known: it must stop")]
    Superseded {
        /// The peer.
        node: String,
        /// The newer incarnation.
        known: Incarnation,
        /// The one that greeted.
        theirs: Incarnation,
    },
    /// Pools of one name that cannot be copied onto each other.
    #[error("pool {pool} of {node} does not fit this node's: {what}")]
    Layout {
        /// The peer.
        node: String,
        /// The pool's name.
        pool: String,
        /// Every difference, here and there.
        what: String,
    },
}

impl Refusal {
    /// Who has to change something.
    pub fn fault(&self) -> Fault {
        match self {
            Refusal::LacksQuiescence => Fault::Local,
            Refusal::PeerLacksQuiescence { .. } | Refusal::Superseded { .. } => Fault::Peer,
            Refusal::Protocol { .. } | Refusal::SelfConnection { .. } | Refusal::Layout { .. } => {
                Fault::Configuration
            }
        }
    }
}

/// Compares two greetings. `known` is the newest incarnation of `theirs.node` that this node has
/// met in its life; whether there is a session to resume is said by `mine.resume`.
///
/// # Errors
/// [`Refusal`]; no session may be opened, and one that exists is untouched.
pub fn accept(
    mine: &Hello,
    theirs: &Hello,
    known: Option<Incarnation>,
) -> Result<Accepted, Refusal> {
    let node = || theirs.node.clone();
    if theirs.protocol != mine.protocol {
        let (mine, theirs) = (mine.protocol, theirs.protocol);
        return Err(Refusal::Protocol {
            node: node(),
            mine,
            theirs,
        });
    }
    if theirs.incarnation == mine.incarnation {
        return Err(Refusal::SelfConnection { node: node() });
    }
    if !mine.capabilities.has(Capabilities::QUIESCENCE) {
        return Err(Refusal::LacksQuiescence);
    }
    if !theirs.capabilities.has(Capabilities::QUIESCENCE) {
        return Err(Refusal::PeerLacksQuiescence { node: node() });
    }
    if let Some(known) = known
        && theirs.incarnation < known
    {
        return Err(Refusal::Superseded {
            node: node(),
            known,
            theirs: theirs.incarnation,
        });
    }
    for (_, here) in &mine.pools {
        let there = theirs
            .pools
            .iter()
            .map(|(_, layout)| layout)
            .find(|l| l.name == here.name);
        if let Some(what) = there
            .and_then(|there| explain(here, there).err())
            .map(|mismatch| in_words(&mismatch))
        {
            return Err(Refusal::Layout {
                node: node(),
                pool: here.name.clone(),
                what,
            });
        }
    }
    let capabilities = mine.capabilities.common(theirs.capabilities);
    let same_life = known == Some(theirs.incarnation);
    if same_life
        && let Some(session) = mine.resume
        && theirs.resume == Some(session)
    {
        let start = Start::Resume {
            received: theirs.received,
        };
        return Ok(Accepted {
            session,
            capabilities,
            start,
        });
    }
    let before = match known {
        None => Before::Unknown,
        Some(_) if same_life => Before::LostSession,
        Some(_) => Before::OlderIncarnation,
    };
    let session = if mine.incarnation < theirs.incarnation {
        SessionId {
            lower: mine.nonce,
            higher: theirs.nonce,
        }
    } else {
        SessionId {
            lower: theirs.nonce,
            higher: mine.nonce,
        }
    };
    Ok(Accepted {
        session,
        capabilities,
        start: Start::Fresh { before },
    })
}

fn in_words(mismatch: &Mismatch) -> String {
    let all: Vec<String> = mismatch
        .differences
        .iter()
        .map(|d| format!("{} {} here, {} there", d.field, d.src, d.dst))
        .collect();
    all.join("; ")
}
