//! Memory that the CPU does not reach, as a pool knows it.

use std::any::Any;
use std::sync::Arc;

/// The memory of a pool that is on a device. What it is made of is known to `on_device` alone, so that
/// pools, leases and gates need no device.
pub(super) trait Elsewhere: Send + Sync {
    /// Its bytes.
    fn bytes(&self) -> u64;

    /// Copies bytes out, and waits for it within a bound.
    ///
    /// # Errors
    ///
    /// Why not, for people.
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), String>;

    /// Copies bytes in, and waits for it within a bound. If they have not come by then, `held` is kept
    /// until they have.
    ///
    /// # Errors
    ///
    /// Why not, for people.
    fn write(
        &self,
        offset: u64,
        bytes: &[u8],
        held: Arc<dyn Any + Send + Sync>,
    ) -> Result<(), String>;

    /// To find out what it is.
    fn as_any(&self) -> &dyn Any;
}
