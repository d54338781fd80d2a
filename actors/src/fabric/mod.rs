//! Ways to move bytes. Each says of every piece what became of it, and never less.
//!
//! What a lane did with a piece is one of four different facts: landed, refused (the gate was
//! closed), errored, fenced. Only the first counts towards coverage. There are two fabrics:
//!
//! | Fabric | Moves | Where its gate lives | What an abort costs |
//! |---|---|---|---|
//! | [`local`] | memcpy within the process | in the process | one piece |
//! | `tcp` | frames over stream connections, page to page | in the receiving process | one read |

pub mod local;
pub(crate) mod stream;
pub(crate) mod tcp;

use crate::memory::GateTable;
use std::sync::Arc;

/// How bytes get to one life of a peer.
#[derive(Clone, Debug)]
pub(crate) enum PeerRoute {
    /// It is in this process; these are its gates.
    Local(Arc<GateTable>),
    /// It is in another process.
    Tcp(tcp::TcpRoute),
}

/// Why a piece did not land, or not all of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fact {
    /// The gate was closed; nothing was written.
    Refused,
    /// It could not be written; the text says why.
    Errored(String),
}
