//! HTTP: listeners, limits, who may ask, and the routes of all parts.
//!
//! ```text
//!   listen ─▶ guard ─▶ extract ─▶ routes of the parts ─▶ JSON │ Problem
//!                                   └▶ document ─▶ GET /openapi.json
//! ```
//!
//! Rules: every error is a [`Problem`]; a client that goes away in the middle of its request leaves
//! nothing behind that another could not see and end.

mod answering;
mod document;
pub(crate) mod duration;
mod extract;
mod guard;
mod halves;
mod id;
mod listen;
mod problem;
mod tls;
#[cfg(test)]
mod wedged;

pub(crate) use answering::{BEGINNING, QUESTION, answered, still};
pub(crate) use extract::{Json, Path, Query};
pub(crate) use id::Id;
pub(crate) use listen::Bound;
pub(crate) use problem::Problem;

use super::App;
use super::config::{Config, Http, Listen};
use super::tasks::Without;
use crate::cli::exit::Failure;
use crate::cli::secret;
use axum::http::{HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Router};
use guard::{Guard, Rate, Token};
use listen::Serving;
use std::sync::Arc;
use tokio::sync::{Semaphore, watch};
use tokio_rustls::TlsAcceptor;
use tower_http::catch_panic::CatchPanicLayer;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// What a part brings along: its routes, with their entries in the OpenAPI document.
pub(crate) type Routes = OpenApiRouter<App>;

/// HTTP that is about to be served: sockets listen, secrets were read.
pub(crate) struct Front {
    bound: Vec<Bound>,
    tls: Option<TlsAcceptor>,
    token: Option<Token>,
}

impl Front {
    /// Reads what must be there, and listens.
    pub(crate) fn open(config: &Config) -> Result<Front, Failure> {
        let tls = tls::acceptor(&config.http)?;
        let token = token(&config.http)?;
        guarded_or_local(&config.http, token.is_some())?;
        let bound = config
            .http
            .listen
            .iter()
            .map(Bound::new)
            .collect::<Result<_, _>>()?;
        Ok(Front { bound, tls, token })
    }

    /// Where it listens.
    pub(crate) fn addresses(&self) -> Vec<String> {
        self.bound.iter().map(Bound::address).collect()
    }

    /// The first port.
    pub(crate) fn port(&self) -> Option<u16> {
        self.bound.iter().find_map(Bound::port)
    }

    /// Serves from now on.
    pub(crate) fn serve(self, app: &App) -> Server {
        let (stop, stopped) = watch::channel(false);
        let settings = &app.config().http;
        let guard = Guard {
            token: self.token,
            known_by_certificate: settings.tls_client_ca.is_some(),
            rate: settings
                .rate_per_second
                .map(|rate| Rate::new(rate, settings.rate_burst.unwrap_or(rate))),
            concurrent: Semaphore::new(settings.max_concurrent.min(Semaphore::MAX_PERMITS)),
            max_concurrent: settings.max_concurrent,
            request_timeout: settings.request_timeout,
            long_poll_max: settings.long_poll_max,
        };
        let router = router(app.clone(), guard);
        let serving = Serving::new(settings, self.tls, router, stopped);
        for bound in self.bound {
            let name = format!("http listener {}", bound.address());
            let guard = app.health().tasks().enter(&name, Without::NotAlive);
            tokio::spawn(Arc::clone(&serving).accept(bound, guard));
        }
        Server { serving, stop }
    }
}

/// HTTP that is being served.
pub(crate) struct Server {
    serving: Arc<Serving>,
    stop: watch::Sender<bool>,
}

impl Server {
    /// Answers what is being asked, and closes.
    pub(crate) async fn end(self) {
        let _ = self.stop.send(true);
        self.serving.end().await;
    }
}

fn routes() -> Routes {
    OpenApiRouter::new()
        .merge(super::rooms::routes())
        .merge(super::pools::routes())
        .merge(super::peers::routes())
        .merge(super::events::routes())
        .merge(super::health::routes())
        .merge(super::metrics::routes())
        .merge(super::recording::routes())
        .merge(super::dashboard::routes())
        .routes(routes!(openapi))
}

/// This document.
#[utoipa::path(get, path = "/openapi.json", tag = "document", security(()),
    responses((status = 200, description = "An OpenAPI 3.1 document of all routes.", body = Object)))]
async fn openapi(Extension(document): Extension<Arc<[u8]>>) -> Response {
    let kind = [(header::CONTENT_TYPE, "application/json")];
    (kind, document.to_vec()).into_response()
}

fn router(app: App, guard: Guard) -> Router {
    let (router, document) = routes().split_for_parts();
    app.requests().know(document.paths.paths.keys().cloned());
    let count = axum::middleware::from_fn_with_state(app.clone(), super::metrics::count);
    let document: Arc<[u8]> = document::to_json(&document::complete(document)).into();
    router
        .layer(Extension(document))
        .fallback(no_such_route)
        .method_not_allowed_fallback(no_such_method)
        .layer(axum::middleware::from_fn_with_state(
            Arc::new(guard),
            guard::admit,
        ))
        .layer(CatchPanicLayer::custom(panicked))
        .layer(axum::middleware::from_fn(guard::log))
        .layer(count)
        .with_state(app)
}

async fn no_such_route(uri: Uri) -> Problem {
    let path: String = uri.path().chars().take(256).collect();
    let text = format!("there is nothing at {path:?}: GET /openapi.json says what there is");
    Problem::not_found("no-such-route", "There is nothing here", text)
}

async fn no_such_method(method: Method) -> Problem {
    Problem::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "no-such-method",
        "Not by this method",
        format!("it cannot be asked by {method}: the header Allow says how"),
    )
}

fn panicked(what: Box<dyn std::any::Any + Send + 'static>) -> Response {
    let text = what.downcast_ref::<String>().map(String::as_str);
    let text = text
        .or_else(|| what.downcast_ref::<&str>().copied())
        .unwrap_or("(no text)");
    tracing::error!("a request panicked: {text}");
    Problem::defect("the request met a defect of the daemon; its log says more. Please report it")
        .into_response()
}

fn token(http: &Http) -> Result<Option<Token>, Failure> {
    let Some(path) = &http.token_file else {
        return Ok(None);
    };
    let shown = path.display();
    let text = secret::read(path, secret::MOST)
        .map_err(|e| Failure::Usage(format!("http.token_file {shown}: cannot be read: {e}")))?;
    if HeaderValue::from_bytes(text.trim_ascii()).is_err() {
        return Err(Failure::Usage(format!(
            "http.token_file {shown}: the token has bytes that no token has"
        )));
    }
    Token::new(&text).map(Some).ok_or_else(|| {
        let least = Token::LEAST;
        Failure::Usage(format!(
            "http.token_file {shown}: a token has at least {least} bytes"
        ))
    })
}

/// Whoever reaches the daemon can make it read and write the engines' memory.
fn guarded_or_local(http: &Http, token: bool) -> Result<(), Failure> {
    if token || http.tls_client_ca.is_some() {
        return Ok(());
    }
    for listen in &http.listen {
        if let Listen::Tcp(address) = listen
            && !address.ip().is_loopback()
        {
            return Err(Failure::Usage(format!(
                "http.listen is {address}, which other machines reach, and anybody may ask: set http.token_file or \
                 http.tls_client_ca, or listen on 127.0.0.1"
            )));
        }
    }
    Ok(())
}
