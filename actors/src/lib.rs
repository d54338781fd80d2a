//! Rooms, supervisors, copy lanes, sessions, gates and leases.
//!
//! See ARCHITECTURE.md for the map. The pure parts (`room`, `supervisor::core`, `peer::session`,
//! `copy::schedule`) import neither actix nor tokio and know no clock.

pub mod copy;
pub mod fabric;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
pub mod handle;
pub mod ids;
pub mod limits;
pub mod memory;
pub mod peer;
pub mod reason;
pub mod record;
pub mod room;
pub mod runtime;
pub mod slice;
pub mod supervisor;
pub mod switch;

pub(crate) use switch::switched;
