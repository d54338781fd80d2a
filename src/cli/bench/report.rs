//! What the benches say: the JSON objects, the tables, and the bars they are held against.

use super::super::args::{AbortArgs, LatencyArgs, RoomsArgs, TransferArgs};
use super::super::exit::Failure;
use super::super::pair::Link;
use super::super::proc;
use super::ends::Between;
use super::run_latency;
use super::run_transfer::Times;
use super::stats::{Percentiles, Spread};
use super::workload::Workload;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// A result that can be printed and held against bars.
pub(crate) trait Report: Serialize + fmt::Display {
    /// Bars that were asked for.
    type Bars;
    /// One sentence for each bar that is not met.
    fn unmet(&self, bars: &Self::Bars) -> Vec<String>;
}

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
        let (moved, copied) = (rates(&times.rooms)?, rates(&times.memcpy)?);
        let (mut raw, mut pairs) = (None, None);
        if !times.raw.is_empty() {
            raw = Some(rates(&times.raw)?);
            let both = times.rooms.iter().zip(&times.raw);
            let ratios = both.map(|(room, raw)| raw.as_secs_f64() / room.as_secs_f64());
            pairs = Some(spread(ratios.collect())?.median);
        }
        Ok(TransferReport {
            between,
            workload: w.name.clone(),
            kind: w.kind.name(),
            lanes: args.ends.lanes,
            reps: times.rooms.len(),
            bytes: w.request_bytes(),
            verified: true,
            GBps: moved,
            us: spread(times.rooms.iter().map(micros).collect())?,
            memcpy_GBps: copied.median,
            ratio_memcpy: moved.median / copied.median,
            raw_GBps: raw,
            ratio_raw_tcp: raw.map(|raw| moved.median / raw.median),
            ratio_raw_tcp_pairs: pairs,
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
        memcpy.into_iter().chain(raw).collect()
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
        writeln!(f, "  time     {} µs", Triple(&self.us))?;
        let lanes = if self.lanes == 1 { "lane" } else { "lanes" };
        writeln!(
            f,
            "  {} repetitions, {} {lanes}, every byte compared",
            self.reps, self.lanes
        )
    }
}

/// Memory of idle rooms at one count, as measured in a process of its own.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Idle {
    /// Whole rooms: a sender and a receiver.
    pub(crate) rooms: u64,
    pub(crate) bytes_per_room: f64,
    pub(crate) rss_before_bytes: u64,
    pub(crate) rss_idle_bytes: u64,
    pub(crate) rss_after_abort_bytes: u64,
}

impl Idle {
    /// Of the resident memory before, with and after `rooms` idle rooms.
    pub(crate) fn new(rooms: u64, before: u64, idle: u64, after_abort: u64) -> Idle {
        Idle {
            rooms,
            bytes_per_room: idle.saturating_sub(before) as f64 / rooms as f64,
            rss_before_bytes: before,
            rss_idle_bytes: idle,
            rss_after_abort_bytes: after_abort,
        }
    }
}

/// Result of `bench rooms`.
#[derive(Debug, Serialize)]
pub(crate) struct RoomsReport {
    processes: u8,
    transport: &'static str,
    shards: u16,
    reps: usize,
    rooms_per_rep: u64,
    rooms_per_s: f64,
    rooms_per_s_spread: Spread,
    bytes_per_idle_room: Option<f64>,
    idle: Vec<Idle>,
}

impl RoomsReport {
    /// Of repetitions of `rooms_per_rep` rooms on one shard, and of the idle counts.
    pub(crate) fn new(
        processes: u8,
        link: Link,
        rooms_per_rep: u64,
        times: &[Duration],
        idle: Vec<Idle>,
    ) -> Result<RoomsReport, Failure> {
        let rate = |t: &Duration| rooms_per_rep as f64 / t.as_secs_f64();
        let rates = spread(times.iter().map(rate).collect())?;
        let per_room: Vec<f64> = idle.iter().map(|i| i.bytes_per_room).collect();
        Ok(RoomsReport {
            processes,
            transport: link.name(),
            shards: 1,
            reps: times.len(),
            rooms_per_rep,
            rooms_per_s: rates.median,
            rooms_per_s_spread: rates,
            bytes_per_idle_room: Spread::of(&per_room).map(|s| s.max),
            idle,
        })
    }
}

impl Report for RoomsReport {
    type Bars = RoomsArgs;
    fn unmet(&self, bars: &RoomsArgs) -> Vec<String> {
        let rate = at_least("rooms_per_s", self.rooms_per_s, bars.require_rate);
        let bytes = at_most(
            "bytes_per_idle_room",
            self.bytes_per_idle_room.unwrap_or(f64::NAN),
            bars.require_bytes,
        );
        rate.into_iter().chain(bytes).collect()
    }
}

impl fmt::Display for RoomsReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let processes = if self.processes == 1 {
            "one process"
        } else {
            "two processes"
        };
        writeln!(
            f,
            "whole rooms without data over {} in {processes}, one shard a node",
            self.transport
        )?;
        writeln!(f, "  {} rooms/s", Triple(&self.rooms_per_s_spread))?;
        for i in &self.idle {
            let (rooms, bytes) = (i.rooms, i.bytes_per_room);
            let rss = proc::bytes(i.rss_idle_bytes);
            writeln!(
                f,
                "  {rooms} idle: {bytes:.0} bytes a room ({rss} resident)"
            )?;
        }
        writeln!(
            f,
            "  {} repetitions of {} rooms",
            self.reps, self.rooms_per_rep
        )
    }
}

/// Times of one small room.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LatencyTimes {
    /// Until the outcome was known.
    pub(crate) done: Duration,
    /// Until the destination's lease was back.
    pub(crate) released: Duration,
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
}

impl LatencyReport {
    /// Of rooms one after the other.
    pub(crate) fn new(
        args: &LatencyArgs,
        between: Between,
        times: &[LatencyTimes],
    ) -> Result<LatencyReport, Failure> {
        Ok(LatencyReport {
            between,
            lanes: args.ends.lanes,
            reps: times.len(),
            page_bytes: run_latency::PAGE_BYTES,
            done_us: percentiles(times, |t| t.done)?,
            released_us: percentiles(times, |t| t.released)?,
        })
    }
}

impl Report for LatencyReport {
    type Bars = LatencyArgs;
    fn unmet(&self, bars: &LatencyArgs) -> Vec<String> {
        at_most("p50 of done_us", self.done_us.p50, bars.require_p50_us)
            .into_iter()
            .collect()
    }
}

impl fmt::Display for LatencyReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let page = proc::bytes(self.page_bytes);
        writeln!(f, "one page of {page} over {}", self.between)?;
        rows(f, &[("done", self.done_us), ("released", self.released_us)])?;
        writeln!(f, "  {} rooms, one after the other", self.reps)
    }
}

/// Times of one abort.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AbortTimes {
    /// Until the outcome was known.
    pub(crate) answer: Duration,
    /// Until the destination's lease was back.
    pub(crate) reusable: Duration,
    /// Bytes of the request that never landed, and so were still queued.
    pub(crate) queued_bytes: u64,
}

/// Result of `bench abort`.
#[derive(Debug, Serialize)]
pub(crate) struct AbortReport {
    #[serde(flatten)]
    between: Between,
    lanes: u16,
    reps: usize,
    request_bytes: u64,
    queued_bytes_min: u64,
    abort_to_answer_us: Percentiles,
    abort_to_reusable_us: Percentiles,
}

impl AbortReport {
    /// What has to wait on the lane for a repetition to count.
    pub(crate) const QUEUED_BYTES: u64 = 64 << 20;

    /// Of aborts of requests of `request_bytes`.
    pub(crate) fn new(
        args: &AbortArgs,
        between: Between,
        request_bytes: u64,
        times: &[AbortTimes],
    ) -> Result<AbortReport, Failure> {
        let queued_bytes_min = times.iter().map(|t| t.queued_bytes).min().unwrap_or(0);
        if queued_bytes_min < Self::QUEUED_BYTES {
            return Err(Failure::Failed(format!(
                "an abort came when only {} were queued; {} are needed for the result to count",
                proc::bytes(queued_bytes_min),
                proc::bytes(Self::QUEUED_BYTES)
            )));
        }
        Ok(AbortReport {
            between,
            lanes: args.ends.lanes,
            reps: times.len(),
            request_bytes,
            queued_bytes_min,
            abort_to_answer_us: percentiles(times, |t| t.answer)?,
            abort_to_reusable_us: percentiles(times, |t| t.reusable)?,
        })
    }
}

impl Report for AbortReport {
    type Bars = AbortArgs;
    fn unmet(&self, bars: &AbortArgs) -> Vec<String> {
        let p90 = self.abort_to_reusable_us.p90;
        at_most("p90 of abort_to_reusable_us", p90, bars.require_p90_us)
            .into_iter()
            .collect()
    }
}

impl fmt::Display for AbortReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let queued = proc::bytes(self.queued_bytes_min);
        writeln!(
            f,
            "abort by the receiver over {}, {queued} or more queued",
            self.between
        )?;
        rows(
            f,
            &[
                ("answer", self.abort_to_answer_us),
                ("reusable", self.abort_to_reusable_us),
            ],
        )?;
        writeln!(f, "  {} aborts", self.reps)
    }
}

impl fmt::Display for Between {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.fabric)?;
        let (Some(connections), Some(congestion)) = (self.connections, &self.congestion) else {
            return Ok(());
        };
        let processes = if self.processes == 1 {
            "one process"
        } else {
            "two processes"
        };
        write!(
            f,
            " ({processes}, {} sockets, {connections} for large pieces, TCP with {congestion})",
            self.transport
        )
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
#[path = "report_tests.rs"]
mod tests;
