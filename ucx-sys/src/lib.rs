//! The part of UCX's C API that kvroom uses: declarations that are checked in, and a library that is
//! opened when the program runs.
//!
//! ```text
//! UCX's headers, 1.13 ── generate ──▶ raw ── types, constants ─────────────▶ who calls UCX
//!                                      │                                           ▲
//!                                      └─ functions ──▶ table ──▶ Ucx::call ───────┤
//! libucp.so.0 ── dlopen, version, every symbol ───────▶ load ──▶ Arc<Ucx>, or a LoadError
//! what UCX says ───────────────────────────────────────▶ log ──▶ Ucx::listen
//! ```
//!
//! - Nothing is needed to build this: not UCX, not its headers, not clang. `ucx-sys/generate` writes
//!   [`raw`] anew and says what *it* needs.
//! - One binary works with UCX 1.13 to 1.22, and is expected to with later 1.x: structures only grew at
//!   their ends, behind a mask of the fields that are valid. So every mask has to be set, and no
//!   structure may be copied by its size out of what UCX hands over. Tests compare each size, offset,
//!   number and signature with the headers that are there.
//! - Not declared is what has another value in each version: `UCS_MEMORY_TYPE_UNKNOWN` is the end of an
//!   enumeration that grows. Name the memory's type, or leave the field's bit out of the mask.
//! - What the headers have as macros or inline functions is in [`status`] and [`UCP_API`].
//!
//! Calls are unsafe and bring no promise of their own: handles are raw pointers, and UCX's documentation
//! says what each function asks of its caller.

mod error;
mod load;
mod log;
mod plain;
/// UCX's types, constants and functions under their own names.
#[allow(missing_docs, non_camel_case_types, unsafe_code)] // As UCX has them; types of callbacks.
#[rustfmt::skip]
pub mod raw;
mod signals;
pub mod status;
mod table;
mod version;

pub use error::LoadError;
pub use load::{LIBRARY, Ucx};
pub use log::{Ear, Level};
pub use plain::{Plain, zeroed};
pub use raw::Functions;
pub use version::{LEAST, NEWEST_TESTED, Version};

/// The API that the declarations are of, as `ucp_init_version` takes it: major, minor. It is what
/// `ucp_init`, which is inline in C, would pass; a library of a later version accepts it.
pub const UCP_API: (std::ffi::c_uint, std::ffi::c_uint) = (raw::UCP_API_MAJOR, raw::UCP_API_MINOR);
