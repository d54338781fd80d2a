//! The signals that end the daemon.

use crate::cli::exit::Failure;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGTERM and SIGINT, from the moment this is made.
pub(super) struct Signals {
    term: Signal,
    int: Signal,
}

impl Signals {
    /// Takes them over from the system.
    pub(super) fn listen() -> Result<Signals, Failure> {
        let listen = |kind| {
            signal(kind).map_err(|e| Failure::Failed(format!("cannot listen to signals: {e}")))
        };
        Ok(Signals {
            term: listen(SignalKind::terminate())?,
            int: listen(SignalKind::interrupt())?,
        })
    }

    /// The name of the first one that comes.
    pub(super) async fn any(&mut self) -> &'static str {
        tokio::select! {
            _ = self.term.recv() => "SIGTERM",
            _ = self.int.recv() => "SIGINT",
        }
    }
}
