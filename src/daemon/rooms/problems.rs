//! What is wrong with a request about a room, as problem documents.

use super::request::RoleName;
use super::view::{End, SideName, Why, code_name};
use crate::daemon::config::of_the_daemon;
use crate::daemon::http::Problem;
use crate::daemon::pools::Pools;
use axum::http::StatusCode;
use kvroom::{LeaseError, Outcome, Pool, ReserveError, RoomKey, Spent, StartErrorKind};

/// There is no such room.
pub(super) fn unknown(id: u64, attempt: Option<u32>, role: Option<RoleName>) -> Problem {
    let attempt = attempt.map_or(String::new(), |n| format!(", attempt {n}"));
    let role = match role {
        Some(RoleName::Receive) => " that receives",
        Some(RoleName::Send) => " that sends",
        None => "",
    };
    let text = format!(
        "no room {id}{attempt}{role} was started here, or it is over for longer than [retention] says"
    );
    Problem::not_found("no-such-room", "There is no such room", text)
}

/// The node has the key in both roles, and which is meant was not said.
pub(super) fn which_role(key: RoomKey) -> Problem {
    let text = format!(
        "room {key} sends and receives here: say which is meant with role=send or role=receive"
    );
    Problem::conflict("which-role", "Which of two rooms is meant", text)
}

/// The key has another room.
pub(super) fn exists(key: RoomKey) -> Problem {
    let text = format!(
        "room {key} was started by another request: use the next attempt, or send the same request again to \
         see the room"
    );
    Problem::conflict("room-exists", "The key is in use", text)
}

/// The key had another room, which is over.
pub(super) fn used(key: RoomKey, outcome: &Outcome) -> Problem {
    let text =
        format!("room {key} was started by another request and is over: use the next attempt");
    let end = serde_json::to_value(End::from(outcome)).unwrap_or_default();
    Problem::conflict("key-spent", "The key was used", text).outcome(end)
}

/// Why a room was not started.
pub(super) fn not_started(kind: &StartErrorKind) -> Problem {
    match kind {
        StartErrorKind::RoomExists(key) => exists(*key),
        StartErrorKind::KeySpent { outcome, .. } => {
            let problem = Problem::conflict("key-spent", "The key was used", kind.to_string());
            problem.outcome(spent(*outcome))
        }
        StartErrorKind::LimitReached { limit, .. } => {
            Problem::limit(&format!("limits.{limit}"), kind.to_string())
        }
        StartErrorKind::NodeStopped => Problem::stopping(),
        _ => Problem::unusable(of_the_daemon(&kind.to_string())),
    }
}

fn spent(outcome: Spent) -> serde_json::Value {
    let end = match outcome {
        Spent::Done => End::Done {},
        Spent::Aborted(code) => End::Aborted(Why {
            code: code_name(code),
            side: SideName::Local,
            detail: String::new(),
        }),
    };
    serde_json::to_value(end).unwrap_or_default()
}

/// Why pages were not leased; `holder` is a room that has the page.
pub(super) fn not_leased(pool: &str, error: &LeaseError, holder: Option<String>) -> Problem {
    match error {
        LeaseError::Held { .. } => {
            let by = holder.map_or(String::new(), |room| format!("; the lease is of {room}"));
            let text = format!("pool {pool:?}: {error}{by}");
            Problem::conflict("pages-leased", "Pages are in use", text)
        }
        LeaseError::Twice { .. } | LeaseError::OutOfRange { .. } => {
            Problem::unusable(format!("pool {pool:?}: {error}"))
        }
        _ => Problem::conflict(
            "pool-retired",
            "The pool gives no leases",
            error.to_string(),
        ),
    }
}

/// The pool that a request names, to lease pages of.
pub(super) fn pool(pools: &Pools, name: &str) -> Result<Pool, Problem> {
    pools.find(name).map_err(|problem| {
        if problem.status != StatusCode::NOT_FOUND {
            return problem;
        }
        // What is asked for is the room; it is there, or will be.
        Problem::conflict("no-such-pool", "There is no such pool", problem.detail)
    })
}

/// The room's shard has not started it, and enough requests wait for that.
pub(super) fn not_started_yet(key: RoomKey, most: usize) -> Problem {
    let text = format!(
        "room {key} is not started yet, and {most} requests about it wait for that: GET /readyz says whether its \
         shard stands still"
    );
    Problem::limit("requests about a room that is not started", text)
}

/// There is no such peer.
pub(super) fn no_peer(name: &str) -> Problem {
    let text = format!("no peer named {name:?} was met: POST /v1/peers connects to one");
    Problem::conflict("no-such-peer", "The peer is not known", text)
}

/// The room is of the other role.
pub(super) fn wrong_role(key: RoomKey) -> Problem {
    let text = format!("room {key} receives: chunks are pushed into the room that sends");
    Problem::conflict("wrong-role", "The room has the other role", text)
}

/// There is no slot for a chunk.
pub(super) fn no_slot(error: &ReserveError) -> Problem {
    match error {
        ReserveError::Full { limit, .. } => {
            let problem = Problem::new(
                StatusCode::TOO_MANY_REQUESTS,
                "window-full",
                "The room's window is full",
                format!("{error} (limits.{limit})"),
            );
            Problem {
                limit: Some(format!("limits.{limit}").into()),
                ..problem.retry_after(1)
            }
        }
        ReserveError::Ended(ended) => over(&ended.to_string(), &ended.reason),
    }
}

/// The room is over.
pub(super) fn over_with(key: RoomKey, outcome: &Outcome) -> Problem {
    let end = serde_json::to_value(End::from(outcome)).unwrap_or_default();
    let text = format!("room {key} is over: nothing can be added to it");
    Problem::conflict("room-over", "The room is over", text).outcome(end)
}

/// The room is over.
pub(super) fn over(text: &str, reason: &kvroom::Reason) -> Problem {
    let end = serde_json::to_value(End::Aborted(reason.into())).unwrap_or_default();
    Problem::conflict("room-over", "The room is over", text).outcome(end)
}
