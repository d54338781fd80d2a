//! What a plan knows before it moves: the checks, and everything that is computed once.

use super::cut::Cut;
use super::nest::Nest;
use super::{CubePlanError, PageList, Part};
use crate::layout::cube::{CubeLayout, Dim, PlaneMap, Span, explain};
use crate::plan::End;
use std::ops::Range;
use std::sync::Arc;

/// One outer index of the walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    Layer,
    /// A page of the destination.
    Page,
    Plane,
    Head,
    /// A segment within a page of the destination, where source pages are smaller.
    Segment,
    Token,
}

/// One plane as it is walked, or all of them if they lie at fixed distances.
#[derive(Clone, Debug)]
pub(super) struct Lane {
    /// Where rows lie; `base` is at the first layer and head of the part.
    pub(super) src: PlaneMap,
    pub(super) dst: PlaneMap,
    /// From a plane to the next, if the lane is all of them.
    pub(super) plane_step: (u64, u64),
    /// From a segment to the next within a page.
    pub(super) part: (u64, u64),
    /// What the first segment leaves out.
    pub(super) skip: (u64, u64),
    pub(super) heads: u32,
    /// The inner loops in the first segment, in one in the middle, and in the last.
    pub(super) nests: [Nest; 3],
}

#[derive(Debug)]
pub(super) struct Table {
    pub(super) src_pages: Arc<[u32]>,
    pub(super) src_start: usize,
    pub(super) dst_pages: Arc<[u32]>,
    pub(super) dst_start: usize,
    /// One for each plane if `apart`, else one.
    pub(super) lanes: Vec<Lane>,
    pub(super) apart: bool,
    pub(super) layers: u32,
    pub(super) planes: u32,
    /// The outer indices, slowest first, and how many.
    pub(super) levels: [Level; 6],
    pub(super) depth: usize,
    pub(super) segments: usize,
    /// Those of them that have all granules of a segment.
    pub(super) whole: Range<usize>,
    /// Whether pages are the fastest outer index, and one segment on both sides.
    pub(super) by_page: bool,
    /// Granules in the first segment, in one in the middle, and in the last.
    pub(super) granules: [u32; 3],
    /// Granules that the first segment leaves out.
    pub(super) skip: u32,
    /// Segments in a whole page, and where in its page the first segment is.
    pub(super) src_parts: u32,
    pub(super) dst_parts: u32,
    pub(super) src_first: u32,
    pub(super) dst_first: u32,
}

impl Table {
    /// The table, and the bytes of the plan.
    pub(super) fn new(
        src: &CubeLayout,
        dst: &CubeLayout,
        from: PageList,
        to: PageList,
        tokens: Range<u64>,
        part: &Part,
    ) -> Result<(Table, u64), CubePlanError> {
        let src_maps = maps(End::Source, src)?;
        let dst_maps = maps(End::Destination, dst)?;
        explain(src, dst)?;
        within(End::Source, src, part)?;
        within(End::Destination, dst, part)?;
        let granules = granules(src, &from, &to, tokens)?;
        pages(End::Source, src, &from, &granules)?;
        pages(End::Destination, dst, &to, &granules)?;

        let (src_page, dst_page) = (src.page_granules(), dst.page_granules());
        let cut = Cut::new(&granules, src_page, dst_page).ok_or(CubePlanError::TooLarge)?;
        let mut lanes = Vec::with_capacity(src_maps.len());
        for (i, heads) in part.heads.iter().enumerate() {
            if !heads.is_empty() {
                let src = begin(src_maps[i], src, i, part.layers, *heads);
                let dst = begin(dst_maps[i], dst, i, part.layers, *heads);
                lanes.push(cut.lane(src, dst, heads.len()));
            }
        }
        if lanes.is_empty() || part.layers.is_empty() {
            return Err(CubePlanError::Empty);
        }
        let planes = lanes.len();
        let apart = !join(&mut lanes);
        let (levels, depth, inner) = levels(dst, &lanes, apart, cut.dst_parts > 1);
        let layers = part.layers.len();
        let planes = u32::try_from(planes).map_err(|_| CubePlanError::TooLarge)?;
        for lane in &mut lanes {
            for (nest, tokens) in lane.nests.iter_mut().zip(cut.granules) {
                for dim in inner.iter().rev() {
                    let (a, b) = (&lane.src, &lane.dst);
                    match dim {
                        Dim::Layer => nest.wrap(layers, a.layer, b.layer),
                        Dim::Plane => nest.wrap(planes, lane.plane_step.0, lane.plane_step.1),
                        Dim::Head => nest.wrap(lane.heads, a.head, b.head),
                        Dim::Token => nest.wrap(tokens, a.token, b.token),
                        Dim::Page => {}
                    }
                }
            }
        }
        let copies = if apart { 1 } else { u64::from(planes) };
        let mut row = 0_u64;
        for lane in &lanes {
            let bytes = u64::from(lane.heads).checked_mul(lane.src.row);
            let bytes = bytes.and_then(|b| b.checked_mul(copies));
            row = bytes
                .and_then(|b| b.checked_add(row))
                .ok_or(CubePlanError::TooLarge)?;
        }
        let total = row
            .checked_mul(u64::from(layers))
            .and_then(|bytes| bytes.checked_mul(granules.end - granules.start))
            .ok_or(CubePlanError::TooLarge)?;
        let table = Table {
            src_pages: from.list,
            src_start: from.range.start,
            dst_pages: to.list,
            dst_start: to.range.start,
            lanes,
            apart,
            layers,
            planes,
            levels,
            depth,
            segments: cut.segments,
            whole: cut.whole_segments(),
            by_page: cut.src_parts == cut.dst_parts && levels[depth - 1] == Level::Page,
            granules: cut.granules,
            skip: cut.skip,
            src_parts: cut.src_parts,
            dst_parts: cut.dst_parts,
            src_first: cut.src_first,
            dst_first: cut.dst_first,
        };
        Ok((table, total))
    }
}

/// A validated layout's maps.
pub(super) fn maps(end: End, layout: &CubeLayout) -> Result<Vec<PlaneMap>, CubePlanError> {
    layout
        .validate()
        .map_err(|error| CubePlanError::Layout { end, error })?;
    layout.maps().ok_or(CubePlanError::TooLarge)
}

/// Whether one end holds the part.
pub(super) fn within(end: End, layout: &CubeLayout, part: &Part) -> Result<(), CubePlanError> {
    let (asked, held) = (part.layers, layout.layers.span());
    if !held.holds(asked) {
        return Err(CubePlanError::Layers { end, asked, held });
    }
    let (named, planes) = (part.heads.len(), layout.planes.len());
    if named != planes {
        return Err(CubePlanError::Planes { named, planes });
    }
    for (plane, (asked, p)) in part.heads.iter().zip(&layout.planes).enumerate() {
        let (asked, held) = (*asked, p.heads.span());
        if !held.holds(asked) {
            let error = CubePlanError::Heads {
                end,
                plane,
                asked,
                held,
            };
            return Err(error);
        }
    }
    Ok(())
}

/// The tokens as granules of the request; for row pools, those of the rows.
pub(super) fn granules(
    layout: &CubeLayout,
    from: &PageList,
    to: &PageList,
    tokens: Range<u64>,
) -> Result<Range<u64>, CubePlanError> {
    if layout.kind.is_row() {
        let (src, dst) = (from.range.len(), to.range.len());
        if src != dst {
            return Err(CubePlanError::PageCount {
                end: End::Destination,
                needed: src as u64,
                named: dst,
            });
        }
        let granules = (src as u64).checked_mul(u64::from(layout.page_granules()));
        let granules = granules.ok_or(CubePlanError::TooLarge)?;
        return not_empty(0..granules);
    }
    let granule = u64::from(layout.granule);
    if tokens.start > tokens.end || !tokens.start.is_multiple_of(granule) {
        return Err(CubePlanError::Tokens {
            start: tokens.start,
            stop: tokens.end,
            granule: layout.granule,
        });
    }
    not_empty(tokens.start / granule..tokens.end.div_ceil(granule))
}

fn not_empty(range: Range<u64>) -> Result<Range<u64>, CubePlanError> {
    match range.start < range.end {
        true => Ok(range),
        false => Err(CubePlanError::Empty),
    }
}

/// Whether a list names pages of the pool, and as many as hold the granules.
pub(super) fn pages(
    end: End,
    layout: &CubeLayout,
    pages: &PageList,
    granules: &Range<u64>,
) -> Result<(), CubePlanError> {
    let range = pages.range.clone();
    let Some(used) = pages.list.get(range.clone()) else {
        return Err(CubePlanError::ListRange {
            end,
            start: range.start,
            stop: range.end,
            len: pages.list.len(),
        });
    };
    let page = u64::from(layout.page_granules());
    let needed = granules.end.div_ceil(page) - granules.start / page;
    if needed != used.len() as u64 {
        let named = used.len();
        return Err(CubePlanError::PageCount { end, needed, named });
    }
    match used.iter().position(|page| *page >= layout.pages) {
        Some(at) => Err(CubePlanError::PageOutOfRange {
            end,
            position: range.start + at,
            page: used[at],
            pages: layout.pages,
        }),
        None => Ok(()),
    }
}

/// A map that begins at the part's first layer and head, which the layout holds.
fn begin(map: PlaneMap, of: &CubeLayout, plane: usize, layers: Span, heads: Span) -> PlaneMap {
    let layer = u64::from(layers.start.saturating_sub(of.layers.first));
    let head = u64::from(heads.start.saturating_sub(of.planes[plane].heads.first));
    PlaneMap {
        base: map.base + layer * map.layer + head * map.head,
        ..map
    }
}

/// Makes one lane of all planes if they have one shape and lie at one distance. False if not.
fn join(lanes: &mut Vec<Lane>) -> bool {
    if lanes.len() > 1 {
        let shape = |lane: &Lane| {
            let zero = |map: PlaneMap| PlaneMap { base: 0, ..map };
            (zero(lane.src), zero(lane.dst), lane.heads)
        };
        // Bases grow with the plane: planes follow each other in the order of the layout.
        let distance = |pair: &[Lane]| {
            let src = pair[1].src.base.checked_sub(pair[0].src.base);
            let dst = pair[1].dst.base.checked_sub(pair[0].dst.base);
            src.zip(dst)
        };
        let Some(step) = distance(&lanes[..2]) else {
            return false;
        };
        let first = shape(&lanes[0]);
        let alike = lanes.iter().all(|lane| shape(lane) == first)
            && lanes.windows(2).all(|pair| distance(pair) == Some(step));
        if !alike {
            return false;
        }
        lanes[0].plane_step = step;
        lanes.truncate(1);
    }
    true
}

/// The outer indices, how many they are, and the inner ones; both slowest first.
fn levels(
    dst: &CubeLayout,
    lanes: &[Lane],
    apart: bool,
    segments: bool,
) -> ([Level; 6], usize, Vec<Dim>) {
    let mut dims = dst.order.0.to_vec();
    let uneven = lanes.iter().any(|lane| lane.heads != lanes[0].heads);
    if apart && uneven && dst.order.slower(Dim::Head, Dim::Plane) {
        dims.retain(|dim| *dim != Dim::Plane);
        dims.insert(0, Dim::Plane);
    }
    let jumps = |dim: &Dim| *dim == Dim::Page || (*dim == Dim::Plane && apart);
    let mut outer = dims.iter().rposition(jumps).map_or(0, |last| last + 1);
    let token = dims.iter().position(|dim| *dim == Dim::Token).unwrap_or(0);
    // Segments stand right before their tokens.
    if segments {
        outer = outer.max(token);
    }
    let mut levels = [Level::Layer; 6];
    let mut depth = 0;
    let mut push = |level| {
        levels[depth] = level;
        depth += 1;
    };
    for (i, dim) in dims.iter().enumerate() {
        if segments && i == token {
            push(Level::Segment);
        }
        if i < outer {
            push(match dim {
                Dim::Layer => Level::Layer,
                Dim::Page => Level::Page,
                Dim::Plane => Level::Plane,
                Dim::Head => Level::Head,
                Dim::Token => Level::Token,
            });
        }
    }
    (levels, depth, dims.split_off(outer))
}
