//! What keeps two sides from being planned onto each other, in words.
//!
//! Order, number of pages, gaps, which part of the model a rank holds, and page sizes of which one
//! divides the other may differ: that is what planning is for. All else must be the same.

use super::{CubeKind, CubeLayout};
use std::collections::BTreeMap;
use std::fmt;

/// One thing in which two sides differ and may not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CubeDifference {
    /// The pool's name (that of the source, where they differ).
    pub pool: String,
    /// The field of [`CubeLayout`], or "the pool" where one side lacks it.
    pub field: String,
    /// Its value at the source.
    pub src: String,
    /// Its value at the destination.
    pub dst: String,
}

/// Two sides that cannot be planned onto each other. The engines must be configured alike.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct CubeMismatch {
    /// What differs, pool by pool; at least one, and the first [`CubeMismatch::MAX`] of them.
    pub differences: Vec<CubeDifference>,
}

impl CubeMismatch {
    /// Most differences that are named. Whoever has more has other worries.
    pub const MAX: usize = 64;
}

impl fmt::Display for CubeMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the pools cannot be planned onto each other:")?;
        for (i, d) in self.differences.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            let CubeDifference {
                pool,
                field,
                src,
                dst,
            } = d;
            write!(
                f,
                "{comma} {field} of {pool:?} is {src} at the source and {dst} at the destination"
            )?;
        }
        Ok(())
    }
}

/// Whether rows of `src` can be copied onto rows of `dst`. Neither need be validated.
///
/// # Errors
/// [`CubeMismatch`] names everything that differs and may not, with both values.
pub fn explain(src: &CubeLayout, dst: &CubeLayout) -> Result<(), CubeMismatch> {
    if fits(src, dst) {
        return Ok(());
    }
    let mut list = List::new(&src.name);
    list.compare(
        "name",
        &format!("{:?}", src.name),
        &format!("{:?}", dst.name),
    );
    list.compare("kind", &kind(&src.kind), &kind(&dst.kind));
    list.compare("layers.total", &src.layers.total, &dst.layers.total);
    list.compare("granule", &src.granule, &dst.granule);
    let rows = src.kind.is_row() || dst.kind.is_row();
    if !tokens_fit(src, dst) {
        let how = match rows {
            true => "page_tokens",
            false => "page_tokens (one must divide the other)",
        };
        list.compare(how, &src.page_tokens, &dst.page_tokens);
    }
    list.compare("the number of planes", &src.planes.len(), &dst.planes.len());
    for (i, (a, b)) in src.planes.iter().zip(&dst.planes).enumerate() {
        let field = |name: &str| format!("planes[{i}].{name}");
        list.compare(&field("heads.total"), &a.heads.total, &b.heads.total);
        list.compare(&field("channels"), &a.channels, &b.channels);
        let (a, b) = (&a.dtype, &b.dtype);
        list.compare(
            &field("dtype.name"),
            &format!("{:?}", a.name),
            &format!("{:?}", b.name),
        );
        list.compare(&field("dtype.bits"), &a.bits, &b.bits);
    }
    list.end()
}

/// Whether the pools of one side can be planned onto those of the other. Each side is the pools of
/// *all* its ranks, or of one; ranks that have the same pool must agree among themselves, too.
///
/// A pool that one side lacks is a difference: scales that stay behind, or a state that nobody
/// brings, would be found out by wrong answers only.
///
/// # Errors
/// [`CubeMismatch`] names everything that differs and may not.
pub fn explain_sets<'a>(
    src: impl IntoIterator<Item = &'a CubeLayout>,
    dst: impl IntoIterator<Item = &'a CubeLayout>,
) -> Result<(), CubeMismatch> {
    let mut differences = Vec::new();
    let mut take = |result: Result<(), CubeMismatch>| {
        for difference in result.err().map_or_else(Vec::new, |m| m.differences) {
            if differences.len() < CubeMismatch::MAX && !differences.contains(&difference) {
                differences.push(difference);
            }
        }
    };
    // Name to the first pool that has it, on either side.
    let mut pairs: BTreeMap<&str, [Option<&CubeLayout>; 2]> = BTreeMap::new();
    let sides = src.into_iter().map(|p| (0, p));
    for (side, pool) in sides.chain(dst.into_iter().map(|p| (1, p))) {
        let pair = pairs.entry(&pool.name).or_default();
        match pair[side] {
            Some(first) => take(explain(first, pool)),
            None => pair[side] = Some(pool),
        }
    }
    for pair in pairs.values() {
        match pair {
            [Some(src), Some(dst)] => take(explain(src, dst)),
            [Some(only), None] => take(lacking(only, true)),
            [None, Some(only)] => take(lacking(only, false)),
            [None, None] => {}
        }
    }
    match differences.is_empty() {
        true => Ok(()),
        false => Err(CubeMismatch { differences }),
    }
}

fn lacking(pool: &CubeLayout, at_source: bool) -> Result<(), CubeMismatch> {
    let there = format!("there ({})", kind(&pool.kind));
    let (src, dst) = match at_source {
        true => (there, "missing".to_owned()),
        false => ("missing".to_owned(), there),
    };
    let mut list = List::new(&pool.name);
    list.compare("the pool", &src, &dst);
    list.end()
}

/// The answer without the words. Asked for each claim, and nearly always true.
fn fits(src: &CubeLayout, dst: &CubeLayout) -> bool {
    let planes = || src.planes.iter().zip(&dst.planes);
    src.name == dst.name
        && src.kind == dst.kind
        && src.layers.total == dst.layers.total
        && src.granule == dst.granule
        && tokens_fit(src, dst)
        && src.planes.len() == dst.planes.len()
        && planes().all(|(a, b)| {
            a.heads.total == b.heads.total && a.channels == b.channels && a.dtype == b.dtype
        })
}

fn tokens_fit(src: &CubeLayout, dst: &CubeLayout) -> bool {
    let (a, b) = (src.page_tokens, dst.page_tokens);
    let whole_factor = a != 0 && b != 0 && (a % b == 0 || b % a == 0);
    a == b || (whole_factor && !src.kind.is_row() && !dst.kind.is_row())
}

fn kind(kind: &CubeKind) -> String {
    match kind {
        CubeKind::Scale { of } => format!("scales of {of:?}"),
        other => format!("{other:?}"),
    }
}

struct List<'a> {
    pool: &'a str,
    differences: Vec<CubeDifference>,
}

impl<'a> List<'a> {
    fn new(pool: &'a str) -> List<'a> {
        let differences = Vec::new();
        List { pool, differences }
    }

    fn compare<T: PartialEq + ToString>(&mut self, field: &str, src: &T, dst: &T) {
        if src != dst && self.differences.len() < CubeMismatch::MAX {
            self.differences.push(CubeDifference {
                pool: self.pool.to_owned(),
                field: field.to_owned(),
                src: src.to_string(),
                dst: dst.to_string(),
            });
        }
    }

    fn end(self) -> Result<(), CubeMismatch> {
        match self.differences.is_empty() {
            true => Ok(()),
            false => Err(CubeMismatch {
                differences: self.differences,
            }),
        }
    }
}
