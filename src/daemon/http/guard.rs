//! What every request passes before its route: who may ask, and how much at once.
//!
//! ```text
//!   log ─▶ panics ─▶ host, token ─▶ rate ─▶ concurrency ─▶ time ─▶ route
//! ```
//!
//! Rules: a token is compared in constant time and never written to a log; probes (`/livez`,
//! `/readyz`) pass without a token and without counting, so that overload is not taken for a wedge;
//! a request that waits by its own wish (`?wait=`, where the route has that) has the time that it may ask for
//! on top, and counts as a connection only.

use super::Problem;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use subtle::ConstantTimeEq;
use tokio::sync::Semaphore;

/// Served without a token: no secrets, and nothing changes.
const OPEN: &[&str] = &["/", "/livez", "/readyz", "/openapi.json"];
/// Do not count, and are never refused for load.
const PROBES: &[&str] = &["/livez", "/readyz"];

/// Take `?wait=`.
const WAITING: &[(Method, &str)] = &[
    (Method::GET, "/v1/rooms/{id}"),
    (Method::DELETE, "/v1/pools/{id}"),
];

/// What requests are checked against.
pub(super) struct Guard {
    pub(super) token: Option<Token>,
    /// Whether who asks is known already, by a certificate.
    pub(super) known_by_certificate: bool,
    pub(super) rate: Option<Rate>,
    pub(super) concurrent: Semaphore,
    pub(super) max_concurrent: usize,
    pub(super) request_timeout: Duration,
    pub(super) long_poll_max: Duration,
}

/// A secret; never shown.
pub(super) struct Token(Vec<u8>);

impl Token {
    /// Without the white space at its ends; none if it is too short to be one.
    pub(super) fn new(text: &[u8]) -> Option<Token> {
        let text = text.trim_ascii();
        (text.len() >= Token::LEAST).then(|| Token(text.to_vec()))
    }

    /// Fewest bytes.
    pub(super) const LEAST: usize = 16;

    fn is(&self, other: &[u8]) -> bool {
        self.0.ct_eq(other).into()
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(…)")
    }
}

/// A bucket that fills with time.
pub(super) struct Rate {
    start: Instant,
    /// Nanoseconds of one request.
    each: u64,
    /// Nanoseconds that may be used in advance.
    burst: u64,
    /// Up to when, in nanoseconds since `start`, all is used.
    used: AtomicU64,
}

impl Rate {
    pub(super) fn new(per_second: u32, burst: u32) -> Rate {
        let each = 1_000_000_000 / u64::from(per_second.max(1));
        Rate {
            start: Instant::now(),
            each,
            burst: each.saturating_mul(u64::from(burst.max(1))),
            used: AtomicU64::new(0),
        }
    }

    fn take(&self) -> bool {
        let now = u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.take_at(now)
    }

    fn take_at(&self, now: u64) -> bool {
        let next = |used: u64| {
            let end = used.max(now).saturating_add(self.each);
            (end - now <= self.burst).then_some(end)
        };
        let order = Ordering::Relaxed;
        self.used.fetch_update(order, order, next).is_ok()
    }
}

/// Refuses who may not ask.
pub(super) async fn admit(
    State(guard): State<Arc<Guard>>,
    request: Request,
    next: Next,
) -> Response {
    let path = request.uri().path();
    if let Err(problem) = may_ask(&guard, path, request.headers()) {
        return problem.into_response();
    }
    if PROBES.contains(&path) {
        return next.run(request).await;
    }
    if guard.rate.as_ref().is_some_and(|rate| !rate.take()) {
        return too_many().into_response();
    }
    let waits = waits(&request);
    let permit = if waits {
        None
    } else {
        match guard.concurrent.try_acquire() {
            Ok(permit) => Some(permit),
            Err(_) => {
                let most = guard.max_concurrent;
                let text =
                    format!("{most} requests are being done (http.max_concurrent): try again");
                return Problem::limit("http.max_concurrent", text).into_response();
            }
        }
    };
    let extra = if waits {
        guard.long_poll_max
    } else {
        Duration::ZERO
    };
    let within = guard.request_timeout.saturating_add(extra);
    let answer = tokio::time::timeout(within, next.run(request)).await;
    drop(permit);
    answer.unwrap_or_else(|_| too_slow(within).into_response())
}

/// Writes one line for each request, without headers and without its query.
pub(super) async fn log(request: Request, next: Next) -> Response {
    if !tracing::enabled!(tracing::Level::DEBUG) {
        return next.run(request).await;
    }
    let start = Instant::now();
    let method = request.method().clone();
    let route = request.extensions().get::<MatchedPath>().cloned();
    let answer = next.run(request).await;
    tracing::debug!(
        %method,
        route = route.as_ref().map_or("(none)", |r| r.as_str()),
        status = answer.status().as_u16(),
        us = start.elapsed().as_micros() as u64,
        "request"
    );
    answer
}

fn may_ask(guard: &Guard, path: &str, headers: &HeaderMap) -> Result<(), Problem> {
    if let Some(token) = &guard.token {
        let said = headers
            .get(header::AUTHORIZATION)
            .map(|value| value.as_bytes());
        let said = said.and_then(|value| {
            let (scheme, rest) = value.split_at_checked(7)?;
            scheme.eq_ignore_ascii_case(b"bearer ").then_some(rest)
        });
        return match said {
            Some(said) if token.is(said.trim_ascii()) => Ok(()),
            _ if OPEN.contains(&path) => Ok(()),
            Some(_) => Err(unauthorized("the token is not the daemon's")),
            None => Err(unauthorized("send the header Authorization: Bearer TOKEN")),
        };
    }
    if guard.known_by_certificate
        || headers
            .get(header::HOST)
            .is_none_or(|host| is_local(host.as_bytes()))
    {
        return Ok(());
    }
    // A web page that a browser on this machine shows could have its own name point here.
    Err(Problem::new(
        StatusCode::MISDIRECTED_REQUEST,
        "unknown-host",
        "The daemon has no such name",
        "without a token the daemon answers only to localhost and to IP addresses in the header Host",
    ))
}

fn is_local(host: &[u8]) -> bool {
    let Ok(host) = std::str::from_utf8(host) else {
        return false;
    };
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    };
    let bare = name
        .strip_prefix('[')
        .and_then(|n| n.strip_suffix(']'))
        .unwrap_or(name);
    bare.is_empty()
        || bare.eq_ignore_ascii_case("localhost")
        || bare.parse::<std::net::IpAddr>().is_ok()
}

/// Whether it is one of a route that waits, and asks for it.
fn waits(request: &Request) -> bool {
    let route = request.extensions().get::<MatchedPath>();
    let route = (request.method(), route.map_or("", MatchedPath::as_str));
    let may = WAITING
        .iter()
        .any(|(method, path)| route == (method, *path));
    let query = request.uri().query().unwrap_or_default();
    may && query.split('&').any(|pair| pair.starts_with("wait="))
}

fn unauthorized(detail: &str) -> Problem {
    Problem::new(
        StatusCode::UNAUTHORIZED,
        "unauthorized",
        "Who asks is not known",
        detail,
    )
}

fn too_many() -> Problem {
    Problem::new(
        StatusCode::TOO_MANY_REQUESTS,
        "too-many-requests",
        "Too many requests in a second",
        "more requests come than http.rate_per_second and http.rate_burst allow: try again later",
    )
    .retry_after(1)
}

fn too_slow(within: Duration) -> Problem {
    Problem::new(
        StatusCode::REQUEST_TIMEOUT,
        "request-timeout",
        "The request took too long",
        format!(
            "it was not sent and done within {within:?} (http.request_timeout); what it asked for may still \
             happen: look, or send the same again"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_gives_its_burst_at_once_and_then_its_rate() {
        let rate = Rate::new(10, 3);
        let at = |ms: u64| rate.take_at(ms * 1_000_000);
        assert_eq!([at(0), at(0), at(0), at(0)], [true, true, true, false]);
        assert_eq!(
            [at(99), at(100), at(100), at(150)],
            [false, true, false, false]
        );
        assert_eq!(
            [at(10_000), at(10_000), at(10_000), at(10_000)],
            [true, true, true, false]
        );
    }

    #[test]
    fn a_token_is_itself_and_nothing_else_and_is_not_shown() {
        let token = Token::new(b" 0123456789abcdef\n").unwrap();
        assert!(token.is(b"0123456789abcdef"));
        for other in [
            "",
            "0123456789abcde",
            "0123456789abcdeF",
            "0123456789abcdef0",
        ] {
            assert!(!token.is(other.as_bytes()), "{other}");
        }
        assert!(!format!("{token:?}").contains("0123"));
        assert!(Token::new(b"short").is_none());
    }

    #[test]
    fn only_names_of_this_machine_and_addresses_are_local() {
        for host in [
            "localhost",
            "LOCALHOST:7480",
            "127.0.0.1",
            "127.0.0.1:1",
            "[::1]:7480",
            "[::1]",
            "10.0.0.7:80",
        ] {
            assert!(is_local(host.as_bytes()), "{host}");
        }
        for host in [
            "example.com",
            "localhost.example.com:7480",
            "127.0.0.1.example.com",
            "a:b",
        ] {
            assert!(!is_local(host.as_bytes()), "{host}");
        }
    }
}
