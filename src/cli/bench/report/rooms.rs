//! What `bench rooms` says.

use super::super::super::args::RoomsArgs;
use super::super::super::exit::Failure;
use super::super::super::pair::Link;
use super::super::super::proc;
use super::super::stats::Spread;
use super::{Report, Triple, at_least, at_most, spread};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

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
