//! By what a device is named.

use super::Uuid;

/// How a request or the configuration names a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Named {
    /// As this daemon counts them.
    Ordinal(u32),
    /// As every process does.
    Uuid(Uuid),
}
