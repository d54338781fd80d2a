//! Pools of other processes: one task owns them.

use super::http::Routes;
use kvroom::Node;

/// Asks the task that owns the pools. Clones ask the same one.
#[derive(Clone)]
pub(crate) struct Pools {}

impl Pools {
    /// Starts the task.
    pub(crate) fn start(_node: Node) -> Pools {
        Pools {}
    }
}

/// The routes of this part.
pub(crate) fn routes() -> Routes {
    Routes::new()
}
