//! What the benches say: the JSON objects, the tables, and the bars they are held against.

mod abort;
mod latency;
mod quiet;
mod rate;
mod rooms;
mod transfer;

pub(crate) use abort::{AbortReport, AbortTimes};
pub(crate) use latency::{BusyTimes, LatencyReport, LatencyTimes};
pub(crate) use quiet::{IdleCpuReport, Sample, SoakReport};
pub(crate) use rate::{RateReport, RateTimes};
pub(crate) use rooms::{Idle, RoomsReport};
pub(crate) use transfer::TransferReport;

use super::super::exit::Failure;
use super::ends::Between;
use super::stats::{Percentiles, Spread};
use serde::Serialize;
use std::fmt;
use std::time::Duration;

/// A result that can be printed and held against bars.
pub(crate) trait Report: Serialize + fmt::Display {
    /// Bars that were asked for.
    type Bars;
    /// One sentence for each bar that is not met.
    fn unmet(&self, bars: &Self::Bars) -> Vec<String>;
}

impl fmt::Display for Between {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.fabric)?;
        if self.fabric == "local" {
            return Ok(());
        }
        let processes = if self.processes == 1 {
            "one process"
        } else {
            "two processes"
        };
        write!(f, " ({processes}, {} sockets", self.transport)?;
        if let (Some(connections), Some(congestion)) = (self.connections, &self.congestion) {
            write!(f, ", {connections} for large pieces, TCP with {congestion}")?;
        }
        f.write_str(")")
    }
}

/// A table of percentiles.
fn rows(f: &mut fmt::Formatter<'_>, rows: &[(&str, Percentiles)]) -> fmt::Result {
    writeln!(f, "  µs            p50        p90        p99        max")?;
    for (name, p) in rows {
        let (p50, p90, p99, max) = (p.p50, p.p90, p.p99, p.max);
        writeln!(
            f,
            "  {name:<8} {p50:>10.1} {p90:>10.1} {p99:>10.1} {max:>10.1}"
        )?;
    }
    Ok(())
}

fn percentiles<T>(times: &[T], pick: fn(&T) -> Duration) -> Result<Percentiles, Failure> {
    let values: Vec<f64> = times.iter().map(|t| micros(&pick(t))).collect();
    Percentiles::of(&values).ok_or_else(nothing)
}

struct Triple<'a>(&'a Spread);

impl fmt::Display for Triple<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Spread { min, median, max } = self.0;
        write!(f, "{median:.2} (min {min:.2}, max {max:.2})")
    }
}

fn at_least(what: &str, value: f64, bar: Option<f64>) -> Option<String> {
    // Written so that a value that is no number does not pass.
    bar.filter(|&b| value.partial_cmp(&b).is_none_or(|o| o.is_lt()))
        .map(|b| format!("{what} is {value:.3}, required is at least {b}"))
}

fn at_most(what: &str, value: f64, bar: Option<f64>) -> Option<String> {
    bar.filter(|&b| value.partial_cmp(&b).is_none_or(|o| o.is_gt()))
        .map(|b| format!("{what} is {value:.3}, required is at most {b}"))
}

fn micros(t: &Duration) -> f64 {
    t.as_secs_f64() * 1e6
}

fn spread(values: Vec<f64>) -> Result<Spread, Failure> {
    Spread::of(&values).ok_or_else(nothing)
}

fn nothing() -> Failure {
    Failure::Failed("nothing was measured".to_owned())
}

#[cfg(test)]
mod tests;
