//! The daemon as its clients meet it: rooms over HTTP, from the first request to the last byte.
#![allow(
    clippy::unwrap_used,
    reason = "helpers of tests fail by panicking, as tests do"
)]

#[path = "common/daemon.rs"]
mod daemon;

use daemon::Daemon;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

const LAYERS: usize = 2;
const PAGES: usize = 16;
const PAGE_BYTES: usize = 4096;

/// A file for a pool, removed when dropped.
struct Memory(PathBuf);

impl Memory {
    fn new() -> Memory {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("kvroom-http-{}-{n}", std::process::id());
        Memory(PathBuf::from("/dev/shm").join(name))
    }

    fn bytes(&self) -> Vec<u8> {
        std::fs::read(&self.0).unwrap()
    }

    /// Fills a page of every layer; pages of one layer lie behind each other.
    fn fill(&self, page: usize, value: u8) {
        use std::os::unix::fs::FileExt;
        let file = std::fs::OpenOptions::new()
            .write(true)
            .open(&self.0)
            .unwrap();
        for layer in 0..LAYERS {
            let at = (layer * PAGES + page) * PAGE_BYTES;
            file.write_all_at(&[value; PAGE_BYTES], at as u64).unwrap();
        }
    }

    fn holds(&self, page: usize, value: u8) -> bool {
        let bytes = self.bytes();
        (0..LAYERS).all(|layer| {
            let at = (layer * PAGES + page) * PAGE_BYTES;
            bytes[at..at + PAGE_BYTES].iter().all(|b| *b == value)
        })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let name = self.0.file_name().unwrap().to_string_lossy();
        let _ = std::fs::remove_file(&self.0);
        daemon::remove_all(&format!("{name}.kvroom"));
    }
}

/// Registers a pool in a file that the daemon makes.
fn register(daemon: &Daemon) -> Memory {
    let memory = Memory::new();
    let pool = json!({
        "name": "kv", "kind": "kv", "order": "layers_first", "layers": LAYERS, "pages": PAGES,
        "page_bytes": PAGE_BYTES, "page_tokens": 16, "memory": {"create": true, "path": memory.0},
    });
    daemon.post("/v1/pools", &pool).expect(201);
    memory
}

/// A prefill and a decode daemon with a session between them.
fn pair() -> (Daemon, Daemon) {
    let prefill = Daemon::start(&["--name", "prefill", "--node-listen", "tcp://127.0.0.1:0"]);
    let decode = Daemon::start(&["--name", "decode"]);
    let peer = decode.post("/v1/peers", &json!({"address": prefill.node_address()}));
    let peer = peer.expect(201);
    assert_eq!(
        (&peer["name"], &peer["state"]),
        (&json!("prefill"), &json!("up"))
    );
    (prefill, decode)
}

fn receive(id: u64, pages: &[u32]) -> Value {
    json!({"role": "receive", "id": id, "from": ["prefill"], "pages": [{"pool": "kv", "pages": pages}]})
}

#[test]
fn a_transfer_between_two_daemons_is_done_over_http_alone() {
    let (prefill, decode) = pair();
    let (source, destination) = (register(&prefill), register(&decode));
    for (page, value) in [(0, 7), (1, 8), (2, 9)] {
        source.fill(page, value);
    }

    let started = decode.post("/v1/rooms", &receive(42, &[3, 5, 9]));
    let room = started.expect(201);
    assert_eq!(
        started.header("location"),
        Some("/v1/rooms/42?attempt=0&role=receive")
    );
    assert_eq!(
        (&room["id"], &room["state"]),
        (&json!("42"), &json!("registered"))
    );
    assert_eq!(
        room["pool_pages"],
        json!([{"pool": "kv", "pages": [3, 5, 9]}])
    );
    assert_eq!(
        (&room["outcome"], &room["released"]),
        (&Value::Null, &json!(false))
    );

    prefill
        .post("/v1/rooms", &json!({"role": "send", "id": "42"}))
        .expect(201);
    let chunk = json!({"tokens": [0, 32], "pool": "kv", "pages": [0, 1]});
    let taken = prefill.post("/v1/rooms/42/chunks", &chunk).expect(202);
    assert_eq!(
        taken["chunk"],
        json!({"tokens": [0, 32], "layers": [0, 2], "pool": "kv", "pages": 2})
    );
    prefill.post("/v1/rooms/42/chunks", &chunk).expect(200);
    // Both sides tell what has moved on their legs.
    let moved = LAYERS * 2 * PAGE_BYTES;
    let leg = |side: &Daemon| {
        let room = side.until("/v1/rooms/42", |answer| {
            answer.json()["legs"][0]["written_bytes"] == moved
        });
        room.json()["legs"][0].clone()
    };
    let (sent, received) = (leg(&prefill), leg(&decode));
    assert_eq!(
        (&sent["peer"], &sent["posted_bytes"]),
        (&json!("decode"), &json!(moved))
    );
    assert_eq!(
        (&received["peer"], &received["posted_bytes"]),
        (&json!("prefill"), &Value::Null)
    );
    let rest = json!({"attempt": 0, "tokens": [32, 48], "pool": "kv", "pages": [2]});
    prefill.post("/v1/rooms/42/chunks", &rest).expect(202);
    prefill
        .post("/v1/rooms/42/finish", &json!({"total": 48}))
        .expect(202);
    prefill
        .post("/v1/rooms/42/finish", &json!({"total": 48}))
        .expect(200);

    let done = decode.get("/v1/rooms/42?wait=30s").expect(200);
    assert_eq!(
        (&done["outcome"], &done["state"]),
        (&json!({"end": "done"}), &json!("done"))
    );
    for side in [&prefill, &decode] {
        let room = side.get("/v1/rooms/42?wait=30s&for=released").expect(200);
        assert_eq!(
            (&room["outcome"], &room["released"]),
            (&json!({"end": "done"}), &json!(true))
        );
        assert!(!room["proofs"].as_array().unwrap().is_empty(), "{room}");
        assert_eq!(room["pool_pages"], json!([]));
    }
    // To finish it again does nothing, and with another total contradicts, after its end too.
    let finish = |total: u64| prefill.post("/v1/rooms/42/finish", &json!({"total": total}));
    assert_eq!(finish(48).expect(200)["outcome"], json!({"end": "done"}));
    finish(32).expect_problem(409, "room-finished");
    let bytes = LAYERS * 3 * PAGE_BYTES;
    assert_eq!(decode.get("/v1/rooms/42").json()["landed"]["bytes"], bytes);
    for (page, value) in [(3, 7), (5, 8), (9, 9)] {
        assert!(destination.holds(page, value), "page {page}");
    }
    // The memory is back: the next room may have the same pages at once.
    decode
        .post("/v1/rooms", &receive(43, &[3, 5, 9]))
        .expect(201);
}

#[test]
fn a_traceparent_is_shown_by_both_daemons_and_is_in_both_logs() {
    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7";
    let folder = std::env::temp_dir();
    let log = |name| Log(folder.join(format!("kvroom-trace-{}-{name}", std::process::id())));
    let (prefills, decodes) = (log("prefill"), log("decode"));
    let start = |args: &[&str], log: &Log| {
        let file = std::fs::File::create(&log.0).unwrap();
        Daemon::start_with(args, |command| {
            command
                .stderr(file)
                .env("RUST_LOG", "kvroom=debug,kvroom_actors=debug");
        })
    };
    let listen = ["--name", "prefill", "--node-listen", "tcp://127.0.0.1:0"];
    let prefill = start(&listen, &prefills);
    let decode = start(&["--name", "decode"], &decodes);
    let peer = json!({"address": prefill.node_address()});
    decode.post("/v1/peers", &peer).expect(201);
    let trace = format!("00-{TRACE}-01");
    let room = json!({"role": "receive", "id": 7, "from": ["prefill"], "traceparent": trace});
    decode.post("/v1/rooms", &room).expect(201);
    let send = json!({"role": "send", "id": 7});
    prefill.post("/v1/rooms", &send).expect(201);
    for daemon in [&decode, &prefill] {
        let room = daemon.until("/v1/rooms/7", |answer| {
            answer.json()["traceparent"] != Value::Null
        });
        let said = room.json()["traceparent"].as_str().unwrap().to_owned();
        assert!(said.contains(TRACE), "{said}");
    }
    decode.delete("/v1/rooms/7").expect(202);
    prefill.get("/v1/rooms/7?wait=30s").expect(200);
    for log in [&prefills, &decodes] {
        let ended = |line: &&str| line.contains("room ended") && line.contains(TRACE);
        let start = std::time::Instant::now();
        while std::fs::read_to_string(&log.0)
            .unwrap()
            .lines()
            .find(ended)
            .is_none()
        {
            assert!(
                start.elapsed() < daemon::PATIENCE,
                "{:?} does not have it",
                log.0
            );
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}

/// A file that is removed when dropped.
struct Log(PathBuf);

impl Drop for Log {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn the_same_request_again_shows_its_room_and_another_with_its_key_is_refused() {
    let daemon = Daemon::start(&[]);
    let send = json!({"role": "send", "id": 7, "tag": "a"});
    daemon.post("/v1/rooms", &send).expect(201);
    assert_eq!(daemon.post("/v1/rooms", &send).expect(200)["id"], "7");
    let other = json!({"role": "send", "id": 7, "tag": "b"});
    daemon
        .post("/v1/rooms", &other)
        .expect_problem(409, "room-exists");

    let aborted = daemon.delete("/v1/rooms/7?reason=no%20more").expect(202);
    let end = json!({"end": "aborted", "code": "Requested", "side": "local", "detail": "no more"});
    assert_eq!(aborted["outcome"], end);
    assert_eq!(daemon.delete("/v1/rooms/7").expect(202)["outcome"], end);
    assert_eq!(daemon.post("/v1/rooms", &send).expect(200)["outcome"], end);
    let spent = daemon.post("/v1/rooms", &other);
    spent.expect_problem(409, "key-spent");
    assert_eq!(spent.json()["outcome"], end);
    daemon
        .post("/v1/rooms", &json!({"role": "send", "id": 7, "attempt": 1}))
        .expect(201);
}

#[test]
fn a_room_that_is_forgotten_leaves_its_key_spent() {
    let daemon = Daemon::start(&["--retention-ended-rooms", "1"]);
    for id in [1, 2] {
        let send = json!({"role": "send", "id": id});
        daemon.post("/v1/rooms", &send).expect(201);
        daemon.delete(&format!("/v1/rooms/{id}")).expect(202);
        daemon.get(&format!("/v1/rooms/{id}?wait=30s&for=released"));
    }
    daemon.until("/v1/rooms/1", |answer| answer.status == 404);
    daemon.get("/v1/rooms/2").expect(200);
    let spent = daemon.post("/v1/rooms", &json!({"role": "send", "id": 1}));
    spent.expect_problem(409, "key-spent");
    assert_eq!(spent.json()["outcome"]["code"], "Requested");
}

#[test]
fn what_cannot_be_meant_is_refused_with_what_to_do_and_changes_nothing() {
    let (prefill, decode) = pair();
    let _pools = (register(&prefill), register(&decode));
    prefill
        .post("/v1/rooms", &json!({"role": "send", "id": 1}))
        .expect(201);
    decode.post("/v1/rooms", &receive(1, &[0])).expect(201);
    for (path, body, status, code, says) in [
        (
            "/v1/rooms",
            receive(2, &[0, 4]),
            409,
            "pages-leased",
            "room 1",
        ),
        (
            "/v1/rooms",
            receive(2, &[4, 4]),
            422,
            "unusable-request",
            "named twice",
        ),
        (
            "/v1/rooms",
            receive(2, &[16]),
            422,
            "unusable-request",
            "does not exist",
        ),
        (
            "/v1/rooms",
            json!({"role": "receive", "id": 2, "from": ["nobody"]}),
            409,
            "no-such-peer",
            "nobody",
        ),
        (
            "/v1/rooms",
            json!({"role": "receive", "id": 2, "from": []}),
            422,
            "unusable-request",
            "name at least one in `from`",
        ),
        (
            "/v1/rooms",
            json!({"role": "receive", "id": 2, "from": ["prefill"], "pages": [{"pool": "x", "pages": [1]}]}),
            409,
            "no-such-pool",
            "\"x\"",
        ),
        (
            "/v1/rooms",
            json!({"role": "send", "id": -1}),
            422,
            "unusable-request",
            "-1",
        ),
        (
            "/v1/rooms",
            json!({"role": "send", "id": 1e30}),
            422,
            "unusable-request",
            "18446744073709551615",
        ),
        (
            "/v1/rooms",
            json!({"role": "send", "id": "1x"}),
            422,
            "unusable-request",
            "1x",
        ),
        (
            "/v1/rooms",
            json!({"role": "send", "id": 3, "receivers": 0}),
            422,
            "unusable-request",
            "receivers(0)",
        ),
        (
            "/v1/rooms",
            json!({"role": "send", "id": 3, "receivers": 65536}),
            422,
            "unusable-request",
            "65536",
        ),
        (
            "/v1/rooms",
            json!({"role": "send", "id": 3, "deadline_ms": 0}),
            422,
            "unusable-request",
            "deadline_ms",
        ),
        (
            "/v1/rooms",
            json!({"role": "send", "id": 3, "tag": ""}),
            422,
            "unusable-request",
            "tag",
        ),
        (
            "/v1/rooms",
            json!({"role": "send", "id": 3, "traceparent": "x"}),
            422,
            "unusable-request",
            "traceparent",
        ),
        (
            "/v1/rooms",
            json!({"role": "send", "id": 3, "form": 1}),
            422,
            "unusable-request",
            "form",
        ),
        (
            "/v1/rooms",
            json!({"role": "sned", "id": 3}),
            422,
            "unusable-request",
            "sned",
        ),
        ("/v1/rooms", json!([]), 422, "unusable-request", ""),
        (
            "/v1/aborts",
            json!({}),
            422,
            "unusable-request",
            "exactly one",
        ),
        (
            "/v1/aborts",
            json!({"all": true, "tag": "x"}),
            422,
            "unusable-request",
            "exactly one",
        ),
        (
            "/v1/aborts",
            json!({"peer": "nobody"}),
            409,
            "no-such-peer",
            "nobody",
        ),
        (
            "/v1/peers",
            json!({"address": "carrier-pigeon://x"}),
            422,
            "unusable-request",
            "carrier-pigeon",
        ),
        (
            "/v1/peers",
            json!({"address": "tcp://127.0.0.1:1"}),
            409,
            "peer-unreachable",
            "127.0.0.1:1",
        ),
    ] {
        let detail = decode.post(path, &body).expect_problem(status, code);
        assert!(detail.contains(says), "{body}: {detail}");
    }
    for (path, body, status, code, says) in [
        (
            "/v1/rooms/9/chunks",
            json!({"tokens": [0, 16], "pool": "kv", "pages": [0]}),
            404,
            "no-such-room",
            "room 9",
        ),
        (
            "/v1/rooms/1/chunks",
            json!({"tokens": [0, 16], "pool": "kv", "pages": [16]}),
            422,
            "unusable-request",
            "page 16",
        ),
        (
            "/v1/rooms/1/chunks",
            json!({"tokens": [0, 0], "pool": "kv", "pages": []}),
            422,
            "unusable-request",
            "none",
        ),
        (
            "/v1/rooms/1/chunks",
            json!({"tokens": [0, 16], "pool": "no", "pages": [0]}),
            409,
            "no-such-pool",
            "\"no\"",
        ),
        (
            "/v1/rooms/1/chunks",
            json!({"tokens": [-5, 16], "pool": "kv", "pages": [0]}),
            422,
            "unusable-request",
            "-5",
        ),
        (
            "/v1/rooms/1/finish",
            json!({"total": 0, "aux": {"pool": "kv", "page": 0}}),
            422,
            "unusable-request",
            "aux",
        ),
    ] {
        let detail = prefill.post(path, &body).expect_problem(status, code);
        assert!(detail.contains(says), "{body}: {detail}");
    }
    assert_eq!(
        decode.get("/v1/rooms").json()["rooms"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    // The rooms go on.
    prefill
        .post(
            "/v1/rooms/1/chunks",
            &json!({"tokens": [0, 16], "pool": "kv", "pages": [0]}),
        )
        .expect(202);
    let overlap = json!({"tokens": [0, 32], "pool": "kv", "pages": [1, 2]});
    prefill
        .post("/v1/rooms/1/chunks", &overlap)
        .expect_problem(409, "chunk-conflict");
    prefill
        .post("/v1/rooms/1/finish", &json!({"total": 16}))
        .expect(202);
    prefill
        .post("/v1/rooms/1/finish", &json!({"total": 32}))
        .expect_problem(409, "room-finished");
    let done = decode.get("/v1/rooms/1?wait=30s").expect(200);
    assert_eq!(done["outcome"], json!({"end": "done"}));
    prefill.get("/v1/rooms/1?wait=30s&for=released").expect(200);
    let late = json!({"tokens": [16, 32], "pool": "kv", "pages": [1]});
    prefill
        .post("/v1/rooms/1/chunks", &late)
        .expect_problem(409, "room-over");
}

#[test]
fn lists_are_narrowed_and_paged_newest_first() {
    let daemon = Daemon::start(&[]);
    for id in 0..25 {
        let tag = if id % 5 == 0 { "five" } else { "other" };
        daemon
            .post("/v1/rooms", &json!({"role": "send", "id": id, "tag": tag}))
            .expect(201);
    }
    daemon.delete("/v1/rooms/3").expect(202);
    daemon.get("/v1/rooms/3?wait=30s&for=released").expect(200);
    let mut seen = Vec::new();
    let mut path = "/v1/rooms?limit=10".to_owned();
    loop {
        let page = daemon.get(&path).expect(200);
        let rooms = page["rooms"].as_array().unwrap();
        seen.extend(
            rooms
                .iter()
                .map(|room| room["id"].as_str().unwrap().parse::<u64>().unwrap()),
        );
        match page["next"].as_str() {
            Some(next) => path = format!("/v1/rooms?limit=10&after={next}"),
            None => break,
        }
    }
    assert_eq!(seen, (0..25).rev().collect::<Vec<_>>());
    let count = |query: &str| {
        let page = daemon.get(&format!("/v1/rooms?{query}")).expect(200);
        page["rooms"].as_array().unwrap().len()
    };
    assert_eq!(count("tag=five"), 5);
    assert_eq!(count("state=aborted"), 1);
    assert_eq!(count("state=registered&role=send"), 24);
    assert_eq!(count("role=receive"), 0);
    assert_eq!(count("peer=x"), 0);
    assert_eq!(count("quarantined=true"), 0);
    assert_eq!(count("quarantined=false"), 25);
    for query in [
        "limit=0",
        "limit=1001",
        "limit=x",
        "state=lost",
        "after=x",
        "nothing=1",
        "limit=-1",
    ] {
        let answer = daemon.get(&format!("/v1/rooms?{query}"));
        answer.expect_problem(400, "unreadable-request");
    }
    assert_eq!(
        daemon
            .post("/v1/aborts", &json!({"tag": "five"}))
            .expect(202)["aborted"],
        5
    );
    assert_eq!(
        daemon.post("/v1/aborts", &json!({"room": "7"})).expect(202)["aborted"],
        1
    );
    assert_eq!(
        daemon.post("/v1/aborts", &json!({"all": true})).expect(202)["aborted"],
        18
    );
    daemon.until("/v1/rooms?state=aborted", |answer| {
        answer.json()["rooms"].as_array().unwrap().len() == 25
    });
}

#[test]
fn a_batch_does_its_operations_in_order_and_answers_each() {
    let daemon = Daemon::start(&[]);
    let operations = json!({"operations": [
        {"op": "start", "role": "send", "id": 1},
        {"op": "start", "role": "send", "id": "2", "tag": "x"},
        {"op": "start", "role": "send", "id": 1},
        {"op": "start", "role": "send", "id": 1, "tag": "y"},
        {"op": "finish", "id": 1, "total": 0},
        {"op": "abort", "id": 2, "reason": "r"},
        {"op": "get", "id": 2},
        {"op": "get", "id": 9},
        {"op": "chunk", "id": 1, "tokens": [0, 1], "pool": "kv", "pages": [0]},
    ]});
    let answer = daemon.post("/v1/batch", &operations).expect(200);
    let results = answer["results"].as_array().unwrap();
    let statuses: Vec<u64> = results
        .iter()
        .map(|r| r["status"].as_u64().unwrap())
        .collect();
    assert_eq!(
        statuses,
        [201, 201, 200, 409, 202, 202, 200, 404, 409],
        "{answer}"
    );
    assert_eq!(results[3]["body"]["code"], "room-exists");
    assert_eq!(results[6]["body"]["outcome"]["detail"], "r");
    assert_eq!(
        daemon
            .post("/v1/batch", &json!({"operations": []}))
            .expect(200)["results"],
        json!([])
    );
    let many: Vec<Value> = (0..1001).map(|id| json!({"op": "get", "id": id})).collect();
    daemon
        .post("/v1/batch", &json!({"operations": many}))
        .expect_problem(422, "unusable-request");
    let many: Vec<Value> = (10..1010)
        .map(|id| json!({"op": "start", "role": "send", "id": id}))
        .collect();
    let answer = daemon
        .post("/v1/batch", &json!({"operations": many}))
        .expect(200);
    assert!(
        answer["results"]
            .as_array()
            .unwrap()
            .iter()
            .all(|r| r["status"] == 201)
    );
}

#[test]
fn a_long_poll_ends_with_the_outcome_or_with_its_time() {
    let daemon = Daemon::start(&[]);
    daemon
        .post("/v1/rooms", &json!({"role": "send", "id": 1}))
        .expect(201);
    let start = std::time::Instant::now();
    assert_eq!(
        daemon.get("/v1/rooms/1?wait=50ms").expect(200)["outcome"],
        Value::Null
    );
    assert!(start.elapsed() >= std::time::Duration::from_millis(50));
    let waiting = {
        let mut client = daemon.client();
        std::thread::spawn(move || client.send("GET", "/v1/rooms/1?wait=30s", None))
    };
    daemon.delete("/v1/rooms/1").expect(202);
    assert_eq!(
        waiting.join().unwrap().expect(200)["outcome"]["end"],
        "aborted"
    );
    for wait in ["1", "1m", "-1s", "9999999999s", "s"] {
        daemon
            .get(&format!("/v1/rooms/1?wait={wait}"))
            .expect_problem(400, "unreadable-request");
    }
}

#[test]
fn a_key_of_both_roles_must_say_which_is_meant() {
    let (_prefill, decode) = pair();
    decode
        .post("/v1/rooms", &json!({"role": "send", "id": 5}))
        .expect(201);
    decode
        .post(
            "/v1/rooms",
            &json!({"role": "receive", "id": 5, "from": ["prefill"]}),
        )
        .expect(201);
    decode.get("/v1/rooms/5").expect_problem(409, "which-role");
    assert_eq!(
        decode.get("/v1/rooms/5?role=receive").expect(200)["role"],
        "receive"
    );
    assert_eq!(
        decode.delete("/v1/rooms/5?role=send").expect(202)["role"],
        "send"
    );
    assert_eq!(
        decode.get("/v1/rooms/5?role=receive").expect(200)["outcome"],
        Value::Null
    );
}

#[test]
fn peers_the_node_and_claims_that_wait_are_shown() {
    let (prefill, decode) = pair();
    let _pools = (register(&prefill), register(&decode));
    decode.post("/v1/rooms", &receive(77, &[1, 2])).expect(201);
    let claims = prefill
        .until("/v1/early-claims", |answer| answer.json()["count"] == 1)
        .json();
    let claim = json!({"room": "77", "attempt": 0, "peer": "decode", "pages": 2});
    assert_eq!(claims["early_claims"], json!([claim]));
    let node = decode.get("/v1/node").expect(200);
    assert_eq!(
        (&node["name"], &node["stopping"]),
        (&json!("decode"), &json!(false))
    );
    assert_eq!(node["stats"]["rooms_live"], 1);
    let peers = decode.get("/v1/peers").expect(200);
    assert_eq!(peers["peers"][0]["name"], "prefill");
    decode.delete("/v1/peers/prefill").expect(202);
    decode
        .delete("/v1/peers/nobody")
        .expect_problem(404, "no-such-peer");
    let room = decode.get("/v1/rooms/77?wait=30s").expect(200);
    assert_eq!(room["outcome"]["code"], "SessionLost");
}

/// The name of a small node of canaries: the flight recorder alone says it.
fn canary_of(daemon: &Daemon) -> String {
    let begin = format!("{}-canary-", daemon.ready["name"].as_str().unwrap());
    let of = |answer: &daemon::Answer| {
        let text = answer.text();
        let at = text.find(&begin)?;
        text[at..].split('"').next().map(str::to_owned)
    };
    let told = daemon.until("/v1/recording?since=0&limit=100000", |answer| {
        of(answer).is_some()
    });
    of(&told).unwrap()
}

#[test]
fn peers_are_other_nodes_and_not_those_of_the_canaries() {
    let (prefill, decode) = pair();
    for (side, other) in [(&prefill, "decode"), (&decode, "prefill")] {
        // Canaries have run: their small nodes are peers of the node.
        side.until("/readyz", |answer| answer.status == 200);
        let peers = side.get("/v1/peers").expect(200);
        let names: Vec<&Value> = peers["peers"]
            .as_array()
            .unwrap()
            .iter()
            .map(|p| &p["name"])
            .collect();
        assert_eq!(names, [&json!(other)]);
        assert_eq!(peers["peers"][0]["quarantined_pages"], 0);
        let canary = format!("/v1/peers/{}", canary_of(side));
        side.delete(&canary).expect_problem(404, "no-such-peer");
    }
    decode
        .post(
            "/v1/rooms",
            &json!({"role": "receive", "id": 1, "from": ["prefill"]}),
        )
        .expect(201);
    decode
        .post("/v1/rooms", &json!({"role": "send", "id": 2}))
        .expect(201);
    for (query, ids) in [
        ("peer=prefill", vec!["1"]),
        ("peer=prefill&role=send", vec![]),
        ("role=receive", vec!["1"]),
        ("role=send&state=registered", vec!["2"]),
    ] {
        let list = decode.get(&format!("/v1/rooms?{query}")).expect(200);
        let found = list["rooms"].as_array().unwrap().iter();
        let found: Vec<&str> = found.map(|r| r["id"].as_str().unwrap()).collect();
        assert_eq!(found, ids, "{query}");
    }
}

#[test]
fn a_node_that_is_called_as_a_canary_could_be_is_a_peer_like_any_other() {
    let often = [
        "--health-canary-interval",
        "50ms",
        "--health-canary-deadline",
        "20s",
    ];
    let listens = ["--name", "d", "--node-listen", "tcp://127.0.0.1:0"];
    let daemon = Daemon::start(&[&listens[..], &often].concat());
    let started = |daemon: &Daemon| daemon.get("/readyz").json()["canaries_started"].as_u64();
    for fabric in ["local", "shm", "tcp"] {
        daemon.until("/readyz", |answer| answer.status == 200);
        let name = format!("d-canary-{fabric}");
        let stranger = Daemon::start(&["--name", &name, "--health-canary", "false"]);
        let peer = stranger.post("/v1/peers", &json!({"address": daemon.node_address()}));
        assert_eq!(peer.expect(201)["name"], "d");
        let named = |answer: &daemon::Answer| {
            let peers = answer.json()["peers"].as_array().unwrap().clone();
            peers.iter().any(|p| p["name"] == name.as_str())
        };
        daemon.until("/v1/peers", named);
        // All of them run again, a few times each, while it is there, and when it has gone.
        let runs = |daemon: &Daemon| {
            let begin = started(daemon);
            daemon.until("/readyz", |answer| {
                assert_eq!(answer.status, 200, "{}", answer.text());
                answer.json()["canaries_started"].as_u64() > begin.map(|n| n + 30)
            });
        };
        runs(&daemon);
        drop(stranger);
        runs(&daemon);
    }
}

#[test]
fn nodes_of_the_daemons_own_process_are_not_for_others() {
    let daemon = Daemon::start(&["--name", "d"]);
    let canary = canary_of(&daemon);
    for address in ["local://d", "local://nobody", &format!("local://{canary}")] {
        let answer = daemon.post("/v1/peers", &json!({ "address": address }));
        let why = answer.expect_problem(422, "unusable-request");
        assert!(!why.contains("canary"), "{why}");
    }
}

#[test]
fn rooms_that_send_are_found_by_their_peer_before_anybody_has_looked_at_them() {
    let (prefill, decode) = pair();
    let _pools = (register(&prefill), register(&decode));
    let sending = |id| json!({"role": "send", "id": id});
    for id in 1..5 {
        prefill.post("/v1/rooms", &sending(id)).expect(201);
    }
    for (id, page) in [(1, 0), (2, 1), (3, 2)] {
        decode.post("/v1/rooms", &receive(id, &[page])).expect(201);
    }
    let found = |answer: &daemon::Answer| {
        let list = answer.json();
        let rooms = list["rooms"].as_array().unwrap().iter();
        rooms
            .map(|room| room["id"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    // Nothing else is asked, so that nothing else can have told.
    let list = prefill.until("/v1/rooms?peer=decode", |answer| found(answer).len() == 3);
    assert_eq!(found(&list), ["3", "2", "1"]);
    let list = prefill.get("/v1/rooms?peer=decode&limit=1&role=send");
    assert_eq!(found(&list), ["3"]);
    assert_eq!(found(&prefill.get("/v1/rooms?peer=nobody")), [""; 0]);
}

#[test]
fn a_limit_that_is_reached_is_named_with_when_to_try_again() {
    let daemon = Daemon::start(&["--limits-chunks-in-flight", "1", "--health-canary", "false"]);
    let _pool = register(&daemon);
    daemon
        .post("/v1/rooms", &json!({"role": "send", "id": 1}))
        .expect(201);
    let chunk = |n: u64| json!({"tokens": [16 * n, 16 * n + 16], "pool": "kv", "pages": [n]});
    // Nobody receives: the first chunk stays in the room's window.
    daemon.post("/v1/rooms/1/chunks", &chunk(0)).expect(202);
    let full = daemon.post("/v1/rooms/1/chunks", &chunk(1));
    full.expect_problem(429, "window-full");
    assert_eq!(full.json()["limit"], "limits.chunks_in_flight");
    assert_eq!(full.header("retry-after"), Some("1"));
    // The same chunk again is no second one.
    daemon.post("/v1/rooms/1/chunks", &chunk(0)).expect(200);

    let daemon = Daemon::start(&["--limits-rooms", "1", "--health-canary", "false"]);
    daemon
        .post("/v1/rooms", &json!({"role": "send", "id": 1}))
        .expect(201);
    let full = daemon.post("/v1/rooms", &json!({"role": "send", "id": 2}));
    full.expect_problem(503, "limit-reached");
    assert_eq!(full.json()["limit"], "limits.rooms");
    assert_eq!(full.header("retry-after"), Some("1"));
    daemon.delete("/v1/rooms/1").expect(202);
    daemon.get("/v1/rooms/1?wait=30s&for=released").expect(200);
    daemon
        .post("/v1/rooms", &json!({"role": "send", "id": 2}))
        .expect(201);
}

#[test]
fn a_sample_tells_what_moved_what_waits_and_how_long_aborts_took() {
    let (prefill, decode) = pair();
    let _pools = (register(&prefill), register(&decode));
    let mut samples = decode.events("/v1/events?types=sample", None);
    let first = samples.until(|event| event.event == "sample").data;
    let lanes = first["lanes"].as_array().unwrap();
    let named = |name: &str| {
        lanes
            .iter()
            .any(|l| l["lane"] == name && l["queued"].is_u64())
    };
    assert!(named("lane 0") && named("shard 0"), "{first}");
    assert_eq!(first["peers"][0]["name"], "prefill", "{first}");
    assert_eq!(
        first["peers"].as_array().unwrap().len(),
        1,
        "canaries are not shown: {first}"
    );

    decode.post("/v1/rooms", &receive(1, &[0, 1])).expect(201);
    prefill
        .post("/v1/rooms", &json!({"role": "send", "id": 1}))
        .expect(201);
    let chunk = json!({"tokens": [0, 32], "pool": "kv", "pages": [0, 1]});
    prefill.post("/v1/rooms/1/chunks", &chunk).expect(202);
    prefill
        .post("/v1/rooms/1/finish", &json!({"total": 32}))
        .expect(202);
    decode.get("/v1/rooms/1?wait=30s&for=released").expect(200);
    let moved = |flow: &Value| {
        (&flow["peer"], &flow["direction"]) == (&json!("prefill"), &json!("received"))
            && flow["per_s"].as_u64().is_some_and(|n| n > 0)
            && ["shm", "tcp"].contains(&flow["fabric"].as_str().unwrap())
    };
    let sample = samples
        .until(|event| event.data["bytes"].as_array().unwrap().iter().any(moved))
        .data;
    assert!(
        sample["bytes_per_s"].as_u64().is_some_and(|n| n > 0),
        "{sample}"
    );

    decode.post("/v1/rooms", &receive(2, &[0, 1])).expect(201);
    decode.delete("/v1/rooms/2").expect(202);
    let shares = ["p50", "p90", "p99"];
    samples.until(|event| {
        let took = &event.data["abort_to_reusable_us"];
        shares.iter().all(|share| took[*share].is_u64())
    });
}
