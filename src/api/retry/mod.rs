//! Rooms that are tried again by themselves when the way that their bytes go fails.
//!
//! ```text
//!   start_retried ─▶ attempt a ── path fails ─▶ attempt a + 1, other pages ── … ─▶ the last one's outcome
//!                       └ drains, and gives its pages back on proof, whenever that is
//! ```
//!
//! A room is one life of one key and never goes on over another route once something was posted: what was
//! posted may still land. So a new try is a room of its own, with the next attempt, a new claim and other
//! destination pages, and the old one keeps its pages until it is proven that nobody writes them. Both
//! sides have to be started so: each sees its end by the same reasons, and starts the next attempt.
//!
//! Nothing runs in the background: whoever waits for the outcome starts the next try.

mod policy;
mod receive;
mod send;

pub use policy::Retry;
pub use receive::{Pages, RetriedReceive};
pub use send::RetriedSend;
