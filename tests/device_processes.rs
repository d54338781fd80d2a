//! Pages that go straight from a device of one process to a device of another, over the stand-in for the
//! driver; and what is left when either of them is killed in the middle.
//!
//! ```text
//!   test ── "receive 1" ──▶ decode, a process      test ── "send 1" ──▶ prefill, a process
//!        ◀── "@r done 1" ──                             ◀── "@s done 1" ──
//! ```
#![cfg(feature = "cuda")]
#![allow(clippy::unwrap_used)]

mod common;
#[path = "common/standin.rs"]
mod standin;

use common::devices::{is_stamped, stamp, stamped};
use common::*;
use kvroom::device::{Device, DeviceOptions, cuda};
use kvroom::{Deadlines, Node, Outcome, Pool, RoomId};
use standin::{Folder, Orders};
use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

const PLAY: &str = "KVROOM_TEST_DEVICE_PROCESS";
const PLAYS: &str = "plays_a_process_when_told_to";
const PAGE: u64 = 16 << 10;
const ALL: [u32; 6] = [0, 1, 2, 3, 4, 5];

#[tokio::test]
async fn plays_a_process_when_told_to() {
    if let Ok(path) = std::env::var(PLAY) {
        play(&path).await;
    }
}

/// A node with a pool on a device, which does what lines say.
async fn play(path: &str) {
    let options = DeviceOptions {
        slots: 4,
        slot_bytes: 64 << 10,
        kernels: false,
        ..DeviceOptions::default()
    };
    let device = Device::start(cuda::open(0).unwrap(), options).unwrap();
    let pool = Pool::on_device(kv(8, PAGE), &device).unwrap();
    // Before anything is counted: pages that are filled by hand take pinned memory, too.
    drop(stamped(&pool, &[7], 1, 0));
    let pinned = device.context().stats().pinned_bytes;
    let name = format!("node-{}", std::process::id());
    let node = Node::builder(&name).listen(&format!("unix://{path}"));
    let node = node.deadlines(Deadlines {
        resume: Duration::from_secs(1),
        ..Deadlines::default()
    });
    let node = node.pool(pool.clone()).start().await.unwrap();
    let (lines, mut told) = tokio::sync::mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lines() {
            let _ = lines.send(line.unwrap());
        }
    });
    let kept = Arc::new(Mutex::new(Vec::new()));
    let mut peer = None;
    println!("@ready");
    while let Some(line) = told.recv().await {
        let words: Vec<&str> = line.split(' ').collect();
        let id = words.get(1).and_then(|word| word.parse::<u64>().ok());
        match (words[0], id) {
            ("connect", _) => {
                peer = Some(within(node.connect(words[1])).await.unwrap());
                println!("@connected");
            }
            ("receive", Some(id)) => {
                let lease = pool.lease_write(&ALL).unwrap();
                let room = node.receive(RoomId(id)).from(peer.as_ref().unwrap());
                let room = room.into(lease).start().await.unwrap();
                println!("@receiving {id}");
                let kept = Arc::clone(&kept);
                tokio::spawn(async move {
                    let outcome = room.outcome().await;
                    println!("@r {} {id}", end(&outcome));
                    let mut lease = room.released().await.leases.remove(0);
                    if outcome == Outcome::Done {
                        is_stamped(&lease, id, 0);
                    }
                    // Whoever has the pages now writes them; nothing may come after that.
                    stamp(&mut lease, 1000 + id, 0);
                    kept.lock().unwrap().push((1000 + id, lease));
                    println!("@r released {id}");
                });
            }
            ("send", Some(id)) => {
                let room = node.send(RoomId(id)).start().await.unwrap();
                println!("@sending {id}");
                let lease = stamped(&pool, &ALL, id, 0);
                let pushed = push(&room, 0..ALL.len() as u64 * TOKENS, lease).await;
                room.finish(ALL.len() as u64 * TOKENS, None).unwrap();
                tokio::spawn(async move {
                    let outcome = room.outcome().await;
                    println!("@s {} {id}", end(&outcome));
                    drop(pushed.released().await);
                    drop(room.released().await);
                    println!("@s released {id}");
                });
            }
            ("free", _) => {
                for (stamp, lease) in kept.lock().unwrap().drain(..) {
                    is_stamped(&lease, stamp, 0);
                }
                all_free(&pool).await;
                println!("@free");
            }
            ("stats", _) => {
                let now = device.stats();
                let more = device.context().stats().pinned_bytes - pinned;
                println!(
                    "@stats {} {} {} {} {more}",
                    now.handed, now.sent, now.taken, now.received
                );
            }
            _ => panic!("{line}"),
        }
    }
}

fn end(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Done => "done",
        _ => "aborted",
    }
}

/// A process that plays. Killed when dropped.
struct Process {
    child: Child,
    stdin: ChildStdin,
    lines: mpsc::Receiver<String>,
    /// What came and was not waited for.
    seen: VecDeque<String>,
    address: String,
}

impl Process {
    fn start(driver: &Folder, orders: Option<&Orders>) -> Process {
        let path = socket_path();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([PLAYS, "--exact", "--nocapture", "--test-threads=1"]);
        command.env(PLAY, &path).env("LD_LIBRARY_PATH", &driver.0);
        if let Some(orders) = orders {
            command.env("STANDIN_ORDERS", orders.folder());
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let (tell, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                // The harness may have begun the line.
                if let Some(at) = line.find('@') {
                    let _ = tell.send(line[at..].to_owned());
                }
            }
        });
        let mut process = Process {
            stdin: child.stdin.take().unwrap(),
            child,
            lines,
            seen: VecDeque::new(),
            address: format!("unix://{}", path.display()),
        };
        process.hears("@ready");
        process
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.stdin, "{line}").unwrap();
    }

    /// Waits for a line that begins so.
    fn hears(&mut self, start: &str) -> String {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(at) = self.seen.iter().position(|line| line.starts_with(start)) {
                return self.seen.remove(at).unwrap();
            }
            let left = until.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) => self.seen.push_back(line),
                Err(_) => panic!("never: {start}; but {:?}", self.seen),
            }
        }
    }

    fn asks(&mut self, line: &str, answer: &str) -> String {
        self.tell(line);
        self.hears(answer)
    }

    /// What has not come by the time that the process answers something else.
    fn has_not_said(&mut self, start: &str) {
        self.asks("stats", "@stats");
        let said = self.seen.iter().any(|line| line.starts_with(start));
        assert!(!said, "{start} came");
    }

    /// Handed, sent, taken, received; more pinned memory than at the start.
    fn stats(&mut self) -> [u64; 5] {
        let line = self.asks("stats", "@stats");
        let words: Vec<u64> = line
            .split(' ')
            .skip(1)
            .map(|w| w.parse().unwrap())
            .collect();
        words.try_into().unwrap()
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.address["unix://".len()..]);
    }
}

fn starts(prefill: &mut Process, decode: &mut Process, id: u64) {
    decode.asks(&format!("receive {id}"), "@receiving");
    prefill.asks(&format!("send {id}"), "@sending");
}

fn moves(prefill: &mut Process, decode: &mut Process, id: u64) {
    starts(prefill, decode, id);
    for what in ["done", "released"] {
        decode.hears(&format!("@r {what} {id}"));
        prefill.hears(&format!("@s {what} {id}"));
    }
    decode.asks("free", "@free");
}

fn connected(prefill: &Process, decode: &mut Process) {
    let line = format!("connect {}", prefill.address);
    decode.asks(&line, "@connected");
}

/// Waits until a call of the driver stands still in a process that follows these orders.
fn hangs(orders: &Orders, call: &str) {
    let hung = orders.folder().join(format!("hung-{call}"));
    let start = Instant::now();
    while !Path::new(&hung).exists() {
        assert!(start.elapsed() < PATIENCE, "{call} is never called");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// What queues the copies of a frame.
const COPIES: &str = "cuMemcpyBatchAsync";

#[test]
fn pages_go_straight_between_the_devices_of_two_processes() {
    let driver = Folder::with_driver("straight");
    let (mut prefill, mut decode) = (Process::start(&driver, None), Process::start(&driver, None));
    connected(&prefill, &mut decode);
    for id in 1..4 {
        moves(&mut prefill, &mut decode, id);
    }
    let ([handed, sent, ..], [_, _, taken, received, pinned]) = (prefill.stats(), decode.stats());
    assert!(handed > 0 && taken > 0, "{handed} {taken}");
    assert_eq!((sent, received, pinned), (0, 0, 0));
    // There and back, at the same time.
    connected(&decode, &mut prefill);
    prefill.asks("receive 10", "@receiving");
    decode.asks("send 10", "@sending");
    prefill.hears("@r done 10");
    assert_eq!(prefill.stats()[3], 0);
}

#[test]
fn a_ring_that_the_drivers_do_not_open_is_not_used_and_pages_go_over_the_socket() {
    let driver = Folder::with_driver("unopened");
    let orders = Orders::new("unopened");
    orders.give("fail-cuIpcOpenMemHandle", 201);
    let mut prefill = Process::start(&driver, None);
    let mut decode = Process::start(&driver, Some(&orders));
    connected(&prefill, &mut decode);
    moves(&mut prefill, &mut decode, 1);
    let ([handed, sent, ..], [_, _, taken, received, _]) = (prefill.stats(), decode.stats());
    assert_eq!((handed, taken), (0, 0));
    assert!(sent > 0 && received > 0, "{sent} {received}");
}

#[test]
fn a_sender_that_is_killed_while_its_memory_is_read_costs_its_room_and_no_page() {
    let driver = Folder::with_driver("sender-killed");
    let orders = Orders::new("sender-killed");
    let mut prefill = Process::start(&driver, None);
    let mut decode = Process::start(&driver, Some(&orders));
    connected(&prefill, &mut decode);
    moves(&mut prefill, &mut decode, 1);
    orders.give(&format!("hang-{COPIES}"), 1);
    starts(&mut prefill, &mut decode, 2);
    hangs(&orders, COPIES);
    prefill.kill();
    decode.hears("@r aborted 2");
    // Its pages wait for the device.
    decode.has_not_said("@r released 2");
    orders.take_back(&format!("hang-{COPIES}"));
    decode.hears("@r released 2");
    decode.asks("free", "@free");
    assert_eq!(decode.stats()[3], 0, "no bytes came over a socket");
    // And with a new life of it all goes on.
    let mut prefill = Process::start(&driver, None);
    connected(&prefill, &mut decode);
    moves(&mut prefill, &mut decode, 3);
}

#[test]
fn a_receiver_that_is_killed_while_it_reads_costs_its_room_and_no_page_or_slot() {
    let driver = Folder::with_driver("receiver-killed");
    let orders = Orders::new("receiver-killed");
    let mut prefill = Process::start(&driver, None);
    let mut decode = Process::start(&driver, Some(&orders));
    connected(&prefill, &mut decode);
    moves(&mut prefill, &mut decode, 1);
    orders.give(&format!("hang-{COPIES}"), 1);
    starts(&mut prefill, &mut decode, 2);
    hangs(&orders, COPIES);
    decode.kill();
    prefill.hears("@s aborted 2");
    prefill.hears("@s released 2");
    prefill.asks("free", "@free");
    let mut decode = Process::start(&driver, None);
    connected(&prefill, &mut decode);
    for id in 3..6 {
        moves(&mut prefill, &mut decode, id);
    }
    assert_eq!(prefill.stats()[1], 0, "no bytes went over a socket");
}
