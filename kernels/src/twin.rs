//! What the kernels do, on a CPU: their specification, one byte at a time.
//!
//! ```text
//!   shape (plain numbers) ──checked against tables and lengths──▶ job
//!                                                                  ├─ .args(addresses) → kernel
//!                                                                  └─ twin(&job, slices)
//!   Grid (plan::cube) ── GridSlices ──▶ shape of a reslice, and where it begins
//!   arguments (bytes) ── launched ──▶ what the kernel does, over memory by address
//! ```
//!
//! Only a shape that was checked becomes a job: no byte outside of the lengths that were named is
//! read or written, and no byte is written twice, whatever order the work is done in (but for a
//! page that a table names twice: that a page is named once is for the leases to know). The kernel
//! and the twin of a job are then given memory of those lengths; what is written must not be read by
//! the same job, which for a twin the compiler sees to.

mod bounds;
mod crc;
mod error;
mod grid;
mod launched;
mod pages;
mod slices;
mod sum;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

pub use error::{JobError, Memory};
pub use grid::{GridError, GridPlace, GridSlices};
pub use launched::{Addressed, LaunchError, launched};
pub use pages::{Gather, PageCopy, Scatter, Strides, gather_pages, scatter_pages};
pub use slices::{HeadSlices, Reslice, SliceShape, reslice_heads};
pub use sum::{PageSum, Sum, checksum_pages};
