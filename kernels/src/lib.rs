//! Page layouts, copy planning and coverage sets: pure functions over indices, no memory touched.
//! And the CUDA kernels, as source text with twins over byte slices.
//!
//! ```text
//!   source layout ┐
//!   dest. layout  ├─▶ plan ─▶ runs ─▶ pieces (copied by a lane)
//!   page lists    ┘
//!                         coverage: which cells (section, layer, page) have been written
//!                         checksum: one number over their bytes, in whatever order they came
//!
//!   cuda: gather_pages, scatter_pages, reslice_heads, checksum_pages; how they are launched
//!   twin: what each of them does, and the checks before it may
//! ```
#![forbid(unsafe_code)]

pub mod checksum;
pub mod coverage;
pub mod cuda;
pub mod layout;
pub mod plan;
pub mod twin;
