//! `kvroom node` and the benches between two processes, as a user meets them.
#![allow(
    clippy::unwrap_used,
    reason = "helpers of tests fail by panicking, as tests do"
)]

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// Longer than anything here takes; a test that needs it has failed.
const PATIENCE: Duration = Duration::from_secs(60);

fn kvroom(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvroom"));
    command
        .args(args)
        .stdin(Stdio::null())
        .env_remove("RUST_LOG")
        .env_remove("KVROOM_LOG_FORMAT")
        .env_remove("KVROOM_CLUSTER_KEY");
    command
}

fn run(args: &[&str]) -> Output {
    output(&mut kvroom(args))
}

/// Runs it to its end; one that does not end is killed, and the test fails.
fn output(command: &mut Command) -> Output {
    let process = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = process.id().to_string();
    let (tell, ended) = mpsc::channel();
    std::thread::spawn(move || tell.send(process.wait_with_output()));
    match ended.recv_timeout(PATIENCE) {
        Ok(output) => output.unwrap(),
        Err(_) => {
            let _ = Command::new("kill").args(["-KILL", &pid]).status();
            panic!("{command:?} did not end within {PATIENCE:?}");
        }
    }
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// A node in a process of its own.
struct Node {
    process: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    ready: Value,
}

impl Node {
    fn start(args: &[&str]) -> Node {
        let mut process = kvroom(&["node"])
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = process.stdin.take();
        let stdout = BufReader::new(process.stdout.take().unwrap());
        let ready = Value::Null;
        let mut node = Node {
            process,
            stdin,
            stdout,
            ready,
        };
        node.ready = node.line();
        assert_eq!(node.ready["event"], "ready", "{}", node.ready);
        node
    }

    fn address(&self) -> &str {
        self.ready["addresses"][0].as_str().unwrap()
    }

    fn line(&mut self) -> Value {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|e| panic!("{line:?}: {e}"))
    }

    fn say(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().unwrap();
        stdin.write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    /// Gives a command and takes its answer, which has to be good.
    fn ask(&mut self, command: Value) -> Value {
        self.say(&command.to_string());
        let answer = self.line();
        assert_eq!(answer["ok"], true, "{command}: {answer}");
        answer
    }

    /// The last line, of a node that ends with exit code 0.
    fn end(mut self) -> Value {
        self.stdin = None;
        let last = self.line();
        assert!(self.process.wait().unwrap().success(), "{last}");
        last
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn a_node_says_where_it_is_and_stops_cleanly_on_sigterm() {
    let listen = [
        "--listen",
        "tcp://127.0.0.1:0",
        "--listen",
        "tcp://127.0.0.1:0",
    ];
    let node = Node::start(&[&["--name", "a"], &listen[..]].concat());
    assert_eq!(node.ready["name"], "a");
    assert_eq!(node.ready["pid"], node.process.id());
    let addresses = node.ready["addresses"].as_array().unwrap();
    assert_eq!(addresses.len(), 2);
    for address in addresses {
        let port = address.as_str().unwrap().rsplit_once(':').unwrap().1;
        assert_ne!(port, "0", "{address}");
    }
    let pid = node.process.id().to_string();
    let kill = Command::new("kill").args(["-TERM", &pid]).status().unwrap();
    assert!(kill.success());
    assert_eq!(
        node.end(),
        json!({"event": "stopped", "why": "SIGTERM", "drained": true, "leaked": []})
    );
}

#[test]
fn a_node_stops_when_its_standard_input_ends_if_told_so() {
    let node = Node::start(&["--name", "a", "--until-stdin-closes"]);
    assert_eq!(node.end()["why"], "standard input ended");
}

#[test]
fn what_a_node_cannot_use_is_a_usage_error_that_names_it() {
    let key = format!("{}/short.key", env!("CARGO_TARGET_TMPDIR"));
    std::fs::write(&key, "short\n").unwrap();
    for (args, named) in [
        (&["--listen", "127.0.0.1:7400"][..], "127.0.0.1:7400"),
        (&["--listen", "tcp://127.0.0.1"], "tcp://HOST:PORT"),
        (&["--connect", "udp://h:1"], "udp://h:1"),
        (&["--pool", "kv:1:2"], "NAME:LAYERS:PAGES:PAGE_BYTES"),
        (&["--pool", "kv:1:0:4096"], "pages \"0\""),
        (&["--limit", "romms=4"], "romms"),
        (&["--deadline", "stall=none"], "none"),
        (&["--key-file", "/no/such.key"], "/no/such.key"),
        (&["--key-file", &key], "short.key: a cluster key of 5 bytes"),
        (&["--connections", "65"], "65"),
    ] {
        let output = output(kvroom(&["node", "--name", "a"]).args(args));
        assert_eq!(output.status.code(), Some(2), "{args:?}: {output:?}");
        assert!(output.stdout.is_empty(), "{args:?}");
        let said = stderr(&output);
        assert!(said.contains(named), "{args:?}: {said}");
    }
    let mut short = kvroom(&["node", "--name", "a"]);
    let output = output(short.env("KVROOM_CLUSTER_KEY", "short"));
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("KVROOM_CLUSTER_KEY: a cluster key of 5 bytes"));
}

#[test]
fn an_address_in_use_is_a_failure_that_names_it() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("tcp://{}", taken.local_addr().unwrap());
    let output = run(&["node", "--name", "a", "--listen", &address]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = stderr(&output);
    assert!(said.contains(&address) || said.contains("in use"), "{said}");
}

#[test]
fn each_command_is_answered_and_a_bad_line_changes_nothing() {
    let pool = ["--pool", "kv:2:8:4096"];
    let mut node = Node::start(&[&["--name", "a", "--commands"], &pool[..]].concat());
    assert_eq!(
        node.ask(json!({"id": "x", "op": "ping"})),
        json!({"id": "x", "ok": true})
    );
    for (line, says) in [
        ("", "not a JSON object"),
        ("rubbish", "not a JSON object"),
        (r#"{"id":4}"#, "op"),
        (r#"{"id":4,"op":"fly"}"#, "fly"),
        (r#"{"id":4,"op":"ping","more":1}"#, "more"),
        (
            r#"{"id":4,"op":"fill","pool":"no","pages":[1],"seed":1}"#,
            "no pool \"no\"",
        ),
        (
            r#"{"id":4,"op":"fill","pool":"kv","pages":[8],"seed":1}"#,
            "8",
        ),
        (
            r#"{"id":4,"op":"send","first":1,"count":1000001}"#,
            "1000001",
        ),
        (
            r#"{"id":4,"op":"send","first":18446744073709551615,"count":2}"#,
            "room ids",
        ),
        (
            r#"{"id":4,"op":"send","first":1,"count":1,"pages":[1]}"#,
            "pool",
        ),
        (
            r#"{"id":4,"op":"receive","first":1,"count":1,"from":["b"]}"#,
            "no peer \"b\"",
        ),
        (r#"{"id":4,"op":"abort_where","which":"some"}"#, "some"),
        (
            r#"{"id":4,"op":"raw_serve","layers":1,"slots":[1,1],"page_bytes":64,"pool_pages":4,"seed":1,"connections":1}"#,
            "twice",
        ),
    ] {
        node.say(line);
        let answer = node.line();
        assert_eq!(answer["ok"], false, "{line}");
        let error = answer["error"].as_str().unwrap();
        assert!(error.contains(says), "{line}: {error}");
    }
    let pages = |op: &str, pages: Value, index: u32| json!({"op": op, "pool": "kv", "pages": pages, "seed": 7, "index": index});
    node.ask(pages("fill", json!([5, 2]), 0));
    let differs = |answer: Value| answer["differs"].clone();
    assert!(differs(node.ask(pages("check", json!([5, 2]), 0))).is_null());
    assert!(differs(node.ask(pages("check", json!([2]), 1))).is_null());
    assert_eq!(
        differs(node.ask(pages("check", json!([2, 5]), 0))),
        "layer 0, page 2"
    );
    assert!(differs(node.ask(pages("check", json!({"first": 5, "each": 1}), 0))).is_null());

    // A wait does not keep back what it waits for.
    let started = node.ask(json!({"op": "send", "first": 1, "count": 3, "tag": "t"}));
    assert_eq!(started["started"], 3);
    let again = node.ask(json!({"op": "send", "first": 3, "count": 1}));
    assert_eq!(
        (&again["started"], &again["refused"]),
        (&json!(0), &json!(1))
    );
    node.say(&json!({"id": 1, "op": "wait", "role": "send", "first": 1, "count": 4}).to_string());
    node.say(&json!({"id": 2, "op": "abort_where", "which": {"tag": "t"}}).to_string());
    // In either order.
    let (one, other) = (node.line(), node.line());
    let (waited, told) = if one["id"] == 1 {
        (one, other)
    } else {
        (other, one)
    };
    assert_eq!((&told["id"], &told["told"]), (&json!(2), &json!(3)));
    assert_eq!(waited["id"], 1);
    assert_eq!(waited["aborted"], 3, "{waited}");
    assert_eq!(waited["unknown"], 1, "{waited}");
    assert_eq!(waited["codes"], json!({"Requested": 3}));
    let stats = node.ask(json!({"op": "stats"}));
    assert_eq!(
        (&stats["started"], &stats["aborted"]),
        (&json!(3), &json!(3))
    );
    assert_eq!(node.ask(json!({"op": "rooms"}))["count"], 0);
    assert_eq!(node.ask(json!({"op": "peers"}))["peers"], json!([]));
    assert_eq!(node.ask(json!({"op": "early_claims"}))["count"], 0);
    node.ask(json!({"op": "stop"}));
    assert_eq!(node.end()["why"], "stop");
}

#[test]
fn two_nodes_move_pages_between_processes_by_commands() {
    let key = format!("{}/good.key", env!("CARGO_TARGET_TMPDIR"));
    std::fs::write(&key, "a key of sixteen bytes at least\n").unwrap();
    let common = ["--commands", "--key-file", &key, "--pool", "kv:2:64:4096"];
    let listen = ["--name", "prefill", "--listen", "tcp://127.0.0.1:0"];
    let mut prefill = Node::start(&[&listen[..], &common].concat());
    let address = prefill.address().to_owned();
    let connect = ["--name", "decode", "--connect", &address];
    let mut decode = Node::start(&[&connect[..], &common].concat());
    assert_eq!(decode.ready["peers"], json!(["prefill"]));

    let run = |first: u32, each: u32| json!({"first": first, "each": each});
    prefill.ask(json!({"op": "fill", "pool": "kv", "pages": run(0, 40), "seed": 3}));
    // Claims first for half of the rooms, sends first for the others.
    let receive = |first: u64, pages: u32| {
        json!({"op": "receive", "first": first, "count": 5, "from": ["prefill"], "pool": "kv",
               "pages": run(pages, 4), "checksum": true})
    };
    let send = |first: u64, pages: u32| {
        json!({"op": "send", "first": first, "count": 5, "pool": "kv", "pages": run(pages, 4),
               "chunk_pages": 3})
    };
    assert_eq!(decode.ask(receive(0, 20))["started"], 5);
    assert_eq!(prefill.ask(send(0, 0))["started"], 5);
    assert_eq!(prefill.ask(send(5, 20))["started"], 5);
    assert_eq!(decode.ask(receive(5, 40))["started"], 5);
    let wait = |role: &str| json!({"op": "wait", "role": role, "first": 0, "count": 10});
    for (node, role) in [(&mut decode, "receive"), (&mut prefill, "send")] {
        let waited = node.ask(wait(role));
        assert_eq!(waited["done"], 10, "{role}: {waited}");
    }
    let check = json!({"op": "check", "pool": "kv", "pages": run(20, 40), "seed": 3});
    assert!(decode.ask(check)["differs"].is_null());
    assert_eq!(
        decode.ask(json!({"op": "peers"}))["peers"][0]["state"],
        "up"
    );
    for mut node in [decode, prefill] {
        node.ask(json!({"op": "stop"}));
        assert_eq!(node.end()["drained"], true);
    }
}

fn bench(args: &[&str]) -> Value {
    let output = output(kvroom(&["bench"]).args(args).arg("--json"));
    assert_eq!(
        output.status.code(),
        Some(0),
        "{args:?}: {}",
        stderr(&output)
    );
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let help = run(&["bench", args[0], "--help"]);
    let common = run(&["bench", "--help"]);
    let help = [help.stdout, common.stdout].concat();
    let help = String::from_utf8(help).unwrap();
    for key in report.as_object().unwrap().keys() {
        assert!(
            help.contains(key.as_str()),
            "{key} of {} is not in the help",
            args[0]
        );
    }
    report
}

#[test]
fn bench_transfer_compares_with_raw_tcp_over_equal_connections() {
    let two = [
        "transfer",
        "--workload",
        "many_8x16K",
        "--reps",
        "2",
        "--fabric",
        "tcp",
    ];
    let report = bench(&[&two[..], &["--processes", "2", "--connections", "2"]].concat());
    assert_eq!(report["processes"], 2);
    assert_eq!(report["connections"], 2);
    assert_eq!(report["transport"], "tcp");
    assert_eq!(report["verified"], true);
    assert!(report["congestion"].is_string());
    for number in ["ratio_raw_tcp", "ratio_raw_tcp_pairs", "ratio_memcpy"] {
        assert!(report[number].as_f64().unwrap() > 0.0, "{number}");
    }
    let one = bench(&two);
    assert_eq!(one["processes"], 1);
    let unix = bench(&[&two[..], &["--transport", "unix", "--processes", "2"]].concat());
    assert_eq!(unix["transport"], "unix");
    let local = bench(&["transfer", "--workload", "many_8x16K", "--reps", "2"]);
    assert!(local["ratio_raw_tcp"].is_null() && local["connections"].is_null());
}

#[test]
fn bench_latency_measures_small_rooms_within_and_between_processes() {
    for more in [
        &[][..],
        &["--fabric", "tcp"],
        &["--fabric", "tcp", "--processes", "2"],
        &["--fabric", "tcp", "--processes", "2", "--transport", "unix"],
    ] {
        let report = bench(&[&["latency", "--reps", "150"], more].concat());
        assert_eq!(report["reps"], 150);
        let (done, released) = (&report["done_us"], &report["released_us"]);
        assert!(done["p50"].as_f64().unwrap() > 0.0);
        assert!(released["max"].as_f64() >= done["p50"].as_f64(), "{report}");
    }
}

#[test]
fn bench_rooms_measures_rooms_between_processes() {
    let tiny = ["rooms", "--rate-rooms", "3000", "--reps", "2"];
    for (more, transport) in [
        (&["--processes", "2"][..], "unix"),
        (&["--processes", "2", "--transport", "tcp"], "tcp"),
        (&["--transport", "unix"], "unix"),
    ] {
        let report = bench(&[&tiny, more].concat());
        assert_eq!(report["transport"], transport);
        assert!(report["bytes_per_idle_room"].is_null());
        assert!(report["rooms_per_s"].as_f64().unwrap() > 0.0);
    }
}

#[test]
fn bench_abort_counts_only_aborts_with_64_mib_queued() {
    let tcp = [
        "abort",
        "--reps",
        "3",
        "--fabric",
        "tcp",
        "--processes",
        "2",
    ];
    let report = bench(&tcp);
    assert!(report["queued_bytes_min"].as_u64().unwrap() >= 64 << 20);
    assert!(report["abort_to_reusable_us"]["p90"].as_f64().unwrap() > 0.0);
}

/// Both processes hold the same standard error: it ends with the last of them.
#[test]
fn the_second_process_ends_when_the_first_is_killed() {
    let mut parent = kvroom(&["bench", "rooms", "--processes", "2", "--reps", "1000"])
        .env("RUST_LOG", "kvroom=debug")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(parent.stderr.take().unwrap());
    let mut started = 0;
    while started < 2 {
        let mut line = String::new();
        assert!(said.read_line(&mut line).unwrap() > 0, "it ended by itself");
        started += usize::from(line.contains("logging started"));
    }
    parent.kill().unwrap();
    parent.wait().unwrap();
    let (tell, ended) = mpsc::channel();
    std::thread::spawn(move || {
        let _ = said.read_to_end(&mut Vec::new());
        let _ = tell.send(());
    });
    ended.recv_timeout(PATIENCE).unwrap();
}

#[test]
fn the_help_of_node_names_every_command_and_setting() {
    let help = String::from_utf8(run(&["node", "--help"]).stdout).unwrap();
    for word in [
        "ping",
        "fill",
        "check",
        "send",
        "push",
        "finish",
        "receive",
        "wait",
        "abort",
        "abort_where",
        "stats",
        "peers",
        "rooms",
        "early_claims",
        "connect",
        "disconnect",
        "raw_serve",
        "stop",
        "KVROOM_CLUSTER_KEY",
        "SIGTERM",
        "ready",
        "stopped",
        "drained",
    ] {
        assert!(help.contains(word), "{word} is not in the help");
    }
}
