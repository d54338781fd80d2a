//! What `bench latency` says.

use super::super::super::args::LatencyArgs;
use super::super::super::exit::Failure;
use super::super::super::proc;
use super::super::ends::Between;
use super::super::run_latency;
use super::super::stats::{Percentiles, Spread};
use super::{Report, Triple, at_most, percentiles, rows, spread};
use serde::Serialize;
use std::fmt;
use std::time::Duration;

/// Times of one small room.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LatencyTimes {
    /// Until the outcome was known.
    pub(crate) done: Duration,
    /// Until the destination's lease was back.
    pub(crate) released: Duration,
}

/// Small rooms beside bulk rooms.
#[derive(Debug)]
pub(crate) struct BusyTimes {
    /// Of one bulk room.
    pub(crate) bytes: u64,
    /// The small rooms.
    pub(crate) rooms: Vec<LatencyTimes>,
    /// The bulk rooms.
    pub(crate) bulk: Vec<Duration>,
}

/// Result of `bench latency`.
#[derive(Debug, Serialize)]
pub(crate) struct LatencyReport {
    #[serde(flatten)]
    between: Between,
    lanes: u16,
    reps: usize,
    page_bytes: u64,
    done_us: Percentiles,
    released_us: Percentiles,
    busy: Option<Busy>,
}

#[derive(Debug, Serialize)]
#[allow(
    non_snake_case,
    reason = "GBps is the name that every program of these workloads uses"
)]
struct Busy {
    bytes: u64,
    rooms: usize,
    GBps: Spread,
    done_us: Percentiles,
    released_us: Percentiles,
    ratio_p90: f64,
}

impl LatencyReport {
    /// Of rooms one after the other.
    pub(crate) fn new(
        args: &LatencyArgs,
        between: Between,
        times: &[LatencyTimes],
        beside: Option<&BusyTimes>,
    ) -> Result<LatencyReport, Failure> {
        let done_us = percentiles(times, |t| t.done)?;
        let busy = beside.map(|beside| {
            let busy_us = percentiles(&beside.rooms, |t| t.done)?;
            let rate = |t: &Duration| beside.bytes as f64 / t.as_secs_f64() / 1e9;
            Ok::<_, Failure>(Busy {
                bytes: beside.bytes,
                rooms: beside.bulk.len(),
                GBps: spread(beside.bulk.iter().map(rate).collect())?,
                done_us: busy_us,
                released_us: percentiles(&beside.rooms, |t| t.released)?,
                ratio_p90: busy_us.p90 / done_us.p90,
            })
        });
        Ok(LatencyReport {
            between,
            lanes: args.ends.lanes,
            reps: times.len(),
            page_bytes: run_latency::PAGE_BYTES,
            done_us,
            released_us: percentiles(times, |t| t.released)?,
            busy: busy.transpose()?,
        })
    }
}

impl Report for LatencyReport {
    type Bars = LatencyArgs;
    fn unmet(&self, bars: &LatencyArgs) -> Vec<String> {
        let p50 = at_most("p50 of done_us", self.done_us.p50, bars.require_p50_us);
        let ratio = self.busy.as_ref().map_or(f64::NAN, |busy| busy.ratio_p90);
        let ratio = at_most("ratio_p90 of busy", ratio, bars.require_busy_ratio);
        p50.into_iter().chain(ratio).collect()
    }
}

impl fmt::Display for LatencyReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let page = proc::bytes(self.page_bytes);
        writeln!(f, "one page of {page} over {}", self.between)?;
        let mut table = vec![("done", self.done_us), ("released", self.released_us)];
        if let Some(busy) = &self.busy {
            table.push(("busy", busy.done_us));
            table.push(("released", busy.released_us));
        }
        rows(f, &table)?;
        if let Some(busy) = &self.busy {
            let (bytes, rooms, rate) = (proc::bytes(busy.bytes), busy.rooms, Triple(&busy.GBps));
            writeln!(f, "  busy: beside {rooms} rooms of {bytes}, {rate} GB/s")?;
            writeln!(f, "  ratio    {:.2} of p90, busy to alone", busy.ratio_p90)?;
        }
        writeln!(f, "  {} rooms, one after the other", self.reps)
    }
}
