//! What the bytes of a pool mean: which part of the model's cube a rank holds, and in which order.
//!
//! ```text
//!   the model's cube   (layer, plane, head, token, channel)     plane: K, V, the latent, a segment
//!
//!                   heads ─▶ 0   1   2   3   4   5   6   7
//!              layers    0 ┌───────────────┬───────────────┐
//!                │       1 │    rank 0     │    rank 1     │   each rank holds one rectangle:
//!                ▼       2 ├───────────────┼───────────────┤   a pipeline stage's layers times
//!                        3 │    rank 2     │    rank 3     │   its share of the heads. Replicas
//!                          └───────────────┴───────────────┘   are ranks with the same one.
//!
//!   a rank's pool      one order of [page, layer, plane, head, token], slowest first; inside,
//!                      a *row*: the channels of one head at one token, always together
//!
//!     K and V apart, by layer       [layer, plane, page, token, head]
//!     K and V in one page (NHD)     [layer, page, plane, token, head]
//!     the same, heads first (HND)   [layer, page, plane, head, token]
//!     pages first                   [page, layer, plane, token, head]
//!     K and V token by token        [layer, page, token, plane, head]
//! ```
//!
//! That one idea covers every layout there is a name for; no kind of layout has code of its own.
//! What the kinds of data add are rules:
//!
//! | kind | what it is | rule |
//! |---|---|---|
//! | `Kv` | keys and values | heads are split over ranks, or replicated where ranks outnumber them |
//! | `Latent` | the joint latent of MLA | one head, which every rank has whole |
//! | `IndexK` | keys of a sparse indexer | one head, which every rank has whole |
//! | `Scale` | scales of block-scaled data | names its data pool, has its layers and heads; both travel or none |
//! | `State` | SSM and convolution state | one row for each request, always whole; its planes are segments that are split each by itself |
//! | `Aux` | what else the engine hands over | one row for each request, one layer, one head |
//!
//! Three details are needed to say what engines have. *Planes may differ* in heads and width: a
//! convolution state is `[x | B | C]` whose parts are split apart from each other (a flat cut of the
//! row is wrong), and an indexer's page is all keys, then all scales. A *granule* is a number of
//! tokens that are interleaved in memory (swizzled scales, keys packed over tokens): it is never
//! cut. A *gap* is unused room behind each page.
//!
//! A [`CubeLayout`] is plain data that also comes from peers: [`CubeLayout::validate`] is what makes
//! it safe to compute with. On one that was not validated, everything answers `None` or something
//! wrong, and nothing panics. It describes a *meaning*; the memory it lies in is a
//! [`PoolLayout`](super::PoolLayout), see [`CubeLayout::pool_layout`].

mod explain;
mod few;
mod fingerprint;
mod map;
mod order;
mod share;
mod validate;

pub(crate) use few::few_planes;

pub use explain::{CubeDifference, CubeMismatch, explain, explain_sets};
pub use map::PlaneMap;
pub use order::{Dim, DimOrder};
pub use share::{Share, Span};
pub use validate::{CubeError, validate_set};

use serde::{Deserialize, Serialize};

/// What a pool's data is for; it decides which rules hold.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum CubeKind {
    /// Keys and values, or one of them.
    Kv,
    /// The joint latent of multi-head latent attention: no heads, the same on all ranks of a stage.
    Latent,
    /// Keys of a sparse-attention indexer: no heads, the same on all ranks of a stage.
    IndexK,
    /// Scales of the pool with the name `of`, without which its bytes mean nothing.
    Scale {
        /// Name of the pool whose data these scales are for.
        of: String,
    },
    /// State-space or convolution state: one row (page) a request, moved whole. What would be tokens
    /// are the positions within the row.
    State,
    /// A row (page) of the engine's own for each request, moved whole.
    Aux,
}

impl CubeKind {
    /// Whether a page is one request's row, whatever the number of its tokens.
    #[must_use]
    pub fn is_row(&self) -> bool {
        matches!(self, CubeKind::State | CubeKind::Aux)
    }

    /// Whether the data has no heads to split over ranks.
    #[must_use]
    pub fn is_headless(&self) -> bool {
        matches!(self, CubeKind::Latent | CubeKind::IndexK | CubeKind::Aux)
    }
}

/// The type of one element. Two types of equal width are not the same type.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Dtype {
    /// What both engines call it, its packing and swizzle included ("bf16", "fp4_e2m1"); 1 to
    /// [`Dtype::MAX_NAME`] bytes.
    pub name: String,
    /// Bits of one element: 1 to [`Dtype::MAX_BITS`]. Below 8, elements are packed.
    pub bits: u16,
}

impl Dtype {
    /// Longest name in bytes.
    pub const MAX_NAME: usize = 32;
    /// Most bits of one element.
    pub const MAX_BITS: u16 = 128;

    /// A type by its name and width in bits.
    #[must_use]
    pub fn new(name: &str, bits: u16) -> Dtype {
        let name = name.to_owned();
        Dtype { name, bits }
    }

    /// The 16-bit brain float, what most engines keep keys and values in.
    #[must_use]
    pub fn bf16() -> Dtype {
        Dtype::new("bf16", 16)
    }

    /// The 8-bit float with 4 bits of exponent.
    #[must_use]
    pub fn fp8_e4m3() -> Dtype {
        Dtype::new("fp8_e4m3", 8)
    }

    /// The packed 4-bit float; two in a byte.
    #[must_use]
    pub fn fp4_e2m1() -> Dtype {
        Dtype::new("fp4_e2m1", 4)
    }
}

/// One plane of a pool: K, V, a latent, one segment of a state.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Plane {
    /// Heads of the model, and which of them this rank holds. Head indices are the model's.
    pub heads: Share,
    /// Elements of one head at one token; at least 1.
    pub channels: u32,
    /// Their type.
    pub dtype: Dtype,
}

impl Plane {
    /// Bytes of one head over `granule` tokens; none if that is no whole number of bytes, or if they
    /// are more than `u64::MAX`.
    #[must_use]
    pub fn row_bytes(&self, granule: u32) -> Option<u64> {
        let elements = u64::from(self.channels) * u64::from(granule);
        let bits = elements.checked_mul(u64::from(self.dtype.bits))?;
        (bits % 8 == 0).then_some(bits / 8)
    }
}

/// One pool of one rank: which part of the model it holds, and how it lies in memory.
///
/// Pools of two sides are paired by `name`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct CubeLayout {
    /// What both engines call this pool; 1 to [`CubeLayout::MAX_NAME`] bytes.
    pub name: String,
    /// What its data is for.
    pub kind: CubeKind,
    /// Layers of the model *that have such data*, and which of them this rank's stage holds.
    pub layers: Share,
    /// The planes, in the order in which they lie; 1 to [`CubeLayout::MAX_PLANES`].
    #[serde(deserialize_with = "few_planes")]
    pub planes: Vec<Plane>,
    /// Tokens in one page; at least 1, and a multiple of `granule`.
    pub page_tokens: u32,
    /// Tokens that lie interleaved and are never cut apart; 1 where every token lies by itself.
    pub granule: u32,
    /// Pages; at least 1.
    pub pages: u32,
    /// Unused bytes behind all that is faster than the page index in `order`.
    pub page_gap: u64,
    /// Order of the indices in memory.
    pub order: DimOrder,
}

impl CubeLayout {
    /// Longest name in bytes.
    pub const MAX_NAME: usize = super::PoolLayout::MAX_NAME;
    /// Most planes of one pool.
    pub const MAX_PLANES: usize = 8;

    /// How many pages hold the tokens `tokens` of a request (the first page may begin before them);
    /// one for a row pool.
    #[must_use]
    pub fn pages_of(&self, tokens: std::ops::Range<u64>) -> u64 {
        if self.kind.is_row() {
            return 1;
        }
        let page = u64::from(self.page_tokens.max(1));
        if tokens.start >= tokens.end {
            return 0;
        }
        tokens.end.div_ceil(page) - tokens.start / page
    }

    /// Bytes that one token has in the rank's part (all layers, planes and heads), rounded down; for
    /// a row pool, bytes of its row. `u64::MAX` if they are more.
    #[must_use]
    pub fn token_bytes(&self) -> u64 {
        let mut row = 0_u64;
        for plane in &self.planes {
            let bytes = plane.row_bytes(self.granule).unwrap_or(0);
            row = row.saturating_add(bytes.saturating_mul(u64::from(plane.heads.held)));
        }
        let granules = row.saturating_mul(u64::from(self.layers.held));
        let granule = self.granule.max(1);
        match self.kind.is_row() {
            true => granules.saturating_mul(u64::from(self.page_tokens / granule)),
            false => granules / u64::from(granule),
        }
    }
}

#[cfg(test)]
mod tests;
