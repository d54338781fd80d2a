//! Whole nodes in virtual time, from one seed.
//!
//! ```text
//!   seed ─▶ plan.rs ─▶ world.rs ── node, shard, end, control, copy, caller, fault
//!                         │ facts
//!                         ▼
//!                      oracle.rs ── invariants/*: one promise a file
//!   run.rs       many seeds; what is told of one that fails
//!   minimise.rs  drops requests and faults that it fails without
//! ```
//!
//! Shipped: `ShardCore`, room machines, session core, its clock, a shard's clocks, the lanes' scheduler,
//! pools, leases, gates, tickets and witnesses with real bytes. Played: threads, actors' mailboxes,
//! sockets, other processes (a writer that died inside a gate is let out when the kernel would say
//! so), callers. No clock, no thread, no hash order within a world.
//!
//! Not here: control frames that overtake each other (a connection keeps their order; the session's own
//! tests send them in others), and a meddler with single data frames (their connections break instead).

pub(crate) mod caller;
pub(crate) mod chance;
pub(crate) mod control;
pub(crate) mod copy;
pub(crate) mod end;
pub(crate) mod fact;
pub(crate) mod fault;
pub(crate) mod invariants;
pub(crate) mod minimise;
pub(crate) mod node;
pub(crate) mod oracle;
pub(crate) mod plan;
pub(crate) mod plant;
#[cfg(all(test, debug_assertions))]
mod plants;
pub(crate) mod run;
pub(crate) mod shard;
#[cfg(test)]
mod sweeps;
#[cfg(all(test, debug_assertions))]
mod switches;
pub(crate) mod world;
