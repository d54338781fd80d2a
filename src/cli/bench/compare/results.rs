//! All values of all contenders, by row.

use super::super::super::proc;
use super::super::stats::Spread;
use super::super::workload::Kind;
use super::contender::{Contender, Task};
use super::parse::{Measure, Run};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// What this was measured on.
#[derive(Clone, Debug)]
pub(super) struct Machine {
    pub(super) processor: String,
    pub(super) cores: usize,
    pub(super) memory_bytes: Option<u64>,
    pub(super) kernel: String,
}

impl Machine {
    /// This one.
    pub(super) fn here() -> Machine {
        let info = proc::text("/proc/cpuinfo").unwrap_or_default();
        let model = info.lines().find(|line| line.starts_with("model name"));
        let model = model.and_then(|line| line.split_once(':'));
        let kernel = proc::text("/proc/sys/kernel/osrelease").unwrap_or_default();
        Machine {
            processor: model
                .map_or("unknown processor", |(_, m)| m.trim())
                .to_owned(),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            memory_bytes: proc::memory().map(|m| m.total),
            kernel: kernel.trim().to_owned(),
        }
    }
}

/// All rows.
#[derive(Clone, Debug)]
pub(super) struct Results {
    pub(super) machine: Machine,
    pub(super) rounds: u32,
    pub(super) reps: u32,
    pub(super) rows: Vec<Row>,
    pub(super) versions: BTreeSet<String>,
    /// Noisy records of all that say.
    pub(super) noisy: (usize, usize),
}

/// One measure of one task.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) task: String,
    pub(super) measure: Measure,
    cells: Vec<(Contender, Cell)>,
}

/// What one contender reached.
#[derive(Clone, Debug, Default)]
pub(super) struct Cell {
    /// One for each round that gave one.
    values: Vec<f64>,
    failed: u32,
    why: Option<String>,
}

impl Results {
    pub(super) fn new(machine: Machine, rounds: u32, reps: u32) -> Results {
        Results {
            machine,
            rounds,
            reps,
            rows: Vec::new(),
            versions: BTreeSet::new(),
            noisy: (0, 0),
        }
    }

    /// Adds what a round said. A value that is missing is a failure of its row.
    pub(super) fn add(&mut self, contender: Contender, task: &Task, run: Run) {
        self.versions.extend(run.version);
        self.noisy.0 += run.noisy.0;
        self.noisy.1 += run.noisy.1;
        for measure in measures(task) {
            let found = run.values.iter().find(|(m, _)| *m == measure);
            let cell = self.cell(contender, task.name(), measure);
            match found {
                Some(&(_, value)) => cell.values.push(value),
                None => {
                    cell.failed += 1;
                    cell.why = run.problem.clone().or_else(|| cell.why.take());
                }
            }
        }
    }

    fn cell(&mut self, contender: Contender, task: &str, measure: Measure) -> &mut Cell {
        let same = |row: &Row| row.task == task && row.measure == measure;
        let row = match self.rows.iter().position(same) {
            Some(row) => row,
            None => {
                self.rows.push(Row {
                    task: task.to_owned(),
                    measure,
                    cells: Contender::ALL.map(|c| (c, Cell::default())).to_vec(),
                });
                self.rows.len() - 1
            }
        };
        let cells = &mut self.rows[row].cells;
        let at = cells.iter().position(|(c, _)| *c == contender);
        &mut cells[at.unwrap_or_default()].1
    }

    /// For programs.
    pub(super) fn json(&self) -> Value {
        let cell = |(contender, cell): &(Contender, Cell)| {
            json!({
                "contender": contender.name(), "value": cell.value(), "failed": cell.failed,
                "why": cell.why,
            })
        };
        let row = |row: &Row| {
            let cells: Vec<Value> = row.cells.iter().map(cell).collect();
            json!({ "task": row.task, "unit": row.measure.unit(), "name": row.name(), "cells": cells })
        };
        let m = &self.machine;
        json!({
            "machine": { "processor": m.processor, "cores": m.cores,
                         "memory_bytes": m.memory_bytes, "kernel": m.kernel },
            "versions": self.versions, "rounds": self.rounds, "reps": self.reps,
            "noisy_records": self.noisy.0, "records": self.noisy.1,
            "rows": self.rows.iter().map(row).collect::<Vec<_>>(),
        })
    }
}

impl Row {
    /// What it is about.
    pub(super) fn name(&self) -> String {
        let task = &self.task;
        match self.measure {
            Measure::Throughput => format!("{task}, GB/s"),
            Measure::Page => format!("{task}: one page, µs until the receiver knows (p50)"),
            Measure::Rate => format!("{task}: requests/s"),
            Measure::Abort => {
                "abort under load: µs until the caller may use its pages again, as it is told (p50)"
                    .to_owned()
            }
            Measure::Overwritten => {
                "abort under load: pages overwritten after that (the most of all tries)".to_owned()
            }
        }
    }

    /// Whether less is better.
    pub(super) fn less_is_better(&self) -> bool {
        !matches!(self.measure, Measure::Throughput | Measure::Rate)
    }

    pub(super) fn cells(&self) -> impl Iterator<Item = (Contender, &Cell)> {
        self.cells.iter().map(|(c, cell)| (*c, cell))
    }

    /// How many times better `one` is than `other`, by medians.
    pub(super) fn ratio(&self, one: Contender, other: Contender) -> Option<f64> {
        let of = |which| {
            let mut cells = self.cells();
            let (_, cell) = cells.find(|(c, _)| *c == which)?;
            cell.value().map(|v| v.median)
        };
        let (one, other) = (of(one)?, of(other)?);
        let (more, less) = if self.less_is_better() {
            (other, one)
        } else {
            (one, other)
        };
        (less > 0.0).then(|| more / less)
    }
}

impl Cell {
    /// Of all rounds that gave one.
    pub(super) fn value(&self) -> Option<Spread> {
        Spread::of(&self.values)
    }

    /// What went wrong, for people.
    pub(super) fn problem(&self) -> Option<String> {
        let why = self.why.as_deref().unwrap_or("it failed");
        match (self.values.len(), self.failed) {
            (_, 0) => None,
            (0, _) => Some(why.to_owned()),
            (good, bad) => Some(format!("{bad} of {} runs failed: {why}", good as u32 + bad)),
        }
    }
}

fn measures(task: &Task) -> Vec<Measure> {
    match task {
        Task::Abort => vec![Measure::Abort, Measure::Overwritten],
        Task::Workload(w) => match w.kind {
            Kind::Throughput => vec![Measure::Throughput],
            Kind::Latency { .. } => vec![Measure::Page],
            Kind::Rate { .. } => vec![Measure::Rate],
        },
    }
}
