//! What `bench abort` says.

use super::super::super::args::AbortArgs;
use super::super::super::exit::Failure;
use super::super::super::proc;
use super::super::ends::Between;
use super::super::stats::Percentiles;
use super::{Report, at_most, percentiles, rows};
use serde::Serialize;
use std::fmt;
use std::time::Duration;

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
    /// Pages that were used again right after an abort and watched. A change is a failure, not a
    /// report.
    pages_watched: u64,
    late_pages: u64,
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
        pages_watched: u64,
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
            pages_watched,
            late_pages: 0,
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
        writeln!(
            f,
            "  {} aborts; {} pages watched afterwards, none changed",
            self.reps, self.pages_watched
        )
    }
}
