//! Sessions between two nodes: messages, wire codec, the session core and the actor around it.
//!
//! [`message`] is what is said, [`wire`] how it is encoded, [`hello`] how two nodes greet,
//! [`session`] the pure core (sequence, acknowledgement, claim numbers, credit), [`terms`] whether
//! a claim can be served. The actor joins a session to its transport and to the shards.

pub(crate) mod actor;
pub mod hello;
mod lists;
pub mod message;
pub(crate) mod pipe;
pub mod session;
pub mod terms;
pub(crate) mod transport;
pub mod wire;
