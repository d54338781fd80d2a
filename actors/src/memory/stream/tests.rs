//! Every path against a plain copy, and the rule of the fence.

use super::choice::Path;
use super::measure::{Times, decide, measure};
use super::{Copier, LINE, Stores, Unfenced, Wide, copy, fence};
use proptest::prelude::*;
use std::cell::Cell;
use std::ptr::NonNull;

thread_local! {
    /// Fences of this thread.
    pub(super) static FENCES: Cell<usize> = const { Cell::new(0) };
}

/// What destinations hold before a copy.
const GUARD: u8 = 0xEE;

/// Every way there is on this processor: plain, and each width with one stream and with two.
fn paths() -> Vec<Path> {
    let wide = Wide::all();
    if !wide.iter().any(|w| w.name() == "AVX-512") {
        eprintln!("SKIPPED: this processor has no AVX-512, so its loops are NOT tested here");
    }
    if wide.is_empty() {
        eprintln!("SKIPPED: this processor has no AVX2, so only the portable copy is tested here");
    }
    let mut paths = vec![Path {
        wide: None,
        from: 0,
        pairs: true,
    }];
    for w in wide {
        for (pairs, from) in [(true, 0), (false, 0), (true, 100)] {
            paths.push(Path {
                wide: Some(w),
                from,
                pairs,
            });
        }
    }
    paths
}

/// One run: where in the source, how many bytes, and how many bytes of guard lie before it.
type Shape = (usize, usize, usize);

/// Copies runs of these shapes into one buffer with guards around each, and compares all of it.
fn check(path: Path, shapes: &[Shape]) {
    let mut random = 0x9E37_79B9_u32;
    let mut source: Vec<u8> = (0..shapes.iter().map(|s| s.0 + s.1).max().unwrap_or(0))
        .map(|_| {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (random >> 24) as u8
        })
        .collect();
    let room: usize = shapes.iter().map(|s| s.1 + s.2).sum::<usize>() + 2 * LINE;
    let mut got = vec![GUARD; room];
    let mut expected = got.clone();
    let unfenced = Unfenced::default();
    let mut copier = Copier::with(path, &unfenced);
    let from = NonNull::new(source.as_mut_ptr()).unwrap();
    let to = NonNull::new(got.as_mut_ptr()).unwrap();
    let mut at = 0;
    for (offset, bytes, guard) in shapes {
        at += guard;
        expected[at..at + bytes].copy_from_slice(&source[*offset..offset + bytes]);
        // SAFETY: within the source, whose length is the largest of these sums.
        let from = unsafe { from.add(*offset) };
        // SAFETY: within the destination, whose length is the sum of all and more.
        let to = unsafe { to.add(at) };
        // SAFETY: two buffers, which are not looked at before the flush; each run has bytes of the
        // destination for itself.
        unsafe { copier.copy(from, to, *bytes) };
        at += bytes;
    }
    copier.flush();
    drop(unfenced);
    assert!(got == expected, "{path:?} copied {shapes:?} wrongly");
}

#[test]
fn every_path_copies_what_a_plain_copy_does_and_nothing_around_it() {
    for path in paths() {
        for bytes in [0, 1, 31, 63, 64, 65, 127, 128, 129, 4095, 4096, 5000] {
            for guard in [0, 1, 32, 63] {
                check(path, &[(3, bytes, guard)]);
                check(path, &[(0, bytes, guard), (7, bytes, guard)]);
            }
        }
        // Destinations at every distance from sources, modulo a page.
        for guard in [64, 512, 768, 1024, 2048, 4032] {
            check(
                path,
                &[(0, 20_000, guard), (0, 20_000, 0), (64, 9_000, guard)],
            );
        }
        // Alone in halves, in pairs of unequal length, too long for a pair, and an odd one out.
        check(path, &[(1, 16 << 10, 5)]);
        check(path, &[(1, (64 << 10) + 17, 5), (9, 300 << 10, 1)]);
        check(path, &[(0, 16 << 10, 64), (64, 48 << 10, 0), (5, 4096, 3)]);
        check(path, &[(0, 0, 64), (64, 4096, 0)]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_path_copies_runs_of_any_shape(
        shapes in prop::collection::vec(
            (0..200_usize, prop_oneof![0..300_usize, 0..20_000_usize, 0..150_000_usize], 0..130_usize),
            1..7,
        )
    ) {
        for path in paths() {
            check(path, &shapes);
        }
    }
}

#[test]
fn a_copy_of_one_run_says_whether_it_must_be_fenced() {
    let source: Vec<u8> = (0..40_000).map(|i| i as u8).collect();
    let mut got = vec![GUARD; 40_100];
    let from = NonNull::from(source.as_slice()).cast::<u8>();
    let to = NonNull::new(got.as_mut_ptr()).unwrap();
    // SAFETY: within the destination.
    let to = unsafe { to.add(50) };
    // SAFETY: two buffers, 40,000 bytes of each.
    let stores = unsafe { copy(from, to, 40_000, Some(from)) };
    if Wide::all().is_empty() {
        assert_eq!(stores, Stores::Ordered);
    }
    fence();
    assert!(got[50..40_050] == source[..]);
    assert!(got[..50].iter().chain(&got[40_050..]).all(|b| *b == GUARD));
    // SAFETY: nothing is copied.
    let stores = unsafe { copy(from, to, 0, None) };
    assert_eq!(stores, Stores::Ordered);
}

#[test]
fn streaming_stores_are_fenced_once_and_plain_ones_are_not() {
    let fences = || FENCES.with(Cell::get);
    let before = fences();
    drop(Unfenced::default());
    let plain = Unfenced::default();
    plain.note(Stores::Ordered);
    drop(plain);
    assert_eq!(fences(), before);
    let streamed = Unfenced::default();
    streamed.note(Stores::Streaming);
    streamed.note(Stores::Ordered);
    streamed.note(Stores::Streaming);
    assert_eq!(fences(), before);
    drop(streamed);
    assert_eq!(fences(), before + 1);
}

#[test]
fn runs_that_are_long_enough_are_streamed_and_others_are_not() {
    for wide in Wide::all() {
        let path = Path {
            wide: Some(wide),
            from: 4096,
            pairs: true,
        };
        let source = vec![1_u8; 8192];
        for (bytes, streams) in [(4095, false), (4096, true), (8192, true)] {
            let mut got = vec![0_u8; bytes];
            let unfenced = Unfenced::default();
            let mut copier = Copier::with(path, &unfenced);
            let from = NonNull::from(source.as_slice()).cast();
            let to = NonNull::from(got.as_mut_slice()).cast();
            // SAFETY: two buffers with as many bytes.
            unsafe { copier.copy(from, to, bytes) };
            copier.flush();
            assert_eq!(unfenced.streamed.get(), streams, "{bytes}");
        }
    }
}

fn times(memcpy: [f64; 4], one: [f64; 4], two: [f64; 4]) -> Times {
    Times {
        memcpy: memcpy.to_vec(),
        one: one.to_vec(),
        two: two.to_vec(),
    }
}

#[test]
fn streaming_begins_at_the_smallest_size_that_wins_by_more_than_noise() {
    let sizes = [1, 2, 3];
    let wins = times([10.0; 4], [9.0; 4], [8.0; 4]);
    let level = times([10.0; 4], [10.0; 4], [9.9; 4]);
    let loses = times([10.0; 4], [12.0; 4], [11.0; 4]);
    let noisy = times([10.0; 4], [9.0; 4], [8.0, 8.0, 11.0, 11.0]);
    let all =
        |a: &Times, b: &Times, c: &Times| decide(&sizes, &[a.clone(), b.clone(), c.clone()]).0;
    assert_eq!(all(&wins, &wins, &wins), Some(1));
    assert_eq!(all(&level, &wins, &wins), Some(2));
    assert_eq!(all(&noisy, &wins, &wins), Some(2));
    // A size that is level does not take back a smaller one, one that loses does.
    assert_eq!(all(&wins, &level, &wins), Some(1));
    assert_eq!(all(&wins, &loses, &wins), Some(3));
    assert_eq!(all(&wins, &wins, &loses), None);
    assert_eq!(all(&level, &level, &level), None);
}

#[test]
fn two_streams_are_used_if_they_are_faster_for_most_sizes() {
    let sizes = [1, 2, 3];
    let two = times([10.0; 4], [9.0; 4], [8.0; 4]);
    let one = times([10.0; 4], [8.0; 4], [12.0; 4]);
    let of = |a: &Times, b: &Times, c: &Times| decide(&sizes, &[a.clone(), b.clone(), c.clone()]);
    assert_eq!(
        of(&two, &two, &one),
        (None, true),
        "the largest loses in pairs"
    );
    assert_eq!(of(&two, &one, &one), (Some(1), false));
}

#[test]
fn a_measurement_is_short_and_without_wide_stores_chooses_memcpy() {
    assert_eq!(measure(None).from, None);
    for wide in Wide::all() {
        let measured = measure(Some(wide));
        assert!(measured.rounds > 0);
        assert_eq!(measured.samples.len(), 5);
        for sample in &measured.samples {
            for rate in [sample.memcpy, sample.one, sample.two] {
                assert!(rate.is_finite() && rate > 0.0, "{sample:?}");
            }
        }
        eprintln!("{measured:?}");
    }
}
