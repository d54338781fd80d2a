//! Pools of other processes: one task owns the table of them.
//!
//! ```text
//!   POST /v1/pools ─▶ Keeper ─▶ memory (a file, made or given; a passed descriptor) ─▶ Node::add_pool
//!                            └─▶ device (a CUDA IPC handle, opened by Devices)      ─▶
//!   the configuration ─▶ Configured (files, memory, memory of a device) ─▶ adopted
//!   DELETE, owner died ─▶ Keeper: no new leases ─▶ every lease is back ─▶ gone
//!                            └──▶ Snapshot: what everybody else reads, and leases from
//! ```
//!
//! Rules:
//! - Memory is never pulled from under a transfer: a pool goes when every lease of it is back, which
//!   each is on proof only. Until then it is listed, with the reason.
//! - The table has one owner, its task. Others have the last snapshot of it, and never wait to read it.
//! - Memory that the daemon has allocated on a device stays until somebody says that every engine has closed
//!   it: to free what another process has open is undefined, and nobody here can see whether it has.
//! - What is made from a request is checked before anything is opened, and opened before it is listed.

mod configured;
mod device;
mod entry;
mod keeper;
mod memory;
mod routes;
mod shape;

pub(crate) use configured::Configured;
pub(crate) use routes::routes;
pub(crate) use shape::{PoolSpec, PoolView};

use super::devices::{self, Devices};
use super::http::Problem;
use super::tasks::{Tasks, Without};
use axum::http::StatusCode;
use keeper::Ask;
use kvroom::{Node, Pool};
use memory::Opened;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot, watch};

/// The name of the task.
const KEEPER: &str = "pools keeper";
/// Asks that may wait for the keeper.
const ASKS: usize = 64;

/// What can be set about pools.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PoolsOptions {
    /// Where files of pools are made, and the only folder of which files are taken over HTTP.
    pub(crate) folder: PathBuf,
    /// Pools that there may be at once.
    pub(crate) most: usize,
}

impl Default for PoolsOptions {
    fn default() -> Self {
        PoolsOptions {
            folder: PathBuf::from("/dev/shm"),
            most: 64,
        }
    }
}

/// Asks the task that owns the pools. Clones ask the same one.
#[derive(Clone)]
pub(crate) struct Pools {
    asks: mpsc::Sender<Ask>,
    snapshot: watch::Receiver<Arc<Snapshot>>,
}

/// The table at one moment.
#[derive(Default)]
struct Snapshot {
    /// In the order of their registration.
    entries: Vec<Arc<entry::Entry>>,
}

impl Pools {
    /// Starts the task.
    pub(crate) fn start(node: Node, devices: Devices, tasks: &Tasks) -> Pools {
        Pools::start_with(node, devices, PoolsOptions::default(), tasks)
    }

    /// As [`Pools::start`], set up.
    pub(crate) fn start_with(
        node: Node,
        devices: Devices,
        options: PoolsOptions,
        tasks: &Tasks,
    ) -> Pools {
        let (asks, inbox) = mpsc::channel(ASKS);
        let (publish, snapshot) = watch::channel(Arc::default());
        let keeper = |turns| keeper::run(node, devices, options, inbox, publish, turns);
        tasks.spawn_in_turns(KEEPER, Without::NotAlive, keeper);
        Pools { asks, snapshot }
    }

    /// The pool of this name, to lease pages of, if it takes new leases; says what is wrong otherwise.
    pub(crate) fn find(&self, name: &str) -> Result<Pool, Problem> {
        let entry = self.entry(name).ok_or_else(|| unknown(name))?;
        if let Some((ordinal, why)) = entry.lost_device() {
            return Err(devices::lost(ordinal, &why));
        }
        match entry.refuses() {
            None => Ok(entry.pool().clone()),
            Some(why) => Err(Problem::new(
                StatusCode::CONFLICT,
                "pool-not-serving",
                "The pool takes no new pages into use",
                format!("pool {name:?} gives no new leases: {why}"),
            )),
        }
    }

    /// All pools, as they are now.
    pub(crate) fn list(&self) -> Vec<PoolView> {
        let snapshot = self.snapshot.borrow().clone();
        snapshot.entries.iter().map(|entry| entry.view()).collect()
    }

    /// Pools of which pages are quarantined, and how many.
    pub(crate) fn quarantined(&self) -> Vec<(String, usize)> {
        let snapshot = self.snapshot.borrow().clone();
        let pools = snapshot.entries.iter().map(|entry| entry.pool());
        let pools = pools.map(|pool| (pool.layout().name.clone(), pool.quarantined_pages()));
        pools.filter(|(_, pages)| *pages > 0).collect()
    }

    /// Bytes of this device that are kept, since engines may have them open.
    pub(crate) fn kept_bytes(&self, ordinal: u32) -> u64 {
        let snapshot = self.snapshot.borrow().clone();
        let of = |e: &&Arc<entry::Entry>| {
            let device = e.pool().device();
            device.is_some_and(|d| d.context().identity().ordinal == ordinal)
        };
        snapshot
            .entries
            .iter()
            .filter(of)
            .map(|e| e.kept_bytes())
            .sum()
    }

    /// The pool of this name, as it is now.
    pub(crate) fn view(&self, name: &str) -> Result<PoolView, Problem> {
        let entry = self.entry(name).ok_or_else(|| unknown(name))?;
        Ok(entry.view())
    }

    /// Registers a pool; true if it is new, false if this very pool was there.
    pub(crate) async fn register(&self, spec: PoolSpec) -> Result<(PoolView, bool), Problem> {
        self.ask(|reply| Ask::Register { spec, reply }).await?
    }

    /// Takes a pool that is opened already and that the node has been started with.
    pub(crate) async fn adopt(&self, opened: Opened) -> Result<PoolView, Problem> {
        self.ask(|reply| Ask::Adopt { opened, reply }).await?
    }

    /// Takes a pool out of use; its rooms go on to their end, or are aborted. Answers at once.
    /// `closed` says that no engine has memory of it open that the daemon has allocated.
    pub(crate) async fn retire(
        &self,
        name: &str,
        abort: bool,
        closed: bool,
    ) -> Result<PoolView, Problem> {
        let name = name.to_owned();
        self.ask(|reply| Ask::Retire {
            name,
            abort,
            closed,
            reply,
        })
        .await?
    }

    /// Waits until there is no such pool any more, or it stays for what engines may have open.
    pub(crate) async fn gone(&self, name: &str) {
        let mut snapshot = self.snapshot.clone();
        let is_gone = |s: &Arc<Snapshot>| {
            let entry = s.named(name);
            entry.is_none_or(|e| e.stage() == entry::Stage::Kept && !e.is_leaving())
        };
        // An error is that the keeper has ended: nothing will come.
        let _ = snapshot.wait_for(is_gone).await;
    }

    fn entry(&self, name: &str) -> Option<Arc<entry::Entry>> {
        self.snapshot.borrow().named(name).cloned()
    }

    async fn ask<T>(&self, ask: impl FnOnce(oneshot::Sender<T>) -> Ask) -> Result<T, Problem> {
        let (reply, answer) = oneshot::channel();
        match self.asks.try_send(ask(reply)) {
            Ok(()) => {}
            Err(mpsc::error::TrySendError::Full(_)) => {
                let text = format!("{ASKS} requests about pools wait already: try again");
                return Err(Problem::limit("requests about pools", text));
            }
            Err(mpsc::error::TrySendError::Closed(_)) => return Err(Problem::is_over(KEEPER)),
        }
        answer.await.map_err(|_| Problem::is_over(KEEPER))
    }
}

impl Snapshot {
    fn named(&self, name: &str) -> Option<&Arc<entry::Entry>> {
        self.entries.iter().find(|e| e.name() == name)
    }
}

fn unknown(name: &str) -> Problem {
    Problem::new(
        StatusCode::NOT_FOUND,
        "no-such-pool",
        "There is no such pool",
        format!("there is no pool {name:?}: register it with POST /v1/pools"),
    )
}

#[cfg(test)]
mod tests;
