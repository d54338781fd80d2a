//! A duplex pipe in memory between two nodes of one process: what a socket will be later.
//!
//! Carries batches of encoded frames, bounded in number. It can be cut, like a connection. Emptied
//! buffers go back the other way, so that a busy pipe allocates nothing.

use tokio::sync::mpsc;

/// Batches that may be under way in each direction.
const DEPTH: usize = 256;

/// Emptied buffers that may be on their way back.
const SPARE: usize = 8;

/// One end.
#[derive(Debug)]
pub(crate) struct PipeEnd {
    pub(crate) tx: mpsc::Sender<Vec<u8>>,
    pub(crate) rx: mpsc::Receiver<Vec<u8>>,
    /// Where buffers that came in go when they are empty.
    pub(crate) give: mpsc::Sender<Vec<u8>>,
    /// Where buffers that went out come back.
    pub(crate) spare: mpsc::Receiver<Vec<u8>>,
}

/// A new pipe's two ends.
pub(crate) fn pipe() -> (PipeEnd, PipeEnd) {
    let (a_tx, b_rx) = mpsc::channel(DEPTH);
    let (b_tx, a_rx) = mpsc::channel(DEPTH);
    let (a_give, b_spare) = mpsc::channel(SPARE);
    let (b_give, a_spare) = mpsc::channel(SPARE);
    let end = |tx, rx, give, spare| PipeEnd {
        tx,
        rx,
        give,
        spare,
    };
    (
        end(a_tx, a_rx, a_give, a_spare),
        end(b_tx, b_rx, b_give, b_spare),
    )
}
