//! Health that cannot lie.
//!
//! ```text
//!   canary tasks ─▶ runs ─┐                        ┌─▶ GET /readyz   (the last result, whatever it is)
//!   node.pulse, ask ──────┼─▶ health task ─▶ Ready ┤
//!   facts (peers, pools) ─┘        │ heartbeat     └─▶ the watchdog, if it is late
//!                                  ▼
//!   node.pulse ─▶ watchdog, a plain thread ─▶ Live ─▶ GET /livez; the log; systemd
//! ```
//!
//! Rules:
//! - whoever asks reads the last result and triggers nothing; a result that is too old is red;
//! - overload is not a wedge: what has much to do and gets on with it is well;
//! - `/livez` is red for what a restart mends: the node's own task, a shard or the threads of HTTP
//!   stand still, or a task of the daemon that others need is over. A lane that stands still is for `/readyz`: it holds memory of which only this process
//!   can ever prove that it is free;
//! - peers are reported. None of them makes this node unready.

mod canary;
mod facts;
mod judge;
mod ledger;
mod notify;
mod report;
mod task;
mod watchdog;

use super::App;
use super::config::HealthSettings;
use super::devices::Devices;
use super::http::Routes;
use super::tasks::{Tasks, Without};
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
pub(crate) use canary::{NAME as CANARY, canaries_alone, is_canary, is_canary_room};

use canary::Canaries;
use kvroom::{ClusterKey, LocalHub, Node, UcxOptions};
use notify::Notifier;
pub(crate) use report::CanaryRuns;
use report::{Finished, Report};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// A result that is older than this says nothing about now.
const STALE: Duration = Duration::from_secs(3);

/// What health is told of the node besides the node.
pub(crate) struct Watched {
    /// The node.
    pub(crate) node: Node,
    /// The hub that it is in.
    pub(crate) hub: LocalHub,
    /// Whether it shares memory with nodes of its host.
    pub(crate) shm: bool,
    /// How it uses UCX.
    pub(crate) ucx: UcxOptions,
    /// The key of its cluster.
    pub(crate) key: Option<ClusterKey>,
    /// The daemon's own tasks.
    pub(crate) tasks: Tasks,
    /// The devices that it may use.
    pub(crate) devices: Devices,
}

/// Asks for the last results. Clones ask the same ones.
#[derive(Clone)]
pub(crate) struct Health(Arc<Parts>);

struct Parts {
    ready: watch::Receiver<Arc<Finished>>,
    live: watch::Receiver<Arc<Finished>>,
    stopping: Arc<AtomicBool>,
    notifier: Arc<Notifier>,
    tasks: Tasks,
    task: Mutex<Option<tokio::task::JoinHandle<Canaries>>>,
    stop: watch::Sender<bool>,
}

/// What the watchdog watches besides the node.
#[derive(Debug)]
struct Heart {
    started: Instant,
    /// Milliseconds after the start at which a thread of HTTP ran a task.
    runtime: AtomicU64,
}

impl Heart {
    fn beat(&self) {
        let now = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.runtime.store(now, Ordering::Relaxed);
    }

    fn silent_for(&self) -> Duration {
        let last = Duration::from_millis(self.runtime.load(Ordering::Relaxed));
        self.started.elapsed().saturating_sub(last)
    }
}

impl Health {
    /// Starts the tasks and the watchdog. To be called in the runtime that serves HTTP.
    pub(crate) fn start(watched: Watched, settings: HealthSettings) -> Health {
        let (ready_tx, ready) = watch::channel(Arc::new(Finished::first()));
        let (live_tx, live) = watch::channel(Arc::new(Finished::first()));
        let (stop, stopped) = watch::channel(false);
        let stopping = Arc::new(AtomicBool::new(false));
        let notifier = Arc::new(Notifier::from_environment());
        let heart = Arc::new(Heart {
            started: Instant::now(),
            runtime: AtomicU64::new(0),
        });
        watchdog::start(watchdog::Watching {
            node: watched.node.clone(),
            tasks: watched.tasks.clone(),
            heart: Arc::clone(&heart),
            ready: ready.clone(),
            live: live_tx,
            stopping: Arc::clone(&stopping),
            notifier: Arc::clone(&notifier),
            blocked_after: settings.blocked_after,
        });
        let tasks = watched.tasks.clone();
        let task = task::run(watched, settings, heart, ready_tx, stopped);
        let task = tasks.spawn("health task", Without::NotAlive, task);
        Health(Arc::new(Parts {
            ready,
            live,
            stopping,
            notifier,
            tasks,
            task: Mutex::new(Some(task)),
            stop,
        }))
    }

    /// The daemon serves from now on: systemd is told.
    pub(crate) fn serving(&self) {
        self.0.notifier.ready();
    }

    /// The daemon stops: it is not ready from now on, and the canaries end. To be called before the
    /// node is shut down.
    pub(crate) async fn stop(&self) {
        self.0.stopping.store(true, Ordering::Relaxed);
        self.0.notifier.stopping();
        let _ = self.0.stop.send(true);
        let task = {
            let mut task = self.0.task.lock().unwrap_or_else(PoisonError::into_inner);
            task.take()
        };
        if let Some(task) = task
            && let Ok(canaries) = task.await
        {
            canaries.end().await;
        }
    }

    /// Whether the node can serve, as of the last result.
    pub(crate) fn ready(&self) -> Report {
        let last = Arc::clone(&self.0.ready.borrow());
        let stopping = self.0.stopping.load(Ordering::Relaxed);
        let live = Arc::clone(&self.0.live.borrow());
        last.ready(stopping, &live, Instant::now())
    }

    /// The daemon's own tasks, which it looks at.
    pub(crate) fn tasks(&self) -> &Tasks {
        &self.0.tasks
    }

    /// Runs of the canaries, as of the last result.
    pub(crate) fn canaries(&self) -> Vec<CanaryRuns> {
        self.0.ready.borrow().canaries.clone()
    }

    /// Whether the process and its arbiters answer, as of the last result.
    pub(crate) fn live(&self) -> Report {
        let last = Arc::clone(&self.0.live.borrow());
        last.live(Instant::now())
    }
}

/// The routes of this part.
pub(crate) fn routes() -> Routes {
    OpenApiRouter::new()
        .routes(routes!(livez))
        .routes(routes!(readyz))
}

/// Whether the process and its arbiters answer.
///
/// Reads the watchdog's last result. If this is red, a restart is what helps.
#[utoipa::path(
    get, path = "/livez", tag = "health",
    responses(
        (status = 200, description = "It lives", body = Report),
        (status = 503, description = "A part stands still that only a restart mends", body = Report),
    )
)]
async fn livez(State(app): State<App>) -> Response {
    answer(app.health().live())
}

/// Whether this node can serve.
///
/// Reads the last result, and triggers nothing. Peers are reported, and do not make this node unready.
#[utoipa::path(
    get, path = "/readyz", tag = "health",
    responses(
        (status = 200, description = "Every check passed", body = Report),
        (status = 503, description = "A check failed; it is named with since when, why, and what to do", body = Report),
    )
)]
async fn readyz(State(app): State<App>) -> Response {
    answer(app.health().ready())
}

fn answer(report: Report) -> Response {
    let status = if report.ok {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    (status, Json(report)).into_response()
}
