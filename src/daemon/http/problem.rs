//! Errors as problem documents (RFC 9457).

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

/// Why a request was not done: `application/problem+json`.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct Problem {
    /// Names the kind of problem: `/problems/` and `code`.
    #[serde(rename = "type")]
    pub(crate) kind: String,
    /// The kind in words; the same for every problem of the kind.
    pub(crate) title: String,
    /// The status of the answer.
    pub(crate) status: u16,
    /// What is wrong with this request, and what to do.
    pub(crate) detail: String,
    /// The kind, stable, for programs: for example `room-exists`.
    pub(crate) code: String,
}

impl Problem {
    /// A problem of a kind.
    pub(crate) fn new(
        status: StatusCode,
        code: &'static str,
        title: &'static str,
        detail: impl Into<String>,
    ) -> Problem {
        Problem {
            kind: format!("/problems/{code}"),
            title: title.to_owned(),
            status: status.as_u16(),
            detail: detail.into(),
            code: code.to_owned(),
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = serde_json::to_vec(&self).unwrap_or_default();
        let kind = [(header::CONTENT_TYPE, "application/problem+json")];
        (status, kind, body).into_response()
    }
}
