//! Two nodes (or three) over the shipped cores: a model that is searched whole, and random walks.
//!
//! Everything that decides is the shipped code: `ShardCore`, the room machines, and the session core
//! between the nodes. What is around them (owners of sessions, pipes, gates, lanes, clocks) is a small
//! stand-in, and ground truth is kept apart from what a node can know: see `model/mod.rs`.
//!
//! ```text
//!   exhaustive.rs   every order of everything, within small sizes
//!   planes.rs       the same over each kind of plane
//!   mortals.rs      processes die, are stopped, begin again
//!   liveness.rs     from everywhere the ends can be reached
//!   plants.rs       bugs put in on purpose: each must be found
//!   several.rs      two rooms on a route, fan-in, fan-out
//!   stories.rs      rules of the cores turned off: the shortest story of what each one breaks
//!   random.rs       long walks in larger worlds, then a healing
//! ```
//!
//! What is searched whole each time, within which bounds, in how many states (about; each search
//! prints its own, and fails below a floor):
//!
//! ```text
//!   local  one room    2 aborts 2.4k · 1 reset, 1 abort 5.4k · 1 panic 2.6k · owners that fall
//!                      behind, 1 lost session 17k · 2 attempts, 1 lost session 15k
//!   tcp    one room    1 abort, 1 frame sent twice 3.1k
//!          2 attempts  sender dies 13k · receiver dies, its pool too 11k, or not 12k
//!          two rooms   14k
//!   shm    2 attempts  1 abort 12k · sender dies 9.5k, is stopped 15k · receiver dies, its pool
//!                      too 8.5k, or not 9.4k
//!          two rooms 7.6k · two senders 7k · two receivers 9k
//!   ucx    one room    2 aborts 1k · failed flush, 1 abort 0.9k, fence 1.2k · lost session, fence,
//!                      1 abort 5.1k · pool survives, fence 1.4k
//!          2 attempts  sender dies, no fence 27k
//!          two rooms   failed flush, fence 49k · two senders 11k
//!   each process may die, one abort   tcp 5.5k · shm 4.1k · ucx, fence 7.6k
//!   ucx, mailboxes that fall behind since a session was given up under a copy 2.9k
//! ```

#![allow(clippy::unwrap_used, clippy::expect_used)]
// Without debug assertions no rule can be turned off, and who tells of it is not there.
#![cfg_attr(not(debug_assertions), allow(dead_code))]

use std::io::Write;

#[path = "model/mod.rs"]
mod model;

#[path = "model/exhaustive.rs"]
mod exhaustive;
#[path = "model/liveness.rs"]
mod liveness;
#[path = "model/mortals.rs"]
mod mortals;
#[path = "model/planes.rs"]
mod planes;
#[path = "model/plants.rs"]
mod plants;
#[path = "model/random.rs"]
mod random;
#[cfg(debug_assertions)]
#[path = "model/rules_goals.rs"]
mod rules_goals;
#[cfg(debug_assertions)]
#[path = "model/rules_rows.rs"]
mod rules_rows;
#[path = "model/several.rs"]
mod several;
#[cfg(debug_assertions)]
#[path = "model/stories.rs"]
mod stories;

/// Says what is not done, aloud: what macros print is kept from who runs the tests.
fn skipped(what: &str) {
    let text = format!("SKIPPED: {what}\n");
    let _ = std::io::stderr().write_all(text.as_bytes());
}

#[cfg(not(debug_assertions))]
#[test]
fn rules_are_turned_off_in_builds_with_debug_assertions_alone() {
    skipped(
        "a build without debug assertions has no rule that can be turned off, so the \
                stories of what each breaks are not searched. To do so: cargo test --test model",
    );
}
