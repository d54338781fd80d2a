//! Whether a claim of a peer can be served, and what it means to a sender room here.
//!
//! ```text
//!   claim ──┐                        ┌─▶ LegTerms        numbers, for the pure room
//!   their pools, and contents ──▶ served
//!   this node's, and contents ──┘    └─▶ Slices          layouts and parts, for whoever copies
//! ```

use super::message::{Claim, Part, Section};
use crate::ids::PoolId;
use crate::reason::{Code, Reason};
use crate::room::event::{LegTerms, SectionShape, SliceShape};
use crate::slice::Slice;
use kvroom_kernels::layout::cube::{self, CubeLayout, Dim};
use kvroom_kernels::layout::{PoolKind, PoolLayout, explain};
use kvroom_kernels::plan::cube::Part as CubePart;
use std::sync::Arc;

/// A pool of this node, as far as pairing needs it.
#[derive(Clone, Copy, Debug)]
pub struct LocalPool<'a> {
    /// Its id here.
    pub id: PoolId,
    /// Its layout.
    pub layout: &'a PoolLayout,
    /// What its bytes mean, if that was said.
    pub content: Option<&'a Arc<CubeLayout>>,
}

/// A pool of the peer, as it was announced.
#[derive(Clone, Copy, Debug)]
pub struct TheirPool<'a> {
    /// Its layout.
    pub layout: &'a PoolLayout,
    /// What its bytes mean, if that was said.
    pub content: Option<&'a Arc<CubeLayout>>,
}

/// What is carried of each section of a claim, by its number; none of a section for nothing of it. With
/// the tokens that the claim's pages hold.
pub type Slices = Arc<[Option<Slice>]>;

/// What a claim means here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Served {
    /// To the sender room.
    pub terms: LegTerms,
    /// To whoever copies, if parts of cells are carried.
    pub slices: Option<Slices>,
}

/// Pairs a claim's sections with this node's pools by name, and checks every number in it.
///
/// # Errors
/// A reason that names the section and what is wrong; the claim is to be refused with it.
pub fn terms_of<'a>(
    claim: &Claim,
    remote: impl Fn(PoolId) -> Option<TheirPool<'a>>,
    local: impl Fn(&str) -> Option<LocalPool<'a>>,
) -> Result<Served, Reason> {
    if let Part::Slices(parts) = &claim.part
        && parts.len() != claim.sections.len()
    {
        let (parts, sections) = (parts.len(), claim.sections.len());
        return Err(bad(format!("{parts} parts for {sections} sections")));
    }
    let mut sections = Vec::with_capacity(claim.sections.len());
    let mut slices = Vec::new();
    for (i, section) in claim.sections.iter().enumerate() {
        let theirs = known(&remote, section.pool, i)?;
        check_pages(claim, i, section, theirs)?;
        let range = match &claim.part {
            Part::Slices(parts) => {
                let slice = match &parts[i] {
                    None => None,
                    Some(part) => {
                        let (ours, slice) = sliced(claim, i, part, theirs, &local)?;
                        sections.push(slice_shape(i, section, ours, &slice)?);
                        Some(slice)
                    }
                };
                slices.push(slice);
                continue;
            }
            Part::Whole => 0..theirs.layout.layers,
            Part::Layers { first, end } => *first..*end,
        };
        let ours = paired(&local, theirs)?;
        let theirs = theirs.layout;
        if range.is_empty() || range.end > theirs.layers {
            return Err(bad(format!(
                "section {i}: layers {}..{} are not in the pool's 0..{}",
                range.start, range.end, theirs.layers
            )));
        }
        sections.push(SectionShape {
            pool: ours.id,
            layer: range.start,
            layer_end: range.end,
            page_tokens: theirs.page_tokens,
            page_bytes: theirs.page_bytes,
            pages: section.pages.len() as u32,
            slice: None,
        });
    }
    if let Some(aux) = claim.aux {
        let theirs = known(&remote, aux.pool, usize::MAX)?;
        paired(&local, theirs)?;
        let rows = theirs.layout.pages;
        if aux.row >= rows {
            return Err(bad(format!("aux row {} of {rows}", aux.row)));
        }
    }
    let terms = LegTerms {
        receivers: claim.receivers,
        rank: claim.rank,
        skip: claim.skip,
        total: claim.total,
        sections: sections.into_boxed_slice(),
        aux: claim.aux.is_some(),
        checksum: claim.checksum,
    };
    let is_sliced = matches!(claim.part, Part::Slices(_));
    let slices = is_sliced.then(|| slices.into());
    Ok(Served { terms, slices })
}

/// Whether the pages of a section are there, and as many as the claim's tokens have.
fn check_pages(
    claim: &Claim,
    i: usize,
    section: &Section,
    theirs: TheirPool<'_>,
) -> Result<(), Reason> {
    let layout = theirs.layout;
    if let Some(at) = section.pages.iter().position(|page| *page >= layout.pages) {
        return Err(bad(format!(
            "section {i} names page {} (place {at}), pool {:?} has {}",
            section.pages[at], layout.name, layout.pages
        )));
    }
    let named = section.pages.len() as u64;
    let is_state = theirs
        .content
        .is_some_and(|c| c.kind == cube::CubeKind::State);
    if is_state && matches!(claim.part, Part::Slices(_)) {
        return match named {
            1 => Ok(()),
            _ => Err(Reason::new(
                Code::LengthMismatch,
                format!(
                    "section {i}: a request has one row of pool {:?}, the claim lists {named}",
                    layout.name
                ),
            )),
        };
    }
    if layout.kind != PoolKind::Kv {
        return Err(bad(format!(
            "section {i} names pool {:?}, which is aux",
            layout.name
        )));
    }
    let per = u64::from(layout.page_tokens.max(1));
    if !claim.skip.is_multiple_of(per) {
        return Err(bad(format!(
            "skip = {} is not at a page boundary of pool {:?} ({per} tokens a page)",
            claim.skip, layout.name
        )));
    }
    let want = claim.total.div_ceil(per).saturating_sub(claim.skip / per);
    if want != named {
        return Err(Reason::new(
            Code::LengthMismatch,
            format!(
                "section {i}: tokens {}..{} fill {want} pages of pool {:?}, the claim lists {named}",
                claim.skip, claim.total, layout.name,
            ),
        ));
    }
    Ok(())
}

/// What the claim wants of a section, if this node has it.
fn sliced<'a>(
    claim: &Claim,
    i: usize,
    part: &CubePart,
    theirs: TheirPool<'a>,
    local: impl Fn(&str) -> Option<LocalPool<'a>>,
) -> Result<(PoolId, Slice), Reason> {
    let name = &theirs.layout.name;
    let mismatch = |text| Err(Reason::new(Code::LayoutMismatch, text));
    let Some(ours) = local(name) else {
        return mismatch(format!("this node has no pool {name:?}"));
    };
    let (src, dst) = match (ours.content, theirs.content) {
        (Some(src), Some(dst)) => (src, dst),
        (None, _) => {
            return mismatch(format!(
                "pool {name:?} of this node does not say what its bytes mean (`with_content`), and \
                 section {i} wants a part of them"
            ));
        }
        (_, None) => {
            return Err(bad(format!(
                "section {i} names a part of pool {name:?}, whose content was not announced"
            )));
        }
    };
    cube::explain(src, dst)
        .map_err(|mismatch| Reason::new(Code::LayoutMismatch, mismatch.to_string()))?;
    let (named, planes) = (part.heads.len(), dst.planes.len());
    if named != planes || part.is_empty() {
        return Err(bad(format!(
            "section {i} names heads of {named} planes in layers {}; pool {name:?} has {planes} planes, \
             and nothing is said by no part",
            part.layers
        )));
    }
    holds(i, "receiver", dst, part).map_err(bad)?;
    holds(i, "sender", src, part).map_err(|text| Reason::new(Code::LayoutMismatch, text))?;
    let slice = Slice {
        src: Arc::clone(src),
        dst: Arc::clone(dst),
        part: part.clone(),
        tokens: claim.skip..claim.total,
    };
    Ok((ours.id, slice))
}

/// Whether one side holds all of a part, which names as many planes.
fn holds(i: usize, side: &str, layout: &CubeLayout, part: &CubePart) -> Result<(), String> {
    let name = &layout.name;
    let (asked, held) = (part.layers, layout.layers.span());
    if !held.holds(asked) {
        return Err(format!(
            "section {i} wants layers {asked} of pool {name:?}; the {side} holds {held}"
        ));
    }
    for (plane, (asked, of)) in part.heads.iter().zip(&layout.planes).enumerate() {
        let held = of.heads.span();
        if !held.holds(*asked) {
            return Err(format!(
                "section {i} wants heads {asked} of plane {plane} of pool {name:?}; the {side} holds \
                 {held}"
            ));
        }
    }
    Ok(())
}

/// What the room needs to know of a part that both sides hold.
fn slice_shape(
    i: usize,
    section: &Section,
    pool: PoolId,
    slice: &Slice,
) -> Result<SectionShape, Reason> {
    let (src, dst, part) = (&*slice.src, &*slice.dst, &slice.part);
    let Some(in_source) = src.pool_layout() else {
        return Err(bad(format!(
            "section {i}: pool {:?} has no cells",
            src.name
        )));
    };
    let each = in_source.layers / src.layers.held.max(1);
    let together = each <= 1 || src.order.slower(Dim::Layer, Dim::Plane);
    let row = dst.kind.is_row();
    let granules = u64::from(dst.page_granules());
    Ok(SectionShape {
        pool,
        layer: part.layers.start.saturating_sub(dst.layers.first),
        layer_end: part.layers.end.saturating_sub(dst.layers.first),
        page_tokens: dst.page_tokens,
        page_bytes: part.granule_bytes(dst).saturating_mul(granules),
        pages: section.pages.len() as u32,
        slice: Some(SliceShape {
            section: i as u16,
            source_layer: part.layers.start.saturating_sub(src.layers.first),
            pool_layers: if together { each } else { 0 },
            page_tokens: src.page_tokens,
            granule: dst.granule,
            row,
        }),
    })
}

fn known<'a>(
    remote: impl Fn(PoolId) -> Option<TheirPool<'a>>,
    pool: PoolId,
    section: usize,
) -> Result<TheirPool<'a>, Reason> {
    remote(pool).ok_or_else(|| match section {
        usize::MAX => bad(format!("the aux row's pool {} was not announced", pool.0)),
        i => bad(format!("section {i}: pool {} was not announced", pool.0)),
    })
}

/// The pool of this node whose cells are copied whole.
fn paired<'a>(
    local: impl Fn(&str) -> Option<LocalPool<'a>>,
    theirs: TheirPool<'a>,
) -> Result<LocalPool<'a>, Reason> {
    let mismatch = |text| Reason::new(Code::LayoutMismatch, text);
    let name = &theirs.layout.name;
    let Some(ours) = local(name) else {
        return Err(mismatch(format!("this node has no pool {name:?}")));
    };
    explain(ours.layout, theirs.layout).map_err(|error| mismatch(error.to_string()))?;
    if let (Some(here), Some(there)) = (ours.content, theirs.content)
        && let Some(what) = cells_differ(here, there)
    {
        return Err(mismatch(format!(
            "cells of pool {name:?} are as large on both sides and do not mean the same: {what}; claim \
             parts of them"
        )));
    }
    Ok(ours)
}

/// What two contents whose cells are as large differ in, if it matters to whole cells.
fn cells_differ(here: &CubeLayout, there: &CubeLayout) -> Option<String> {
    if let Err(error) = cube::explain(here, there) {
        return Some(error.to_string());
    }
    let differ = |what: &str, a: &dyn std::fmt::Display, b: &dyn std::fmt::Display| {
        Some(format!("{what} {a} here, {b} there"))
    };
    if here.layers != there.layers {
        return differ("layers", &here.layers, &there.layers);
    }
    for (i, (a, b)) in here.planes.iter().zip(&there.planes).enumerate() {
        if a.heads != b.heads {
            return differ(&format!("heads of plane {i}"), &a.heads, &b.heads);
        }
    }
    let inside = |c: &CubeLayout| c.order.0.into_iter().filter(|dim| *dim != Dim::Page);
    if !inside(here).eq(inside(there)) {
        return differ("order", &here.order, &there.order);
    }
    None
}

fn bad(text: String) -> Reason {
    Reason::new(Code::BadClaim, text)
}

#[cfg(test)]
mod tests;
