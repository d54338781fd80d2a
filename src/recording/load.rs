//! A recording as load: who asked for what, when, and gave it up when.

use super::Recording;
use crate::record::{Begun, LifeId, Told, What};
use crate::{Code, RoomKey, StateName};
use kvroom_actors::room::Role;
use std::collections::BTreeMap;
use std::time::Duration;

/// One room that was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Since the first request of the recording.
    pub at: Duration,
    /// Its key.
    pub key: RoomKey,
    /// Which side was recorded.
    pub role: Role,
    /// Pages that were to be moved, 1 or more. Of a sender: those of the largest claim that came, or
    /// of its chunks if none did.
    pub pages: u64,
    /// Its caller gave it up so long after it was asked for.
    pub aborted: Option<Duration>,
    /// It was done so long after it was asked for.
    pub done: Option<Duration>,
}

/// The requests of a recording, in the order of time. Rooms whose start is not recorded are not among
/// them.
pub fn requests(recording: &Recording) -> Vec<Request> {
    let mut found: BTreeMap<LifeId, (Duration, Request)> = BTreeMap::new();
    for entry in &recording.entries {
        let What::Room(step) = &entry.what else {
            continue;
        };
        if step.to == StateName::Done
            && let Some((began, request)) = found.get_mut(&step.life)
        {
            let took = entry.at.saturating_sub(*began);
            request.done.get_or_insert(took);
        }
        match &step.told {
            Told::Start(begun) => {
                let pages = match begun {
                    Begun::Sender { .. } => 1,
                    Begun::Receiver { pages, .. } => (*pages).max(1),
                };
                let request = Request {
                    at: entry.at,
                    key: step.key,
                    role: step.role,
                    pages,
                    aborted: None,
                    done: None,
                };
                found.insert(step.life, (entry.at, request));
            }
            Told::Push(chunk) if step.role == Role::Sender => {
                if let Some((_, request)) = found.get_mut(&step.life) {
                    let end = chunk.tokens.1.div_ceil(u64::from(chunk.page_tokens.max(1)));
                    request.pages = request.pages.max(end);
                }
            }
            Told::Bind { terms, .. } => {
                if let Some((_, request)) = found.get_mut(&step.life) {
                    let pages = terms.sections.iter().map(|s| u64::from(s.pages)).sum();
                    request.pages = request.pages.max(pages);
                }
            }
            Told::Abort(reason) => {
                if let Some((began, request)) = found.get_mut(&step.life)
                    && matches!(reason.code, Code::Requested | Code::HandleDropped)
                    && request.aborted.is_none()
                {
                    request.aborted = Some(entry.at.saturating_sub(*began));
                }
            }
            _ => {}
        }
    }
    let mut requests: Vec<Request> = found.into_values().map(|(_, request)| request).collect();
    requests.sort_by_key(|request| request.at);
    let first = requests
        .first()
        .map_or(Duration::ZERO, |request| request.at);
    for request in &mut requests {
        request.at = request.at.saturating_sub(first);
    }
    requests
}
