//! The flight recorder of a daemon: read over HTTP, also while a shard stands still, and written to files
//! on SIGUSR1, on a stuck room and on a panic.
#![allow(
    clippy::unwrap_used,
    reason = "helpers of tests fail by panicking, as tests do"
)]

#[path = "common/daemon.rs"]
mod daemon;

use daemon::{Answer, Daemon, Left, PATIENCE, kvroom};
use kvroom::record::{Part, What};
use kvroom::recording::{self, Recording};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// A folder of this test, removed when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("kvroom-recording-{}-{n}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        Folder(folder)
    }

    fn text(&self) -> &str {
        self.0.to_str().unwrap()
    }

    /// Names of what is in it.
    fn names(&self) -> Vec<String> {
        let all = std::fs::read_dir(&self.0).unwrap().flatten();
        all.map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect()
    }

    /// Dumps that were written for this reason.
    fn dumps(&self, why: &str) -> Vec<PathBuf> {
        let names = self.names();
        let of = names
            .iter()
            .filter(|name| name.contains(&format!("-{why}-")) && name.ends_with(".jsonl"));
        of.map(|name| self.0.join(name)).collect()
    }

    /// Waits for a dump of this reason. Whatever is under its name at any look is whole.
    #[track_caller]
    fn dump(&self, why: &str) -> Recording {
        let mut found = None;
        until(&format!("a dump for {why}"), || {
            for dump in self.dumps(why) {
                found = Some(whole(&dump, why));
            }
            found.is_some()
        });
        found.unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[track_caller]
fn whole(dump: &Path, why: &str) -> Recording {
    let recording = recording::read_file(dump).unwrap();
    assert_eq!(recording.header.why, why);
    assert!(!recording.entries.is_empty());
    recording
}

#[track_caller]
fn until(what: &str, mut is: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is() {
        assert!(began.elapsed() < PATIENCE, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Without rooms of its own, so that only what the test does is recorded.
fn quiet(args: &[&str]) -> Daemon {
    let mut all = vec!["--health-canary", "false"];
    all.extend(args);
    Daemon::start(&all)
}

fn dumping(folder: &Folder, args: &[&str]) -> Daemon {
    let mut all = vec!["--recorder-dump-dir", folder.text()];
    all.extend(args);
    quiet(&all)
}

/// What the answer says, as the library reads it, and where to go on.
#[track_caller]
fn recorded(answer: &Answer) -> (Recording, u64) {
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.header("content-type"), Some("application/jsonl"));
    let recording = recording::read("answer", &*answer.body).unwrap();
    assert_eq!(recording.header.why, "http");
    let next = answer.header("kvroom-next").unwrap();
    (recording, next.parse().unwrap())
}

#[track_caller]
fn get(daemon: &Daemon, query: &str) -> (Recording, u64) {
    recorded(&daemon.get(&format!("/v1/recording{query}")))
}

/// Starts sender rooms and aborts them: two entries each, and more.
fn storm(daemon: &Daemon, rooms: std::ops::Range<u64>) {
    let mut client = daemon.client();
    for id in rooms {
        let body = json!({"role": "send", "id": id});
        client.send("POST", "/v1/rooms", Some(&body)).expect(201);
        let gone = client.send("DELETE", &format!("/v1/rooms/{id}"), None);
        assert_eq!(gone.status, 202, "{}", gone.text());
    }
}

fn numbers(recording: &Recording) -> Vec<u64> {
    recording.entries.iter().map(|entry| entry.seq).collect()
}

#[test]
fn a_recording_is_read_in_pieces_and_each_goes_on_where_the_last_one_ended() {
    let daemon = quiet(&["--name", "recorded"]);
    storm(&daemon, 1..21);
    let (all, end) = get(&daemon, "");
    assert_eq!(all.header.node, "recorded");
    assert_eq!(all.header.lost, 0);
    let seqs = numbers(&all);
    assert_eq!(seqs, (0..end).collect::<Vec<_>>());
    let starts = all
        .entries
        .iter()
        .filter(|entry| matches!(&entry.what, What::Room(step) if step.event() == "Start"));
    assert_eq!(starts.count(), 20);
    let (mut read, mut since) = (Vec::new(), 0);
    while since < end {
        let (some, next) = get(&daemon, &format!("?since={since}&limit=7"));
        assert!(next > since && some.entries.len() <= 7);
        assert_eq!(some.header.lost, 0);
        read.extend(some.entries);
        since = next;
    }
    assert_eq!(read, all.entries);
    // What has not happened yet is not there.
    let later = end + 1_000;
    let (none, next) = get(&daemon, &format!("?since={later}"));
    assert_eq!((none.entries.len(), next), (0, later));
}

#[test]
fn a_recording_of_one_room_has_all_of_it_and_nothing_else() {
    let daemon = quiet(&[]);
    storm(&daemon, 1..41);
    let (all, _) = get(&daemon, "");
    let (one, _) = get(&daemon, "?room=17");
    let about =
        |entry: &&kvroom::record::Entry| entry.what.room().is_some_and(|key| key.id.0 == 17);
    let wanted: Vec<_> = all.entries.iter().filter(about).cloned().collect();
    assert!(wanted.len() >= 3, "{wanted:?}");
    assert_eq!(one.entries, wanted);
    // A limit counts what is given, and `kvroom-next` is behind it.
    let (first, next) = get(&daemon, "?room=17&since=0&limit=1");
    assert_eq!((first.entries.len(), next), (1, wanted[0].seq + 1));
    let (rest, _) = get(&daemon, &format!("?room=17&since={next}"));
    assert_eq!(rest.entries, wanted[1..]);
    assert_eq!(get(&daemon, "?room=4711").0.entries, []);
}

#[test]
fn without_a_beginning_the_newest_entries_are_given_and_the_older_ones_are_counted() {
    let daemon = quiet(&[]);
    storm(&daemon, 1..41);
    let (all, end) = get(&daemon, "");
    assert_eq!(all.header.older, 0);
    let (newest, next) = get(&daemon, "?limit=7");
    assert_eq!(newest.entries, all.entries[all.entries.len() - 7..]);
    assert_eq!((newest.header.older, next), (end - 7, end));
    let (room, _) = get(&daemon, "?room=17");
    let (last, next) = get(&daemon, "?room=17&limit=1");
    assert_eq!(last.entries, room.entries[room.entries.len() - 1..]);
    let older = room.entries.len() as u64 - 1;
    assert_eq!((last.header.older, next), (older, end));
    // Who says where to begin has the oldest from there on.
    let (oldest, _) = get(&daemon, "?since=0&limit=7");
    assert_eq!(
        (oldest.entries, oldest.header.older),
        (all.entries[..7].to_vec(), 0)
    );
}

#[test]
fn two_recordings_are_sent_at_a_time_and_a_client_that_does_not_read_holds_one_of_them_until_it_goes()
 {
    let daemon = quiet(&[]);
    // More than the buffers of a connection on this machine take, with a small one on the client's side.
    storm(&daemon, 0..4_000);
    let whole = "/v1/recording?limit=100000";
    let slow = || {
        let socket =
            socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket.set_recv_buffer_size(4 << 10).unwrap();
        socket.connect(&daemon.http.into()).unwrap();
        let mut socket = std::net::TcpStream::from(socket);
        write!(socket, "GET {whole} HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let mut head = [0; 12];
        socket.read_exact(&mut head).unwrap();
        (head == *b"HTTP/1.1 200").then_some(socket)
    };
    // The one before may be on its way still.
    let slow = || {
        let began = Instant::now();
        loop {
            if let Some(slow) = slow() {
                return slow;
            }
            assert!(began.elapsed() < PATIENCE);
        }
    };
    let size = daemon.get(whole).body.len();
    let (one, two) = (slow(), slow());
    let refused = daemon.get("/v1/recording");
    let why = refused.expect_problem(503, "limit-reached");
    assert!(
        why.contains("2 recordings"),
        "{why}; the whole is {size} bytes"
    );
    assert_eq!(refused.json()["limit"], "recordings at a time");
    assert_eq!(daemon.get("/livez").status, 200);
    drop(one);
    daemon.until("/v1/recording", |answer| answer.status == 200);
    drop(two);
}

#[test]
fn what_was_overwritten_is_counted_and_told() {
    let daemon = quiet(&["--recorder-entries", "16", "--node-shards", "1"]);
    storm(&daemon, 1..41);
    let (all, end) = get(&daemon, "");
    let there = all.entries.len() as u64;
    assert!(
        (16..=32).contains(&there),
        "two rings of 16, and {there} entries"
    );
    assert_eq!(all.header.lost + there, end);
    assert!(all.header.lost > 40, "{:?}", all.header);
    let shard = |entry: &&kvroom::record::Entry| entry.part == Part::Shard(0);
    let last: Vec<u64> = (all.entries.iter().filter(shard)).map(|e| e.seq).collect();
    assert_eq!(last, (end - 16..end).collect::<Vec<_>>());
    // Who was there before is told what is gone since, and not what was gone before.
    let (none, here) = get(&daemon, &format!("?since={end}"));
    assert_eq!((none.entries.len(), here), (0, end));
    storm(&daemon, 41..81);
    let (later, end) = get(&daemon, &format!("?since={here}"));
    assert!(later.header.lost > 0);
    assert_eq!(here + later.header.lost + later.entries.len() as u64, end);
}

#[test]
fn a_query_that_means_nothing_is_a_problem_that_names_it() {
    let daemon = quiet(&[]);
    for (query, status, code) in [
        ("?limit=0", 422, "bad-limit"),
        ("?limit=100001", 422, "bad-limit"),
        ("?since=yesterday", 400, "unreadable-request"),
        ("?room=-1", 400, "unreadable-request"),
        ("?sience=1", 400, "unreadable-request"),
    ] {
        let answer = daemon.get(&format!("/v1/recording{query}"));
        let detail = answer.expect_problem(status, code);
        assert!(!detail.is_empty(), "{query}");
    }
}

#[test]
fn sigusr1_writes_a_dump_that_appears_whole_and_is_what_http_gives() {
    let folder = Folder::new();
    let daemon = dumping(&folder, &["--name", "../dumped"]);
    storm(&daemon, 1..200);
    daemon.signal("USR1");
    let dump = folder.dump("signal");
    assert_eq!(dump.header.node, "../dumped");
    let (all, _) = get(&daemon, "");
    assert_eq!(dump.entries, all.entries[..dump.entries.len()]);
    assert!(dump.entries.len() > 400);
    let prefix = format!("kvroom-___dumped-{}-signal-0.jsonl", daemon.pid());
    assert_eq!(folder.names(), [prefix]);
    // And another one is another file.
    storm(&daemon, 200..210);
    daemon.signal("USR1");
    until("a second dump", || folder.dumps("signal").len() == 2);
    daemon.get("/v1/rooms").expect(200);
}

#[test]
fn a_process_writes_24_dumps_for_signals_and_then_says_that_it_writes_no_more() {
    let folder = Folder::new();
    let log = folder.0.join("log");
    let dumps = folder.0.join("dumps");
    let args = ["--recorder-dump-dir", dumps.to_str().unwrap()];
    let mut daemon = Daemon::start_with(&args, |command| {
        command.args(["--health-canary", "false"]);
        command.stderr(Stdio::from(std::fs::File::create(&log).unwrap()));
    });
    let written = || std::fs::read_dir(&dumps).map_or(0, |all| all.flatten().count());
    for count in 1..=24 {
        daemon.signal("USR1");
        until(&format!("dump {count}"), || {
            let all = std::fs::read_dir(&dumps).into_iter().flatten().flatten();
            let whole = |name: &std::ffi::OsStr| name.to_string_lossy().ends_with(".jsonl");
            all.filter(|entry| whole(&entry.file_name())).count() == count
        });
    }
    daemon.signal("USR1");
    let refused = "this process has written 24 for this reason (signal), which is the most";
    until("the refusal is logged", || {
        std::fs::read_to_string(&log).unwrap().contains(refused)
    });
    assert_eq!(written(), 24);
    // What is refused costs nothing else.
    assert_eq!(get(&daemon, "").0.header.lost, 0);
    assert!(daemon.stop().0.success());
    assert_eq!(written(), 24);
}

#[test]
fn dumps_that_fail_do_not_count_and_those_after_the_folder_was_mended_are_written() {
    let folder = Folder::new();
    let (log, dumps) = (folder.0.join("log"), folder.0.join("dumps"));
    let args = ["--recorder-dump-dir", dumps.to_str().unwrap()];
    let daemon = Daemon::start_with(&args, |command| {
        command.args(["--health-canary", "false"]);
        command.stderr(Stdio::from(std::fs::File::create(&log).unwrap()));
    });
    std::fs::remove_dir(&dumps).unwrap();
    std::fs::write(&dumps, "no folder").unwrap();
    let failed = || {
        let said = std::fs::read_to_string(&log).unwrap();
        said.matches("cannot be written").count()
    };
    for count in 1..=24 {
        daemon.signal("USR1");
        until("the failure is logged", || failed() == count);
    }
    std::fs::remove_file(&dumps).unwrap();
    daemon.signal("USR1");
    until("a dump", || {
        let all = std::fs::read_dir(&dumps).into_iter().flatten().flatten();
        let whole = |name: &std::ffi::OsStr| name.to_string_lossy().ends_with("-signal-0.jsonl");
        all.filter(|entry| whole(&entry.file_name())).count() == 1
    });
}

#[test]
fn a_daemon_whose_folder_for_dumps_is_a_file_does_not_start() {
    let folder = Folder::new();
    let file = folder.0.join("file");
    std::fs::write(&file, "no folder").unwrap();
    let args = ["serve", "--http", "127.0.0.1:0", "--recorder-dump-dir"];
    let mut command = kvroom(&args);
    let output = command.arg(&file).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains("recorder.dump_dir") && said.contains("no folder"),
        "{said}"
    );
}

#[test]
fn without_a_folder_for_dumps_sigusr1_is_logged_and_changes_nothing() {
    let folder = Folder::new();
    let log = folder.0.join("log");
    let daemon = Daemon::start_with(&[], |command| {
        command.stderr(Stdio::from(std::fs::File::create(&log).unwrap()));
    });
    daemon.signal("USR1");
    until("it is logged", || {
        let said = std::fs::read_to_string(&log).unwrap();
        said.contains("recorder.dump_dir is not set")
    });
    daemon.get("/v1/rooms").expect(200);
}

/// With pages that a shard does not copy itself.
fn pool(daemon: &Daemon) {
    let pool = json!({
        "name": "kv", "layers": 2, "pages": 8, "page_bytes": 256 << 10, "page_tokens": 16,
        "memory": {"create": true},
    });
    daemon.post("/v1/pools", &pool).expect(201);
}

#[test]
fn a_room_that_passes_its_drain_deadline_writes_a_dump_that_shows_what_it_waits_for() {
    let (folder, wedges) = (Folder::new(), Folder::new());
    let pid = std::process::id();
    let (prefill_name, decode_name) = (format!("prefill-{pid}"), format!("decode-{pid}"));
    let _left = (Left(&prefill_name), Left(&decode_name));
    let dump_dir = ["--recorder-dump-dir", folder.text()];
    let prefill = Daemon::start_with(&dump_dir, |command| {
        command.args(["--health-canary", "false", "--name", &prefill_name]);
        command.args(["--node-listen", "tcp://127.0.0.1:0", "--node-lanes", "1"]);
        command.args(["--deadlines-drain", "100ms"]);
        command.env("KVROOM_PLANT_WEDGE", &wedges.0);
    });
    let decode = quiet(&["--name", &decode_name]);
    pool(&prefill);
    pool(&decode);
    let address = json!({"address": prefill.node_address()});
    decode.post("/v1/peers", &address).expect(201);
    let wedge = wedges.0.join("lane-0");
    std::fs::write(&wedge, "").unwrap();
    let sender = json!({"role": "send", "id": 7});
    prefill.post("/v1/rooms", &sender).expect(201);
    let chunk = json!({"tokens": [0, 16], "pool": "kv", "pages": [0]});
    prefill.post("/v1/rooms/7/chunks", &chunk).expect(202);
    let receiver = json!({
        "role": "receive", "id": 7, "from": [prefill_name],
        "pages": [{"pool": "kv", "pages": [0, 1]}],
    });
    decode.post("/v1/rooms", &receiver).expect(201);
    prefill.until("/v1/recording?room=7", |answer| {
        answer.text().contains("\"road\":\"lane 0\"")
    });
    assert_eq!(prefill.delete("/v1/rooms/7").status, 202);
    let dump = folder.dump("stuck");
    let lives = recording::replay::replay(&dump);
    let stuck = lives.iter().find(|life| life.key.id.0 == 7).unwrap();
    assert!(stuck.is_stuck(), "{stuck:?}");
    assert!(stuck.held[0].contains("is with lane 0"), "{stuck:?}");
    // It is told once, and not each second for as long as it lasts.
    std::fs::remove_file(&wedge).unwrap();
    prefill.until("/v1/rooms/7", |room| room.json()["released"] == true);
    assert_eq!(folder.dumps("stuck").len(), 1);
}

#[test]
fn a_shard_that_stands_still_is_read_over_http_and_writes_a_dump() {
    let (folder, wedges) = (Folder::new(), Folder::new());
    let args = ["--recorder-dump-dir", folder.text(), "--node-shards", "1"];
    let mut daemon = Daemon::start_with(&args, |command| {
        command.args(["--health-canary", "false"]);
        command.env("KVROOM_PLANT_WEDGE", &wedges.0);
    });
    storm(&daemon, 1..11);
    let (before, _) = get(&daemon, "");
    let wedge = wedges.0.join("shard-0");
    std::fs::write(&wedge, "").unwrap();
    let (all, _) = get(&daemon, "");
    assert!(all.entries.starts_with(&before.entries));
    // It stands still in its next turn, which the look for stuck rooms gives it.
    let dump = folder.dump("stuck");
    assert!(dump.entries.starts_with(&before.entries));
    assert!(get(&daemon, "").0.entries.starts_with(&before.entries));
    std::fs::remove_file(&wedge).unwrap();
    storm(&daemon, 11..12);
    assert!(daemon.stop().0.success());
}

#[test]
fn a_panic_writes_a_dump_and_the_daemon_serves_on() {
    let (folder, wedges) = (Folder::new(), Folder::new());
    let args = ["--recorder-dump-dir", folder.text(), "--node-lanes", "1"];
    let mut daemon = Daemon::start_with(&args, |command| {
        // The canary's rooms go through the lane.
        command.args([
            "--health-canary",
            "true",
            "--health-canary-interval",
            "200ms",
        ]);
        command.env("KVROOM_PLANT_WEDGE", &wedges.0);
    });
    daemon.until("/readyz", |answer| answer.status == 200);
    let told = |answer: &Answer| answer.text().contains("a job of the lane panicked");
    let planted = wedges.0.join("lane-0");
    let mut panics = 0;
    // Whichever node of the process copies next: the daemon's own, or the small one of its canary.
    while !told(&daemon.get("/v1/recording")) {
        panics += 1;
        assert!(panics <= 50, "its own lane never panicked");
        std::fs::write(wedges.0.join("new"), "panic").unwrap();
        std::fs::rename(wedges.0.join("new"), &planted).unwrap();
        daemon.until("/livez", |_| !planted.exists());
        let ends = Instant::now() + Duration::from_secs(1);
        while !told(&daemon.get("/v1/recording")) && Instant::now() < ends {}
    }
    let dump = folder.dump("panic");
    let jobs = dump.entries.iter().filter(|entry| {
        matches!(
            &entry.what,
            What::Job {
                road: kvroom::record::Road::Lane(0),
                ..
            }
        )
    });
    assert!(jobs.count() > 0, "the canary's job is not in it");
    daemon.until("/readyz", |answer| answer.status == 200);
    assert!((1..=panics).contains(&folder.dumps("panic").len()));
    assert!(daemon.stop().0.success());
}

#[test]
fn a_line_of_a_recording_is_a_json_object_with_what_every_entry_has() {
    let daemon = quiet(&[]);
    storm(&daemon, 1..3);
    let text = daemon.get("/v1/recording").text();
    let lines: Vec<Value> = (text.lines())
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let (header, entries) = lines.split_first().unwrap();
    assert_eq!(header["kvroom_recording"], 1);
    assert!(header["incarnation"].is_object() && header["started_us"].is_number());
    for entry in entries {
        assert!(
            entry["seq"].is_number() && entry["at_us"].is_number(),
            "{entry}"
        );
        assert!(
            entry["part"].is_string() && entry["what"].is_string(),
            "{entry}"
        );
    }
    let room = entries
        .iter()
        .find(|entry| entry["what"] == "room")
        .unwrap();
    assert_eq!(
        (&room["room"], &room["role"]),
        (&json!("1"), &json!("send"))
    );
}
