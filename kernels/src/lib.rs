//! Page layouts, copy planning and coverage sets: pure functions over indices, no memory touched.
//!
//! ```text
//!   source layout ┐
//!   dest. layout  ├─▶ plan ─▶ runs ─▶ pieces (copied by a lane)
//!   page lists    ┘
//!                         coverage: which cells (section, layer, page) have been written
//!                         checksum: one number over their bytes, in whatever order they came
//! ```
#![forbid(unsafe_code)]

pub mod checksum;
pub mod coverage;
pub mod layout;
pub mod plan;
