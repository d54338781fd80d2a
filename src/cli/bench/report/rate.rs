//! What `bench rate` says.

use super::super::super::args::RateArgs;
use super::super::super::exit::Failure;
use super::super::super::proc;
use super::super::ends::Between;
use super::super::stats::Spread;
use super::super::workload::Workload;
use super::{Report, Triple, at_least, nothing, spread};
use serde::Serialize;
use std::fmt;
use std::time::Duration;

/// The repetitions with so many rooms under way at a time.
#[derive(Debug)]
pub(crate) struct RateTimes {
    pub(crate) inflight: u16,
    pub(crate) times: Vec<Duration>,
}

/// Result of `bench rate`.
#[derive(Debug, Serialize)]
pub(crate) struct RateReport {
    #[serde(flatten)]
    between: Between,
    workload: String,
    lanes: u16,
    reps: u32,
    rooms_per_rep: u32,
    /// Of one room.
    bytes: u64,
    /// The last rooms of a repetition were compared. A difference is a failure, not a report.
    verified: bool,
    rates: Vec<Rate>,
    rooms_per_s: f64,
}

#[derive(Debug, Serialize)]
#[allow(
    non_snake_case,
    reason = "GBps is the name that every program of these workloads uses"
)]
struct Rate {
    inflight: u16,
    rooms_per_s: Spread,
    GBps: f64,
}

impl RateReport {
    /// Of repetitions of `args.rooms` rooms.
    pub(crate) fn new(
        args: &RateArgs,
        between: Between,
        w: &Workload,
        times: &[RateTimes],
    ) -> Result<RateReport, Failure> {
        let mut rates = Vec::new();
        for one in times {
            let rate = |t: &Duration| f64::from(args.rooms) / t.as_secs_f64();
            let rooms_per_s = spread(one.times.iter().map(rate).collect())?;
            rates.push(Rate {
                inflight: one.inflight,
                rooms_per_s,
                GBps: rooms_per_s.median * w.request_bytes() as f64 / 1e9,
            });
        }
        let last = rates.last().ok_or_else(nothing)?.rooms_per_s.median;
        Ok(RateReport {
            between,
            workload: w.name.clone(),
            lanes: args.ends.lanes,
            reps: args.reps,
            rooms_per_rep: args.rooms,
            bytes: w.request_bytes(),
            verified: true,
            rates,
            rooms_per_s: last,
        })
    }
}

impl Report for RateReport {
    type Bars = RateArgs;
    fn unmet(&self, bars: &RateArgs) -> Vec<String> {
        at_least("rooms_per_s", self.rooms_per_s, bars.require_rate)
            .into_iter()
            .collect()
    }
}

impl fmt::Display for RateReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = proc::bytes(self.bytes);
        writeln!(f, "{} over {}, {size} a room", self.workload, self.between)?;
        for rate in &self.rates {
            let (inflight, gbps) = (rate.inflight, rate.GBps);
            let rooms = Triple(&rate.rooms_per_s);
            writeln!(
                f,
                "  {inflight:>3} under way  {rooms} rooms/s, {gbps:.2} GB/s"
            )?;
        }
        writeln!(
            f,
            "  {} repetitions of {} rooms",
            self.reps, self.rooms_per_rep
        )
    }
}
