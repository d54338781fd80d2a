//! A world of nodes that only tests know.
//!
//! ```text
//!   node.rs      a shard core, its rooms and their mailboxes, armed clocks
//!   end.rs       one node's side of a peer: the shipped session, with the rules of its owner
//!   network.rs   joins two ends by pipes; sessions are reset and resumed, given up, begun again
//!   plane.rs     gates and lanes: copies that land late, are refused, or fail
//!   pages.rs     a node's own table of which pages are leased
//!   truth.rs     what really happened to each lease; the properties read only this
//!   request.rs   the one request of this world, and what its parts look like on the wire
//!   size.rs      how much may go on and go wrong, and which bug is planted
//!   shared.rs    parts of a world that are copied when they change
//!   world.rs     puts them together: what can happen next, and when nothing is left
//!   steps.rs     what each action does
//!   lanes.rs     what copies do, on each kind of plane
//!   mortal.rs    processes die, are stopped, are replaced; pools outlive them; paths are fenced
//!   kept.rs      what has to be kept where nothing can prove that a writer is out
//!   outputs.rs   what a core wants done, done
//!   story_text.rs  a counter-example as people would tell it
//!   reach.rs     the whole graph of a world, and from where its ends can be reached
//! ```
//!
//! A node decides by what it knows: its core, its sessions, its gates, the life of a peer that last
//! said hello, and, of a process on its host, that it is dead. `Truth` is read by properties alone,
//! and for which calls callers may make.
//!
//! Not here: the content of pools and the planning of copies; pools of a dead sender, and what a
//! device still reads of them; limits on memory; a fence that does less than it says. A deadline is
//! an abort at any moment, or a clock that runs out when nothing else can happen.

pub(crate) mod end;
pub(crate) mod kept;
pub(crate) mod lanes;
pub(crate) mod mortal;
pub(crate) mod network;
pub(crate) mod node;
pub(crate) mod outputs;
pub(crate) mod pages;
pub(crate) mod plane;
pub(crate) mod reach;
pub(crate) mod request;
pub(crate) mod shared;
pub(crate) mod size;
pub(crate) mod steps;
#[cfg(debug_assertions)]
pub(crate) mod story_text;
pub(crate) mod truth;
pub(crate) mod world;
