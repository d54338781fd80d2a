//! `/v1/pools`: register, list, look at, retire.

use super::shape::{PoolSpec, PoolState, PoolView};
use crate::daemon::App;
use crate::daemon::http::{Problem, Routes};
use axum::Json;
use axum::body::Bytes;
use axum::extract::{Path, RawQuery, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::routes;

/// The longest that an answer is waited for.
const MAX_WAIT: Duration = Duration::from_secs(60);

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
    /// How long to wait until it is gone: `500ms`, `30s`; 60 seconds at most.
    wait: Option<String>,
    /// Whether rooms that hold pages of it are aborted; otherwise they go on to their end.
    #[serde(default)]
    abort: bool,
}

/// All pools, with the pages of each that are leased or quarantined.
#[utoipa::path(get, path = "/v1/pools", tag = "pools", responses(
    (status = 200, description = "All pools, in the order of their registration", body = PoolList),
))]
async fn list(State(app): State<App>) -> Json<PoolList> {
    let pools = app.pools().list();
    Json(PoolList { pools })
}

/// Registers memory of another process as a pool. The same request again changes nothing.
#[utoipa::path(post, path = "/v1/pools", tag = "pools", request_body = PoolSpec, responses(
    (status = 201, description = "It is registered; `path` says where its memory is", body = PoolView),
    (status = 200, description = "It was registered by the same request before", body = PoolView),
    (status = 400, description = "The body is no JSON", body = Problem, content_type = "application/problem+json"),
    (status = 409, description = "There is a pool of this name, or the memory is one already", body = Problem, content_type = "application/problem+json"),
    (status = 422, description = "The pool cannot be like this", body = Problem, content_type = "application/problem+json"),
    (status = 503, description = "A limit is reached, or the daemon stops", body = Problem, content_type = "application/problem+json"),
    (status = 507, description = "There is not as much memory", body = Problem, content_type = "application/problem+json"),
))]
async fn register(State(app): State<App>, body: Bytes) -> Result<Response, Problem> {
    let spec: PoolSpec = parse(&body)?;
    let (view, new) = app.pools().register(spec).await?;
    let mut headers = HeaderMap::new();
    if let Ok(at) = HeaderValue::from_str(&format!("/v1/pools/{}", view.id)) {
        headers.insert(header::LOCATION, at);
    }
    let status = if new {
        StatusCode::CREATED
    } else {
        StatusCode::OK
    };
    Ok((status, headers, Json(view)).into_response())
}

/// One pool.
#[utoipa::path(get, path = "/v1/pools/{id}", tag = "pools", params(
    ("id" = String, Path, description = "Its name"),
), responses(
    (status = 200, description = "The pool", body = PoolView),
    (status = 404, description = "There is no such pool", body = Problem, content_type = "application/problem+json"),
))]
async fn show(State(app): State<App>, Path(id): Path<String>) -> Result<Json<PoolView>, Problem> {
    app.pools().view(&id).map(Json)
}

/// Retires a pool: it gives no new leases, and goes when every page of it is back, each on proof.
#[utoipa::path(delete, path = "/v1/pools/{id}", tag = "pools", params(
    ("id" = String, Path, description = "Its name"),
    RetireQuery,
), responses(
    (status = 200, description = "It is gone", body = PoolView),
    (status = 202, description = "It is being retired; `why` says what it waits for", body = PoolView),
    (status = 404, description = "There is no such pool", body = Problem, content_type = "application/problem+json"),
    (status = 422, description = "The query is wrong", body = Problem, content_type = "application/problem+json"),
    (status = 503, description = "The daemon stops, or too many wait", body = Problem, content_type = "application/problem+json"),
))]
async fn retire(
    State(app): State<App>,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<(StatusCode, Json<PoolView>), Problem> {
    let query = query_of(query.as_deref().unwrap_or_default())?;
    let wait = query.wait.as_deref().map(duration).transpose()?;
    let pools = app.pools();
    let view = pools.retire(&id, query.abort).await?;
    if let Some(wait) = wait {
        // What is over by then is told below.
        let _ = tokio::time::timeout(wait.min(MAX_WAIT), pools.gone(&id)).await;
    }
    match (wait, pools.view(&id)) {
        (None, _) => Ok((StatusCode::ACCEPTED, Json(view))),
        (_, Ok(view)) => Ok((StatusCode::ACCEPTED, Json(view))),
        (_, Err(_)) => {
            let gone = PoolView {
                state: PoolState::Gone,
                why: None,
                leased_pages: 0,
                quarantined_pages: Vec::new(),
                ..view
            };
            Ok((StatusCode::OK, Json(gone)))
        }
    }
}

fn parse<T: for<'de> Deserialize<'de>>(body: &[u8]) -> Result<T, Problem> {
    serde_json::from_slice(body).map_err(|error| {
        if error.is_data() {
            bad(format!("the body: {error}"))
        } else {
            Problem::new(
                StatusCode::BAD_REQUEST,
                "bad-json",
                "The body is no JSON",
                error.to_string(),
            )
        }
    })
}

fn query_of(text: &str) -> Result<RetireQuery, Problem> {
    let mut query = RetireQuery::default();
    for pair in text.split('&').filter(|p| !p.is_empty()) {
        match pair.split_once('=').unwrap_or((pair, "")) {
            ("wait", wait) => query.wait = Some(wait.to_owned()),
            ("abort", "true" | "1" | "") => query.abort = true,
            ("abort", "false" | "0") => query.abort = false,
            ("abort", other) => return Err(bad(format!("abort={other}: true or false is wanted"))),
            (other, _) => {
                return Err(bad(format!(
                    "there is no parameter {other:?}; there are wait and abort"
                )));
            }
        }
    }
    Ok(query)
}

/// `500ms` or `30s`.
fn duration(text: &str) -> Result<Duration, Problem> {
    let (number, unit) = match text.strip_suffix("ms") {
        Some(number) => (number, 1),
        None => (text.strip_suffix('s').unwrap_or(text), 1000),
    };
    match number.parse::<u32>() {
        Ok(n) => Ok(Duration::from_millis(u64::from(n) * unit)),
        Err(_) => Err(bad(format!(
            "wait={text}: a duration such as 500ms or 30s is wanted"
        ))),
    }
}

fn bad(detail: String) -> Problem {
    Problem::new(
        StatusCode::UNPROCESSABLE_ENTITY,
        "bad-request",
        "The request has something in it that cannot be",
        detail,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_says_how_long_to_wait_and_whether_rooms_are_aborted() {
        let query = query_of("wait=30s&abort=true").unwrap();
        assert_eq!((query.wait.as_deref(), query.abort), (Some("30s"), true));
        assert_eq!(query_of("").unwrap(), RetireQuery::default());
        for wrong in ["abort=maybe", "now=1"] {
            assert_eq!(query_of(wrong).unwrap_err().status, 422, "{wrong}");
        }
        assert_eq!(duration("500ms").unwrap(), Duration::from_millis(500));
        assert_eq!(duration("30s").unwrap(), Duration::from_secs(30));
        for wrong in ["", "s", "-1s", "1h", "99999999999s"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }
}
