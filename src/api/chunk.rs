//! Chunks on their way in, and their leases on their way back.

use super::block::block_on;
use super::error::PushError;
use super::send::SendRoom;
use kvroom_actors::copy::device::Ready;
use kvroom_actors::handle::{ChunkBack, ChunkPromise, ChunkShared};
use kvroom_actors::ids::ChunkNo;
use kvroom_actors::memory::{Lease, ReadLease};
use kvroom_actors::reason::{Code, Reason};
use kvroom_actors::room::{self, Outcome};
use kvroom_actors::supervisor::actor::Inbound;
use kvroom_actors::supervisor::attached::{ChunkSlot, Lent};
use kvroom_actors::supervisor::io::Input;
use kvroom_kernels::layout::PoolKind;
use kvroom_kernels::layout::cube::CubeKind;
use std::ops::Range;
use std::sync::Arc;

/// Source pages at a logical position of the request.
#[derive(Debug)]
pub struct Chunk {
    tokens: Range<u64>,
    layers: Option<Range<u32>>,
    lease: ReadLease,
    ready: Option<Arc<Ready>>,
}

/// A chunk without its pages.
#[derive(Clone, Debug)]
pub struct ChunkBuilder {
    tokens: Range<u64>,
    layers: Option<Range<u32>>,
}

impl Chunk {
    /// A chunk for these tokens of the request, counted from 0. The start is at a page boundary;
    /// so is the end, unless it is the request's.
    pub fn tokens(range: Range<u64>) -> ChunkBuilder {
        ChunkBuilder {
            tokens: range,
            layers: None,
        }
    }

    /// The pages' bytes are there when this event has fired, and nothing reads them before: the copy is
    /// queued behind it, and no thread waits. For pages on a device. The event is recorded before the chunk
    /// is pushed (one that never was counts as fired, and the pages are read at once), and is not recorded again before its pages are back. The chunk counts as posted from now
    /// on: if the event takes longer than `Deadlines::stall`, the receiver takes the room for stalled.
    #[must_use]
    pub fn ready(mut self, ready: Arc<Ready>) -> Chunk {
        self.ready = Some(ready);
        self
    }

    /// A request's row of a pool of states ([`CubeKind::State`](crate::layout::CubeKind::State)): a lease
    /// of one page, which has no place among the tokens.
    pub fn row(lease: ReadLease) -> Chunk {
        Chunk {
            tokens: 0..1,
            layers: None,
            lease,
            ready: None,
        }
    }

    /// The same chunk, by another lease of its pages.
    pub(super) fn again(&self) -> Result<Chunk, String> {
        let lease = self.lease.pool().lease_read(self.lease.pages());
        Ok(Chunk {
            tokens: self.tokens.clone(),
            layers: self.layers.clone(),
            lease: lease.map_err(|error| error.to_string())?,
            ready: self.ready.clone(),
        })
    }

    /// Its tokens; of a row, `0..1`.
    pub fn range(&self) -> Range<u64> {
        self.tokens.clone()
    }

    /// Its lease.
    pub fn into_lease(self) -> ReadLease {
        self.lease
    }
}

impl ChunkBuilder {
    /// Only these layers are ready; others come in chunks of their own. All, if not said.
    #[must_use]
    pub fn layers(mut self, layers: Range<u32>) -> Self {
        self.layers = Some(layers);
        self
    }

    /// The pages: one for every page of the token range, in order.
    pub fn pages(self, lease: ReadLease) -> Chunk {
        Chunk {
            tokens: self.tokens,
            layers: self.layers,
            lease,
            ready: None,
        }
    }
}

/// Room for one chunk: what `reserve` gives. Dropped unused, the room goes back.
#[derive(Debug)]
#[must_use = "a slot is for pushing a chunk"]
pub struct Slot<'r> {
    pub(super) room: &'r SendRoom,
    pub(super) slot: ChunkSlot,
}

impl Slot<'_> {
    /// Hands the chunk over. Never blocks, and is never lost with a dropped future.
    ///
    /// A chunk that cannot be used (a token range that is empty, not at a page boundary, or
    /// overlaps another one; a lease of the wrong number of pages) ends the room with `BadChunk`:
    /// what the receiver would get is not what was meant. A chunk pushed again with the same pages
    /// is a no-op.
    ///
    /// # Errors
    /// The room is over, or the lease is of a pool that cannot be a source here (then the room goes
    /// on); the chunk is handed back with the reason. If the room ends while the chunk is under way,
    /// the lease comes back through [`PushedChunk`].
    pub fn push(self, chunk: Chunk) -> Result<PushedChunk, PushError> {
        let room = self.room;
        let over = |reason: Reason, chunk| {
            Err(PushError {
                key: room.key(),
                reason,
                chunk,
            })
        };
        let name = chunk.lease.pool().layout().name.clone();
        match room.try_outcome() {
            Some(Outcome::Aborted(reason)) => return over(reason, chunk),
            Some(Outcome::Done) => {
                return over(Reason::new(Code::KeySpent, "the room is done"), chunk);
            }
            None => {}
        }
        let Some(pool) = room.pool_id(&chunk.lease) else {
            return over(
                Reason::new(
                    Code::BadChunk,
                    format!("its lease is of pool {name:?}, which is not one of this node's"),
                ),
                chunk,
            );
        };
        let layout = Arc::clone(chunk.lease.pool().layout());
        let content = chunk.lease.pool().content();
        let is_state = content.is_some_and(|content| content.kind == CubeKind::State);
        if layout.kind != PoolKind::Kv && !is_state {
            return over(
                Reason::new(
                    Code::BadChunk,
                    format!(
                        "its lease is of pool {name:?}, which holds aux rows: give it to finish()"
                    ),
                ),
                chunk,
            );
        }
        if chunk.ready.is_some() && chunk.lease.pool().device().is_none() {
            return over(
                Reason::new(
                    Code::BadChunk,
                    format!(
                        "it waits for a device's event, and pool {name:?} is in host memory, which the CPU \
                         reads: push it when its bytes are there"
                    ),
                ),
                chunk,
            );
        }
        let shared = Arc::new(ChunkShared::default());
        let Chunk {
            tokens,
            layers,
            lease,
            ready,
        } = chunk;
        let described = room::Chunk {
            no: ChunkNo(room.next_chunk()),
            pool,
            tokens: tokens.clone(),
            layers: layers.clone().unwrap_or(0..layout.layers),
            pages: lease.arc_pages(),
            page_tokens: match is_state {
                true => 1,
                false => layout.page_tokens.max(1),
            },
            pool_layers: layout.layers,
        };
        let lent = Lent {
            lease: Lease::Read(lease),
            chunk: Some(ChunkPromise::new(&shared)),
            slot: Some(self.slot),
            ready,
        };
        let input = Input::Push {
            life: room.life(),
            chunk: described,
            lease: lent,
        };
        let Err(refused) = room.put(input) else {
            return Ok(PushedChunk { shared });
        };
        match *refused {
            Inbound::Core(Input::Push {
                lease:
                    Lent {
                        lease: Lease::Read(lease),
                        ready,
                        ..
                    },
                ..
            }) => over(
                Reason::new(Code::NodeShutdown, "the node is stopped"),
                Chunk {
                    tokens,
                    layers,
                    lease,
                    ready,
                },
            ),
            _ => unreachable!("an inbox hands back what it was given"),
        }
    }
}

/// A chunk that was pushed. Its lease comes back when the chunk has landed on every leg, or with
/// the end of the room. Dropped, the pages go back to their pool by themselves when that is proven.
#[derive(Debug)]
pub struct PushedChunk {
    shared: Arc<ChunkShared>,
}

impl PushedChunk {
    /// Waits for the lease. None only if the node stopped with the room still held.
    pub async fn released(self) -> Option<ReadLease> {
        self.shared.wait().await.map(|back| back.lease)
    }

    /// As [`PushedChunk::released`], with the reason if the room ended before it took the chunk.
    pub async fn back(self) -> Option<ChunkBack> {
        self.shared.wait().await
    }

    /// As [`PushedChunk::released`], on a plain thread.
    pub fn blocking_released(self) -> Option<ReadLease> {
        block_on(self.released())
    }

    /// The lease, if it is back.
    pub fn try_released(&self) -> Option<ReadLease> {
        self.shared.take().map(|back| back.lease)
    }
}
