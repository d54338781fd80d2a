//! S5: an outcome is delivered exactly once and by its deadline (L1), a lease is returned at most once,
//! and a key is used once.

use super::Invariant;
use crate::sim::fact::{Fact, LeaseNo, Life};
use kvroom_actors::ids::{LifeId, RoomKey};
use kvroom_actors::room::Role;
use std::collections::{BTreeMap, BTreeSet};

/// A clock is looked at once a second, and a slow shard takes its time.
const LATE: u64 = 4_000_000_000;

#[derive(Default)]
pub(crate) struct OneEnd {
    /// Rooms without an outcome, and when it is due on their node's running clock.
    waiting: BTreeMap<(Life, LifeId), u64>,
    /// With an outcome, and not returned.
    ended: BTreeSet<(Life, LifeId)>,
    over: BTreeSet<(Life, LifeId)>,
    keys: BTreeSet<(Life, RoomKey, bool)>,
    returned: BTreeSet<LeaseNo>,
}

impl Invariant for OneEnd {
    fn name(&self) -> &'static str {
        "S5 one end"
    }

    fn see(&mut self, _: u64, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Started {
                at,
                life,
                key,
                role,
                due,
                ..
            } => {
                if !self.keys.insert((*at, *key, *role == Role::Sender)) {
                    return Err(format!("the key of {key} was used twice by {at:?}"));
                }
                self.waiting.insert((*at, *life), *due);
            }
            Fact::Published {
                at, life, running, ..
            } => {
                let Some(due) = self.waiting.remove(&(*at, *life)) else {
                    return Err(format!("{at:?} {life:?} was told two outcomes"));
                };
                if *running > due + LATE {
                    let late = (running - due) / 1_000_000;
                    return Err(format!(
                        "{at:?} {life:?} had its outcome {late} ms late (L1)"
                    ));
                }
                self.ended.insert((*at, *life));
            }
            Fact::Returned { at, life, leases } => {
                let room = (*at, *life);
                if !self.ended.remove(&room) || !self.over.insert(room) {
                    return Err(format!(
                        "{room:?} returned its leases without an outcome, or twice"
                    ));
                }
                if let Some(lease) = leases.iter().find(|l| !self.returned.insert(**l)) {
                    return Err(format!("lease {lease} was returned twice"));
                }
            }
            Fact::Died { at, .. } => self.waiting.retain(|(life, _), _| life != at),
            Fact::Left0ver { at, .. } => {
                let stuck = self.waiting.keys().find(|(life, _)| life == at);
                if let Some(room) = stuck {
                    return Err(format!("{room:?} never had an outcome (L1)"));
                }
            }
            _ => {}
        }
        Ok(())
    }
}
