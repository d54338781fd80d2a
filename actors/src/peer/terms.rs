//! Whether a claim of a peer can be served, and what it means to a sender room here.

use super::message::{Claim, Part};
use crate::ids::PoolId;
use crate::reason::{Code, Reason};
use crate::room::event::{LegTerms, SectionShape};
use kvroom_kernels::layout::{PoolKind, PoolLayout, explain};

/// A pool of this node, as far as pairing needs it.
#[derive(Clone, Copy, Debug)]
pub struct LocalPool<'a> {
    /// Its id here.
    pub id: PoolId,
    /// Its layout.
    pub layout: &'a PoolLayout,
}

/// Pairs a claim's sections with this node's pools by name, and checks every number in it.
///
/// # Errors
/// A reason that names the section and what is wrong; the claim is to be refused with it.
pub fn terms_of<'a>(
    claim: &Claim,
    remote: impl Fn(PoolId) -> Option<&'a PoolLayout>,
    local: impl Fn(&str) -> Option<LocalPool<'a>>,
) -> Result<LegTerms, Reason> {
    let mut sections = Vec::with_capacity(claim.sections.len());
    for (i, section) in claim.sections.iter().enumerate() {
        let theirs = known(&remote, section.pool, i)?;
        let ours = paired(&local, theirs)?;
        if theirs.kind != PoolKind::Kv {
            return Err(bad(format!(
                "section {i} names pool {:?}, which is aux",
                theirs.name
            )));
        }
        if let Some(at) = section.pages.iter().position(|page| *page >= theirs.pages) {
            return Err(bad(format!(
                "section {i} names page {} (place {at}), pool {:?} has {}",
                section.pages[at], theirs.name, theirs.pages
            )));
        }
        let per = u64::from(theirs.page_tokens.max(1));
        if !claim.skip.is_multiple_of(per) {
            return Err(bad(format!(
                "skip = {} is not at a page boundary of pool {:?} ({per} tokens a page)",
                claim.skip, theirs.name
            )));
        }
        let want = claim.total.div_ceil(per).saturating_sub(claim.skip / per);
        if want != section.pages.len() as u64 {
            return Err(Reason::new(
                Code::LengthMismatch,
                format!(
                    "section {i}: tokens {}..{} fill {want} pages of pool {:?}, the claim lists {}",
                    claim.skip,
                    claim.total,
                    theirs.name,
                    section.pages.len()
                ),
            ));
        }
        let (layer, layer_end) = match claim.part {
            Part::Whole => (0, theirs.layers),
            Part::Layers { first, end } => (first, end),
        };
        if layer >= layer_end || layer_end > theirs.layers {
            return Err(bad(format!(
                "section {i}: layers {layer}..{layer_end} are not in the pool's 0..{}",
                theirs.layers
            )));
        }
        sections.push(SectionShape {
            pool: ours.id,
            layer,
            layer_end,
            page_tokens: theirs.page_tokens,
            page_bytes: theirs.page_bytes,
            pages: section.pages.len() as u32,
        });
    }
    if let Some(aux) = claim.aux {
        let theirs = known(&remote, aux.pool, usize::MAX)?;
        paired(&local, theirs)?;
        if aux.row >= theirs.pages {
            return Err(bad(format!("aux row {} of {}", aux.row, theirs.pages)));
        }
    }
    Ok(LegTerms {
        receivers: claim.receivers,
        rank: claim.rank,
        skip: claim.skip,
        total: claim.total,
        sections: sections.into_boxed_slice(),
        aux: claim.aux.is_some(),
        checksum: claim.checksum,
    })
}

fn known<'a>(
    remote: impl Fn(PoolId) -> Option<&'a PoolLayout>,
    pool: PoolId,
    section: usize,
) -> Result<&'a PoolLayout, Reason> {
    remote(pool).ok_or_else(|| match section {
        usize::MAX => bad(format!("the aux row's pool {} was not announced", pool.0)),
        i => bad(format!("section {i}: pool {} was not announced", pool.0)),
    })
}

fn paired<'a>(
    local: impl Fn(&str) -> Option<LocalPool<'a>>,
    theirs: &PoolLayout,
) -> Result<LocalPool<'a>, Reason> {
    let Some(ours) = local(&theirs.name) else {
        return Err(Reason::new(
            Code::LayoutMismatch,
            format!("this node has no pool {:?}", theirs.name),
        ));
    };
    explain(ours.layout, theirs)
        .map_err(|mismatch| Reason::new(Code::LayoutMismatch, mismatch.to_string()))?;
    Ok(ours)
}

fn bad(text: String) -> Reason {
    Reason::new(Code::BadClaim, text)
}
