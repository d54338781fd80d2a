//! How the lists of a claim are bounded and laid out on the wire.
//!
//! A list of pages is one string of bytes, four to an index, little-endian: it is copied as a block
//! instead of number by number, and a length that lies is noticed before anything is allocated.
//! Formats for people (snapshots, JSON) show the numbers.

use crate::peer::message::{Claim, Section};
use kvroom_kernels::plan::cube::Part as CubePart;
use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::fmt;
use std::marker::PhantomData;

/// Decodes a list of sections and stops at the first one too many.
pub(super) fn few_sections<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Section>, D::Error> {
    few(from)
}

/// Decodes what is carried of each section, and stops likewise. The planes of each are bounded by
/// themselves.
pub(super) fn few_parts<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<Vec<Option<CubePart>>, D::Error> {
    few(from)
}

fn few<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Vec<T>, D::Error> {
    struct Few<T>(PhantomData<T>);
    impl<'de, T: Deserialize<'de>> Visitor<'de> for Few<T> {
        type Value = Vec<T>;

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
    from.deserialize_seq(Few(PhantomData))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::PoolId;
    use bincode::config::standard;
    use serde::{Deserialize, Serialize};

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Sections(#[serde(deserialize_with = "few_sections")] Vec<Section>);

    fn encode<T: Serialize>(value: &T) -> Vec<u8> {
        bincode::serde::encode_to_vec(value, standard()).unwrap()
    }

    fn decode(bytes: &[u8]) -> Result<Sections, String> {
        bincode::serde::decode_from_slice(bytes, standard())
            .map(|(sections, _)| sections)
            .map_err(|error| error.to_string())
    }

    fn section(pool: u16, pages: Vec<u32>) -> Section {
        let pool = PoolId(pool);
        Section { pool, pages }
    }

    #[test]
    fn the_sections_of_a_claim_come_over_the_wire_as_they_were() {
        let sections = Sections(vec![
            section(0, vec![0, 1, u32::MAX]),
            section(3, Vec::new()),
        ]);
        assert_eq!(decode(&encode(&sections)), Ok(sections));
    }

    #[test]
    fn one_section_too_many_is_refused_with_the_bound() {
        let most = Claim::MAX_SECTIONS as u16;
        let with = |n| Sections((0..n).map(|pool| section(pool, Vec::new())).collect());
        assert_eq!(decode(&encode(&with(most))), Ok(with(most)));
        let error = decode(&encode(&with(most + 1))).unwrap_err();
        let says = "length 65, expected at most 64 sections";
        assert!(error.contains(says), "{error}");
    }

    #[test]
    fn pages_that_are_not_of_four_bytes_each_are_refused_with_what_they_must_be() {
        // One section of pool 0, whose list of pages has five bytes.
        let error = decode(&encode(&[(0_u16, vec![0_u8; 5])].to_vec())).unwrap_err();
        assert!(error.contains("page indices of four bytes each"), "{error}");
    }
}
