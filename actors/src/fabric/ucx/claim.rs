//! A claim of a peer that is written through UCX: where its pages are in the peer's memory.
//!
//! ```text
//!   greeting ─▶ FarPool: layout, address of its first byte, remote key
//!   Claim    ─▶ UcxClaim: for each section its pool and pages ── plan ──▶ runs ── address ──▶ puts
//! ```
//!
//! Rules: an address is made of a range that lies in pages which the claim names, and of nothing else. On
//! most transports a remote key protects nothing: this check is all that keeps a put where it belongs.

use super::super::Fact;
use crate::copy::job::Place;
use crate::copy::pieces::Pieces;
use crate::ids::ClaimNo;
use crate::memory::{CopyError, named_pages};
use crate::peer::hello::FarKey;
use kvroom_kernels::coverage::Rect;
use kvroom_kernels::layout::PoolLayout;
use std::cell::Cell;
use std::sync::Arc;

/// A pool of a peer, as its offer names it.
#[derive(Debug)]
pub(crate) struct FarPool {
    pub(crate) layout: Arc<PoolLayout>,
    pub(crate) key: FarKey,
}

/// Pages of one section of a claim.
#[derive(Debug)]
pub(crate) struct FarSection {
    pub(crate) pool: Arc<FarPool>,
    pub(crate) pages: Arc<[u32]>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct UcxClaim {
    pub(crate) number: ClaimNo,
    pub(crate) sections: Vec<FarSection>,
    pub(crate) aux: Option<FarSection>,
}

impl UcxClaim {
    /// A section; [`Rect::AUX`] is the aux row.
    pub(crate) fn section(&self, section: u16) -> Option<&FarSection> {
        if section == Rect::AUX {
            self.aux.as_ref()
        } else {
            self.sections.get(usize::from(section))
        }
    }

    /// Plans the copies of a job onto the pages that the claim names.
    ///
    /// # Errors
    /// [`Fact::Errored`] if the two ends do not fit.
    pub(crate) fn plan(&self, layout: &Arc<PoolLayout>, place: &Place) -> Result<Pieces, Fact> {
        let Some(section) = self.section(place.section) else {
            return Err(Fact::Errored(format!(
                "{} has no section {}",
                self.number, place.section
            )));
        };
        super::super::plan_onto(layout, place, &section.pool.layout, &section.pages)
    }
}

impl FarSection {
    /// Where a range of the pool is in the peer's memory. `cursor` remembers where in the list the last page
    /// was found.
    ///
    /// # Errors
    ///
    /// [`CopyError`]: it does not lie in pages that the claim names.
    pub(crate) fn address(
        &self,
        offset: u64,
        bytes: u64,
        cursor: &Cell<usize>,
    ) -> Result<u64, CopyError> {
        named_pages(&self.pool.layout, &self.pages, offset, bytes, cursor)?;
        // A peer that names an address at the end of the address space is not written to.
        let outside = CopyError::OutOfPool {
            end: crate::memory::End::Destination,
            offset,
            bytes,
            pool_bytes: u64::MAX - self.pool.key.base,
        };
        let end = self.pool.key.base.checked_add(offset);
        let end = end.filter(|at| at.checked_add(bytes).is_some());
        end.ok_or(outside)
    }
}
