//! What a run found: one JSON object with fixed keys, and a table for people.

use serde::Serialize;
use std::fmt::Write as _;
use std::time::Duration;

/// Percentiles in microseconds, by nearest rank.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Percentiles {
    /// Half of the values are at most this.
    pub(crate) p50: f64,
    /// Nine of ten.
    pub(crate) p90: f64,
    /// 99 of 100.
    pub(crate) p99: f64,
    /// All.
    pub(crate) max: f64,
}

impl Percentiles {
    /// `None` of no values.
    pub(crate) fn of(mut values: Vec<Duration>) -> Option<Percentiles> {
        values.sort_unstable();
        let last = values.len().checked_sub(1)?;
        let rank = |percent: usize| {
            let place = (values.len() * percent)
                .div_ceil(100)
                .saturating_sub(1)
                .min(last);
            values.get(place).map_or(0.0, |value| {
                (value.as_nanos() as f64 / 100.0).round() / 10.0
            })
        };
        Some(Percentiles {
            p50: rank(50),
            p90: rank(90),
            p99: rank(99),
            max: rank(100),
        })
    }
}

/// The keys, in this order, are what scripts read.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Report {
    pub(crate) engine: &'static str,
    pub(crate) storm: &'static str,
    pub(crate) fabric: &'static str,
    pub(crate) processes: u32,
    /// The other process plays decode.
    pub(crate) swap: bool,
    pub(crate) device: &'static str,
    pub(crate) seed: u64,
    pub(crate) sessions: usize,
    pub(crate) rooms: usize,
    pub(crate) done: usize,
    pub(crate) aborted: usize,
    pub(crate) aborted_in_flight: usize,
    pub(crate) bytes: u64,
    pub(crate) late_bytes: u64,
    pub(crate) torn_reads: u64,
    pub(crate) leaked_pages: u64,
    pub(crate) quarantined_pages: u64,
    pub(crate) quarantine_peak_pages: u64,
    pub(crate) stuck_rooms: usize,
    pub(crate) wedged: bool,
    pub(crate) health_says: u16,
    pub(crate) probe_ms: Option<f64>,
    pub(crate) abort_to_answer_us: Option<Percentiles>,
    pub(crate) abort_to_reusable_us: Option<Percentiles>,
    /// Times that the other process was killed.
    pub(crate) peer_kills: u64,
    /// Times that it was stopped, and for how long.
    pub(crate) peer_stops: u64,
    pub(crate) peer_stopped_ms: u64,
    /// Rooms in flight at that moment.
    pub(crate) struck_in_flight: usize,
    /// Its lanes that were inside a gate of this process then; over shm, if it plays prefill.
    pub(crate) struck_inside: usize,
    /// Rooms that nobody aborted and that were not done after a stop that a session survives.
    pub(crate) not_resumed: usize,
    /// As the node of this process saw it (with one process, decode's).
    pub(crate) sessions_resumed: u64,
    pub(crate) sessions_lost: u64,
    pub(crate) seconds: f64,
    /// Transports by which senders put and whose end proves nothing about that, and why: rows of the fence table
    /// (`docs/fabrics.md`).
    pub(crate) unfenced: Vec<String>,
}

impl Report {
    /// What breaks the contract, in words; empty if nothing does.
    pub(crate) fn violations(&self) -> Vec<String> {
        let mut found = Vec::new();
        let counts = [
            (self.late_bytes, "late bytes"),
            (self.torn_reads, "torn reads"),
            (self.leaked_pages, "leaked pages"),
            (self.unexplained(), "pages still quarantined"),
            (self.stuck_rooms as u64, "stuck rooms"),
            (
                self.not_resumed as u64,
                "rooms not done after a stop that is survived",
            ),
        ];
        found.extend(
            counts
                .iter()
                .filter(|(n, _)| *n > 0)
                .map(|(n, what)| format!("{n} {what}")),
        );
        if self.wedged {
            found.push("wedged: the probe was not served within 5 s".into());
        }
        found
    }

    /// Quarantined pages that nothing speaks for: those that a process that was struck may still write, and nobody
    /// can prove the contrary, are held as they should be.
    fn unexplained(&self) -> u64 {
        match self.struck() && !self.unfenced.is_empty() {
            true => 0,
            false => self.quarantined_pages,
        }
    }

    /// Why pages are held as they should be, if there are any.
    pub(crate) fn held_rightly(&self) -> Option<String> {
        let held = self.quarantined_pages;
        (held > 0 && self.unexplained() == 0).then(|| {
            let rows = self.unfenced.join("; ");
            format!("{held} pages are held, since no row of the fence table lets them go: {rows}")
        })
    }

    /// Something was done to the other process.
    pub(crate) fn struck(&self) -> bool {
        self.peer_kills + self.peer_stops > 0
    }

    /// How the nodes were joined, in words.
    pub(crate) fn wiring(&self) -> String {
        let processes = match (self.processes, self.swap) {
            (1, _) => "1 process",
            (_, false) => "2 processes (the other one prefill)",
            (_, true) => "2 processes (the other one decode)",
        };
        format!("fabric {}, {processes}", self.fabric)
    }
}

type Row = (&'static str, fn(&Report) -> String, &'static str);

/// Rows of the table: name, value, what the word means.
const ROWS: &[Row] = &[
    (
        "rooms",
        |r| r.rooms.to_string(),
        "a receiver and a sender each",
    ),
    (
        "done",
        |r| r.done.to_string(),
        "every byte there, compared with its source",
    ),
    ("aborted", |r| r.aborted.to_string(), ""),
    (
        "  in flight",
        |r| r.aborted_in_flight.to_string(),
        "some bytes there, some not",
    ),
    ("moved", |r| mebibytes(r.bytes), ""),
    (
        "late bytes",
        |r| r.late_bytes.to_string(),
        "written into a page that had a new owner",
    ),
    (
        "torn reads",
        |r| r.torn_reads.to_string(),
        "cells read from a source that had been reused",
    ),
    (
        "leaked pages",
        |r| r.leaked_pages.to_string(),
        "not free, no live room, no reason",
    ),
    (
        "quarantined",
        |r| r.quarantined_pages.to_string(),
        "pages held back, with a reason",
    ),
    ("  at most", |r| r.quarantine_peak_pages.to_string(), ""),
    (
        "stuck rooms",
        |r| r.stuck_rooms.to_string(),
        "no outcome a second after the deadline",
    ),
    (
        "wedged",
        |r| yes_no(r.wedged),
        "a fresh room after the storm is not done in 5 s",
    ),
    (
        "probe",
        |r| {
            r.probe_ms
                .map_or("not served".into(), |ms| format!("{ms:.1} ms"))
        },
        "",
    ),
    (
        "health says",
        |r| r.health_says.to_string(),
        "what an operator would see",
    ),
    (
        "abort to answer",
        |r| times(r.abort_to_answer_us),
        "p50 / p99: the caller knows",
    ),
    (
        "abort to reusable",
        |r| times(r.abort_to_reusable_us),
        "p50 / p99: the pages are back",
    ),
    ("seconds", |r| format!("{:.1}", r.seconds), ""),
];

/// Rows that are shown if the other process was struck.
const STRUCK: &[Row] = &[
    (
        "peer",
        |r| match r.peer_kills {
            0 => format!("stopped {} ms", r.peer_stopped_ms),
            _ => "killed".into(),
        },
        "in mid-transfer",
    ),
    (
        "  in flight then",
        |r| r.struck_in_flight.to_string(),
        "rooms with some bytes there, some not",
    ),
    (
        "  inside a gate",
        |r| r.struck_inside.to_string(),
        "lanes of it, over shared memory",
    ),
    (
        "sessions resumed",
        |r| r.sessions_resumed.to_string(),
        "went on after their connection was lost",
    ),
    (
        "sessions lost",
        |r| r.sessions_lost.to_string(),
        "given up, or the peer began a new life",
    ),
    (
        "not resumed",
        |r| r.not_resumed.to_string(),
        "rooms not done after a stop that is survived",
    ),
];

/// The table of one report, or of several side by side.
pub(crate) fn table(reports: &[Report]) -> String {
    let mut text = String::new();
    let Some(first) = reports.first() else {
        return text;
    };
    let _ = writeln!(
        text,
        "storm {}, {} sessions, seed {}, {}",
        first.storm,
        first.sessions,
        first.seed,
        first.wiring()
    );
    line(
        &mut text,
        "",
        reports.iter().map(|r| r.engine.to_owned()),
        "",
    );
    let struck = if first.struck() { STRUCK } else { &[] };
    for (name, value, meaning) in ROWS.iter().chain(struck) {
        line(&mut text, name, reports.iter().map(value), meaning);
    }
    text
}

fn line(text: &mut String, name: &str, values: impl Iterator<Item = String>, meaning: &str) {
    let mut row = format!("  {name:<18}");
    for value in values {
        let _ = write!(row, " {value:>20}");
    }
    let _ = write!(row, "   {meaning}");
    text.push_str(row.trim_end());
    text.push('\n');
}

fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

fn yes_no(flag: bool) -> String {
    if flag { "YES".into() } else { "no".into() }
}

fn times(percentiles: Option<Percentiles>) -> String {
    let one = |us: f64| match us {
        us if us < 1000.0 => format!("{us:.0} us"),
        us if us < 1e6 => format!("{:.1} ms", us / 1e3),
        us => format!("{:.1} s", us / 1e6),
    };
    percentiles.map_or("-".into(), |p| format!("{} / {}", one(p.p50), one(p.p99)))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn clean() -> Report {
        Report {
            engine: "rooms",
            storm: "incident",
            fabric: "local",
            processes: 1,
            swap: false,
            device: "none",
            seed: 1,
            sessions: 80,
            rooms: 190,
            done: 110,
            aborted: 80,
            aborted_in_flight: 60,
            bytes: 1 << 20,
            late_bytes: 0,
            torn_reads: 0,
            leaked_pages: 0,
            quarantined_pages: 0,
            quarantine_peak_pages: 3,
            stuck_rooms: 0,
            wedged: false,
            health_says: 200,
            probe_ms: Some(1.5),
            abort_to_answer_us: Percentiles::of(vec![Duration::from_micros(5)]),
            abort_to_reusable_us: None,
            peer_kills: 0,
            peer_stops: 0,
            peer_stopped_ms: 0,
            struck_in_flight: 0,
            struck_inside: 0,
            not_resumed: 0,
            sessions_resumed: 0,
            sessions_lost: 0,
            seconds: 2.0,
            unfenced: Vec::new(),
        }
    }

    #[test]
    fn the_json_has_exactly_the_agreed_keys_in_order() {
        let json = serde_json::to_string(&clean()).unwrap();
        let keys = "engine storm fabric processes swap device seed sessions rooms done aborted \
                    aborted_in_flight bytes late_bytes torn_reads leaked_pages quarantined_pages \
                    quarantine_peak_pages stuck_rooms wedged health_says probe_ms \
                    abort_to_answer_us abort_to_reusable_us peer_kills peer_stops \
                    peer_stopped_ms struck_in_flight struck_inside not_resumed sessions_resumed \
                    sessions_lost seconds unfenced";
        let mut from = 0;
        for key in keys.split_whitespace() {
            let at = json[from..].find(&format!("\"{key}\":"));
            from += at.unwrap_or_else(|| panic!("{key} is missing or out of order in {json}"));
        }
        let value: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(
            value.as_object().unwrap().len(),
            keys.split_whitespace().count()
        );
        assert_eq!(value["abort_to_answer_us"]["p90"], 5.0);
        assert!(value["abort_to_reusable_us"].is_null());
    }

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let values = (1..=200).rev().map(Duration::from_micros).collect();
        let p = Percentiles::of(values).unwrap();
        assert_eq!((p.p50, p.p90, p.p99, p.max), (100.0, 180.0, 198.0, 200.0));
        assert_eq!(Percentiles::of(vec![]), None);
    }

    #[test]
    fn a_clean_report_violates_nothing_and_each_count_is_a_violation() {
        assert!(clean().violations().is_empty());
        let spoil: [fn(&mut Report); 7] = [
            |r| r.late_bytes = 1,
            |r| r.torn_reads = 1,
            |r| r.leaked_pages = 1,
            |r| r.quarantined_pages = 1,
            |r| r.stuck_rooms = 1,
            |r| r.wedged = true,
            |r| r.not_resumed = 1,
        ];
        for spoil in spoil {
            let mut report = clean();
            spoil(&mut report);
            assert_eq!(report.violations().len(), 1);
        }
    }

    #[test]
    fn pages_that_no_row_of_the_fence_table_gives_back_break_nothing_and_the_row_is_named() {
        let mut report = Report {
            quarantined_pages: 3,
            unfenced: vec!["cma: it writes by itself".into()],
            ..clean()
        };
        // Nobody was struck: whoever is alive says when it is out.
        assert_eq!(report.violations(), ["3 pages still quarantined"]);
        assert_eq!(report.held_rightly(), None);
        report.peer_kills = 1;
        assert!(report.violations().is_empty());
        let why = report.held_rightly().unwrap();
        assert!(why.contains("3 pages") && why.contains("cma"), "{why}");
        report.unfenced.clear();
        assert_eq!(report.violations().len(), 1);
        assert_eq!(report.held_rightly(), None);
    }

    #[test]
    fn two_engines_stand_side_by_side_in_straight_columns() {
        let mut old = clean();
        old.engine = "shared-dict";
        old.wedged = true;
        let text = table(&[old, clean()]);
        let columns: Vec<usize> = text
            .lines()
            .filter(|line| line.contains("wedged") || line.contains("rooms  "))
            .filter_map(|line| line.find("  a "))
            .collect();
        assert!(columns.windows(2).all(|pair| pair[0] == pair[1]), "{text}");
        assert!(text.contains("shared-dict") && text.contains("YES"));
    }
}
