//! `GET /metrics`: everything that the node and the daemon count, as OpenMetrics text.
//!
//! ```text
//!   Node::metrics() ─┐
//!   Requests ────────┼─▶ Reading ─▶ families of samples ─▶ text
//!   /proc/self ──────┘
//! ```
//!
//! Rules: a scrape asks nobody, so that it answers while a thread of the node is stuck. Label sets are
//! bounded: peers by the library, routes by the document, reasons, states and fabrics by their types.
//! Every name is documented in `docs/metrics.md`, which a test compares with what is served.

mod families;
mod process;
mod requests;
mod write;

pub(crate) use requests::{Requests, count};

use super::App;
use super::health::is_canary;
use super::http::Routes;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use utoipa_axum::routes;

/// What Prometheus asks for, and what is always answered.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The routes of this part.
pub(crate) fn routes() -> Routes {
    Routes::new().routes(routes!(metrics))
}

/// Counters and gauges, for Prometheus
#[utoipa::path(
    get,
    path = "/metrics",
    tag = "health",
    responses((
        status = 200,
        description = "OpenMetrics text; docs/metrics.md names every metric",
        content_type = "application/openmetrics-text",
        body = String,
    ))
)]
async fn metrics(State(app): State<App>) -> Response {
    let mut node = app.node().metrics();
    let ours = |name: &String| is_canary(app.node().name(), name);
    node.peers
        .retain(|peer| !peer.name.as_ref().is_some_and(ours));
    let devices = app.devices().seen();
    let kept = devices.iter().map(|d| app.pools().kept_bytes(d.ordinal));
    let kept_bytes = kept.collect();
    let reading = families::Reading {
        node,
        requests: app.requests().read(),
        process: process::read(),
        canaries: app.health().canaries(),
        devices,
        kept_bytes,
        probes: [
            ("live", app.health().live().ok),
            ("ready", app.health().ready().ok),
        ],
    };
    let mut registry = Registry::with_prefix("kvroom");
    registry.register_collector(Box::new(reading));
    let mut text = String::with_capacity(64 << 10);
    // Writing to memory does not fail.
    let _ = encode(&mut text, &registry);
    ([(header::CONTENT_TYPE, OPEN_METRICS)], text).into_response()
}
