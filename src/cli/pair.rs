//! Two nodes of one process, joined: what the self-test and every bench run on.
//!
//! ```text
//!   decode ──connect──▶ prefill        pages move prefill ─▶ decode
//!   destination pool    source pool
//! ```

use super::exit::Failure;
use kvroom::{
    Deadlines, Limits, LocalHub, Node, NodeStats, Order, Outcome, Peer, Pool, PoolKind, PoolLayout,
    ReadLease, Released, WriteLease,
};
use std::fmt::Display;
use std::future::Future;

/// Both nodes and what belongs to them.
pub(crate) struct Pair {
    pub(crate) prefill: Node,
    pub(crate) decode: Node,
    /// The prefill node as the decode node knows it.
    pub(crate) sender: Peer,
    /// The prefill node's pool, if one was asked for.
    source: Option<Pool>,
    /// The decode node's pool, if one was asked for.
    destination: Option<Pool>,
}

/// How to make a pair.
pub(crate) struct Setup {
    /// Shape of both pools; none for rooms without data.
    pub(crate) layout: Option<PoolLayout>,
    /// Copy lanes of each node.
    pub(crate) lanes: u16,
    /// Limits of both nodes.
    pub(crate) limits: Limits,
}

/// Runs `work` to its end on a runtime of its own.
pub(crate) fn block_on<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(failed("cannot start a tokio runtime"))?;
    runtime.block_on(work)
}

/// Makes a failure out of an error of the runtime, with what was being done.
pub(crate) fn failed<E: Display>(doing: &str) -> impl FnOnce(E) -> Failure {
    move |error| Failure::Failed(format!("{doing}: {error}"))
}

/// The layout of a pool of plain pages, one token each.
pub(crate) fn layout(layers: u32, pages: u32, page_bytes: u64) -> PoolLayout {
    PoolLayout {
        name: "kv".to_owned(),
        kind: PoolKind::Kv,
        order: Order::LayersFirst,
        layers,
        pages,
        page_bytes,
        page_tokens: 1,
    }
}

impl Pair {
    /// Starts and joins the nodes, each with one shard. Every page of their pools has been written,
    /// so that no measurement pays for the kernel's first touch.
    pub(crate) async fn start(setup: Setup) -> Result<Pair, Failure> {
        let hub = LocalHub::new();
        let pool = || setup.layout.clone().map(touched_pool).transpose();
        let (source, destination) = (pool()?, pool()?);
        let node = async |name: &str, pool: &Option<Pool>| {
            let mut builder = Node::builder(name)
                .hub(&hub)
                .shards(1)
                .lanes(usize::from(setup.lanes))
                .limits(setup.limits.clone())
                // Nothing here may end because a measurement takes its time.
                .deadlines(Deadlines {
                    outcome: None,
                    ..Deadlines::default()
                });
            if let Some(pool) = pool {
                builder = builder.pool(pool.clone());
            }
            builder
                .start()
                .await
                .map_err(failed(&format!("cannot start node {name}")))
        };
        let prefill = node("prefill", &source).await?;
        let decode = node("decode", &destination).await?;
        let sender = decode
            .connect("local://prefill")
            .await
            .map_err(failed("cannot join the two nodes"))?;
        Ok(Pair {
            prefill,
            decode,
            sender,
            source,
            destination,
        })
    }

    /// Leases pages of the source for writing.
    pub(crate) fn lease_source(&self, pages: &[u32]) -> Result<WriteLease, Failure> {
        lease(&self.source, "source", pages)
    }

    /// Leases pages of the destination for writing.
    pub(crate) fn lease_destination(&self, pages: &[u32]) -> Result<WriteLease, Failure> {
        lease(&self.destination, "destination", pages)
    }

    /// Counters of (prefill, decode).
    pub(crate) async fn stats(&self) -> (NodeStats, NodeStats) {
        (self.prefill.stats().await, self.decode.stats().await)
    }

    /// Shuts both nodes down; a node that leaves something behind is a failure.
    pub(crate) async fn shut_down(self) -> Result<(), Failure> {
        for (name, node) in [("decode", self.decode), ("prefill", self.prefill)] {
            let report = node.shutdown().await;
            if !report.drained || !report.leaked.is_empty() {
                let count = report.leaked.len();
                return Err(Failure::Failed(format!(
                    "node {name} did not drain at shutdown; {count} rooms were left behind"
                )));
            }
        }
        Ok(())
    }
}

/// The one lease of a released room that had one.
pub(crate) fn only_lease<L>(released: Released<L>, whose: &str) -> Result<L, Failure> {
    released
        .leases
        .into_iter()
        .next()
        .ok_or_else(|| Failure::Failed(format!("the {whose}'s lease did not come back")))
}

/// Fails unless the room is done.
pub(crate) fn require_done(outcome: Outcome, whose: &str) -> Result<(), Failure> {
    match outcome {
        Outcome::Done => Ok(()),
        Outcome::Aborted(reason) => Err(Failure::Failed(format!(
            "the {whose}'s room ended with {reason}"
        ))),
    }
}

/// The first cell whose bytes differ, if any. Both leases have the same number of pages.
pub(crate) fn first_difference(from: &ReadLease, to: &WriteLease) -> Option<String> {
    let layers = from.pool().layout().layers;
    let cells = (0..layers).flat_map(|l| (0..from.pages().len()).map(move |i| (l, i)));
    cells
        .into_iter()
        .find(|&(layer, i)| from.page(layer, i) != to.page(layer, i))
        .map(|(layer, i)| format!("layer {layer}, page {i} of the request differs"))
}

/// Writes other bytes into every cell of a lease; they follow from `salt`, layer and place.
pub(crate) fn stamp(lease: &mut WriteLease, salt: u64) {
    let layers = lease.pool().layout().layers;
    for layer in 0..layers {
        for i in 0..lease.pages().len() {
            let mut word = salt ^ (u64::from(layer) << 32 | i as u64);
            for bytes in lease.page_mut(layer, i).chunks_mut(8) {
                word = word
                    .wrapping_mul(0x5851_f42d_4c95_7f2d)
                    .wrapping_add(0x1405_7b7e_f767_814f);
                bytes.copy_from_slice(&word.to_le_bytes()[..bytes.len()]);
            }
        }
    }
}

fn touched_pool(layout: PoolLayout) -> Result<Pool, Failure> {
    let all: Vec<u32> = (0..layout.pages).collect();
    let layers = layout.layers;
    let pool = Pool::owned(layout).map_err(failed("cannot make a pool"))?;
    let mut lease = pool
        .lease_write(&all)
        .map_err(failed("cannot lease a new pool"))?;
    for layer in 0..layers {
        for i in 0..all.len() {
            lease.page_mut(layer, i).fill(1);
        }
    }
    drop(lease);
    Ok(pool)
}

fn lease(pool: &Option<Pool>, whose: &str, pages: &[u32]) -> Result<WriteLease, Failure> {
    let pool = pool
        .as_ref()
        .ok_or_else(|| Failure::Failed(format!("there is no {whose} pool")))?;
    pool.lease_write(pages)
        .map_err(failed(&format!("cannot lease {whose} pages")))
}

/// The node kept a source lease that it had no reason to keep.
pub(crate) fn source_kept() -> Failure {
    Failure::Failed("the source lease of a request that is over did not come back".to_owned())
}
