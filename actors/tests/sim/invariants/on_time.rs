//! L1: every room has an outcome, by its deadline.

use super::Invariant;
use crate::sim::fact::{Fact, Life};
use kvroom_actors::ids::LifeId;
use std::collections::BTreeMap;

/// A clock is looked at once a second, and a slow shard takes its time.
const LATE: u64 = 4_000_000_000;

#[derive(Default)]
pub(crate) struct OnTime {
    /// Rooms without an outcome, and when it is due on their node's running clock.
    waiting: BTreeMap<(Life, LifeId), u64>,
}

impl Invariant for OnTime {
    fn name(&self) -> &'static str {
        "L1 on time"
    }

    fn see(&mut self, _: u64, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Started { at, life, due, .. } => {
                self.waiting.insert((*at, *life), *due);
            }
            Fact::Published {
                at, life, running, ..
            } => {
                if let Some(due) = self.waiting.remove(&(*at, *life))
                    && *running > due + LATE
                {
                    let late = (running - due) / 1_000_000;
                    return Err(format!("{at:?} {life:?} had its outcome {late} ms late"));
                }
            }
            Fact::Died { at, .. } => self.waiting.retain(|(life, _), _| life != at),
            Fact::Left0ver { at, .. } => {
                let stuck = self.waiting.keys().find(|(life, _)| life == at);
                if let Some(room) = stuck {
                    return Err(format!("{room:?} never had an outcome"));
                }
            }
            _ => {}
        }
        Ok(())
    }
}
