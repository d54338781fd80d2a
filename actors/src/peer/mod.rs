//! Sessions between two nodes: messages, wire codec, the session core and the actor around it.
//!
//! [`message`] is what is said, [`wire`] how it is encoded, [`hello`] what two nodes conclude from
//! their greetings, [`auth`] how they prove the cluster's key, [`handshake`] in which order,
//! [`session`] the pure core (sequence, acknowledgement, claim numbers, credit), [`terms`] whether
//! a claim can be served. The actor joins a session to its transport and to the shards.

pub(crate) mod actor;
pub mod auth;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
pub mod handshake;
pub mod hello;
mod lists;
pub mod message;
pub(crate) mod pipe;
pub(crate) mod ring;
pub mod session;
pub mod terms;
pub(crate) mod transport;
pub mod wire;
