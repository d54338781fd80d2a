//! TODO-health.

use super::http::Routes;

/// The routes of this part.
pub(crate) fn routes() -> Routes {
    Routes::new()
}
