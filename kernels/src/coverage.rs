//! Which cells of a claim have been written.

use serde::{Deserialize, Serialize};

/// A set of (section, layer, page) cells, as disjoint rectangles in a canonical order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Coverage {
    rects: Vec<Rect>,
}

/// All cells of `layers × pages` in one section. Ranges are half-open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Rect {
    /// Index into the claim's sections; [`Rect::AUX`] for the aux row.
    pub section: u16,
    /// First layer.
    pub layer: u32,
    /// One past the last layer.
    pub layer_end: u32,
    /// First page, counted in the claim's list for this section.
    pub page: u32,
    /// One past the last page.
    pub page_end: u32,
}

impl Rect {
    /// The section number that stands for the claim's aux row.
    pub const AUX: u16 = u16::MAX;
}
