//! Who judges a world: it sees facts, in order, and asks every invariant about each.

use super::fact::Fact;
use super::invariants::{Invariant, all};
use kvroom_actors::room::Outcome;

pub(crate) struct Oracle {
    invariants: Vec<Box<dyn Invariant>>,
    violation: Option<String>,
    ended: u64,
    done: u64,
}

impl Oracle {
    pub(crate) fn new() -> Self {
        Oracle {
            invariants: all(),
            violation: None,
            ended: 0,
            done: 0,
        }
    }

    pub(crate) fn see(&mut self, now: u64, fact: &Fact) {
        if let Fact::Published { outcome, .. } = fact {
            self.ended += 1;
            self.done += u64::from(*outcome == Outcome::Done);
        }
        for invariant in &mut self.invariants {
            if let Err(why) = invariant.see(now, fact)
                && self.violation.is_none()
            {
                self.violation = Some(format!("{}: {why}", invariant.name()));
            }
        }
    }

    /// The first promise that was broken.
    pub(crate) fn violation(&self) -> Option<&str> {
        self.violation.as_deref()
    }

    /// Outcomes delivered, and how many of them were `Done`.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.ended, self.done)
    }
}
