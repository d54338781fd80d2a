//! A duplex pipe in memory between two nodes of one process: what a socket will be later.
//!
//! Carries batches of encoded frames, bounded in number. It can be cut, like a connection.

use tokio::sync::mpsc;

/// Batches that may be under way in each direction.
const DEPTH: usize = 256;

/// One end.
#[derive(Debug)]
pub(crate) struct PipeEnd {
    pub(crate) tx: mpsc::Sender<Vec<u8>>,
    pub(crate) rx: mpsc::Receiver<Vec<u8>>,
}

/// A new pipe's two ends.
pub(crate) fn pipe() -> (PipeEnd, PipeEnd) {
    let (a_tx, b_rx) = mpsc::channel(DEPTH);
    let (b_tx, a_rx) = mpsc::channel(DEPTH);
    (
        PipeEnd { tx: a_tx, rx: a_rx },
        PipeEnd { tx: b_tx, rx: b_rx },
    )
}
