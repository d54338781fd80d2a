//! How a pool holds its pages.

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
