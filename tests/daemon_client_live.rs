//! The commands that ask a daemon, against a daemon: one test for each command, and the ways to it.
#![allow(
    clippy::unwrap_used,
    reason = "helpers of tests fail by panicking, as tests do"
)]

#[path = "common/daemon.rs"]
mod daemon;

use daemon::{Daemon, PATIENCE, kvroom};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::{Child, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::Instant;

/// A path of nothing yet; removed when dropped.
struct Place(PathBuf);

impl Place {
    fn new() -> Place {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("kvroom-client-live-{}-{n}", std::process::id());
        Place(std::env::temp_dir().join(name))
    }

    fn text(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn url(daemon: &Daemon) -> String {
    format!("http://{}", daemon.http)
}

/// A command that runs; killed when dropped.
struct Running(Option<Child>);

impl Running {
    fn start(url: &str, args: &[&str]) -> Running {
        let mut command = kvroom(args);
        command.env("KVROOM_URL", url);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Running(Some(command.spawn().unwrap()))
    }

    fn is_over(&mut self) -> bool {
        self.0.as_mut().unwrap().try_wait().unwrap().is_some()
    }

    /// What it has written, when it has ended.
    fn output(mut self) -> Output {
        let child = self.0.take().unwrap();
        let pid = child.id().to_string();
        let (tell, ended) = mpsc::channel();
        std::thread::spawn(move || tell.send(child.wait_with_output()));
        match ended.recv_timeout(PATIENCE) {
            Ok(output) => output.unwrap(),
            Err(_) => {
                let _ = kill(&pid);
                panic!("a command did not end within {PATIENCE:?}");
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn kill(pid: &str) -> std::io::Result<std::process::ExitStatus> {
    let mut command = std::process::Command::new("kill");
    command.args(["-KILL", pid]).status()
}

fn run(url: &str, args: &[&str]) -> Output {
    Running::start(url, args).output()
}

/// The JSON that a command says.
#[track_caller]
fn said(url: &str, args: &[&str]) -> Value {
    let output = run(url, args);
    assert!(output.status.success(), "{args:?}: {output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// What a command complains of, with this exit code.
#[track_caller]
fn complains(url: &str, args: &[&str], code: i32) -> String {
    let output = run(url, args);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {output:?}");
    String::from_utf8(output.stderr).unwrap()
}

fn send(daemon: &Daemon, id: u64, tag: &str) {
    let room = json!({"role": "send", "id": id, "tag": tag});
    daemon.post("/v1/rooms", &room).expect(201);
}

#[test]
fn rooms_lists_more_than_a_page_of_them_and_narrows_them() {
    let daemon = Daemon::start(&[]);
    let start = |id: u64| json!({"op": "start", "role": "send", "id": id, "tag": if id < 3 { "few" } else { "many" }});
    let all: Vec<Value> = (0..1_200).map(start).collect();
    for some in all.chunks(600) {
        let body = json!({"operations": some});
        daemon.post("/v1/batch", &body).expect(200);
    }
    let ids = |args: &[&str]| -> BTreeSet<u64> {
        let list = said(&url(&daemon), args);
        let rooms = list["rooms"].as_array().unwrap().iter();
        let ids: Vec<u64> = rooms
            .map(|room| room["id"].as_str().unwrap().parse().unwrap())
            .collect();
        let set: BTreeSet<u64> = ids.iter().copied().collect();
        assert_eq!(set.len(), ids.len(), "a room is listed once");
        set
    };
    assert_eq!(ids(&["rooms", "--limit", "5000"]), (0..1_200).collect());
    assert_eq!(ids(&["rooms"]), (1_100..1_200).collect());
    assert_eq!(ids(&["rooms", "--tag", "few"]), BTreeSet::from([0, 1, 2]));
    let none = ["rooms", "--state", "draining", "--role", "receive"];
    assert_eq!(ids(&none), BTreeSet::new());
    assert_eq!(ids(&["rooms", "--quarantined"]), BTreeSet::new());
    let other_role = [
        "rooms",
        "--role",
        "send",
        "--state",
        "registered",
        "--limit",
        "3",
    ];
    assert_eq!(ids(&other_role), (1_197..1_200).collect());
}

#[test]
fn room_shows_a_room_and_waits_for_it() {
    let daemon = Daemon::start(&[]);
    let url = url(&daemon);
    send(&daemon, 7, "t");
    let room = said(&url, &["room", "7"]);
    assert_eq!((&room["id"], &room["tag"]), (&json!("7"), &json!("t")));
    let text = complains(&url, &["room", "7", "--wait", "50ms"], 3);
    assert!(text.contains("room 7 has no outcome yet"), "{text}");
    let waiting = Running::start(&url, &["room", "7", "--wait", "30s", "--for", "released"]);
    daemon.delete("/v1/rooms/7?reason=enough").expect(202);
    let output = waiting.output();
    assert!(output.status.success(), "{output:?}");
    let room: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&room["outcome"]["detail"], &room["released"]),
        (&json!("enough"), &json!(true))
    );
    let text = complains(&url, &["room", "8"], 1);
    assert!(
        text.contains("no room 8") && text.contains("(404, no-such-room)"),
        "{text}"
    );
}

#[test]
fn abort_ends_one_room_those_with_a_tag_or_all_and_no_other() {
    let daemon = Daemon::start(&[]);
    let url = url(&daemon);
    for (id, tag) in [(1, "a"), (2, "b"), (3, "b"), (4, "c")] {
        send(&daemon, id, tag);
    }
    let over = |tag: &str| {
        let args = ["room", tag, "--wait", "30s"];
        said(&url, &args)["outcome"]["detail"].clone()
    };
    let alive = |url: &str| {
        let list = said(url, &["rooms", "--state", "registered"]);
        list["rooms"].as_array().unwrap().len()
    };
    let one = said(&url, &["abort", "1", "--reason", "no need"]);
    assert_eq!(one["outcome"]["detail"], "no need");
    assert_eq!(alive(&url), 3);
    assert_eq!(said(&url, &["abort", "--tag", "b"])["aborted"], 2);
    assert_eq!(
        (over("2"), over("3")),
        (json!("kvroom abort"), json!("kvroom abort"))
    );
    assert_eq!(alive(&url), 1);
    let text = complains(&url, &["abort", "--peer", "nobody"], 1);
    assert!(text.contains("(409, no-such-peer)"), "{text}");
    assert_eq!(said(&url, &["abort", "--all"])["aborted"], 1);
    over("4");
    let text = complains(&url, &["abort", "9"], 1);
    assert!(text.contains("(404, no-such-room)"), "{text}");
}

#[test]
fn pools_lists_what_was_registered() {
    let daemon = Daemon::start(&[]);
    assert_eq!(said(&url(&daemon), &["pools"])["pools"], json!([]));
    let pool = json!({
        "name": "kv", "layers": 2, "pages": 4, "page_bytes": 4096, "page_tokens": 16,
        "memory": {"create": true},
    });
    daemon.post("/v1/pools", &pool).expect(201);
    let pools = said(&url(&daemon), &["pools"]);
    let pool = &pools["pools"][0];
    assert_eq!(
        (&pool["id"], &pool["pages"], &pool["leased_pages"]),
        (&json!("kv"), &json!(4), &json!(0))
    );
}

#[test]
fn events_are_written_as_they_come_and_go_on_in_the_next_life_of_the_daemon() {
    let mut daemon = Daemon::start(&[]);
    let url = url(&daemon);
    send(&daemon, 1, "before");
    let mut told = Running::start(&url, &["events", "--types", "room", "--count", "3"]);
    // It hears of what happens once it listens.
    let (start, mut id) = (Instant::now(), 100);
    while !told.is_over() {
        assert!(start.elapsed() < PATIENCE, "no events came");
        send(&daemon, id, "t");
        daemon.delete(&format!("/v1/rooms/{id}")).expect(202);
        id += 1;
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let output = told.output();
    assert!(output.status.success(), "{output:?}");
    let lines = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<Value> = lines
        .lines()
        .map(|l| serde_json::from_str(l).unwrap())
        .collect();
    assert_eq!(lines.len(), 3);
    for line in &lines {
        assert_eq!(line["event"], "room", "{line}");
        let room: u64 = line["data"]["room"].as_str().unwrap().parse().unwrap();
        assert!((100..id).contains(&room), "{line}");
    }

    // After the first line come those that came after it, again.
    let after = lines[0]["id"].as_str().unwrap();
    let args = [
        "events", "--types", "room", "--after", after, "--count", "2",
    ];
    let output = run(&url, &args);
    let again = String::from_utf8(output.stdout).unwrap();
    let again: Vec<Value> = again
        .lines()
        .map(|l| serde_json::from_str(l).unwrap())
        .collect();
    assert_eq!(again, lines[1..]);

    // A daemon that is started anew in its place is another life: the stream goes on, and says so.
    let (last, address) = (lines[2]["id"].as_str().unwrap(), daemon.http.to_string());
    let args = [
        "events",
        "--types",
        "room",
        "--room",
        "77",
        "--after",
        last,
        "--count",
        "2",
        "--timeout",
        "30s",
    ];
    let following = Running::start(&url, &args);
    let (status, _) = daemon.stop();
    assert!(status.success());
    let next = Daemon::spawn(kvroom(&["serve", "--http", &address]));
    send(&next, 77, "next");
    next.delete("/v1/rooms/77").expect(202);
    let output = following.output();
    assert!(output.status.success(), "{output:?}");
    let lines = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<Value> = lines
        .lines()
        .map(|l| serde_json::from_str(l).unwrap())
        .collect();
    assert_eq!(lines[0]["event"], "gap", "{lines:?}");
    assert_eq!(
        (&lines[1]["event"], &lines[1]["data"]["room"]),
        (&json!("room"), &json!("77"))
    );
}

#[test]
fn record_writes_the_recording_and_what_concerns_one_room() {
    let daemon = Daemon::start(&[]);
    let url = url(&daemon);
    for id in [5, 6] {
        send(&daemon, id, "t");
        daemon.delete(&format!("/v1/rooms/{id}")).expect(202);
        daemon
            .get(&format!("/v1/rooms/{id}?wait=30s&for=released"))
            .expect(200);
    }
    let lines = |args: &[&str]| -> Vec<Value> {
        let output = run(&url, args);
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    };
    let all = lines(&["record"]);
    let of = |lines: &[Value], room: &str| {
        let about = |line: &&Value| line["room"].to_string().contains(room);
        lines.iter().filter(about).count()
    };
    assert!(of(&all, "5") >= 2 && of(&all, "6") >= 2, "{all:?}");
    let one = lines(&["record", "--room", "6"]);
    assert!(one.len() > 2 && one.len() < all.len(), "{one:?}");
    // The first line is the header.
    assert_eq!(of(&one[1..], "6"), one.len() - 1, "{one:?}");
    assert_eq!(lines(&["record", "--limit", "1"]).len(), 2);
    let file = Place::new();
    let output = run(&url, &["record", "--output", file.text()]);
    assert!(
        output.status.success() && output.stdout.is_empty(),
        "{output:?}"
    );
    let written = std::fs::read_to_string(&file.0).unwrap();
    assert!(written.lines().count() >= all.len(), "{written}");
}

#[test]
fn a_daemon_that_wants_a_token_or_is_on_a_unix_socket_is_asked_all_the_same() {
    let (token, socket) = (Place::new(), Place::new());
    std::fs::write(&token.0, "a-token-of-a-test-0123456789\n").unwrap();
    let daemon = Daemon::start(&["--http-token-file", token.text()]);
    let text = complains(&url(&daemon), &["pools"], 1);
    assert!(text.contains("(401, unauthorized)"), "{text}");
    let args = ["pools", "--token-file", token.text()];
    assert_eq!(said(&url(&daemon), &args)["pools"], json!([]));

    let address = format!("unix://{}", socket.text());
    let _daemon = Daemon::spawn(kvroom(&["serve", "--http", &address]));
    assert_eq!(said(&address, &["pools"])["pools"], json!([]));
    let text = complains(&address, &["room", "1"], 1);
    assert!(text.contains("(404, no-such-room)"), "{text}");
}

#[test]
fn a_daemon_that_serves_tls_is_refused_with_what_to_do() {
    let text = complains("https://127.0.0.1:7480", &["pools"], 2);
    for says in ["\"https://127.0.0.1:7480\"", "without TLS", "unix:///PATH"] {
        assert!(text.contains(says), "{text}");
    }
}
