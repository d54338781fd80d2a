//! Durations counted in fixed buckets, by any thread at any time.
//!
//! ```text
//!   bucket   0      1      2      …   26      27       28
//!   up to    1 µs   2 µs   4 µs   …   67 s    134 s    no bound
//! ```
//!
//! A bucket ends where twice the one before it does, bound included: which one a duration falls into
//! is one count of leading zeroes, and recording it two relaxed additions. Nothing is allocated and
//! nothing waits; a reading while others record may miss what is being recorded, and no more.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Buckets with a bound. One more has none.
const BOUNDED: usize = 28;

/// Durations, counted.
#[derive(Debug, Default)]
pub struct Histogram {
    counts: [AtomicU64; BOUNDED + 1],
    nanos: AtomicU64,
}

/// A reading of a [`Histogram`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Durations {
    counts: [u64; BOUNDED + 1],
    nanos: u64,
}

impl Histogram {
    /// Counts one.
    pub fn record(&self, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.counts[bucket(nanos)].fetch_add(1, Ordering::Relaxed);
        self.nanos.fetch_add(nanos, Ordering::Relaxed);
    }

    /// What was counted so far.
    pub fn read(&self) -> Durations {
        let mut counts = [0; BOUNDED + 1];
        for (read, counted) in counts.iter_mut().zip(&self.counts) {
            *read = counted.load(Ordering::Relaxed);
        }
        Durations {
            counts,
            nanos: self.nanos.load(Ordering::Relaxed),
        }
    }
}

impl Durations {
    /// How many there are.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Their sum.
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.nanos)
    }

    /// Each bucket: the longest duration that falls into it (none for the last one), and how many did.
    pub fn buckets(&self) -> impl Iterator<Item = (Option<Duration>, u64)> + '_ {
        let bounds = (0..BOUNDED).map(bound).map(Some).chain([None]);
        bounds.zip(self.counts.iter().copied())
    }

    /// The duration that a share `of` them (0 to 1) does not exceed, as exactly as the buckets tell:
    /// between two bounds it is taken to be spread evenly. None if there are none.
    pub fn quantile(&self, of: f64) -> Option<Duration> {
        let all = self.count();
        if all == 0 {
            return None;
        }
        let wanted = of.clamp(0.0, 1.0) * all as f64;
        let (mut below, mut from) = (0.0, Duration::ZERO);
        for (to, count) in self.buckets() {
            let here = count as f64;
            let Some(to) = to else { break };
            if here > 0.0 && below + here >= wanted {
                return Some(from + (to - from).mul_f64(((wanted - below) / here).max(0.0)));
            }
            below += here;
            from = to;
        }
        // Longer than any bound.
        Some(from)
    }

    /// What came after an earlier reading of the same.
    #[must_use]
    pub fn since(&self, earlier: &Durations) -> Durations {
        let mut later = self.clone();
        for (count, before) in later.counts.iter_mut().zip(&earlier.counts) {
            *count = count.saturating_sub(*before);
        }
        later.nanos = later.nanos.saturating_sub(earlier.nanos);
        later
    }

    /// Both together.
    #[must_use]
    pub fn and(mut self, other: &Durations) -> Durations {
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        self.nanos = self.nanos.wrapping_add(other.nanos);
        self
    }
}

fn bound(bucket: usize) -> Duration {
    Duration::from_micros(1 << bucket)
}

fn bucket(nanos: u64) -> usize {
    match nanos.div_ceil(1_000) {
        0 | 1 => 0,
        micros => ((u64::BITS - (micros - 1).leading_zeros()) as usize).min(BOUNDED),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    const US: fn(u64) -> Duration = Duration::from_micros;

    #[test]
    fn a_duration_falls_into_the_first_bucket_whose_bound_it_does_not_exceed() {
        let all = Histogram::default();
        for took in [
            US(0),
            US(1),
            Duration::from_nanos(1_001),
            US(2),
            US(3),
            US(1 << 27),
        ] {
            all.record(took);
        }
        all.record(US((1 << 27) + 1));
        all.record(Duration::MAX);
        let filled: Vec<_> = all.read().buckets().filter(|(_, n)| *n > 0).collect();
        assert_eq!(
            filled,
            [
                (Some(US(1)), 2),
                (Some(US(2)), 2),
                (Some(US(4)), 1),
                (Some(US(1 << 27)), 1),
                (None, 2)
            ]
        );
        assert_eq!(all.read().count(), 8);
    }

    #[test]
    fn a_quantile_lies_in_the_bucket_that_holds_it() {
        let all = Histogram::default();
        assert_eq!(all.read().quantile(0.5), None);
        (0..90).for_each(|_| all.record(US(3)));
        (0..10).for_each(|_| all.record(US(1_000)));
        let all = all.read();
        let median = all.quantile(0.5).unwrap();
        assert!(US(2) < median && median <= US(4), "{median:?}");
        let p99 = all.quantile(0.99).unwrap();
        assert!(US(512) < p99 && p99 <= US(1_024), "{p99:?}");
        assert_eq!(all.quantile(1.0), Some(US(1_024)));
    }

    #[test]
    fn what_came_since_an_earlier_reading_is_all_but_that() {
        let all = Histogram::default();
        all.record(US(10));
        let before = all.read();
        all.record(US(70));
        let since = all.read().since(&before);
        assert_eq!((since.count(), since.sum()), (1, US(70)));
        assert_eq!(before.clone().and(&since), all.read());
    }

    proptest! {
        #[test]
        fn every_duration_is_above_the_bound_before_its_bucket_and_not_above_its_own(nanos: u64) {
            let at = bucket(nanos);
            let took = Duration::from_nanos(nanos);
            prop_assert!(at == BOUNDED || took <= bound(at));
            prop_assert!(at == 0 || took > bound(at - 1));
        }
    }
}
