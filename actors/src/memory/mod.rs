//! Pools, leases, gates, the copy itself, and the witnesses that let memory go.
//!
//! ```text
//!   Pool ──lease_write──▶ WriteLease ──target_section──▶ Target ──open──▶ OpenGate
//!     │                                                    ▲ enter            │ close
//!     └──lease_read───▶ ReadLease ──source_view──▶ Ticket ─┴─ copy_from       ▼
//!                                                    │ Drop               Closing ─▶ GateClosed
//!                                                    ▼
//!                                                 JobOver        both are witnesses
//! ```
//!
//! Why safe code cannot make a lane write into memory that somebody else uses:
//! 1. A page is held by one writer or by readers ([`lease_table`](LeaseError)); the hold ends when
//!    the *last* of these is gone: the lease, a target section or a source view made from it. So a
//!    custody that loses a lease keeps pages longer, and never shorter.
//! 2. [`WriteLease`] gives slices only while no target section made from it exists. A section ends
//!    with its [`Target`], and a target ends with its gate: closed, and nobody inside.
//! 3. Bytes are copied in one place, `copy`: it writes only pages of the target it is inside of, and
//!    reads only pages of the view in a live [`Ticket`].
//! 4. The memory itself goes when the last pool handle, lease, section and view are gone.
//!
//! What is left to the rest of the crate: jobs that are at work at the same time do not name the
//! same destination cell (the planner's parts are disjoint and coverage is checked), and claim
//! numbers are not used twice.
//!
//! Where the unsafe is: `slots` (contents of a gate's slot), `pool` (the memory), `lease` (slices),
//! `copy` (the copy), `stream` (its loops), `remote` and `shared_table` (mappings of a peer), `shared` (mappings, system calls), `bell` (an eventfd), `socket` (reads into pages and writes from them), `descriptors` (descriptors over a socket), `ring` (bytes in shared memory), `sync` (a cell, a zeroed allocation), `plant` (only with that feature).
//! `gate`, `free_list`, `lease_table` and `ring_cursor` have none, and the loom tests run these files and `slots`.

mod bell;
mod copy;
mod descriptors;
mod elsewhere;
mod far;
mod free_list;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod gate;
mod held;
mod lease;
mod lease_table;
mod marks;
mod numbers;
mod on_device;
#[cfg(feature = "plant")]
pub mod plant;
mod pool;
mod remote;
mod ring;
mod ring_cursor;
mod shared;
mod shared_pool;
mod shared_table;
mod slots;
mod socket;
mod stream;
mod sync;
mod table;
mod target;
#[cfg(test)]
mod tests;
mod ticket;
mod witness;

pub(crate) use bell::Bell;
pub use copy::{CopyError, Copying, End};
pub(crate) use descriptors::{recv_with_fds, send_with_fds};
pub(crate) use far::{FarOver, PeerOut, named_pages};
pub use far::{FarPath, PathFenced, PeerDrained};
pub use gate::Refused;
pub use held::Mode;
pub use lease::{Lease, ReadLease, WriteLease};
pub use lease_table::{Holder, LeaseError};
pub(crate) use numbers::ClaimNumbers;
pub use pool::{Pool, PoolError, PoolMemory, ReleasedPages};
pub(crate) use remote::{RemoteGates, RemotePool};
pub(crate) use ring::{RingError, RingMemory, RingReader, RingSide, RingWriter};
pub use shared::{
    Backing, Errno, FileOptions, HugePages, Origin, Quarantined, SharedError, SharedOptions,
    SharedWords, forked,
};
pub(crate) use shared::{PidFd, ProcessId, SharedMemory, boot_id, proc_shows_this_namespace, user};
pub use shared_pool::OthersMemory;
pub(crate) use shared_pool::{NoteOwners, gate_table};
pub use shared_table::WriterDead;
pub(crate) use shared_table::{SharedGates, TableMemory, Writer};
pub(crate) use socket::{MAX_RANGES, PoolRange, SocketError, read_plain};
pub(crate) use stream::choice::measure_in_background;
pub use stream::choice::{CopyFacts, CopyMode, copy_facts, measure_copies, set_copy_mode};
pub use stream::{CopyMeasurement, CopySample};
pub use table::{
    Closing, GateClosed, GateTable, GatesExhausted, Inside, NotOpened, OpenError, OpenGate, Staying,
};
pub(crate) use table::{open_far, open_shared};
pub(crate) use target::Landed as GateLanded;
pub use target::{Doorbell, Landed, Target, TargetSection};
pub use ticket::{CancelFlag, Facts, JobBack, JobId, JobOver, SourceView, Ticket, TicketSink};
pub use witness::{Proof, Withdrawn, Witness};
