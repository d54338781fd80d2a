//! Bulk rooms to a peer, one after the other, so that what is small can be measured beside them.
//!
//! ```text
//!   source pool      [ pages, pushed again and again as chunks of the request ]
//!   destination pool [ as many pages as the request has                       ]
//! ```
//!
//! The source is smaller than the request: pages that are only read may be lent many times.

use super::super::exit::Failure;
use super::super::node::protocol::{Cells, Pages, Send};
use super::super::node::protocol::{Request, Wait, Waited};
use super::super::pair::{self, Later, Pair, Pools};
use kvroom::{Limits, ReceiveRoom, RoomId, WriteLease};
use serde_json::Value;
use std::time::{Duration, Instant};

/// Name of the pools.
const POOL: &str = "bulk";
const LAYERS: u32 = 32;
const PAGE_BYTES: u64 = 16 << 10;
/// Pages of a chunk, and of the source, in each layer; 256 MiB in all layers.
const CHUNK: u32 = 512;
const SEED: u64 = 13;
/// Ids of bulk rooms begin here.
const FIRST: u64 = 1 << 40;

/// The bulk side of a pair.
pub(crate) struct Bulk {
    pages: u32,
    chunk: u32,
    next: u64,
    lease: Option<WriteLease>,
    current: Option<Current>,
    times: Vec<Duration>,
}

struct Current {
    id: u64,
    room: ReceiveRoom,
    wait: Option<Later>,
    started: Instant,
}

/// Pages in each layer of a request of about so many bytes.
fn pages(bytes: u64) -> u32 {
    let pages = bytes.div_ceil(u64::from(LAYERS) * PAGE_BYTES);
    u32::try_from(pages).unwrap_or(u32::MAX)
}

/// Bytes that a request of about so many bytes has, and both pools.
pub(crate) fn bytes(asked: u64) -> (u64, u64) {
    let of = |pages: u32| u64::from(pages) * u64::from(LAYERS) * PAGE_BYTES;
    let pages = pages(asked);
    (of(pages), of(pages) + of(pages.min(CHUNK)))
}

/// The pools that it needs.
pub(crate) fn pools(asked: u64) -> Pools {
    let pages = pages(asked);
    Pools {
        layout: pair::named_layout(POOL, LAYERS, pages, PAGE_BYTES),
        source_pages: pages.min(CHUNK),
    }
}

/// The limits that it needs.
pub(crate) fn limits(asked: u64) -> Limits {
    let defaults = Limits::default();
    let pages = pages(asked) as usize;
    Limits {
        pages_per_claim: defaults.pages_per_claim.max(pages),
        frame_bytes: defaults.frame_bytes.max(pages * 8 + (1 << 20)),
        jobs_per_lane: defaults.jobs_per_lane.max(pages * LAYERS as usize),
        ..defaults
    }
}

impl Bulk {
    /// Fills the source and leases the destination.
    pub(crate) async fn new(pair: &mut Pair, asked: u64) -> Result<Bulk, Failure> {
        let pages = pages(asked);
        let chunk = pages.min(CHUNK);
        let cells = Cells {
            pool: POOL.to_owned(),
            pages: Pages::List((0..chunk).collect()),
            seed: SEED,
            index: 0,
        };
        pair.ask::<Value>(Request::Fill(cells)).await?;
        let all: Vec<u32> = (0..pages).collect();
        let lease = pair.lease_of(POOL, &all)?;
        Ok(Bulk {
            pages,
            chunk,
            next: FIRST,
            lease: Some(lease),
            current: None,
            times: Vec::new(),
        })
    }

    /// Starts a bulk room if none is under way.
    pub(crate) async fn keep_going(&mut self, pair: &mut Pair) -> Result<(), Failure> {
        if self.is_under_way() {
            return Ok(());
        }
        self.finish(pair).await?;
        let id = self.next;
        self.next += 1;
        let send = Send {
            pool: Some(POOL.to_owned()),
            pages: Some(Pages::List(
                (0..self.pages).map(|page| page % self.chunk).collect(),
            )),
            chunk_pages: Some(self.chunk as usize),
            ..Send::empty(id, 1)
        };
        pair.send(send).await?;
        let wait = pair.tell(Request::Wait(Wait::sends(id, 1)))?;
        let lease = self.lease.take();
        let lease = lease.ok_or_else(|| Failure::Failed("the bulk pages are lent".to_owned()))?;
        let room = pair.decode.receive(RoomId(id)).from(&pair.sender);
        let started = Instant::now();
        let room = room.into(lease).start().await;
        let room = room.map_err(pair::failed("cannot start a bulk receiver"))?;
        self.current = Some(Current {
            id,
            room,
            wait: Some(wait),
            started,
        });
        Ok(())
    }

    /// Whether a bulk room has started and not ended.
    pub(crate) fn is_under_way(&self) -> bool {
        let current = self.current.as_ref();
        current.is_some_and(|c| !c.room.poll().ended)
    }

    /// Waits for the bulk room that is under way, if one is; it has to be done.
    pub(crate) async fn finish(&mut self, pair: &mut Pair) -> Result<(), Failure> {
        let Some(mut current) = self.current.take() else {
            return Ok(());
        };
        pair::require_done(current.room.outcome().await, "bulk receiver")?;
        // Too long by what the small room beside it still took.
        self.times.push(current.started.elapsed());
        let lease = pair::only_lease(current.room.released().await, "bulk receiver")?;
        if let Some(wait) = current.wait.take() {
            let waited: Waited = pair.answer(wait).await?;
            pair::all_done(&pair::all_over(waited)?)?;
        }
        if current.id == FIRST {
            pair::require_repeated_pattern(&lease, SEED, self.chunk)?;
        }
        self.lease = Some(lease);
        Ok(())
    }

    /// What the rooms took so far.
    pub(crate) fn times(&self) -> &[Duration] {
        &self.times
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_request_has_a_source_of_its_own_size_and_a_large_one_a_chunk() {
        assert_eq!(bytes(1 << 20), (1 << 20, 2 << 20));
        assert_eq!(bytes(4 << 30), (4 << 30, (4 << 30) + (256 << 20)));
        assert_eq!(pools(4 << 30).source_pages, CHUNK);
        assert!(limits(4 << 30).pages_per_claim >= 8_192);
    }
}
