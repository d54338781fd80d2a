//! The end of the daemon: every step has a bound, and who has not answered within it is named.
//!
//! ```text
//!   SIGTERM ─▶ health and canaries ─▶ the node ─▶ HTTP ─▶ threads ─▶ exit
//!                5 s                   deadlines.shutdown and 5 s    2 s     1 s
//! ```
//!
//! Rule: what stands still is left behind, and never waited for: whoever supervises the daemon kills it
//! otherwise, and nobody hears what was held.

use super::health::{self, Health};
use super::http::still;
use kvroom::{Node, ShutdownReport};
use std::time::Duration;
use tokio::time::timeout;

/// How long canaries and the health task may take.
const HEALTH: Duration = Duration::from_secs(5);
/// How long the node may take beyond its deadline: its last words have a second each.
const BEYOND: Duration = Duration::from_secs(5);
/// How long threads may take that read or write files.
pub(super) const FILES: Duration = Duration::from_secs(1);

/// How it ended.
pub(super) struct Stopped {
    /// What the node said, or that nothing is known to have drained.
    pub(super) report: ShutdownReport,
    /// Who did not answer in time.
    pub(super) silent: Vec<String>,
}

/// Ends the node and what watches it; `shutdown` is the node's own deadline.
pub(super) async fn stop(health: &Health, node: &Node, shutdown: Duration) -> Stopped {
    let mut silent = Vec::new();
    if timeout(HEALTH, health.stop()).await.is_err() {
        tracing::error!("the canaries do not end within {HEALTH:?}: they are left behind");
        silent.push("health".to_owned());
    }
    // Whoever waits for a room hears of its end, and may look at what is held, until all is drained.
    let before = node.pulse();
    let ended = async {
        tokio::select! {
            report = node.shutdown() => report,
            report = health::canaries_alone(node) => report,
        }
    };
    let patience = shutdown.saturating_add(BEYOND);
    let report = match timeout(patience, ended).await {
        Ok(report) => report,
        Err(_) => {
            let parts = still(&before, &node.pulse());
            silent.extend(parts.iter().map(ToString::to_string));
            if parts.is_empty() {
                silent.push("node".to_owned());
            }
            tracing::error!("the node does not end within {patience:?}: it is left behind");
            ShutdownReport {
                drained: false,
                leaked: Vec::new(),
            }
        }
    };
    Stopped { report, silent }
}
