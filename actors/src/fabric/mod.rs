//! Ways to move bytes. Each says of every piece what became of it, and never less.
//!
//! What a lane did with a piece is one of four different facts: landed, refused (the gate was
//! closed), errored, fenced. Only the first counts towards coverage. Today there is one fabric:
//!
//! | Fabric | Moves | Where its gate lives | What an abort costs |
//! |---|---|---|---|
//! | [`local`] | memcpy within the process | in the process | one piece |

pub mod local;

/// Why a piece did not land, or not all of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fact {
    /// The gate was closed; nothing was written.
    Refused,
    /// It could not be written; the text says why.
    Errored(String),
}
