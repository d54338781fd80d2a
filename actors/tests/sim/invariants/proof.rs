//! S6: a lease is returned only when nothing of its room can touch memory any more.

use super::Invariant;
use crate::sim::fact::{Fact, Life};
use kvroom_actors::ids::LifeId;
use kvroom_actors::peer::message::ClaimTag;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Default)]
pub(crate) struct Proof {
    /// Asked for, and neither opened nor refused.
    asked: BTreeMap<(Life, LifeId), u32>,
    /// Gates whose witness was not made.
    open: BTreeMap<(Life, LifeId), ClaimTag>,
    closed: BTreeSet<ClaimTag>,
    inside: BTreeMap<ClaimTag, u32>,
    jobs: BTreeMap<(Life, LifeId, u64), ClaimTag>,
    sums: BTreeSet<(Life, LifeId)>,
}

impl Invariant for Proof {
    fn name(&self) -> &'static str {
        "S6 proof, not patience"
    }

    fn see(&mut self, _: u64, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Asked { at, life, .. } => *self.asked.entry((*at, *life)).or_default() += 1,
            Fact::NotOpened { at, life, .. } => self.answered((*at, *life)),
            Fact::Opened {
                at, life, claim, ..
            } => {
                self.answered((*at, *life));
                self.open.insert((*at, *life), *claim);
            }
            Fact::Entered { claim } => {
                if self.closed.contains(claim) {
                    return Err(format!(
                        "a writer entered {claim:?}, whose gate had proven closed"
                    ));
                }
                *self.inside.entry(*claim).or_default() += 1;
            }
            Fact::Left { claim } => {
                let left = match self.inside.get_mut(claim) {
                    Some(inside) if *inside > 0 => {
                        *inside -= 1;
                        *inside
                    }
                    _ => 0,
                };
                if left == 0 {
                    self.inside.remove(claim);
                }
            }
            Fact::GateClosed { claim, .. } => {
                if self.inside.contains_key(claim) {
                    return Err(format!(
                        "{claim:?} has a writer inside, and its gate proved closed"
                    ));
                }
                self.closed.insert(*claim);
                self.open.retain(|_, open| open != claim);
            }
            Fact::Posted {
                at,
                life,
                job,
                claim,
                ..
            } => {
                self.jobs.insert((*at, *life, *job), *claim);
            }
            Fact::Said {
                name: "Quiesced",
                claim,
                ..
            } => {
                if let Some((job, _)) = self.jobs.iter().find(|(_, of)| *of == claim) {
                    return Err(format!(
                        "Quiesced was said of {claim:?}, and {job:?} is out"
                    ));
                }
            }
            Fact::JobOver { at, life, job } => {
                self.jobs.remove(&(*at, *life, *job));
            }
            Fact::Summing { at, life, on: true } => {
                self.sums.insert((*at, *life));
            }
            Fact::Summing { at, life, .. } => {
                self.sums.remove(&(*at, *life));
            }
            Fact::Died { at, .. } => self.jobs.retain(|(life, ..), _| life != at),
            Fact::Returned { at, life, .. } => return self.returned((*at, *life)),
            _ => {}
        }
        Ok(())
    }
}

impl Proof {
    fn answered(&mut self, room: (Life, LifeId)) {
        if let Some(asked) = self.asked.get_mut(&room) {
            *asked = asked.saturating_sub(1);
        }
    }

    fn returned(&self, room: (Life, LifeId)) -> Result<(), String> {
        let (at, life) = room;
        let job = self.jobs.range((at, life, 0)..).next();
        if let Some((job, _)) = job.filter(|((a, l, _), _)| (*a, *l) == room) {
            return Err(format!("{room:?} returned its leases, and {job:?} is out"));
        }
        if let Some(claim) = self.open.get(&room) {
            let inside = self.inside.get(claim).copied().unwrap_or(0);
            return Err(format!(
                "{room:?} returned its leases; the gate of {claim:?} is not closed, {inside} inside"
            ));
        }
        if self.asked.get(&room).is_some_and(|asked| *asked > 0) {
            return Err(format!(
                "{room:?} returned its leases, and a claim can still be sent"
            ));
        }
        if self.sums.contains(&room) {
            return Err(format!(
                "{room:?} returned its leases while they are read for a sum"
            ));
        }
        Ok(())
    }
}
