//! Rooms that were started over HTTP: one task owns their handles.

mod request;
mod view;

use super::http::Routes;
use super::pools::Pools;
use kvroom::Node;

/// Asks the task that owns the rooms. Clones ask the same one.
#[derive(Clone)]
pub(crate) struct Rooms {}

impl Rooms {
    /// Starts the task.
    pub(crate) fn start(_node: Node, _pools: Pools) -> Rooms {
        Rooms {}
    }
}

/// The routes of this part.
pub(crate) fn routes() -> Routes {
    Routes::new()
}
