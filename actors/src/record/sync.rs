//! The atomics that [`super::tail`] is built on. The loom tests include that very file with loom's
//! types in this module's place.

pub(super) use std::sync::atomic::{AtomicU64, Ordering};
