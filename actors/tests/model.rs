//! Two nodes (or three) over the shipped cores: a model that is searched whole, and random walks.
//!
//! Everything that decides is the shipped code: `ShardCore` and the room machines. What is around
//! them (sessions, gates, lanes, clocks) is a small stand-in, and ground truth is kept apart from
//! what a node can know: see `model/mod.rs`.

#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "model/mod.rs"]
mod model;

#[path = "model/exhaustive.rs"]
mod exhaustive;
#[path = "model/random.rs"]
mod random;
