//! L3: each side learns of a failure of the other at most once; correct nodes never accuse each other.

use super::Invariant;
use crate::sim::fact::Fact;
use kvroom_actors::peer::message::ClaimTag;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Default)]
pub(crate) struct ToldOnce {
    failed: BTreeSet<ClaimTag>,
    /// In each session: it is said again in a new one, until it is answered. The room's own word and
    /// that of its shard, which says it again for a new session, may cross.
    aborted: BTreeMap<(u64, ClaimTag), u32>,
    complete: BTreeSet<(ClaimTag, &'static str)>,
}

impl Invariant for ToldOnce {
    fn name(&self) -> &'static str {
        "L3 told once"
    }

    fn see(&mut self, _: u64, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Said {
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
                        *said > 2
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
