//! `/v1/pools`: register, list, look at, retire.

use super::shape::{PoolSpec, PoolState, PoolView};
use crate::daemon::App;
use crate::daemon::http::{BEGINNING, Json, Path, Problem, Query, Routes, answered, duration};
use axum::Json as Answer;
use axum::extract::State;
use axum::http::header::LOCATION;
use axum::http::{HeaderName, StatusCode};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::routes;

/// The routes of this part.
pub(crate) fn routes() -> Routes {
    Routes::new()
        .routes(routes!(list, register))
        .routes(routes!(show, retire))
}

/// All pools.
#[derive(Debug, Serialize, ToSchema)]
struct PoolList {
    pools: Vec<PoolView>,
}

/// How a pool is retired.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct RetireQuery {
    /// How long to wait until it is gone: `500ms`, `30s`; `http.long_poll_max` at most.
    wait: Option<String>,
    /// Whether rooms that hold pages of it are aborted; otherwise they go on to their end.
    #[serde(default)]
    abort: bool,
    /// Whether every engine has closed its handle of memory that the daemon has allocated on a device:
    /// without that word such memory is kept. It is of no account for other pools.
    #[serde(default)]
    closed: bool,
}

/// All pools, with the pages of each that are leased or quarantined.
#[utoipa::path(get, path = "/v1/pools", tag = "pools", responses(
    (status = 200, description = "All pools, in the order of their registration", body = PoolList),
))]
async fn list(State(app): State<App>) -> Answer<PoolList> {
    let pools = app.pools().list();
    Answer(PoolList { pools })
}

/// Registers memory of another process as a pool. The same request again changes nothing.
#[utoipa::path(post, path = "/v1/pools", tag = "pools", request_body = PoolSpec, responses(
    (status = 201, description = "It is registered; `path` says where its memory is", body = PoolView),
    (status = 200, description = "It was registered by the same request before", body = PoolView),
    (status = 409, description = "There is a pool of this name, or the memory is one already", body = Problem, content_type = "application/problem+json"),
    (status = 422, description = "The pool cannot be like this", body = Problem, content_type = "application/problem+json"),
    (status = 503, description = "`limit-reached`, naming the limit; `no-room`: there is not as much memory; `device-unavailable`, with why: no driver, a broken or hanging one, no such device; `device-lost`; `stopping`", body = Problem, content_type = "application/problem+json"),
))]
async fn register(
    State(app): State<App>,
    Json(spec): Json<PoolSpec>,
) -> Result<(StatusCode, [(HeaderName, String); 1], Answer<PoolView>), Problem> {
    if app.is_stopping() {
        return Err(Problem::stopping());
    }
    let name = spec.name.clone();
    let register = app.pools().register(spec);
    let (view, new) = answered(app.node(), BEGINNING, register)
        .await
        .map_err(|problem| still_opened(problem, &name))??;
    let status = if new {
        StatusCode::CREATED
    } else {
        StatusCode::OK
    };
    let location = format!("/v1/pools/{}", view.id);
    Ok((status, [(LOCATION, location)], Answer(view)))
}

/// Most likely it is not the node that is late: a large pool takes as long as its memory takes to be filled.
fn still_opened(problem: Problem, name: &str) -> Problem {
    Problem {
        detail: format!(
            "pool {name:?} was not opened within {BEGINNING:?}; its memory is being filled, or a part of the node \
             does not answer: the same request again waits for it ({})",
            problem.detail
        ),
        ..problem
    }
}

/// One pool.
#[utoipa::path(get, path = "/v1/pools/{id}", tag = "pools", params(
    ("id" = String, Path, description = "Its name"),
), responses(
    (status = 200, description = "The pool", body = PoolView),
    (status = 404, description = "There is no such pool", body = Problem, content_type = "application/problem+json"),
))]
async fn show(State(app): State<App>, Path(id): Path<String>) -> Result<Answer<PoolView>, Problem> {
    app.pools().view(&id).map(Answer)
}

/// Retires a pool: it gives no new leases, and goes when every page of it is back, each on proof. Memory that
/// the daemon has allocated on a device is kept until all engines have closed it, which somebody has to say.
#[utoipa::path(delete, path = "/v1/pools/{id}", tag = "pools", params(
    ("id" = String, Path, description = "Its name"),
    RetireQuery,
), responses(
    (status = 200, description = "It is gone", body = PoolView),
    (status = 202, description = "It is being retired, or its memory is kept; `why` says what it waits for", body = PoolView),
    (status = 404, description = "There is no such pool", body = Problem, content_type = "application/problem+json"),
    (status = 503, description = "The daemon stops, or too many wait", body = Problem, content_type = "application/problem+json"),
))]
async fn retire(
    State(app): State<App>,
    Path(id): Path<String>,
    Query(query): Query<RetireQuery>,
) -> Result<(StatusCode, Answer<PoolView>), Problem> {
    let wait = query.wait.as_deref().map(duration::parse).transpose();
    let wait = wait.map_err(|text| Problem::unreadable(format!("the query: wait: {text}")))?;
    let pools = app.pools();
    let view = pools.retire(&id, query.abort, query.closed).await?;
    let Some(wait) = wait else {
        return Ok((StatusCode::ACCEPTED, Answer(view)));
    };
    let wait = wait.min(app.config().http.long_poll_max);
    // An error is that the time is over: then it is there still.
    let _ = tokio::time::timeout(wait, pools.gone(&id)).await;
    if let Ok(view) = pools.view(&id) {
        return Ok((StatusCode::ACCEPTED, Answer(view)));
    }
    let gone = PoolView {
        state: PoolState::Gone,
        why: None,
        cuda: None,
        kept_bytes: 0,
        leased_pages: 0,
        quarantined_pages: Vec::new(),
        ..view
    };
    Ok((StatusCode::OK, Answer(gone)))
}
