//! Health that cannot lie: daemons with a part that stands still, and what their probes say.
#![allow(
    clippy::unwrap_used,
    reason = "helpers of tests fail by panicking, as tests do"
)]

#[path = "common/daemon.rs"]
mod daemon;
mod health;

use daemon::Daemon;
use health::*;
use serde_json::{Value, json};
use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};

/// Within so long a wedge is to be seen, with the configuration that a daemon has by itself.
const SEEN: Duration = Duration::from_secs(5);
const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_lane_that_is_wedged_in_a_storm_of_aborts_is_named_within_five_seconds_until_it_goes_on() {
    let Some(wedges) = Wedges::new() else { return };
    let lanes = ["--node-lanes", "2"];
    let prefill = node("prefill", 64, &lanes, Some(&wedges));
    let decode = node("decode", 64, &[], None);
    join(&decode, &prefill);
    let storm = Load::start(&prefill, &decode, 4, 4, true);
    ready(&prefill);
    storm.goes_on(20);

    let planted = wedges.plant("lane-1");
    let answer = red_within(&prefill, "lane 1", planted, SEEN);
    assert_eq!(check(&answer, "lane 0")["ok"], true);
    assert_eq!(check(&answer, "shard 0")["ok"], true);
    assert_eq!(answer.json()["peers"][0]["name"], "decode");
    // Whoever looks first sees what failed.
    assert_eq!(answer.json()["checks"][0]["ok"], false);
    // The other node is well: nothing of it stands still.
    assert_eq!(red(&decode.get("/readyz")), [""; 0]);

    wedges.remove("lane-1");
    ready(&prefill);
    storm.goes_on(20);
    storm.stop();
    assert_eq!(red(&prefill.get("/livez")), [""; 0]);
}

#[test]
fn a_lane_is_named_when_nothing_but_the_canary_runs() {
    let Some(wedges) = Wedges::new() else { return };
    let idle = node("idle", 4, &["--node-lanes", "2"], Some(&wedges));
    ready(&idle);
    let planted = wedges.plant("lane-0");
    let answer = red_within(&idle, "lane 0", planted, SEEN);
    assert_eq!(check(&answer, "lane 1")["ok"], true);
    // Its own canaries say where they are, when they are late.
    let canary = idle.until("/readyz", |answer| {
        red(answer).iter().any(|n| n == "canary local lane 0")
    });
    let why = check(&canary, "canary local lane 0")["why"].to_string();
    assert!(why.contains("being copied"), "{why}");
    wedges.remove("lane-0");
    ready(&idle);
}

#[test]
fn a_shard_that_is_wedged_is_named_within_five_seconds_and_long_after_it_is_not_alive() {
    let Some(wedges) = Wedges::new() else { return };
    let shards = ["--node-shards", "2"];
    let daemon = node("shards", 4, &shards, Some(&wedges));
    ready(&daemon);
    let planted = wedges.plant("shard-1");
    let answer = red_within(&daemon, "shard 1", planted, SEEN);
    assert_eq!(check(&answer, "shard 0")["ok"], true);
    // A restart mends a shard, if it stays so.
    let dead = daemon.until("/livez", |answer| !red(answer).is_empty());
    assert_eq!(red(&dead), ["shard 1"]);
    assert!(planted.elapsed() >= 10 * SECOND);
    wedges.remove("shard-1");
    ready(&daemon);
    assert_eq!(daemon.get("/livez").status, 200);
}

#[test]
fn asking_for_health_triggers_nothing() {
    let once = ["--health-canary-interval", "3600s"];
    let daemon = node("quiet", 4, &once, None);
    let before = ready(&daemon).json()["canaries_started"].as_u64().unwrap();
    assert!(before > 0);
    let mut client = daemon.client();
    for _ in 0..500 {
        for path in ["/readyz", "/livez"] {
            assert_eq!(client.send("GET", path, None).status, 200);
        }
    }
    let after = daemon.get("/readyz").json()["canaries_started"].as_u64();
    assert_eq!(after, Some(before));
}

#[test]
fn a_canary_runs_by_itself_and_is_in_no_list_and_no_count() {
    let often = ["--health-canary-interval", "50ms", "--node-lanes", "2"];
    let daemon = node("lists", 4, &often, None);
    let started = |daemon: &Daemon| daemon.get("/readyz").json()["canaries_started"].as_u64();
    ready(&daemon);
    let mut events = daemon.events("/v1/events", None);
    let (begin, mut heard) = (started(&daemon), 0);
    while heard < 3 {
        let event = events.next().unwrap();
        assert_ne!(event.event, "room", "{event:?}");
        assert_ne!(event.event, "peer", "{event:?}");
        heard += u32::from(event.event == "sample");
        if event.event == "sample" {
            let sample = &event.data;
            assert_eq!(sample["peers"], json!([]), "{sample}");
            let none = json!({"registered": 0, "transferring": 0, "draining": 0});
            assert_eq!(sample["rooms"], none, "{sample}");
            let done = sample["done_per_s"].as_u64().unwrap_or(0);
            assert_eq!(done, 0, "{sample}");
        }
    }
    assert!(started(&daemon) > begin.map(|n| n + 3));
    for (path, list, wanted) in [
        ("/v1/pools", "pools", 1),
        ("/v1/rooms", "rooms", 0),
        ("/v1/peers", "peers", 0),
        ("/v1/early-claims", "early_claims", 0),
    ] {
        for _ in 0..20 {
            let listed = daemon.get(path).expect(200);
            let all = listed[list].as_array().unwrap();
            assert_eq!(all.len(), wanted, "{path}: {listed}");
        }
    }
    assert_eq!(daemon.get("/readyz").json()["peers"], json!([]));
    daemon
        .get("/v1/pools/kvroom-canary")
        .expect_problem(404, "no-such-pool");
    let stats = &daemon.get("/v1/node").expect(200)["stats"];
    assert_eq!((&stats["started"], &stats["done"]), (&json!(0), &json!(0)));

    let metrics = daemon.get("/metrics").text();
    let with = |words: &[&str]| {
        let has = |line: &&str| words.iter().all(|word| line.contains(word));
        metrics.lines().filter(has).collect::<Vec<_>>()
    };
    let lane = r#"canary="tcp lane 1",result="passed""#;
    let passed = with(&["kvroom_canary_runs_total", lane]);
    assert_eq!(passed.len(), 1, "{metrics}");
    assert!(!passed[0].ends_with(" 0"), "{passed:?}");
    let elsewhere: Vec<&str> = with(&["canary"])
        .into_iter()
        .filter(|line| !line.starts_with("kvroom_canary_") && !line.starts_with('#'))
        .collect();
    assert_eq!(elsewhere, [""; 0]);
    for line in with(&["kvroom_rooms"]) {
        assert!(line.starts_with('#') || line.ends_with(" 0"), "{line}");
    }
    assert_eq!(with(&[r#"kvroom_healthy{probe="ready"} 1"#]).len(), 1);
}

#[test]
fn whoever_aborts_everything_does_not_hit_canaries_and_is_not_told_of_them() {
    let often = ["--health-canary-interval", "50ms"];
    let daemon = node("aborts", 4, &often, None);
    ready(&daemon);
    let mut client = daemon.client();
    let (begin, everything) = (Instant::now(), json!({"all": true}));
    let by_tag = json!({"tag": "kvroom-canary"});
    while begin.elapsed() < 2 * SECOND {
        let told = client.send("POST", "/v1/aborts", Some(&everything));
        assert_eq!(told.expect(202)["aborted"], 0);
        // Nor does it harm, if somebody means them.
        client.send("POST", "/v1/aborts", Some(&by_tag)).expect(202);
        let answer = client.send("GET", "/readyz", None);
        assert_eq!(red(&answer), [""; 0], "{}", answer.text());
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn overload_is_not_a_wedge() {
    // Canaries are refused, too: the node has as many rooms as it may.
    let few = ["--limits-rooms", "6", "--node-lanes", "1"];
    let prefill = node("prefill", 512, &["--node-lanes", "1"], None);
    let decode = node("decode", 512, &few, None);
    join(&decode, &prefill);
    ready(&prefill);
    ready(&decode);
    let load = Load::start(&prefill, &decode, 8, 64, false);
    let start = Instant::now();
    while start.elapsed() < 6 * SECOND {
        for daemon in [&prefill, &decode] {
            let answer = daemon.get("/readyz");
            assert_eq!(red(&answer), [""; 0], "{}", answer.text());
        }
    }
    assert!(load.over() > 8);
    load.stop();
}

#[test]
fn a_node_that_is_full_and_does_not_get_on_says_so_until_it_does() {
    let few = ["--limits-rooms", "2", "--health-canary-deadline", "100ms"];
    let daemon = node("full", 4, &few, None);
    ready(&daemon);
    for id in [1, 2] {
        let room = json!({"role": "send", "id": id});
        daemon.until("/readyz", |_| daemon.post("/v1/rooms", &room).status != 503);
    }
    daemon.until("/readyz", |answer| {
        let body = answer.json();
        let mut checks = body["checks"].as_array().unwrap().iter();
        checks.any(|c| {
            let why = c["why"].as_str().unwrap_or_default();
            let is_canary = c["name"].as_str().unwrap().starts_with("canary ");
            c["ok"] == false && is_canary && why.contains("as limits.rooms allows")
        })
    });
    daemon.post("/v1/aborts", &json!({"all": true})).expect(202);
    ready(&daemon);
}

#[test]
fn a_peer_that_is_down_is_reported_and_does_not_make_the_node_unready() {
    let mut prefill = node("prefill", 4, &[], None);
    let soon = ["--deadlines-resume", "500ms"];
    let decode = node("decode", 4, &soon, None);
    join(&decode, &prefill);
    let up = decode.until("/readyz", |a| a.json()["peers"][0]["state"] == "up");
    assert_eq!(up.json()["peers"].as_array().unwrap().len(), 1);
    ready(&decode);
    prefill.signal("KILL");
    prefill.end();
    let down = decode.until("/readyz", |answer| {
        assert_eq!(red(answer), [""; 0]);
        answer.json()["peers"][0]["state"] == "down"
    });
    let peer = &down.json()["peers"][0];
    assert_eq!(peer["name"], "prefill");
    assert!(peer["why"].as_str().unwrap().len() > 5, "{peer}");
    assert_eq!(decode.get("/readyz").status, 200);
}

/// A prefill whose lane stands still inside gates, and a decode with so many pages.
fn held_by_a_prefill(wedges: &Wedges, pages: u32) -> (Daemon, Daemon) {
    held_and(wedges, pages, &[])
}

/// The same, with more that the decode is told.
fn held_and(wedges: &Wedges, pages: u32, more: &[&str]) -> (Daemon, Daemon) {
    // A canary would be the one that is held.
    let alone = ["--node-lanes", "1", "--health-canary", "false"];
    let prefill = node("stuck", 16, &alone, Some(wedges));
    let args = [
        "--deadlines-drain",
        "200ms",
        "--limits-quarantined-pages-per-peer",
        "4",
        "--node-shards",
        "1",
    ];
    let args: Vec<&str> = args.iter().chain(more).copied().collect();
    let decode = node("decode", pages, &args, None);
    join(&decode, &prefill);
    ready(&prefill);
    ready(&decode);
    wedges.plant("lane-0");
    start_room(&prefill, &decode, 1, &[0, 1, 2, 3]);
    wedges.held("lane-0");
    decode.delete("/v1/rooms/1").expect(202);
    decode.until("/v1/rooms/1", |a| a.json()["quarantined"] == true);
    (prefill, decode)
}

#[test]
fn a_room_whose_memory_is_held_after_its_end_says_by_whom_and_why() {
    let Some(wedges) = Wedges::new() else { return };
    let (_prefill, decode) = held_by_a_prefill(&wedges, 64);
    let held = "/v1/rooms?quarantined=true";
    let listed = decode.get(held).expect(200)["rooms"].clone();
    assert_eq!(listed.as_array().unwrap().len(), 1, "{listed}");
    let room = decode.get("/v1/rooms/1").expect(200);
    for room in [&room, &listed[0]] {
        assert_eq!(room["state"], "draining", "{room}");
        assert_eq!(room["legs"][0]["peer"], "stuck", "{room}");
        let why = room["held_because"].as_str().unwrap();
        assert!(why.contains("a writer is inside its closed gate"), "{why}");
    }
    wedges.remove("lane-0");
    let over = decode.get("/v1/rooms/1?wait=30s&for=released").expect(200);
    assert_eq!(
        (&over["released"], &over["quarantined"]),
        (&json!(true), &json!(false))
    );
}

#[test]
fn memory_that_is_leaked_at_the_shutdown_deadline_is_never_said_to_be_released() {
    let Some(wedges) = Wedges::new() else { return };
    let folder = Folder::new();
    let page = folder.0.join("status");
    let more = [
        "--deadlines-shutdown",
        "1s",
        "--status-page-path",
        page.to_str().unwrap(),
    ];
    let (_prefill, mut decode) = held_and(&wedges, 64, &more);
    let slot = decode.get("/v1/rooms/1").json()["status_slot"]
        .as_u64()
        .unwrap();
    let mut client = decode.client();
    let waits =
        std::thread::spawn(move || client.send("GET", "/v1/rooms/1?wait=60s&for=released", None));
    let (status, lines) = decode.stop();
    assert_eq!(status.code(), Some(1), "{lines:?}");
    let told = waits.join().unwrap().expect(200);
    assert_eq!(
        (&told["released"], &told["state"], &told["proofs"]),
        (&json!(false), &json!("draining"), &json!([])),
        "{told}"
    );
    let why = told["held_because"].as_str().unwrap();
    assert!(why.contains("leaked"), "{why}");
    assert!(!told["pool_pages"].as_array().unwrap().is_empty(), "{told}");
    // Nor does the page that outlives the daemon say so.
    let words = std::fs::read(&page).unwrap();
    let at = 8 * (8 + 4 * slot as usize);
    let word = u64::from_le_bytes(words[at..at + 8].try_into().unwrap());
    assert_eq!(word & 0xff, 3, "draining: {word:x}");
    assert_eq!(word >> 16 & 1, 0, "released: {word:x}");
    wedges.remove("lane-0");
}

#[test]
fn a_peer_over_its_budget_of_quarantined_pages_is_refused_and_the_node_is_ready() {
    let Some(wedges) = Wedges::new() else { return };
    let (_prefill, decode) = held_by_a_prefill(&wedges, 64);
    let over = decode.until("/readyz", |answer| {
        assert_eq!(red(answer), [""; 0]);
        answer.json()["peers"][0]["over_budget"] == true
    });
    let peer = &over.json()["peers"][0];
    assert_eq!(
        (&peer["name"], &peer["quarantined_pages"]),
        (&json!("stuck"), &json!(4))
    );
    assert_eq!(
        decode.get("/v1/peers").json()["peers"][0]["quarantined_pages"],
        4
    );
    let room = |id: u64, from: &str, page: u32| -> Value {
        json!({"role": "receive", "id": id, "from": [from], "pages": [{"pool": "kv", "pages": [page]}]})
    };
    let refused = decode.post("/v1/rooms", &room(2, "stuck", 8));
    let detail = refused.expect_problem(503, "limit-reached");
    assert!(detail.contains("quarantined_pages_per_peer"), "{detail}");
    // Another peer is not concerned.
    let other = node("other", 4, &[], None);
    join(&decode, &other);
    decode.post("/v1/rooms", &room(3, "other", 9)).expect(201);
    assert_eq!(decode.get("/readyz").status, 200);

    wedges.remove("lane-0");
    decode.until("/v1/rooms/1", |a| a.json()["released"] == true);
    decode.post("/v1/rooms", &room(4, "stuck", 8)).expect(201);
    decode.until("/readyz", |answer| {
        assert_eq!(red(answer), [""; 0]);
        let peers = answer.json()["peers"].clone();
        let all = peers.as_array().unwrap();
        all.iter()
            .all(|p| p["over_budget"] == false && p["quarantined_pages"] == 0)
    });
}

#[test]
fn a_pool_of_which_all_pages_are_quarantined_makes_the_node_unready_by_name() {
    let Some(wedges) = Wedges::new() else { return };
    let (_prefill, decode) = held_by_a_prefill(&wedges, 4);
    let answer = decode.until("/readyz", |answer| red(answer) == ["pool kv"]);
    let why = check(&answer, "pool kv")["why"].to_string();
    assert!(why.contains("4 of its 4 pages are quarantined"), "{why}");
    assert_eq!(decode.get("/livez").status, 200);
    wedges.remove("lane-0");
    ready(&decode);
}

#[test]
fn a_pool_that_is_lent_out_whole_is_named_if_no_room_ends() {
    let daemon = node("lent", 4, &["--health-canary-deadline", "100ms"], None);
    let other = node("other", 4, &[], None);
    join(&daemon, &other);
    ready(&daemon);
    let room = json!({
        "role": "receive", "id": 1, "from": ["other"], "pages": [{"pool": "kv", "pages": [0, 1, 2, 3]}],
    });
    daemon.post("/v1/rooms", &room).expect(201);
    let answer = daemon.until("/readyz", |answer| {
        red(answer).contains(&"pool kv".to_owned())
    });
    let why = check(&answer, "pool kv")["why"].to_string();
    assert!(why.contains("all of its 4 pages are leased"), "{why}");
    daemon.delete("/v1/rooms/1").expect(202);
    ready(&daemon);
}

#[test]
fn a_daemon_that_was_told_to_stop_is_not_ready_while_it_drains() {
    let Some(wedges) = Wedges::new() else { return };
    let (_prefill, mut decode) = held_by_a_prefill(&wedges, 64);
    assert_eq!(decode.get("/readyz").status, 200);
    decode.signal("TERM");
    let answer = decode.until("/readyz", |answer| !red(answer).is_empty());
    assert_eq!(red(&answer), ["stopping"]);
    assert_eq!(decode.get("/livez").status, 200);
    wedges.remove("lane-0");
    let (status, last) = decode.end();
    let last = last.unwrap();
    assert_eq!(
        (status.code(), &last["drained"]),
        (Some(0), &json!(true)),
        "{last}"
    );
}

#[test]
fn canaries_do_not_hold_up_the_end_of_a_daemon() {
    for _ in 0..3 {
        let often = ["--health-canary-interval", "50ms"];
        let mut daemon = node("ends", 4, &often, None);
        ready(&daemon);
        let told = Instant::now();
        let (status, last) = daemon.stop();
        let (took, last) = (told.elapsed(), last.unwrap());
        assert_eq!(status.code(), Some(0), "{last}");
        assert_eq!(
            (&last["drained"], &last["leaked"]),
            (&json!(true), &json!([]))
        );
        assert!(took < 5 * SECOND, "it took {took:?}");
    }
}

#[test]
fn canaries_that_are_stuck_do_not_hold_up_the_end_of_a_daemon_either() {
    let Some(wedges) = Wedges::new() else { return };
    let mut daemon = node("ends", 4, &[], Some(&wedges));
    ready(&daemon);
    wedges.plant("lane-0");
    daemon.until("/readyz", |answer| !red(answer).is_empty());
    let told = Instant::now();
    let (status, last) = daemon.stop();
    let (took, last) = (told.elapsed(), last.unwrap());
    assert_eq!(status.code(), Some(0), "{last}");
    assert_eq!(
        (&last["drained"], &last["leaked"]),
        (&json!(true), &json!([]))
    );
    assert!(took < 8 * SECOND, "it took {took:?}");
}

#[test]
fn a_daemon_of_which_the_nodes_own_task_stands_still_ends_by_itself_and_says_who_did_not_answer() {
    let Some(wedges) = Wedges::new() else { return };
    let mut daemon = node("ends", 4, &["--deadlines-shutdown", "1s"], Some(&wedges));
    ready(&daemon);
    daemon
        .post("/v1/rooms", &json!({"role": "send", "id": 1}))
        .expect(201);
    wedges.plant("node");
    daemon.until("/readyz", |answer| red(answer).contains(&"node".to_owned()));
    let (status, last) = daemon.stop();
    let last = last.unwrap();
    assert_eq!(
        (status.code(), &last["event"], &last["drained"]),
        (Some(1), &json!("stopped"), &json!(false)),
        "{last}"
    );
    let silent = last["silent"].as_array().unwrap();
    assert!(silent.contains(&json!("node")), "{last}");
}

#[test]
fn systemd_is_told_that_it_is_ready_alive_and_stopping_and_no_more_when_a_part_is_blocked() {
    let Some(wedges) = Wedges::new() else { return };
    let folder = Folder::new();
    let path = folder.0.join("notify");
    let systemd = UnixDatagram::bind(&path).unwrap();
    systemd.set_read_timeout(Some(daemon::PATIENCE)).unwrap();
    let hear = || {
        let mut text = [0; 64];
        let n = systemd.recv(&mut text).ok()?;
        Some(String::from_utf8_lossy(&text[..n]).into_owned())
    };
    let args = ["--name", "told"];
    let mut daemon = Daemon::start_with(&args, |command| {
        wedges.reach(command);
        command
            .env("NOTIFY_SOCKET", &path)
            .env("WATCHDOG_USEC", "1000000");
    });
    let (mut is_ready, mut is_alive) = (0, 0);
    while is_ready == 0 || is_alive < 3 {
        match hear().as_deref() {
            Some("READY=1") => is_ready += 1,
            Some("WATCHDOG=1") => is_alive += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(is_ready, 1);

    wedges.plant("shard-0");
    // As long as /livez is green it is told; then no more.
    daemon.until("/livez", |answer| !red(answer).is_empty());
    systemd.set_nonblocking(true).unwrap();
    while hear().is_some() {}
    systemd.set_nonblocking(false).unwrap();
    systemd.set_read_timeout(Some(2 * SECOND)).unwrap();
    assert_eq!(hear(), None);
    systemd.set_read_timeout(Some(daemon::PATIENCE)).unwrap();
    wedges.remove("shard-0");
    assert_eq!(hear().as_deref(), Some("WATCHDOG=1"));
    daemon.signal("TERM");
    let stopping = (0..100)
        .map_while(|_| hear())
        .find(|text| text != "WATCHDOG=1");
    assert_eq!(stopping.as_deref(), Some("STOPPING=1"));
    assert_eq!(daemon.end().0.code(), Some(0));
}
