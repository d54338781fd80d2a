//! Other nodes, and this one: who is there, since when, and what the node counts.

use super::App;
use super::health::is_canary;
use super::http::{Json, Path, Problem, QUESTION, Routes, answered};
use axum::Json as Answer;
use axum::extract::State;
use axum::http::{HeaderName, StatusCode, header};
use kvroom::metrics::Metrics;
use kvroom::{ConnectError, Node, NodeStats, Peer, PeerState};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// The routes of this part.
pub(crate) fn routes() -> Routes {
    OpenApiRouter::new()
        .routes(routes!(list_peers, connect_peer))
        .routes(routes!(disconnect_peer))
        .routes(routes!(show_node))
}

/// Another node, in its newest life.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct PeerView {
    /// Its name.
    name: String,
    /// Which life of it.
    incarnation: String,
    /// Whether there is a session.
    state: PeerStateName,
    /// Why not.
    why: Option<String>,
    /// How bytes go: `shm`, `tcp` or `ucx`; null before the first session.
    fabric: Option<String>,
    /// Pages that rooms with a leg to it still hold, past their drain deadline; null if that is not
    /// known, since a shard does not answer and the node has met very many peers.
    quarantined_pages: Option<u64>,
    /// Where it was reached, if this daemon was told.
    address: Option<String>,
}

/// Whether there is a session with a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum PeerStateName {
    /// There is one.
    Up,
    /// It lost its connection and may go on.
    Resuming,
    /// There is none.
    Down,
}

/// Other nodes.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct PeerList {
    peers: Vec<PeerView>,
}

/// A node to connect to.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct ConnectPeer {
    /// `tcp://HOST:PORT` or `unix:///PATH`.
    #[schema(max_length = 1024)]
    address: String,
}

/// This node.
#[derive(Clone, Debug, Serialize, ToSchema)]
struct NodeView {
    /// Its name.
    name: String,
    /// Which life of it.
    incarnation: String,
    /// Of the program.
    version: &'static str,
    /// Where it listens for other nodes.
    addresses: Vec<String>,
    /// Since its start.
    uptime_ms: u64,
    /// It was told to stop.
    stopping: bool,
    /// Counters and gauges, by the names that the library gives them.
    #[schema(value_type = std::collections::BTreeMap<String, u64>)]
    stats: serde_json::Value,
}

/// Lists the nodes that this one has met.
#[utoipa::path(get, path = "/v1/peers", tag = "peers",
    responses((status = 200, description = "The peers.", body = PeerList)))]
async fn list_peers(State(app): State<App>) -> Result<Answer<PeerList>, Problem> {
    let peers = of(app.node(), QUESTION).await?;
    Ok(Answer(PeerList { peers }))
}

/// Connects to another node, or gives the session that there is. A session that loses its connection is
/// connected to again until it is given up.
#[utoipa::path(post, path = "/v1/peers", tag = "peers", request_body = ConnectPeer,
    responses(
        (status = 201, description = "There is a session.", body = PeerView,
            headers(("Location" = String, description = "Where it is given up."))),
        (status = 409, description = "`peer-unreachable`, `peer-refused`, `peer-silent`: nobody is there, or it does not \
            want this node.", body = Problem, content_type = "application/problem+json"),
    ))]
async fn connect_peer(
    State(app): State<App>,
    Json(peer): Json<ConnectPeer>,
) -> Result<(StatusCode, [(HeaderName, String); 1], Answer<PeerView>), Problem> {
    if app.is_stopping() {
        return Err(Problem::stopping());
    }
    if peer.address.starts_with("local:") {
        let text = "local:// reaches nodes of the daemon's own process, and none of them is for others; an address \
                    is tcp://HOST:PORT or unix:///PATH";
        return Err(Problem::unusable(text));
    }
    let session = app.node().connect(&peer.address).await;
    let session = session.map_err(|e| not_connected(&e))?;
    let held = pages_of(&app.node().metrics(), session.name());
    let view = view(&session, held, Some(peer.address));
    let location = format!("/v1/peers/{}", encoded(&view.name));
    Ok((
        StatusCode::CREATED,
        [(header::LOCATION, location)],
        Answer(view),
    ))
}

/// Gives up the session with a peer. Rooms with legs to it end; their memory follows by proof.
#[utoipa::path(delete, path = "/v1/peers/{name}", tag = "peers",
    params(("name" = String, Path, description = "Its name.")),
    responses(
        (status = 202, description = "The session is given up.", body = PeerView),
        (status = 404, description = "`no-such-peer`.", body = Problem, content_type = "application/problem+json"),
    ))]
async fn disconnect_peer(
    State(app): State<App>,
    Path(name): Path<String>,
) -> Result<(StatusCode, Answer<PeerView>), Problem> {
    let node = app.node();
    let known = answered(node, QUESTION, node.peer(&name)).await?;
    let Some(peer) = known.filter(|_| !is_canary(node.name(), &name)) else {
        let shown: String = name.chars().take(64).collect();
        let text = format!("no peer named {shown:?} was met: GET /v1/peers lists them");
        return Err(Problem::not_found(
            "no-such-peer",
            "The peer is not known",
            text,
        ));
    };
    answered(node, QUESTION, node.disconnect(&peer)).await?;
    let held = pages_of(&node.metrics(), &name);
    Ok((StatusCode::ACCEPTED, Answer(view(&peer, held, None))))
}

/// Shows this node.
#[utoipa::path(get, path = "/v1/node", tag = "node",
    responses((status = 200, description = "This node.", body = NodeView)))]
async fn show_node(State(app): State<App>) -> Result<Answer<NodeView>, Problem> {
    let node = app.node();
    let counted = answered(node, QUESTION, node.stats()).await?;
    Ok(Answer(NodeView {
        name: node.name().to_owned(),
        incarnation: node.incarnation().to_string(),
        version: env!("CARGO_PKG_VERSION"),
        addresses: node.addresses().to_vec(),
        uptime_ms: u64::try_from(app.uptime().as_millis()).unwrap_or(u64::MAX),
        stopping: app.is_stopping(),
        stats: stats(&counted),
    }))
}

/// Everybody whom this node has met, but for the small nodes of its own canaries.
///
/// # Errors
/// `not-answering`, if the node's own task does not say within this time.
pub(crate) async fn of(node: &Node, within: Duration) -> Result<Vec<PeerView>, Problem> {
    let mut peers = answered(node, within, node.peers()).await?;
    peers.retain(|peer| !is_canary(node.name(), peer.name()));
    let counted = node.metrics();
    let mut held: Vec<Option<u64>> = peers
        .iter()
        .map(|peer| pages_of(&counted, peer.name()))
        .collect();
    if held.contains(&None) {
        // Peers beyond those that are counted by name: only the shards know.
        let told = answered(node, within, node.quarantined()).await.ok();
        for (held, peer) in held.iter_mut().zip(&peers) {
            let told = told.as_ref().map(|all| all.by_peer.get(peer.name()));
            *held = held.or(told.map(|pages| pages.copied().unwrap_or(0)));
        }
    }
    let views = peers.iter().zip(held);
    Ok(views.map(|(peer, held)| view(peer, held, None)).collect())
}

/// What is counted without asking anybody: for the peers that have counters of their own.
fn pages_of(counted: &Metrics, name: &str) -> Option<u64> {
    let named = |p: &&kvroom::metrics::PeerMetrics| p.name.as_deref() == Some(name);
    counted
        .peers
        .iter()
        .find(named)
        .map(|p| p.quarantined_pages)
}

fn view(peer: &Peer, quarantined_pages: Option<u64>, address: Option<String>) -> PeerView {
    let (state, why) = match peer.state() {
        PeerState::Up => (PeerStateName::Up, None),
        PeerState::Resuming(why) => (PeerStateName::Resuming, Some(why)),
        PeerState::Down(why) => (PeerStateName::Down, Some(why)),
    };
    PeerView {
        name: peer.name().to_owned(),
        incarnation: peer.incarnation().to_string(),
        state,
        why,
        fabric: peer.fabric().map(|fabric| fabric.to_string()),
        quarantined_pages,
        address,
    }
}

fn not_connected(error: &ConnectError) -> Problem {
    let text = error.to_string();
    match error {
        ConnectError::BadAddress(_) | ConnectError::NoHub | ConnectError::Unknown { .. } => {
            Problem::unusable(text)
        }
        ConnectError::Refused { .. } => {
            Problem::conflict("peer-refused", "The peers do not want each other", text)
        }
        ConnectError::Silent { .. } => {
            Problem::conflict("peer-silent", "The peer does not answer", text)
        }
        _ => Problem::conflict("peer-unreachable", "The peer cannot be reached", text),
    }
}

/// A name as one segment of a path.
fn encoded(name: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~".contains(&b);
    let one = |b: u8| {
        if plain(b) {
            char::from(b).to_string()
        } else {
            format!("%{b:02X}")
        }
    };
    name.bytes().map(one).collect()
}

/// Counters and gauges, under the names of the library's fields.
pub(crate) fn stats(stats: &NodeStats) -> serde_json::Value {
    crate::cli::node_stats(stats)
}
