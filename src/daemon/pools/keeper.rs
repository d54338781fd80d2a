//! The task that owns the table of pools.
//!
//! ```text
//!   asks ─┐          ┌─▶ openings (threads that block: files, descriptors) ─▶ listed
//!   ticks ┼─▶ Keeper ┼─▶ leavings (the node forgets it, its rooms are aborted) ─▶ looked at
//!   ends ─┘          └─▶ Snapshot
//! ```
//!
//! Rules: the task itself waits for nobody. What may take long is a task of its own, which says so
//! when it is done; how many there are is bounded by the number of pools.

use super::device;
use super::entry::{Do, Entry, Event, Stage};
use super::memory::{self, Opened};
use super::shape::{PoolSpec, PoolView};
use super::{PoolsOptions, Snapshot, unknown};
use crate::daemon::devices::Devices;
use crate::daemon::http::Problem;
use crate::daemon::tasks::Turns;
use axum::http::StatusCode;
use kvroom::{Node, Pool, PoolChangeError, Which};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{AbortHandle, JoinError, JoinSet};
use tokio::time::{MissedTickBehavior, interval};

/// How often pools are looked at that are on their way out.
const SOON: Duration = Duration::from_millis(20);
/// Requests that may wait for one pool to be opened, the first among them.
const WAITING: usize = 64;
/// How often all are: owners, pages of former lives.
const NOW_AND_THEN: Duration = Duration::from_secs(1);

type Registered = Result<(PoolView, bool), Problem>;

/// What the keeper is asked.
pub(super) enum Ask {
    Register {
        spec: PoolSpec,
        reply: oneshot::Sender<Registered>,
    },
    Adopt {
        opened: Opened,
        reply: oneshot::Sender<Result<PoolView, Problem>>,
    },
    Retire {
        name: String,
        abort: bool,
        closed: bool,
        reply: oneshot::Sender<Result<PoolView, Problem>>,
    },
}

/// A pool that is being opened.
struct Opening {
    spec: PoolSpec,
    /// Who waits: whoever asked first, and who asked for the same since.
    waiting: Vec<oneshot::Sender<Registered>>,
}

struct Keeper {
    node: Node,
    devices: Devices,
    options: PoolsOptions,
    publish: watch::Sender<Arc<Snapshot>>,
    entries: Vec<Arc<Entry>>,
    /// What is being opened, by name.
    opening: HashMap<String, Opening>,
    openings: JoinSet<(String, Result<Opened, Problem>)>,
    /// Pools that the node is being told about; with the number of rooms that were aborted.
    leaving: HashMap<String, usize>,
    leavings: JoinSet<(String, usize)>,
    /// Each ends when an owner is dead.
    owners: JoinSet<()>,
    watched: HashMap<String, AbortHandle>,
}

/// What a turn is for.
enum Work {
    Ask(Ask),
    Opened(Result<(String, Result<Opened, Problem>), JoinError>),
    Left(Result<(String, usize), JoinError>),
    OwnerDied,
    Look,
    LookAgain,
}

/// Keeps the table until nobody can ask any more.
pub(super) async fn run(
    node: Node,
    devices: Devices,
    options: PoolsOptions,
    mut inbox: mpsc::Receiver<Ask>,
    publish: watch::Sender<Arc<Snapshot>>,
    turns: Turns,
) {
    let mut keeper = Keeper {
        node,
        devices,
        options,
        publish,
        entries: Vec::new(),
        opening: HashMap::new(),
        openings: JoinSet::new(),
        leaving: HashMap::new(),
        leavings: JoinSet::new(),
        owners: JoinSet::new(),
        watched: HashMap::new(),
    };
    let (mut soon, mut now_and_then) = (interval(SOON), interval(NOW_AND_THEN));
    soon.set_missed_tick_behavior(MissedTickBehavior::Delay);
    now_and_then.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let work = tokio::select! {
            ask = inbox.recv() => match ask {
                Some(ask) => Work::Ask(ask),
                None => return,
            },
            Some(opened) = keeper.openings.join_next() => Work::Opened(opened),
            Some(left) = keeper.leavings.join_next() => Work::Left(left),
            Some(_) = keeper.owners.join_next() => Work::OwnerDied,
            _ = soon.tick(), if keeper.entries.iter().any(|e| e.is_leaving()) => Work::Look,
            _ = now_and_then.tick() => Work::LookAgain,
        };
        let _turn = turns.begin();
        match work {
            Work::Ask(ask) => keeper.asked(ask),
            Work::Opened(Ok((name, opened))) => keeper.opened(&name, opened),
            Work::Left(Ok((name, aborted))) => keeper.left(&name, aborted),
            Work::Opened(Err(e)) | Work::Left(Err(e)) => {
                tracing::error!("a task of the pools failed: {e}");
            }
            Work::OwnerDied => keeper.look_at_owners(),
            Work::Look => keeper.look(),
            Work::LookAgain => {
                keeper.look_at_owners();
                keeper.look_again();
            }
        }
    }
}

impl Drop for Keeper {
    /// The daemon ends, and the driver takes back what was open at the end of the process: a call of it
    /// here could hold that up for ever.
    fn drop(&mut self) {
        let on_devices = |entry: &Arc<Entry>| entry.pool().device().is_some();
        for entry in self.entries.drain(..).filter(on_devices) {
            std::mem::forget(entry);
        }
    }
}

impl Keeper {
    fn asked(&mut self, ask: Ask) {
        match ask {
            Ask::Register { spec, reply } => self.register(spec, reply),
            Ask::Adopt { opened, reply } => {
                let view = self.list(opened).view();
                let _ = reply.send(Ok(view));
            }
            Ask::Retire {
                name,
                abort,
                closed,
                reply,
            } => {
                let _ = reply.send(self.retire(&name, abort, closed));
            }
        }
    }

    fn register(&mut self, spec: PoolSpec, reply: oneshot::Sender<Registered>) {
        if let Some(opening) = self.opening.get_mut(&spec.name)
            && opening.spec == spec
        {
            opening.waiting.retain(|waits| !waits.is_closed());
            if opening.waiting.len() < WAITING {
                opening.waiting.push(reply);
            } else {
                let text = format!(
                    "{WAITING} requests wait already until pool {:?} is opened",
                    spec.name
                );
                let _ = reply.send(Err(Problem::limit("requests about a pool", text)));
            }
            return;
        }
        if let Some(answer) = self.answer(&spec) {
            let _ = reply.send(answer);
            return;
        }
        let (node, devices) = (self.node.clone(), self.devices.clone());
        let options = self.options.clone();
        let name = spec.name.clone();
        let opening = Opening {
            spec: spec.clone(),
            waiting: vec![reply],
        };
        self.opening.insert(name.clone(), opening);
        self.openings.spawn(async move {
            let opened = if spec.memory.cuda.is_some() {
                device::open(&spec, &devices).await
            } else {
                let of = node.name().to_owned();
                let opening = move || memory::open(&spec, &of, &options);
                let opening = tokio::task::spawn_blocking(opening).await;
                opening.unwrap_or_else(|_| Err(broken(&name)))
            };
            let added = match opened {
                Ok(opened) => match node.add_pool(opened.pool.clone()).await {
                    Ok(()) => Ok(opened),
                    Err(error) => {
                        match opened.pool.device().cloned() {
                            Some(device) => devices.let_go(&device, opened),
                            None => undo(opened, &name).await,
                        }
                        Err(not_added(&error))
                    }
                },
                Err(problem) => Err(problem),
            };
            (name, added)
        });
    }

    /// The answer, if there is one already; none if the pool is to be opened.
    fn answer(&self, spec: &PoolSpec) -> Option<Registered> {
        if let Err(problem) = memory::check(spec) {
            return Some(Err(problem));
        }
        if let Some(entry) = self.named(&spec.name) {
            if entry.stage() == Stage::Kept {
                let text = format!("pool {:?}: {}", spec.name, entry.kept());
                let title = "A pool of this name is kept";
                return Some(Err(Problem::conflict("pool-leaving", title, text)));
            }
            if let Some(why) = entry.refuses() {
                return Some(Err(Problem::new(
                    StatusCode::CONFLICT,
                    "pool-leaving",
                    "A pool of this name is on its way out",
                    format!(
                        "pool {:?}: {why}, and {} of its pages are not back yet; try again when it is gone",
                        spec.name,
                        held(entry)
                    ),
                )));
            }
            if entry.is_of(spec) {
                return Some(Ok((entry.view(), false)));
            }
        }
        if self.named(&spec.name).is_some() || self.opening.contains_key(&spec.name) {
            return Some(Err(Problem::new(
                StatusCode::CONFLICT,
                "pool-exists",
                "There is a pool of this name",
                format!(
                    "pool {:?} is there, or being registered, with other terms: retire it first, or name \
                     the new one otherwise",
                    spec.name
                ),
            )));
        }
        let there = self.entries.iter().filter_map(|e| e.opened().spec.as_ref());
        let mut there = there.chain(self.opening.values().map(|opening| &opening.spec));
        if let Some(other) = there.find(|other| device::overlap(other, spec)) {
            return Some(Err(device::attached(&other.name)));
        }
        let own = |entry: &&Arc<Entry>| {
            let exported = entry.opened().exported();
            exported.is_some_and(|memory| device::is_of(spec, memory))
        };
        if let Some(other) = self.entries.iter().find(own) {
            return Some(Err(device::attached(other.name())));
        }
        // Those that nobody registered count as well: the node has a limit for all of them together.
        let is_own = |pool: &Pool| {
            let name = &pool.layout().name;
            self.named(name).is_none() && !self.opening.contains_key(name)
        };
        let own = self.node.pools().iter().filter(|pool| is_own(pool)).count();
        let most = self.options.most;
        if self.entries.len() + self.opening.len() + own >= most {
            let text = format!(
                "this daemon has {most} pools already, which is its limit, that of its canaries among them: \
                 retire one"
            );
            return Some(Err(Problem::limit("pools", text)));
        }
        None
    }

    fn opened(&mut self, name: &str, opened: Result<Opened, Problem>) {
        let waiting = self.opening.remove(name).map(|opening| opening.waiting);
        let registered = opened.map(|opened| {
            let view = self.list(opened).view();
            tracing::info!(pool = name, path = ?view.path, owner = ?view.owner, "a pool is registered");
            (view, true)
        });
        if let Err(problem) = &registered {
            tracing::info!(
                pool = name,
                why = problem.detail,
                "a pool is not registered"
            );
        }
        // Whoever asked first made it, if he still waits.
        for (at, waiting) in waiting.into_iter().flatten().enumerate() {
            let registered = registered.clone().map(|(view, new)| (view, new && at == 0));
            let _ = waiting.send(registered);
        }
    }

    fn list(&mut self, opened: Opened) -> Arc<Entry> {
        let entry = Arc::new(Entry::new(opened));
        if let Some(owner) = entry.owner() {
            let owner = Arc::clone(owner);
            let watch = self.owners.spawn(async move {
                // If it cannot be waited for, it is looked at now and then.
                if owner.ended().await.is_err() {
                    std::future::pending::<()>().await;
                }
            });
            self.watched.insert(entry.name().to_owned(), watch);
        }
        self.entries.push(Arc::clone(&entry));
        self.tell();
        entry
    }

    fn retire(&mut self, name: &str, abort: bool, closed: bool) -> Result<PoolView, Problem> {
        let Some(at) = self.entries.iter().position(|e| e.name() == name) else {
            return Err(unknown(name));
        };
        if closed && self.entries[at].may_be_open() {
            tracing::info!(
                pool = name,
                "every engine has closed the memory of a pool, somebody says"
            );
            self.entries[at] = Arc::new(self.entries[at].with_closed());
            self.tell();
        }
        self.on(name, Event::Retire { abort });
        match self.named(name) {
            Some(entry) => Ok(entry.view()),
            None => Err(unknown(name)),
        }
    }

    fn look_at_owners(&mut self) {
        for name in self.names(|e| e.owner().is_some_and(|o| o.is_dead())) {
            self.on(&name, Event::OwnerDied);
        }
        // A room that had its pages before that, and started after, was missed then. Who is being told
        // is not told at the same time again: it would count its rooms twice.
        for name in self.names(|e| e.stage() == Stage::OwnerDied && e.pool().leased_pages() > 0) {
            if !self.leaving.contains_key(&name) {
                self.leave(&name, true);
            }
        }
    }

    fn look(&mut self) {
        for name in self.names(|e| e.is_leaving()) {
            if let Some(entry) = self.named(&name)
                && !self.leaving.contains_key(&name)
            {
                let (leased, open) = (held(entry), entry.may_be_open());
                self.on(&name, Event::Look { leased, open });
            }
        }
    }

    fn look_again(&self) {
        for entry in &self.entries {
            let freed = entry.pool().look_again();
            if freed > 0 {
                tracing::info!(
                    pool = entry.name(),
                    pages = freed,
                    "pages of a previous life are free: their writers are out or dead"
                );
            }
        }
    }

    fn on(&mut self, name: &str, event: Event) {
        let Some(at) = self.entries.iter().position(|e| e.name() == name) else {
            return;
        };
        let (stage, to_do) = self.entries[at].stage().on(event);
        if stage != self.entries[at].stage() {
            let entry = self.entries[at].at(stage);
            match stage {
                Stage::Kept => tracing::info!(pool = name, why = entry.kept(), "a pool is kept"),
                _ => {
                    let why = entry.refuses();
                    tracing::info!(pool = name, why, "a pool gives no more leases");
                }
            }
            self.entries[at] = Arc::new(entry);
            self.tell();
        }
        match to_do {
            Do::Nothing => {}
            Do::Retire => self.leave(name, false),
            Do::RetireAndAbort | Do::Abort => self.leave(name, true),
            Do::Remove => {
                let entry = self.entries.remove(at);
                if let Some(watch) = self.watched.remove(name) {
                    watch.abort();
                }
                // Before anybody is told that it is gone: then its memory may be registered again.
                entry.opened().remove();
                self.tell();
                if let Some(device) = entry.pool().device().cloned() {
                    self.devices.let_go(&device, entry);
                }
                tracing::info!(pool = name, "a pool is gone: all of its pages are back");
            }
        }
    }

    /// No new leases from now on; the node is told, and its rooms, beside this task.
    fn leave(&mut self, name: &str, abort: bool) {
        let Some(entry) = self.named(name) else {
            return;
        };
        let pool = entry.pool().clone();
        pool.retire();
        let why = entry.refuses().unwrap_or_default();
        let (node, name) = (self.node.clone(), name.to_owned());
        *self.leaving.entry(name.clone()).or_default() += 1;
        self.leavings.spawn(async move {
            // An error is that the node has forgotten it already.
            let _ = node.retire_pool(&name).await;
            let aborted = if abort {
                let reason = format!("pool {name:?}: {why}");
                node.abort_where(Which::Pool(pool), reason).await
            } else {
                0
            };
            (name, aborted)
        });
    }

    fn left(&mut self, name: &str, aborted: usize) {
        if let Some(more) = self.leaving.get_mut(name) {
            *more -= 1;
            if *more == 0 {
                self.leaving.remove(name);
            }
        }
        if aborted > 0
            && let Some(at) = self.entries.iter().position(|e| e.name() == name)
        {
            tracing::info!(pool = name, rooms = aborted, "rooms of a pool are aborted");
            self.entries[at] = Arc::new(self.entries[at].with_aborted(aborted));
            self.tell();
        }
        self.look();
    }

    fn named(&self, name: &str) -> Option<&Arc<Entry>> {
        self.entries.iter().find(|e| e.name() == name)
    }

    fn names(&self, which: impl Fn(&Entry) -> bool) -> Vec<String> {
        let chosen = self.entries.iter().filter(|e| which(e));
        chosen.map(|e| e.name().to_owned()).collect()
    }

    fn tell(&self) {
        self.publish.send_replace(Arc::new(Snapshot {
            entries: self.entries.clone(),
        }));
    }
}

/// The node did not take it.
async fn undo(opened: Opened, name: &str) {
    let undone = tokio::task::spawn_blocking(move || opened.undo()).await;
    if undone.is_err() {
        tracing::error!(pool = name, "what was made for it may have stayed");
    }
}

/// Pages that somebody may still touch.
fn held(entry: &Entry) -> usize {
    entry.pool().leased_pages() + entry.pool().quarantined_pages()
}

fn broken(name: &str) -> Problem {
    Problem::new(
        StatusCode::INTERNAL_SERVER_ERROR,
        "internal",
        "The daemon failed",
        format!(
            "opening the memory of pool {name:?} failed without a reason; the log may say more"
        ),
    )
}

fn not_added(error: &PoolChangeError) -> Problem {
    let text = error.to_string();
    match error {
        PoolChangeError::NameTaken(_) => {
            Problem::conflict("pool-exists", "There is a pool of this name", text)
        }
        PoolChangeError::TooMany(_) => Problem::limit("pools", text),
        _ => Problem::stopping(),
    }
}
