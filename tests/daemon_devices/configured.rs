//! Pools of the configuration: memory that the daemon allocates on a device, and engines open.

use super::*;
use crate::daemon::{kvroom, remove_all};
use kvroom::device::IpcMemory;
use std::process::ExitStatus;

const UUID: &str = "GPU-5a5a5a5a-5a5a-5a5a-5a5a-5a5a5a5a5a5a";
/// What a pool of the daemon's own takes of a device, at least: blocks that it shares with nobody.
const BLOCK: u64 = 2 << 20;

/// A pool, as one word.
fn word(name: &str, more: &str) -> String {
    format!("name={name},layers={LAYERS},pages={PAGES},page_bytes={PAGE},page_tokens=16,{more}")
}

fn start_with(name: &str, driver: &Path, orders: Option<&Orders>, pools: &[String]) -> Daemon {
    let pools = pools.iter().flat_map(|word| ["--pool", word.as_str()]);
    let more: Vec<&str> = MAY.into_iter().chain(pools).collect();
    start(name, driver, orders, &more)
}

/// Opens what a daemon has allocated, as an engine does.
fn opened(daemon: &Daemon, device: &Device) -> Pool {
    let view = daemon.get("/v1/pools/kv").expect(200);
    let digits = view["cuda"]["handle"].as_str().unwrap();
    let byte = |i: usize| u8::from_str_radix(&digits[2 * i..2 * i + 2], 16).unwrap();
    assert_eq!(digits.len(), 128);
    let memory = IpcMemory {
        handle: std::array::from_fn(byte),
        offset: view["cuda"]["offset"].as_u64().unwrap(),
        bytes: view["cuda"]["bytes"].as_u64().unwrap(),
    };
    assert_eq!(memory.bytes, BYTES);
    let memory = device.context().import(&memory).unwrap();
    Pool::in_device_memory(layout(), device, memory).unwrap()
}

fn device() -> Device {
    let context = cuda::open(0).unwrap();
    Device::start(context, DeviceOptions::default()).unwrap()
}

/// Pages as an engine finds them.
fn cells(pool: &Pool, pages: &[u32]) -> Vec<Vec<u8>> {
    let lease = pool.lease_read(pages).unwrap();
    let each = |layer, at| {
        let mut bytes = vec![0; PAGE as usize];
        lease.load(layer, at, &mut bytes).unwrap();
        bytes
    };
    let all = (0..LAYERS).flat_map(|layer| (0..pages.len()).map(move |at| (layer, at)));
    all.map(|(layer, at)| each(layer, at)).collect()
}

/// Shared mappings of the stand-in in a daemon: what there is of devices' memory.
fn mapped(daemon: &Daemon) -> usize {
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", daemon.pid())).unwrap();
    maps.lines()
        .filter(|line| line.contains("memfd:standin"))
        .count()
}

#[test]
fn an_engine_opens_a_pool_of_the_configuration_by_its_handle_and_its_pages_go_to_another_daemons() {
    let test = "configured::an_engine_opens_a_pool_of_the_configuration_by_its_handle_and_its_pages_go_to_another_daemons";
    in_child(test, |driver| {
        let (prefill, decode) = (named("opens", "prefill"), named("opens", "decode"));
        let p = start_with(&prefill, driver, None, &[word("kv", "device=0")]);
        let by_uuid = word("kv", &format!("device={UUID}"));
        let d = start_with(&decode, driver, None, &[by_uuid]);
        connect(&d, &p);
        for daemon in [&p, &d] {
            let view = daemon.get("/v1/pools/kv").expect(200);
            assert_eq!(view["state"], "serving");
            assert_eq!(view["backing"], "cuda");
            assert_eq!(view["device"]["ordinal"], 0);
            assert_eq!(view["device"]["uuid"], UUID);
            assert_eq!(
                (&view["path"], &view["owner"]),
                (&Value::Null, &Value::Null)
            );
            assert_eq!(daemon.get("/v1/pools").expect(200)["pools"], json!([view]));
        }
        let device = device();
        let (from, to) = (opened(&p, &device), opened(&d, &device));
        let engine = Engine {
            device: device.clone(),
            pool: from,
        };
        let sent = engine.fills(&[2, 7]);
        let before = {
            let mut lease = to.lease_write(&[4, 5, 6]).unwrap();
            for (layer, at) in [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)] {
                lease.store(layer, at, &[0xEE; PAGE as usize]).unwrap();
            }
            drop(lease);
            cells(&to, &[4])
        };
        room(&p, &d, &prefill, 1, None);
        let chunk = json!({"tokens": [16, 32], "pool": "kv", "pages": [7]});
        p.post("/v1/rooms/1/chunks", &chunk).expect(202);
        p.post("/v1/rooms/1/finish", &json!({"total": 32}))
            .expect(202);
        for daemon in [&p, &d] {
            let seen = daemon.until("/v1/rooms/1", |a| a.json()["released"] == true);
            assert_eq!(seen.json()["outcome"]["end"], "done", "{}", seen.text());
        }
        drop(sent);
        let wanted = (0..LAYERS).flat_map(|layer| [2, 7].map(|page| Engine::cell(layer, page)));
        assert!(cells(&to, &[5, 6]) == wanted.collect::<Vec<_>>());
        assert!(cells(&to, &[4]) == before, "what was not lent was written");
        for daemon in [&p, &d] {
            assert!(metric(daemon, "device_pieces_total") > Some(0));
            assert_eq!(metric(daemon, "device_kept_bytes"), Some(0));
            daemon.until("/readyz", |answer| answer.status == 200);
        }
    });
}

#[test]
fn the_handle_that_a_daemon_tells_is_one_that_others_take_and_it_does_not() {
    let test = "configured::the_handle_that_a_daemon_tells_is_one_that_others_take_and_it_does_not";
    in_child(test, |driver| {
        let (own, other) = (named("handle", "own"), named("handle", "other"));
        let daemon = start_with(&own, driver, None, &[word("kv", "device=0")]);
        let third = start(&other, driver, None, &MAY);
        let view = daemon.get("/v1/pools/kv").expect(200);
        let mut request = json!({
            "name": "again", "layers": LAYERS, "pages": PAGES, "page_bytes": PAGE, "page_tokens": 16,
            "memory": {"cuda": view["cuda"]}, "owner": {"pid": daemon.pid()},
        });
        request["memory"]["cuda"]["device"] = view["device"]["uuid"].clone();
        let opened = third.post("/v1/pools", &request).expect(201);
        assert_eq!(
            opened["cuda"],
            Value::Null,
            "it is not the third one's to give"
        );
        let why = daemon.post("/v1/pools", &request);
        let why = why.expect_problem(409, "pool-attached");
        assert!(why.contains("\"kv\""), "{why}");
        // Only pools of the configuration are allocated by the daemon.
        request["memory"]["cuda"] = json!({"device": 0, "bytes": BYTES});
        let why = third
            .post("/v1/pools", &request)
            .expect_problem(422, "bad-pool");
        assert!(
            why.contains("memory.cuda.handle") && why.contains("[[pool]]"),
            "{why}"
        );
    });
}

/// A daemon that is not to be started: how it ended, and what it said.
fn refused(driver: &Path, orders: &Orders, args: &[&str]) -> (ExitStatus, String) {
    let mut command = kvroom(&["serve", "--http", "127.0.0.1:0"]);
    command.args(args);
    command.env("LD_LIBRARY_PATH", driver);
    command.env("STANDIN_ORDERS", orders.folder());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = Process(command.spawn().unwrap());
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.0.try_wait().unwrap() {
            break status;
        }
        assert!(
            start.elapsed() < PATIENCE,
            "it neither serves nor ends: {args:?}"
        );
        std::thread::sleep(Duration::from_millis(5));
    };
    let all = |from: &mut dyn std::io::Read| {
        let mut text = String::new();
        from.read_to_string(&mut text).unwrap();
        text
    };
    let (out, said) = (child.0.stdout.take(), child.0.stderr.take());
    assert_eq!(
        all(&mut out.unwrap()),
        "",
        "nobody is told that it is ready"
    );
    (status, all(&mut said.unwrap()))
}

#[test]
fn a_daemon_whose_pool_on_a_device_cannot_be_had_is_not_started_and_says_why_and_what_to_do() {
    let (none, there) = (
        Folder::without_driver("config-none"),
        Folder::with_driver("config-there"),
    );
    let number = "pool \"kv\" on device 0: ";
    type Fault<'a> = Option<(&'a str, u32)>;
    let cases: [(&Folder, Fault<'_>, &str, &[&str]); 9] = [
        (
            &none,
            None,
            "0",
            &[
                number,
                "libcuda.so.1 could not be opened",
                "install the driver",
            ],
        ),
        (
            &none,
            None,
            UUID,
            &[UUID, "libcuda.so.1 could not be opened"],
        ),
        (
            &there,
            Some(("fail-cuInit", 803)),
            "0",
            &[number, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"],
        ),
        (
            &there,
            Some(("fail-cuMemAlloc", 2)),
            "0",
            &[number, "no 2097152 bytes", "make the pool smaller"],
        ),
        (
            &there,
            Some(("fail-cuMemAlloc", 700)),
            "0",
            &[number, "device 0 is lost"],
        ),
        (
            &there,
            Some(("fail-cuIpcGetMemHandle", 801)),
            "0",
            &[number, "no handle", "take a pool on the host"],
        ),
        (
            &there,
            None,
            "1",
            &["device 1 may not be used", "ordinals = [0, 1]"],
        ),
        (
            &there,
            None,
            "GPU-00000000-0000-0000-0000-000000000000",
            &["sees no device GPU-0000", "0: GPU-5a5a5a5a"],
        ),
        (
            &there,
            None,
            "GPU-5b5b5b5b-5b5b-5b5b-5b5b-5b5b5b5b5b5b",
            &[
                "which is number 1 here, may not be used",
                "add 1 to devices.ordinals",
            ],
        ),
    ];
    for (driver, fault, device, says) in cases {
        let orders = Orders::new("config");
        if let Some((order, code)) = fault {
            orders.give(order, code);
        }
        let pool = word("kv", &format!("device={device}"));
        let args = [
            "--name",
            "refused",
            "--devices-ordinals",
            "0",
            "--pool",
            &pool,
        ];
        let (status, said) = refused(&driver.0, &orders, &args);
        // A number that may not be used is seen without a driver: that is an error of the configuration.
        let code = if device == "1" { 2 } else { 1 };
        assert_eq!(status.code(), Some(code), "{device}: {said}");
        assert!(
            says.iter().all(|word| said.contains(word)),
            "{device}, {fault:?}: {said}"
        );
        assert!(!said.contains("panicked"), "{said}");
    }
}

#[test]
fn a_driver_that_hangs_when_the_daemon_starts_ends_the_start_within_its_bound_with_its_name() {
    let driver = Folder::with_driver("config-hangs");
    for (call, device) in [
        ("cuInit", "0"),
        ("cuInit", UUID),
        ("cuDevicePrimaryCtxRetain", "0"),
        ("cuMemAlloc", UUID),
        ("cuIpcGetMemHandle", "0"),
    ] {
        let orders = Orders::new("config-hangs");
        orders.give(&format!("hang-{call}"), 1);
        let pool = word("kv", &format!("device={device}"));
        let bound = ["--devices-driver-timeout", "300ms", "--pool", &pool];
        let args = ["--name", "refused", "--devices-ordinals", "0"];
        let args: Vec<&str> = args.into_iter().chain(bound).collect();
        let start = Instant::now();
        let (status, said) = refused(&driver.0, &orders, &args);
        let took = start.elapsed();
        assert_eq!(status.code(), Some(1), "{call}: {said}");
        for word in [
            "pool \"kv\"",
            device,
            "300ms",
            "devices.driver_timeout",
            "nvidia-smi",
        ] {
            assert!(said.contains(word), "{call}, {word}: {said}");
        }
        assert!(took < Duration::from_secs(15), "{call}: {took:?}");
    }
}

#[test]
fn a_start_that_is_refused_gives_no_memory_of_a_device_back_to_a_driver_that_would_hang() {
    let driver = Folder::with_driver("config-frees");
    let orders = Orders::new("config-frees");
    orders.give("hang-cuMemFree", 1);
    orders.give("hang-cuMemFreeHost", 1);
    let first = word("first", "device=0");
    let second = word("second", "device=GPU-00000000-0000-0000-0000-000000000000");
    let args = [
        "--name",
        "refused",
        "--devices-ordinals",
        "0",
        "--pool",
        &first,
        "--pool",
        &second,
    ];
    let (status, said) = refused(&driver.0, &orders, &args);
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(said.contains("pool \"second\""), "{said}");
}

#[test]
fn memory_of_a_retired_pool_on_a_device_is_kept_until_somebody_says_that_no_engine_has_it_open() {
    let test = "configured::memory_of_a_retired_pool_on_a_device_is_kept_until_somebody_says_that_no_engine_has_it_open";
    in_child(test, |driver| {
        let (name, orders) = (named("kept", "d"), Orders::new("kept"));
        let pools = [word("kv", "device=0"), word("stays", "device=0")];
        let mut daemon = start_with(&name, driver, Some(&orders), &pools);
        let device = device();
        let engine = opened(&daemon, &device);
        let there = mapped(&daemon);
        let start = Instant::now();
        let kept = daemon.delete("/v1/pools/kv?wait=30s").expect(202);
        assert!(
            start.elapsed() < Duration::from_secs(20),
            "nothing is waited for"
        );
        assert_eq!(kept["state"], "kept", "{kept}");
        assert_eq!(kept["kept_bytes"], BLOCK);
        assert_eq!(kept["cuda"], Value::Null, "nobody is to begin with it");
        let why = kept["why"].as_str().unwrap();
        assert!(
            why.contains("2097152 bytes") && why.contains("closed=true"),
            "{why}"
        );
        assert_eq!(daemon.get("/v1/pools/kv").expect(200), kept);
        assert_eq!(metric(&daemon, "device_kept_bytes"), Some(BLOCK));
        // It is there, for the engine; and nothing else is the worse for it.
        assert_eq!(mapped(&daemon), there);
        assert!(
            engine
                .lease_write(&[0])
                .unwrap()
                .store(0, 0, &[7; 16])
                .is_ok()
        );
        daemon.until("/readyz", |answer| answer.status == 200);
        let chunk = json!({"tokens": [0, 16], "pool": "kv", "pages": [0]});
        daemon
            .post("/v1/rooms", &json!({"role": "send", "id": 1}))
            .expect(201);
        let why = daemon.post("/v1/rooms/1/chunks", &chunk);
        why.expect_problem(409, "pool-not-serving");
        let own = json!({
            "name": "kv", "layers": LAYERS, "pages": PAGES, "page_bytes": PAGE, "page_tokens": 16,
            "memory": {"create": true},
        });
        let why = daemon
            .post("/v1/pools", &own)
            .expect_problem(409, "pool-leaving");
        assert!(why.contains("closed=true"), "{why}");
        // The same word again changes nothing.
        assert_eq!(
            daemon.delete("/v1/pools/kv?abort=true").expect(202)["state"],
            "kept"
        );
        drop(engine);
        let gone = daemon
            .delete("/v1/pools/kv?closed=true&wait=30s")
            .expect(200);
        assert_eq!(
            (&gone["state"], &gone["kept_bytes"]),
            (&json!("gone"), &json!(0))
        );
        until("the memory is freed", || mapped(&daemon) == there - 1);
        assert_eq!(metric(&daemon, "device_kept_bytes"), Some(0));
        daemon
            .get("/v1/pools/kv")
            .expect_problem(404, "no-such-pool");
        daemon.post("/v1/pools", &own).expect(201);
        daemon.delete("/v1/pools/kv?wait=30s").expect(200);
        // The end of the daemon asks no driver for anything, whatever is kept.
        daemon.delete("/v1/pools/stays?wait=30s").expect(202);
        orders.give("hang-cuMemFree", 1);
        let (status, last) = daemon.stop();
        assert!(status.success(), "{status} {last:?}");
        drop(Left(&name));
    });
}

#[test]
fn memory_of_a_pool_on_a_device_is_not_freed_while_a_room_has_pages_of_it_whatever_was_said() {
    let test = "configured::memory_of_a_pool_on_a_device_is_not_freed_while_a_room_has_pages_of_it_whatever_was_said";
    in_child(test, |driver| {
        let (prefill, decode) = (named("leased", "prefill"), named("leased", "decode"));
        let p = start_with(&prefill, driver, None, &[word("kv", "device=0")]);
        let d = start_with(&decode, driver, None, &[word("kv", "device=1")]);
        connect(&d, &p);
        let engine = Engine::new(0);
        let held = Held::new(&engine);
        room(&p, &d, &prefill, 1, Some(&held.handle()));
        until("the copy waits for the event", || is_queued(&p));
        // With the slots that the device hands to other processes, which stay.
        let there = mapped(&p);
        let leaving = p.delete("/v1/pools/kv?closed=true&wait=300ms").expect(202);
        assert_eq!(leaving["state"], "retiring", "{leaving}");
        assert!(
            leaving["why"].as_str().unwrap().contains("1 leased pages"),
            "{leaving}"
        );
        assert!(mapped(&p) >= there, "a queued copy reads it");
        held.go.send(()).unwrap();
        p.post("/v1/rooms/1/finish", &json!({"total": 16}))
            .expect(202);
        p.until("/v1/rooms/1", |a| a.json()["released"] == true);
        p.until("/v1/pools/kv", |answer| answer.status == 404);
        until("the memory is freed", || mapped(&p) < there);
    });
}

#[test]
fn a_lost_device_ends_rooms_of_a_configured_pool_and_one_on_the_host_serves_on() {
    let test =
        "configured::a_lost_device_ends_rooms_of_a_configured_pool_and_one_on_the_host_serves_on";
    in_child(test, |driver| {
        let (prefill, decode) = (named("host", "prefill"), named("host", "decode"));
        let files = format!("kvroom-test-host-{}-", std::process::id());
        let file = |side: &str| format!("/dev/shm/{files}{side}");
        let host = |side| {
            word(
                "host",
                &format!("backing=file,create=true,path={}", file(side)),
            )
        };
        let orders = Orders::new("host");
        let on_device = word("kv", "device=0");
        let p = start_with(
            &prefill,
            driver,
            Some(&orders),
            &[on_device.clone(), host("p")],
        );
        let d = start_with(&decode, driver, None, &[on_device, host("d")]);
        connect(&d, &p);
        p.until("/readyz", |answer| answer.status == 200);
        let engine = Engine::new(0);
        let held = Held::new(&engine);
        room(&p, &d, &prefill, 1, Some(&held.handle()));
        until("the copy waits", || is_queued(&p));
        orders.give("lose-0", 700);
        for daemon in [&p, &d] {
            let seen = daemon.until("/v1/rooms/1", |a| a.json()["outcome"].is_object());
            assert_eq!(
                seen.json()["outcome"]["code"],
                "DeviceLost",
                "{}",
                seen.text()
            );
        }
        let ready = p.until("/readyz", |answer| answer.status == 503).json();
        let checks = ready["checks"].as_array().unwrap().iter();
        let red: Vec<_> = checks
            .filter(|c| c["ok"] == false)
            .map(|c| &c["name"])
            .collect();
        assert_eq!(red, ["device 0"], "{ready}");
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
        p.post("/v1/rooms/2/chunks", &chunk)
            .expect_problem(503, "device-lost");
        // The other pool of both has nothing to do with it.
        let bytes: Vec<u8> = (0..BYTES).map(|i| (i * 13 + i / 251) as u8).collect();
        std::fs::write(file("p"), &bytes).unwrap();
        let receive = json!({
            "role": "receive", "id": 3, "from": [prefill], "pages": [{"pool": "host", "pages": [5]}],
        });
        d.post("/v1/rooms", &receive).expect(201);
        p.post("/v1/rooms", &json!({"role": "send", "id": 3}))
            .expect(201);
        let chunk = json!({"tokens": [0, 16], "pool": "host", "pages": [2]});
        p.post("/v1/rooms/3/chunks", &chunk).expect(202);
        p.post("/v1/rooms/3/finish", &json!({"total": 16}))
            .expect(202);
        for daemon in [&p, &d] {
            let seen = daemon.until("/v1/rooms/3", |a| a.json()["released"] == true);
            assert_eq!(seen.json()["outcome"]["end"], "done", "{}", seen.text());
        }
        let came = std::fs::read(file("d")).unwrap();
        for layer in 0..LAYERS {
            let cell = |page: u32| ((layer * PAGES + page) as usize) * PAGE as usize;
            let (to, from) = (cell(5), cell(2));
            let size = PAGE as usize;
            assert!(
                came[to..to + size] == bytes[from..from + size],
                "layer {layer}"
            );
        }
        held.go.send(()).unwrap();
        drop((p, d));
        remove_all(&files);
    });
}
