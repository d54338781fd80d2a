//! The README says what is true: its tables, its snippet, its commands and its links.
#![allow(clippy::unwrap_used)] // Tests and their helpers.

use kvroom::{Deadlines, Limits};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const README: &str = include_str!("../README.md");
const LIB: &str = include_str!("../src/lib.rs");

/// Name and default of each row of the table with this heading.
fn table(heading: &str) -> Vec<(String, String)> {
    let head = format!("| {heading} | Default |");
    let rows = README.lines().skip_while(|line| !line.starts_with(&head));
    let rows = rows.skip(2).take_while(|line| line.starts_with('|'));
    rows.map(|row| {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        (cells[1].trim_matches('`').to_owned(), cells[2].to_owned())
    })
    .collect()
}

#[test]
fn every_limit_is_in_the_table_with_its_default() {
    // Without `..`: a field that is added must be added here, and then there.
    let Limits {
        rooms,
        gates,
        chunks_in_flight,
        early_claims_per_peer,
        claims_per_peer,
        quarantined_pages_per_peer,
        spent_keys,
        receivers,
        senders,
        pages_per_claim,
        frame_bytes,
        frames_unacknowledged,
        jobs_per_lane,
        greetings,
        data_frame_bytes,
    } = Limits::default();
    let expected = [
        ("rooms", rooms as u64),
        ("gates", gates as u64),
        ("chunks_in_flight", chunks_in_flight as u64),
        ("early_claims_per_peer", early_claims_per_peer as u64),
        ("claims_per_peer", claims_per_peer.into()),
        ("quarantined_pages_per_peer", quarantined_pages_per_peer),
        ("spent_keys", spent_keys as u64),
        ("receivers", receivers.into()),
        ("senders", senders.into()),
        ("pages_per_claim", pages_per_claim as u64),
        ("frame_bytes", frame_bytes as u64),
        ("frames_unacknowledged", frames_unacknowledged as u64),
        ("jobs_per_lane", jobs_per_lane as u64),
        ("greetings", greetings as u64),
        ("data_frame_bytes", data_frame_bytes as u64),
    ];
    let said: Vec<(String, u64)> = table("Limit")
        .into_iter()
        .map(|(name, value)| (name, value.replace('_', "").parse().unwrap()))
        .collect();
    assert_eq!(said, expected.map(|(name, value)| (name.to_owned(), value)));
}

#[test]
fn every_deadline_is_in_the_table_with_its_default() {
    let Deadlines {
        outcome,
        stall,
        drain,
        early_claim,
        connect,
        ping,
        liveness,
        resume,
        backoff_first,
        backoff_most,
        shutdown,
    } = Deadlines::default();
    let expected = [
        ("outcome", outcome.unwrap()),
        ("stall", stall),
        ("drain", drain),
        ("early_claim", early_claim),
        ("connect", connect),
        ("ping", ping),
        ("liveness", liveness),
        ("resume", resume),
        ("backoff_first", backoff_first),
        ("backoff_most", backoff_most),
        ("shutdown", shutdown),
    ];
    let said: Vec<(String, Duration)> = table("Deadline")
        .into_iter()
        .map(|(name, value)| {
            let duration = match value.strip_suffix(" ms") {
                Some(ms) => Duration::from_millis(ms.parse().unwrap()),
                None => Duration::from_secs(value.strip_suffix(" s").unwrap().parse().unwrap()),
            };
            (name, duration)
        })
        .collect();
    assert_eq!(said, expected.map(|(name, value)| (name.to_owned(), value)));
}

/// Lines between a line that begins with `from` and the next one that is `to`.
fn between<'a>(lines: impl Iterator<Item = &'a str>, from: &str, to: &str) -> Vec<&'a str> {
    let lines = lines.skip_while(|line| *line != from).skip(1);
    lines.take_while(|line| *line != to).collect()
}

#[test]
fn the_snippet_is_the_documentation_test_of_the_crate() {
    let comments = LIB.lines().filter_map(|line| line.strip_prefix("//!"));
    let comments = comments.map(|line| line.strip_prefix(' ').unwrap_or(line));
    let test = between(comments, "```", "```");
    // What is hidden there, and the imports, are not shown here.
    let shown = test
        .into_iter()
        .filter(|line| !line.starts_with("# ") && !line.starts_with("use "));
    let shown: Vec<&str> = shown.skip_while(|line| line.is_empty()).collect();
    assert!(shown.len() > 10, "the documentation test was not found");
    assert_eq!(between(README.lines(), "```rust", "```"), shown);
}

#[test]
fn the_commands_that_are_shown_exist() {
    let shown = README
        .lines()
        .filter_map(|line| line.strip_prefix("    kvroom "));
    let commands: Vec<&str> = shown
        .map(|line| line.split('#').next().unwrap().trim())
        .collect();
    assert_eq!(
        commands,
        [
            "doctor",
            "bench rooms",
            "bench transfer",
            "bench latency",
            "bench rate",
            "bench abort",
            "bench compare",
            "serve",
            "config",
            "rooms",
            "node"
        ]
    );
    for command in commands {
        let help = Command::new(env!("CARGO_BIN_EXE_kvroom"))
            .args(command.split_whitespace())
            .arg("--help")
            .output()
            .unwrap();
        let text = String::from_utf8(help.stdout).unwrap();
        assert!(
            help.status.success()
                && (text.contains("--json") || ["node", "serve"].contains(&command)),
            "kvroom {command}: {text}"
        );
    }
}

#[test]
fn every_file_that_is_linked_to_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let links = README
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split(')').next());
    let files: Vec<&str> = links.filter(|link| !link.starts_with('#')).collect();
    assert!(files.len() >= 5);
    for file in files {
        assert!(
            root.join(file).is_file(),
            "the README links to {file}, which is not there"
        );
    }
}

#[test]
fn every_file_that_the_map_of_the_code_names_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let map = include_str!("../ARCHITECTURE.md");
    let spans = map.split('`').skip(1).step_by(2);
    let files: Vec<&str> = spans
        .filter(|s| s.ends_with(".rs") && !s.contains(['{', '*']))
        .collect();
    assert!(files.len() >= 15);
    for file in files {
        let found = ["", "src", "actors/src", "actors", "kernels/src"]
            .iter()
            .any(|part| root.join(part).join(file).is_file());
        assert!(found, "ARCHITECTURE.md names {file}, which is not there");
    }
}
