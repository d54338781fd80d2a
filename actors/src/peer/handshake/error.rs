//! Why a handshake came to nothing.

use crate::peer::hello::{Fault, Refusal, SessionId};
use crate::peer::wire::{self, WireError};

/// Why a handshake came to nothing on this end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// This node refuses. If the peer was proven, it was told.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The bytes are no greeting, or this node's may not be sent.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// A message that does not belong here.
    #[error("the other end sent {got}, where {expected} belongs")]
    OutOfOrder {
        /// What came.
        got: &'static str,
        /// What was waited for.
        expected: &'static str,
    },
    /// The two nodes do not mean the same session.
    #[error("the other end accepted session {theirs:?}, this node {mine:?}: connect again")]
    Disagreed {
        /// This node's.
        mine: SessionId,
        /// The peer's.
        theirs: SessionId,
    },
    /// The peer closed the connection when it had this node's MAC.
    #[error("{node:?} closed the connection upon this node's MAC: the cluster keys differ")]
    MacNotTaken {
        /// The name in its greeting, which is not proven.
        node: String,
    },
    /// The peer closed the connection.
    #[error("the other end closed the connection, where {expected} belongs")]
    Closed {
        /// What was waited for.
        expected: &'static str,
    },
    /// A call out of order: a bug of this node.
    #[error("{called} was called, where {expected} belongs: a bug of this node")]
    Misused {
        /// The call.
        called: &'static str,
        /// What was waited for.
        expected: &'static str,
    },
}

impl HandshakeError {
    /// Who has to change something. None if it is enough to connect again.
    pub fn fault(&self) -> Option<Fault> {
        match self {
            HandshakeError::Refused(refusal) => Some(refusal.fault()),
            HandshakeError::Wire(error) => match error.fault() {
                wire::Fault::Local => Some(Fault::Local),
                wire::Fault::Peer => Some(Fault::Peer),
                wire::Fault::Transport => None,
            },
            HandshakeError::OutOfOrder { .. } => Some(Fault::Peer),
            HandshakeError::MacNotTaken { .. } => Some(Fault::Configuration),
            HandshakeError::Misused { .. } => Some(Fault::Local),
            HandshakeError::Disagreed { .. } | HandshakeError::Closed { .. } => None,
        }
    }
}
