//! `bench compare`: the benches of other programs and these in turns, on one machine, in one hour.
//!
//! ```text
//!   for each task, for each round, for each contender:
//!     contender ─▶ command ─▶ process (time limit) ─▶ lines ─▶ parse ─▶ values ─▶ results
//!                                                      └─▶ compare.jsonl            ├─▶ compare.md
//!                                                                                   └─▶ compare.svg
//! ```
//!
//! Rules: nothing that another program does ends this one. What failed, hung or made no sense is a
//! cell that says so. Of a contender that did not end in time the rest of a task is not tried.

mod chart;
mod contender;
#[cfg(test)]
pub(crate) mod fuzzing;
mod parse;
mod process;
mod results;
mod table;
#[cfg(test)]
mod tests;

use super::super::args::CompareArgs;
use super::super::exit::{Failure, Verdict};
use super::super::output;
use super::super::pair::failed;
use super::workload;
use contender::{Contender, Task};
use parse::Run;
use process::End;
use results::{Machine, Results};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::Duration;

/// Runs them all and writes what came of it.
pub(crate) fn run(args: &CompareArgs) -> Result<Verdict, Failure> {
    let tasks = tasks(&args.workloads)?;
    for (what, path) in [("--peers", &args.peers), ("--out", &args.out)] {
        if !path.is_dir() {
            let text = format!("{what} {}: there is no such directory", path.display());
            return Err(Failure::Usage(text));
        }
    }
    let lines = args.out.join("compare.jsonl");
    let file =
        File::create(&lines).map_err(failed(&format!("cannot write {}", lines.display())))?;
    let mut lines = BufWriter::new(file);
    let mut results = Results::new(Machine::here(), args.rounds, args.reps);
    for task in &tasks {
        one_task(args, task, &mut results, &mut lines)?;
    }
    lines.flush().map_err(failed("cannot write the lines"))?;
    let table = table::markdown(&results);
    write(&args.out.join("compare.md"), &table)?;
    write(&args.out.join("compare.svg"), &chart::svg(&results))?;
    if args.json {
        output::print_json(&results.json())?;
    } else {
        output::print(&table)?;
    }
    Ok(Verdict::Met)
}

fn one_task(
    args: &CompareArgs,
    task: &Task,
    results: &mut Results,
    lines: &mut impl Write,
) -> Result<(), Failure> {
    let mut hung = Vec::new();
    for round in 1..=args.rounds {
        for contender in Contender::ALL {
            if hung.contains(&contender) {
                continue;
            }
            let (run, output) = match contender.command(args, task)? {
                Err(why) => (Run::not_run(why), String::new()),
                Ok(command) => {
                    let ended = process::run(command, Duration::from_secs(args.limit.into()));
                    if matches!(ended.end, End::TimeLimit) {
                        hung.push(contender);
                    }
                    let run = contender.parse(task, &ended);
                    (run, ended.output)
                }
            };
            for line in output.lines().filter_map(parse::record) {
                let all = json!({
                    "contender": contender.name(), "task": task.name(), "round": round,
                    "line": Value::Object(line),
                });
                writeln!(lines, "{all}").map_err(failed("cannot write a line"))?;
            }
            output::complain(&format!(
                "{} round {round} of {}, {}: {run}",
                task.name(),
                args.rounds,
                contender.name()
            ));
            results.add(contender, task, run);
        }
    }
    Ok(())
}

/// All built-in workloads, or those that are named, and then the abort.
fn tasks(names: &[String]) -> Result<Vec<Task>, Failure> {
    let mut tasks = Vec::new();
    for w in workload::built_in() {
        if names.is_empty() || names.contains(&w.name) {
            tasks.push(Task::Workload(w));
        }
    }
    let known = |name: &String| {
        name == Task::ABORT || tasks.iter().any(|task| task.name() == name.as_str())
    };
    if let Some(odd) = names.iter().find(|name| !known(name)) {
        let text = format!(
            "{odd:?} is neither a built-in workload nor {:?}",
            Task::ABORT
        );
        return Err(Failure::Usage(text));
    }
    if names.is_empty() || names.iter().any(|name| name == Task::ABORT) {
        tasks.push(Task::Abort);
    }
    Ok(tasks)
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    fs::write(path, text).map_err(failed(&format!("cannot write {}", path.display())))
}
