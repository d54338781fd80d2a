//! The program as a user meets it: what it prints where, and how it exits.
#![allow(
    clippy::unwrap_used,
    reason = "helpers of tests fail by panicking, as tests do"
)]

use serde_json::Value;
use std::io::Write;
use std::process::{Command, Output, Stdio};

fn kvroom(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvroom"));
    command.args(args).stdin(Stdio::null());
    // What the caller's shell has set must not decide a test.
    command
        .env_remove("RUST_LOG")
        .env_remove("KVROOM_LOG_FORMAT");
    command
}

fn run(args: &[&str]) -> Output {
    kvroom(args).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Runs a usage error: exit code 2, nothing on stdout; gives what was said.
fn usage_error(args: &[&str]) -> String {
    let output = run(args);
    assert_eq!(output.status.code(), Some(2), "{args:?}: {output:?}");
    assert_eq!(stdout(&output), "", "{args:?}");
    stderr(&output)
}

#[test]
fn help_tells_a_stranger_what_it_is_how_to_start_and_what_exit_codes_mean() {
    let output = run(&["--help"]);
    assert_eq!(output.status.code(), Some(0));
    let help = stdout(&output);
    for part in [
        "Moves the KV cache of LLM requests from a prefill engine to a decode engine",
        "Examples:",
        "kvroom doctor",
        "Exit codes:",
        "  3  it ran, and a bar",
        "RUST_LOG",
        "--log-format",
    ] {
        assert!(help.contains(part), "{part:?} is not in\n{help}");
    }
}

#[test]
fn every_command_has_help() {
    for args in [
        &["doctor", "--help"][..],
        &["bench", "--help"],
        &["bench", "rooms", "--help"],
        &["bench", "transfer", "--help"],
        &["bench", "latency", "--help"],
        &["bench", "rate", "--help"],
        &["bench", "abort", "--help"],
        &["bench", "compare", "--help"],
        &["node", "--help"],
        &["completions", "--help"],
    ] {
        let output = run(args);
        assert_eq!(output.status.code(), Some(0), "{args:?}");
        assert!(stdout(&output).contains("Usage: kvroom"), "{args:?}");
    }
}

#[test]
fn the_version_is_that_of_the_package() {
    let output = run(&["--version"]);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(
        stdout(&output),
        format!("kvroom {}\n", env!("CARGO_PKG_VERSION"))
    );
}

#[test]
fn without_a_command_help_is_an_error() {
    assert!(usage_error(&[]).contains("Usage: kvroom"));
}

#[test]
fn bad_usage_names_what_is_wrong() {
    for (args, named) in [
        (&["docter"][..], "docter"),
        (&["doctor", "--yaml"], "--yaml"),
        (&["--log-format", "xml", "doctor"], "xml"),
        (&["completions", "tcsh"], "tcsh"),
        (&["bench", "transfer", "--fabric", "verbs"], "verbs"),
        (&["bench", "compare"], "--peers"),
        (&["bench", "compare", "--peers", "/no/such"], "/no/such"),
        (&["bench", "rate", "--inflight", "65"], "--inflight"),
        (&["bench", "rate", "--workload", "a_32x64x16K"], "64 sets"),
        (&["bench", "rooms", "--soak", "9"], "--soak"),
        (&["bench", "rooms", "--require-growth", "1"], "--soak"),
        (
            &["bench", "rooms", "--fabric", "local", "--processes", "2"],
            "--fabric local",
        ),
        (
            &["bench", "latency", "--require-busy-ratio", "4"],
            "--busy-bytes",
        ),
        (
            &[
                "bench",
                "transfer",
                "--fabric",
                "tcp",
                "--require-ratio-one-copy",
                "0.9",
            ],
            "--require-ratio-one-copy",
        ),
        (&["bench", "transfer", "--reps", "0"], "--reps"),
        (&["bench", "transfer", "--lanes", "65"], "--lanes"),
        (&["bench", "rooms", "--rooms", "1,-2"], "-2"),
        (&["bench", "abort", "--reps", "many"], "many"),
        (&["bench", "latency", "--processes", "3"], "3"),
        (&["bench", "latency", "--processes", "2"], "--fabric tcp"),
        (&["bench", "latency", "--transport", "unix"], "--fabric tcp"),
        (
            &[
                "bench",
                "latency",
                "--fabric",
                "tcp",
                "--congestion",
                "no-such",
            ],
            "no-such",
        ),
        (
            &["bench", "transfer", "--require-ratio-raw", "0.8"],
            "--fabric tcp",
        ),
        (
            &["bench", "rooms", "--processes", "2", "--require-bytes", "9"],
            "--require-bytes",
        ),
    ] {
        let said = usage_error(args);
        assert!(said.contains(named), "{args:?}: {said}");
    }
}

#[test]
fn an_unknown_workload_is_answered_with_those_there_are() {
    let said = usage_error(&["bench", "transfer", "--workload", "huge"]);
    assert_eq!(
        said,
        "kvroom: error: unknown workload \"huge\"; built in are a_32x64x16K, b_32x512x16K, \
         c_1x16384x4K, d_1x1x256M, tiny_1x1x16K, many_8x16K; FILE:NAME takes one of a JSON file\n"
    );
}

#[test]
fn a_bad_workload_file_is_named_with_workload_and_field() {
    let path = format!("{}/bad-workloads.json", env!("CARGO_TARGET_TMPDIR"));
    let rows = r#"{"workloads":[{"name":"w","layers":1,"pages":9,"page_bytes":64,"pool_pages":8,"seed":1}]}"#;
    std::fs::write(&path, rows).unwrap();
    let said = usage_error(&["bench", "transfer", "--workload", &format!("{path}:w")]);
    let expected = format!(
        "kvroom: error: workload file {path}: workload \"w\": field pages: 9 is more than \
         pool_pages, 8\n"
    );
    assert_eq!(said, expected);
    let said = usage_error(&["bench", "transfer", "--workload", "/no/such.json:w"]);
    assert!(
        said.contains("workload file /no/such.json: cannot be read"),
        "{said}"
    );
}

#[test]
fn a_bad_log_filter_is_a_usage_error() {
    let output = kvroom(&["doctor"])
        .env("RUST_LOG", "kvroom=loud")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).contains("RUST_LOG=\"kvroom=loud\""),
        "{}",
        stderr(&output)
    );
}

#[test]
fn logs_go_to_stderr_as_json_lines_if_asked_for_and_never_to_stdout() {
    let output = kvroom(&["--log-format", "json", "completions", "bash"])
        .env("RUST_LOG", "kvroom=debug")
        .output()
        .unwrap();
    let logs = stderr(&output);
    let first: Value = serde_json::from_str(logs.lines().next().unwrap()).unwrap();
    assert_eq!(first["level"], "DEBUG");
    assert_eq!(stdout(&output), stdout(&run(&["completions", "bash"])));
}

/// The keys that `kvroom doctor --help` promises.
const DOCTOR_KEYS: [(&str, &[&str]); 16] = [
    ("version", &[]),
    ("os", &["name", "kernel", "arch"]),
    ("cpu", &["cores", "usable"]),
    (
        "memory",
        &["total_bytes", "available_bytes", "cgroup_limit_bytes"],
    ),
    (
        "huge_pages",
        &["size_bytes", "total", "free", "transparent"],
    ),
    ("dev_shm", &["mounted", "fstype", "size_bytes", "detail"]),
    ("pidfd", &["supported", "detail"]),
    ("build", &["profile", "panic", "isolates_panics", "target"]),
    ("tcp", &["congestion", "available", "allowed"]),
    (
        "copies",
        &[
            "instructions",
            "streaming_from_bytes",
            "pairs",
            "measured_ms",
            "rounds",
            "sizes",
        ],
    ),
    (
        "cuda",
        &["state", "driver", "compiler", "devices", "detail"],
    ),
    (
        "ucx",
        &["state", "version", "tested", "library", "rdma", "detail"],
    ),
    ("fabrics", &["name", "state", "detail"]),
    ("libraries", &["name", "found_at", "loaded", "detail"]),
    ("checks", &["name", "required", "ok", "detail"]),
    ("ok", &[]),
];

fn doctor_json() -> (Output, Value) {
    let output = run(&["doctor", "--json"]);
    let text = stdout(&output);
    assert_eq!(text.lines().count(), 1, "{text}");
    let value = serde_json::from_str(&text).unwrap();
    (output, value)
}

fn keys(value: &Value) -> Vec<String> {
    let mut keys: Vec<String> = value.as_object().unwrap().keys().cloned().collect();
    keys.sort();
    keys
}

fn sorted<'a>(names: impl IntoIterator<Item = &'a &'a str>) -> Vec<String> {
    let mut names: Vec<String> = names.into_iter().map(ToString::to_string).collect();
    names.sort();
    names
}

#[test]
fn doctor_json_has_the_documented_keys_and_no_others() {
    let (_, value) = doctor_json();
    let help = stdout(&run(&["doctor", "--help"]));
    assert_eq!(
        keys(&value),
        sorted(DOCTOR_KEYS.iter().map(|(name, _)| name))
    );
    for (name, inner) in DOCTOR_KEYS {
        assert!(
            help.contains(&format!("\n  {name} ")),
            "{name} is not in the help"
        );
        for key in inner {
            assert!(help.contains(key), "{name}.{key} is not in the help");
        }
        let objects = match &value[name] {
            Value::Array(list) => list.clone(),
            one => vec![one.clone()],
        };
        assert!(!objects.is_empty(), "{name} is empty");
        for object in objects.iter().filter(|_| !inner.is_empty()) {
            assert_eq!(keys(object), sorted(inner), "{name}");
        }
    }
}

#[test]
fn doctor_names_every_fabric_and_claims_none_that_moved_no_bytes() {
    let (_, value) = doctor_json();
    let fabrics = value["fabrics"].as_array().unwrap();
    let names: Vec<&str> = fabrics
        .iter()
        .map(|f| f["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["local", "tcp", "unix", "shm", "ucx"]);
    for fabric in &fabrics[..4] {
        assert_eq!(fabric["state"], "works", "{fabric}");
    }
    // As the library is; `doctor_ucx` has one of each kind.
    let opened = value["ucx"]["state"] == "opened";
    assert_eq!(fabrics[4]["state"] == "not run", !opened, "{}", fabrics[4]);
    let libraries = value["libraries"].as_array().unwrap();
    assert_eq!(libraries[0]["loaded"], false);
    // Opened to be asked, where there is one.
    let is_there = !value["cuda"]["driver"].is_null();
    assert_eq!(libraries[1]["loaded"], is_there);
}

#[test]
fn doctor_exits_with_3_exactly_if_something_required_is_missing() {
    let (output, value) = doctor_json();
    let checks = value["checks"].as_array().unwrap();
    let fine = checks
        .iter()
        .all(|c| c["ok"] == true || c["required"] == false);
    assert_eq!(value["ok"], fine);
    assert_eq!(output.status.code(), Some(if fine { 0 } else { 3 }));
    assert_eq!(stderr(&output).is_empty(), fine);
    let table = run(&["doctor"]);
    assert_eq!(table.status.code(), output.status.code());
    assert_eq!(stdout(&table).contains("MISSING"), !fine);
}

#[test]
fn doctor_finds_a_library_on_the_path_it_was_given_and_does_not_load_it() {
    let dir = format!("{}/libraries", env!("CARGO_TARGET_TMPDIR"));
    std::fs::create_dir_all(&dir).unwrap();
    // Not a library at all: to open it would fail.
    std::fs::write(format!("{dir}/libucp.so.0"), "x").unwrap();
    let output = kvroom(&["doctor", "--json"])
        .env("LD_LIBRARY_PATH", &dir)
        .output()
        .unwrap();
    let value: Value = serde_json::from_slice(&output.stdout).unwrap();
    let ucp = &value["libraries"][0];
    assert_eq!(ucp["found_at"][0], format!("{dir}/libucp.so.0"));
    assert_eq!(ucp["loaded"], false);
}

#[test]
fn a_reader_that_leaves_early_causes_no_panic() {
    for args in [
        &["doctor"][..],
        &["doctor", "--json"],
        &["completions", "bash"],
        &["--help"],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = kvroom(args).stdout(writer).output().unwrap();
        assert!(
            !stderr(&output).contains("panicked"),
            "{args:?}: {}",
            stderr(&output)
        );
        assert!(
            matches!(output.status.code(), Some(0 | 3)),
            "{args:?}: {:?}",
            output.status
        );
    }
}

#[test]
fn a_full_disk_is_a_failure() {
    let full = std::fs::OpenOptions::new()
        .write(true)
        .open("/dev/full")
        .unwrap();
    let output = kvroom(&["completions", "bash"])
        .stdout(full)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("cannot write to standard output"));
}

#[test]
fn completions_know_the_commands_in_every_shell() {
    for shell in ["bash", "zsh", "fish"] {
        let output = run(&["completions", shell]);
        assert_eq!(output.status.code(), Some(0), "{shell}");
        let script = stdout(&output);
        for word in [
            "doctor",
            "transfer",
            "latency",
            "node",
            "log-format",
            "workload",
        ] {
            assert!(script.contains(word), "{shell} does not know {word}");
        }
    }
}

/// The shells read what they are given. A shell that is not installed is said on the real standard
/// error; with `KVROOM_REQUIRE_ALL` set, bash has to be there.
#[test]
fn completions_are_scripts_that_their_shells_can_read() {
    for shell in ["bash", "zsh", "fish"] {
        let script = run(&["completions", shell]).stdout;
        let spawned = Command::new(shell)
            .arg("-n")
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let Ok(mut child) = spawned else {
            let required = shell == "bash" && std::env::var_os("KVROOM_REQUIRE_ALL").is_some();
            assert!(
                !required,
                "{shell} is not installed and KVROOM_REQUIRE_ALL is set"
            );
            let note = format!("NOT CHECKED: {shell} is not installed; its completions are unread");
            writeln!(std::io::stderr(), "{note}").unwrap();
            continue;
        };
        child.stdin.take().unwrap().write_all(&script).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{shell}: {}", stderr(&output));
    }
}
