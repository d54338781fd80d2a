//! The flight recorder: what happened lately on a node, kept in bounded rings and read by anybody.
//!
//! ```text
//!   shard 0 ──▶ Scribe ──▶ ring 0 ─┐
//!   shard 1 ──▶ Scribe ──▶ ring 1 ─┼──▶ Recorder::read(since, max) ◀── daemon, panic hook, tools
//!   node    ──▶ Scribe ──▶ ring n ─┘
//! ```
//!
//! Every event that a room is told, with the states before and behind it; every message of a session
//! (its name, claim and room; no payload); gates, jobs and leases; peers, lanes. Entries are made by
//! the shells out of what the pure cores were told and returned: the cores know nothing of this.
//!
//! Rules:
//! - A ring has one lock, which its writer has to itself but for the moment of a read: whoever reads
//!   asks no shard, and reads a node whose shards are blocked just as well. The lock is held for as
//!   long as it takes to put one entry in, or to copy a few out, and never while anything is waited for.
//! - One sequence for the whole node: what is missing from it was overwritten, and is counted.
//! - Nothing is allocated for an entry, except where a reason or a text is copied into it.
//! - Full rings overwrite their oldest entry. A recorder of size 0 records nothing.

mod entry;
mod recorder;
mod ring;
#[cfg(test)]
mod tests;

pub use entry::{
    Begun, ChunkTold, Entry, GateIs, Part, PeerIs, Proofs, Road, Step, Told, What, Word,
    message_named,
};
pub use recorder::{Recorder, Records, Scribe};
