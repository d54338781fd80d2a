//! Requests, counted by route and by the class of their answer.

use crate::daemon::App;
use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::Response;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Classes of an answer's status.
const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

/// Counts for each route of the document, and for all else together.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    /// Sorted by path.
    routes: OnceLock<Box<[(String, Classes)]>>,
    other: Classes,
}

type Classes = [AtomicU64; CLASSES.len()];

/// Requests of one route that were answered so.
#[derive(Debug)]
pub(super) struct Answered {
    pub(super) route: String,
    pub(super) status: &'static str,
    pub(super) count: u64,
}

impl Requests {
    /// These are the routes. Said once, before the first request.
    pub(crate) fn know(&self, paths: impl IntoIterator<Item = String>) {
        let mut paths: Vec<String> = paths.into_iter().collect();
        paths.sort();
        paths.dedup();
        let routes = paths.into_iter().map(|path| (path, Classes::default()));
        let _ = self.routes.set(routes.collect());
    }

    fn add(&self, route: Option<&str>, status: u16) {
        let routes = self.routes.get().map_or(&[][..], |routes| routes);
        let known = route.and_then(|route| {
            let at = routes.binary_search_by(|(path, _)| path.as_str().cmp(route));
            Some(&routes[at.ok()?].1)
        });
        let class = usize::from((status / 100).clamp(1, 5)) - 1;
        known.unwrap_or(&self.other)[class].fetch_add(1, Ordering::Relaxed);
    }

    /// Every route with the classes that it ever answered with; if none, with the good one.
    pub(super) fn read(&self) -> Vec<Answered> {
        let routes = self.routes.get().map_or(&[][..], |routes| routes);
        let routes = routes
            .iter()
            .map(|(path, classes)| (path.as_str(), classes));
        let mut all = Vec::new();
        for (route, classes) in routes.chain([("other", &self.other)]) {
            for (status, count) in CLASSES.into_iter().zip(classes) {
                let count = count.load(Ordering::Relaxed);
                if count > 0 || status == "2xx" {
                    all.push(Answered {
                        route: route.to_owned(),
                        status,
                        count,
                    });
                }
            }
        }
        all
    }
}

/// A layer that counts.
pub(crate) async fn count(State(app): State<App>, request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().cloned();
    let response = next.run(request).await;
    let route = route.as_ref().map(MatchedPath::as_str);
    app.requests().add(route, response.status().as_u16());
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_under_their_route_and_strangers_together() {
        let requests = Requests::default();
        requests.add(Some("/early"), 200);
        requests.know(["/b".to_owned(), "/a/{id}".to_owned()]);
        for (route, status) in [
            (Some("/a/{id}"), 200),
            (Some("/a/{id}"), 204),
            (Some("/b"), 503),
            (Some("/made/up"), 404),
            (None, 404),
            (None, 999),
        ] {
            requests.add(route, status);
        }
        let read = requests.read();
        let read: Vec<_> = read
            .iter()
            .map(|a| (a.route.as_str(), a.status, a.count))
            .collect();
        assert_eq!(
            read,
            [
                ("/a/{id}", "2xx", 2),
                ("/b", "2xx", 0),
                ("/b", "5xx", 1),
                ("other", "2xx", 1),
                ("other", "4xx", 2),
                ("other", "5xx", 1),
            ]
        );
    }
}
