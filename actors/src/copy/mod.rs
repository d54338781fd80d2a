//! Copy lanes: one thread each, which copies pieces of jobs in the order the scheduler says.
//!
//! [`schedule`] is pure. A [`job`] carries its ticket: when the lane lets go of it, whatever
//! the reason, the ticket tells the room's shard what landed and proves that it is over. A [`device`] is
//! a GPU or an emulated one, for the lanes that copy there; none does yet.

pub(crate) mod actor;
pub mod device;
pub mod device_lane;
pub mod job;
pub(crate) mod pieces;
#[cfg(feature = "plant")]
pub mod plant;
pub mod schedule;
mod split;
pub(crate) mod sum;
