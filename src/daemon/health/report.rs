//! What `/livez` and `/readyz` answer.

use super::STALE;
use serde::Serialize;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use utoipa::ToSchema;

/// The last result.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct Report {
    /// Whether every check passed.
    pub(crate) ok: bool,
    /// Each check, those that failed first.
    pub(crate) checks: Vec<Check>,
    /// When the result was made, in milliseconds since 1970.
    pub(crate) at_ms: u64,
    /// Canary rooms that were started in the life of this process. A request starts none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) canaries_started: Option<u64>,
    /// The nodes that this one has met. None of them makes this node unready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) peers: Option<Vec<PeerHealth>>,
}

/// One check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct Check {
    /// What is looked at: `lane 0`, `canary tcp lane 0`, `pool kv`.
    pub(crate) name: String,
    /// Whether it is well.
    pub(crate) ok: bool,
    /// Since when it is not, in milliseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) since_ms: Option<u64>,
    /// Why it is not; or, of a check that passed, what is worth knowing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) why: Option<String>,
    /// What to do.
    #[serde(rename = "do", skip_serializing_if = "Option::is_none")]
    pub(crate) action: Option<String>,
}

/// A node that this one has met.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct PeerHealth {
    /// Its name.
    pub(crate) name: String,
    /// `up`, `resuming` or `down`.
    pub(crate) state: String,
    /// Why it is not up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) why: Option<String>,
    /// Pages of this node that it may still touch, of rooms past their drain deadline.
    pub(crate) quarantined_pages: u64,
    /// Whether that is its whole budget (`limits.quarantined_pages_per_peer`): then new rooms that
    /// receive from it are refused.
    pub(crate) over_budget: bool,
}

/// A result, and when it was made.
#[derive(Clone, Debug)]
pub(crate) struct Finished {
    pub(crate) at: Instant,
    pub(crate) at_ms: u64,
    pub(crate) checks: Vec<Check>,
    pub(crate) canaries_started: u64,
    pub(crate) canaries: Vec<CanaryRuns>,
    pub(crate) peers: Vec<PeerHealth>,
}

/// Runs of a canary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CanaryRuns {
    /// `tcp lane 0`, `shm in`.
    pub(crate) name: String,
    /// Both ends had their memory back, and the bytes were right.
    pub(crate) passed: u64,
    /// It was refused or aborted, or other bytes came.
    pub(crate) failed: u64,
    /// It was not started: the node had as many rooms as it may.
    pub(crate) full: u64,
    /// How long the last run took, if it passed.
    pub(crate) took: Option<Duration>,
}

/// Milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX))
}

fn failed(name: &str, since_ms: u64, why: String, action: &str) -> Check {
    Check {
        name: name.to_owned(),
        ok: false,
        since_ms: Some(since_ms),
        why: Some(why),
        action: Some(action.to_owned()),
    }
}

impl Finished {
    /// Before anything was looked at.
    pub(crate) fn first() -> Finished {
        let at_ms = now_ms();
        Finished {
            at: Instant::now(),
            at_ms,
            checks: vec![failed(
                "health",
                at_ms,
                "nothing has been looked at yet".into(),
                "wait: it takes less than a second",
            )],
            canaries_started: 0,
            canaries: Vec::new(),
            peers: Vec::new(),
        }
    }

    /// Whether every check passed.
    pub(crate) fn ok(&self) -> bool {
        self.checks.iter().all(|c| c.ok)
    }

    fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.at)
    }

    fn late(&self, name: &str, who: &str, action: &str, now: Instant) -> Option<Check> {
        let age = self.age(now);
        let why = || format!("{who} has said nothing for {age:.1?}");
        (age > STALE).then(|| failed(name, self.at_ms, why(), action))
    }

    /// For `/livez`.
    pub(crate) fn live(&self, now: Instant) -> Report {
        let action = "restart the daemon: its watchdog does not run any more";
        let mut checks = self.checks.clone();
        checks.extend(self.late("watchdog", "the watchdog's thread", action, now));
        self.report(checks, None)
    }

    /// For `/readyz`.
    pub(crate) fn ready(&self, stopping: bool, live: &Finished, now: Instant) -> Report {
        let mut checks = self.checks.clone();
        let action = "look at /livez, and at the log of the watchdog: the threads of the daemon are \
                      blocked, or get no processor";
        checks.extend(self.late("health", "the task that looks after health", action, now));
        for check in live.live(now).checks {
            if !check.ok && !checks.iter().any(|c| c.name == check.name && !c.ok) {
                checks.retain(|c| c.name != check.name);
                checks.push(check);
            }
        }
        if stopping {
            let why = "the daemon was told to stop".to_owned();
            let action = "send rooms elsewhere; those that are here drain";
            checks.push(failed("stopping", now_ms(), why, action));
        }
        self.report(checks, Some(self))
    }

    fn report(&self, mut checks: Vec<Check>, whole: Option<&Finished>) -> Report {
        checks.sort_by_key(|check| check.ok);
        Report {
            ok: checks.iter().all(|c| c.ok),
            checks,
            at_ms: self.at_ms,
            canaries_started: whole.map(|w| w.canaries_started),
            peers: whole.map(|w| w.peers.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed() -> Finished {
        let checks = vec![Check {
            name: "lane 0".into(),
            ok: true,
            since_ms: None,
            why: None,
            action: None,
        }];
        Finished {
            checks,
            ..Finished::first()
        }
    }

    fn red(report: &Report) -> Vec<&str> {
        let red = report.checks.iter().filter(|c| !c.ok);
        red.map(|c| &*c.name).collect()
    }

    #[test]
    fn a_result_that_is_too_old_is_red_whatever_it_says() {
        let (last, live) = (passed(), passed());
        let soon = last.at + STALE;
        assert!(last.ready(false, &live, soon).ok);
        let late = last.ready(false, &live, soon + Duration::from_secs(1));
        assert!(!late.ok);
        assert_eq!(red(&late), ["health", "watchdog"]);
        assert!(!last.live(soon + Duration::from_secs(1)).ok);
    }

    #[test]
    fn what_is_not_alive_is_not_ready_and_is_named_once() {
        let mut live = passed();
        live.checks = vec![failed("lane 0", 1, "it stands still".into(), "restart")];
        let report = passed().ready(false, &live, live.at);
        assert_eq!((report.checks.len(), red(&report)), (1, vec!["lane 0"]));
    }

    #[test]
    fn a_daemon_that_stops_is_alive_and_not_ready() {
        let (last, live) = (passed(), passed());
        assert_eq!(red(&last.ready(true, &live, last.at)), ["stopping"]);
        assert!(live.live(live.at).ok);
    }

    #[test]
    fn before_the_first_look_nothing_is_well() {
        let first = Finished::first();
        assert!(!first.ok());
        assert!(!first.ready(false, &passed(), first.at).ok);
        assert!(!first.live(first.at).ok);
    }
}
