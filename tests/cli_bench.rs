//! The benches run to their end, say what their help promises, and read what other programs say.
#![cfg(feature = "program")]
#![allow(clippy::unwrap_used)] // Tests and their helpers.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn kvroom(words: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvroom"));
    command.args(words.split_whitespace()).output().unwrap()
}

/// The report of a bench; it has to end well.
fn report(words: &str) -> Value {
    let output = kvroom(&format!("bench {words} --json"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{words}: {errors}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.lines().count(), 1, "{words}: {text}");
    serde_json::from_str(&text).unwrap()
}

/// Every key of a report is in the help of its bench.
fn is_documented(bench: &str, report: &Value) {
    let help = kvroom(&format!("bench {bench} --help")).stdout;
    let help = String::from_utf8(help).unwrap();
    let mut values = vec![report];
    while let Some(value) = values.pop() {
        match value {
            Value::Object(fields) => {
                for (key, value) in fields {
                    assert!(
                        help.contains(key.as_str()),
                        "{bench}: {key} is not in the help"
                    );
                    values.push(value);
                }
            }
            Value::Array(list) => values.extend(list),
            _ => {}
        }
    }
}

fn number(report: &Value, path: &str) -> f64 {
    let value = report.pointer(path).and_then(Value::as_f64);
    value.unwrap_or_else(|| panic!("{path} of {report}"))
}

/// A small workload of 512 KiB, for one kind of bench.
fn small(kind: &str) -> String {
    let path = format!("{}/bench-{kind}.json", env!("CARGO_TARGET_TMPDIR"));
    let more = match kind {
        "rate" => r#","kind":"rate","count":9,"inflight":[1]"#,
        _ => "",
    };
    let row = format!(
        r#"{{"workloads":[{{"name":"s","layers":2,"pages":4,"page_bytes":16384,
            "pool_pages":256,"seed":1{more}}}]}}"#
    );
    std::fs::write(&path, row).unwrap();
    format!("{path}:s")
}

#[test]
fn a_transfer_is_held_against_the_yardsticks_of_its_fabric() {
    let local = report(&format!(
        "transfer --reps 2 --lanes 2 --workload {}",
        small("transfer")
    ));
    is_documented("transfer", &local);
    assert!(number(&local, "/ratio_one_copy") > 0.0 && number(&local, "/ratio_memcpy") > 0.0);
    assert!(local["ratio_raw_tcp"].is_null() && local["connections"].is_null());
    let tcp = report(&format!(
        "transfer --reps 2 --fabric tcp --processes 2 --workload {}",
        small("transfer")
    ));
    assert!(tcp["ratio_one_copy"].is_null() && number(&tcp, "/ratio_raw_tcp") > 0.0);
    assert_eq!(tcp["fabric"], "tcp");
    for ends in ["--processes 1", "--processes 2 --transport tcp --lanes 2"] {
        let words = format!(
            "transfer --reps 2 --fabric shm {ends} --workload {}",
            small("transfer")
        );
        let shm = report(&words);
        assert_eq!(shm["fabric"], "shm");
        assert!(number(&shm, "/ratio_one_copy") > 0.0 && shm["ratio_raw_tcp"].is_null());
    }
}

#[test]
fn rates_are_measured_in_one_process_and_two() {
    for (ends, rooms) in [
        ("--fabric local", 700),
        ("--fabric tcp --processes 2", 700),
        ("--fabric shm --processes 2", 700),
        // Two threads that never sleep: slow where others want the cores too.
        ("--fabric shm --processes 2 --drive", 50),
    ] {
        let words = format!(
            "rate {ends} --rooms {rooms} --reps 1 --inflight 1,8 --workload {}",
            small("rate")
        );
        let rate = report(&words);
        is_documented("rate", &rate);
        assert_eq!(rate["rates"][1]["inflight"], 8);
        assert_eq!(
            rate["rates"][1]["rooms_per_s"]["median"],
            rate["rooms_per_s"]
        );
        assert!(number(&rate, "/rooms_per_s") > 0.0);
    }
}

#[test]
fn small_rooms_are_measured_alone_and_beside_a_bulk_room() {
    let words = "latency --reps 20 --fabric tcp --processes 2 --busy-bytes 67108864";
    let both = report(words);
    is_documented("latency", &both);
    assert_eq!(both["busy"]["bytes"], 67_108_864);
    assert!(number(&both, "/busy/ratio_p90") > 0.0 && number(&both, "/busy/rooms") >= 1.0);
    let shm = report("latency --reps 20 --fabric shm --processes 2 --busy-bytes 67108864");
    assert!(number(&shm, "/busy/ratio_p90") > 0.0);
    let driven = report("latency --reps 5 --fabric shm --processes 2 --drive");
    assert_eq!(driven["drive"], true);
    let alone = report("latency --reps 20 --wait");
    assert!(alone["busy"].is_null());
}

#[test]
fn waiting_rooms_and_rooms_that_lived_are_accounted_for_in_every_process() {
    let idle = report("rooms --idle-cpu 100 --seconds 1 --processes 2");
    is_documented("rooms", &idle);
    assert_eq!(idle["nodes"], 1);
    assert!(number(&idle, "/sender_percent_of_core") >= 0.0);
    let soak = report("rooms --soak 4000");
    is_documented("rooms", &soak);
    assert_eq!(soak["samples"].as_array().unwrap().len(), 20);
    assert_eq!(soak["samples"][19]["rooms"], 4_000);
    let shm = report("rooms --idle-cpu 100 --seconds 1 --processes 2 --fabric shm");
    assert_eq!(
        (&shm["fabric"], &shm["transport"]),
        (&"shm".into(), &"unix".into())
    );
    let two = report("rooms --soak 3000 --processes 2 --transport tcp");
    assert!(number(&two, "/samples/0/sender_rss_bytes") > 0.0);
}

#[test]
fn aborted_memory_is_watched() {
    let abort = report("abort --reps 3");
    is_documented("abort", &abort);
    assert_eq!(abort["late_pages"], 0);
    assert_eq!(abort["pages_watched"], 3 * 16_384);
    assert_eq!(
        report("abort --reps 3 --fabric shm --processes 2")["late_pages"],
        0
    );
}

/// A directory with scripts of peers that print what these were recorded to print. They are shell
/// scripts here, so that the "interpreter" is the shell.
fn peers(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&dir).unwrap();
    let samples = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/cli/bench/compare/samples");
    let nixl = format!(
        "case $1 in bench) cat {0}/nixl_default.jsonl; kill -SEGV $$;; abort) cat {0}/nixl_abort.jsonl;; esac",
        samples.display()
    );
    std::fs::write(dir.join("nixl_bench.py"), nixl).unwrap();
    std::fs::write(
        dir.join("mooncake_bench.py"),
        "echo nonsense; echo cannot >&2; exit 3",
    )
    .unwrap();
    dir
}

#[test]
fn other_programs_are_compared_and_one_that_fails_is_a_cell() {
    let dir = peers("peers");
    let out = dir.join("out");
    std::fs::create_dir_all(&out).unwrap();
    let words = format!(
        "compare --peers {0} --python sh --python-mooncake sh --out {0}/out --rounds 1 --reps 1 \
         --workloads tiny_1x1x16K",
        dir.display()
    );
    let result = report(&words);
    let cells = &result["rows"][0]["cells"];
    assert_eq!(cells[0]["contender"], "NIXL default");
    assert_eq!(cells[0]["value"]["median"], 41.758);
    assert_eq!(cells[3]["contender"], "kvroom tcp");
    assert!(number(&cells[3], "/value/median") > 0.0, "{result}");
    assert_eq!(cells[4]["value"], Value::Null);
    assert_eq!(cells[4]["why"], "exit status: 3: cannot");
    let read = |name: &str| std::fs::read_to_string(out.join(name)).unwrap();
    assert!(read("compare.md").contains("exit status: 3: cannot"));
    assert!(read("compare.svg").contains("</svg>"));
    let lines = read("compare.jsonl");
    assert!(lines.lines().count() > 10);
    for line in lines.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        assert!(line["line"].is_object() && line["round"] == 1, "{line}");
    }
}
