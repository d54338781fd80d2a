//! `GET /v1/recording`.

use crate::daemon::App;
use crate::daemon::http::{Problem, Query, Routes};
use axum::body::Bytes;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use kvroom::record::{Entry, Records};
use kvroom::recording::{Header, header_line, json_line};
use kvroom::{Node, RoomId};
use serde::Deserialize;
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::sync::OwnedSemaphorePermit;
use utoipa::IntoParams;
use utoipa_axum::routes;

/// Entries in an answer, if nobody says how many.
const USUALLY: usize = 10_000;
/// Most entries in an answer: some 20 MiB.
const MOST: usize = 100_000;
/// Answers that are made or sent at the same time: a client that reads slowly keeps one in memory.
pub(crate) const AT_A_TIME: usize = 2;
/// Entries that are looked at with one look.
const AT_ONCE: usize = 4_096;

/// Which entries.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct RecordingQuery {
    /// From this number on, the oldest first. If not given, the newest entries; the first line says in
    /// `older` how many there are before them. The answer's header `kvroom-next` says where to go on.
    since: Option<u64>,
    /// Most entries in the answer: 1 to 100,000; 10,000 if not given.
    #[param(minimum = 1, maximum = 100_000)]
    limit: Option<usize>,
    /// Only what is about this room, whichever attempt and role.
    room: Option<u64>,
}

/// The routes of this part.
pub(crate) fn routes() -> Routes {
    Routes::new().routes(routes!(recording))
}

/// What happened lately, as a recording: JSON lines, the first one is the header. Without `since`, the
/// newest entries. Reads the node's rings
/// and asks none of its threads, so that it answers when one of them is blocked.
#[utoipa::path(
    get,
    path = "/v1/recording",
    tag = "recording",
    params(RecordingQuery),
    responses(
        (status = 200, description = "A recording; see docs/recording.md", content_type = "application/jsonl",
         body = String, headers(("kvroom-next" = u64, description = "`since` of the request that goes on here"))),
        (status = 400, description = "The query cannot be read", content_type = "application/problem+json", body = Problem),
        (status = 422, description = "The limit is out of its range", content_type = "application/problem+json", body = Problem),
    )
)]
async fn recording(
    State(app): State<App>,
    Query(query): Query<RecordingQuery>,
) -> Result<Response, Problem> {
    let limit = query.limit.unwrap_or(USUALLY);
    if !(1..=MOST).contains(&limit) {
        return Err(Problem::new(
            axum::http::StatusCode::UNPROCESSABLE_ENTITY,
            "bad-limit",
            "The limit is out of its range",
            format!("limit is {limit}; it must be 1 to {MOST}"),
        ));
    }
    let Ok(permit) = Arc::clone(app.recordings()).try_acquire_owned() else {
        let text = format!("{AT_A_TIME} recordings are being sent already: try again");
        return Err(Problem::limit("recordings at a time", text));
    };
    let node = app.node().clone();
    // Encoding a hundred thousand lines takes a while: it is kept off the threads that serve.
    let encoded = tokio::task::spawn_blocking(move || encode(&node, &query, limit)).await;
    let (body, next) = encoded.map_err(|error| {
        Problem::new(
            axum::http::StatusCode::INTERNAL_SERVER_ERROR,
            "internal",
            "A defect of kvroom",
            format!("the recording was not encoded: {error}"),
        )
    })?;
    let headers = [
        (
            header::CONTENT_TYPE.as_str(),
            "application/jsonl".to_owned(),
        ),
        ("kvroom-next", next.to_string()),
    ];
    let body = Sent {
        text: body,
        _permit: permit,
    };
    Ok((headers, Bytes::from_owner(body)).into_response())
}

/// An answer, in memory until its last byte was given to the system.
struct Sent {
    text: String,
    _permit: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for Sent {
    fn as_ref(&self) -> &[u8] {
        self.text.as_bytes()
    }
}

fn encode(node: &Node, query: &RecordingQuery, limit: usize) -> (String, u64) {
    let recorder = node.recorder();
    let read = |since, max| recorder.read(since, max);
    let (records, older) = match query.since {
        Some(since) => (find(query.room, since, limit, read), 0),
        None => newest(query.room, recorder.next_seq(), limit, read),
    };
    let mut body = header_line(&Header {
        older,
        ..Header::of(node, records.lost, "http")
    });
    body.push('\n');
    for entry in &records.entries {
        body.push_str(&json_line(entry));
        body.push('\n');
    }
    (body, records.next)
}

/// Reads on until there are enough entries of the room, or there is nothing more.
fn find(
    room: Option<u64>,
    since: u64,
    limit: usize,
    read: impl Fn(u64, usize) -> Records,
) -> Records {
    let mut found = Records {
        next: since,
        ..Records::default()
    };
    loop {
        let left = limit - found.entries.len();
        let at_once = match room {
            None => left,
            Some(_) => AT_ONCE,
        };
        let records = read(found.next, at_once);
        let last = records.entries.is_empty();
        found.lost += records.lost;
        found.next = records.next;
        for entry in records.entries {
            if is_wanted(&entry, room) {
                let seq = entry.seq;
                found.entries.push(entry);
                if found.entries.len() == limit {
                    found.next = seq + 1;
                    return found;
                }
            }
        }
        if last || room.is_none() {
            return found;
        }
    }
}

/// Reads all that there is before `end`, and keeps the newest entries; and how many were there before
/// those. What happens meanwhile, and more, is for the next time.
fn newest(
    room: Option<u64>,
    end: u64,
    limit: usize,
    read: impl Fn(u64, usize) -> Records,
) -> (Records, u64) {
    let (mut kept, mut older) = (VecDeque::new(), 0);
    let (mut next, mut lost) = (0, 0);
    while next < end {
        let records = read(next, AT_ONCE);
        lost += records.lost;
        next = records.next;
        if records.entries.is_empty() {
            break;
        }
        for entry in records.entries {
            if is_wanted(&entry, room) {
                if kept.len() == limit {
                    kept.pop_front();
                    older += 1;
                }
                kept.push_back(entry);
            }
        }
    }
    let entries = kept.into();
    let records = Records {
        entries,
        lost,
        next,
    };
    (records, older)
}

fn is_wanted(entry: &Entry, room: Option<u64>) -> bool {
    room.is_none_or(|room| is_about(entry, RoomId(room)))
}

fn is_about(entry: &Entry, room: RoomId) -> bool {
    entry.what.room().is_some_and(|key| key.id == room)
}
