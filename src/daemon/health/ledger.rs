//! Since when each check fails.

use super::report::Check;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// What a look at one thing found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    /// What was looked at.
    pub(crate) name: String,
    /// What is wrong with it.
    pub(crate) wrong: Option<Wrong>,
    /// What is worth knowing though it is well.
    pub(crate) note: Option<String>,
}

/// What is wrong, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wrong {
    /// For how long it is known to be so.
    pub(crate) since: Duration,
    /// Why.
    pub(crate) why: String,
    /// What to do.
    pub(crate) action: &'static str,
}

impl Finding {
    /// All is well.
    pub(crate) fn well(name: impl Into<String>) -> Finding {
        Finding {
            name: name.into(),
            wrong: None,
            note: None,
        }
    }

    /// Something is wrong.
    pub(crate) fn wrong(name: impl Into<String>, wrong: Wrong) -> Finding {
        Finding {
            wrong: Some(wrong),
            ..Finding::well(name)
        }
    }

    /// With something that is worth knowing.
    pub(crate) fn with(mut self, note: impl Into<String>) -> Finding {
        self.note = Some(note.into());
        self
    }
}

/// Since when what failed last has failed.
#[derive(Debug, Default)]
pub(crate) struct Ledger(BTreeMap<String, Instant>);

impl Ledger {
    /// The checks of one look; `now` by both clocks.
    pub(crate) fn enter(
        &mut self,
        findings: Vec<Finding>,
        now: Instant,
        now_ms: u64,
    ) -> Vec<Check> {
        let before = std::mem::take(&mut self.0);
        let mut checks = Vec::with_capacity(findings.len());
        for Finding { name, wrong, note } in findings {
            let Some(wrong) = wrong else {
                checks.push(Check {
                    name,
                    ok: true,
                    since_ms: None,
                    why: note,
                    action: None,
                });
                continue;
            };
            let known = now.checked_sub(wrong.since).unwrap_or(now);
            let since = before.get(&name).map_or(known, |since| known.min(*since));
            let ago = now.saturating_duration_since(since).as_millis();
            let ago = u64::try_from(ago).unwrap_or(u64::MAX);
            checks.push(Check {
                name: name.clone(),
                ok: false,
                since_ms: Some(now_ms.saturating_sub(ago)),
                why: Some(wrong.why),
                action: Some(wrong.action.to_owned()),
            });
            self.0.insert(name, since);
        }
        checks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(since: u64) -> Vec<Finding> {
        let wrong = Wrong {
            since: Duration::from_millis(since),
            why: "it stands still".into(),
            action: "restart",
        };
        vec![Finding::wrong("lane 0", wrong)]
    }

    #[test]
    fn a_check_says_since_when_it_fails_and_begins_anew_when_it_was_well() {
        let (mut ledger, start) = (Ledger::default(), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        let mut since = |findings, ms| ledger.enter(findings, at(ms), ms)[0].since_ms;
        assert_eq!(since(wrong(2_000), 5_000), Some(3_000));
        // It turned once, and stands still again: it was never well.
        assert_eq!(since(wrong(2_000), 9_000), Some(3_000));
        assert_eq!(since(vec![Finding::well("lane 0")], 9_500), None);
        assert_eq!(since(wrong(0), 10_000), Some(10_000));
    }
}
