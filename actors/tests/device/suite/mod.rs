//! What every implementation of a device does.

pub(crate) mod failures;
pub(crate) mod kernels;
pub(crate) mod order;
pub(crate) mod peers;
pub(crate) mod proof;
