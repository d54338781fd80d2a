//! What `bench rooms --idle-cpu` and `--soak` say.

use super::super::super::args::RoomsArgs;
use super::super::super::pair::Link;
use super::super::super::proc;
use super::{Report, at_most};
use serde::Serialize;
use std::fmt;

/// Result of `bench rooms --idle-cpu`.
#[derive(Debug, Serialize)]
pub(crate) struct IdleCpuReport {
    pub(crate) fabric: &'static str,
    pub(crate) processes: u8,
    pub(crate) transport: &'static str,
    pub(crate) rooms: u64,
    pub(crate) seconds: f64,
    /// Nodes of this process.
    pub(crate) nodes: u8,
    /// Of this process.
    pub(crate) percent_of_core: f64,
    /// Of the other process.
    pub(crate) sender_percent_of_core: Option<f64>,
}

impl Report for IdleCpuReport {
    type Bars = RoomsArgs;
    fn unmet(&self, bars: &RoomsArgs) -> Vec<String> {
        let most = self.sender_percent_of_core.unwrap_or(0.0);
        let most = most.max(self.percent_of_core);
        at_most("percent_of_core", most, bars.require_idle_percent)
            .into_iter()
            .collect()
    }
}

impl fmt::Display for IdleCpuReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rooms, fabric, transport) = (self.rooms, self.fabric, self.transport);
        writeln!(
            f,
            "{rooms} waiting rooms of each node over {fabric} ({transport})"
        )?;
        let nodes = if self.nodes == 1 { "node" } else { "nodes" };
        let percent = self.percent_of_core;
        writeln!(f, "  {percent:.3} % of a core for {} {nodes}", self.nodes)?;
        if let Some(percent) = self.sender_percent_of_core {
            writeln!(f, "  {percent:.3} % of a core for the sending node")?;
        }
        writeln!(f, "  over {:.1} s", self.seconds)
    }
}

/// Resident memory after so many rooms.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Sample {
    pub(crate) rooms: u64,
    pub(crate) rss_bytes: u64,
    pub(crate) sender_rss_bytes: Option<u64>,
}

/// Result of `bench rooms --soak`.
#[derive(Debug, Serialize)]
pub(crate) struct SoakReport {
    fabric: &'static str,
    processes: u8,
    transport: &'static str,
    rooms: u64,
    rooms_per_s: f64,
    samples: Vec<Sample>,
    late_growth_bytes: i64,
    late_growth_bytes_per_room: f64,
}

impl SoakReport {
    /// Of samples over all the rooms.
    pub(crate) fn new(
        fabric: &'static str,
        processes: u8,
        link: Link,
        rooms_per_s: f64,
        samples: Vec<Sample>,
    ) -> SoakReport {
        let rooms = samples.last().map_or(0, |s| s.rooms);
        let half = samples.iter().find(|s| 2 * s.rooms >= rooms);
        let (mut growth, mut lived) = (0, 1);
        if let (Some(half), Some(last)) = (half, samples.last()) {
            let grew = |from: u64, to: u64| to.cast_signed() - from.cast_signed();
            growth = grew(half.rss_bytes, last.rss_bytes);
            if let (Some(from), Some(to)) = (half.sender_rss_bytes, last.sender_rss_bytes) {
                growth = growth.max(grew(from, to));
            }
            lived = (last.rooms - half.rooms).max(1);
        }
        SoakReport {
            fabric,
            processes,
            transport: link.name(),
            rooms,
            rooms_per_s,
            samples,
            late_growth_bytes: growth,
            late_growth_bytes_per_room: growth as f64 / lived as f64,
        }
    }
}

impl Report for SoakReport {
    type Bars = RoomsArgs;
    fn unmet(&self, bars: &RoomsArgs) -> Vec<String> {
        let growth = self.late_growth_bytes_per_room;
        at_most("late_growth_bytes_per_room", growth, bars.require_growth)
            .into_iter()
            .collect()
    }
}

impl fmt::Display for SoakReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rooms, fabric, transport) = (self.rooms, self.fabric, self.transport);
        writeln!(f, "{rooms} rooms lived over {fabric} ({transport})")?;
        for s in &self.samples {
            let rss = proc::bytes(s.rss_bytes);
            write!(f, "  after {:>10} rooms {rss:>12} resident", s.rooms)?;
            match s.sender_rss_bytes {
                Some(bytes) => writeln!(f, ", sender {:>12}", proc::bytes(bytes))?,
                None => writeln!(f)?,
            }
        }
        let growth = self.late_growth_bytes_per_room;
        writeln!(f, "  {growth:.2} bytes a room in the second half")?;
        writeln!(f, "  {:.0} rooms/s", self.rooms_per_s)
    }
}
