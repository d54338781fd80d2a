//! S2: a source lease is returned only after the last read of it.

use super::Invariant;
use crate::sim::fact::{Fact, LeaseNo, PoolNo};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Default)]
pub(crate) struct TornSource {
    pages: BTreeMap<LeaseNo, BTreeSet<(PoolNo, u32)>>,
}

impl Invariant for TornSource {
    fn name(&self) -> &'static str {
        "S2 no torn source"
    }

    fn see(&mut self, _: u64, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Leased {
                lease, pool, pages, ..
            } => {
                let pages = pages.iter().map(|page| (*pool, *page)).collect();
                self.pages.insert(*lease, pages);
            }
            Fact::Freed { lease } => {
                self.pages.remove(lease);
            }
            Fact::Read { lease } if !self.pages.contains_key(lease) => {
                return Err(format!("lease {lease} was read after it was returned"));
            }
            Fact::StillRead { lease } => {
                let pages = self.pages.get(lease).cloned().unwrap_or_default();
                let others = self.pages.iter().filter(|(other, _)| *other != lease);
                let shared = others.flat_map(|(_, p)| p).any(|page| pages.contains(page));
                if !shared {
                    return Err(format!(
                        "lease {lease} came back, and a job can still read it"
                    ));
                }
            }
            _ => {}
        }
        Ok(())
    }
}
