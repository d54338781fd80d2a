//! Two nodes, joined: what the self-test and every bench run on.
//!
//! ```text
//!   decode ──connect──▶ prefill        pages move prefill ─▶ decode
//!   destination pool    source pool
//!   this process        this process, or another one
//! ```
//!
//! The decode node is driven through the library. The prefill node is driven by the commands of
//! `kvroom node`, wherever it is, so that what is measured is the same code in one process and two.

use super::args::{NetArgs, UcxWhen};
use super::child::{Child, Pending};
use super::exit::Failure;
use super::node::engine::Engine;
use super::node::protocol::{Cells, Pages, Request, Send, Started, Wait, Waited};
use super::pattern::{self, Place};
use super::settings;
use super::temp::TempDir;
use kvroom::{
    Deadlines, Limits, LocalHub, Net, Node, NodeBuilder, Order, Outcome, Peer, Pool, PoolKind,
    PoolLayout, Released, WriteLease,
};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::fmt::Display;
use std::future::Future;

/// Both nodes and what belongs to them.
pub(crate) struct Pair {
    pub(crate) decode: Node,
    /// The prefill node as the decode node knows it.
    pub(crate) sender: Peer,
    prefill: Prefill,
    /// The decode node's pools.
    destinations: Vec<Pool>,
    /// Where their Unix socket is.
    _directory: Option<TempDir>,
}

enum Prefill {
    Here(Engine),
    There(Box<Child>),
}

/// An answer that is still to come from the prefill node.
#[must_use = "its answer has to be taken"]
pub(crate) enum Later {
    Here(Box<Request>),
    There(Pending),
}

/// What is between the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    /// Nothing: they share a process and a hub.
    Local,
    /// TCP over 127.0.0.1.
    Tcp,
    /// A Unix socket in a temporary directory.
    Unix,
}

impl Link {
    /// Its name in reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Link::Local => "local",
            Link::Tcp => "tcp",
            Link::Unix => "unix",
        }
    }
}

/// Two pools of the same name.
pub(crate) struct Pools {
    /// Of the destination.
    pub(crate) layout: PoolLayout,
    /// Pages of the source, in each layer.
    pub(crate) source_pages: u32,
}

impl Pools {
    /// Two of the same shape.
    pub(crate) fn alike(layout: PoolLayout) -> Pools {
        Pools {
            source_pages: layout.pages,
            layout,
        }
    }

    fn source(&self) -> PoolLayout {
        PoolLayout {
            pages: self.source_pages,
            ..self.layout.clone()
        }
    }
}

/// How to make a pair.
pub(crate) struct Setup {
    /// Their pools; none for rooms without data.
    pub(crate) pools: Vec<Pools>,
    /// Whether all pools are shared memory, so that the fabric is shm.
    pub(crate) shared: bool,
    /// Copy lanes of each node.
    pub(crate) lanes: u16,
    /// Shards of each node.
    pub(crate) shards: u16,
    /// Limits of both nodes.
    pub(crate) limits: Limits,
    /// What is between them.
    pub(crate) link: Link,
    /// Whether the prefill node is in a process of its own; not with a local link.
    pub(crate) apart: bool,
    /// Whether the threads of their engines drive their shards; then [`Pair::run`] has to be used.
    pub(crate) drive: bool,
    /// How their data connections are made.
    pub(crate) net: NetArgs,
}

impl Setup {
    /// Two nodes of this process in one hub.
    pub(crate) fn local(layout: Option<PoolLayout>, limits: Limits) -> Setup {
        Setup {
            pools: layout.into_iter().map(Pools::alike).collect(),
            shared: false,
            lanes: 1,
            shards: 1,
            limits,
            link: Link::Local,
            apart: false,
            drive: false,
            net: NetArgs::default(),
        }
    }
}

impl Setup {
    /// The fabric that follows.
    pub(crate) fn fabric(&self) -> &'static str {
        match self.link {
            Link::Local => "local",
            Link::Tcp | Link::Unix if self.net.ucx == UcxWhen::Always => "ucx",
            Link::Tcp | Link::Unix if self.shared => "shm",
            Link::Tcp | Link::Unix => "tcp",
        }
    }
}

/// Runs `work` to its end on a runtime of its own.
pub(crate) fn block_on<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(failed("cannot start a tokio runtime"))?;
    runtime.block_on(work)
}

/// Lets whoever drives this future have one turn.
pub(crate) async fn turn() {
    let mut had = false;
    std::future::poll_fn(|cx| {
        if std::mem::replace(&mut had, true) {
            return std::task::Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        std::task::Poll::Pending
    })
    .await;
}

/// Polls as the loop of an engine does, with nothing in between but whoever waits for this core.
pub(crate) async fn look_at<T>(future: impl Future<Output = T>) -> T {
    // Polled again and again within one turn of the runtime, which would tell it to wait for the next.
    let mut future = std::pin::pin!(tokio::task::coop::unconstrained(future));
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    loop {
        if let std::task::Poll::Ready(value) = future.as_mut().poll(&mut cx) {
            return value;
        }
        std::thread::yield_now();
    }
}

/// Makes a failure out of an error of the runtime, with what was being done.
pub(crate) fn failed<E: Display>(doing: &str) -> impl FnOnce(E) -> Failure {
    move |error| Failure::Failed(format!("{doing}: {error}"))
}

/// Name of the pools of most pairs.
pub(crate) const POOL: &str = "kv";

/// The layout of a pool of plain pages, one token each.
pub(crate) fn layout(layers: u32, pages: u32, page_bytes: u64) -> PoolLayout {
    named_layout(POOL, layers, pages, page_bytes)
}

/// The same with another name.
pub(crate) fn named_layout(name: &str, layers: u32, pages: u32, page_bytes: u64) -> PoolLayout {
    PoolLayout {
        name: name.to_owned(),
        kind: PoolKind::Kv,
        order: Order::LayersFirst,
        layers,
        pages,
        page_bytes,
        page_tokens: 1,
    }
}

impl Pair {
    /// Starts and joins the nodes. Every page of the destination pool has been written, so that no
    /// measurement pays for the kernel's first touch; of the source's, those that are filled.
    pub(crate) async fn start(setup: Setup) -> Result<Pair, Failure> {
        let destinations = destinations(&setup)?;
        let hub = LocalHub::new();
        let decode = builder("decode", &setup, &hub, None, &destinations);
        let decode = decode
            .start()
            .await
            .map_err(failed("cannot start node decode"))?;
        Pair::join(setup, hub, decode, destinations).await
    }

    /// Runs `work` on a pair to its end; on the thread that drives the decode node's shard, if that is
    /// to be so.
    pub(crate) fn run<T, W: Future<Output = Result<T, Failure>>>(
        setup: Setup,
        work: impl FnOnce(Pair) -> W,
    ) -> Result<T, Failure> {
        if !setup.drive {
            return block_on(async { work(Pair::start(setup).await?).await });
        }
        let destinations = destinations(&setup)?;
        let hub = LocalHub::new();
        let decode = builder("decode", &setup, &hub, None, &destinations);
        let driven = decode.start_driven();
        let (decode, mut driver) = driven.map_err(failed("cannot start node decode"))?;
        driver
            .run_looking(async { work(Pair::join(setup, hub, decode, destinations).await?).await })
    }

    async fn join(
        setup: Setup,
        hub: LocalHub,
        decode: Node,
        destinations: Vec<Pool>,
    ) -> Result<Pair, Failure> {
        let directory = match setup.link {
            Link::Unix => Some(TempDir::new().map_err(failed("cannot make a directory"))?),
            Link::Local | Link::Tcp => None,
        };
        let listen = match (setup.link, &directory) {
            (Link::Unix, Some(directory)) => {
                let socket = directory.path().join("prefill.sock");
                Some(format!("unix://{}", socket.display()))
            }
            (Link::Tcp, _) => Some("tcp://127.0.0.1:0".to_owned()),
            _ => None,
        };
        let (prefill, address) = if setup.apart {
            let child = Child::start(&child_words(&setup, listen.as_deref())).await?;
            let address = child.address()?.to_owned();
            (Prefill::There(Box::new(child)), address)
        } else {
            let sources = setup
                .pools
                .iter()
                .map(|p| new_pool(p.source(), setup.shared))
                .collect::<Result<Vec<_>, _>>()?;
            let node = builder("prefill", &setup, &hub, listen.as_deref(), &sources);
            let node = node
                .start()
                .await
                .map_err(failed("cannot start node prefill"))?;
            let local = "local://prefill".to_owned();
            let address = node.addresses().first().cloned().unwrap_or(local);
            let engine = Engine::new(node, sources);
            (Prefill::Here(engine), address)
        };
        let sender = decode.connect(&address).await;
        let sender = sender.map_err(failed("cannot join the two nodes"))?;
        require_fabric(&sender, setup.fabric())?;
        Ok(Pair {
            decode,
            sender,
            prefill,
            destinations,
            _directory: directory,
        })
    }

    /// The prefill node, if it is in this process.
    pub(crate) fn prefill(&self) -> Option<&Node> {
        match &self.prefill {
            Prefill::Here(engine) => Some(engine.node()),
            Prefill::There(_) => None,
        }
    }

    /// Has the prefill node do something, and takes its answer.
    pub(crate) async fn ask<T: DeserializeOwned>(
        &mut self,
        request: Request,
    ) -> Result<T, Failure> {
        let later = self.tell(request)?;
        self.answer(later).await
    }

    /// Gives the prefill node a command. One in another process begins at once, one in this process
    /// when its answer is taken.
    pub(crate) fn tell(&mut self, request: Request) -> Result<Later, Failure> {
        match &mut self.prefill {
            Prefill::Here(_) => Ok(Later::Here(Box::new(request))),
            Prefill::There(child) => child.tell(&request).map(Later::There),
        }
    }

    /// Takes an answer of the prefill node.
    pub(crate) async fn answer<T: DeserializeOwned>(&mut self, later: Later) -> Result<T, Failure> {
        let value: Value = match (&mut self.prefill, later) {
            (Prefill::Here(engine), Later::Here(request)) => engine
                .run(*request)
                .await
                .map_err(failed("the prefill node"))?,
            (Prefill::There(child), Later::There(pending)) => child.answer(pending).await?,
            _ => return Err(Failure::Failed("an answer of another node".to_owned())),
        };
        serde_json::from_value(value).map_err(failed("an answer that was not expected"))
    }

    /// Writes the pattern of `seed` into these source pages.
    pub(crate) async fn fill_source(&mut self, pages: &[u32], seed: u64) -> Result<(), Failure> {
        let cells = Cells {
            pool: POOL.to_owned(),
            pages: Pages::List(pages.to_vec()),
            seed,
            index: 0,
        };
        self.ask::<Value>(Request::Fill(cells)).await.map(drop)
    }

    /// Starts sending rooms on the prefill node; all of them have to start.
    pub(crate) async fn send(&mut self, send: Send) -> Result<(), Failure> {
        let later = self.tell(Request::Send(send))?;
        self.sent(later).await
    }

    /// Takes the answer to a `Send`.
    pub(crate) async fn sent(&mut self, later: Later) -> Result<(), Failure> {
        let started: Started = self.answer(later).await?;
        match started.reasons.first() {
            None => Ok(()),
            Some(why) => Err(Failure::Failed(format!("cannot start a sender: {why}"))),
        }
    }

    /// Waits for the outcomes of sending rooms and for their memory.
    pub(crate) async fn waited(&mut self, first: u64, count: u64) -> Result<Waited, Failure> {
        let wait = Request::Wait(Wait::sends(first, count));
        let waited: Waited = self.ask(wait).await?;
        all_over(waited)
    }

    /// Leases pages of the destination for writing.
    pub(crate) fn lease_destination(&self, pages: &[u32]) -> Result<WriteLease, Failure> {
        self.lease_of(POOL, pages)
    }

    /// Leases pages of one of several destinations for writing.
    pub(crate) fn lease_of(&self, pool: &str, pages: &[u32]) -> Result<WriteLease, Failure> {
        self.destination(pool)?
            .lease_write(pages)
            .map_err(failed("cannot lease destination pages"))
    }

    /// The destination pool of this name.
    pub(crate) fn destination(&self, name: &str) -> Result<&Pool, Failure> {
        let pool = self.destinations.iter().find(|p| p.layout().name == name);
        pool.ok_or_else(|| Failure::Failed(format!("there is no destination pool {name:?}")))
    }

    /// The process of the prefill node, if it is another one.
    pub(crate) fn other_process(&self) -> Option<u32> {
        match &self.prefill {
            Prefill::Here(_) => None,
            Prefill::There(child) => Some(child.id()),
        }
    }

    /// Shuts both nodes down; a node that leaves something behind is a failure.
    pub(crate) async fn shut_down(self) -> Result<(), Failure> {
        shut_down("decode", &self.decode).await?;
        match self.prefill {
            Prefill::Here(engine) => shut_down("prefill", engine.node()).await,
            Prefill::There(child) => child.stop().await,
        }
    }
}

/// Fails unless all rooms of a wait are over.
pub(crate) fn all_over(waited: Waited) -> Result<Waited, Failure> {
    if waited.timed_out + waited.unknown == 0 {
        return Ok(waited);
    }
    Err(Failure::Failed(format!(
        "{} senders did not end and {} were never started",
        waited.timed_out, waited.unknown
    )))
}

/// Fails unless all rooms of a wait are done.
pub(crate) fn all_done(waited: &Waited) -> Result<(), Failure> {
    match waited.reasons.first() {
        None => Ok(()),
        Some(why) => Err(Failure::Failed(format!("a sender ended: {why}"))),
    }
}

async fn shut_down(name: &str, node: &Node) -> Result<(), Failure> {
    let report = node.shutdown().await;
    if report.drained && report.leaked.is_empty() {
        return Ok(());
    }
    let count = report.leaked.len();
    Err(Failure::Failed(format!(
        "node {name} did not drain at shutdown; {count} rooms were left behind"
    )))
}

fn destinations(setup: &Setup) -> Result<Vec<Pool>, Failure> {
    let pools = setup.pools.iter();
    pools
        .map(|p| touched_pool(p.layout.clone(), setup.shared))
        .collect()
}

fn builder(
    name: &str,
    setup: &Setup,
    hub: &LocalHub,
    listen: Option<&str>,
    pools: &[Pool],
) -> NodeBuilder {
    let mut builder = setup.net.spin(Node::builder(name));
    builder = builder
        .shards(usize::from(setup.shards))
        .lanes(usize::from(setup.lanes))
        .limits(setup.limits.clone())
        // Nothing here may end because a measurement takes its time.
        .deadlines(Deadlines {
            outcome: None,
            ..Deadlines::default()
        })
        .net(Net {
            listen: listen.into_iter().map(str::to_owned).collect(),
            ..setup.net.net()
        });
    if setup.link == Link::Local {
        builder = builder.hub(hub);
    }
    for pool in pools {
        builder = builder.pool(pool.clone());
    }
    builder
}

fn child_words(setup: &Setup, listen: Option<&str>) -> Vec<String> {
    let mut words = vec![
        "--name=prefill".to_owned(),
        format!("--lanes={}", setup.lanes),
        format!("--shards={}", setup.shards),
        "--deadline=outcome=none".to_owned(),
    ];
    words.extend(listen.map(|address| format!("--listen={address}")));
    for l in setup.pools.iter().map(Pools::source) {
        let shape = format!("{}:{}:{}:{}", l.name, l.layers, l.pages, l.page_bytes);
        words.push(format!("--pool={shape}"));
    }
    if setup.shared {
        words.push("--shared-pools".to_owned());
    }
    if setup.drive {
        words.retain(|word| !word.starts_with("--shards"));
        words.push("--drive".to_owned());
    }
    words.extend(settings::limit_words(&setup.limits));
    words.extend(setup.net.words());
    words
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

/// Fails unless every byte of the lease is the pattern of `seed`.
pub(crate) fn require_pattern(lease: &WriteLease, seed: u64) -> Result<(), Failure> {
    require_repeated_pattern(lease, seed, u32::MAX)
}

/// The same for a request that was filled from `chunk` pages again and again.
pub(crate) fn require_repeated_pattern(
    lease: &WriteLease,
    seed: u64,
    chunk: u32,
) -> Result<(), Failure> {
    for layer in 0..lease.pool().layout().layers {
        for (index, i) in (0u32..).zip(0..lease.pages().len()) {
            let place = Place {
                layer,
                index: index % chunk,
                offset: 0,
            };
            if !pattern::holds(lease.page(layer, i), seed, place) {
                return Err(Failure::Failed(format!(
                    "bytes were lost: layer {layer}, page {i} of the request differs"
                )));
            }
        }
    }
    Ok(())
}

/// A pool of this process alone, or of shared memory.
pub(crate) fn new_pool(layout: PoolLayout, shared: bool) -> Result<Pool, Failure> {
    let pool = if shared {
        Pool::shared(layout)
    } else {
        Pool::owned(layout)
    };
    pool.map_err(failed("cannot make a pool"))
}

/// Fails unless that is how bytes move to and from the peer: what was not asked for is not measured.
fn require_fabric(peer: &Peer, wanted: &str) -> Result<(), Failure> {
    let found = peer.fabric().map(|f| f.to_string()).unwrap_or_default();
    if found != wanted {
        return Err(Failure::Failed(format!(
            "bytes go over {found:?} between the two nodes, and not over {wanted:?}: see the log"
        )));
    }
    Ok(())
}

fn touched_pool(layout: PoolLayout, shared: bool) -> Result<Pool, Failure> {
    let all: Vec<u32> = (0..layout.pages).collect();
    let layers = layout.layers;
    let pool = new_pool(layout, shared)?;
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
