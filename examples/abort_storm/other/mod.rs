//! One side in another process.
//!
//! ```text
//!   parent: director, its half, its pages        child: the other half, its pages, and its prefill
//!   and the report                               engine, or its oracle and scanner
//!
//!     link  ── stdin:  Line::…   what to start, abort, say ──▶  child
//!     link  ◀─ stdout: Report::… what happened, answers ──────  child
//! ```
//!
//! Both make the same script of the same options, so a room is named by its number, and the bytes
//! of its pages are known on both ends (`stamp`). Lines are JSON. A child ends when its stdin does,
//! so it never outlives its parent.

pub(crate) mod child;
pub(crate) mod far;
pub(crate) mod lines;
pub(crate) mod link;
