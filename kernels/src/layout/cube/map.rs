//! Where rows lie: for each plane one linear map from indices to bytes.
//!
//! ```text
//!   order, slowest first:   layer ── page ── plane ── token ── head      bytes of all that is faster
//!                                                  ◀── row × heads       token
//!                                        ◀── … × tokens                  plane: one after the other
//!                                 ◀── sum of the planes + gap            page
//!                         ◀── … × pages                                  layer
//! ```

use super::{CubeLayout, Dim};
use crate::layout::{Order, PoolKind, PoolLayout};

/// Where the rows of one plane lie, counted from the pool's first byte: at
/// `base + page*page + layer*layer + head*head + token*token`, with indices that count what the rank
/// holds, from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PlaneMap {
    /// The plane's first row.
    pub base: u64,
    /// Bytes from a page to the next.
    pub page: u64,
    /// Bytes from a layer to the next.
    pub layer: u64,
    /// Bytes from a head to the next.
    pub head: u64,
    /// Bytes from a token (a granule, where that is more) to the next within its page.
    pub token: u64,
    /// Bytes of one row.
    pub row: u64,
}

impl CubeLayout {
    /// The map of each plane; none if no pool can have this layout.
    #[must_use]
    pub fn maps(&self) -> Option<Vec<PlaneMap>> {
        self.measure().map(|(maps, _)| maps)
    }

    /// Bytes of the whole pool, gaps included; none if they are more than `u64::MAX`.
    #[must_use]
    pub fn bytes(&self) -> Option<u64> {
        self.measure().map(|(_, bytes)| bytes)
    }

    /// Granules in a page: what the token index counts.
    #[must_use]
    pub fn page_granules(&self) -> u32 {
        self.page_tokens / self.granule.max(1)
    }

    /// The memory this layout lies in, as a pool of (layer, page) cells: same bytes, same order.
    ///
    /// A layer of the pool is a layer of the rank; where planes lie apart, it is one plane of a layer.
    /// None where a cell would not be together, as with heads before pages.
    #[must_use]
    pub fn pool_layout(&self) -> Option<PoolLayout> {
        let maps = self.maps()?;
        let outer = |dim| self.order.position(dim);
        let last = outer(Dim::Page)?.max(outer(Dim::Layer)?);
        let head_or_token = outer(Dim::Head)?.min(outer(Dim::Token)?);
        if head_or_token < last {
            return None;
        }
        let apart = outer(Dim::Plane)? < last;
        let rows = |map: &PlaneMap, plane: &super::Plane| {
            let heads = map.row.saturating_mul(u64::from(plane.heads.held));
            heads.saturating_mul(u64::from(self.page_granules()))
        };
        let mut cells = maps.iter().zip(&self.planes).map(|(m, p)| rows(m, p));
        let (layers, content) = if apart {
            let first = cells.next()?;
            if cells.any(|bytes| bytes != first) {
                return None;
            }
            let planes = u32::try_from(self.planes.len()).ok()?;
            (self.layers.held.checked_mul(planes)?, first)
        } else {
            (self.layers.held, cells.fold(0, u64::saturating_add))
        };
        let page_last = outer(Dim::Page)? == last;
        let order = if page_last {
            Order::LayersFirst
        } else if outer(Dim::Page)? == 0 && self.page_gap == 0 {
            Order::PagesFirst
        } else {
            return None;
        };
        let pool = PoolLayout {
            name: self.name.clone(),
            kind: match self.kind.is_row() {
                true => PoolKind::Aux,
                false => PoolKind::Kv,
            },
            order,
            layers,
            pages: self.pages,
            page_bytes: content.checked_add(self.page_gap)?,
            page_tokens: self.page_tokens,
        };
        (Some(pool.bytes()) == self.bytes()).then_some(pool)
    }

    /// Maps and size, from the fastest index to the slowest. Every product is checked, so that what
    /// a validated layout computes later cannot overflow.
    fn measure(&self) -> Option<(Vec<PlaneMap>, u64)> {
        let mut maps = Vec::with_capacity(self.planes.len());
        for plane in &self.planes {
            maps.push(PlaneMap {
                row: plane.row_bytes(self.granule)?,
                ..PlaneMap::default()
            });
        }
        // Bytes of all that is faster than the index at hand: by plane, until planes are joined.
        let mut inner: Vec<u64> = maps.iter().map(|map| map.row).collect();
        for dim in self.order.0.iter().rev() {
            if *dim == Dim::Plane {
                let mut sum = 0_u64;
                for (map, bytes) in maps.iter_mut().zip(&inner) {
                    map.base = sum;
                    sum = sum.checked_add(*bytes)?;
                }
                inner.fill(sum);
                continue;
            }
            for ((map, bytes), plane) in maps.iter_mut().zip(&mut inner).zip(&self.planes) {
                let (step, count) = match dim {
                    Dim::Page => (&mut map.page, self.pages),
                    Dim::Layer => (&mut map.layer, self.layers.held),
                    Dim::Head => (&mut map.head, plane.heads.held),
                    Dim::Token | Dim::Plane => (&mut map.token, self.page_granules()),
                };
                if *dim == Dim::Page {
                    *bytes = bytes.checked_add(self.page_gap)?;
                }
                *step = *bytes;
                *bytes = bytes.checked_mul(u64::from(count))?;
            }
        }
        let bytes = inner.first().copied()?;
        Some((maps, bytes))
    }
}
