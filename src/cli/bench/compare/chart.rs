//! The results as one SVG, written by hand: a panel for each row, a bar for each contender.
//!
//! ```text
//!   a_32x64x16K, GB/s                       more is better
//!   NIXL default   ▆▆▆▆▆▆├─┤ 3.1
//!   kvroom shm     ▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆├┤ 9.0
//! ```

use super::contender::Contender;
use super::results::{Cell, Results, Row};
use super::table::digits;
use std::fmt::{self, Write};

const WIDTH: f64 = 960.0;
const LEFT: f64 = 140.0;
const BAR: f64 = 16.0;
const STEP: f64 = 22.0;
/// Room for a number behind the longest bar.
const RIGHT: f64 = 180.0;
const HEAD: f64 = 70.0;

/// The chart.
pub(super) fn svg(results: &Results) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = draw(&mut text, results);
    text
}

fn panel_height() -> f64 {
    34.0 + STEP * Contender::ALL.len() as f64 + 14.0
}

fn draw(f: &mut String, results: &Results) -> fmt::Result {
    let height = HEAD + panel_height() * results.rows.len() as f64 + 10.0;
    writeln!(
        f,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"sans-serif\" font-size=\"13\">"
    )?;
    writeln!(
        f,
        "<rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>"
    )?;
    let m = &results.machine;
    let under = format!(
        "{}, {} cores; medians of {} rounds, lines from least to most",
        m.processor, m.cores, results.rounds
    );
    label(
        f,
        20.0,
        30.0,
        "font-size=\"18\" font-weight=\"bold\"",
        "kvroom beside its peers",
    )?;
    label(f, 20.0, 52.0, "fill=\"#555555\"", &under)?;
    for (k, row) in results.rows.iter().enumerate() {
        panel(f, HEAD + panel_height() * k as f64, row)?;
    }
    writeln!(f, "</svg>")
}

fn panel(f: &mut String, top: f64, row: &Row) -> fmt::Result {
    let better = if row.less_is_better() {
        "less is better"
    } else {
        "more is better"
    };
    label(f, 20.0, top + 18.0, "font-weight=\"bold\"", &row.name())?;
    let right = "fill=\"#555555\" text-anchor=\"end\"";
    label(f, WIDTH - 20.0, top + 18.0, right, better)?;
    let most = row
        .cells()
        .filter_map(|(_, cell)| cell.value())
        .map(|v| v.max);
    let most = most.fold(0.0, f64::max);
    for (k, (contender, cell)) in row.cells().enumerate() {
        bar(f, top + 30.0 + STEP * k as f64, contender, cell, most)?;
    }
    Ok(())
}

fn bar(f: &mut String, top: f64, contender: Contender, cell: &Cell, most: f64) -> fmt::Result {
    let middle = top + BAR / 2.0;
    let right = "text-anchor=\"end\"";
    label(f, LEFT - 8.0, middle + 4.5, right, contender.name())?;
    let Some(value) = cell.value() else {
        let why = cell.problem().unwrap_or_else(|| "not run".to_owned());
        let why: String = why.chars().take(110).collect();
        return label(f, LEFT + 4.0, middle + 4.5, "fill=\"#a00000\"", &why);
    };
    let scale = |v: f64| {
        if most > 0.0 {
            v / most * (WIDTH - LEFT - RIGHT)
        } else {
            0.0
        }
    };
    let colour = colour(contender);
    writeln!(
        f,
        "<rect x=\"{LEFT}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{BAR}\" fill=\"{colour}\"/>",
        scale(value.median).max(1.0)
    )?;
    let (from, to) = (LEFT + scale(value.min), LEFT + scale(value.max));
    writeln!(
        f,
        "<path d=\"M{from:.1} {middle:.1}H{to:.1}M{from:.1} {:.1}v8M{to:.1} {:.1}v8\" \
         stroke=\"#222222\" fill=\"none\"/>",
        middle - 4.0,
        middle - 4.0
    )?;
    let mut said = digits(value.median);
    if let Some(problem) = cell.problem() {
        said = format!("{said} ({})", problem.split(':').next().unwrap_or_default());
    }
    label(f, to.max(LEFT + 1.0) + 8.0, middle + 4.5, "", &said)
}

fn colour(contender: Contender) -> &'static str {
    match contender {
        Contender::KvroomShm => "#1f6fb4",
        Contender::KvroomTcp => "#7fb2dc",
        Contender::NixlDefault => "#7a9e3d",
        Contender::NixlTcp => "#bcd193",
        Contender::MooncakeTcp => "#d9a04a",
    }
}

fn label(f: &mut String, x: f64, y: f64, how: &str, text: &str) -> fmt::Result {
    let text = text
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;");
    writeln!(f, "<text x=\"{x:.1}\" y=\"{y:.1}\" {how}>{text}</text>")
}
