//! A world of nodes that only tests know.
//!
//! ```text
//!   node.rs     a shard core, its rooms and their mailboxes, armed clocks
//!   network.rs  in-order sessions: numbers claims, delivers, can be lost and come back
//!   plane.rs    gates and lanes: copies that land late, are refused, or fail
//!   truth.rs    what really happened to each lease; the properties read only this
//!   world.rs    puts them together: what can happen next, and what it does
//! ```

pub(crate) mod network;
pub(crate) mod node;
pub(crate) mod plane;
pub(crate) mod truth;
pub(crate) mod world;
