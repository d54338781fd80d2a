//! What is printed at the end: one row for each thing that was checked.

use std::fmt::Write;

/// What became of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is right, or within its bar.
    Ok,
    /// The bar was missed.
    Missed,
    /// It failed: a wrong byte, an error of the device, or no end.
    Failed,
    /// There is nothing that it must reach.
    NoBar,
    /// It could not be run here, which is no failure.
    NotHere,
}

impl Verdict {
    fn word(self) -> &'static str {
        match self {
            Verdict::Ok => "ok",
            Verdict::Missed => "MISSED",
            Verdict::Failed => "FAILED",
            Verdict::NoBar => "no bar",
            Verdict::NotHere => "not here",
        }
    }
}

/// One row.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) said: String,
    /// What must be reached, for people; empty for nothing.
    pub(crate) bar: String,
    pub(crate) verdict: Verdict,
}

impl Row {
    pub(crate) fn new(name: &str, said: String, bar: &str, verdict: Verdict) -> Row {
        Row {
            name: name.to_owned(),
            said,
            bar: bar.to_owned(),
            verdict,
        }
    }

    /// A row of a number that must reach its bar, if there is one.
    pub(crate) fn judged(name: &str, said: String, seen: f64, bar: Option<f64>) -> Row {
        let verdict = match bar {
            None => Verdict::NoBar,
            // Not a number reaches nothing.
            Some(bar) if seen >= bar => Verdict::Ok,
            Some(_) => Verdict::Missed,
        };
        let bar = bar.map_or_else(String::new, |bar| format!(">= {bar}"));
        Row::new(name, said, &bar, verdict)
    }

    pub(crate) fn failed(name: &str, said: String) -> Row {
        Row::new(name, said, "", Verdict::Failed)
    }

    /// Whether the machine may be called good with it.
    pub(crate) fn is_good(&self) -> bool {
        !matches!(self.verdict, Verdict::Missed | Verdict::Failed)
    }
}

/// All rows, and the sum of them.
pub(crate) fn table(rows: &[Row]) -> String {
    let wide = |of: fn(&Row) -> &str, least: usize| {
        let widths = rows.iter().map(|row| of(row).chars().count());
        widths.max().unwrap_or(0).max(least)
    };
    let (names, bars) = (wide(|row| &row.name, 5), wide(|row| &row.bar, 3));
    let mut text = String::new();
    let mut line = |name: &str, verdict: &str, bar: &str, said: &str| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{name:<names$}  {verdict:<12}  {bar:<bars$}  {said}");
    };
    line("check", "verdict", "bar", "what was seen");
    for row in rows {
        line(&row.name, row.verdict.word(), &row.bar, &row.said);
    }
    let bad: Vec<&str> = (rows.iter().filter(|row| !row.is_good()))
        .map(|row| row.name.as_str())
        .collect();
    let sum = match bad.is_empty() {
        true => "All that was checked is right.".to_owned(),
        false => format!("NOT GOOD: {}", bad.join(", ")),
    };
    text + &sum + "\n"
}
