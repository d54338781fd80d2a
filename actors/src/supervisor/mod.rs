//! Supervisors: one per shard, alone with the tables and the custody of its rooms.
//!
//! [`core`] is the pure logic, [`io`] what goes in and out of it, [`custody`] the record of what is
//! lent, [`early`] claims before their `send`, [`spent`] what is remembered of the dead, `post` what a
//! shard copies itself, `recording` what it tells the flight recorder.

pub mod actor;
pub mod attached;
pub mod core;
pub mod custody;
pub mod early;
pub mod info;
pub mod io;
pub(crate) mod post;
mod recording;
pub mod spent;
pub(crate) mod timers;
