//! The flight recorder: what happened lately on a node, kept in bounded rings and read by anybody.
//!
//! ```text
//!   shard 0 ──▶ Scribe ──▶ tail 0 ─┐ when it is full, or     ┌─▶ ring 0 ─┐
//!   shard 1 ──▶ Scribe ──▶ tail 1 ─┼─ when somebody reads ──▶├─▶ ring 1 ─┼─▶ Recorder::read(since, max)
//!   others  ──▶ Scribe ────────────┘ (numbers are given)     └─▶ ring n ─┘     ▲ daemon, panic hook, tools
//! ```
//!
//! Every event that a room is told, with the states before and behind it; every message of a session
//! (its name, claim and room; no payload); gates, jobs and leases; peers, lanes. Entries are made by
//! the shells out of what the pure cores were told and returned: the cores know nothing of this.
//!
//! Rules:
//! - A shard writes an entry as a few words into a short queue of its own, without a lock and without
//!   allocating. What is in it can be taken by whoever holds the one lock of the book: a reader, or the
//!   shard itself once the queue is full. So a reader asks no shard, and sees all that a blocked one wrote.
//! - The lock is held for as long as it takes to empty the queues or to copy a few entries out, and never
//!   while anything is waited for.
//! - One sequence for the whole node: what is missing from it was overwritten, and is counted. Within a
//!   part it is the order in which things happened, between parts that of their times.
//! - Nothing is allocated for an entry, except where a reason, a text or a list is copied into it; such
//!   entries, and those of lanes and the node, go straight into the ring with the lock held.
//! - Full rings overwrite their oldest entry. A recorder of size 0 records nothing.

mod book;
mod entry;
mod recorder;
mod ring;
mod sync;
mod tail;
#[cfg(test)]
mod tests;
mod words;

pub use entry::{
    Begun, ChunkTold, Entry, GateIs, Part, PeerIs, Proofs, Road, Step, Told, What, Word,
    message_named,
};
pub use recorder::{Recorder, Records, Scribe};
