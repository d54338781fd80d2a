//! The results as Markdown.

use super::super::super::proc;
use super::contender::Contender;
use super::results::{Cell, Results};
use std::fmt::Write;

/// What this program is held against: itself, and the other one.
const RATIOS: [(Contender, Contender); 3] = [
    (Contender::KvroomShm, Contender::NixlDefault),
    (Contender::KvroomTcp, Contender::NixlTcp),
    (Contender::KvroomTcp, Contender::MooncakeTcp),
];

/// The table, with what it was measured on before it and the ratios behind it.
pub(super) fn markdown(results: &Results) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = head(&mut text, results).and_then(|()| {
        values(&mut text, results)?;
        ratios(&mut text, results)
    });
    text
}

fn head(f: &mut String, results: &Results) -> std::fmt::Result {
    let m = &results.machine;
    let memory = m.memory_bytes.map_or("unknown".to_owned(), proc::bytes);
    let versions: Vec<&str> = results.versions.iter().map(String::as_str).collect();
    writeln!(f, "# kvroom beside its peers\n")?;
    writeln!(
        f,
        "{}, {} cores, {memory} of memory, Linux {}. {}.\n",
        m.processor,
        m.cores,
        m.kernel,
        versions.join(", ")
    )?;
    writeln!(
        f,
        "Two processes each, in turns, {} rounds of {} repetitions. Medians of the rounds (least to most).",
        results.rounds, results.reps
    )?;
    if results.noisy.0 > 0 {
        let (noisy, all) = results.noisy;
        writeln!(
            f,
            "Of {all} records of the peers {noisy} were taken while other processes used more than half a core."
        )?;
    }
    writeln!(f)
}

fn values(f: &mut String, results: &Results) -> std::fmt::Result {
    let names = Contender::ALL.map(Contender::name);
    writeln!(f, "| | {} |", names.join(" | "))?;
    writeln!(f, "|---|{}", "---|".repeat(names.len()))?;
    for row in &results.rows {
        write!(f, "| {} |", row.name())?;
        for (_, cell) in row.cells() {
            write!(f, " {} |", escaped(&said(cell)))?;
        }
        writeln!(f)?;
    }
    writeln!(f)
}

fn ratios(f: &mut String, results: &Results) -> std::fmt::Result {
    let names = RATIOS.map(|(one, other)| format!("{} to {}", one.name(), other.name()));
    writeln!(f, "How many times better, by these medians:\n")?;
    writeln!(f, "| | {} |", names.join(" | "))?;
    writeln!(f, "|---|{}", "---|".repeat(names.len()))?;
    for row in &results.rows {
        let ratios = RATIOS.map(|(one, other)| match row.ratio(one, other) {
            Some(ratio) => format!("{ratio:.2}"),
            None => "–".to_owned(),
        });
        writeln!(f, "| {} | {} |", row.name(), ratios.join(" | "))?;
    }
    Ok(())
}

fn said(cell: &Cell) -> String {
    let value = cell.value().map(|v| {
        format!(
            "{} ({} to {})",
            digits(v.median),
            digits(v.min),
            digits(v.max)
        )
    });
    match (value, cell.problem()) {
        (Some(value), None) => value,
        (Some(value), Some(problem)) => format!("{value}; {problem}"),
        (None, Some(problem)) => problem,
        (None, None) => "not run".to_owned(),
    }
}

/// Three digits that count.
pub(super) fn digits(value: f64) -> String {
    match value.abs() {
        v if v >= 1000.0 || v == 0.0 => format!("{value:.0}"),
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// No program may end a cell or begin a tag.
fn escaped(text: &str) -> String {
    text.replace('|', "\\|").replace('<', "&lt;")
}
