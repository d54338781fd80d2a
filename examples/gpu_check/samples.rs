//! Two ways in turns, and the ratio of their times.

use std::time::Duration;

/// What was seen of two ways that were measured in turns.
#[derive(Clone, Debug)]
pub(crate) struct Ratios {
    /// Time of the first over time of the second, of each round, in order of size.
    sorted: Vec<f64>,
    /// Median times.
    pub(crate) first: Duration,
    pub(crate) second: Duration,
}

impl Ratios {
    pub(crate) fn median(&self) -> f64 {
        self.at(0.5)
    }

    /// Median, and what nine rounds of ten lie between.
    pub(crate) fn said(&self) -> String {
        let rounds = self.sorted.len();
        let (median, low, high) = (self.median(), self.at(0.05), self.at(0.95));
        format!("{median:.3} ({low:.3} to {high:.3}, {rounds} rounds)")
    }

    fn at(&self, part: f64) -> f64 {
        let last = self.sorted.len().saturating_sub(1);
        let at = (last as f64 * part).round() as usize;
        self.sorted.get(at).copied().unwrap_or(0.0)
    }
}

/// Measures both `rounds` times: A, B, B, A, A, B, …, after one of each that does not count.
pub(crate) fn in_turns<E>(
    rounds: usize,
    mut first: impl FnMut() -> Result<Duration, E>,
    mut second: impl FnMut() -> Result<Duration, E>,
) -> Result<Ratios, E> {
    first()?;
    second()?;
    let (mut ratios, mut firsts, mut seconds) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..rounds {
        let (a, b) = if round % 2 == 0 {
            let a = first()?;
            (a, second()?)
        } else {
            let b = second()?;
            (first()?, b)
        };
        ratios.push(a.as_secs_f64() / b.as_secs_f64().max(1e-9));
        firsts.push(a);
        seconds.push(b);
    }
    ratios.sort_unstable_by(f64::total_cmp);
    let median = |mut times: Vec<Duration>| {
        times.sort_unstable();
        times.get(times.len() / 2).copied().unwrap_or_default()
    };
    Ok(Ratios {
        sorted: ratios,
        first: median(firsts),
        second: median(seconds),
    })
}

/// Bytes in a time, as GB (10^9 bytes) a second.
pub(crate) fn rate(bytes: u64, time: Duration) -> String {
    format!(
        "{:.1} GB/s",
        bytes as f64 / time.as_secs_f64().max(1e-9) / 1e9
    )
}
