//! Errors as problem documents (RFC 9457).
//!
//! | Status | Meaning |
//! |---|---|
//! | 400 | the message cannot be read: JSON, query, path |
//! | 401, 421 | who asks may not, or not by this name |
//! | 404, 405 | there is no such thing, or not by this method |
//! | 408, 413, 415, 429 | too slow, too large, not JSON, too much at once: back-pressure |
//! | 409 | what is asked for contradicts what is: a used key, leased pages, a peer that is not there |
//! | 422 | it can be read, and cannot be meant |
//! | 503 | `limit-reached` names the limit; `no-room` for a pool's memory; `device-unavailable`, `device-lost`; `not-answering` names the part of the node; `stopping` |
//!
//! Rule: nothing that a client sends gives any other 5xx.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

/// Why a request was not done: `application/problem+json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct Problem {
    /// Names the kind of problem: `/problems/` and `code`.
    #[serde(rename = "type")]
    #[schema(value_type = String)]
    pub(crate) kind: Box<str>,
    /// The kind in words; the same for every problem of the kind.
    #[schema(value_type = String)]
    pub(crate) title: &'static str,
    /// The status of the answer.
    pub(crate) status: u16,
    /// What is wrong with this request, and what to do.
    pub(crate) detail: String,
    /// The kind, stable, for programs: for example `room-exists`.
    #[schema(value_type = String)]
    pub(crate) code: &'static str,
    /// How the room of a spent key ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub(crate) outcome: Option<Box<serde_json::Value>>,
    /// The limit that is reached: a key of the configuration.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub(crate) limit: Option<Box<str>>,
    /// Seconds after which to try again; the header `Retry-After` says the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) retry_after: Option<u32>,
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
            kind: format!("/problems/{code}").into(),
            title,
            status: status.as_u16(),
            detail: detail.into(),
            code,
            outcome: None,
            limit: None,
            retry_after: None,
        }
    }

    /// There is no such thing.
    pub(crate) fn not_found(
        code: &'static str,
        title: &'static str,
        detail: impl Into<String>,
    ) -> Problem {
        Problem::new(StatusCode::NOT_FOUND, code, title, detail)
    }

    /// It contradicts what is.
    pub(crate) fn conflict(
        code: &'static str,
        title: &'static str,
        detail: impl Into<String>,
    ) -> Problem {
        Problem::new(StatusCode::CONFLICT, code, title, detail)
    }

    /// It can be read, and cannot be meant.
    pub(crate) fn unusable(detail: impl Into<String>) -> Problem {
        Problem::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "unusable-request",
            "The request cannot be meant",
            detail,
        )
    }

    /// A part of the message cannot be read.
    pub(crate) fn unreadable(detail: impl Into<String>) -> Problem {
        Problem::new(
            StatusCode::BAD_REQUEST,
            "unreadable-request",
            "The request cannot be read",
            detail,
        )
    }

    /// A limit is reached; `limit` is its key in the configuration.
    pub(crate) fn limit(limit: &str, detail: impl Into<String>) -> Problem {
        let problem = Problem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "limit-reached",
            "A limit is reached",
            detail,
        );
        Problem {
            limit: Some(limit.into()),
            ..problem.retry_after(1)
        }
    }

    /// The daemon stops.
    pub(crate) fn stopping() -> Problem {
        Problem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "stopping",
            "The daemon stops",
            "the daemon was told to stop and starts nothing new: ask another one",
        )
    }

    /// A defect of the daemon.
    pub(crate) fn defect(detail: impl Into<String>) -> Problem {
        Problem::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "defect",
            "A defect of the daemon",
            detail,
        )
    }

    /// The system gave no thread.
    pub(crate) fn no_thread(error: &std::io::Error) -> Problem {
        let text =
            format!("the system gives the daemon no thread: {error}; raise its limit of threads");
        Problem::limit("threads", text)
    }

    /// A task of the daemon is over that should run for as long as the daemon does.
    pub(crate) fn is_over(task: &str) -> Problem {
        Problem::defect(format!(
            "the {task} of the daemon is over, which is a defect: GET /livez says more; restart the daemon"
        ))
    }

    /// After so many seconds it may work.
    #[must_use]
    pub(crate) fn retry_after(mut self, seconds: u32) -> Problem {
        self.retry_after = Some(seconds);
        self
    }

    /// With how the room of the key ended.
    #[must_use]
    pub(crate) fn outcome(mut self, outcome: serde_json::Value) -> Problem {
        self.outcome = Some(Box::new(outcome));
        self
    }

    /// Its status.
    pub(crate) fn status_code(&self) -> StatusCode {
        StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    /// As the body of an answer.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let kind = [(header::CONTENT_TYPE, "application/problem+json")];
        let mut answer = (self.status_code(), kind, self.to_bytes()).into_response();
        if let Some(seconds) = self.retry_after {
            let seconds = HeaderValue::from(seconds);
            answer.headers_mut().insert(header::RETRY_AFTER, seconds);
        }
        if self.status == StatusCode::UNAUTHORIZED.as_u16() {
            let scheme = HeaderValue::from_static("Bearer");
            answer
                .headers_mut()
                .insert(header::WWW_AUTHENTICATE, scheme);
        }
        answer
    }
}
