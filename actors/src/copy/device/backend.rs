//! What a device can do, as a driver offers it: handles, addresses, and queues.
//!
//! Only the layer above calls this. It alone makes the addresses, from memory that the queued work
//! owns ([`super::stream`]), so an implementation may rely on it: every range lies within memory
//! that was allocated or opened here, and stays until an event behind the work has fired.

use super::error::DeviceError;
use super::kernel::{Code, Launch};
use std::fmt;
use std::time::Duration;

pub(crate) type Result<T> = std::result::Result<T, DeviceError>;

/// Which implementation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A GPU, by the CUDA driver.
    Cuda,
    /// Threads and host memory.
    Emulated,
}

impl Kind {
    /// The word for reports.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Kind::Cuda => "cuda",
            Kind::Emulated => "emulated",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// Which device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Whose.
    pub kind: Kind,
    /// Its number, among those that this process sees.
    pub ordinal: u32,
    /// The same in every process and after every start.
    pub uuid: [u8; 16],
    /// The model.
    pub name: String,
    /// Compute capability: major, minor.
    pub capability: (u32, u32),
    /// All of its memory, in bytes.
    pub memory_bytes: u64,
    /// How many multiprocessors run its kernels.
    pub multiprocessors: u32,
    /// The driver's version, as in 12080 for 12.8.
    pub driver: u32,
}

/// Where a byte is, in the one address space of the devices and the host.
pub(crate) type Address = u64;

/// A handle of a stream, an event, a module or a kernel.
pub(crate) type Handle = u64;

/// One copy of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RawCopy {
    pub(crate) to: Address,
    pub(crate) from: Address,
    pub(crate) bytes: u64,
}

/// One argument of a kernel, by its width.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RawArg {
    Address(Address),
    U32(u32),
    U64(u64),
    /// A structure, by value.
    Bytes(Box<[u8]>),
}

/// Who a device is to others of its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PeerKey {
    pub(crate) kind: Kind,
    pub(crate) device: u32,
    pub(crate) context: u64,
}

/// Whose turn it is when several streams have work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Priority {
    /// As the engine's own streams.
    #[default]
    Usual,
    /// Before them.
    High,
}

/// What goes between processes: the bytes of CUDA's handles.
pub type IpcBytes = [u8; 64];

/// One context of one device.
///
/// All calls are from any thread. A stream is a queue: what is queued in it happens in that order,
/// and after the call has returned. An event that was never recorded counts as fired; recording it
/// again makes it one that has not.
pub(crate) trait Backend: fmt::Debug + Send + Sync {
    fn identity(&self) -> &Identity;
    fn peer_key(&self) -> PeerKey;

    fn stream_create(&self, priority: Priority) -> Result<Handle>;
    /// What is queued still happens.
    fn stream_destroy(&self, stream: Handle) -> Result<()>;
    /// Whether all that was queued has happened.
    fn stream_query(&self, stream: Handle) -> Result<bool>;
    /// The stream goes on when the event has fired, as it is recorded now.
    fn stream_wait(&self, stream: Handle, event: Handle) -> Result<()>;

    fn event_create(&self, between_processes: bool) -> Result<Handle>;
    fn event_destroy(&self, event: Handle) -> Result<()>;
    fn event_record(&self, event: Handle, stream: Handle) -> Result<()>;
    fn event_query(&self, event: Handle) -> Result<bool>;
    fn event_export(&self, event: Handle) -> Result<IpcBytes>;
    fn event_open(&self, bytes: &IpcBytes) -> Result<Handle>;

    fn device_alloc(&self, bytes: u64) -> Result<Address>;
    fn device_free(&self, at: Address) -> Result<()>;
    fn pinned_alloc(&self, bytes: u64) -> Result<Address>;
    fn pinned_free(&self, at: Address) -> Result<()>;
    /// Shows bytes of pinned memory that no queued work writes.
    fn pinned_read(&self, at: Address, bytes: u64, see: &mut dyn FnMut(&[u8]));
    /// The same, to change them: no queued work reads them, either.
    fn pinned_write(&self, at: Address, bytes: u64, see: &mut dyn FnMut(&mut [u8]));

    /// A handle of the allocation that `at` is in, and where in it.
    fn ipc_export(&self, at: Address) -> Result<(IpcBytes, u64)>;
    /// The start of the other process's allocation, and its bytes.
    fn ipc_open(&self, bytes: &IpcBytes) -> Result<(Address, u64)>;
    fn ipc_close(&self, start: Address) -> Result<()>;

    fn peer_possible(&self, other: PeerKey) -> Result<bool>;
    /// From now on this context's work reaches the other's memory. A second time is no error.
    fn peer_enable(&self, other: PeerKey) -> Result<()>;

    /// Copies, in whatever order among each other. An error may leave some of them queued.
    fn copy(&self, stream: Handle, copies: &[RawCopy]) -> Result<()>;
    /// Calls it on a thread of the driver, which must not be held up for long. It is not called if
    /// the context is lost before.
    fn call(&self, stream: Handle, call: Box<dyn FnOnce() + Send>) -> Result<()>;
    fn load(&self, code: &Code) -> Result<Handle>;
    fn unload(&self, module: Handle) -> Result<()>;
    fn kernel(&self, module: Handle, name: &str) -> Result<Handle>;
    fn launch(
        &self,
        stream: Handle,
        kernel: Handle,
        launch: &Launch,
        args: &[RawArg],
    ) -> Result<()>;

    /// Ends what runs for this context, within a bound; how many threads were left behind.
    fn close(&self, bound: Duration) -> usize;
}
