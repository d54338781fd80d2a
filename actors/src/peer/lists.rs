//! How the lists of a claim are bounded and laid out on the wire.
//!
//! A list of pages is one string of bytes, four to an index, little-endian: it is copied as a block
//! instead of number by number, and a length that lies is noticed before anything is allocated.
//! Formats for people (snapshots, JSON) show the numbers.

use crate::peer::message::{Claim, Section};
use serde::Deserializer;
use serde::de::{Error, SeqAccess, Visitor};
use std::fmt;

/// Decodes a list of sections and stops at the first one too many.
pub(super) fn few_sections<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Section>, D::Error> {
    struct Few;
    impl<'de> Visitor<'de> for Few {
        type Value = Vec<Section>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "at most {} sections", Claim::MAX_SECTIONS)
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
            let mut sections = Vec::new();
            while let Some(section) = seq.next_element()? {
                if sections.len() == Claim::MAX_SECTIONS {
                    return Err(A::Error::invalid_length(sections.len() + 1, &self));
                }
                sections.push(section);
            }
            Ok(sections)
        }
    }
    from.deserialize_seq(Few)
}

pub(super) mod pages {
    use serde::de::{Deserialize, Error, Visitor};
    use serde::{Deserializer, Serialize, Serializer};
    use std::fmt;

    pub(in crate::peer) fn serialize<S: Serializer>(
        pages: &[u32],
        to: S,
    ) -> Result<S::Ok, S::Error> {
        if to.is_human_readable() {
            return pages.serialize(to);
        }
        let bytes: Vec<[u8; 4]> = pages.iter().map(|page| page.to_le_bytes()).collect();
        to.serialize_bytes(bytes.as_flattened())
    }

    pub(in crate::peer) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Vec<u32>, D::Error> {
        struct Packed;
        impl Visitor<'_> for Packed {
            type Value = Vec<u32>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("page indices of four bytes each")
            }

            fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Self::Value, E> {
                let (pages, rest) = bytes.as_chunks::<4>();
                if !rest.is_empty() {
                    return Err(E::invalid_length(bytes.len(), &self));
                }
                Ok(pages.iter().map(|page| u32::from_le_bytes(*page)).collect())
            }
        }
        if from.is_human_readable() {
            return Vec::deserialize(from);
        }
        from.deserialize_bytes(Packed)
    }
}
