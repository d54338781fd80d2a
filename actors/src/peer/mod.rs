//! Sessions between two nodes: messages, wire codec, the session core and the actor around it.

pub mod hello;
mod lists;
pub mod message;
pub mod session;
pub mod wire;
