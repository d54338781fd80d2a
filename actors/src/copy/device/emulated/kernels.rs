//! Kernels that run on the host: by name, over the emulated memory.

use super::super::backend::{Address, RawCopy};
use super::super::kernel::Launch;
use super::memory::{Home, Memory};

/// A kernel on the host; most are a host twin with its arguments taken apart.
pub trait HostKernel: Send + Sync {
    /// Runs all blocks of a launch.
    ///
    /// # Errors
    ///
    /// An access that is not allowed, which loses the device. Too few arguments, or of another kind,
    /// are one, too ([`Value::address`]).
    fn run(&self, launch: &Launch, args: &[Value], memory: &View<'_>) -> Result<(), IllegalAccess>;

    /// Bytes that such a launch moves, which take as long as [`Config::rate`](super::Config::rate) says.
    fn moves(&self, _args: &[Value]) -> u64 {
        0
    }
}

impl<F> HostKernel for F
where
    F: Fn(&Launch, &[Value], &View<'_>) -> Result<(), IllegalAccess> + Send + Sync,
{
    fn run(&self, launch: &Launch, args: &[Value], memory: &View<'_>) -> Result<(), IllegalAccess> {
        self(launch, args, memory)
    }
}

/// One argument as a kernel sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// An address, or a number of 64 bits.
    U64(u64),
    /// A number of 32 bits.
    U32(u32),
    /// A structure, by value.
    Bytes(Box<[u8]>),
}

impl Value {
    /// The `nth` argument, of 64 bits.
    ///
    /// # Errors
    ///
    /// It is not there, or not of this width.
    pub fn address(args: &[Value], nth: usize) -> Result<u64, IllegalAccess> {
        match args.get(nth) {
            Some(Value::U64(value)) => Ok(*value),
            _ => Err(IllegalAccess { at: 0, bytes: 0 }),
        }
    }

    /// The `nth` argument, a structure of so many bytes.
    ///
    /// # Errors
    ///
    /// It is not there, or not of this size.
    pub fn bytes(args: &[Value], nth: usize, bytes: usize) -> Result<&[u8], IllegalAccess> {
        match args.get(nth) {
            Some(Value::Bytes(value)) if value.len() == bytes => Ok(value),
            _ => Err(IllegalAccess { at: 0, bytes: 0 }),
        }
    }

    /// The `nth` argument, of 32 bits.
    ///
    /// # Errors
    ///
    /// It is not there, or not of this width.
    pub fn number(args: &[Value], nth: usize) -> Result<u32, IllegalAccess> {
        match args.get(nth) {
            Some(Value::U32(value)) => Ok(*value),
            _ => Err(IllegalAccess { at: 0, bytes: 0 }),
        }
    }
}

/// An access to memory that is not there, or that the device cannot reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{bytes} bytes at {at:#x} are not memory that the device can reach")]
pub struct IllegalAccess {
    /// The first address.
    pub at: u64,
    /// Number of bytes.
    pub bytes: u64,
}

/// The memory as a kernel reaches it: the host's, its device's, and that of devices it may reach.
pub struct View<'a> {
    pub(super) memory: &'a Memory,
    pub(super) device: u32,
    pub(super) reaches: &'a [u32],
}

impl View<'_> {
    /// A copy of a range.
    ///
    /// # Errors
    ///
    /// [`IllegalAccess`].
    pub fn read(&self, at: u64, bytes: u64) -> Result<Vec<u8>, IllegalAccess> {
        let mut out = Vec::new();
        let place = self.find(at, bytes)?;
        place.read(&mut |seen| out = seen.to_vec());
        Ok(out)
    }

    /// Changes a range in place. Other memory must not be touched in between.
    ///
    /// # Errors
    ///
    /// [`IllegalAccess`].
    pub fn change(
        &self,
        at: u64,
        bytes: u64,
        change: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), IllegalAccess> {
        self.find(at, bytes)?.write(change);
        Ok(())
    }

    /// Copies a range to another, also within one allocation.
    ///
    /// # Errors
    ///
    /// [`IllegalAccess`].
    pub fn copy(&self, to: u64, from: u64, bytes: u64) -> Result<(), IllegalAccess> {
        self.find(to, bytes)?;
        self.find(from, bytes)?;
        self.memory.copy(RawCopy { to, from, bytes })
    }

    pub(super) fn find(
        &self,
        at: Address,
        bytes: u64,
    ) -> Result<super::memory::Place, IllegalAccess> {
        let place = self.memory.find(at, bytes)?;
        match place.block.home {
            Home::Device(of) if of != self.device && !self.reaches.contains(&of) => {
                Err(IllegalAccess { at, bytes })
            }
            _ => Ok(place),
        }
    }
}
