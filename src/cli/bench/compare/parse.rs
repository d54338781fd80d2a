//! What the lines of a program say about a task. Other programs' lines are one JSON object each, with
//! `ev` for what it is about; anything else among them is passed over.

use super::super::stats::Spread;
use super::super::workload::Kind;
use super::contender::Task;
use super::process::Ended;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fmt;

/// One JSON object of a program.
pub(super) type Record = Map<String, Value>;

/// What is measured; each is a row of the table.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Measure {
    /// GB/s.
    Throughput,
    /// Microseconds of one small page, median.
    Page,
    /// Requests per second.
    Rate,
    /// Microseconds from an abort to its end as the caller is told, median.
    Abort,
    /// Pages that changed after their user was told that they are free again; the most of all tries.
    Overwritten,
}

/// What one run of a contender says about a task.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Run {
    pub(super) values: Vec<(Measure, f64)>,
    /// Why there are no values, or not all.
    pub(super) problem: Option<String>,
    /// Name and version, as the program says them.
    pub(super) version: Option<String>,
    /// Records that were taken while other processes used more than half a core, of all that say.
    pub(super) noisy: (usize, usize),
}

/// More of a core than this in other processes makes a record noisy.
const NOISE: f64 = 0.5;
/// Most that is kept of a problem.
const MOST: usize = 200;

impl Run {
    /// Nothing was run.
    pub(super) fn not_run(why: String) -> Run {
        Run {
            values: Vec::new(),
            problem: Some(why),
            version: None,
            noisy: (0, 0),
        }
    }
}

/// The object of a line, if it is one.
pub(super) fn record(line: &str) -> Option<Record> {
    serde_json::from_str(line.trim()).ok()
}

/// Of a script of another program.
pub(super) fn peer(task: &Task, ended: &Ended) -> Run {
    let records: Vec<Record> = ended.output.lines().filter_map(record).collect();
    let found = match task {
        Task::Abort => abort(&records),
        Task::Workload(w) => match w.kind {
            Kind::Throughput => throughput(&records),
            Kind::Latency { .. } => page(&records),
            Kind::Rate { .. } => rate(&records),
        },
    };
    // A script that crashed at its exit has still measured what it printed: these programs do.
    let (values, problem) = match (found, ended.complaint()) {
        (Ok(values), _) => (values, None),
        (Err(_), Some(why)) => (Vec::new(), Some(why)),
        (Err(why), None) => (Vec::new(), Some(why)),
    };
    let says = |r: &&Record| number(r, "foreign").is_some();
    let noisy = |r: &&Record| number(r, "foreign").is_some_and(|n| n > NOISE);
    Run {
        values,
        problem: problem.map(short),
        version: records
            .iter()
            .find_map(|r| text(r, "engine"))
            .map(str::to_owned),
        noisy: (
            records.iter().filter(noisy).count(),
            records.iter().filter(says).count(),
        ),
    }
}

/// Of this program, which prints one object.
pub(super) fn kvroom(fabric: &str, task: &Task, ended: &Ended) -> Run {
    let report = ended.output.lines().find_map(record).unwrap_or_default();
    let at = |path: &[&str]| {
        let mut value = report.get(path[0])?;
        for key in &path[1..] {
            value = value.get(key)?;
        }
        value.as_f64()
    };
    let wanted: &[(Measure, &[&str])] = match task {
        Task::Abort => &[
            (Measure::Abort, &["abort_to_reusable_us", "p50"]),
            (Measure::Overwritten, &["late_pages"]),
        ],
        Task::Workload(w) => match w.kind {
            Kind::Throughput => &[(Measure::Throughput, &["GBps", "median"])],
            Kind::Latency { .. } => &[(Measure::Page, &["done_us", "p50"])],
            Kind::Rate { .. } => &[(Measure::Rate, &["rooms_per_s"])],
        },
    };
    let mut values = Vec::new();
    let mut problem = ended.complaint();
    if problem.is_none() && text(&report, "fabric") != Some(fabric) {
        problem = Some(format!("it did not say that it used {fabric}"));
    }
    for (measure, path) in wanted {
        match at(path) {
            Some(value) if problem.is_none() => values.push((measure.clone(), value)),
            Some(_) => {}
            None => problem = problem.or_else(|| Some(format!("it did not say {}", path[0]))),
        }
    }
    Run {
        values,
        problem: problem.map(short),
        version: Some(format!("kvroom {}", env!("CARGO_PKG_VERSION"))),
        noisy: (0, 0),
    }
}

type Values = Result<Vec<(Measure, f64)>, String>;

/// The way of posting that moves most; a repetition to warm up does not count.
fn throughput(records: &[Record]) -> Values {
    if let Some(bad) = event(records, "verify").find_map(|r| number(r, "bad_pages"))
        && bad > 0.0
    {
        return Err(format!("{bad} pages did not arrive"));
    }
    let counts = |r: &&Record| number(r, "rep") > Some(0.0) && went_well(r);
    let ways = ways(event(records, "bw").filter(counts), "GBps");
    let best = ways.into_values().max_by(f64::total_cmp);
    best.map(|rate| vec![(Measure::Throughput, rate)])
        .ok_or_else(|| "it did not say what it moved".to_owned())
}

/// The way of posting after which the receiver knows first.
fn page(records: &[Record]) -> Values {
    let good = |r: &&Record| number(r, "bad").unwrap_or(0.0) == 0.0;
    let ways = ways(event(records, "lat").filter(good), "notif_p50_us");
    let best = ways.into_values().min_by(f64::total_cmp);
    best.map(|us| vec![(Measure::Page, us)])
        .ok_or_else(|| "it did not say how long a page took".to_owned())
}

/// The way of posting with most requests; notified ones where that was measured.
fn rate(records: &[Record]) -> Values {
    let good = |r: &&Record| number(r, "err").unwrap_or(0.0) == 0.0;
    let of = |key| ways(event(records, "rate").filter(good), key).into_values();
    let best = of("req_s_notif").max_by(f64::total_cmp);
    best.or_else(|| of("req_s").max_by(f64::total_cmp))
        .map(|rate| vec![(Measure::Rate, rate)])
        .ok_or_else(|| "it did not say how many requests it served".to_owned())
}

/// What the abort took, and the most pages that changed at any look after it.
fn abort(records: &[Record]) -> Values {
    let mut took = Vec::new();
    let mut worst: Option<f64> = None;
    let mut over = false;
    for r in records {
        if !text(r, "ev").is_some_and(|ev| ev.starts_with("abort")) {
            continue;
        }
        if text(r, "state_before") == Some("DONE") {
            over = true;
            continue;
        }
        took.extend(number(r, "release_us").or_else(|| number(r, "unregister_us")));
        let looks = r.get("changed_after").and_then(Value::as_array);
        for look in looks.into_iter().flatten() {
            if let Some(changed) = look.get(1).and_then(Value::as_f64) {
                worst = Some(worst.map_or(changed, |most| most.max(changed)));
            }
        }
    }
    let took = Spread::of(&took).map(|s| s.median);
    match (took, worst) {
        (Some(took), Some(worst)) => {
            Ok(vec![(Measure::Abort, took), (Measure::Overwritten, worst)])
        }
        _ if over => Err("nothing to abort: its post returned when all was moved".to_owned()),
        _ => Err("it did not say what came of its aborts".to_owned()),
    }
}

/// The median of `key` for each way in which requests were posted.
fn ways<'a>(records: impl Iterator<Item = &'a Record>, key: &str) -> BTreeMap<String, f64> {
    let mut ways: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for r in records {
        let way = format!("{:?} {:?}", text(r, "mode"), number(r, "inflight"));
        ways.entry(way).or_default().extend(number(r, key));
    }
    let medians = ways.into_iter();
    medians
        .filter_map(|(way, values)| Some((way, Spread::of(&values)?.median)))
        .collect()
}

/// NIXL says the states after the post and at the end, Mooncake a number.
fn went_well(r: &Record) -> bool {
    match r.get("st") {
        Some(Value::Array(states)) => states.last().is_some_and(|s| s == "DONE"),
        Some(Value::Number(n)) => n.as_i64() == Some(0),
        _ => false,
    }
}

fn event<'a>(records: &'a [Record], name: &'a str) -> impl Iterator<Item = &'a Record> {
    records.iter().filter(move |r| text(r, "ev") == Some(name))
}

fn number(r: &Record, key: &str) -> Option<f64> {
    r.get(key).and_then(Value::as_f64).filter(|n| n.is_finite())
}

fn text<'a>(r: &'a Record, key: &str) -> Option<&'a str> {
    r.get(key).and_then(Value::as_str)
}

fn short(text: String) -> String {
    let text: String = text.chars().filter(|c| !c.is_control()).collect();
    match text.char_indices().nth(MOST) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (measure, value) in &self.values {
            write!(f, "{} {value:.2} ", measure.unit())?;
        }
        match &self.problem {
            Some(why) => write!(f, "({why})"),
            None => Ok(()),
        }
    }
}

impl Measure {
    /// What it is counted in.
    pub(super) fn unit(&self) -> &'static str {
        match self {
            Measure::Throughput => "GB/s",
            Measure::Page | Measure::Abort => "µs",
            Measure::Rate => "requests/s",
            Measure::Overwritten => "pages",
        }
    }
}
