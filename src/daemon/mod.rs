//! The daemon: a node, the rooms and pools of processes that are not written in Rust, and HTTP.
//!
//! ```text
//!   config ─▶ Node ─▶ App ─┬─▶ rooms   (one task that owns the handles of all rooms)
//!                          ├─▶ pools   (one task that owns the pools of other processes)
//!                          ├─▶ devices (the copy actors of GPUs; calls of the driver, with a bound)
//!                          ├─▶ health  (canary and watchdog; whoever asks reads the last result)
//!                          └─▶ http    (listeners, limits, who may ask) ─▶ routes of each part
//! ```
//!
//! Rules: everything is done through the embedding API, as any host would; nothing here reaches into
//! the actors. A request that fails changes nothing that its answer does not say. What two tasks need
//! is a message or immutable.

mod app;
mod config;
mod dashboard;
mod devices;
mod events;
#[cfg(test)]
mod fuzzing;
mod health;
mod http;
mod metrics;
mod peers;
mod pools;
mod recording;
mod rooms;
mod signals;
mod status;
mod stop;
mod tasks;
mod trace;

pub(crate) use app::App;
pub(crate) use config::{
    Config, ConfigError, Effective, Given, example as example_config, read_duration,
};

use crate::cli::exit::{Failure, Verdict};
use crate::cli::output;
use devices::Devices;
use health::{Health, Watched};
use http::Front;
use kvroom::{LocalHub, Node};
use pools::Configured;
use serde_json::json;
use signals::Signals;
use status::StatusPage;
use std::time::Duration;
use stop::Stopped;
use tasks::Tasks;

/// Most rooms that the last line names.
const MAX_LEAKED: usize = 1_000;
/// First wait before a node of the configuration is connected to again; it doubles up to the longest.
const BACKOFF: Duration = Duration::from_millis(100);
const LONGEST_BACKOFF: Duration = Duration::from_secs(5);

/// Serves until a signal says to stop.
pub(crate) fn run(config: Config) -> Result<Verdict, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("kvroom-http")
        .enable_all()
        .build()
        .map_err(|e| Failure::Failed(format!("cannot start the threads of the daemon: {e}")))?;
    let ended = runtime.block_on(serve(config));
    // A disk that does not answer must not hold up the end.
    runtime.shutdown_timeout(stop::FILES);
    ended
}

async fn serve(config: Config) -> Result<Verdict, Failure> {
    // Before anything else: a signal that comes while the node starts must not be missed.
    let mut signals = Signals::listen()?;
    let front = Front::open(&config)?;
    let (mut builder, pools) = config.node_builder(front.port())?;
    let devices = Devices::new(&config.devices);
    let configured = Configured::open(&config, &devices).await;
    let mut configured = configured.map_err(|e| Failure::Failed(e.to_string()))?;
    for pool in configured.pools() {
        builder = builder.pool(pool.clone());
    }
    configured.and(pools);
    let hub = LocalHub::new();
    let node = builder.hub(&hub).start().await;
    let node = node.map_err(|e| {
        let why = config::of_the_daemon(&e.to_string());
        Failure::Failed(format!("cannot start the node: {why}"))
    })?;
    let shutdown = config.deadlines.shutdown;
    let (addresses, connect) = (front.addresses(), config.node.connect.clone());
    let tasks = Tasks::new();
    recording::start(&node, config.recorder.dump_dir.clone(), &tasks)
        .map_err(|e| Failure::Failed(format!("cannot start what writes recordings: {e}")))?;
    let page = status_page(&config, &node)?;
    let watched = Watched {
        node: node.clone(),
        hub,
        devices: devices.clone(),
        shm: config.node.shm,
        ucx: config.ucx.options(),
        key: crate::cli::node::key(config.node.cluster_key_file.as_deref())?,
        tasks: tasks.clone(),
    };
    let health = Health::start(watched, config.health.clone());
    let app = App::new(node.clone(), config, health, devices, page);
    for address in connect {
        let name = format!("connect {}", address.0);
        tasks.spawn_until_done(&name, connect_until_there(node.clone(), address.0));
    }
    while let Some(pool) = configured.next() {
        let adopted = app.pools().adopt(pool).await;
        adopted.map_err(|problem| Failure::Failed(problem.detail))?;
    }
    let server = front.serve(&app);
    output::print_json(&json!({
        "event": "ready", "name": node.name(), "pid": std::process::id(),
        "http": addresses, "addresses": node.addresses(),
    }))?;
    app.health().serving();
    let why = signals.any().await;
    tracing::info!("{why}: nothing new is started, rooms end and drain");
    app.stop();
    let Stopped { report, silent } = stop::stop(app.health(), &node, shutdown).await;
    server.end().await;
    let rooms = report.leaked.iter();
    let rooms = rooms.filter(|room| !health::is_canary_room(room.key));
    let leaked = rooms.map(|room| room.key.to_string());
    let leaked: Vec<String> = leaked.take(MAX_LEAKED).collect();
    let quarantined = app.pools().quarantined();
    let pools: Vec<_> = quarantined
        .iter()
        .map(|(pool, pages)| json!({"pool": pool, "pages": pages}))
        .collect();
    output::print_json(&json!({
        "event": "stopped", "why": why, "drained": report.drained, "leaked": leaked, "silent": silent,
        "quarantined": pools,
    }))?;
    if !silent.is_empty() {
        let who = silent.join(", ");
        Err(Failure::Failed(format!(
            "the daemon was told to stop, and these did not answer in time: {who}"
        )))
    } else if report.drained && quarantined.is_empty() {
        Ok(Verdict::Met)
    } else if report.drained {
        let pools: Vec<_> = quarantined
            .into_iter()
            .map(|(pool, pages)| format!("{pages} of {pool}"))
            .collect();
        Err(Failure::Failed(format!(
            "pages that processes of a former life may still write are quarantined: {}; nobody may use them before \
             the next daemon that has these pools says so",
            pools.join(", ")
        )))
    } else {
        let count = report.leaked.len();
        Err(Failure::Failed(format!(
            "the node did not drain within its shutdown deadline; {count} rooms are left"
        )))
    }
}

/// The status page, if there is to be one.
fn status_page(config: &Config, node: &Node) -> Result<Option<StatusPage>, Failure> {
    let settings = &config.status_page;
    let Some(path) = &settings.path else {
        return Ok(None);
    };
    match StatusPage::create(path, settings.rooms, node.incarnation()) {
        Ok(page) => Ok(Some(page)),
        Err(e) => Err(Failure::Failed(format!("cannot make the status page: {e}"))),
    }
}

/// Until the first session: the node itself connects again from then on.
async fn connect_until_there(node: Node, address: String) {
    let mut wait = BACKOFF;
    while let Err(e) = node.connect(&address).await {
        tracing::warn!("cannot connect to {address}, trying again: {e}");
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(LONGEST_BACKOFF);
    }
}
