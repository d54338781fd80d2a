//! Whether parts are together all that a rank holds, with nothing twice.
//!
//! ```text
//!               heads of one plane ─▶
//!   layers   0 ┌───────────┬───────────┐
//!     │        │  part 0   │  part 1   │      no gap, no overlap, nothing outside;
//!     ▼      2 ├───────────┴───────────┤      for each plane by itself
//!              │        part 2         │
//!            4 └───────────────────────┘
//! ```

use super::Part;
use crate::layout::cube::{CubeLayout, Span};

/// Parts that are not together what a rank holds. Whoever dealt them out must correct them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TilingError {
    /// A part does not name one range of heads for each plane.
    #[error("part {part} names heads of {named} planes; the pool has {planes}")]
    Planes {
        /// Which part.
        part: usize,
        /// Ranges in it.
        named: usize,
        /// Planes of the pool.
        planes: usize,
    },
    /// A part has no layers, or no heads of any plane.
    #[error("part {part} has nothing in it")]
    Empty {
        /// Which part.
        part: usize,
    },
    /// A part names layers that the rank does not hold.
    #[error("part {part} names layers {asked}; the rank holds {held}")]
    Layers {
        /// Which part.
        part: usize,
        /// What it names.
        asked: Span,
        /// What the rank holds.
        held: Span,
    },
    /// A part names heads that the rank does not hold.
    #[error("part {part} names heads {asked} of plane {plane}; the rank holds {held}")]
    Heads {
        /// Which part.
        part: usize,
        /// The plane.
        plane: usize,
        /// What it names.
        asked: Span,
        /// What the rank holds.
        held: Span,
    },
    /// No part has this: the first one, by layer, plane and head.
    #[error("no part has head {head} of plane {plane} in layer {layer}")]
    Missing {
        /// The layer, of the model.
        layer: u32,
        /// The plane.
        plane: usize,
        /// The head, of the model.
        head: u32,
    },
    /// Two parts have this: the first one, by layer, plane and head.
    #[error("parts {} and {} both have head {head} of plane {plane} in layer {layer}", parts[0], parts[1])]
    Twice {
        /// The layer, of the model.
        layer: u32,
        /// The plane.
        plane: usize,
        /// The head, of the model.
        head: u32,
        /// Which parts.
        parts: [usize; 2],
    },
}

/// Whether `parts` together are what a rank with this (validated) layout holds, and nothing is in two
/// of them. Takes about as many steps as there are parts, squared.
///
/// # Errors
/// [`TilingError`] names the first part that is wrong by itself, or the first cell that is missing or
/// there twice.
pub fn tiles<'a>(
    held: &CubeLayout,
    parts: impl IntoIterator<Item = &'a Part>,
) -> Result<(), TilingError> {
    let parts: Vec<&Part> = parts.into_iter().collect();
    let whole = held.layers.span();
    let mut cuts = vec![whole.start, whole.end];
    for (i, part) in parts.iter().enumerate() {
        within(held, i, part)?;
        cuts.extend([part.layers.start, part.layers.end]);
    }
    cuts.sort_unstable();
    cuts.dedup();
    for cut in cuts.windows(2) {
        let layers = Span::new(cut[0], cut[1]);
        let here = || (0..).zip(&parts).filter(|(_, p)| p.layers.holds(layers));
        for (plane, of) in held.planes.iter().enumerate() {
            let spans = here().map(|(i, p)| (p.heads[plane], i));
            let mut spans: Vec<(Span, usize)> = spans.filter(|(s, _)| !s.is_empty()).collect();
            spans.sort_unstable();
            row(of.heads.span(), &spans).map_err(|wrong| wrong.at(layers.start, plane))?;
        }
    }
    Ok(())
}

/// What is wrong with the heads of one plane in one layer.
enum Wrong {
    Missing(u32),
    Twice(u32, [usize; 2]),
}

impl Wrong {
    fn at(self, layer: u32, plane: usize) -> TilingError {
        match self {
            Wrong::Missing(head) => TilingError::Missing { layer, plane, head },
            Wrong::Twice(head, parts) => TilingError::Twice {
                layer,
                plane,
                head,
                parts,
            },
        }
    }
}

/// Whether spans, by their start, are `whole` without gap and overlap.
fn row(whole: Span, spans: &[(Span, usize)]) -> Result<(), Wrong> {
    let mut at = whole.start;
    let mut before = 0;
    for (span, part) in spans {
        if span.start > at {
            return Err(Wrong::Missing(at));
        }
        if span.start < at {
            return Err(Wrong::Twice(span.start, [before, *part]));
        }
        (at, before) = (span.end, *part);
    }
    match at < whole.end {
        true => Err(Wrong::Missing(at)),
        false => Ok(()),
    }
}

fn within(held: &CubeLayout, part: usize, is: &Part) -> Result<(), TilingError> {
    let (named, planes) = (is.heads.len(), held.planes.len());
    if named != planes {
        return Err(TilingError::Planes {
            part,
            named,
            planes,
        });
    }
    if is.is_empty() {
        return Err(TilingError::Empty { part });
    }
    let (asked, layers) = (is.layers, held.layers.span());
    if !layers.holds(asked) {
        let held = layers;
        return Err(TilingError::Layers { part, asked, held });
    }
    for (plane, (asked, of)) in is.heads.iter().zip(&held.planes).enumerate() {
        let (asked, held) = (*asked, of.heads.span());
        if !held.holds(asked) {
            return Err(TilingError::Heads {
                part,
                plane,
                asked,
                held,
            });
        }
    }
    Ok(())
}
