//! The flight recorder over HTTP, and as files when something is wrong.
//!
//! ```text
//!   GET /v1/recording ──▶ Node::recorder().read(…) ──▶ application/jsonl
//!   watcher (a second) ── a room is stuck ──┐
//!   SIGUSR1 ────────────────────────────────┼──▶ Dumps ──▶ dump_dir/kvroom-NODE-WHY-N.jsonl
//!   panic hook ── a thread for that ────────┘
//! ```
//!
//! Rules: reading asks no shard. A dump appears under its name when it is whole. A process writes at most
//! 64 of them, and so many for each reason ([`dump::Why`]), so that no storm fills a disk or takes the dumps
//! of another reason; what is not written is logged, and does not count.

mod dump;
mod route;
mod watch;

pub(crate) use dump::Dumps;
pub(crate) use route::{AT_A_TIME, routes};

use super::tasks::{Tasks, Without};
use kvroom::Node;
use std::io;
use std::path::PathBuf;

/// Starts what writes dumps.
///
/// # Errors
/// A thread could not be started, or there can be no such folder.
pub(crate) fn start(node: &Node, dump_dir: Option<PathBuf>, tasks: &Tasks) -> io::Result<Dumps> {
    if let Some(dir) = &dump_dir {
        std::fs::create_dir_all(dir).map_err(|e| {
            let text = format!(
                "recorder.dump_dir {}: it is no folder, and none can be made: {e}",
                dir.display()
            );
            io::Error::new(e.kind(), text)
        })?;
    }
    let dumps = Dumps::new(node.clone(), dump_dir);
    dumps.on_panic()?;
    let stuck = watch::stuck_rooms(node.clone(), dumps.clone());
    tasks.spawn("watch for stuck rooms", Without::NotReady, stuck);
    // At once, and not when a task has its turn: who has been told that the daemon is ready may send one.
    if let Some(signals) = watch::signals() {
        let signal = watch::signal(signals, dumps.clone());
        tasks.spawn("watch for SIGUSR1", Without::NotReady, signal);
    }
    Ok(dumps)
}
