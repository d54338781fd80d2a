//! Bytes that can be told apart: every 8 of them follow from a seed, the layer, the page's place in
//! its request and their place in the page, so that each end can check them by itself.

/// Where some bytes belong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The layer.
    pub(crate) layer: u32,
    /// The page's place in the request.
    pub(crate) index: u32,
    /// Where in the page the bytes begin; a multiple of 8.
    pub(crate) offset: u64,
}

/// Writes the pattern of `place` into `bytes`.
pub(crate) fn fill(bytes: &mut [u8], seed: u64, place: Place) {
    let base = base(seed, place);
    for (k, word) in (place.offset / 8..).zip(bytes.chunks_mut(8)) {
        let pattern = mix(base.wrapping_add(k)).to_le_bytes();
        word.copy_from_slice(&pattern[..word.len()]);
    }
}

/// Whether `bytes` are the pattern of `place`.
pub(crate) fn holds(bytes: &[u8], seed: u64, place: Place) -> bool {
    let base = base(seed, place);
    let mut words = (place.offset / 8..).zip(bytes.chunks(8));
    words.all(|(k, word)| *word == mix(base.wrapping_add(k)).to_le_bytes()[..word.len()])
}

fn base(seed: u64, place: Place) -> u64 {
    mix(mix(seed) ^ (u64::from(place.layer) << 32 | u64::from(place.index)))
}

/// The finalizer of splitmix64: a bijection in which every bit depends on every other.
fn mix(mut z: u64) -> u64 {
    z = z.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Place = Place {
        layer: 3,
        index: 5,
        offset: 0,
    };

    #[test]
    fn any_changed_byte_and_any_other_place_is_seen() {
        let mut bytes = [0; 61];
        fill(&mut bytes, 7, AT);
        assert!(holds(&bytes, 7, AT));
        for i in 0..bytes.len() {
            bytes[i] ^= 1;
            assert!(!holds(&bytes, 7, AT), "byte {i}");
            bytes[i] ^= 1;
        }
        for other in [
            Place { layer: 4, ..AT },
            Place { index: 4, ..AT },
            Place { offset: 8, ..AT },
        ] {
            assert!(!holds(&bytes, 7, other), "{other:?}");
        }
        assert!(!holds(&bytes, 8, AT));
    }

    #[test]
    fn a_part_of_a_page_has_that_part_of_the_pattern() {
        let mut bytes = [0; 64];
        fill(&mut bytes, 1, AT);
        assert!(holds(&bytes[24..], 1, Place { offset: 24, ..AT }));
    }
}
