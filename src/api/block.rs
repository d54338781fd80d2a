//! Waiting on a plain thread.

/// Runs a future of this crate to its end on the calling thread. Needs no runtime: the crate's
/// futures wait for channels and atomics only. Nodes that the thread drives are driven meanwhile.
pub(crate) use kvroom_actors::runtime::drive::block_on;
