//! Memory of other processes, over HTTP: owners that die, daemons that die, engines in Python.
#![allow(
    clippy::unwrap_used,
    reason = "helpers of tests fail by panicking, as tests do"
)]

#[path = "common/daemon.rs"]
mod daemon;

use daemon::Daemon;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const PAGE: u64 = 4096;

/// A daemon under a name of its own, so that the files of its pools are nobody else's.
struct Node {
    name: String,
    daemon: Daemon,
}

impl Node {
    fn start(test: &str, role: &str) -> Node {
        Node::named(&format!("{role}-{test}-{}", std::process::id()))
    }

    fn named(name: &str) -> Node {
        Node {
            name: name.to_owned(),
            daemon: daemon(name),
        }
    }

    /// Kills it, and starts the next one of its name.
    fn restart(&mut self) {
        self.daemon.signal("KILL");
        let _ = self.daemon.end();
        self.daemon = daemon(&self.name);
    }

    fn register(&self, body: &Value) -> Value {
        let answer = self.daemon.post("/v1/pools", body);
        assert_eq!(answer.status, 201, "{}", answer.text());
        assert_eq!(
            answer.header("location").unwrap(),
            format!("/v1/pools/{}", body["name"].as_str().unwrap())
        );
        answer.json()
    }

    fn pool(&self, name: &str) -> Value {
        self.daemon.get(&format!("/v1/pools/{name}")).json()
    }

    fn connect(&self, other: &Node) {
        let address = json!({"address": other.daemon.node_address()});
        let answer = self.daemon.post("/v1/peers", &address);
        assert!(answer.status < 300, "{}", answer.text());
        self.daemon.until("/v1/peers", |answer| {
            let peers = answer.json();
            let mut peers = peers["peers"].as_array().unwrap().iter();
            peers.any(|p| p["name"] == *other.name && p["state"] == "up")
        });
    }

    fn receive(&self, room: u64, from: &Node, pages: &[u32]) -> daemon::Answer {
        let body = json!({
            "role": "receive", "id": room, "from": [from.name],
            "pages": [{"pool": "kv", "pages": pages}],
        });
        self.daemon.post("/v1/rooms", &body)
    }

    fn send_half(&self, room: u64) {
        let rooms = format!("/v1/rooms/{room}");
        let started = self
            .daemon
            .post("/v1/rooms", &json!({"role": "send", "id": room}));
        assert_eq!(started.status, 201, "{}", started.text());
        let chunk = json!({"tokens": [0, 16], "pool": "kv", "pages": [0]});
        let pushed = self.daemon.post(&format!("{rooms}/chunks"), &chunk);
        assert_eq!(pushed.status, 202, "{}", pushed.text());
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let prefix = format!("kvroom:{}:", self.name);
        for entry in std::fs::read_dir("/dev/shm").unwrap().flatten() {
            if entry.file_name().to_string_lossy().starts_with(&prefix) {
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }
}

fn daemon(name: &str) -> Daemon {
    Daemon::start(&["--name", name, "--node-listen", "tcp://127.0.0.1:0"])
}

fn kv(name: &str) -> Value {
    json!({
        "name": name, "layers": 2, "pages": 8, "page_bytes": PAGE, "page_tokens": 16,
        "memory": {"create": true},
    })
}

fn owned(name: &str, engine: &Engine) -> Value {
    let mut body = kv(name);
    body["owner"] = json!({"pid": engine.0.id()});
    body
}

/// The process of an engine, which does nothing until it is killed.
struct Engine(Child);

impl Engine {
    fn start() -> Engine {
        let cat = Command::new("/bin/cat").stdin(Stdio::piped()).spawn();
        Engine(cat.unwrap())
    }

    fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.kill();
    }
}

#[test]
fn what_is_registered_is_listed_and_mapped_and_goes_with_its_files() {
    let node = Node::start("listed", "n");
    let made = node.register(&kv("kv"));
    let path = PathBuf::from(made["path"].as_str().unwrap());
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 2 * 8 * PAGE);
    assert_eq!(made["state"], "serving");
    let again = node.daemon.post("/v1/pools", &kv("kv"));
    assert_eq!(again.status, 200, "{}", again.text());
    let list = node.daemon.get("/v1/pools").json();
    assert_eq!(list["pools"].as_array().unwrap().len(), 1);
    assert_eq!(list["pools"][0], made);
    let gone = node.daemon.delete("/v1/pools/kv?wait=30s");
    assert_eq!((gone.status, &gone.json()["state"]), (200, &json!("gone")));
    assert!(!path.exists());
    assert_eq!(node.daemon.get("/v1/pools/kv").status, 404);
    assert_eq!(node.daemon.delete("/v1/pools/kv").status, 404);
}

#[test]
fn a_request_that_cannot_be_is_a_problem_that_says_why_and_leaves_nothing() {
    let node = Node::start("wrong", "n");
    let with = |key: &str, value: Value| {
        let mut body = kv("kv");
        body[key] = value;
        body
    };
    for (body, status, why) in [
        (with("memory", json!({})), 422, "memory"),
        (
            with("memory", json!({"path": "/etc/passwd"})),
            422,
            "is not in",
        ),
        (
            with("memory", json!({"path": "/dev/shm/../../etc/passwd"})),
            422,
            "is not in",
        ),
        (
            with("memory", json!({"pid": 1, "fd": 4_000_000})),
            422,
            "descriptor",
        ),
        (
            with("memory", json!({"pid": 4_000_000, "fd": 1})),
            422,
            "no process",
        ),
        (with("owner", json!({"pid": 4_000_000})), 422, "no process"),
        (with("layers", json!(0)), 422, "layer"),
        (with("pages", json!(u32::MAX)), 422, "pages"),
        (
            with("page_bytes", json!(1_u64 << 50)),
            503,
            "there is no room",
        ),
        (with("colour", json!("red")), 422, "colour"),
        (json!({"name": "kv"}), 422, "missing field"),
    ] {
        let answer = node.daemon.post("/v1/pools", &body);
        assert_eq!(answer.status, status, "{body}: {}", answer.text());
        assert_eq!(
            answer.header("content-type"),
            Some("application/problem+json")
        );
        let detail = answer.json()["detail"].as_str().unwrap().to_owned();
        assert!(detail.contains(why), "{body}: {detail}");
    }
    let list = node.daemon.get("/v1/pools").json();
    assert_eq!(list, json!({"pools": []}));
    let prefix = format!("kvroom:{}:", node.name);
    let left = std::fs::read_dir("/dev/shm").unwrap().flatten();
    let left = left.filter(|e| e.file_name().to_string_lossy().starts_with(&prefix));
    let left: Vec<_> = left.map(|e| e.file_name()).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn one_memory_is_one_pool_by_whatever_name_or_descriptor_and_in_whichever_daemon() {
    let (one, two) = (Node::start("memory", "one"), Node::start("memory", "two"));
    let pid = one.daemon.pid();
    let made = one.register(&kv("kv"));
    let path = PathBuf::from(made["path"].as_str().unwrap());
    let link = path.with_file_name(format!("link-{}", std::process::id()));
    std::fs::hard_link(&path, &link).unwrap();
    let folder = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let mine = folder.flatten().find(|fd| {
        std::fs::read_link(fd.path())
            .is_ok_and(|to| to.to_string_lossy().starts_with("/memfd:kvroom"))
    });
    let mut memories = vec![json!({"path": link})];
    // The memory of its canary's pool, say: whichever the daemon made for itself.
    if let Some(fd) = mine {
        let fd: u32 = fd.file_name().to_str().unwrap().parse().unwrap();
        memories.push(json!({"pid": pid, "fd": fd}));
    }
    for memory in memories {
        for node in [&one, &two] {
            let mut body = kv("again");
            body["page_bytes"] = json!(8);
            body["memory"] = memory.clone();
            let refused = node.daemon.post("/v1/pools", &body);
            assert_eq!(refused.status, 409, "{memory}: {}", refused.text());
            assert_eq!(refused.json()["code"], "pool-attached");
            let detail = refused.json()["detail"].as_str().unwrap().to_owned();
            assert!(detail.contains(&format!("process {pid}")), "{detail}");
        }
    }
    let gone = one.daemon.delete("/v1/pools/kv?wait=30s");
    assert_eq!((gone.status, &gone.json()["state"]), (200, &json!("gone")));
    let mut body = kv("again");
    body["memory"] = json!({"path": link});
    two.register(&body);
    let gone = two.daemon.delete("/v1/pools/again?wait=30s");
    assert_eq!(gone.status, 200, "{}", gone.text());
    std::fs::remove_file(&link).unwrap();
}

#[test]
fn an_owner_that_is_killed_ends_its_rooms_and_its_pool_goes_when_the_pages_are_back() {
    let (prefill, decode) = (Node::start("owner", "p"), Node::start("owner", "d"));
    let mut engine = Engine::start();
    prefill.register(&kv("kv"));
    let made = decode.register(&owned("kv", &engine));
    decode.connect(&prefill);
    let started = decode.receive(7, &prefill, &[3, 5]);
    assert_eq!(started.status, 201, "{}", started.text());
    prefill.send_half(7);
    decode
        .daemon
        .until("/v1/rooms/7", |a| a.json()["state"] == "transferring");
    assert_eq!(decode.pool("kv")["leased_pages"], 2);

    let pid = engine.0.id();
    engine.kill();
    let room = decode.daemon.get("/v1/rooms/7?wait=30s").json();
    assert_eq!(room["outcome"]["code"], "PoolRetired", "{room}");
    let why = room["outcome"]["detail"].as_str().unwrap();
    assert!(why.contains(&format!("process {pid}")), "{why}");
    let room = decode
        .daemon
        .get("/v1/rooms/7?wait=30s&for=released")
        .json();
    assert_eq!(room["released"], true, "{room}");
    assert!(!room["proofs"].as_array().unwrap().is_empty(), "{room}");
    decode.daemon.until("/v1/pools/kv", |a| a.status == 404);
    assert!(!Path::new(made["path"].as_str().unwrap()).exists());
    // The other side is told, and keeps its own pool.
    let other = prefill.daemon.get("/v1/rooms/7?wait=30s").json();
    assert_eq!(other["outcome"]["code"], "PoolRetired", "{other}");
    assert_eq!(other["outcome"]["side"], "peer", "{other}");
    let state = &prefill.pool("kv")["state"];
    assert_eq!(state, "serving");

    // The next engine registers it anew, while the session goes on, and receives into it.
    let next = Engine::start();
    decode.register(&owned("kv", &next));
    assert_eq!(decode.receive(8, &prefill, &[3, 5]).status, 201);
    prefill.send_half(8);
    let chunk = json!({"tokens": [16, 32], "pool": "kv", "pages": [1]});
    let pushed = prefill.daemon.post("/v1/rooms/8/chunks", &chunk);
    assert_eq!(pushed.status, 202, "{}", pushed.text());
    let finished = prefill
        .daemon
        .post("/v1/rooms/8/finish", &json!({"total": 32}));
    assert_eq!(finished.status, 202, "{}", finished.text());
    let room = decode.daemon.get("/v1/rooms/8?wait=30s").json();
    assert_eq!(room["outcome"], json!({"end": "done"}), "{room}");
}

#[test]
fn a_pool_that_is_retired_lets_its_rooms_end_first() {
    let (prefill, decode) = (Node::start("retired", "p"), Node::start("retired", "d"));
    prefill.register(&kv("kv"));
    decode.register(&kv("kv"));
    decode.connect(&prefill);
    assert_eq!(decode.receive(1, &prefill, &[3, 5]).status, 201);
    prefill.send_half(1);
    let retired = decode.daemon.delete("/v1/pools/kv?wait=100ms");
    assert_eq!(retired.status, 202, "{}", retired.text());
    let retired = retired.json();
    assert_eq!(retired["state"], "retiring");
    let why = retired["why"].as_str().unwrap();
    assert!(why.contains("2 leased pages"), "{why}");
    let refused = decode.receive(2, &prefill, &[0]);
    assert!(refused.status >= 400, "{}", refused.text());

    let chunk = json!({"tokens": [16, 32], "pool": "kv", "pages": [1]});
    let pushed = prefill.daemon.post("/v1/rooms/1/chunks", &chunk);
    assert_eq!(pushed.status, 202, "{}", pushed.text());
    prefill
        .daemon
        .post("/v1/rooms/1/finish", &json!({"total": 32}));
    let room = decode.daemon.get("/v1/rooms/1?wait=30s").json();
    assert_eq!(room["outcome"], json!({"end": "done"}), "{room}");
    decode.daemon.until("/v1/pools/kv", |a| a.status == 404);
}

#[test]
fn a_daemon_that_restarts_keeps_pages_from_everybody_until_their_writer_is_gone() {
    let mut prefill = Node::start("restart", "p");
    let mut decode = Node::start("restart", "d");
    // Whoever has a pool by then shares memory; this one's gates are known to its next life.
    prefill.register(&kv("kv"));
    decode.register(&kv("first"));
    decode.connect(&prefill);
    // This pool comes later: of its writers only their process is known.
    decode.register(&kv("kv"));
    assert_eq!(decode.receive(1, &prefill, &[3, 5]).status, 201);
    prefill.send_half(1);
    decode
        .daemon
        .until("/v1/rooms/1", |a| a.json()["state"] == "transferring");
    let writer = prefill.daemon.pid();
    decode.restart();

    // The same request, to the next daemon.
    let again = decode.register(&kv("kv"));
    assert_eq!(
        again["quarantined_pages"][0]["pages"],
        json!([3, 5]),
        "{again}"
    );
    assert_eq!(decode.daemon.get("/v1/rooms/1").status, 404);
    decode.connect(&prefill);
    let held = decode.receive(2, &prefill, &[5]);
    assert_eq!(held.status, 409, "{}", held.text());
    let free = decode.receive(3, &prefill, &[0, 1]);
    assert_eq!(free.status, 201, "{}", free.text());
    // Nor does it go with pages that somebody may still write.
    let retired = decode.daemon.delete("/v1/pools/kv?wait=100ms&abort=true");
    assert_eq!(retired.status, 202, "{}", retired.text());

    prefill.restart();
    assert_ne!(prefill.daemon.pid(), writer);
    decode.daemon.until("/v1/pools/kv", |a| a.status == 404);
    decode.register(&kv("kv"));
    assert_eq!(decode.pool("kv")["quarantined_pages"], json!([]));
}

/// Runs an example; false if there is no numpy for it, which is said aloud.
fn python(script: &str) -> bool {
    let program = std::env::var("KVROOM_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let numpy = Command::new(&program).args(["-c", "import numpy"]).output();
    if !numpy.is_ok_and(|n| n.status.success()) {
        let required = std::env::var("KVROOM_REQUIRE_ALL").is_ok_and(|v| v == "1");
        let what = format!(
            "{script}: not run, since {program} has no numpy (KVROOM_PYTHON names another one)"
        );
        assert!(!required, "{what}");
        eprintln!("SKIPPED {what}");
        return false;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut child = Command::new(program)
        .arg(root.join("examples/python").join(script))
        .env("KVROOM", env!("CARGO_BIN_EXE_kvroom"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let begun = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begun.elapsed() > Duration::from_secs(120) {
            let _ = child.kill();
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let output = child.wait_with_output().unwrap();
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(
        output.status.success(),
        "{script}: {}\n{out}\n{err}",
        output.status
    );
    eprintln!("{out}");
    true
}

#[test]
fn two_python_engines_move_pages_and_have_them_back_after_an_abort() {
    python("two_engines.py");
}

#[test]
fn a_python_scheduler_learns_of_its_rooms_from_the_status_page_alone() {
    python("status_page.py");
}
