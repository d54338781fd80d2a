//! The commands that ask a daemon, against a server that plays one: what they ask, what they write
//! and how they end.
#![allow(
    clippy::unwrap_used,
    reason = "helpers of tests fail by panicking, as tests do"
)]

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// Longer than anything here takes; a test that needs it has failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// A request that the server was asked.
#[derive(Clone, Debug, Default)]
struct Asked {
    /// Method and target.
    line: String,
    headers: Vec<String>,
    body: Value,
}

impl Asked {
    fn header(&self, name: &str) -> Option<&str> {
        let found = self
            .headers
            .iter()
            .find_map(|h| h.strip_prefix(&format!("{name}: ")));
        found.map(str::trim)
    }
}

/// Plays a daemon: gives these answers in turn, one for each connection, and then nothing.
struct Played {
    url: String,
    asked: mpsc::Receiver<Asked>,
    /// Where its socket is, if it is one.
    path: Option<PathBuf>,
}

impl Played {
    fn new(answers: Vec<String>) -> Played {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (tell, asked) = mpsc::channel();
        std::thread::spawn(move || {
            for answer in answers {
                let (stream, _) = listener.accept().unwrap();
                serve(stream, &answer, &tell);
            }
        });
        let path = None;
        Played { url, asked, path }
    }

    fn on_a_socket(name: &str, answer: String) -> Played {
        let path = std::env::temp_dir().join(format!("kvroom-{name}-{}", std::process::id()));
        let listener = UnixListener::bind(&path).unwrap();
        let (tell, asked) = mpsc::channel();
        std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            serve(stream, &answer, &tell);
        });
        Played {
            url: format!("unix://{}", path.display()),
            asked,
            path: Some(path),
        }
    }

    /// The next request.
    fn was_asked(&self) -> Asked {
        self.asked.recv_timeout(PATIENCE).unwrap()
    }
}

impl Drop for Played {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            let _ = std::fs::remove_file(path);
        }
    }
}

fn serve(stream: impl Read + Write, answer: &str, tell: &mpsc::Sender<Asked>) {
    let mut stream = BufReader::new(stream);
    let mut asked = Asked::default();
    let mut length = 0;
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).unwrap();
        let line = line.trim_end().to_lowercase_name();
        if line.is_empty() {
            break;
        }
        if let Some(n) = line.strip_prefix("content-length: ") {
            length = n.parse().unwrap();
        }
        if asked.line.is_empty() {
            asked.line = line.strip_suffix(" HTTP/1.1").unwrap().to_owned();
        } else {
            asked.headers.push(line);
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).unwrap();
    asked.body = serde_json::from_slice(&body).unwrap_or(Value::Null);
    let _ = tell.send(asked);
    // Who asked may have left already.
    let _ = stream.get_mut().write_all(answer.as_bytes());
}

trait LowercaseName {
    fn to_lowercase_name(&self) -> String;
}

impl LowercaseName for str {
    /// A header's name in lower case; a request line as it is.
    fn to_lowercase_name(&self) -> String {
        match self.split_once(": ") {
            Some((name, value)) => format!("{}: {value}", name.to_lowercase()),
            None => self.to_owned(),
        }
    }
}

fn answer(status: &str, kind: &str, body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n\r\n{body}")
}

fn ok(body: &Value) -> String {
    answer("200 OK", "application/json", &body.to_string())
}

fn kvroom(url: &str, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvroom"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("KVROOM_") {
            command.env_remove(name);
        }
    }
    let process = command
        .args(args)
        .env_remove("RUST_LOG")
        .env("KVROOM_URL", url)
        .stdin(Stdio::null())
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
            panic!("{args:?} did not end within {PATIENCE:?}");
        }
    }
}

fn said(output: &Output) -> Value {
    assert!(output.status.success(), "{}", stderr(output));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn room(id: u64, state: &str, outcome: Value) -> Value {
    json!({
        "id": id.to_string(), "attempt": 0, "role": "receive", "state": state, "outcome": outcome,
        "released": false, "proofs": [], "landed": null, "peers": ["p0"], "legs": [], "tag": "t",
        "pages": 8, "pool_pages": [], "age_ms": 12, "quarantined": false, "held_because": null,
        "chunks": null, "traceparent": null,
    })
}

#[test]
fn rooms_are_asked_for_page_by_page_with_their_filters() {
    let first = json!({ "rooms": [room(1, "draining", Value::Null)], "next": "c 1" });
    let second = json!({ "rooms": [room(2, "draining", Value::Null)], "next": null });
    let played = Played::new(vec![ok(&first), ok(&second)]);
    let args = [
        "rooms",
        "--state",
        "draining",
        "--tag",
        "a b",
        "--peer",
        "p0",
        "--quarantined",
    ];
    let all = said(&kvroom(&played.url, &args));
    assert_eq!(all["rooms"].as_array().unwrap().len(), 2);
    assert_eq!(all["next"], Value::Null);
    let filters = "GET /v1/rooms?state=draining&tag=a%20b&peer=p0&quarantined=true";
    assert_eq!(played.was_asked().line, format!("{filters}&limit=100"));
    assert_eq!(
        played.was_asked().line,
        format!("{filters}&limit=99&after=c%201")
    );
}

#[test]
fn a_list_stops_at_its_limit_and_says_where_it_goes_on() {
    let page = json!({ "rooms": [room(1, "done", json!({"end": "done"}))], "next": "c" });
    let played = Played::new(vec![ok(&page)]);
    let all = said(&kvroom(&played.url, &["rooms", "--limit", "1"]));
    assert_eq!(all["next"], "c");
}

#[test]
fn a_room_is_waited_for_until_it_is_over() {
    let alive = room(42, "transferring", Value::Null);
    let over = room(42, "draining", json!({"end": "done"}));
    let played = Played::new(vec![ok(&alive), ok(&over)]);
    let args = [
        "room",
        "42",
        "--attempt",
        "1",
        "--role",
        "receive",
        "--wait",
        "30s",
    ];
    let found = said(&kvroom(&played.url, &args));
    assert_eq!(found["outcome"]["end"], "done");
    let line = played.was_asked().line;
    assert_eq!(
        line,
        "GET /v1/rooms/42?attempt=1&role=receive&wait=20000ms&for=outcome"
    );
    assert!(played.was_asked().line.contains("&for=outcome"));
}

#[test]
fn a_room_that_is_not_over_in_time_is_shown_and_the_exit_code_says_so() {
    let alive = room(42, "transferring", Value::Null);
    // However often it asks.
    let played = Played::new(vec![ok(&alive); 100]);
    let output = kvroom(
        &played.url,
        &["room", "42", "--wait", "300ms", "--for", "released"],
    );
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    assert_eq!(
        serde_json::from_slice::<Value>(&output.stdout).unwrap()["id"],
        "42"
    );
    assert!(stderr(&output).contains("room 42 has no memory back yet: it is transferring"));
    // A daemon that answers at once is not asked without a pause.
    let asked = std::iter::from_fn(|| played.asked.try_recv().ok()).count();
    assert!(asked <= 10, "asked {asked} times");
}

#[test]
fn an_abort_names_what_it_ends() {
    let played = Played::new(vec![ok(&room(7, "draining", Value::Null))]);
    said(&kvroom(
        &played.url,
        &["abort", "7", "--attempt", "2", "--reason", "no need"],
    ));
    assert_eq!(
        played.was_asked().line,
        "DELETE /v1/rooms/7?attempt=2&reason=no%20need"
    );
    for (args, body) in [
        (
            vec!["abort", "--tag", "t"],
            json!({"tag": "t", "reason": "kvroom abort"}),
        ),
        (
            vec!["abort", "--peer", "p"],
            json!({"peer": "p", "reason": "kvroom abort"}),
        ),
        (
            vec!["abort", "--all"],
            json!({"all": true, "reason": "kvroom abort"}),
        ),
    ] {
        let played = Played::new(vec![ok(&json!({"aborted": 3}))]);
        assert_eq!(said(&kvroom(&played.url, &args))["aborted"], 3);
        let asked = played.was_asked();
        assert_eq!((&*asked.line, &asked.body), ("POST /v1/aborts", &body));
        assert_eq!(asked.header("content-type"), Some("application/json"));
    }
}

#[test]
fn an_abort_of_which_a_shard_did_not_hear_in_time_says_so_and_is_not_a_success() {
    let partly = json!({"aborted": 0, "complete": false, "silent": ["shard 1"]});
    let whole = json!({"aborted": 0, "complete": true, "silent": []});
    for (answer, code) in [(partly, 3), (whole, 0)] {
        let played = Played::new(vec![ok(&answer)]);
        let output = kvroom(&played.url, &["abort", "--all"]);
        assert_eq!(output.status.code(), Some(code), "{}", stderr(&output));
        let told = stderr(&output).contains("shard 1 did not answer");
        assert_eq!(told, code == 3, "{}", stderr(&output));
    }
}

#[test]
fn an_abort_of_nothing_or_of_two_things_is_a_wrong_command_line() {
    for args in [
        vec!["abort"],
        vec!["abort", "7", "--all"],
        vec!["abort", "--tag", "t", "--role", "send"],
    ] {
        assert_eq!(
            kvroom("http://127.0.0.1:1", &args).status.code(),
            Some(2),
            "{args:?}"
        );
    }
}

#[test]
fn a_refusal_is_told_in_the_daemons_words() {
    let problem = json!({
        "type": "/problems/no-room", "title": "There is no such room", "status": 404,
        "detail": "room 9 was never started here", "code": "no-room",
    });
    let kind = "application/problem+json";
    let played = Played::new(vec![answer("404 Not Found", kind, &problem.to_string())]);
    let output = kvroom(&played.url, &["room", "9"]);
    assert_eq!(
        (output.status.code(), stdout(&output)),
        (Some(1), String::new())
    );
    let wanted = "kvroom: error: room 9 was never started here (404, no-room)\n";
    assert_eq!(stderr(&output), wanted);
}

#[test]
fn what_is_no_daemon_is_said_so() {
    let web = answer("200 OK", "text/html", "<html></html>");
    let output = kvroom(&Played::new(vec![web]).url, &["pools"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("the answer is not JSON"),
        "{}",
        stderr(&output)
    );
    for odd in [json!({}), json!([]), json!("rooms")] {
        let output = kvroom(&Played::new(vec![ok(&odd)]).url, &["rooms"]);
        assert_eq!(output.status.code(), Some(1));
        assert!(
            stderr(&output).contains("is that a kvroom daemon?"),
            "{}",
            stderr(&output)
        );
    }
    let output = kvroom(
        &Played::new(vec!["SSH-2.0-x\r\n".to_owned()]).url,
        &["pools"],
    );
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("the connection broke"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_daemon_that_is_not_there_or_says_nothing_is_a_failure_with_what_to_do() {
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let output = kvroom(&format!("http://{port}"), &["pools"]);
    assert_eq!(output.status.code(), Some(1));
    let text = stderr(&output);
    assert!(
        text.contains("cannot connect") && text.contains("KVROOM_URL"),
        "{text}"
    );
    // It takes connections, by its backlog, and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let output = kvroom(&url, &["pools", "--timeout", "200ms"]);
    assert_eq!(output.status.code(), Some(1));
    let text = stderr(&output);
    assert!(text.contains("said nothing within 200ms"), "{text}");
    for (url, args) in [
        ("ftp://x", vec!["pools"]),
        ("http://127.0.0.1:1", vec!["pools", "--timeout", "5"]),
    ] {
        assert_eq!(kvroom(url, &args).status.code(), Some(2), "{args:?}");
    }
}

#[test]
fn the_token_is_sent_and_never_shown() {
    let path = std::env::temp_dir().join(format!("kvroom-token-{}", std::process::id()));
    std::fs::write(&path, "s3cret-of-a-test\n").unwrap();
    let file = path.to_str().unwrap();
    let refused = json!({"detail": "the token is wrong", "code": "unauthorized"});
    let played = Played::new(vec![answer(
        "401 Unauthorized",
        "application/problem+json",
        &refused.to_string(),
    )]);
    let output = kvroom(&played.url, &["pools", "--token-file", file]);
    assert_eq!(
        played.was_asked().header("authorization"),
        Some("Bearer s3cret-of-a-test")
    );
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        stderr(&output),
        "kvroom: error: the token is wrong (401, unauthorized)\n"
    );
    for wrong in [&b""[..], b"\n", b"a\x00b"] {
        std::fs::write(&path, wrong).unwrap();
        let output = kvroom(&played.url, &["pools", "--token-file", file]);
        assert_eq!(output.status.code(), Some(2), "{wrong:?}");
        assert!(
            stderr(&output).contains("token file"),
            "{}",
            stderr(&output)
        );
    }
    std::fs::remove_file(&path).unwrap();
    let output = kvroom(&played.url, &["pools", "--token-file", file]);
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn a_daemon_on_a_unix_socket_is_asked_the_same() {
    let played = Played::on_a_socket("client", ok(&json!({ "pools": [] })));
    assert_eq!(said(&kvroom(&played.url, &["pools"]))["pools"], json!([]));
    let asked = played.was_asked();
    assert_eq!(
        (&*asked.line, asked.header("host")),
        ("GET /v1/pools", Some("localhost"))
    );
}

/// An answer that goes on, and then breaks off.
fn stream(kind: &str, body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\nconnection: close\r\n\r\n{body}")
}

#[test]
fn events_go_on_after_the_last_one_when_the_stream_breaks() {
    let one = "id: 1-1\nevent: room\ndata: {\"room\":\"1\"}\n\n";
    let two = ": still here\nid: 1-2\nevent: peer\ndata: {\"peer\":\"p0\"}\n\n";
    let played = Played::new(vec![
        stream("text/event-stream", one),
        stream("text/event-stream", two),
    ]);
    let args = [
        "events",
        "--types",
        "room,peer",
        "--room",
        "1",
        "--count",
        "2",
    ];
    let output = kvroom(&played.url, &args);
    assert!(output.status.success(), "{}", stderr(&output));
    let lines: Vec<Value> = stdout(&output)
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let wanted = [
        json!({"event": "room", "id": "1-1", "data": {"room": "1"}}),
        json!({"event": "peer", "id": "1-2", "data": {"peer": "p0"}}),
    ];
    assert_eq!(lines, wanted);
    assert!(
        stderr(&output).contains("trying again"),
        "{}",
        stderr(&output)
    );
    let first = played.was_asked();
    assert_eq!(first.line, "GET /v1/events?types=room%2Cpeer&room=1");
    assert_eq!(first.header("last-event-id"), None);
    assert_eq!(played.was_asked().header("last-event-id"), Some("1-1"));
}

#[test]
fn events_go_on_with_a_daemon_that_went_before_anything_happened() {
    let one = "id: 2-1\nevent: room\ndata: {}\n\n";
    let played = Played::new(vec![
        stream("text/event-stream", ": nothing yet\n\n"),
        answer("503 Service Unavailable", "application/json", "{}"),
        stream("text/event-stream", one),
    ]);
    let output = kvroom(&played.url, &["events", "--count", "1"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(stdout(&output).lines().count(), 1);
}

#[test]
fn events_end_with_an_error_when_the_daemon_does_not_come_back() {
    let one = "id: 1-1\nevent: room\ndata: {}\n\n";
    let played = Played::new(vec![stream("text/event-stream", one)]);
    let output = kvroom(&played.url, &["events", "--timeout", "300ms"]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert_eq!(stdout(&output).lines().count(), 1);
}

#[test]
fn a_recording_is_written_as_it_comes() {
    let lines = "{\"kvroom_recording\":1,\"older\":3}\n{\"seq\":6}\n";
    let played = Played::new(vec![
        answer("200 OK", "application/jsonl", lines),
        answer("200 OK", "application/jsonl", lines),
    ]);
    let args = ["record", "--since", "5", "--limit", "2", "--room", "42"];
    let output = kvroom(&played.url, &args);
    assert_eq!(stdout(&output), lines, "{}", stderr(&output));
    assert_eq!(
        played.was_asked().line,
        "GET /v1/recording?since=5&limit=2&room=42"
    );
    let path = std::env::temp_dir().join(format!("kvroom-record-{}", std::process::id()));
    let output = kvroom(&played.url, &["record", "--output", path.to_str().unwrap()]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), lines);
    std::fs::remove_file(&path).unwrap();
    // What is written is the newest, as much as there may be, and what is left out is told of.
    let asked = played.was_asked().line;
    assert_eq!(asked, "GET /v1/recording?limit=100000");
    let told = stderr(&output);
    assert!(told.contains("3 older entries are there"), "{told}");
}

#[test]
fn a_recording_that_breaks_off_is_a_failure() {
    let cut = "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{\"seq\":5}\n".to_owned();
    let output = kvroom(&Played::new(vec![cut]).url, &["record"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(stdout(&output), "{\"seq\":5}\n");
    assert!(
        stderr(&output).contains("the connection broke"),
        "{}",
        stderr(&output)
    );
}
