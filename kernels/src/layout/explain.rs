//! What keeps two pools from being planned onto each other, in words.

use super::PoolLayout;
use std::fmt;

/// One field in which two layouts differ and may not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The field of [`PoolLayout`].
    pub field: &'static str,
    /// Its value at the source.
    pub src: String,
    /// Its value at the destination.
    pub dst: String,
}

/// Two pools that cannot be planned onto each other. The engines must be configured alike.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Mismatch {
    /// Every field that differs, in the order of [`PoolLayout`]; at least one.
    pub differences: Vec<Difference>,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the pools cannot be planned onto each other:")?;
        for (i, d) in self.differences.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            write!(
                f,
                "{comma} {} is {} at the source and {} at the destination",
                d.field, d.src, d.dst
            )?;
        }
        Ok(())
    }
}

/// Whether cells of `src` can be copied onto cells of `dst`: same name, kind, layers, page bytes and
/// page tokens. The order of the indices and the number of pages may differ.
///
/// # Errors
/// [`Mismatch`] names every field that differs, with both values.
pub fn explain(src: &PoolLayout, dst: &PoolLayout) -> Result<(), Mismatch> {
    // Asked for each claim, and nearly always so: nothing is written out then.
    let same_tokens = src.tokens_of_a_page() == dst.tokens_of_a_page();
    if src.name == dst.name
        && (src.kind, src.layers, src.page_bytes) == (dst.kind, dst.layers, dst.page_bytes)
        && same_tokens
    {
        return Ok(());
    }
    let mut differences = Vec::new();
    let mut compare = |field, src: String, dst: String| {
        if src != dst {
            differences.push(Difference { field, src, dst });
        }
    };
    compare("name", format!("{:?}", src.name), format!("{:?}", dst.name));
    compare("kind", format!("{:?}", src.kind), format!("{:?}", dst.kind));
    compare("layers", src.layers.to_string(), dst.layers.to_string());
    compare(
        "page_bytes",
        src.page_bytes.to_string(),
        dst.page_bytes.to_string(),
    );
    if src.kind == dst.kind {
        compare(
            "page_tokens",
            src.tokens_of_a_page().to_string(),
            dst.tokens_of_a_page().to_string(),
        );
    }
    if differences.is_empty() {
        Ok(())
    } else {
        Err(Mismatch { differences })
    }
}
