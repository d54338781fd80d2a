//! The daemon: a node, the rooms and pools of processes that are not written in Rust, and HTTP.
//!
//! ```text
//!   config ─▶ Node ─▶ App ─┬─▶ rooms   (one task that owns the handles of all rooms)
//!                          ├─▶ pools   (one task that owns the pools of other processes)
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
mod events;
mod health;
mod http;
mod metrics;
mod peers;
mod pools;
mod rooms;
mod signals;
mod status;

pub(crate) use app::App;
pub(crate) use config::{Config, ConfigError, Effective, Given, example as example_config};

use crate::cli::exit::{Failure, Verdict};
use crate::cli::output;
use http::Front;
use kvroom::{FileOptions, Node, OthersMemory, Pool};
use pools::Opened;
use serde_json::json;
use signals::Signals;
use status::StatusPage;
use std::time::Duration;

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
    runtime.block_on(serve(config))
}

async fn serve(config: Config) -> Result<Verdict, Failure> {
    // Before anything else: a signal that comes while the node starts must not be missed.
    let mut signals = Signals::listen()?;
    let front = Front::open(&config)?;
    let (builder, pools) = config.node_builder(front.port())?;
    let node = builder.start().await;
    let node = node.map_err(|e| Failure::Failed(format!("cannot start the node: {e}")))?;
    let (addresses, connect) = (front.addresses(), config.node.connect.clone());
    let page = status_page(&node, &config)?;
    let app = App::new(node.clone(), config, page);
    for address in connect {
        tokio::spawn(connect_until_there(node.clone(), address.0));
    }
    for pool in pools {
        let adopted = app.pools().adopt(Opened::configured(pool, None)).await;
        adopted.map_err(|problem| Failure::Failed(problem.detail))?;
    }
    attach(&app).await?;
    let server = front.serve(&app);
    output::print_json(&json!({
        "event": "ready", "name": node.name(), "pid": std::process::id(),
        "http": addresses, "addresses": node.addresses(),
    }))?;
    let why = signals.any().await;
    tracing::info!("{why}: nothing new is started, rooms end and drain");
    app.stop();
    // Whoever waits for a room hears of its end, and may look at what is held, until all is drained.
    let report = node.shutdown().await;
    server.end().await;
    let leaked = report.leaked.iter().map(|room| room.key.to_string());
    let leaked: Vec<String> = leaked.take(MAX_LEAKED).collect();
    output::print_json(&json!({
        "event": "stopped", "why": why, "drained": report.drained, "leaked": leaked,
    }))?;
    if report.drained {
        Ok(Verdict::Met)
    } else {
        let count = report.leaked.len();
        Err(Failure::Failed(format!(
            "the node did not drain within its shutdown deadline; {count} rooms are left"
        )))
    }
}

/// Attaches to the pools in files. Pages of a former life that may still be written stay quarantined.
async fn attach(app: &App) -> Result<(), Failure> {
    for settings in app.config().file_pools() {
        let Some(path) = settings.path.clone() else {
            continue;
        };
        let failed = |why: &dyn std::fmt::Display| {
            Failure::Failed(format!(
                "pool {:?} at {}: {why}",
                settings.name,
                path.display()
            ))
        };
        let options = FileOptions {
            create: settings.create,
            ..FileOptions::default()
        };
        let file = OthersMemory::File {
            path: &path,
            options: &options,
        };
        let pool = Pool::of_others(settings.layout(), file).map_err(|e| failed(&e))?;
        app.node()
            .add_pool(pool.clone())
            .await
            .map_err(|e| failed(&e))?;
        let adopted = app
            .pools()
            .adopt(Opened::configured(pool, Some(path.clone())))
            .await;
        adopted.map_err(|problem| failed(&problem.detail))?;
    }
    Ok(())
}

fn status_page(node: &Node, config: &Config) -> Result<Option<StatusPage>, Failure> {
    let settings = &config.status_page;
    let Some(path) = &settings.path else {
        return Ok(None);
    };
    let page = StatusPage::create(path, settings.rooms, node.incarnation());
    page.map(Some)
        .map_err(|e| Failure::Failed(format!("status_page.path {}: {e}", path.display())))
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
