//! The routes of rooms.

use super::batch;
use super::request::{AbortMany, FinishRoom, PushChunk, RoleName, StartRoom};
use super::start;
use super::table::{Filter, Stage, Which};
use super::view::{
    AbortedCount, ChunkTaken, ChunkView, EarlyClaimList, EarlyClaimView, Room, RoomList, RoomState,
};
use super::{problems, wait};
use crate::daemon::App;
use crate::daemon::devices::bytes_of;
use crate::daemon::health::CANARY;
use crate::daemon::http::{Id, Json, Path, Problem, QUESTION, Query, Routes, answered, duration};
use axum::Json as Answer;
use axum::extract::State;
use axum::http::{HeaderName, StatusCode, header};
use kvroom::device::Ready;
use kvroom::{Pool, RoomId};
use serde::Deserialize;
use std::sync::Arc;
use std::time::Duration;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// Most rooms of one answer.
const MAX_LIST: usize = 1_000;
/// How long the shards may take until an abort of many is answered without all of them.
const ABORT: Duration = Duration::from_secs(5);
const DEFAULT_REASON: &str = "asked for over HTTP";

pub(super) fn all() -> Routes {
    OpenApiRouter::new()
        .routes(routes!(list_rooms, start_room))
        .routes(routes!(show_room, abort_room))
        .routes(routes!(push_chunk))
        .routes(routes!(finish_room))
        .routes(routes!(batch::batch))
        .routes(routes!(abort_many))
        .routes(routes!(early_claims))
}

/// Which of a room's lives.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ShowQuery {
    /// Its attempt; the newest if not said.
    attempt: Option<u32>,
    /// Its role, if the node has the key in both.
    #[param(inline)]
    role: Option<RoleName>,
    /// Wait so long for its outcome: for example `30s` or `250ms`. At most `http.long_poll_max`.
    #[param(pattern = "^[0-9]{1,9}(ms|s)$", example = "1ms")]
    wait: Option<String>,
    /// What to wait for, if not for the outcome: `released`, for its memory.
    #[serde(rename = "for")]
    #[param(inline)]
    until: Option<Until>,
}

/// What to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum Until {
    /// Its outcome.
    Outcome,
    /// Its memory.
    Released,
}

/// Which room to end, and why.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct AbortQuery {
    /// Its attempt; the newest if not said.
    attempt: Option<u32>,
    /// Its role, if the node has the key in both.
    #[param(inline)]
    role: Option<RoleName>,
    /// Why, for its outcome; cut at 256 bytes.
    reason: Option<String>,
}

/// What the list is narrowed to.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ListQuery {
    /// Rooms in this state.
    #[param(inline)]
    state: Option<RoomState>,
    /// Rooms of this role.
    #[param(inline)]
    role: Option<RoleName>,
    /// Rooms with this tag.
    tag: Option<String>,
    /// Rooms with a leg to this peer. Of rooms that send and are over: if they were listed before that.
    peer: Option<String>,
    /// Rooms that passed their drain deadline and still hold memory, or all others.
    quarantined: Option<bool>,
    /// So many at most.
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: Option<usize>,
    /// Where to go on: `next` of the page before.
    #[param(pattern = "^[0-9]{1,20}$", example = "1")]
    after: Option<String>,
}

/// Lists rooms, newest first, those among them that are over and not forgotten yet.
#[utoipa::path(get, path = "/v1/rooms", tag = "rooms", params(ListQuery),
    responses((status = 200, description = "A page of rooms.", body = RoomList)))]
async fn list_rooms(
    State(app): State<App>,
    Query(query): Query<ListQuery>,
) -> Result<Answer<RoomList>, Problem> {
    let limit = query.limit.unwrap_or(100);
    if limit == 0 || limit > MAX_LIST {
        return Err(Problem::unreadable(format!(
            "the query: limit is {limit}; it must be 1 to {MAX_LIST}"
        )));
    }
    let before = match query.after.as_deref().map(Id::parse) {
        Some(None) => {
            return Err(Problem::unreadable(
                "the query: after must be next of the page before",
            ));
        }
        other => other.flatten().map(|id| id.0),
    };
    let among = match query.quarantined {
        None => None,
        Some(inside) => Some((
            inside,
            wait::quarantined(app.node()).await?.into_iter().collect(),
        )),
    };
    if query.peer.is_some() && query.role != Some(RoleName::Receive) {
        wait::meet(app.rooms(), app.node()).await?;
    }
    let filter = Filter {
        state: query.state,
        role: query.role,
        tag: query.tag,
        peer: query.peer,
        among,
        before,
        limit,
    };
    let (mut rooms, next) = app.rooms().list(filter).await?;
    wait::complete(app.rooms(), app.node(), &mut rooms).await;
    Ok(Answer(RoomList {
        rooms,
        next: next.map(|seq| seq.to_string()),
    }))
}

/// Starts a room. The same request again shows the room that it started.
#[utoipa::path(post, path = "/v1/rooms", tag = "rooms", request_body = StartRoom,
    responses(
        (status = 201, description = "The room was started.", body = Room,
            headers(("Location" = String, description = "Where it is shown."))),
        (status = 200, description = "The same request started it before; this is the room now.", body = Room),
        (status = 409, description = "`room-exists`, `key-spent` (with its outcome), `pages-leased` (with who holds \
            them), `no-such-pool`, `pool-retired`, `no-such-peer`.", body = Problem,
            content_type = "application/problem+json"),
    ))]
async fn start_room(
    State(app): State<App>,
    Json(room): Json<StartRoom>,
) -> Result<(StatusCode, [(HeaderName, String); 1], Answer<Room>), Problem> {
    let mut answers = start_all(&app, vec![room]).await;
    let (status, room) = answers.pop().unwrap_or_else(|| Err(Problem::stopping()))?;
    let role = match room.role {
        RoleName::Receive => "receive",
        RoleName::Send => "send",
    };
    let location = format!("/v1/rooms/{}?attempt={}&role={role}", room.id, room.attempt);
    Ok((status, [(header::LOCATION, location)], Answer(room)))
}

/// Shows a room; with `wait`, when its outcome is known or its memory is back, or as it is at the end of
/// the wait.
#[utoipa::path(get, path = "/v1/rooms/{id}", tag = "rooms",
    params(("id" = Id, Path, description = "The room."), ShowQuery),
    responses(
        (status = 200, description = "The room.", body = Room),
        (status = 404, description = "`no-such-room`.", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "`which-role`: the node has the key in both roles.", body = Problem,
            content_type = "application/problem+json"),
    ))]
async fn show_room(
    State(app): State<App>,
    Path(id): Path<Id>,
    Query(query): Query<ShowQuery>,
) -> Result<Answer<Room>, Problem> {
    let within = match query.wait.as_deref().map(duration::parse) {
        None => None,
        Some(Ok(within)) => Some(within.min(app.config().http.long_poll_max)),
        Some(Err(text)) => return Err(Problem::unreadable(format!("the query: wait: {text}"))),
    };
    let stage = match query.until {
        Some(Until::Released) => Stage::Released,
        Some(Until::Outcome) | None => Stage::Ended,
    };
    let which = wait::which(id.0, query.attempt, query.role);
    show(&app, which, within.map(|within| (stage, within)))
        .await
        .map(Answer)
}

/// Ends a room. Its outcome is known at once; its memory follows when it is proven quiet. Does nothing
/// to a room that is over.
#[utoipa::path(delete, path = "/v1/rooms/{id}", tag = "rooms",
    params(("id" = Id, Path, description = "The room."), AbortQuery),
    responses(
        (status = 202, description = "It was told to end, or is over.", body = Room),
        (status = 404, description = "`no-such-room`.", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "`which-role`: the node has the key in both roles.", body = Problem,
            content_type = "application/problem+json"),
    ))]
async fn abort_room(
    State(app): State<App>,
    Path(id): Path<Id>,
    Query(query): Query<AbortQuery>,
) -> Result<(StatusCode, Answer<Room>), Problem> {
    let which = wait::which(id.0, query.attempt, query.role);
    let room = abort(&app, which, query.reason).await?;
    Ok((StatusCode::ACCEPTED, Answer(room)))
}

/// Pushes a chunk of source pages into a room that sends. The same chunk again does nothing.
#[utoipa::path(post, path = "/v1/rooms/{id}/chunks", tag = "rooms",
    params(("id" = Id, Path, description = "The room.")), request_body = PushChunk,
    responses(
        (status = 202, description = "It was taken; its pages are leased until it has landed, or the room's end.",
            body = ChunkTaken),
        (status = 200, description = "It was taken before.", body = ChunkTaken),
        (status = 404, description = "`no-such-room`.", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "`chunk-conflict`, `room-finished`, `room-over` (with its outcome), `wrong-role`, \
            `pages-leased`, `no-such-pool`, `pool-retired`.", body = Problem,
            content_type = "application/problem+json"),
    ))]
async fn push_chunk(
    State(app): State<App>,
    Path(id): Path<Id>,
    Json(chunk): Json<PushChunk>,
) -> Result<(StatusCode, Answer<ChunkTaken>), Problem> {
    let (status, chunk) = push(&app, id.0, chunk).await?;
    Ok((status, Answer(ChunkTaken { chunk })))
}

/// Says that no chunk follows. The same again does nothing.
#[utoipa::path(post, path = "/v1/rooms/{id}/finish", tag = "rooms",
    params(("id" = Id, Path, description = "The room.")), request_body = FinishRoom,
    responses(
        (status = 202, description = "It was taken.", body = Room),
        (status = 200, description = "It was taken before.", body = Room),
        (status = 404, description = "`no-such-room`.", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "`room-finished`, `room-over` (with its outcome), `wrong-role`, `pages-leased`, \
            `no-such-pool`, `pool-retired`.", body = Problem, content_type = "application/problem+json"),
    ))]
async fn finish_room(
    State(app): State<App>,
    Path(id): Path<Id>,
    Json(finish): Json<FinishRoom>,
) -> Result<(StatusCode, Answer<Room>), Problem> {
    let (status, room) = finished(&app, id.0, finish).await?;
    Ok((status, Answer(room)))
}

/// Ends many rooms: those with a tag, with a leg to a peer, of a room id, or all. Claims that wait for a
/// room are refused too, except by tag. Rooms that are started later are not touched.
#[utoipa::path(post, path = "/v1/aborts", tag = "rooms", request_body = AbortMany,
    responses(
        (status = 202, description = "They were told to end.", body = AbortedCount),
        (status = 409, description = "`no-such-peer`.", body = Problem, content_type = "application/problem+json"),
    ))]
async fn abort_many(
    State(app): State<App>,
    Json(many): Json<AbortMany>,
) -> Result<(StatusCode, Answer<AbortedCount>), Problem> {
    let which = match (many.tag, many.peer, many.room, many.all) {
        (Some(tag), None, None, None) => kvroom::Which::Tag(tag),
        (None, Some(name), None, None) => {
            let peer = answered(app.node(), QUESTION, app.node().peer(&name)).await?;
            kvroom::Which::Peer(peer.ok_or_else(|| problems::no_peer(&name))?)
        }
        (None, None, Some(id), None) => kvroom::Which::Room(RoomId(id.0)),
        (None, None, None, Some(true)) => kvroom::Which::AllBut(CANARY.to_owned()),
        _ => {
            let text = "say exactly one of tag, peer, room and all (true)";
            return Err(Problem::unusable(text));
        }
    };
    let reason = many.reason.unwrap_or_else(|| DEFAULT_REASON.to_owned());
    // All shards are told by the time that this waits: it goes on if whoever asked goes away.
    let told = app.node().abort_where_within(which, reason, ABORT).await;
    let answer = AbortedCount {
        aborted: told.rooms as u64,
        complete: told.silent.is_empty(),
        silent: told
            .silent
            .iter()
            .map(|shard| format!("shard {shard}"))
            .collect(),
    };
    Ok((StatusCode::ACCEPTED, Answer(answer)))
}

/// Lists claims of decode nodes that wait for a room that sends, oldest first: a full prefill serves
/// these first.
#[utoipa::path(get, path = "/v1/early-claims", tag = "rooms",
    responses((status = 200, description = "The claims.", body = EarlyClaimList)))]
async fn early_claims(State(app): State<App>) -> Result<Answer<EarlyClaimList>, Problem> {
    let claims = answered(app.node(), QUESTION, app.node().early_claims()).await?;
    let shown = claims.iter().take(MAX_LIST).map(|claim| EarlyClaimView {
        room: Id(claim.key.id.0),
        attempt: claim.key.attempt,
        peer: claim.peer.clone(),
        pages: claim.pages,
    });
    Ok(Answer(EarlyClaimList {
        early_claims: shown.collect(),
        count: claims.len() as u64,
    }))
}

/// Starts rooms together; answers in their order.
pub(super) async fn start_all(
    app: &App,
    rooms: Vec<StartRoom>,
) -> Vec<Result<(StatusCode, Room), Problem>> {
    let mut answers: Vec<Option<Problem>> = Vec::with_capacity(rooms.len());
    let mut good = Vec::with_capacity(rooms.len());
    for room in rooms {
        let checked = if app.is_stopping() {
            Err(Problem::stopping())
        } else {
            start::check(&room)
        };
        match checked {
            Ok(()) => {
                good.push(room);
                answers.push(None);
            }
            Err(problem) => answers.push(Some(problem)),
        }
    }
    let mut started = app.rooms().start_all(good).await.into_iter();
    let answers = answers.into_iter().map(|problem| match problem {
        Some(problem) => Err(problem),
        None => {
            let (new, seen) = started.next().unwrap_or_else(|| Err(Problem::stopping()))?;
            let status = if new {
                StatusCode::CREATED
            } else {
                StatusCode::OK
            };
            Ok((status, seen.room))
        }
    });
    answers.collect()
}

/// Shows a room, after a wait if one is asked for.
pub(super) async fn show(
    app: &App,
    which: Which,
    until: Option<(Stage, Duration)>,
) -> Result<Room, Problem> {
    let mut seen = app.rooms().look(which).await?;
    if let Some((stage, within)) = until {
        seen = wait::until(app.rooms(), which, seen, stage, within).await?;
    }
    let mut shown = [seen.room];
    wait::complete(app.rooms(), app.node(), &mut shown).await;
    let [room] = shown;
    Ok(room)
}

/// Ends a room.
pub(super) async fn abort(
    app: &App,
    which: Which,
    reason: Option<String>,
) -> Result<Room, Problem> {
    let reason = reason.unwrap_or_else(|| DEFAULT_REASON.to_owned());
    let seen = app.rooms().abort(which, reason).await?;
    Ok(wait::outcome(app.rooms(), which, seen).await?.room)
}

/// Pushes a chunk.
pub(super) async fn push(
    app: &App,
    id: u64,
    chunk: PushChunk,
) -> Result<(StatusCode, ChunkView), Problem> {
    let pool = problems::pool(app.pools(), &chunk.pool)?;
    let which = wait::which(id, chunk.attempt, None);
    let ready = match &chunk.ready {
        Some(digits) => Some(event(app, &pool, digits).await?),
        None => None,
    };
    let kept = pool.device().cloned().zip(ready.clone());
    let pushed = app.rooms().push(sending(which), chunk, pool, ready).await;
    if let Some((device, event)) = kept {
        app.devices().let_go(&device, event);
    }
    let (new, chunk) = pushed?;
    Ok((accepted(new), chunk))
}

/// The event after which the pages of a chunk are ready.
async fn event(app: &App, pool: &Pool, digits: &str) -> Result<Arc<Ready>, Problem> {
    let name = &pool.layout().name;
    let Some(device) = pool.device() else {
        return Err(Problem::unusable(format!(
            "ready: pool {name:?} is on no device, so no event of one says when its pages are ready: push the \
             chunk when they are"
        )));
    };
    let Some(bytes) = bytes_of(digits) else {
        let given = digits.len();
        return Err(Problem::unusable(format!(
            "ready: 128 hexadecimal digits are wanted, and {given} bytes were given"
        )));
    };
    app.devices().event(device, bytes).await
}

/// Finishes a room.
pub(super) async fn finished(
    app: &App,
    id: u64,
    finish: FinishRoom,
) -> Result<(StatusCode, Room), Problem> {
    let pool = match &finish.aux {
        Some(row) => Some(problems::pool(app.pools(), &row.pool)?),
        None => None,
    };
    let which = wait::which(id, finish.attempt, None);
    let (new, seen) = app.rooms().finish(sending(which), finish, pool).await?;
    Ok((accepted(new), seen.room))
}

fn accepted(new: bool) -> StatusCode {
    if new {
        StatusCode::ACCEPTED
    } else {
        StatusCode::OK
    }
}

/// Chunks are pushed into the room that sends, if the node has the key in both roles.
fn sending(which: Which) -> Which {
    Which {
        role: Some(RoleName::Send),
        ..which
    }
}
