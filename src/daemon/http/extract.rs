//! Bodies, queries and paths, read into types; what cannot be read is a [`Problem`].
//!
//! Rules: a body is JSON that says so, of at most `http.max_body_bytes`; unknown fields are errors; a
//! body that is too large is read and thrown away for a moment, so that its sender hears why.

use super::Problem;
use crate::daemon::App;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{FromRequest, FromRequestParts, RawPathParams, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::de::DeserializeOwned;
use std::time::Duration;

/// How long a body that is too large is read, so that its sender comes to read the answer.
const DISCARD_FOR: Duration = Duration::from_secs(2);
/// How much of it.
const DISCARD_BYTES: u64 = 64 << 20;

/// A body of JSON.
pub(crate) struct Json<T>(pub(crate) T);

/// The query.
pub(crate) struct Query<T>(pub(crate) T);

/// The only parameter of the path.
pub(crate) struct Path<T>(pub(crate) T);

/// What is between two slashes of a path.
pub(crate) trait Segment: Sized {
    /// Reads it, or says what it must be.
    fn read(text: &str) -> Result<Self, &'static str>;
}

impl Segment for String {
    fn read(text: &str) -> Result<String, &'static str> {
        Ok(text.to_owned())
    }
}

impl Segment for super::Id {
    fn read(text: &str) -> Result<super::Id, &'static str> {
        super::Id::parse(text).ok_or("a whole number from 0 to 18446744073709551615")
    }
}

impl<T: DeserializeOwned> FromRequest<App> for Json<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Result<Json<T>, Problem> {
        says_json(request.headers())?;
        let bytes = read_body(request, app.config().http.max_body_bytes.0).await?;
        parse(&bytes).map(Json)
    }
}

impl<T: DeserializeOwned, S: Sync> FromRequestParts<S> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Query<T>, Problem> {
        let read = axum::extract::Query::<T>::try_from_uri(&parts.uri);
        read.map(|q| Query(q.0))
            .map_err(|e| Problem::unreadable(format!("the query: {}", e.body_text())))
    }
}

impl<T: Segment, S: Send + Sync> FromRequestParts<S> for Path<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Path<T>, Problem> {
        let params = RawPathParams::from_request_parts(parts, state).await;
        let params =
            params.map_err(|e| Problem::unreadable(format!("the path: {}", e.body_text())))?;
        let Some((name, text)) = params.iter().next() else {
            return Err(Problem::unreadable("the path has no parameter"));
        };
        T::read(text).map(Path).map_err(|wanted| {
            let shown: String = text.chars().take(64).collect();
            Problem::unreadable(format!(
                "the path: {name} is {shown:?}; it must be {wanted}"
            ))
        })
    }
}

fn says_json(headers: &HeaderMap) -> Result<(), Problem> {
    let kind = headers.get(header::CONTENT_TYPE);
    let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let essence = kind
        .split(';')
        .next()
        .unwrap_or_default()
        .trim()
        .to_ascii_lowercase();
    if essence == "application/json"
        || (essence.starts_with("application/") && essence.ends_with("+json"))
    {
        return Ok(());
    }
    Err(Problem::new(
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        "not-json",
        "The body is not said to be JSON",
        "send the body as JSON, with the header Content-Type: application/json",
    ))
}

async fn read_body(request: Request, most: u64) -> Result<Bytes, Problem> {
    let asks = request.headers().contains_key(header::EXPECT);
    let body = request.into_body();
    let said = body.size_hint().lower();
    if said > most {
        if !asks {
            discard(body).await;
        }
        return Err(too_large(most));
    }
    let limit = usize::try_from(most).unwrap_or(usize::MAX);
    match Limited::new(body, limit).collect().await {
        Ok(all) => Ok(all.to_bytes()),
        Err(e) if e.is::<LengthLimitError>() => Err(too_large(most)),
        Err(_) => Err(Problem::unreadable(
            "the body broke off, or is not what its headers say",
        )),
    }
}

async fn discard(mut body: Body) {
    let reading = async {
        let mut left = DISCARD_BYTES;
        while let Some(Ok(frame)) = body.frame().await {
            let bytes = frame.data_ref().map_or(0, |data| data.len() as u64);
            match left.checked_sub(bytes) {
                Some(rest) => left = rest,
                None => break,
            }
        }
    };
    let _ = tokio::time::timeout(DISCARD_FOR, reading).await;
}

fn too_large(most: u64) -> Problem {
    Problem::new(
        StatusCode::PAYLOAD_TOO_LARGE,
        "body-too-large",
        "The body is too large",
        format!("a body has at most {most} bytes (http.max_body_bytes): send less at once"),
    )
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    serde_json::from_slice(bytes).map_err(|e| match e.classify() {
        serde_json::error::Category::Data => Problem::unusable(format!("the body: {e}")),
        _ => Problem::unreadable(format!("the body is not JSON: {e}")),
    })
}
