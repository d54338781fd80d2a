//! kvroom moves the KV cache of LLM requests from the engine that prefills to the engine that
//! decodes, and can always say whether the memory on both ends may be used again.
//!
//! A transfer is a **room**. The decode side lends destination pages to it and waits; the prefill
//! side pushes chunks of source pages; every room is an actor that alone owns its state. Two things
//! come back from a room, at two times: its *outcome* (`Done` or `Aborted` with a reason), as soon
//! as it is known, and its *leases*, when it is proven that nobody can touch their pages any more.
//!
//! ```
//! use kvroom::{Chunk, LocalHub, Node, Order, Outcome, Pool, PoolKind, PoolLayout, RoomId};
//!
//! # fn layout() -> PoolLayout {
//! #     PoolLayout { name: "kv".into(), kind: PoolKind::Kv, order: Order::LayersFirst,
//! #                  layers: 2, pages: 8, page_bytes: 4096, page_tokens: 16 }
//! # }
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let hub = LocalHub::new();
//! let (source, destination) = (Pool::owned(layout())?, Pool::owned(layout())?);
//! let prefill = Node::builder("prefill-0").hub(&hub).pool(source.clone()).start().await?;
//! let decode = Node::builder("decode-0").hub(&hub).pool(destination.clone()).start().await?;
//! let peer = decode.connect("local://prefill-0").await?;
//!
//! // decode: lend two pages to room 42
//! let lease = destination.lease_write(&[3, 5])?;
//! let receiver = decode.receive(RoomId(42)).from(&peer).into(lease).start().await?;
//!
//! // prefill: fill two pages and push them
//! let mut pages = source.lease_write(&[0, 1])?;
//! pages.page_mut(0, 0).fill(7);
//! let sender = prefill.send(RoomId(42)).start().await?;
//! let slot = sender.reserve().await?;
//! slot.push(Chunk::tokens(0..32).pages(pages.into_read()))?;
//! sender.finish(32, None)?;
//!
//! assert_eq!(receiver.outcome().await, Outcome::Done);
//! let back = receiver.released().await;
//! assert_eq!(back.leases[0].page(0, 0)[0], 7);
//! # Ok(()) }
//! ```
//!
//! # Rules worth knowing
//!
//! - A key (room id and attempt) is used once. A retry uses the next attempt, at once, even while
//!   the memory of the first is still draining. The last million keys are remembered per shard;
//!   beyond that the caller's own ids must be unique.
//! - `abort` never blocks, and dropping a handle aborts its room ([`SendRoom::detach`] and
//!   [`ReceiveRoom::detach`] let it go on). Neither frees memory under a copy.
//! - The outcomes of two sides can be mixed in one way only: the receiver is `Done` and the sender
//!   `Aborted`, when an abort of the sender crosses the receiver's acceptance.
//! - A node can be driven by the engine's own loop ([`NodeBuilder::start_driven`]): then a small room
//!   costs no hop to another thread, and nothing happens on its shard that the loop does not drive.
//! - Dropping or forgetting any handle or future at any time is safe; forgetting one keeps what it
//!   holds for ever.
#![forbid(unsafe_code)]

mod api;
#[cfg(feature = "recording")]
pub mod recording;

/// Whether a node's parts do their work.
pub mod health {
    pub use crate::api::health::{
        Answer, EntranceState, Part, PartPulse, Pulse, PulseWatch, QuarantinedPages, Still,
        StillWhy,
    };
}

/// Devices that pools can be on, and the copy actors that move pages there.
pub mod device {
    #[cfg(feature = "cuda")]
    pub use kvroom_actors::copy::device::cuda;
    pub use kvroom_actors::copy::device::emulated;
    pub use kvroom_actors::copy::device::{
        Context, Culprit, DeviceError, DeviceMemory, DeviceStats, Identity, InFlight, IpcBytes,
        IpcMemory, Kind, Pinned, Polled, Priority, Queue, Ready, Sticky, Stream,
    };
    pub use kvroom_actors::copy::device_lane::{Device, DeviceOptions, LaneStats};
}

/// What the bytes of pools mean, and who sends what to whom where the two sides hold different parts of the
/// model.
pub mod layout {
    pub use kvroom_kernels::layout::cube::{
        CubeDifference, CubeError, CubeKind, CubeLayout, CubeMismatch, Dim, DimOrder, Dtype, Plane,
        Share, Span, explain, explain_sets, validate_set,
    };
    pub use kvroom_kernels::plan::cube::{Part, TilingError, tiles};
    pub use kvroom_kernels::plan::routes::{Leg, PoolPart, RouteError, Routes, routes};
}

pub use api::{
    AbortedRooms, Chunk, ChunkBuilder, EarlyClaim, Ended, FinishError, FinishProblem, LegBytes,
    Node, NodeBuilder, NodeStats, Pages, Peer, PushError, PushedChunk, ReceiveBuilder, ReceiveRoom,
    Released, ReserveError, RetriedReceive, RetriedSend, Retry, Role, RoomInfo, SendBuilder,
    SendRoom, ShutdownReport, Slot, StartError, StartErrorKind, UcxFacts, Which,
};
pub use api::{metrics, record};
pub use kvroom_actors::copy::schedule::Class;
pub use kvroom_actors::fabric::Fabric;
pub use kvroom_actors::handle::{ChunkBack, Landed, Status};
pub use kvroom_actors::ids::{Incarnation, PeerRef, RoomId, RoomKey};
pub use kvroom_actors::limits::{Deadlines, Limits};
pub use kvroom_actors::memory::{
    Backing, CopyFacts, CopyMeasurement, CopyMode, CopySample, Errno, FileOptions, Holder,
    HugePages, LeaseError, OthersMemory, Pool, PoolError, Proof, Quarantined, ReadLease,
    ReleasedPages, SharedError, SharedOptions, SharedWords, WriteLease, copy_facts, measure_copies,
};
pub use kvroom_actors::peer::message::Trace;
pub use kvroom_actors::reason::{Code, Reason, Side};
pub use kvroom_actors::room::{Outcome, StateName};
pub use kvroom_actors::runtime::{
    AddressError, ClusterKey, ConnectError, Cpus, Driver, KeyTooShort, ListenError, LocalHub, Net,
    NodeError, OneSided, OtherProcess, PeerState, PinError, Pinning, PoolChangeError, UcxBound,
    UcxError, UcxOptions, UcxUse, cpus_of_this_thread,
};
pub use kvroom_actors::supervisor::spent::Spent;
pub use kvroom_kernels::layout::{Order, PoolKind, PoolLayout};

/// The crate that the runtime is made of, for tests and tools that look inside. Its API follows the
/// runtime's needs and is not stable.
#[doc(hidden)]
pub use kvroom_actors as actors;
