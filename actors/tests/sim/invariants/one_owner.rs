//! S4: two live leases never both hold a page, unless both only read.

use super::Invariant;
use crate::sim::fact::{Fact, LeaseNo, PoolNo};
use std::collections::BTreeMap;

#[derive(Default)]
pub(crate) struct OneOwner {
    /// Whose a page is: the lease, and whether it may write.
    holders: BTreeMap<(PoolNo, u32), BTreeMap<LeaseNo, bool>>,
    pages: BTreeMap<LeaseNo, (usize, PoolNo, Vec<u32>)>,
}

impl Invariant for OneOwner {
    fn name(&self) -> &'static str {
        "S4 one owner"
    }

    fn see(&mut self, _: u64, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Leased {
                node,
                lease,
                pool,
                write,
                pages,
            } => {
                for page in pages {
                    let holders = self.holders.entry((*pool, *page)).or_default();
                    let bad = holders.iter().find(|(_, writes)| **writes || *write);
                    if let Some((other, _)) = bad {
                        return Err(format!(
                            "lease {lease} got page {page} of pool {pool}, which lease {other} has"
                        ));
                    }
                    holders.insert(*lease, *write);
                }
                self.pages.insert(*lease, (*node, *pool, pages.clone()));
            }
            Fact::Freed { lease } => {
                let Some((_, pool, pages)) = self.pages.remove(lease) else {
                    return Err(format!("lease {lease} was given back twice"));
                };
                for page in pages {
                    if let Some(holders) = self.holders.get_mut(&(pool, page)) {
                        holders.remove(lease);
                    }
                }
            }
            // Its leases died with it; what may still write there is for S1 to say.
            Fact::Died { at, .. } => {
                let of = self.pages.iter().filter(|(_, (node, ..))| *node == at.node);
                let gone: Vec<LeaseNo> = of.map(|(lease, _)| *lease).collect();
                for lease in gone {
                    if let Some((_, pool, pages)) = self.pages.remove(&lease) {
                        for page in pages {
                            if let Some(holders) = self.holders.get_mut(&(pool, page)) {
                                holders.remove(&lease);
                            }
                        }
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }
}
