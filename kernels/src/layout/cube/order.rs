//! In which order the indices of a pool vary.

use serde::{Deserialize, Serialize};
use std::fmt;

/// One index of a pool. Channels are no index: those of one head at one token are always together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Dim {
    /// The page.
    Page,
    /// The layer, among those that the rank holds.
    Layer,
    /// The plane: K, V, or another.
    Plane,
    /// The head, among those that the rank holds.
    Head,
    /// The token (or granule) within its page.
    Token,
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Dim::Page => "page",
            Dim::Layer => "layer",
            Dim::Plane => "plane",
            Dim::Head => "head",
            Dim::Token => "token",
        })
    }
}

/// The five indices, slowest first. Each is there once, and the page comes before the token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DimOrder(pub [Dim; 5]);

impl DimOrder {
    /// K and V of a page together, `[layer][page][plane][token][head]`.
    pub const NHD: DimOrder = {
        use Dim::{Head, Layer, Page, Plane, Token};
        DimOrder([Layer, Page, Plane, Token, Head])
    };
    /// K and V of a page together, heads before tokens, `[layer][page][plane][head][token]`.
    pub const HND: DimOrder = {
        use Dim::{Head, Layer, Page, Plane, Token};
        DimOrder([Layer, Page, Plane, Head, Token])
    };
    /// K and V apart within a layer, `[layer][plane][page][token][head]`.
    pub const SPLIT_NHD: DimOrder = {
        use Dim::{Head, Layer, Page, Plane, Token};
        DimOrder([Layer, Plane, Page, Token, Head])
    };
    /// All of K, then all of V, `[plane][layer][page][token][head]`.
    pub const PLANES_NHD: DimOrder = {
        use Dim::{Head, Layer, Page, Plane, Token};
        DimOrder([Plane, Layer, Page, Token, Head])
    };
    /// All layers of a page together, `[page][layer][plane][token][head]`.
    pub const PAGES_NHD: DimOrder = {
        use Dim::{Head, Layer, Page, Plane, Token};
        DimOrder([Page, Layer, Plane, Token, Head])
    };
    /// The same, heads before tokens, `[page][layer][plane][head][token]`.
    pub const PAGES_HND: DimOrder = {
        use Dim::{Head, Layer, Page, Plane, Token};
        DimOrder([Page, Layer, Plane, Head, Token])
    };
    /// K and V side by side for every token, `[layer][page][token][plane][head]`.
    pub const INTERLEAVED: DimOrder = {
        use Dim::{Head, Layer, Page, Plane, Token};
        DimOrder([Layer, Page, Token, Plane, Head])
    };

    /// Where `dim` stands, 0 for the slowest; none if it is missing.
    #[must_use]
    pub fn position(&self, dim: Dim) -> Option<usize> {
        self.0.iter().position(|d| *d == dim)
    }

    /// Whether `slow` varies more slowly than `fast`; false if one of them is missing.
    #[must_use]
    pub fn slower(&self, slow: Dim, fast: Dim) -> bool {
        match (self.position(slow), self.position(fast)) {
            (Some(slow), Some(fast)) => slow < fast,
            _ => false,
        }
    }

    /// Whether each index is there once, and a page's tokens are within their page.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        let all = [Dim::Page, Dim::Layer, Dim::Plane, Dim::Head, Dim::Token];
        all.into_iter().all(|dim| self.position(dim).is_some())
            && self.slower(Dim::Page, Dim::Token)
    }
}

impl fmt::Display for DimOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, dim) in self.0.iter().enumerate() {
            let before = if i == 0 { "[" } else { ", " };
            write!(f, "{before}{dim}")?;
        }
        f.write_str("]")
    }
}
