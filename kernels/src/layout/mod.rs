//! How a pool holds its pages, and which pools can be planned onto each other.
//!
//! ```text
//!   LayersFirst   l0p0 l0p1 l0p2 … | l1p0 l1p1 l1p2 … |      cell = one page in one layer
//!   PagesFirst    p0l0 p0l1 …      | p1l0 p1l1 …      |
//! ```
//!
//! A [`PoolLayout`] is plain data that also comes from peers: [`PoolLayout::validate`] is what makes
//! it safe to compute with. On a layout that was not validated the other functions saturate or
//! answer `None`; they never panic.
//!
//! What the bytes of a cell mean (planes, heads, tokens) is in [`cube`].

pub mod cube;
mod explain;

pub use explain::{Difference, Mismatch, explain};

use serde::{Deserialize, Serialize};

/// What a pool is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum PoolKind {
    /// Pages of tokens, addressed by block tables.
    Kv,
    /// One row (page) per room, written after everything else has been flushed.
    Aux,
}

/// Which of the two indices varies slowest in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Order {
    /// `[layer][page][bytes]`
    LayersFirst,
    /// `[page][layer][bytes]`
    PagesFirst,
}

/// A pool's shape. Pools of two nodes are paired by `name`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PoolLayout {
    /// What both engines call this pool ("kv", "index-k", "aux"); 1 to 64 bytes.
    pub name: String,
    /// What it is for.
    pub kind: PoolKind,
    /// Order of the indices in memory.
    pub order: Order,
    /// Layers; at least 1.
    pub layers: u32,
    /// Pages per layer; at least 1.
    pub pages: u32,
    /// Bytes of one page in one layer; at least 1.
    pub page_bytes: u64,
    /// Tokens in one page; at least 1 (ignored for aux pools).
    pub page_tokens: u32,
}

/// A layout that no pool can have. Whoever described the pool must correct the named field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// The name is empty or too long.
    #[error("the pool's name has {bytes} bytes; give it 1 to {max}", max = PoolLayout::MAX_NAME)]
    Name {
        /// Its length in bytes.
        bytes: usize,
    },
    /// A count is zero.
    #[error("pool '{pool}': {field} is 0; it must be at least 1")]
    Zero {
        /// The pool's name.
        pool: String,
        /// The field of [`PoolLayout`].
        field: &'static str,
    },
    /// The pool has more bytes than this machine can address.
    #[error(
        "pool '{pool}': {layers} layers x {pages} pages x {page_bytes} bytes is more than this \
         machine can address; lower one of them"
    )]
    TooLarge {
        /// The pool's name.
        pool: String,
        /// Layers.
        layers: u32,
        /// Pages per layer.
        pages: u32,
        /// Bytes of one page in one layer.
        page_bytes: u64,
    },
}

impl PoolLayout {
    /// Longest name in bytes.
    pub const MAX_NAME: usize = 64;

    /// Whether a pool can have this layout.
    ///
    /// # Errors
    /// [`LayoutError`] names the first field that is wrong.
    pub fn validate(&self) -> Result<(), LayoutError> {
        if self.name.is_empty() || self.name.len() > Self::MAX_NAME {
            return Err(LayoutError::Name {
                bytes: self.name.len(),
            });
        }
        let counts = [
            ("layers", u64::from(self.layers)),
            ("pages", u64::from(self.pages)),
            ("page_bytes", self.page_bytes),
            ("page_tokens", u64::from(self.tokens_of_a_page())),
        ];
        if let Some((field, _)) = counts.into_iter().find(|(_, n)| *n == 0) {
            return Err(LayoutError::Zero {
                pool: self.name.clone(),
                field,
            });
        }
        // An allocation has at most isize::MAX bytes.
        match self.exact_bytes().map(isize::try_from) {
            Some(Ok(_)) => Ok(()),
            _ => Err(LayoutError::TooLarge {
                pool: self.name.clone(),
                layers: self.layers,
                pages: self.pages,
                page_bytes: self.page_bytes,
            }),
        }
    }

    /// Bytes of the whole pool; `u64::MAX` if they are more than that.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.exact_bytes().unwrap_or(u64::MAX)
    }

    /// Where the bytes of one page in one layer begin, counted from the pool's first byte; none if
    /// the pool has no such cell.
    #[must_use]
    pub fn cell_offset(&self, layer: u32, page: u32) -> Option<u64> {
        if layer >= self.layers || page >= self.pages {
            return None;
        }
        let cell = match self.order {
            Order::LayersFirst => u64::from(layer) * u64::from(self.pages) + u64::from(page),
            Order::PagesFirst => u64::from(page) * u64::from(self.layers) + u64::from(layer),
        };
        cell.checked_mul(self.page_bytes)
    }

    /// How many pages `tokens` tokens take: the last one may be partly used. One for an aux pool,
    /// whose row does not depend on the length of the request.
    #[must_use]
    pub fn pages_for(&self, tokens: u64) -> u64 {
        match self.kind {
            PoolKind::Kv => tokens.div_ceil(u64::from(self.page_tokens.max(1))),
            PoolKind::Aux => 1,
        }
    }

    /// A number for this layout that is the same in every build and on every machine: 64-bit FNV-1a
    /// over `"kvroom.layout.1"`, the name's length (`u32`), the name, kind and order (one byte each,
    /// 0 for the first variant), layers, pages (`u32`), page_bytes (`u64`) and page_tokens (`u32`;
    /// 1 for an aux pool), all little-endian.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        let kind: u8 = match self.kind {
            PoolKind::Kv => 0,
            PoolKind::Aux => 1,
        };
        let order: u8 = match self.order {
            Order::LayersFirst => 0,
            Order::PagesFirst => 1,
        };
        let mut hash = Fnv::new();
        hash.feed(b"kvroom.layout.1");
        hash.feed(
            &u32::try_from(self.name.len())
                .unwrap_or(u32::MAX)
                .to_le_bytes(),
        );
        hash.feed(self.name.as_bytes());
        hash.feed(&[kind, order]);
        hash.feed(&self.layers.to_le_bytes());
        hash.feed(&self.pages.to_le_bytes());
        hash.feed(&self.page_bytes.to_le_bytes());
        hash.feed(&self.tokens_of_a_page().to_le_bytes());
        hash.0
    }

    /// `page_tokens` where it means something, and 1 where it is ignored.
    pub(crate) fn tokens_of_a_page(&self) -> u32 {
        match self.kind {
            PoolKind::Kv => self.page_tokens,
            PoolKind::Aux => 1,
        }
    }

    fn exact_bytes(&self) -> Option<u64> {
        (u64::from(self.layers) * u64::from(self.pages)).checked_mul(self.page_bytes)
    }
}

struct Fnv(u64);

impl Fnv {
    fn new() -> Self {
        Fnv(0xcbf2_9ce4_8422_2325)
    }

    fn feed(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}

#[cfg(test)]
mod tests;
