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

#![allow(clippy::unwrap_used, clippy::expect_used)]
// Without debug assertions no rule can be turned off, and who tells of it is not there.
#![cfg_attr(not(debug_assertions), allow(dead_code))]

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

#[cfg(not(debug_assertions))]
#[test]
fn rules_are_turned_off_in_builds_with_debug_assertions_alone() {
    use std::io::Write;
    let text = "SKIPPED: a build without debug assertions has no rule that can be turned off, so the \
                stories of what each breaks are not searched. To do so: cargo test --test model\n";
    // Not by a macro: what those print is kept from who runs the tests.
    let _ = std::io::stderr().write_all(text.as_bytes());
}
