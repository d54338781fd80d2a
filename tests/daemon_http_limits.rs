//! The daemon among clients that are slow, greedy, wrong, strangers or gone, and its end.
#![allow(
    clippy::unwrap_used,
    reason = "helpers of tests fail by panicking, as tests do"
)]

#[path = "common/daemon.rs"]
mod daemon;

use daemon::{Client, Daemon, PATIENCE, connect, kvroom, read_answer};
use serde_json::{Value, json};
use std::io::{BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A folder, removed when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let path =
            std::env::temp_dir().join(format!("kvroom-http-limits-{}-{n}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn file(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Skips aloud, or fails where everything is required.
fn skipped(why: &str) -> bool {
    assert!(
        std::env::var_os("KVROOM_REQUIRE_ALL").is_none(),
        "required, but {why}"
    );
    eprintln!("SKIPPED: {why}");
    true
}

/// A room goes from start to end: the daemon serves.
#[track_caller]
fn serves(daemon: &Daemon) {
    static NEXT: AtomicU64 = AtomicU64::new(1 << 40);
    let id = NEXT.fetch_add(1, Ordering::Relaxed);
    daemon
        .post("/v1/rooms", &json!({"role": "send", "id": id}))
        .expect(201);
    daemon.delete(&format!("/v1/rooms/{id}")).expect(202);
    let room = daemon.get(&format!("/v1/rooms/{id}?wait=30s&for=released"));
    assert_eq!(room.expect(200)["released"], true);
}

#[test]
fn what_is_no_request_for_it_gets_a_clear_4xx_and_the_rooms_do_not_notice() {
    let daemon = Daemon::start(&[]);
    daemon
        .post("/v1/rooms", &json!({"role": "send", "id": 1}))
        .expect(201);
    let send = |method: &str, path: &str, kind: Option<&str>, body: &[u8]| {
        daemon.client().send_raw(method, path, kind, body)
    };
    let json = Some("application/json");
    send("GET", "/nothing", None, b"").expect_problem(404, "no-such-route");
    send("GET", "/v1/rooms/1/nothing", None, b"").expect_problem(404, "no-such-route");
    for id in [
        "99999999999999999999999",
        "-1",
        "1.5",
        "0x10",
        "%00",
        "a",
        "18446744073709551616",
    ] {
        send("GET", &format!("/v1/rooms/{id}"), None, b"")
            .expect_problem(400, "unreadable-request");
    }
    send("GET", "/v1/rooms/18446744073709551615", None, b"").expect_problem(404, "no-such-room");
    send("GET", "/v1/rooms/1?attempt=-1", None, b"").expect_problem(400, "unreadable-request");
    send("GET", "/v1/rooms/1?attempt=4294967296", None, b"")
        .expect_problem(400, "unreadable-request");
    send("POST", "/v1/rooms", None, b"{}").expect_problem(415, "not-json");
    for path in [
        "/v1/rooms",
        "/v1/pools",
        "/v1/peers",
        "/v1/aborts",
        "/v1/batch",
    ] {
        send("POST", path, Some("text/plain"), b"{}").expect_problem(415, "not-json");
        send("POST", path, json, b"{").expect_problem(400, "unreadable-request");
        send("POST", path, json, b"{\"no\":1}").expect_problem(422, "unusable-request");
    }
    for (method, path, allowed) in [
        ("DELETE", "/v1/rooms", "GET,HEAD,POST"),
        ("POST", "/v1/rooms/1", "DELETE,GET,HEAD"),
        ("GET", "/v1/rooms/1/chunks", "POST"),
        ("GET", "/v1/batch", "POST"),
        ("POST", "/v1/events", "GET,HEAD"),
        ("PUT", "/v1/pools/x", "DELETE,GET,HEAD"),
    ] {
        let wrong = send(method, path, json, b"{}");
        wrong.expect_problem(405, "no-such-method");
        let mut allow: Vec<&str> = wrong
            .header("allow")
            .unwrap()
            .split(',')
            .map(str::trim)
            .collect();
        allow.sort_unstable();
        assert_eq!(allow.join(","), allowed, "{method} {path}");
    }
    send("POST", "/v1/rooms", json, b"").expect_problem(400, "unreadable-request");
    send("POST", "/v1/rooms", json, b"{\"role\":").expect_problem(400, "unreadable-request");
    send("POST", "/v1/rooms", json, b"\xff\xfe").expect_problem(400, "unreadable-request");
    let deep = [b"[".repeat(100_000), b"]".repeat(100_000)].concat();
    let why = send("POST", "/v1/rooms", json, &deep);
    assert!((400..423).contains(&why.status), "{why:?}");
    let deep = format!("{}1{}", "{\"a\":".repeat(50_000), "}".repeat(50_000));
    let why = send("POST", "/v1/batch", json, deep.as_bytes());
    assert!((400..423).contains(&why.status), "{why:?}");
    let large = vec![b' '; 10 << 20];
    send("POST", "/v1/rooms", json, &large).expect_problem(413, "body-too-large");
    let long = "x".repeat(64 << 10);
    let answer = send("GET", &format!("/v1/rooms?tag={long}"), None, b"");
    assert_eq!((answer.status, answer.text().as_str()), (431, ""));
    let document = daemon.get("/openapi.json").json();
    let told = &document["paths"]["/v1/rooms"]["get"]["responses"]["431"];
    assert!(told.is_object() && told["content"].is_null(), "{told}");
    assert_eq!(daemon.get("/v1/rooms/1").expect(200)["state"], "registered");
    serves(&daemon);
}

#[test]
fn a_body_without_a_length_is_bounded_too() {
    let daemon = Daemon::start(&["--http-max-body-bytes", "4096"]);
    let mut stream = connect(daemon.http);
    let head = "POST /v1/rooms HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
                Transfer-Encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    let chunk = format!("1000\r\n{}\r\n", " ".repeat(4096));
    for _ in 0..4 {
        // The daemon may have answered and closed already.
        if stream.write_all(chunk.as_bytes()).is_err() {
            break;
        }
    }
    let answer = read_answer(&mut BufReader::new(stream)).unwrap();
    answer.expect_problem(413, "body-too-large");
    serves(&daemon);
}

#[test]
fn slow_headers_and_slow_bodies_are_cut_off_and_nobody_waits_for_them() {
    let daemon = Daemon::start(&[
        "--http-header-timeout",
        "300ms",
        "--http-request-timeout",
        "500ms",
    ]);
    let mut slow = connect(daemon.http);
    slow.write_all(b"GET /v1/rooms HTTP/1.1\r\nHost: local")
        .unwrap();
    let mut idle = connect(daemon.http);
    let mut body = connect(daemon.http);
    let head = "POST /v1/rooms HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 50\r\n\r\n{";
    body.write_all(head.as_bytes()).unwrap();
    serves(&daemon);
    let answer = read_answer(&mut BufReader::new(slow)).unwrap();
    answer.expect_problem(408, "slow-headers");
    let answer = read_answer(&mut BufReader::new(body)).unwrap();
    answer.expect_problem(408, "request-timeout");
    let mut rest = Vec::new();
    idle.read_to_end(&mut rest).unwrap();
    assert!(
        rest.is_empty(),
        "an idle connection is closed without a word"
    );
}

#[test]
fn a_flood_of_requests_is_refused_by_the_rate_and_probes_are_not() {
    let daemon = Daemon::start(&["--http-rate-per-second", "5", "--http-rate-burst", "10"]);
    let mut client = daemon.client();
    let mut refused = None;
    for _ in 0..50 {
        let answer = client.send("GET", "/v1/node", None);
        if answer.status == 429 {
            refused = Some(answer);
            break;
        }
        assert_eq!(answer.status, 200);
    }
    let refused = refused.expect("50 requests at once are more than the rate allows");
    refused.expect_problem(429, "too-many-requests");
    assert_eq!(refused.header("retry-after"), Some("1"));
    for _ in 0..50 {
        assert_ne!(client.send("GET", "/livez", None).status, 429);
    }
}

#[test]
fn more_requests_at_once_than_may_be_are_refused_by_the_limits_name_and_those_that_wait_are_not() {
    let daemon = Daemon::start(&[
        "--http-max-concurrent",
        "1",
        "--http-long-poll-max",
        "300ms",
    ]);
    daemon
        .post("/v1/rooms", &json!({"role": "send", "id": 1}))
        .expect(201);
    // A poll waits by its own wish, and no longer than the daemon lets it.
    let start = Instant::now();
    let mut waiting = connect(daemon.http);
    let ask = "GET /v1/rooms/1?wait=3600s HTTP/1.1\r\nHost: localhost\r\n\r\n";
    waiting.write_all(ask.as_bytes()).unwrap();
    daemon.get("/v1/node").expect(200);
    let answer = read_answer(&mut BufReader::new(waiting)).unwrap();
    assert_eq!(answer.expect(200)["outcome"], Value::Null);
    let took = start.elapsed();
    assert!(
        took >= Duration::from_millis(300) && took < PATIENCE,
        "{took:?}"
    );

    // One that has not sent its body is being done, unless another one was in its place.
    let body = r#"{"role":"send","id":2}"#;
    let length = body.len();
    let head = format!(
        "POST /v1/rooms HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    );
    let start = Instant::now();
    let (mut slow, refused) = loop {
        assert!(start.elapsed() < PATIENCE, "nothing is refused");
        let mut slow = connect(daemon.http);
        slow.write_all(head.as_bytes()).unwrap();
        let wait = Duration::from_millis(20);
        slow.set_read_timeout(Some(wait)).unwrap();
        if slow.read(&mut [0; 1]).is_ok() {
            continue;
        }
        let answer = daemon.get("/v1/node");
        if answer.status != 200 {
            break (slow, answer);
        }
    };
    slow.set_read_timeout(Some(PATIENCE)).unwrap();
    let why = refused.expect_problem(503, "limit-reached");
    assert!(why.contains("1 requests are being done"), "{why}");
    assert_eq!(refused.json()["limit"], "http.max_concurrent");
    assert_eq!(refused.header("retry-after"), Some("1"));
    // To ask for a wait where there is none does not get around it.
    daemon
        .get("/v1/node?wait=1s")
        .expect_problem(503, "limit-reached");
    assert_ne!(
        daemon.get("/livez").json()["code"],
        "limit-reached",
        "probes are not refused"
    );
    slow.write_all(body.as_bytes()).unwrap();
    read_answer(&mut BufReader::new(slow)).unwrap().expect(201);
    daemon.get("/v1/node").expect(200);
}

#[test]
fn on_connections_over_the_limit_probes_are_answered_and_nothing_else_until_another_one_is_closed()
{
    let daemon = Daemon::start(&["--http-max-connections", "2"]);
    let (one, two) = (connect(daemon.http), connect(daemon.http));
    // Its answer, and whether the connection is closed behind it.
    let ask = |path: &str| {
        let mut three = connect(daemon.http);
        three.set_read_timeout(Some(PATIENCE)).unwrap();
        write!(three, "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let mut three = BufReader::new(three);
        let answer = read_answer(&mut three).unwrap();
        (answer, three)
    };
    // One after the other, and more of them than the reserve has.
    for _ in 0..10 {
        for path in ["/livez", "/readyz", "/metrics"] {
            let (answer, mut three) = ask(path);
            let what = answer.text();
            assert!(!what.contains("limit-reached"), "{path}: {what}");
            // Metrics are there whoever is well.
            let well = answer.status == 200 || (path == "/readyz" && answer.status == 503);
            assert!(well, "{path}: {what}");
            assert_eq!(answer.header("connection"), Some("close"));
            assert_eq!(three.read(&mut [0; 1]).unwrap(), 0, "it is closed");
        }
    }
    let (answer, mut three) = ask("/v1/node");
    let why = answer.expect_problem(503, "limit-reached");
    assert!(why.contains("2 connections are open"), "{why}");
    assert_eq!(answer.json()["limit"], "http.max_connections");
    assert_eq!(three.read(&mut [0; 1]).unwrap(), 0, "it is closed");
    // Strangers who say nothing have the reserve for a moment only.
    let strangers: Vec<_> = (0..20).map(|_| connect(daemon.http)).collect();
    assert_eq!(ask("/livez").0.status, 200);
    drop((strangers, one, two));
    daemon.until("/v1/node", |answer| answer.status == 200);
}

#[test]
fn idle_connections_leave_descriptors_to_probes_and_to_everything_else() {
    let folder = Folder::new();
    let log = folder.0.join("log");
    let plain = kvroom(&[
        "serve",
        "--http",
        "127.0.0.1:0",
        "--http-header-timeout",
        "60s",
    ]);
    let mut few = Command::new("sh");
    few.args(["-c", "ulimit -n 320; exec \"$0\" \"$@\""]);
    few.arg(plain.get_program())
        .args(plain.get_args())
        .stderr(std::fs::File::create(&log).unwrap());
    for (name, _) in plain.get_envs() {
        few.env_remove(name);
    }
    let daemon = Daemon::spawn(few);
    let said = std::fs::read_to_string(&log).unwrap();
    let why = "http.max_connections is 1024, and the process may open 320 files";
    assert!(said.contains(why), "{said}");
    let idle: Vec<_> = (0..64).map(|_| connect(daemon.http)).collect();
    assert_eq!(daemon.get("/livez").status, 200);
    let why = daemon.get("/v1/node").expect_problem(503, "limit-reached");
    assert!(why.contains("64 connections are open"), "{why}");
    drop(idle);
    daemon.until("/v1/node", |answer| answer.status == 200);
    serves(&daemon);
}

#[test]
fn without_a_token_only_this_machine_is_served_and_only_by_its_own_names() {
    let output = kvroom(&["serve", "--http", "0.0.0.0:0"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("token_file"), "{text}");

    let daemon = Daemon::start(&[]);
    let ask = |host: &str| {
        let mut stream = connect(daemon.http);
        let head = format!("GET /v1/node HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        read_answer(&mut BufReader::new(stream)).unwrap()
    };
    ask("localhost").expect(200);
    ask("evil.example:7480").expect_problem(421, "unknown-host");
}

#[test]
fn with_a_token_only_who_bears_it_is_served_and_no_log_line_has_it() {
    let folder = Folder::new();
    let secret = "correct-horse-battery-staple";
    let file = folder.file("token", &format!("{secret}\n"));
    let log = folder.0.join("log");
    let mut daemon = Daemon::start_with(&["--http-token-file", &file], |command| {
        let log = std::fs::File::create(&log).unwrap();
        command.env("RUST_LOG", "trace").stderr(log);
    });
    daemon.get("/v1/node").expect_problem(401, "unauthorized");
    assert_eq!(
        daemon.get("/v1/node").header("www-authenticate"),
        Some("Bearer")
    );
    daemon.get("/openapi.json").expect(200);
    for wrong in [
        "correct-horse-battery-stapl",
        "correct-horse-battery-staplE",
        "x",
    ] {
        daemon.token = Some(wrong.to_owned());
        daemon.get("/v1/node").expect_problem(401, "unauthorized");
        daemon
            .post("/v1/rooms", &json!({"role": "send", "id": 1}))
            .expect_problem(401, "unauthorized");
    }
    daemon.token = Some(secret.to_owned());
    daemon.get("/v1/node").expect(200);
    serves(&daemon);
    let (status, _) = daemon.stop();
    assert!(status.success());
    let text = std::fs::read_to_string(&log).unwrap();
    assert!(text.contains("/v1/node"), "requests are in the log: {text}");
    assert!(!text.contains("horse"), "the token is in a log line");

    let large = "x".repeat((64 << 10) + 1);
    for (no_token, why) in [
        ("abc", "at least 16 bytes"),
        (&*large, "more than 65536 bytes"),
        ("sixteen bytes and\nanother line", "bytes that no token has"),
    ] {
        let file = folder.file("wrong", no_token);
        let args = ["--http", "127.0.0.1:0", "--http-token-file", &file];
        let output = kvroom(&[&["serve"], &args[..]].concat()).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains(why), "{said}");
    }
}

#[test]
fn tls_is_served_and_strangers_without_a_certificate_are_not() {
    if !openssl(&["version"]) {
        assert!(skipped("there is no openssl command"));
        return;
    }
    let folder = Folder::new();
    let path = |name: &str| folder.0.join(name).to_str().unwrap().to_owned();
    // Two authorities; the daemon and a client have certificates of one, a stranger of the other.
    for authority in ["ca", "others"] {
        let (key, cert) = (
            path(&format!("{authority}.key")),
            path(&format!("{authority}.crt")),
        );
        let name = format!("/CN=kvroom test {authority}");
        let more = [
            "-x509", "-days", "2", "-subj", &name, "-keyout", &key, "-out", &cert,
        ];
        assert!(
            openssl(&[&NEW_KEY[..], &more].concat()),
            "openssl makes no authority"
        );
    }
    folder.file(
        "leaf",
        "basicConstraints=critical,CA:FALSE\nsubjectAltName=DNS:localhost,IP:127.0.0.1\n",
    );
    for (name, authority) in [("server", "ca"), ("client", "ca"), ("stranger", "others")] {
        let (key, request) = (path(&format!("{name}.key")), path(&format!("{name}.csr")));
        let more = ["-subj", "/CN=localhost", "-keyout", &key, "-out", &request];
        assert!(
            openssl(&[&NEW_KEY[..], &more].concat()),
            "openssl makes no request"
        );
        let sign = openssl(&[
            "x509",
            "-req",
            "-days",
            "2",
            "-in",
            &request,
            "-CA",
            &path(&format!("{authority}.crt")),
            "-CAkey",
            &path(&format!("{authority}.key")),
            "-CAcreateserial",
            "-extfile",
            &path("leaf"),
            "-out",
            &path(&format!("{name}.crt")),
        ]);
        assert!(sign, "openssl signs no certificate");
    }
    let (authority, cert, key) = (path("ca.crt"), path("server.crt"), path("server.key"));
    let with_tls = ["--http-tls-cert", &cert, "--http-tls-key", &key];
    let daemon = Daemon::start(&with_tls);
    let ask = |daemon: &Daemon, more: &[&str]| {
        let address = daemon.http.to_string();
        let mut args = vec![
            "s_client",
            "-quiet",
            "-connect",
            &address,
            "-CAfile",
            &authority,
            "-verify_return_error",
        ];
        args.extend(more);
        let mut command = Command::new("openssl");
        command
            .args(&args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let request = "GET /v1/node HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        // The daemon may have closed the connection already.
        let mut stdin = child.stdin.take().unwrap();
        let _ = stdin.write_all(request.as_bytes());
        let mut text = Vec::new();
        child.stdout.take().unwrap().read_to_end(&mut text).unwrap();
        let _ = child.wait();
        String::from_utf8_lossy(&text).into_owned()
    };
    let answer = ask(&daemon, &[]);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");

    let strict = [&with_tls[..], &["--http-tls-client-ca", &authority]].concat();
    let daemon = Daemon::start(&strict);
    let known = ["-cert", &path("client.crt"), "-key", &path("client.key")].map(str::to_owned);
    let answer = ask(&daemon, &known.each_ref().map(String::as_str));
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let stranger = [
        "-cert",
        &path("stranger.crt"),
        "-key",
        &path("stranger.key"),
    ]
    .map(str::to_owned);
    for wrong in [&stranger.each_ref().map(String::as_str)[..], &[]] {
        let answer = ask(&daemon, wrong);
        assert!(!answer.contains("200"), "{wrong:?}: {answer}");
    }
}

/// A key and a request for its certificate, or the certificate itself.
const NEW_KEY: [&str; 6] = [
    "req",
    "-newkey",
    "ec",
    "-pkeyopt",
    "ec_paramgen_curve:P-256",
    "-nodes",
];

fn openssl(args: &[&str]) -> bool {
    let mut command = Command::new("openssl");
    command
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

#[test]
fn a_daemon_that_ends_leaves_the_socket_of_another_that_came_to_its_place() {
    let folder = Folder::new();
    let place = folder.0.join("http.sock");
    let at = format!("unix://{}", place.display());
    let serve = || kvroom(&["serve", "--http", "127.0.0.1:0", "--http", &at]);
    let mut first = Daemon::spawn(serve());
    std::fs::remove_file(&place).unwrap();
    let mut second = Daemon::spawn(serve());
    assert!(first.stop().0.success());
    std::os::unix::net::UnixStream::connect(&place).expect("the second one is there");
    assert!(second.stop().0.success());
    assert!(!place.exists(), "its own socket is removed");
}

#[test]
fn sigterm_ends_all_rooms_and_the_daemon_in_order() {
    let mut daemon = Daemon::start(&[]);
    daemon
        .post("/v1/rooms", &json!({"role": "send", "id": 1}))
        .expect(201);
    let waiting = {
        let mut client = daemon.client();
        std::thread::spawn(move || client.send("GET", "/v1/rooms/1?wait=30s", None))
    };
    daemon.until("/v1/node", |answer| {
        answer.json()["stats"]["rooms_live"] == 1
    });
    let (status, last) = daemon.stop();
    assert_eq!(status.code(), Some(0));
    let last = last.unwrap();
    assert_eq!(
        (&last["event"], &last["why"]),
        (&json!("stopped"), &json!("SIGTERM"))
    );
    assert_eq!(
        (&last["drained"], &last["leaked"]),
        (&json!(true), &json!([]))
    );
    let room = waiting.join().unwrap().expect(200);
    assert_eq!(room["outcome"]["code"], "NodeShutdown");
}

#[test]
fn events_follow_a_room_and_go_on_where_a_client_left_off() {
    let daemon = Daemon::start(&[]);
    let mut events = daemon.events("/v1/events?types=room,sample", None);
    assert_eq!(
        events.head.header("content-type"),
        Some("text/event-stream")
    );
    daemon
        .post("/v1/rooms", &json!({"role": "send", "id": 5}))
        .expect(201);
    daemon.delete("/v1/rooms/5?reason=enough").expect(202);
    let end = events.until(|event| event.event == "room" && event.data["reason"].is_object());
    assert_eq!(
        (&end.data["room"], &end.data["role"]),
        (&json!("5"), &json!("send"))
    );
    assert_eq!(
        end.data["reason"],
        json!({"code": "Requested", "side": "local", "detail": "enough"})
    );
    let sample = events.until(|event| event.event == "sample");
    assert!(sample.data["rooms"]["registered"].is_u64(), "{sample:?}");
    drop(events);

    let last = end.id.unwrap();
    daemon
        .post("/v1/rooms", &json!({"role": "send", "id": 6}))
        .expect(201);
    daemon.delete("/v1/rooms/6").expect(202);
    let mut events = daemon.events("/v1/events?types=room", Some(&last));
    let end = events.until(|event| event.data["reason"].is_object());
    assert_eq!(end.data["room"], "6", "what was read is not told again");
    let mut events = daemon.events("/v1/events?types=room&room=6", Some("0-0"));
    assert_eq!(
        events.until(|event| event.event == "gap").data["lost"],
        Value::Null
    );
    assert_eq!(
        events.until(|event| event.event == "room").data["room"],
        "6"
    );
    for query in ["types=x", "room=x", "most_per_second=0", "x=1"] {
        daemon
            .get(&format!("/v1/events?{query}"))
            .expect_problem(400, "unreadable-request");
    }
}

#[test]
fn more_room_events_than_a_client_wants_are_left_out_and_counted() {
    let daemon = Daemon::start(&["--health-canary", "false"]);
    let path = "/v1/events?types=room,sample&most_per_second=5";
    let mut events = daemon.events(path, None);
    events.until(|event| event.event == "sample");
    let start = |id| json!({"op": "start", "role": "send", "id": id});
    let many: Vec<Value> = (0..300).map(start).collect();
    daemon
        .post("/v1/batch", &json!({"operations": many}))
        .expect(200);
    daemon.post("/v1/aborts", &json!({"all": true})).expect(202);
    let (mut told, mut left_out) = (0, 0);
    // Every room tells of its end: what was not told of is counted.
    let start = Instant::now();
    while told + left_out < 300 {
        assert!(
            start.elapsed() < PATIENCE,
            "{told} told, {left_out} left out"
        );
        let event = events.until(|_| true);
        if event.event == "room" {
            told += 1;
            continue;
        }
        let number = |name: &str| event.data[name].as_u64().unwrap();
        assert!(number("shown") <= 5, "{event:?}");
        assert_eq!(event.data["sampled"], number("shown_of") > number("shown"));
        left_out += number("shown_of") - number("shown");
    }
    assert!(left_out >= 200, "{told} were told, {left_out} left out");
}

#[test]
fn a_client_that_reads_no_events_costs_nothing_and_is_forgotten_when_it_goes() {
    // Canaries open files when they come to it.
    let daemon = Daemon::start(&["--health-canary", "false"]);
    let files = daemon.open_files();
    let silent: Vec<_> = (0..20).map(|_| daemon.events("/v1/events", None)).collect();
    let mut client = daemon.client();
    for id in 0..500 {
        let room = json!({"role": "send", "id": id});
        assert_eq!(client.send("POST", "/v1/rooms", Some(&room)).status, 201);
    }
    assert_eq!(
        daemon.post("/v1/aborts", &json!({"all": true})).expect(202)["aborted"],
        500
    );
    serves(&daemon);
    drop((silent, client));
    let start = Instant::now();
    while daemon.open_files() > files + 1 {
        assert!(
            start.elapsed() < PATIENCE,
            "{} files are open, {files} were",
            daemon.open_files()
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_client_that_closes_its_half_has_its_answer() {
    let daemon = Daemon::start(&[]);
    daemon
        .post("/v1/rooms", &json!({"role": "send", "id": 1}))
        .expect(201);
    let ask = |request: &str| {
        let mut stream = connect(daemon.http);
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut stream = BufReader::new(stream);
        let answer = read_answer(&mut stream).unwrap();
        assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0, "it is closed");
        answer
    };
    let get = |path: &str| ask(&format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"));
    get("/livez").expect(200);
    let room = get("/v1/rooms/1?wait=500ms").expect(200);
    assert_eq!(room["outcome"], Value::Null);
    let body = r#"{"role":"send","id":2}"#;
    let length = body.len();
    let created = ask(&format!(
        "POST /v1/rooms HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    ));
    assert_eq!(created.expect(201)["id"], "2");
    // An answer that goes on is not cut off either, while it is not long.
    let mut stream = connect(daemon.http);
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let ask = b"GET /v1/events?types=sample HTTP/1.1\r\nHost: localhost\r\n\r\n";
    stream.write_all(ask).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let lines = std::io::BufRead::lines(BufReader::new(stream)).map_while(Result::ok);
    assert!(
        lines.into_iter().any(|line| line == "event: sample"),
        "it is cut off"
    );
}

#[test]
fn a_client_that_leaves_in_the_middle_of_a_long_poll_is_forgotten_long_before_that_ends() {
    let args = ["--health-canary", "false", "--http-long-poll-max", "3600s"];
    let daemon = Daemon::start(&args);
    let files = daemon.open_files();
    daemon
        .post("/v1/rooms", &json!({"role": "send", "id": 1}))
        .expect(201);
    let polls: Vec<_> = (0..20)
        .map(|_| {
            let mut stream = connect(daemon.http);
            let ask = "GET /v1/rooms/1?wait=3600s HTTP/1.1\r\nHost: localhost\r\n\r\n";
            stream.write_all(ask.as_bytes()).unwrap();
            stream
        })
        .collect();
    let start = Instant::now();
    while daemon.open_files() < files + 20 {
        assert!(start.elapsed() < PATIENCE, "they are not there");
    }
    drop(polls);
    let start = Instant::now();
    while daemon.open_files() > files + 1 {
        let open = daemon.open_files();
        assert!(
            start.elapsed() < PATIENCE,
            "{open} files are open, {files} were"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn more_streams_of_events_than_may_be_are_refused_by_the_limits_name_until_one_ends() {
    let daemon = Daemon::start(&["--health-canary", "false"]);
    let mut streams: Vec<_> = (0..64).map(|_| daemon.events("/v1/events", None)).collect();
    let refused = daemon.get("/v1/events");
    let why = refused.expect_problem(503, "limit-reached");
    assert!(why.contains("64 clients"), "{why}");
    assert_eq!(refused.json()["limit"], "event streams");
    streams.pop();
    let begun = || {
        let mut one = connect(daemon.http);
        one.set_read_timeout(Some(PATIENCE)).unwrap();
        one.write_all(b"GET /v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            .unwrap();
        let mut head = [0; 12];
        one.read_exact(&mut head).unwrap();
        head == *b"HTTP/1.1 200"
    };
    let start = Instant::now();
    while !begun() {
        assert!(start.elapsed() < PATIENCE, "no place became free");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// What a client process does until it is killed, or has done its share.
const CLIENT: &str = "KVROOM_TEST_HTTP_CLIENT";

#[test]
fn play_a_client_if_told() {
    let Ok(told) = std::env::var(CLIENT) else {
        return;
    };
    let words: Vec<&str> = told.split(' ').collect();
    let (first, count): (u64, u64) = (words[1].parse().unwrap(), words[2].parse().unwrap());
    let mut client = Client::to(words[0].parse().unwrap());
    for id in first..first + count {
        let room = json!({"role": "send", "id": id, "tag": "storm"});
        assert_eq!(client.send("POST", "/v1/rooms", Some(&room)).status, 201);
        if id % 2 == 0 {
            assert_eq!(
                client
                    .send("DELETE", &format!("/v1/rooms/{id}"), None)
                    .status,
                202
            );
        }
    }
}

#[test]
fn eighty_clients_that_are_killed_half_way_leave_nothing_behind() {
    const CLIENTS: u64 = 80;
    const ROOMS: u64 = 125;
    let daemon = Daemon::start(&["--retention-ended-rooms", "100", "--health-canary", "false"]);
    let files = daemon.open_files();
    let storm = |first: u64| {
        let mut clients: Vec<_> = (0..CLIENTS)
            .map(|n| {
                Command::new(std::env::current_exe().unwrap())
                    .args(["--exact", "play_a_client_if_told", "--test-threads=1"])
                    .env(
                        CLIENT,
                        format!("{} {} {ROOMS}", daemon.http, first + n * ROOMS),
                    )
                    .stdout(Stdio::null())
                    .stderr(Stdio::null())
                    .spawn()
                    .unwrap()
            })
            .collect();
        // Half of all rooms: most clients are in the middle of theirs.
        let half = CLIENTS * ROOMS / 2;
        let started = |daemon: &Daemon| {
            daemon.get("/v1/node").json()["stats"]["started"]
                .as_u64()
                .unwrap()
        };
        let before = started(&daemon);
        let start = Instant::now();
        while started(&daemon) - before < half {
            assert!(
                start.elapsed() < 2 * PATIENCE,
                "{} of {half} rooms",
                started(&daemon) - before
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        for client in &mut clients {
            let _ = client.kill();
            let _ = client.wait();
        }
        // The other half, by one client that stays: 10,000 in all.
        let rest: Vec<Value> = (0..half)
            .map(|n| json!({"op": "start", "role": "send", "id": first + (1 << 30) + n, "tag": "storm"}))
            .collect();
        for some in rest.chunks(1_000) {
            let answer = daemon
                .post("/v1/batch", &json!({"operations": some}))
                .expect(200);
            assert!(
                answer["results"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .all(|one| one["status"] == 201)
            );
        }
        daemon
            .post("/v1/aborts", &json!({"tag": "storm"}))
            .expect(202);
        daemon.until("/v1/node", |answer| {
            let stats = &answer.json()["stats"];
            stats["rooms_live"] == 0 && stats["rooms_draining"] == 0
        });
        daemon.until("/v1/rooms?limit=1000", |answer| {
            answer.json()["rooms"].as_array().unwrap().len() <= 100
        });
        serves(&daemon);
    };
    storm(1);
    let after_one = daemon.resident_bytes();
    storm(1 << 32);
    let grown = daemon.resident_bytes().saturating_sub(after_one);
    // Spent keys are remembered, on purpose; rooms, connections and tasks are not.
    assert!(
        grown < 48 << 20,
        "{grown} bytes more after the second storm"
    );
    let start = Instant::now();
    while daemon.open_files() > files + 2 {
        assert!(
            start.elapsed() < PATIENCE,
            "{} files are open, {files} were",
            daemon.open_files()
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    let node = daemon.get("/v1/node").expect(200);
    assert_eq!(
        (&node["stats"]["actors"], &node["stats"]["stray_witnesses"]),
        (&json!(0), &json!(0))
    );
}
