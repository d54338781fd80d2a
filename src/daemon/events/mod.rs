//! `GET /v1/events`: what happens, as it happens, as server-sent events.
//!
//! ```text
//!   Recorder (bounded rings) ◀── read from a cursor ── feed (one task a client) ─▶ 16 blocks ─▶ client
//!   sampler (one task, each second, while anybody listens) ──────┘
//! ```
//!
//! Rules: a client that reads slowly slows down nothing but itself: its cursor falls behind, and what
//! was overwritten meanwhile is counted in a `gap`. Each event has the id `INCARNATION-SEQ`; who
//! connects again with it as `Last-Event-ID` goes on behind it. More room events than a client wants in
//! a second are left out, and the next `sample` says how many there were.

mod feed;
mod sample;

pub(crate) use sample::Sampler;

use super::App;
use super::http::{Id, Problem, Query, Routes};
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use feed::{Feed, Wanted};
use hyper::body::Frame;
use serde::Deserialize;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::sync::mpsc;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// Blocks of events that wait for a client to read them.
const BLOCKS: usize = 16;
/// Room events in a second, if nothing else is said.
const MOST: u32 = 1_000;

/// The routes of this part.
pub(crate) fn routes() -> Routes {
    OpenApiRouter::new().routes(routes!(events))
}

/// What to hear of.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct EventsQuery {
    /// Kinds of events, with commas between them: `room`, `peer`, `sample`. All if not said.
    #[param(
        pattern = "^(room|peer|sample)(,(room|peer|sample))*$",
        example = "room,sample"
    )]
    types: Option<String>,
    /// Only this room.
    #[param(pattern = "^[0-9]{1,20}$", example = "42")]
    room: Option<String>,
    /// Room events in a second; what is over it is left out and counted. No bound for one room.
    #[param(minimum = 1, maximum = 1_000_000, default = 1000)]
    most_per_second: Option<u32>,
}

/// One event of the stream.
#[derive(ToSchema)]
#[allow(
    dead_code,
    reason = "only its schema is used: the feed writes the lines themselves"
)]
struct StreamedEvent {
    /// `INCARNATION-SEQ`, for `Last-Event-ID`; a `sample` has none.
    id: Option<String>,
    /// `room`, `peer`, `sample` or `gap`.
    event: Option<String>,
    /// JSON.
    data: Option<String>,
    /// Milliseconds after which to connect again.
    retry: Option<u64>,
}

/// Tells what happens, for as long as the client listens: `room` (a transition), `peer`, `sample` (each
/// second, what a dashboard draws), and `gap` (events that were overwritten before they were read).
#[utoipa::path(get, path = "/v1/events", tag = "events",
    params(
        EventsQuery,
        ("Last-Event-ID" = Option<String>, Header, description = "The last event that was read: goes on behind it."),
    ),
    responses((status = 200, description = "Events, until the client or the daemon goes away; this is each of them.",
        body = StreamedEvent, content_type = "text/event-stream")))]
async fn events(
    State(app): State<App>,
    Query(query): Query<EventsQuery>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let wanted = wanted(&query)?;
    let last = headers.get("last-event-id").and_then(|id| id.to_str().ok());
    let (blocks, body) = mpsc::channel(BLOCKS);
    tokio::spawn(Feed::new(&app, wanted, last).run(blocks));
    let mut answer = Body::new(Blocks(body)).into_response();
    let head = answer.headers_mut();
    head.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("text/event-stream"),
    );
    head.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(answer)
}

fn wanted(query: &EventsQuery) -> Result<Wanted, Problem> {
    let bad = |text: &str| Err(Problem::unreadable(format!("the query: {text}")));
    let mut wanted = Wanted {
        rooms: query.types.is_none(),
        peers: query.types.is_none(),
        samples: query.types.is_none() && query.room.is_none(),
        room: None,
        most: query.most_per_second.unwrap_or(MOST),
    };
    for kind in query.types.iter().flat_map(|types| types.split(',')) {
        match kind {
            "room" => wanted.rooms = true,
            "peer" => wanted.peers = true,
            "sample" => wanted.samples = true,
            _ => {
                return bad(
                    "types must be some of room, peer and sample, with commas between them",
                );
            }
        }
    }
    if wanted.most == 0 || wanted.most > 1_000_000 {
        return bad("most_per_second must be 1 to 1000000");
    }
    if let Some(room) = &query.room {
        match Id::parse(room) {
            Some(id) => wanted.room = Some(id.0),
            None => return bad("room must be a whole number from 0 to 18446744073709551615"),
        }
        wanted.most = u32::MAX;
    }
    Ok(wanted)
}

/// What the feed gives, as a body.
struct Blocks(mpsc::Receiver<Bytes>);

impl HttpBody for Blocks {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0
            .poll_recv(cx)
            .map(|block| block.map(|bytes| Ok(Frame::data(bytes))))
    }
}
