//! Where nodes of one process find each other: names, like ports of a host.
//!
//! The hub holds nothing of a room and nothing of a node but the way to knock.

use crate::ids::Incarnation;
use crate::memory::GateTable;
use crate::peer::pipe::PipeEnd;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::mpsc;

/// Joins nodes of one process. Clones are the same hub; there is no global one.
#[derive(Clone, Debug, Default)]
pub struct LocalHub {
    doors: Arc<Mutex<BTreeMap<String, Door>>>,
}

/// One node's door.
#[derive(Clone, Debug)]
pub(crate) struct Door {
    pub(crate) knock: mpsc::Sender<Knock>,
    pub(crate) gates: Arc<GateTable>,
    /// The life of the node behind it.
    pub(crate) incarnation: Incarnation,
}

/// Somebody connects.
#[derive(Debug)]
pub(crate) struct Knock {
    pub(crate) pipe: PipeEnd,
    pub(crate) gates: Arc<GateTable>,
}

impl LocalHub {
    /// An empty hub.
    pub fn new() -> Self {
        LocalHub::default()
    }

    /// The names in it.
    pub fn names(&self) -> Vec<String> {
        self.lock().keys().cloned().collect()
    }

    /// Enters a name; false if a living node has it.
    pub(crate) fn enter(&self, name: &str, door: Door) -> bool {
        let mut doors = self.lock();
        if doors.get(name).is_some_and(|d| !d.knock.is_closed()) {
            return false;
        }
        doors.insert(name.to_owned(), door);
        true
    }

    pub(crate) fn leave(&self, name: &str, gates: &Arc<GateTable>) {
        let mut doors = self.lock();
        if doors
            .get(name)
            .is_some_and(|d| Arc::ptr_eq(&d.gates, gates))
        {
            doors.remove(name);
        }
    }

    pub(crate) fn door(&self, name: &str) -> Option<Door> {
        self.lock().get(name).cloned()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Door>> {
        self.doors.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
