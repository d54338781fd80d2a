//! The dashboard: `GET /`, one page with everything in it.
//!
//! ```text
//!   page/index.html ◀─ page/style.css     joined once, in the order below
//!                   ◀─ page/*.js          ─▶ GET /   (no data in it)
//!                                               └─▶ the browser asks /v1/…, /readyz, /livez
//! ```
//!
//! Rules: the page loads nothing but what is in it, and its policy has the browser refuse the rest: the
//! script and the style are allowed by their hash, requests go to this daemon alone, and no string becomes
//! markup (trusted types). It holds no data, so that it is served to who has no token; the browser asks a
//! person for the token when a request is answered with 401.

mod page;

use super::http::Routes;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use page::PAGE;
use utoipa_axum::{router::OpenApiRouter, routes};

/// The routes of this part.
pub(crate) fn routes() -> Routes {
    OpenApiRouter::new().routes(routes!(dashboard))
}

/// The dashboard.
///
/// One page that draws what the other routes say. It holds no data and needs no token; the requests that it
/// makes need one where the daemon has one.
#[utoipa::path(
    get,
    path = "/",
    tag = "dashboard",
    security(()),
    params(("if-none-match" = Option<String>, Header, description = "The `etag` of the page that the browser has")),
    responses(
        (status = 200, description = "The page", body = String, content_type = "text/html"),
        (status = 304, description = "The browser has this page"),
    )
)]
async fn dashboard(headers: HeaderMap) -> Response {
    let known = headers
        .get_all(header::IF_NONE_MATCH)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|tag| tag.trim().trim_start_matches("W/") == PAGE.etag);
    let always = [
        (header::ETAG, PAGE.etag.as_str()),
        // Asked for again each time: after an upgrade of the daemon the page is its own.
        (header::CACHE_CONTROL, "no-cache"),
        (header::CONTENT_SECURITY_POLICY, PAGE.policy.as_str()),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
    ];
    if known {
        return (StatusCode::NOT_MODIFIED, always).into_response();
    }
    let kind = [(header::CONTENT_TYPE, "text/html; charset=utf-8")];
    (always, kind, PAGE.html.as_str()).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;
    use axum::http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, IF_NONE_MATCH};

    #[tokio::test]
    async fn the_page_comes_with_its_policy_and_is_not_sent_again_to_who_has_it() {
        let first = dashboard(HeaderMap::new()).await;
        assert_eq!(first.status(), StatusCode::OK);
        assert_eq!(
            first.headers().get(CONTENT_TYPE).unwrap(),
            "text/html; charset=utf-8"
        );
        assert_eq!(
            first.headers().get(CONTENT_SECURITY_POLICY).unwrap(),
            PAGE.policy.as_str()
        );

        let mut asks = HeaderMap::new();
        asks.insert(IF_NONE_MATCH, first.headers().get(ETAG).unwrap().clone());
        assert_eq!(dashboard(asks).await.status(), StatusCode::NOT_MODIFIED);
        let mut asks = HeaderMap::new();
        asks.insert(
            IF_NONE_MATCH,
            HeaderValue::from_static("\"of another build\""),
        );
        assert_eq!(dashboard(asks).await.status(), StatusCode::OK);
    }
}
