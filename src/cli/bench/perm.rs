//! Which page slots a request takes: a Fisher–Yates shuffle driven by splitmix64.
//!
//! Other programs measure the same workloads; equal seeds give them and us equal lists.

/// A shuffle of `0..pool` that follows from `seed` alone.
pub(crate) fn perm(pool: u32, seed: u64) -> Vec<u32> {
    let mut slots: Vec<u32> = (0..pool).collect();
    let mut state = seed;
    for i in (1..slots.len()).rev() {
        let j = splitmix64(&mut state) % (i as u64 + 1);
        slots.swap(i, j as usize);
    }
    slots
}

fn splitmix64(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// FNV-1a over the slots as little-endian u32.
    fn digest(slots: &[u32]) -> u64 {
        slots
            .iter()
            .flat_map(|s| s.to_le_bytes())
            .fold(0xcbf2_9ce4_8422_2325, |h, b| {
                (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3)
            })
    }

    #[test]
    fn small_shuffles_are_those_of_the_reference() {
        assert_eq!(perm(10, 2), [9, 8, 3, 2, 4, 6, 1, 7, 5, 0]);
        assert_eq!(perm(10, 3), [2, 8, 7, 4, 5, 6, 0, 1, 9, 3]);
        assert_eq!(perm(1, 8), [0]);
        assert_eq!(perm(0, 8), [0u32; 0]);
    }

    /// The numbers were computed with the Python reference of the workloads.
    #[test]
    fn every_built_in_workload_takes_the_slots_of_the_reference() {
        let cases = [
            (
                "a_32x64x16K",
                [74, 6, 76, 13],
                0x6ab6_67de_e1a4_65ad,
                0xc2da_d16b_ccbc_ef93,
            ),
            (
                "b_32x512x16K",
                [223, 478, 11, 88],
                0x7694_8fe4_0e00_ba15,
                0x23f2_7ffc_28f3_58a7,
            ),
            (
                "c_1x16384x4K",
                [15916, 32625, 929, 7461],
                0x08ab_818d_0226_1b56,
                0x8ee9_9db5_05ae_88c0,
            ),
            (
                "tiny_1x1x16K",
                [41, 8, 97, 112],
                0xadaa_a9af_328e_a9cc,
                0x8d70_0e0a_e6dd_c407,
            ),
            (
                "many_8x16K",
                [300, 174, 50, 381],
                0x3605_d3e9_5652_b109,
                0x87e8_f475_7799_ab8a,
            ),
        ];
        for (name, first, source, destination) in cases {
            let w = super::super::workload::find(name).unwrap();
            assert_eq!(perm(w.pool_pages, w.seed * 2)[..4], first, "{name}");
            assert_eq!(digest(&w.source_slots()), source, "{name}");
            assert_eq!(digest(&w.destination_slots()), destination, "{name}");
        }
    }
}
