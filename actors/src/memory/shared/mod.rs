//! Memory that processes of one host share, and what is known of those processes.
//!
//! ```text
//!   Pool::shared ────▶ SharedMemory (a sealed memfd) ──descriptor──▶ peer: SharedMemory::receive
//!   Pool::from_file ─▶ SharedMemory (a caller's file) + Attachment (what is known of its former lives)
//!   PidFd, ProcessId: when is a writer provably dead?      Origin: is this the process that mapped?
//! ```
//!
//! Whoever has a pool's descriptor may write all of the pool: a peer over shared memory is trusted
//! with the whole of it. Gates keep an honest peer out, and a dead one; not a dishonest one.
//!
//! Where the unsafe is: `sys` (system calls), `map` (a mapping), `fork` (a page that children see
//! wiped). The rest has none.

mod companion;
mod error;
mod file;
mod fork;
mod former;
mod hold;
mod map;
mod memory;
mod past;
mod process;
mod sys;
#[cfg(test)]
mod tests;
mod words;

pub use error::{Errno, SharedError};
pub(crate) use file::open_pool;
pub use fork::{Origin, forked};
pub(crate) use memory::{SharedMemory, name_of};
pub(crate) use past::Attachment;
pub use past::Quarantined;
pub(crate) use process::{PidFd, ProcessId, boot_id, proc_shows_this_namespace};
pub(crate) use sys::{readable, user, writable};
pub use words::SharedWords;

/// Whether memory is in huge pages: fewer entries to look up when small pages lie scattered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HugePages {
    /// If the system gives them, and as many as it gives within a second.
    #[default]
    Auto,
    /// As [`HugePages::Auto`], however long that takes: seconds for each GiB where memory is in pieces.
    Always,
    /// Never.
    Off,
}

/// How a shared pool is made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SharedOptions {
    /// Huge pages.
    pub huge: HugePages,
    /// The NUMA node that the memory is to come from while that has any; any node if not said.
    pub numa_node: Option<u32>,
}

/// How a pool in a caller's file is made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileOptions {
    /// Makes the file if it is not there, and gives it its size if it is empty.
    pub create: bool,
    /// Huge pages. A file has them only where its filesystem does.
    pub huge: HugePages,
    /// The NUMA node that memory which is not allocated yet is to come from while that has any.
    pub numa_node: Option<u32>,
}

/// What a pool's memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Backing {
    /// Of this process alone.
    Private,
    /// A memfd that peers on this host may map.
    Memfd {
        /// Whether at least half of it was in huge pages when it was made.
        huge: bool,
    },
    /// A caller's file that peers on this host may map.
    File,
}
