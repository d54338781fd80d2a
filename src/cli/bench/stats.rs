//! Summaries of repeated measurements.

use serde::Serialize;

/// Smallest, middle and largest of some measurements.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Spread {
    /// The smallest.
    pub(crate) min: f64,
    /// The middle one, or the mean of the two in the middle.
    pub(crate) median: f64,
    /// The largest.
    pub(crate) max: f64,
}

impl Spread {
    /// Of `values`; `None` if there are none.
    pub(crate) fn of(values: &[f64]) -> Option<Spread> {
        let v = sorted(values);
        let (min, max) = (*v.first()?, *v.last()?);
        let median = (v[(v.len() - 1) / 2] + v[v.len() / 2]) / 2.0;
        Some(Spread { min, median, max })
    }
}

/// Percentiles of some measurements. `p90` is the value that 90 % of them do not exceed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Percentiles {
    pub(crate) p50: f64,
    pub(crate) p90: f64,
    pub(crate) p99: f64,
    pub(crate) max: f64,
}

impl Percentiles {
    /// Of `values`; `None` if there are none.
    pub(crate) fn of(values: &[f64]) -> Option<Percentiles> {
        let v = sorted(values);
        let max = *v.last()?;
        // Nearest rank: the ceiling of len × percent / 100, counted from 1.
        let at = |percent: usize| v[(v.len() * percent).div_ceil(100) - 1];
        Some(Percentiles {
            p50: at(50),
            p90: at(90),
            p99: at(99),
            max,
        })
    }
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut v = values.to_vec();
    v.sort_by(f64::total_cmp);
    v
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_measured_gives_no_summary() {
        assert_eq!(Spread::of(&[]), None);
        assert_eq!(Percentiles::of(&[]), None);
    }

    #[test]
    fn the_median_of_an_even_count_lies_between_the_middle_two() {
        let s = Spread::of(&[4.0, 1.0, 2.0, 10.0]).unwrap();
        assert_eq!(
            s,
            Spread {
                min: 1.0,
                median: 3.0,
                max: 10.0
            }
        );
        assert_eq!(Spread::of(&[5.0, 1.0, 3.0]).unwrap().median, 3.0);
    }

    #[test]
    fn percentiles_are_nearest_ranks() {
        let v: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        let p = Percentiles::of(&v).unwrap();
        assert_eq!(
            p,
            Percentiles {
                p50: 50.0,
                p90: 90.0,
                p99: 99.0,
                max: 100.0
            }
        );
        let one = Percentiles::of(&[7.0]).unwrap();
        assert_eq!(
            one,
            Percentiles {
                p50: 7.0,
                p90: 7.0,
                p99: 7.0,
                max: 7.0
            }
        );
    }
}
