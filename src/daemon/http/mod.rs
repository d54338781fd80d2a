//! HTTP: listeners, limits, who may ask, and the routes of all parts.

mod id;
mod problem;

pub(crate) use id::Id;
pub(crate) use problem::Problem;

use super::App;
use crate::cli::exit::Failure;
use axum::Router;
use utoipa_axum::router::OpenApiRouter;

/// What a part brings along: its routes, with their entries in the OpenAPI document.
pub(crate) type Routes = OpenApiRouter<App>;

/// Serves until a signal says to stop.
pub(crate) async fn serve(app: App) -> Result<(), Failure> {
    let listener = tokio::net::TcpListener::bind(app.config().http)
        .await
        .map_err(|e| Failure::Failed(format!("cannot listen on {}: {e}", app.config().http)))?;
    axum::serve(listener, router(app))
        .await
        .map_err(|e| Failure::Failed(format!("HTTP ended: {e}")))
}

fn router(app: App) -> Router {
    let (router, _document) = OpenApiRouter::new()
        .merge(super::rooms::routes())
        .merge(super::pools::routes())
        .merge(super::health::routes())
        .merge(super::metrics::routes())
        .merge(super::dashboard::routes())
        .split_for_parts();
    router.with_state(app)
}
