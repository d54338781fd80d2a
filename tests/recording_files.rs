//! Recordings as files, as docs/recording.md has them: written by a storm, stepped through, merged, and
//! replayed as load. Runs the examples that `cargo test` has built beside the tests.
#![allow(clippy::unwrap_used)] // Tests and their helpers.

use kvroom::recording::{self, Recording};
use serde_json::Value;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// The built example, or none if only some of the targets were built.
fn example(name: &str) -> Option<PathBuf> {
    // target/PROFILE/deps/recording_files-HASH, beside target/PROFILE/examples/.
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

fn run(path: &Path, arguments: &[&str]) -> Output {
    Command::new(path).args(arguments).output().unwrap()
}

#[track_caller]
fn said(ran: &Output) -> String {
    let (out, err) = (
        String::from_utf8_lossy(&ran.stdout).into_owned(),
        String::from_utf8_lossy(&ran.stderr),
    );
    assert!(ran.status.success(), "{out}{err}");
    out
}

/// The last line of a storm, its report.
#[track_caller]
fn report(ran: &Output) -> Value {
    let out = said(ran);
    let last = out.lines().last().unwrap_or_default();
    serde_json::from_str(last).unwrap_or_else(|e| panic!("{e}: {out}"))
}

/// Two recordings of one storm.
struct Storm {
    report: Value,
    decode: PathBuf,
    prefill: PathBuf,
}

impl Storm {
    /// The same one for all tests; none if the example was not built.
    fn recorded() -> Option<&'static Storm> {
        static STORM: OnceLock<Option<Storm>> = OnceLock::new();
        STORM.get_or_init(Storm::record).as_ref()
    }

    fn record() -> Option<Storm> {
        let path = example("abort_storm")?;
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("recording_files");
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("storm.jsonl");
        let arguments = ["--engine", "rooms", "--sessions", "10", "--json"];
        let record = ["--record", file.to_str().unwrap()];
        let ran = run(&path, &[&arguments[..], &record].concat());
        let names = ["storm-decode.jsonl", "storm-prefill.jsonl"];
        let [decode, prefill] = names.map(|name| folder.join(name));
        Some(Storm {
            report: report(&ran),
            decode,
            prefill,
        })
    }

    fn files(&self) -> [(&'static str, &str, Recording); 2] {
        [("decode", &self.decode), ("prefill", &self.prefill)].map(|(name, path)| {
            let recording = recording::read_file(path).unwrap();
            (name, path.to_str().unwrap(), recording)
        })
    }
}

#[test]
fn a_storm_records_both_nodes_from_their_start_and_loses_nothing() {
    let Some(storm) = Storm::recorded() else {
        return;
    };
    let aborted = storm.report["aborted"].as_u64().unwrap();
    assert!(aborted > 0, "{}", storm.report);
    for (name, _, recording) in storm.files() {
        assert!(
            recording.header.node.starts_with(name),
            "{:?}",
            recording.header
        );
        assert_eq!(recording.header.lost, 0);
        let seqs = recording.entries.iter().map(|entry| entry.seq);
        assert!(seqs.eq(0..recording.entries.len() as u64));
        let lives = recording::replay::replay(&recording);
        assert!(lives.len() as u64 > aborted, "{} lives", lives.len());
    }
}

#[test]
fn a_recording_of_a_storm_is_stepped_through_the_machines_which_go_the_same_way() {
    let (Some(storm), Some(path)) = (Storm::recorded(), example("replay_recording")) else {
        return;
    };
    for (_, file, recording) in storm.files() {
        let out = said(&run(&path, &[file]));
        let last = out.lines().last().unwrap();
        let lives = recording::replay::replay(&recording).len();
        let wanted = format!(
            ": {lives} rooms, {lives} replayed from their start, 0 had not ended, 0 went another way"
        );
        assert!(last.ends_with(&wanted), "{last}");
        // One room alone, with each of its steps.
        let key = recording
            .entries
            .iter()
            .find_map(|entry| entry.what.room())
            .unwrap();
        let room = key.id.0.to_string();
        let out = said(&run(&path, &[file, "--room", &room]));
        assert!(
            out.contains(&format!("room {key}")) && out.contains("Start"),
            "{out}"
        );
    }
}

#[test]
fn a_machine_that_goes_another_way_makes_the_replay_fail_and_a_file_that_is_none_is_named() {
    let (Some(storm), Some(path)) = (Storm::recorded(), example("replay_recording")) else {
        return;
    };
    let text = std::fs::read_to_string(&storm.decode).unwrap();
    let from = "\"event\":\"Bound\"";
    assert!(text.contains(from));
    let changed = storm.decode.with_file_name("changed.jsonl");
    std::fs::write(&changed, text.replacen(from, "\"event\":\"PeerOut\"", 1)).unwrap();
    let ran = run(&path, &[changed.to_str().unwrap()]);
    assert_eq!(ran.status.code(), Some(1));
    let out = String::from_utf8_lossy(&ran.stdout).into_owned();
    assert!(!out.contains(" 0 went another way"), "{out}");
    let broken = storm.decode.with_file_name("broken.jsonl");
    std::fs::write(&broken, text.replacen("\"what\":", "\"was\":", 1)).unwrap();
    let ran = run(&path, &[broken.to_str().unwrap()]);
    assert_eq!(ran.status.code(), Some(2));
    let err = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert!(
        err.contains("broken.jsonl") && err.contains("line 2"),
        "{err}"
    );
}

#[test]
fn two_recordings_in_either_order_make_one_timeline() {
    let (Some(storm), Some(path)) = (Storm::recorded(), example("replay_recording")) else {
        return;
    };
    let [(_, decode, first), (_, prefill, second)] = storm.files();
    let all = (first.entries.len() + second.entries.len()).to_string();
    let of_both = |files: [&str; 2]| {
        let out = said(&run(&path, &[files[0], files[1], "--limit", &all]));
        let moments: Vec<String> = (out.lines())
            .filter(|line| line.contains(" ms  "))
            .map(str::to_owned)
            .collect();
        assert_eq!(moments.len().to_string(), all);
        moments
    };
    let moments = of_both([decode, prefill]);
    assert_eq!(of_both([prefill, decode]).len(), moments.len());
    // No claim comes before it was sent.
    let sent = moments
        .iter()
        .position(|line| line.contains("──▶ Claim"))
        .unwrap();
    let came = moments
        .iter()
        .position(|line| line.contains("◀── Claim"))
        .unwrap();
    assert!(sent < came, "sent at line {sent}, received at line {came}");
}

#[test]
fn a_recording_is_played_as_load_on_two_real_nodes() {
    let (Some(storm), Some(path)) = (Storm::recorded(), example("replay_recording")) else {
        return;
    };
    let decode = storm.decode.to_str().unwrap();
    let out = said(&run(&path, &[decode, "--runtime", "--speed", "4"]));
    assert!(!out.contains("failed:"), "{out}");
    let wrong = run(&path, &[decode, "--runtime", "--speed", "0"]);
    assert_eq!(wrong.status.code(), Some(2));
}

#[test]
fn a_recording_is_the_load_of_a_storm_with_its_rooms_and_aborts() {
    let (Some(storm), Some(path)) = (Storm::recorded(), example("abort_storm")) else {
        return;
    };
    let decode = storm.decode.to_str().unwrap();
    let report = report(&run(
        &path,
        &["--engine", "rooms", "--replay", decode, "--json"],
    ));
    assert_eq!(report["storm"], "replay", "{report}");
    let rooms = recording::load::requests(&recording::read_file(&storm.decode).unwrap()).len();
    assert_eq!(report["sessions"], rooms, "{report}");
    for zero in ["late_bytes", "torn_reads", "leaked_pages", "stuck_rooms"] {
        assert_eq!(report[zero], 0, "{zero} in {report}");
    }
    assert!(report["aborted"].as_u64().unwrap() > 0, "{report}");
    assert_eq!(report["wedged"], false, "{report}");
}
