//! The kernels' own source, compiled for this CPU, against their twins.
//!
//! ```text
//!   seed ─▶ case: arena with red zones, marks, arguments ─▶ twin ───▶ expected
//!                          │                                             ║
//!                          └─▶ shim + SOURCE + main, compiled ─▶ arena ══ equal?
//! ```
//!
//! Strides and addresses are moved by many gigabytes, to where the arena repeats, so that offsets of
//! 32 bits are noticed. The marks say which bytes may be read and which must be written exactly
//! once; they come from plain loops of the test, not from the twin. Faults planted in the source
//! have to be noticed.
#![allow(clippy::unwrap_used)] // Tests and their helpers.

#[path = "on_host/arena.rs"]
mod arena;
#[path = "on_host/cases.rs"]
mod cases;
#[path = "on_host/program.rs"]
mod program;

use arena::{Case, Random};
use kvroom_kernels::cuda::{Kernel, SOURCE};
use program::Program;

/// Small pieces, so that small cases have many of them.
const SMALL: &[&str] = &["-DKVROOM_TILE=64", "-DKVROOM_UNIT=64"];
/// The same, for programs that are run once: it takes longer to optimise them.
const QUICK: &[&str] = &["-DKVROOM_TILE=64", "-DKVROOM_UNIT=64", "-O0"];
const SMALL_TILE: u64 = 64;
const SMALL_UNIT: u64 = 64;

fn cases(seed: u64, each: usize, tile: u64, unit: u64) -> Vec<Case> {
    let mut random = Random::new(seed);
    let mut cases = Vec::new();
    for _ in 0..each {
        cases.push(cases::pages(&mut random, Kernel::GatherPages, tile));
        cases.push(cases::pages(&mut random, Kernel::ScatterPages, tile));
        cases.push(cases::slices(&mut random, unit));
        cases.push(cases::sum(&mut random));
    }
    cases
}

/// What each case got wrong, of those that did.
fn wrong(program: &Program, cases: &[Case]) -> Vec<(Kernel, String)> {
    let results = program.run(cases);
    assert_eq!(results.len(), cases.len());
    let pairs = cases.iter().zip(&results);
    pairs
        .filter_map(|(case, result)| Some((case.kernel, case.difference(result)?)))
        .collect()
}

fn assert_none_wrong(program: &Program, cases: &[Case]) {
    let wrong = wrong(program, cases);
    let first = wrong.first();
    assert!(
        first.is_none(),
        "{} of {}: {first:?}",
        wrong.len(),
        cases.len()
    );
}

#[test]
fn kernels_and_twins_agree_on_random_shapes_cut_into_many_pieces() {
    let Some(program) = Program::build("kernels-small", SOURCE, SMALL) else {
        return;
    };
    assert_none_wrong(&program, &cases(1, 200, SMALL_TILE, SMALL_UNIT));
}

#[test]
fn kernels_and_twins_agree_with_the_pieces_that_a_gpu_is_given() {
    let Some(program) = Program::build("kernels", SOURCE, &[]) else {
        return;
    };
    assert_none_wrong(&program, &cases(2, 40, 8192, 512));
}

/// What is planted, in which kernel, and the change of the source.
const FAULTS: &[(&str, Kernel, &str, &str)] = &[
    (
        "the bytes after the last word are left out",
        Kernel::GatherPages,
        "if (lane < n - tail) store(dst + tail + lane, load<u8>(src + tail + lane));",
        "",
    ),
    (
        "a source that is no multiple of 4 is read beyond its end",
        Kernel::GatherPages,
        "const u32 over = slip == 0 ? 0 : 4 - slip;",
        "const u32 over = 0;",
    ),
    (
        "a source that is no multiple of 4 is read before its begin",
        Kernel::ScatterPages,
        "head += head < slip ? 16 : 0;",
        "",
    ),
    (
        "one of four parts is shifted by a byte only",
        Kernel::ScatterPages,
        "v.y = __funnelshift_r(v.y, v.z, slip * 8);",
        "v.y = __funnelshift_r(v.y, v.z, 8);",
    ),
    (
        "a layer of the pool is as long as one of the staging",
        Kernel::GatherPages,
        "a.pool + at.layer * a.pool_layer",
        "a.pool + at.layer * a.staging_layer",
    ),
    (
        "a page's offset has 32 bits",
        Kernel::ScatterPages,
        "page * a.pool_page",
        "u32(page * a.pool_page)",
    ),
    (
        "a row's offset has 32 bits",
        Kernel::ResliceHeads,
        "row * a.src.row + plane",
        "u32(row * a.src.row) + plane",
    ),
    (
        "tiles begin where the one before has not ended yet",
        Kernel::GatherPages,
        "const u64 from = at.tile == 0 ? 0 : u64(at.tile) * TILE - shift;",
        "const u64 from = at.tile == 0 ? 0 : u64(at.tile) * TILE - shift - 1;",
    ),
    (
        "a page that is carried is not taken back",
        Kernel::ScatterPages,
        "page -= carry ? pages : 0;",
        "",
    ),
    (
        "the page table is read one step late",
        Kernel::GatherPages,
        "load<u32>(a.table + next.page * 4ull)",
        "load<u32>(a.table + at.page * 4ull)",
    ),
    (
        "the destination's heads are as far apart as the source's",
        Kernel::ResliceHeads,
        "head * a.dst.head",
        "head * a.src.head",
    ),
    (
        "copies begin at the first row of a page",
        Kernel::ResliceHeads,
        "const u32 flat = s.first_row + row;",
        "const u32 flat = row;",
    ),
    (
        "the last segment is as long as the others",
        Kernel::ResliceHeads,
        "min(a.segment_rows, a.rows - first)",
        "a.segment_rows",
    ),
    (
        "the multiplication that divides is one too low",
        Kernel::ResliceHeads,
        "~0ull / d + 1",
        "~0ull / d",
    ),
    (
        "batches overlap, with the same bytes",
        Kernel::ResliceHeads,
        "word += BATCH * LANES",
        "word += LANES",
    ),
    (
        "zeros behind the last byte are not divided away",
        Kernel::ChecksumPages,
        "if (filled >> bit & 1)",
        "if (filled >> bit & 0)",
    ),
    (
        "a page is named by the table",
        Kernel::ChecksumPages,
        "times(a.first_page + at.page, a.page_factor)",
        "times(a.first_page + page, a.page_factor)",
    ),
    (
        "words are not filled up in front",
        Kernel::ChecksumPages,
        "const u64 zeros = rounds * LANES - words;",
        "const u64 zeros = 0;",
    ),
    (
        "the first and the last word are read whole",
        Kernel::ChecksumPages,
        "if (at >= from && at + 16 <= to) return",
        "if (at + 16 >= from) return",
    ),
    (
        "one lane in two is multiplied too far",
        Kernel::ChecksumPages,
        "0xa268b79eu",
        "0x80000000u",
    ),
];

#[test]
fn faults_planted_in_the_source_are_noticed() {
    let cases = cases(3, 60, SMALL_TILE, SMALL_UNIT);
    for (what, kernel, from, to) in FAULTS {
        assert_eq!(SOURCE.matches(from).count(), 1, "{what}: {from}");
        let source = SOURCE.replace(from, to);
        let Some(program) = Program::build("kernels-fault", &source, QUICK) else {
            return;
        };
        let wrong = wrong(&program, &cases);
        let first = wrong.iter().find(|(of, _)| of == kernel);
        let Some((_, difference)) = first else {
            panic!("{what}: not noticed");
        };
        eprintln!("{what}: {} cases, {difference}", wrong.len());
    }
}
