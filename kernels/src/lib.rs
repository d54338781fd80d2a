//! Page layouts, copy planning and coverage sets: pure functions over indices, no memory touched.
//!
//! ```text
//!   source layout ┐
//!   dest. layout  ├─▶ plan ─▶ runs ─▶ pieces (copied by a lane)
//!   page lists    ┘
//!                         coverage: which cells (section, layer, page) have been written
//! ```
#![forbid(unsafe_code)]

pub mod coverage;
pub mod layout;
