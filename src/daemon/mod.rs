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
mod health;
mod http;
mod metrics;
mod pools;
mod rooms;

pub(crate) use app::App;
pub(crate) use config::Config;

use crate::cli::exit::{Failure, Verdict};
use kvroom::Node;

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
    let node = Node::builder(&config.name)
        .start()
        .await
        .map_err(|e| Failure::Failed(format!("cannot start the node: {e}")))?;
    let app = App::new(node.clone(), config);
    http::serve(app).await?;
    let report = node.shutdown().await;
    if report.drained {
        Ok(Verdict::Met)
    } else {
        Err(Failure::Failed(format!(
            "the node did not drain within its shutdown deadline; {} rooms are left",
            report.leaked.len()
        )))
    }
}
