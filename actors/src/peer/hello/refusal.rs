//! Why two nodes cannot talk, and who has to change that.

use super::Protocols;
use crate::ids::Incarnation;
use serde::{Deserialize, Serialize};

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

/// What kind of refusal it was, for the other side to act upon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RefusalCode {
    /// Somebody has to change a configuration or a version first.
    Configuration,
    /// A newer life of the refused node is known: it has to stop.
    Superseded,
    /// Not now: the refusing node has no room for one more peer.
    Busy,
    /// The refusing node is going down.
    Stopping,
    /// The session was given up on purpose, and nobody has asked for a new one.
    Parted,
    /// What the text says.
    Other,
}

/// Why two nodes cannot talk.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No protocol that both speak.
    #[error("{node:?} speaks protocol {theirs}, this node speaks {mine}: upgrade the older one")]
    Protocol {
        /// The peer.
        node: String,
        /// This node's.
        mine: Protocols,
        /// The peer's.
        theirs: Protocols,
    },
    /// One of the two has a cluster key.
    #[error("{}: give both nodes the same cluster key, or none",
        if *.lacking_here {
            format!("this node has no cluster key, and {node:?} demands one")
        } else {
            format!("{node:?} has no cluster key, and this node demands one")
        })]
    OneKeyed {
        /// The peer.
        node: String,
        /// Whether it is this node that lacks the key.
        lacking_here: bool,
    },
    /// The peer did not show that it has the cluster key.
    #[error(
        "whoever calls itself {node:?} has another cluster key than this node, or is a stranger"
    )]
    BadMac {
        /// The name in its greeting, which is not proven.
        node: String,
    },
    /// The peer cannot prove that it has stopped writing.
    #[error("{node:?} lacks the quiescence capability: its writes could never be proven over")]
    PeerLacksQuiescence {
        /// The peer.
        node: String,
    },
    /// This node did not offer what it demands.
    #[error("this node's greeting lacks the quiescence capability: a bug of this node")]
    LacksQuiescence,
    /// The address leads back to this node.
    #[error("the address leads back to this node ({node:?}): connect to another one")]
    SelfConnection {
        /// This node.
        node: String,
    },
    /// An older life of a node that was already here in a newer one.
    #[error("{node:?} is incarnation {theirs}, but {known} of it is known: it must stop")]
    Superseded {
        /// The peer.
        node: String,
        /// The newer incarnation.
        known: Incarnation,
        /// The one that greeted.
        theirs: Incarnation,
    },
    /// Pools of one name that cannot be copied onto each other.
    #[error("pool {pool:?} of {node:?} does not fit this node's: {what}")]
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
            Refusal::Protocol { .. }
            | Refusal::OneKeyed { .. }
            | Refusal::BadMac { .. }
            | Refusal::SelfConnection { .. }
            | Refusal::Layout { .. } => Fault::Configuration,
        }
    }

    /// What the refused side is told besides the text.
    pub fn code(&self) -> RefusalCode {
        match self {
            Refusal::Superseded { .. } => RefusalCode::Superseded,
            _ => RefusalCode::Configuration,
        }
    }
}
