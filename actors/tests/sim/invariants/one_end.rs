//! S5: an outcome is delivered at most once, a lease is returned at most once and with an outcome, and a
//! key is used once. That there is an outcome, and by when, is L1.

use super::Invariant;
use crate::sim::fact::{Fact, LeaseNo, Life};
use kvroom_actors::ids::{LifeId, RoomKey};
use kvroom_actors::room::Role;
use std::collections::BTreeSet;

#[derive(Default)]
pub(crate) struct OneEnd {
    /// Without an outcome.
    waiting: BTreeSet<(Life, LifeId)>,
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
                ..
            } => {
                if !self.keys.insert((*at, *key, *role == Role::Sender)) {
                    return Err(format!("the key of {key} was used twice by {at:?}"));
                }
                self.waiting.insert((*at, *life));
            }
            Fact::Published { at, life, .. } => {
                if !self.waiting.remove(&(*at, *life)) {
                    return Err(format!("{at:?} {life:?} was told two outcomes"));
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
            _ => {}
        }
        Ok(())
    }
}
