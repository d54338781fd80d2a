//! S1: after a destination lease is returned, no byte of its pages is changed by that claim.

use super::Invariant;
use crate::sim::fact::{Fact, LeaseNo, Life, PoolNo};
use kvroom_actors::ids::LifeId;
use kvroom_actors::peer::message::ClaimTag;
use std::collections::BTreeMap;

#[derive(Default)]
pub(crate) struct LateWrite {
    /// Who has a page to write, of those that were not given back.
    owners: BTreeMap<(PoolNo, u32), LeaseNo>,
    pages: BTreeMap<LeaseNo, (PoolNo, Vec<u32>)>,
    rooms: BTreeMap<(Life, LifeId), Vec<LeaseNo>>,
    claims: BTreeMap<ClaimTag, Vec<LeaseNo>>,
}

impl Invariant for LateWrite {
    fn name(&self) -> &'static str {
        "S1 no late write"
    }

    fn see(&mut self, _: u64, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Leased {
                lease, pool, pages, ..
            } => {
                for page in pages {
                    self.owners.insert((*pool, *page), *lease);
                }
                self.pages.insert(*lease, (*pool, pages.clone()));
            }
            Fact::Freed { lease } => {
                if let Some((pool, pages)) = self.pages.remove(lease) {
                    for page in pages {
                        let at = (pool, page);
                        if self.owners.get(&at) == Some(lease) {
                            self.owners.remove(&at);
                        }
                    }
                }
            }
            Fact::Started {
                at, life, wants, ..
            } => {
                let leases = wants.iter().map(|(lease, ..)| *lease).collect();
                self.rooms.insert((*at, *life), leases);
            }
            Fact::Opened {
                at, life, claim, ..
            } => {
                let leases = self.rooms.get(&(*at, *life)).cloned().unwrap_or_default();
                self.claims.insert(*claim, leases);
            }
            Fact::Wrote {
                claim, pool, page, ..
            } => {
                let owner = self.owners.get(&(*pool, *page));
                let leases = self.claims.get(claim);
                let its_own = match (owner, leases) {
                    (None, _) | (_, None) => false,
                    (Some(owner), Some(leases)) => leases.contains(owner),
                };
                if !its_own {
                    return Err(format!(
                        "{claim:?} wrote page {page} of pool {pool}, which is {owner:?} now"
                    ));
                }
            }
            Fact::Canary {
                node,
                page,
                found,
                left,
            } => {
                return Err(format!(
                    "page {page} of node {node} was free and changed: {found:016x}, left {left:016x}"
                ));
            }
            _ => {}
        }
        Ok(())
    }
}
