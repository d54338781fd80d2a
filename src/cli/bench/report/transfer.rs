//! What `bench transfer` says.

use super::super::super::args::TransferArgs;
use super::super::super::exit::Failure;
use super::super::super::proc;
use super::super::ends::Between;
use super::super::run_transfer::{OneCopyTimes, Times};
use super::super::stats::Spread;
use super::super::workload::Workload;
use super::{Report, Triple, at_least, micros, spread};
use serde::Serialize;
use std::fmt;
use std::time::Duration;

/// Result of `bench transfer`.
#[derive(Debug, Serialize)]
#[allow(
    non_snake_case,
    reason = "GBps is the name that every program of these workloads uses"
)]
pub(crate) struct TransferReport {
    #[serde(flatten)]
    between: Between,
    workload: String,
    kind: &'static str,
    lanes: u16,
    reps: usize,
    /// Of one request.
    bytes: u64,
    /// Every byte of a request was compared. A difference is a failure, not a report.
    verified: bool,
    GBps: Spread,
    us: Spread,
    memcpy_GBps: f64,
    ratio_memcpy: f64,
    raw_GBps: Option<Spread>,
    ratio_raw_tcp: Option<f64>,
    ratio_raw_tcp_pairs: Option<f64>,
    one_copy: Option<&'static str>,
    one_copy_GBps: Option<Spread>,
    ratio_one_copy: Option<f64>,
}

impl TransferReport {
    /// Of rooms, and of plain copies and raw TCP that were taken in turns with them.
    pub(crate) fn new(
        args: &TransferArgs,
        between: Between,
        w: &Workload,
        times: &Times,
    ) -> Result<TransferReport, Failure> {
        let rates = |times: &[Duration]| {
            let rate = |t: &Duration| w.request_bytes() as f64 / t.as_secs_f64() / 1e9;
            spread(times.iter().map(rate).collect())
        };
        let all = times.one_copy.iter().flat_map(|both| &both.rooms);
        let all: Vec<Duration> = times.rooms.iter().chain(all).copied().collect();
        let (moved, copied) = (rates(&all)?, rates(&times.memcpy)?);
        let ratios = |of: &[Duration], to: &[Duration]| {
            let both = of.iter().zip(to);
            let ratios = both.map(|(of, to)| to.as_secs_f64() / of.as_secs_f64());
            Ok::<_, Failure>(spread(ratios.collect())?.median)
        };
        let (mut raw, mut pairs) = (None, None);
        if !times.raw.is_empty() {
            raw = Some(rates(&times.raw)?);
            pairs = Some(ratios(&times.rooms, &times.raw)?);
        }
        // The best of the best copies: of noise the median is no part, as a minimum would be.
        let mut best: Option<(&OneCopyTimes, Spread)> = None;
        for both in &times.one_copy {
            let rate = rates(&both.copies)?;
            if best.is_none_or(|(_, b)| rate.median > b.median) {
                best = Some((both, rate));
            }
        }
        let ratio_one_copy = best.map(|(both, _)| ratios(&both.rooms, &both.copies));
        Ok(TransferReport {
            between,
            workload: w.name.clone(),
            kind: w.kind.name(),
            lanes: args.ends.lanes,
            reps: all.len(),
            bytes: w.request_bytes(),
            verified: true,
            GBps: moved,
            us: spread(all.iter().map(micros).collect())?,
            memcpy_GBps: copied.median,
            ratio_memcpy: moved.median / copied.median,
            raw_GBps: raw,
            ratio_raw_tcp: raw.map(|raw| moved.median / raw.median),
            ratio_raw_tcp_pairs: pairs,
            one_copy: best.map(|(both, _)| both.kernel.name()),
            one_copy_GBps: best.map(|(_, rate)| rate),
            ratio_one_copy: ratio_one_copy.transpose()?,
        })
    }
}

impl Report for TransferReport {
    type Bars = TransferArgs;
    fn unmet(&self, bars: &TransferArgs) -> Vec<String> {
        let memcpy = at_least("ratio_memcpy", self.ratio_memcpy, bars.require_ratio);
        // Without a ratio the bar is not met.
        let raw = self.ratio_raw_tcp.unwrap_or(f64::NAN);
        let raw = at_least("ratio_raw_tcp", raw, bars.require_ratio_raw);
        let one_copy = self.ratio_one_copy.unwrap_or(f64::NAN);
        let one_copy = at_least("ratio_one_copy", one_copy, bars.require_ratio_one_copy);
        memcpy.into_iter().chain(raw).chain(one_copy).collect()
    }
}

impl fmt::Display for TransferReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = proc::bytes(self.bytes);
        writeln!(
            f,
            "{} over {}, {size} a request",
            self.workload, self.between
        )?;
        writeln!(f, "  kvroom   {} GB/s", Triple(&self.GBps))?;
        writeln!(f, "  memcpy   {:.2} GB/s", self.memcpy_GBps)?;
        writeln!(f, "  ratio    {:.3}", self.ratio_memcpy)?;
        if let (Some(raw), Some(ratio), Some(pairs)) =
            (&self.raw_GBps, self.ratio_raw_tcp, self.ratio_raw_tcp_pairs)
        {
            writeln!(f, "  raw TCP  {} GB/s", Triple(raw))?;
            writeln!(f, "  ratio    {ratio:.3}, median of pairs {pairs:.3}")?;
        }
        if let (Some(best), Some(rate), Some(ratio)) =
            (self.one_copy, &self.one_copy_GBps, self.ratio_one_copy)
        {
            writeln!(f, "  one copy {} GB/s ({best})", Triple(rate))?;
            writeln!(f, "  ratio    {ratio:.3}, median of pairs")?;
        }
        writeln!(f, "  time     {} µs", Triple(&self.us))?;
        let lanes = if self.lanes == 1 { "lane" } else { "lanes" };
        writeln!(
            f,
            "  {} repetitions, {} {lanes}, every byte compared",
            self.reps, self.lanes
        )
    }
}
