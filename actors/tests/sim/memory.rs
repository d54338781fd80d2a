//! The shipped memory: the very files of `src/memory/`, compiled into this test.
//!
//! The simulator lends pages and opens gates itself, as a shard's shell does; what it needs for that
//! is not public, and must not be. What is not here (other processes, sockets, rings) it plays.

#![allow(dead_code, unreachable_pub, unused_imports)]

#[path = "../../src/memory/copy.rs"]
mod copy;
#[path = "../../src/memory/elsewhere.rs"]
mod elsewhere;
#[path = "../../src/memory/far.rs"]
mod far;
#[path = "../../src/memory/free_list.rs"]
mod free_list;
#[path = "../../src/memory/gate.rs"]
mod gate;
#[path = "../../src/memory/held.rs"]
mod held;
#[path = "../../src/memory/lease.rs"]
mod lease;
#[path = "../../src/memory/lease_table.rs"]
mod lease_table;
#[path = "../../src/memory/marks.rs"]
mod marks;
#[path = "../../src/memory/pool.rs"]
mod pool;
#[path = "../../src/memory/shared/mod.rs"]
mod shared;
#[path = "../../src/memory/shared_pool.rs"]
mod shared_pool;
#[path = "../../src/memory/shared_table.rs"]
mod shared_table;
#[path = "../../src/memory/slots.rs"]
mod slots;
#[path = "../../src/memory/stream/mod.rs"]
mod stream;
#[path = "../../src/memory/sync.rs"]
mod sync;
#[path = "../../src/memory/table.rs"]
mod table;
#[path = "../../src/memory/target.rs"]
mod target;
#[path = "../../src/memory/ticket.rs"]
mod ticket;
#[path = "../../src/memory/witness.rs"]
mod witness;

pub(crate) use copy::CopyError;
pub(crate) use lease::{Lease, ReadLease, WriteLease};
pub(crate) use pool::Pool;
pub(crate) use table::{Closing, GateClosed, GateTable, Inside, OpenGate};
pub(crate) use target::{Doorbell, Target};
pub(crate) use ticket::{CancelFlag, JobBack, JobId, JobOver, SourceView, Ticket, TicketSink};
pub(crate) use witness::{Withdrawn, Witness};
