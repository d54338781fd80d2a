//! Lists that have one entry a plane, read from a peer: no more is kept than a pool can have.

use super::CubeLayout;
use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};
use std::fmt;
use std::marker::PhantomData;

/// Decodes a list and stops at the first entry that is one too many.
pub(crate) fn few_planes<'de, D, T>(from: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    struct Few<T>(PhantomData<T>);
    impl<'de, T: Deserialize<'de>> Visitor<'de> for Few<T> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "at most {} planes", CubeLayout::MAX_PLANES)
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
            let mut all = Vec::new();
            while let Some(one) = seq.next_element()? {
                if all.len() == CubeLayout::MAX_PLANES {
                    return Err(A::Error::invalid_length(all.len() + 1, &self));
                }
                all.push(one);
            }
            Ok(all)
        }
    }
    from.deserialize_seq(Few(PhantomData))
}
