//! The examples do what they say. Runs what `cargo test` has built beside the tests.
#![allow(clippy::unwrap_used)] // Tests and their helpers.

use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// The built example, or none if only some of the targets were built.
fn example(name: &str) -> Option<PathBuf> {
    // target/PROFILE/deps/examples-HASH, beside target/PROFILE/examples/.
    let here = std::env::current_exe().unwrap();
    let profile = here.parent().unwrap().parent().unwrap();
    let file = format!("{name}{}", std::env::consts::EXE_SUFFIX);
    let path = profile.join("examples").join(file);
    if path.is_file() {
        return Some(path);
    }
    let text = format!(
        "{} was not built: run `cargo test` or build the example",
        path.display()
    );
    assert!(std::env::var_os("KVROOM_REQUIRE_ALL").is_none(), "{text}");
    // Not by a macro: what those print is kept from who runs the tests.
    let _ = writeln!(std::io::stderr(), "SKIPPED: {text}");
    None
}

/// What `two_nodes` says must be this, and that this fabric lay between the nodes.
fn said_by_decode(ran: &Output, fabric: &str) {
    let (out, err) = (
        String::from_utf8_lossy(&ran.stdout),
        String::from_utf8_lossy(&ran.stderr),
    );
    assert!(ran.status.success(), "{out}{err}");
    let lines: Vec<&str> = out.lines().collect();
    let [done, aborted] = lines[..] else {
        panic!("{out}")
    };
    // 48 pages in two layers of 16 KiB, and one aux row in two layers.
    assert!(done.starts_with("Done: 1605632 bytes in "), "{done}");
    let end = format!(" ({fabric}), every byte verified, [GateClosed]");
    assert!(done.ends_with(&end), "{done}");
    // A third of it had landed, and the rest was never pushed.
    assert!(
        aborted.starts_with("Aborted (peer: Requested: the user left): 524288 bytes"),
        "{aborted}"
    );
    assert!(aborted.ends_with(", proofs [GateClosed]"), "{aborted}");
}

#[test]
fn two_nodes_moves_a_request_and_gets_an_aborted_lease_back_with_its_proof() {
    let Some(path) = example("two_nodes") else {
        return;
    };
    said_by_decode(&Command::new(path).output().unwrap(), "local");
}

#[test]
fn two_nodes_does_the_same_over_tcp_and_shared_memory_in_one_process_and_in_two() {
    let Some(path) = example("two_nodes") else {
        return;
    };
    for fabric in ["tcp", "shm"] {
        for processes in ["1", "2"] {
            let arguments = ["--fabric", fabric, "--processes", processes];
            let ran = Command::new(&path).args(arguments).output().unwrap();
            said_by_decode(&ran, fabric);
        }
    }
}

#[test]
fn two_nodes_does_the_same_from_two_terminals() {
    let Some(path) = example("two_nodes") else {
        return;
    };
    for fabric in ["tcp", "shm"] {
        from_two_terminals(&path, fabric);
    }
}

fn from_two_terminals(path: &Path, fabric: &str) {
    let mut prefill = Command::new(path)
        .args(["prefill", "--listen", "tcp://127.0.0.1:0"])
        .args(["--fabric", fabric])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    let mut out = BufReader::new(prefill.stdout.take().unwrap());
    out.read_line(&mut said).unwrap();
    let address = said.trim().strip_prefix("listening on ").unwrap();
    let decode = Command::new(path)
        .args(["decode", "--connect", address, "--fabric", fabric])
        .output()
        .unwrap();
    if !decode.status.success() {
        prefill.kill().unwrap();
    }
    said_by_decode(&decode, fabric);
    assert!(prefill.wait().unwrap().success());
}

/// Runs a storm of the rooms engine and gives its exit code, its report and what it said besides.
fn storm(path: &Path, arguments: &str) -> (Option<i32>, Value, String) {
    let ran = Command::new(path)
        .args(arguments.split_whitespace())
        .arg("--json")
        .output()
        .unwrap();
    let (out, err) = (
        String::from_utf8_lossy(&ran.stdout),
        String::from_utf8_lossy(&ran.stderr).into_owned(),
    );
    let last = out.lines().last().unwrap_or_default();
    let report = serde_json::from_str(last)
        .unwrap_or_else(|error| panic!("{arguments}: {error}: {out}{err}"));
    (ran.status.code(), report, err)
}

/// Runs a storm that must break nothing, and in which the aborted rooms were worth it.
fn clean(path: &Path, arguments: &str) -> Value {
    let (code, report, err) = storm(path, arguments);
    assert_eq!(code, Some(0), "{arguments}: {report}\n{err}");
    for zero in [
        "late_bytes",
        "torn_reads",
        "leaked_pages",
        "quarantined_pages",
        "stuck_rooms",
        "not_resumed",
    ] {
        assert_eq!(report[zero], 0, "{arguments}: {zero} in {report}\n{err}");
    }
    assert_eq!(report["wedged"], false, "{arguments}: {report}\n{err}");
    let number = |key: &str| report[key].as_u64().unwrap();
    let (aborted, flying) = (number("aborted"), number("aborted_in_flight"));
    assert!(
        aborted > 0 && 4 * flying >= aborted,
        "{arguments}: {flying} of {aborted} aborts were in flight: {report}"
    );
    report
}

#[test]
fn a_storm_breaks_nothing_over_tcp_in_one_process_and_in_two_both_ways() {
    storms_over("tcp");
}

#[test]
fn a_storm_breaks_nothing_over_shared_memory_in_one_process_and_in_two_both_ways() {
    storms_over("shm");
}

fn storms_over(fabric: &str) {
    let Some(path) = example("abort_storm") else {
        return;
    };
    for wiring in ["--processes 1", "--processes 2", "--processes 2 --swap"] {
        for storm in ["incident", "both-sides"] {
            let arguments = format!("--storm {storm} --fabric {fabric} {wiring} --sessions 10");
            let report = clean(&path, &arguments);
            assert_eq!(report["fabric"], fabric);
            assert_eq!(report["swap"], wiring.ends_with("--swap"));
        }
    }
}

#[test]
fn a_peer_that_is_killed_in_mid_transfer_and_comes_back_breaks_nothing_both_ways() {
    let Some(path) = example("abort_storm") else {
        return;
    };
    for fabric in ["tcp", "shm"] {
        for swap in ["", "--swap"] {
            let sessions = if fabric == "shm" { 40 } else { 10 };
            let arguments = format!(
                "--storm peer-kill --fabric {fabric} --processes 2 --sessions {sessions} {swap}"
            );
            let report = clean(&path, &arguments);
            assert_eq!(report["peer_kills"], 1, "{report}");
            assert!(report["struck_in_flight"].as_u64().unwrap() > 0, "{report}");
            assert!(report["sessions_lost"].as_u64().unwrap() > 0, "{report}");
            let inside = report["struck_inside"].as_u64().unwrap() > 0;
            assert_eq!(inside, fabric == "shm" && swap.is_empty(), "{report}");
        }
    }
}

#[test]
fn a_peer_that_is_stopped_in_mid_transfer_and_goes_on_breaks_nothing_both_ways() {
    stops_over("tcp");
}

#[test]
fn a_writer_that_is_stopped_inside_a_gate_and_goes_on_breaks_nothing_both_ways() {
    stops_over("shm");
}

fn stops_over(fabric: &str) {
    let Some(path) = example("abort_storm") else {
        return;
    };
    // Where memory is shared the sender writes on while the receiver is stopped: with few rooms all of
    // them may have landed before they are aborted.
    let sessions = if fabric == "shm" { 40 } else { 10 };
    // A stop that a session survives, and one that it does not: seeds have both.
    let (mut short, mut long) = (0, 0);
    let seeds = if fabric == "shm" {
        SHORT_AND_LONG_OF_MANY
    } else {
        SHORT_AND_LONG
    };
    for seed in seeds {
        for swap in ["", "--swap"] {
            let arguments = format!(
                "--storm peer-stop --fabric {fabric} --processes 2 --sessions {sessions} --seed {seed} {swap}"
            );
            let report = clean(&path, &arguments);
            assert_eq!(report["peer_stops"], 1, "{report}");
            assert!(report["struck_in_flight"].as_u64().unwrap() > 0, "{report}");
            let inside = report["struck_inside"].as_u64().unwrap() > 0;
            assert_eq!(inside, fabric == "shm" && swap.is_empty(), "{report}");
            let survived = report["peer_stopped_ms"].as_u64().unwrap() < 1_500;
            *(if survived { &mut short } else { &mut long }) += 1;
        }
    }
    assert!(short > 0 && long > 0, "{short} short and {long} long");
}

/// Seeds of a stop that nobody notices, a long one, and one that a session is resumed after.
const SHORT_AND_LONG: [u32; 3] = [1, 2, 4];

/// The same with forty sessions.
const SHORT_AND_LONG_OF_MANY: [u32; 3] = [1, 5, 3];

#[test]
fn a_late_write_that_is_planted_in_a_network_lane_is_found_wherever_the_lane_is() {
    let Some(path) = example("abort_storm") else {
        return;
    };
    for wiring in ["--processes 1", "--processes 2", "--processes 2 --swap"] {
        let arguments = format!("--plant late-write --fabric tcp {wiring} --sessions 10");
        let (code, report, err) = storm(&path, &arguments);
        assert_eq!(code, Some(1), "{report}\n{err}");
        assert!(
            report["late_bytes"].as_u64().unwrap() > 0,
            "{report}\n{err}"
        );
    }
}

#[test]
fn what_is_planted_in_a_lane_that_writes_another_nodes_pools_is_found() {
    let Some(path) = example("abort_storm") else {
        return;
    };
    for wiring in ["--processes 1", "--processes 2", "--processes 2 --swap"] {
        for (plant, found) in [
            ("late-write", "late_bytes"),
            ("torn-read", "torn_reads"),
            ("leak", "leaked_pages"),
        ] {
            let arguments = format!("--plant {plant} --fabric shm {wiring} --sessions 10");
            let (code, report, err) = storm(&path, &arguments);
            assert_eq!(code, Some(1), "{report}\n{err}");
            assert!(report[found].as_u64().unwrap() > 0, "{report}\n{err}");
        }
    }
}

#[test]
fn the_other_process_of_a_storm_ends_with_its_parent() {
    let Some(path) = example("abort_storm") else {
        return;
    };
    for side in ["decode", "prefill"] {
        let mut child = Command::new(&path)
            .args(["--fabric", "tcp", "--processes", "2", "--sessions", "2"])
            .args(["--child", side, "--listen", "tcp://127.0.0.1:0"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut ready = String::new();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        out.read_line(&mut ready).unwrap();
        assert!(ready.contains("tcp://127.0.0.1:"), "{ready}");
        drop(child.stdin.take());
        let begun = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            if begun.elapsed() > Duration::from_secs(20) {
                child.kill().unwrap();
                panic!("the child outlives its parent");
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        assert!(status.success(), "{status}");
    }
}

#[test]
fn a_storm_that_strikes_a_process_wants_two() {
    let Some(path) = example("abort_storm") else {
        return;
    };
    for storm in ["peer-kill", "peer-stop"] {
        let ran = Command::new(&path)
            .args(["--storm", storm])
            .output()
            .unwrap();
        assert_eq!(ran.status.code(), Some(2));
        let err = String::from_utf8_lossy(&ran.stderr).into_owned();
        assert!(err.contains("--fabric tcp --processes 2"), "{err}");
    }
}

#[test]
fn abort_storm_knows_every_flag_that_the_readme_shows() {
    let Some(path) = example("abort_storm") else {
        return;
    };
    let help = Command::new(path).arg("--help").output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let readme = include_str!("../README.md");
    let about = readme.split("It takes `--engine").nth(1).unwrap();
    let about = format!("`--engine{}", about.split("An oracle").next().unwrap());
    let spans: Vec<&str> = about.split('`').skip(1).step_by(2).collect();
    assert_eq!(spans.len(), 12, "{spans:?}");
    for span in spans {
        let (flag, value) = span.split_once(' ').unwrap_or((span, ""));
        assert!(help.contains(flag), "{flag} is not in {help}");
        for word in value.split('|') {
            assert!(help.contains(word), "{flag} {word} is not in {help}");
        }
    }
}

#[test]
fn unequal_ranks_moves_a_request_both_ways_between_processes_and_compares_every_byte() {
    let Some(path) = example("unequal_ranks") else {
        return;
    };
    let ran = Command::new(path).output().unwrap();
    let (out, err) = (
        String::from_utf8_lossy(&ran.stdout),
        String::from_utf8_lossy(&ran.stderr),
    );
    assert!(ran.status.success(), "{out}{err}");
    let rows: Vec<Vec<&str>> = (out.lines().skip(1))
        .map(|line| line.split_whitespace().collect())
        .collect();
    // Of 500 tokens: 4 layers, K and V, 8 heads of 128 bytes, which the ranks of decode share. What is
    // compared is whole pages.
    let [token, tokens, page] = [4 * 2 * 8 * 128, 500, 32_u64];
    let all = (token * tokens, token * tokens.div_ceil(page) * page);
    let row = |prefill: &str, decode: u64, rank: u64, legs: &str| {
        let (landed, compared) = (all.0 / decode, all.1 / decode);
        let text = format!("TP {prefill} TP {decode} {rank} {legs} {landed} {compared}");
        text.split(' ').map(str::to_owned).collect::<Vec<_>>()
    };
    let mut wanted = vec![row("4", 2, 0, "2"), row("4", 2, 1, "2")];
    wanted.extend((0..4).map(|rank| row("2", 4, rank, "1")));
    assert_eq!(rows.len(), wanted.len(), "{out}");
    for (row, wanted) in rows.iter().zip(&wanted) {
        assert_eq!(row[..8], wanted[..], "{out}");
        assert_eq!(row.last(), Some(&"shm"), "{out}");
    }
}

#[test]
fn two_nodes_stays_short() {
    let source = include_str!("../examples/two_nodes.rs");
    assert!(source.lines().count() <= 135);
}
