//! Devices: a small, safe surface over a GPU's driver, and over one that is emulated.
//!
//! ```text
//!   Context (one device; shared with the engine)          DeviceError: who is at fault
//!     ├─ Stream ── queue(holds, |holds, q| …) ──▶ InFlight<T> ── poll ──▶ Landed(T) │ Lost
//!     ├─ DeviceMemory, Pinned, Staging ─ ranges ──▶ Target, Source (borrowed from holds)
//!     ├─ Module ─ Kernel        Ready: an event of the engine
//!     └─ Backend (a driver's calls: handles and addresses)
//!          ├─ cuda:      libcuda.so.1, opened at run time (feature `cuda`)
//!          └─ emulated:  threads and host memory
//! ```
//!
//! Rules:
//! - Work owns what it uses. What a closure queues is borrowed from what it is given (the compiler
//!   sees to it), and that comes back only when an event behind the work has fired. So memory is not
//!   freed, and a gate's guard not dropped, while a device may still write.
//! - An end without proof is no end. Work that is let go of is parked until its event fires; work on a
//!   lost device is leaked and counted.
//! - An error that stays is told as such by every later call. It ends this device's work and no
//!   other's.
//! - Nothing waits for a device without a bound.
//!
//! How a lane is to use it, for a piece that is read from one device and written to another:
//!
//! ```text
//!   holds = (guard of the gate, ticket of the source, slot, pools)
//!   queue: stream 1: after(engine's Ready), gather kernel into the slot
//!          on(stream 2): slot to pages, `call` to wake the lane
//!   poll ─▶ Landed(holds): the guard is dropped (the gate is left), the slot is back in its ring
//!        ─▶ Lost: the room ends as `DeviceLost`; what it held stays, for no proof says otherwise
//! ```

mod backend;
mod context;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod emulated;
mod error;
mod exported;
mod flight;
mod kernel;
mod memory;
mod queue;
mod ready;
mod staging;
mod stream;

pub use backend::{Identity, IpcBytes, Kind, Priority};
pub use context::{Closed, Context, DeviceStats};
pub use error::{Culprit, DeviceError, Sticky};
pub(crate) use exported::{ExportedRing, ExportedSlot};
pub use flight::{InFlight, Lost, Polled};
pub use kernel::{Arg, Code, Kernel, Launch, Module, Program};
pub use memory::{DeviceMemory, IpcMemory, Pinned, Source, Target};
pub use queue::{Copy, Queue};
pub use ready::Ready;
pub use staging::{Slot, Staging};
pub use stream::{Held, QueueError, Stream};
