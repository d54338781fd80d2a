//! What the tests of health have in common: wedges that are planted in a daemon, and rooms that run.
//!
//! ```text
//!   Wedges ── file lane-0 ──▶ a daemon whose lane 0 stands still   (builds of tests alone know this)
//!   Load ── rooms, some aborted ──▶ prefill ══▶ decode
//! ```
#![allow(dead_code)] // Each test file uses a part of it.

use crate::daemon::{Answer, Client, Daemon, PATIENCE};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A folder of its own, removed when dropped.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new() -> Folder {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("kvroom-health-{}-{n}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Parts of a daemon that stand still while this says so.
pub(crate) struct Wedges(Folder);

impl Wedges {
    /// None, said aloud, where none can be planted: without debug assertions no build has them.
    pub(crate) fn new() -> Option<Wedges> {
        if cfg!(debug_assertions) {
            return Some(Wedges(Folder::new()));
        }
        let why = "a wedge can be planted only in a build with debug assertions";
        let required = std::env::var_os("KVROOM_REQUIRE_ALL").is_some_and(|v| v == "1");
        assert!(!required, "{why}, and KVROOM_REQUIRE_ALL is set");
        eprintln!("SKIPPED: {why}");
        None
    }

    /// For the command of a daemon.
    pub(crate) fn reach(&self, command: &mut Command) {
        command.env("KVROOM_PLANT_WEDGE", &self.0.0);
    }

    pub(crate) fn plant(&self, part: &str) -> Instant {
        std::fs::write(self.0.0.join(part), "").unwrap();
        Instant::now()
    }

    /// That part panics.
    pub(crate) fn plant_panic(&self, part: &str) {
        let new = self.0.0.join("new");
        std::fs::write(&new, "panic").unwrap();
        std::fs::rename(new, self.0.0.join(part)).unwrap();
    }

    /// Waits until that part stands still.
    pub(crate) fn held(&self, part: &str) {
        let (held, start) = (self.0.0.join(part).with_extension("held"), Instant::now());
        while !held.exists() {
            assert!(start.elapsed() < PATIENCE, "{part} does not stand still");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    pub(crate) fn remove(&self, part: &str) {
        std::fs::remove_file(self.0.0.join(part)).unwrap();
    }
}

/// The checks of an answer that failed, by name.
pub(crate) fn red(answer: &Answer) -> Vec<String> {
    let body = answer.json();
    let checks = body["checks"].as_array().unwrap();
    let failed = checks.iter().filter(|c| c["ok"] == false);
    let names: Vec<String> = failed
        .map(|c| c["name"].as_str().unwrap().to_owned())
        .collect();
    let ok = names.is_empty();
    assert_eq!(body["ok"], ok, "{body}");
    assert_eq!(answer.status, if ok { 200 } else { 503 }, "{body}");
    names
}

/// A check, by its name.
pub(crate) fn check(answer: &Answer, name: &str) -> Value {
    let body = answer.json();
    let checks = body["checks"].as_array().unwrap();
    let found = checks.iter().find(|c| c["name"] == name);
    found.unwrap_or_else(|| panic!("{name}: {body}")).clone()
}

pub(crate) fn ready(daemon: &Daemon) -> Answer {
    daemon.until("/readyz", |answer| red(answer).is_empty())
}

/// Waits until this check fails, which must be so at most so long after the wedge was planted, and
/// looks at what it says. Meanwhile the process is alive.
pub(crate) fn red_within(daemon: &Daemon, name: &str, planted: Instant, bound: Duration) -> Answer {
    let now_ms = || {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.unwrap().as_millis() as u64
    };
    let begun = now_ms() - planted.elapsed().as_millis() as u64;
    let answer = daemon.until("/readyz", |answer| {
        assert_eq!(daemon.get("/livez").status, 200);
        red(answer).iter().any(|n| n == name)
    });
    let took = planted.elapsed();
    eprintln!("{name} is red after {took:.1?}");
    assert!(took <= bound, "{name} was red after {took:?}");
    let check = check(&answer, name);
    let since = check["since_ms"].as_u64().unwrap();
    assert!((begun..=now_ms()).contains(&since), "{check} {begun}");
    for text in ["why", "do"] {
        assert!(check[text].as_str().unwrap().len() > 10, "{check}");
    }
    answer
}

/// Starts a daemon with a pool of so many pages.
pub(crate) fn node(name: &str, pages: u32, args: &[&str], wedges: Option<&Wedges>) -> Daemon {
    let pool =
        format!("name=kv,layers=2,pages={pages},page_bytes=64KiB,page_tokens=16,backing=shared");
    let mut all = vec!["--name", name, "--pool", &pool];
    all.extend(["--node-listen", "tcp://127.0.0.1:0"]);
    all.extend(args);
    Daemon::start_with(&all, |command| {
        if let Some(wedges) = wedges {
            wedges.reach(command);
        }
    })
}

pub(crate) fn join(from: &Daemon, to: &Daemon) {
    let peer = json!({"address": to.node_address()});
    from.post("/v1/peers", &peer).expect(201);
}

/// Starts a room of these pages on both, with its bytes pushed.
pub(crate) fn start_room(prefill: &Daemon, decode: &Daemon, id: u64, pages: &[u32]) {
    let (mut p, mut d) = (prefill.client(), decode.client());
    let peer = prefill.ready["name"].as_str().unwrap();
    start(&mut p, &mut d, peer, id, pages).unwrap();
}

/// An error is the answer that was not as it is for a new room.
fn start(p: &mut Client, d: &mut Client, peer: &str, id: u64, pages: &[u32]) -> Result<(), Answer> {
    let post = |client: &mut Client, path: &str, body: &Value, wanted| {
        let answer = client.send("POST", path, Some(body));
        if answer.status == wanted {
            Ok(())
        } else {
            Err(answer)
        }
    };
    let tokens = 16 * pages.len();
    let pages = json!({"pool": "kv", "pages": pages});
    let receive = json!({"role": "receive", "id": id, "from": [peer], "pages": [pages]});
    post(d, "/v1/rooms", &receive, 201)?;
    post(p, "/v1/rooms", &json!({"role": "send", "id": id}), 201)?;
    let mut chunk = pages;
    chunk["tokens"] = json!([0, tokens]);
    post(p, &format!("/v1/rooms/{id}/chunks"), &chunk, 202)?;
    let finish = json!({"total": tokens});
    post(p, &format!("/v1/rooms/{id}/finish"), &finish, 202)
}

/// Rooms that run between two daemons until they are told to stop.
pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    over: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    /// So many at a time, each with so many pages of its own. One in two is aborted, if `aborts`.
    pub(crate) fn start(
        prefill: &Daemon,
        decode: &Daemon,
        at_once: u32,
        pages: u32,
        aborts: bool,
    ) -> Load {
        let (stop, over) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicU64::new(0)),
        );
        let peer = prefill.ready["name"].as_str().unwrap().to_owned();
        let threads = (0..at_once).map(|n| {
            let (mut p, mut d) = (prefill.client(), decode.client());
            let (stop, over, peer) = (Arc::clone(&stop), Arc::clone(&over), peer.clone());
            std::thread::spawn(move || {
                let mine: Vec<u32> = (n * pages..(n + 1) * pages).collect();
                let mut id = u64::from(n) << 32;
                while !stop.load(Ordering::Relaxed) {
                    id += 1;
                    let started = start(&mut p, &mut d, &peer, id, &mine);
                    let abort = started.is_err() || (aborts && id % 2 == 0);
                    end(&mut p, &mut d, id, abort, &stop);
                    over.fetch_add(1, Ordering::Relaxed);
                }
            })
        });
        Load {
            threads: threads.collect(),
            stop,
            over,
        }
    }

    /// Rooms that are over.
    pub(crate) fn over(&self) -> u64 {
        self.over.load(Ordering::Relaxed)
    }

    /// Waits until so many more rooms are over.
    pub(crate) fn goes_on(&self, rooms: u64) {
        let (begin, start) = (self.over(), Instant::now());
        while self.over() < begin + rooms {
            assert!(start.elapsed() < PATIENCE, "no rooms end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().unwrap();
        }
    }
}

/// Until both ends of a room have their memory back, or nobody wants to know any more.
fn end(p: &mut Client, d: &mut Client, id: u64, abort: bool, stop: &AtomicBool) {
    for (client, role) in [(d, "receive"), (p, "send")] {
        let path = format!("/v1/rooms/{id}?role={role}");
        if abort {
            client.send("DELETE", &path, None);
        }
        loop {
            let shown = client.send("GET", &format!("{path}&wait=1s&for=released"), None);
            let gone = shown.status != 200 || shown.json()["released"] == true;
            if gone || stop.load(Ordering::Relaxed) {
                break;
            }
        }
    }
}
