//! Pools on devices: an engine's memory by its CUDA IPC handle over HTTP, and the daemon's own by its
//! configuration (`configured`), over a stand-in for the driver.
#![cfg(feature = "cuda")]
#![allow(
    clippy::unwrap_used,
    reason = "helpers of tests fail by panicking, as tests do"
)]

#[path = "daemon_devices/configured.rs"]
mod configured;
#[path = "common/daemon.rs"]
mod daemon;
#[path = "common/standin.rs"]
mod standin;

use daemon::{Daemon, Left, PATIENCE};
use kvroom::actors::copy::device::{Priority, Stream};
use kvroom::device::{Device, DeviceOptions, Ready, cuda};
use kvroom::{Order, Pool, PoolKind, PoolLayout, ReadLease};
use serde_json::{Value, json};
use standin::{Folder, Orders, in_child};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

const LAYERS: u32 = 2;
const PAGES: u32 = 8;
const PAGE: u64 = 4096;
const BYTES: u64 = LAYERS as u64 * PAGES as u64 * PAGE;

fn layout() -> PoolLayout {
    PoolLayout {
        name: "kv".into(),
        kind: PoolKind::Kv,
        order: Order::LayersFirst,
        layers: LAYERS,
        pages: PAGES,
        page_bytes: PAGE,
        page_tokens: 16,
    }
}

/// An engine in this process, with memory on a device that it shares.
struct Engine {
    device: Device,
    pool: Pool,
}

impl Engine {
    fn new(ordinal: u32) -> Engine {
        let context = cuda::open(ordinal).unwrap();
        let device = Device::start(context, DeviceOptions::default()).unwrap();
        let pool = Pool::on_device(layout(), &device).unwrap();
        Engine { device, pool }
    }

    /// What every byte of a page is.
    fn cell(layer: u32, page: u32) -> Vec<u8> {
        let byte = |i: u64| (u64::from(layer) * 101 + u64::from(page) * 31 + i * 7) as u8;
        (0..PAGE).map(byte).collect()
    }

    /// Writes pages, and gives the lease that keeps them.
    fn fills(&self, pages: &[u32]) -> ReadLease {
        let mut lease = self.pool.lease_write(pages).unwrap();
        for layer in 0..LAYERS {
            for (i, page) in pages.iter().enumerate() {
                lease.store(layer, i, &Engine::cell(layer, *page)).unwrap();
            }
        }
        lease.into_read()
    }

    /// The request that registers it.
    fn request(&self, owner: u32) -> Value {
        let memory = self.pool.device_memory().unwrap().export().unwrap();
        json!({
            "name": "kv", "layers": LAYERS, "pages": PAGES, "page_bytes": PAGE, "page_tokens": 16,
            "memory": {"cuda": {
                "device": 0, "handle": hex(&memory.handle), "offset": memory.offset, "bytes": memory.bytes,
            }},
            "owner": {"pid": owner},
        })
    }

    fn own_request(&self) -> Value {
        self.request(std::process::id())
    }
}

/// Work of the engine that has not come to its end: the event is behind it.
struct Held {
    go: mpsc::Sender<()>,
    ready: Ready,
    _stream: Stream,
}

impl Held {
    fn new(engine: &Engine) -> Held {
        let context = engine.device.context();
        let stream = context.stream(Priority::Usual).unwrap();
        let (go, told) = mpsc::channel::<()>();
        let flight = stream.queue((), move |_, q| {
            q.call(move || {
                let _ = told.recv_timeout(PATIENCE);
            })
        });
        drop(flight.unwrap());
        let ready = context.ready_event(true).unwrap();
        stream.record(&ready).unwrap();
        Held {
            go,
            ready,
            _stream: stream,
        }
    }

    fn handle(&self) -> String {
        hex(&self.ready.export().unwrap())
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A process that does nothing until it is killed.
struct Process(Child);

impl Process {
    fn start() -> Process {
        let sleep = Command::new("sleep")
            .arg("600")
            .stdin(Stdio::null())
            .spawn();
        Process(sleep.unwrap())
    }

    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn named(test: &str, role: &str) -> String {
    format!("{role}-{test}-{}", std::process::id())
}

/// A daemon that finds this driver, and follows these orders.
fn start(name: &str, driver: &Path, orders: Option<&Orders>, more: &[&str]) -> Daemon {
    let mut args = vec!["--name", name, "--node-listen", "tcp://127.0.0.1:0"];
    args.extend(more);
    Daemon::start_with(&args, |command| {
        command.env("LD_LIBRARY_PATH", driver);
        if let Some(orders) = orders {
            command.env("STANDIN_ORDERS", orders.folder());
        }
    })
}

const MAY: [&str; 2] = ["--devices-ordinals", "0,1"];

fn connect(from: &Daemon, to: &Daemon) {
    let answer = from.post("/v1/peers", &json!({"address": to.node_address()}));
    assert!(answer.status < 300, "{}", answer.text());
    for daemon in [from, to] {
        daemon.until("/v1/peers", |answer| {
            let peers = answer.json();
            let mut peers = peers["peers"].as_array().unwrap().iter();
            peers.any(|peer| peer["state"] == "up")
        });
    }
}

/// The value of a metric of device 0.
fn metric(daemon: &Daemon, name: &str) -> Option<u64> {
    let text = daemon.get("/metrics").text();
    let start = format!("kvroom_{name}{{device=\"0\"}} ");
    let line = text.lines().find_map(|line| line.strip_prefix(&start));
    line.map(|value| value.parse().unwrap())
}

/// Whether a copy is queued on the device, behind whatever it waits for.
fn is_queued(daemon: &Daemon) -> bool {
    metric(daemon, "device_queued_pieces") > Some(0)
}

fn until(what: &str, done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A room from the first daemon's pool to the second one's, with its first page pushed.
fn room(p: &Daemon, d: &Daemon, prefill: &str, id: u64, ready: Option<&str>) {
    let receive = json!({
        "role": "receive", "id": id, "from": [prefill], "pages": [{"pool": "kv", "pages": [5, 6]}],
    });
    d.post("/v1/rooms", &receive).expect(201);
    p.post("/v1/rooms", &json!({"role": "send", "id": id}))
        .expect(201);
    let mut chunk = json!({"tokens": [0, 16], "pool": "kv", "pages": [2]});
    if let Some(ready) = ready {
        chunk["ready"] = ready.into();
    }
    p.post(&format!("/v1/rooms/{id}/chunks"), &chunk)
        .expect(202);
}

/// Two daemons that share memory; then the first has the engine's pool, and the second one of its own.
struct Pair {
    p: Daemon,
    d: Daemon,
    prefill: String,
    path: String,
    _left: [String; 2],
}

impl Pair {
    fn new(test: &str, driver: &Path, orders: Option<&Orders>, request: &Value) -> Pair {
        let (prefill, decode) = (named(test, "prefill"), named(test, "decode"));
        let p = start(&prefill, driver, orders, &MAY);
        let d = start(&decode, driver, None, &[]);
        let own = json!({
            "name": "kv", "layers": LAYERS, "pages": PAGES, "page_bytes": PAGE, "page_tokens": 16,
            "memory": {"create": true},
        });
        let view = d.post("/v1/pools", &own).expect(201);
        connect(&d, &p);
        p.post("/v1/pools", request).expect(201);
        Pair {
            p,
            d,
            path: view["path"].as_str().unwrap().to_owned(),
            _left: [prefill.clone(), decode],
            prefill,
        }
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        for name in &self._left {
            drop(Left(name));
        }
    }
}

#[test]
fn pages_of_an_engine_on_a_device_come_to_another_daemon_when_its_event_has_fired() {
    let test = "pages_of_an_engine_on_a_device_come_to_another_daemon_when_its_event_has_fired";
    in_child(test, |driver| {
        let engine = Engine::new(0);
        let pair = Pair::new("moves", driver, None, &engine.own_request());
        let Pair { p, d, .. } = &pair;
        let view = p.get("/v1/pools/kv").expect(200);
        assert_eq!(view["backing"], "cuda");
        assert_eq!(view["device"]["ordinal"], 0);
        let digits = view["device"]["uuid"].as_str().unwrap().replace('-', "");
        let uuid = engine.device.context().identity().uuid;
        assert_eq!(digits, format!("GPU{}", hex(&uuid)));
        assert_eq!(view["device"]["lost"], Value::Null);
        let held = Held::new(&engine);
        room(p, d, &pair.prefill, 1, Some(&held.handle()));
        until("the copy waits for the event", || is_queued(p));
        assert_eq!(metric(p, "device_pieces_total"), Some(0));
        // Only now is there what the event stands for.
        let first = engine.fills(&[2]);
        let second = engine.fills(&[7]);
        held.go.send(()).unwrap();
        let chunk = json!({"tokens": [16, 32], "pool": "kv", "pages": [7]});
        p.post("/v1/rooms/1/chunks", &chunk).expect(202);
        let finish = p.post("/v1/rooms/1/finish", &json!({"total": 32}));
        finish.expect(202);
        for daemon in [p, d] {
            let seen = daemon.until("/v1/rooms/1", |a| a.json()["released"] == true);
            assert_eq!(seen.json()["outcome"]["end"], "done", "{}", seen.text());
        }
        drop((first, second));
        let bytes = std::fs::read(&pair.path).unwrap();
        for layer in 0..LAYERS {
            for (to, from) in [(5, 2), (6, 7)] {
                let at = (u64::from(layer * PAGES + to) * PAGE) as usize;
                let cell = &bytes[at..at + PAGE as usize];
                assert!(
                    cell == Engine::cell(layer, from),
                    "layer {layer}, page {to}"
                );
            }
        }
        assert_eq!(metric(p, "device_copied_bytes_total"), Some(4 * PAGE));
        assert_eq!(metric(p, "device_lost"), Some(0));
        p.delete("/v1/pools/kv?wait=30s").expect(200);
    });
}

#[test]
fn what_is_wrong_with_a_pool_on_a_device_is_said_by_whose_fault_it_is() {
    let test = "what_is_wrong_with_a_pool_on_a_device_is_said_by_whose_fault_it_is";
    in_child(test, |driver| {
        let engine = Engine::new(0);
        let name = named("wrong", "d");
        let daemon = start(&name, driver, None, &MAY);
        type Change = fn(&mut Value);
        let wrong: [(Change, &[&str]); 11] = [
            (
                |r| r["memory"]["cuda"]["device"] = 7.into(),
                &["device 7", "devices.ordinals"],
            ),
            (
                |r| {
                    r["memory"]["cuda"]["device"] =
                        "GPU-00000000-0000-0000-0000-000000000000".into()
                },
                &[
                    "no device GPU-00000000",
                    "0: GPU-5a5a5a5a",
                    "CUDA_VISIBLE_DEVICES",
                ],
            ),
            (
                |r| r["memory"]["cuda"]["device"] = "first".into(),
                &["nvidia-smi -L"],
            ),
            (
                |r| r["memory"]["cuda"]["handle"] = "00".repeat(64).into(),
                &["handle", "driver does not open"],
            ),
            (
                |r| r["memory"]["cuda"]["handle"] = "00".into(),
                &["128 hexadecimal digits"],
            ),
            (
                |r| r["memory"]["cuda"]["bytes"] = (BYTES - 1).into(),
                &["the layout needs"],
            ),
            (
                |r| r["memory"]["cuda"]["offset"] = 1.into(),
                &["not within the allocation"],
            ),
            (
                |r| r["memory"]["cuda"]["offset"] = u64::MAX.into(),
                &["any allocation"],
            ),
            (|r| r["owner"] = Value::Null, &["owner:", "pid"]),
            (
                |r| r["owner"]["pid"] = u32::MAX.into(),
                &["owner:", "no process"],
            ),
            (|r| r["memory"]["create"] = true.into(), &["memory: one of"]),
        ];
        for (change, says) in wrong {
            let mut request = engine.own_request();
            change(&mut request);
            let why = daemon
                .post("/v1/pools", &request)
                .expect_problem(422, "bad-pool");
            assert!(
                says.iter().all(|word| why.contains(word)),
                "{request}: {why}"
            );
        }
        // Nothing of them is left; and by its UUID it is the same device.
        let mut request = engine.own_request();
        request["memory"]["cuda"]["device"] = "GPU-5a5a5a5a-5a5a-5a5a-5a5a-5a5a5a5a5a5a".into();
        daemon.post("/v1/pools", &request).expect(201);
        daemon.post("/v1/pools", &request).expect(200);
        request["name"] = "more".into();
        let why = daemon
            .post("/v1/pools", &request)
            .expect_problem(409, "pool-attached");
        assert!(why.contains("\"kv\""), "{why}");
        // An event is the driver's, and of a device.
        daemon
            .post("/v1/rooms", &json!({"role": "send", "id": 1}))
            .expect(201);
        let mut chunk =
            json!({"tokens": [0, 16], "pool": "kv", "pages": [0], "ready": "00".repeat(64)});
        let push = |chunk: &Value| daemon.post("/v1/rooms/1/chunks", chunk);
        let why = push(&chunk).expect_problem(422, "unusable-request");
        assert!(why.contains("does not open the event"), "{why}");
        chunk["ready"] = "00".into();
        let why = push(&chunk).expect_problem(422, "unusable-request");
        assert!(why.contains("128 hexadecimal digits"), "{why}");
        drop(Left(&name));
    });
}

#[test]
fn a_daemon_that_may_use_no_device_says_by_which_key_it_may() {
    let test = "a_daemon_that_may_use_no_device_says_by_which_key_it_may";
    in_child(test, |driver| {
        let engine = Engine::new(0);
        let name = named("none", "d");
        let daemon = start(&name, driver, None, &[]);
        let mut request = engine.own_request();
        for device in [json!(0), json!("GPU-5a5a5a5a-5a5a-5a5a-5a5a-5a5a5a5a5a5a")] {
            request["memory"]["cuda"]["device"] = device;
            let why = daemon
                .post("/v1/pools", &request)
                .expect_problem(422, "bad-pool");
            assert!(why.contains("devices.ordinals"), "{why}");
        }
        drop(Left(&name));
    });
}

#[test]
fn without_a_driver_or_with_a_broken_one_the_daemon_serves_all_else_and_says_why_not_this() {
    let request = json!({
        "name": "kv", "layers": LAYERS, "pages": PAGES, "page_bytes": PAGE, "page_tokens": 16,
        "memory": {"cuda": {"device": 0, "handle": "00".repeat(64), "bytes": BYTES}},
        "owner": {"pid": std::process::id()},
    });
    let (none, broken) = (
        Folder::without_driver("none"),
        Folder::with_driver("broken"),
    );
    let orders = Orders::new("broken");
    orders.give("fail-cuInit", 803);
    let drivers = [
        ("absent", &none, "libcuda.so.1 could not be opened"),
        ("broken", &broken, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"),
    ];
    for (test, driver, says) in drivers {
        let name = named(test, "d");
        let daemon = start(&name, &driver.0, Some(&orders), &MAY);
        let mut by_uuid = request.clone();
        by_uuid["memory"]["cuda"]["device"] = "GPU-5a5a5a5a-5a5a-5a5a-5a5a-5a5a5a5a5a5a".into();
        for request in [&request, &by_uuid] {
            let refused = daemon.post("/v1/pools", request);
            let why = refused.expect_problem(503, "device-unavailable");
            assert!(why.contains(says), "{why}");
        }
        daemon.until("/readyz", |answer| answer.status == 200);
        assert_eq!(daemon.get("/v1/pools").expect(200)["pools"], json!([]));
        drop(Left(&name));
    }
}

#[test]
fn a_driver_that_hangs_holds_up_its_own_requests_for_a_bounded_time_and_no_others() {
    let test = "a_driver_that_hangs_holds_up_its_own_requests_for_a_bounded_time_and_no_others";
    in_child(test, |driver| {
        let (engine, orders) = (Engine::new(0), Orders::new("hangs"));
        let name = named("hangs", "d");
        let bound = ["--devices-driver-timeout", "300ms"];
        let more: Vec<&str> = MAY.into_iter().chain(bound).collect();
        let mut daemon = start(&name, driver, Some(&orders), &more);
        orders.give("hang-cuIpcOpenMemHandle", 1);
        let request = engine.own_request();
        for _ in 0..3 {
            let silent = daemon.post("/v1/pools", &request);
            let why = silent.expect_problem(503, "device-unavailable");
            assert!(
                why.contains("devices.driver_timeout") && why.contains("device 0"),
                "{why}"
            );
        }
        let other = json!({
            "name": "other", "layers": 1, "pages": 1, "page_bytes": PAGE, "page_tokens": 16,
            "memory": {"create": true},
        });
        daemon.post("/v1/pools", &other).expect(201);
        let list = daemon.get("/v1/pools").expect(200);
        assert_eq!(list["pools"].as_array().unwrap().len(), 1, "{list}");
        // When it goes on, the same request works.
        orders.take_back("hang-cuIpcOpenMemHandle");
        daemon.until("/readyz", |answer| answer.status == 200);
        let start = Instant::now();
        let last = loop {
            let answer = daemon.post("/v1/pools", &request);
            if answer.status != 503 || start.elapsed() > PATIENCE {
                break answer;
            }
        };
        last.expect(201);
        // Nor does one that does not let go of memory: the pool is gone, and the daemon does all else.
        orders.give("hang-cuIpcCloseMemHandle", 1);
        daemon.delete("/v1/pools/kv?wait=30s").expect(200);
        daemon.delete("/v1/pools/other?wait=30s").expect(200);
        let silent = daemon.post("/v1/pools", &request);
        silent.expect_problem(503, "device-unavailable");
        orders.take_back("hang-cuIpcCloseMemHandle");
        until("the driver is asked again", || {
            daemon.post("/v1/pools", &request).status == 201
        });
        // And the end of the daemon asks no driver for anything.
        orders.give("hang-cuIpcCloseMemHandle", 1);
        let (status, last) = daemon.stop();
        assert!(status.success(), "{status} {last:?}");
        drop(Left(&name));
    });
}

#[test]
fn a_lost_device_ends_its_rooms_and_makes_the_node_unready_with_its_number() {
    let test = "a_lost_device_ends_its_rooms_and_makes_the_node_unready_with_its_number";
    in_child(test, |driver| {
        let (engine, orders) = (Engine::new(0), Orders::new("lost"));
        let pair = Pair::new("lost", driver, Some(&orders), &engine.own_request());
        let Pair { p, d, .. } = &pair;
        p.until("/readyz", |answer| answer.status == 200);
        let held = Held::new(&engine);
        room(p, d, &pair.prefill, 1, Some(&held.handle()));
        until("the copy waits", || is_queued(p));
        orders.give("lose-0", 700);
        let seen = p.until("/v1/rooms/1", |a| a.json()["outcome"].is_object());
        let outcome = seen.json()["outcome"].clone();
        assert_eq!(outcome["code"], "DeviceLost", "{outcome}");
        let seen = d.until("/v1/rooms/1", |a| a.json()["released"] == true);
        assert_eq!(
            seen.json()["outcome"]["code"],
            "DeviceLost",
            "{}",
            seen.text()
        );
        let ready = p.until("/readyz", |answer| answer.status == 503).json();
        let checks = ready["checks"].as_array().unwrap();
        let red: Vec<_> = checks.iter().filter(|c| c["ok"] == false).collect();
        assert_eq!(red.len(), 1, "{ready}");
        assert_eq!(red[0]["name"], "device 0");
        let why = red[0]["why"].as_str().unwrap();
        assert!(why.contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{why}");
        assert!(
            red[0]["do"]
                .as_str()
                .unwrap()
                .contains("restart the daemon")
        );
        assert_eq!(metric(p, "device_lost"), Some(1));
        let view = p.get("/v1/pools/kv").expect(200);
        assert!(
            view["device"]["lost"]
                .as_str()
                .unwrap()
                .contains("device 0 is lost")
        );
        p.post("/v1/rooms", &json!({"role": "send", "id": 2}))
            .expect(201);
        let chunk = json!({"tokens": [0, 16], "pool": "kv", "pages": [0]});
        let refused = p.post("/v1/rooms/2/chunks", &chunk);
        let why = refused.expect_problem(503, "device-lost");
        assert!(why.contains("device 0"), "{why}");
        // Another daemon of the host has nothing to do with it.
        d.until("/readyz", |answer| answer.status == 200);
        assert_eq!(p.get("/livez").status, 200);
        held.go.send(()).unwrap();
    });
}

#[test]
fn when_the_owner_of_memory_on_a_device_dies_its_rooms_are_aborted_and_it_is_let_go_of() {
    let test =
        "when_the_owner_of_memory_on_a_device_dies_its_rooms_are_aborted_and_it_is_let_go_of";
    in_child(test, |driver| {
        let engine = Engine::new(0);
        let mut owner = Process::start();
        let pair = Pair::new("owner", driver, None, &engine.request(owner.0.id()));
        let Pair { p, d, .. } = &pair;
        let mapped = || {
            let maps = std::fs::read_to_string(format!("/proc/{}/maps", p.pid())).unwrap();
            maps.lines()
                .filter(|line| line.contains("memfd:standin"))
                .count()
        };
        let there = mapped();
        let held = Held::new(&engine);
        room(p, d, &pair.prefill, 1, Some(&held.handle()));
        until("the copy waits", || is_queued(p));
        owner.kill();
        let seen = p.until("/v1/rooms/1", |a| a.json()["outcome"].is_object());
        let outcome = seen.json()["outcome"].clone();
        assert_eq!(outcome["code"], "PoolRetired", "{outcome}");
        assert!(
            outcome["detail"]
                .as_str()
                .unwrap()
                .contains(&owner.0.id().to_string())
        );
        d.until("/v1/rooms/1", |a| a.json()["released"] == true);
        held.go.send(()).unwrap();
        p.until("/v1/rooms/1", |a| a.json()["released"] == true);
        p.until("/v1/pools/kv", |answer| answer.status == 404);
        until("the memory is closed", || mapped() < there);
        p.until("/readyz", |answer| answer.status == 200);
    });
}
