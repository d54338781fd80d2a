//! What the planner is judged by: memory walked in its physical order, and numbered cubes.
//!
//! Nothing here uses a map, a plan or a stride of the code under test. An address is found by
//! counting bytes from the pool's first one.

pub(crate) mod models;
pub(crate) mod world;

use crate::layout::cube::{CubeLayout, Dim, DimOrder};

/// A row of a pool, in indices that count what the rank holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Row {
    pub(crate) plane: usize,
    pub(crate) page: u32,
    pub(crate) layer: u32,
    pub(crate) head: u32,
    pub(crate) granule: u32,
}

/// Where every row of a pool begins, and how many bytes the pool has.
pub(crate) struct Addresses {
    pub(crate) rows: Vec<(Row, u64)>,
    pub(crate) bytes: u64,
}

impl Addresses {
    pub(crate) fn new(layout: &CubeLayout) -> Addresses {
        let mut all = Addresses {
            rows: Vec::new(),
            bytes: 0,
        };
        all.walk(layout, 0, Row::default());
        all
    }

    fn walk(&mut self, layout: &CubeLayout, depth: usize, row: Row) {
        let Some(dim) = layout.order.0.get(depth) else {
            self.rows.push((row, self.bytes));
            self.bytes += row_bytes(layout, row.plane);
            return;
        };
        match dim {
            Dim::Page => {
                for page in 0..layout.pages {
                    self.walk(layout, depth + 1, Row { page, ..row });
                    self.bytes += layout.page_gap;
                }
            }
            Dim::Layer => {
                for layer in 0..layout.layers.held {
                    self.walk(layout, depth + 1, Row { layer, ..row });
                }
            }
            Dim::Plane => {
                for plane in 0..layout.planes.len() {
                    self.walk(layout, depth + 1, Row { plane, ..row });
                }
            }
            Dim::Head => {
                for head in 0..layout.planes[row.plane].heads.held {
                    self.walk(layout, depth + 1, Row { head, ..row });
                }
            }
            Dim::Token => {
                for granule in 0..layout.page_tokens / layout.granule {
                    self.walk(layout, depth + 1, Row { granule, ..row });
                }
            }
        }
    }
}

pub(crate) fn row_bytes(layout: &CubeLayout, plane: usize) -> u64 {
    let p = &layout.planes[plane];
    u64::from(p.channels) * u64::from(layout.granule) * u64::from(p.dtype.bits) / 8
}

/// Numbers that look random and are the same in every run (SplitMix64).
#[derive(Clone, Debug)]
pub(crate) struct Numbers(pub(crate) u64);

impl Numbers {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// One of `from..=to`.
    pub(crate) fn among(&mut self, from: u32, to: u32) -> u32 {
        from + (self.next() % u64::from(to - from + 1)) as u32
    }

    pub(crate) fn one_of<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.among(0, of.len() as u32 - 1) as usize].clone()
    }

    /// `count` distinct ones of `0..of`; often with neighbours in order.
    pub(crate) fn distinct(&mut self, count: usize, of: u32) -> Vec<u32> {
        let mut all: Vec<u32> = (0..of).collect();
        let start = self.among(0, of - count as u32) as usize;
        if self.among(0, 2) == 0 {
            return all[start..start + count].to_vec();
        }
        let swaps = self.among(1, of);
        for _ in 0..swaps {
            let (a, b) = (self.among(0, of - 1), self.among(0, of - 1));
            all.swap(a as usize, b as usize);
        }
        all.truncate(count);
        all
    }

    /// Any order that a pool can have.
    pub(crate) fn order(&mut self) -> DimOrder {
        let mut dims = [Dim::Page, Dim::Layer, Dim::Plane, Dim::Head, Dim::Token];
        for i in (1..5).rev() {
            dims.swap(i, self.among(0, i as u32) as usize);
        }
        let at = |dim| dims.iter().position(|d| *d == dim).unwrap();
        let (page, token) = (at(Dim::Page), at(Dim::Token));
        if token < page {
            dims.swap(page, token);
        }
        DimOrder(dims)
    }
}
