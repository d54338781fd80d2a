//! L3: each side learns of a failure of the other at most once; correct nodes never accuse each other.

use super::Invariant;
use crate::sim::fact::{Fact, Life};
use kvroom_actors::ids::LifeId;
use kvroom_actors::peer::message::ClaimTag;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Default)]
pub(crate) struct ToldOnce {
    failed: BTreeSet<ClaimTag>,
    /// In each session: it is said again in a new one, until it is answered.
    aborted: BTreeMap<(u64, ClaimTag), u32>,
    /// Sessions that a shard has heard of, and rooms that have an outcome; in which order.
    met: BTreeMap<(Life, u64), u64>,
    ended: BTreeMap<(Life, LifeId), u64>,
    claims: BTreeMap<ClaimTag, (Life, LifeId)>,
    order: u64,
    complete: BTreeSet<(ClaimTag, &'static str)>,
}

impl Invariant for ToldOnce {
    fn name(&self) -> &'static str {
        "L3 told once"
    }

    fn see(&mut self, _: u64, fact: &Fact) -> Result<(), String> {
        self.order += 1;
        match fact {
            Fact::Opened {
                at, life, claim, ..
            } => {
                self.claims.insert(*claim, (*at, *life));
            }
            Fact::Met { at, session } => {
                self.met.insert((*at, *session), self.order);
            }
            Fact::Published { at, life, .. } => {
                self.ended.insert((*at, *life), self.order);
            }
            Fact::Said {
                at,
                name,
                claim,
                session,
                ..
            } => {
                let again = match *name {
                    "Failed" => !self.failed.insert(*claim),
                    "Abort" => {
                        let said = self.aborted.entry((*session, *claim)).or_default();
                        *said += 1;
                        match *said {
                            1 => false,
                            2 => !self.may_cross(*at, *session, claim),
                            _ => true,
                        }
                    }
                    "Bound" | "Complete" | "Accepted" | "Rejected" => {
                        !self.complete.insert((*claim, name))
                    }
                    _ => false,
                };
                if again {
                    return Err(format!("{name} was said twice of {claim:?}"));
                }
            }
            Fact::Accused { at, why } => {
                return Err(format!("{at:?} accuses a correct peer: {why}"));
            }
            _ => {}
        }
        Ok(())
    }
}

impl ToldOnce {
    /// The word of a room that ended before its shard heard of a session, and that of the shard, which
    /// then says it again: they may cross.
    fn may_cross(&self, at: Life, session: u64, claim: &ClaimTag) -> bool {
        let met = self.met.get(&(at, session));
        let room = self.claims.get(claim);
        let ended = room.and_then(|room| self.ended.get(room));
        met.zip(ended).is_some_and(|(met, ended)| ended < met)
    }
}
