//! A daemon that is to use UCX: without its library, and with a real one.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "helpers of tests fail by panicking, as tests do"
)]

#[path = "common/daemon.rs"]
mod daemon;
mod health;
#[path = "common/made_ucx.rs"]
mod made_ucx;

use daemon::{Daemon, kvroom};
use health::{Wedges, check as check_of, ready, red, red_within};
use serde_json::Value;
use std::process::{Command, Output};
use std::time::Duration;

fn serve(arguments: &[&str]) -> Output {
    let mut command = kvroom(&["serve", "--http", "127.0.0.1:0", "--ucx-when", "always"]);
    command.args(arguments).output().unwrap()
}

/// The check of `/readyz`, if there is one.
fn check(report: &Value) -> Option<&Value> {
    let checks = report["checks"].as_array().unwrap();
    checks.iter().find(|check| check["name"] == "ucx")
}

#[test]
fn a_daemon_that_is_to_use_ucx_in_any_case_does_not_start_without_it_and_says_what_to_do() {
    let none = made_ucx::folder("daemon-absent").join("libucp.so.0");
    let none = none.to_str().unwrap();
    let output = serve(&["--ucx-library", none]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(output.stdout.is_empty(), "it was never ready: {output:?}");
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(
        text.contains("cannot start the node: ucx.when = \"always\", and UCX cannot be used: "),
        "{text}"
    );
}

#[test]
fn a_daemon_that_may_use_ucx_serves_without_it_and_readyz_says_that_it_is_not_used_and_why() {
    let none = made_ucx::folder("daemon-without").join("libucp.so.0");
    let arguments = [
        "--ucx-when",
        "rdma",
        "--ucx-library",
        none.to_str().unwrap(),
    ];
    let mut daemon = Daemon::start(&arguments);
    let answer = daemon.until("/readyz", |answer| {
        answer.status == 200 && check(&answer.json()).is_some()
    });
    let report = answer.json();
    let ucx = check(&report).unwrap();
    assert_eq!(ucx["ok"], true, "nothing is wrong with the node: {ucx}");
    let why = ucx["why"].as_str().unwrap();
    assert!(why.starts_with("it is not used: "), "{why}");
    daemon.stop();
}

#[test]
fn a_daemon_that_says_nothing_of_ucx_does_not_speak_of_it() {
    let mut daemon = Daemon::start(&[]);
    let answer = daemon.until("/readyz", |answer| answer.status == 200);
    assert_eq!(check(&answer.json()), None);
    daemon.stop();
}

#[test]
fn a_window_of_ucx_beyond_its_bounds_is_an_error_of_the_configuration() {
    let output = serve(&["--ucx-window-puts", "4097"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(
        text.contains("--ucx-window-puts: 4097 is not within 1 to 4096"),
        "{text}"
    );
}

/// A daemon that uses UCX with every peer, where it is: as the tests of the rooms do, over its `tcp` on the loopback.
fn with_ucx(what: &str) -> Option<Command> {
    let transports = std::env::var("KVROOM_TEST_UCX_TLS").unwrap_or_else(|_| "tcp".to_owned());
    let mut arguments = vec!["--node-listen", "tcp://127.0.0.1:0", "--ucx-when", "always"];
    arguments.extend(["--ucx-transports", &transports]);
    let library = std::env::var("KVROOM_UCX_LIBRARY");
    if let Ok(library) = &library {
        arguments.extend(["--ucx-library", library]);
    }
    let mut command = kvroom(&["serve", "--http", "127.0.0.1:0"]);
    command.args(&arguments);
    let Some(why) = no_ucx(&arguments) else {
        return Some(command);
    };
    let required = std::env::var_os("KVROOM_REQUIRE_ALL").is_some_and(|value| value == "1");
    assert!(!required, "KVROOM_REQUIRE_ALL=1: {why}");
    eprintln!("SKIPPED: {what}: {why}");
    None
}

#[test]
fn the_thread_of_ucx_is_named_when_it_stands_still_or_is_dead_and_not_when_it_is_idle() {
    let (Some(wedges), Some(mut command)) = (Wedges::new(), with_ucx("the thread of UCX")) else {
        return;
    };
    wedges.reach(&mut command);
    // Nothing runs through UCX, not even a canary.
    command.args(["--health-canary", "false"]);
    let daemon = Daemon::spawn(command);
    let idle = ready(&daemon);
    assert_eq!(check_of(&idle, "ucx thread")["ok"], true);
    let at = idle.json()["at_ms"].as_u64().unwrap();
    // Idle for longer than a part may be blocked.
    daemon.until("/readyz", |answer| {
        assert_eq!(red(answer), [""; 0]);
        answer.json()["at_ms"].as_u64().unwrap() > at + 3_000
    });
    let planted = wedges.plant("ucx-thread");
    let answer = red_within(&daemon, "ucx thread", planted, Duration::from_secs(5));
    assert_eq!(red(&answer), ["ucx thread"]);
    let action = check_of(&answer, "ucx thread")["do"].to_string();
    assert!(action.contains("kvroom-ucx"), "{action}");
    wedges.remove("ucx-thread");
    ready(&daemon);
    wedges.plant_panic("ucx-thread");
    let dead = daemon.until("/readyz", |answer| !red(answer).is_empty());
    let why = check_of(&dead, "ucx thread")["why"].to_string();
    assert!(why.contains("it has died"), "{why}");
    assert_eq!(daemon.get("/livez").status, 200);
}

#[test]
fn what_ucx_warns_of_is_in_the_log_and_not_in_what_a_program_prints() {
    let Some(serve) = with_ucx("what UCX says") else {
        return;
    };
    let arguments: Vec<&std::ffi::OsStr> = serve.get_args().collect();
    let at = arguments.iter().position(|word| *word == "--ucx-library");
    let library = at.and_then(|at| arguments.get(at + 1)).copied();
    // A transport that no UCX has, of which each warns.
    let mut bench = kvroom(&["bench", "latency", "--reps", "3", "--json"]);
    bench.args(["--fabric", "ucx", "--ucx-transports", "tcp,none-such"]);
    let mut doctor = kvroom(&["doctor", "--json"]);
    doctor.env("UCX_TLS", "tcp,none-such");
    for command in [&mut bench, &mut doctor] {
        if let Some(library) = library {
            command.arg("--ucx-library").arg(library);
        }
    }
    let output = bench.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout);
    let said: Result<Value, _> = serde_json::from_str(&text);
    assert!(said.is_ok(), "{text}");
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(
        log.contains("kvroom::ucx") && log.contains("'none-such' is not available"),
        "{log}"
    );
    let output = doctor.output().unwrap();
    let said: Result<Value, _> = serde_json::from_slice(&output.stdout);
    assert!(said.is_ok(), "{output:?}");
}

#[test]
fn a_canary_runs_through_ucx_on_a_node_that_uses_it_with_every_peer() {
    let Some(command) = with_ucx("a canary through UCX") else {
        return;
    };
    let mut daemon = Daemon::spawn(command);
    let answer = daemon.until("/readyz", |answer| answer.status == 200);
    let report = answer.json();
    let checks = report["checks"].as_array().unwrap();
    let names: Vec<&str> = checks.iter().filter_map(|c| c["name"].as_str()).collect();
    for name in ["canary ucx lane 0", "canary ucx in", "canary tcp lane 0"] {
        assert!(names.contains(&name), "{name}: {names:?}");
    }
    let why = check(&report).unwrap()["why"].as_str().unwrap();
    assert!(why.starts_with("UCX 1."), "{why}");
    let metrics = daemon.get("/metrics").text();
    let runs = "kvroom_canary_runs_total{canary=\"ucx lane 0\",result=\"passed\"}";
    assert!(metrics.contains(runs), "{metrics}");
    // The canary's own jobs wait for the thread of UCX as others do.
    let jobs = metrics
        .lines()
        .find_map(|line| line.strip_prefix("kvroom_lane_jobs_total{lane=\"ucx\"} "));
    assert!(jobs.is_some_and(|jobs| jobs != "0"), "{metrics}");
    daemon.stop();
}

/// Why no daemon starts with these words.
fn no_ucx(arguments: &[&str]) -> Option<String> {
    // A bare node, which ends when its standard input does.
    let mut words = vec!["node", "--name", "ucx-is-here", "--until-stdin-closes"];
    let always = ["--ucx", "always"];
    words.extend(always);
    words.extend(arguments.iter().skip(4));
    let output = kvroom(&words).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    (!output.status.success()).then_some(text)
}
