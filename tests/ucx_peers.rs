//! Many peers over UCX: all connect at once, or come and go hundreds of times, and each process is left as it was.
//!
//! ```text
//!   this process: decode nodes ── each connects to each, all at once ──▶ prefill nodes: another process
//!   "rooms 32"   ──▶ stdin   the other process   stdout ── "@ready ADDRESS…", "@moved", "@left BEFORE AFTER"
//! ```
#![allow(clippy::unwrap_used)]

mod common;

use common::process::{Other, play_with, resident_of, say, ucx_of};
use common::*;
use kvroom::{Deadlines, Fabric, LocalHub, Outcome, Peer, RoomId, UcxOptions};
use std::time::{Duration, Instant};
use tokio::sync::Mutex;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::JoinSet;

const PLAYER: &str = "plays_the_prefill_nodes_when_told_to";
const TOLD: &str = "KVROOM_TEST_UCX_PEERS";

/// What a process has is counted: one test at a time.
static ALONE: Mutex<()> = Mutex::const_new(());

/// How long a thousand sessions may take on a machine that has other things to do.
const LONG: Duration = Duration::from_secs(120);

/// Pages of a room.
const PAGES: u64 = 2;

#[test]
fn plays_the_prefill_nodes_when_told_to() {
    if let Ok(words) = std::env::var(TOLD) {
        let (count, ucx) = words.split_once(' ').unwrap();
        let (count, setup) = (count.parse().unwrap(), setup(ucx, count.parse().unwrap()));
        play_with(async |told| play(count, &setup, told).await);
    }
}

async fn play(count: usize, setup: &Setup, mut told: UnboundedReceiver<String>) {
    let before = warm(setup).await;
    let sides = sides("p", count, setup).await;
    let addresses: Vec<&str> = sides.iter().map(|side| &*side.address).collect();
    say(format_args!("ready {}", addresses.join(" ")));
    while let Some(line) = told.recv().await {
        let words: Vec<&str> = line.split(' ').collect();
        match words[0] {
            "rooms" => {
                send_to(&sides, words[1].parse().unwrap()).await;
                say("moved");
            }
            "end" => break,
            other => panic!("told {other:?}"),
        }
    }
    let after = end(sides, before).await;
    say(format_args!("left {before:?} {after:?}"));
}

/// Open descriptors and threads of this process.
#[derive(Clone, Copy, Debug)]
struct Held {
    fds: usize,
    threads: usize,
}

fn held() -> Held {
    let count = |what: &str| {
        let entries = std::fs::read_dir(format!("/proc/self/{what}"));
        entries.unwrap().count()
    };
    Held {
        fds: count("fd"),
        threads: count("task"),
    }
}

/// How many descriptors it may have.
fn most_fds() -> usize {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap();
    let line = limits.lines().find(|l| l.starts_with("Max open files"));
    let soft = line.unwrap().split_whitespace().nth(3).unwrap();
    soft.parse().unwrap_or(usize::MAX)
}

async fn is_here(test: &'static str) -> bool {
    let here = tokio::task::spawn_blocking(move || ucx_is_here(test));
    here.await.unwrap()
}

fn setup(ucx: &str, peers: u32) -> Setup {
    let mut setup = Setup {
        over: Over::Ucx,
        layout: kv(peers * PAGES as u32, 4096),
        // All nodes have the processors of one machine here: a thousand greetings take as long as they take.
        deadlines: Deadlines {
            connect: LONG,
            liveness: LONG,
            ..Deadlines::default()
        },
        ..Setup::default()
    };
    setup.net.ucx = UcxOptions {
        wire_up: LONG,
        ..ucx_of(ucx)
    };
    setup
}

/// What a process has after its first node with UCX has come and gone: the library, and what it opens for all.
async fn warm(setup: &Setup) -> Held {
    let bare = held();
    let first = sides("first", 1, setup).await;
    let whole = held();
    for side in first {
        within(side.node.shutdown()).await;
    }
    let mut now = held();
    until("the first node's threads end", || {
        now = held();
        // UCX keeps one.
        now.threads <= bare.threads + 1 && now.fds < whole.fds
    })
    .await;
    now
}

async fn sides(name: &str, count: usize, setup: &Setup) -> Vec<Side> {
    let (hub, mut sides) = (LocalHub::new(), Vec::new());
    for i in 0..count {
        let name = format!("{name}{i}");
        sides.push(Side::start(&hub, &name, setup, &Default::default()).await);
    }
    sides
}

/// All nodes at once; waits until the process has no more than before.
async fn end(sides: Vec<Side>, before: Held) -> Held {
    for side in &sides {
        side.quiet().await;
    }
    let mut ending = JoinSet::new();
    for side in sides {
        ending.spawn(async move { side.node.shutdown().await.drained });
    }
    while let Some(drained) = within(ending.join_next()).await {
        assert!(drained.unwrap());
    }
    let begun = Instant::now();
    loop {
        let now = held();
        // UCX opens something for all of a process when it first needs it.
        if now.fds <= before.fds + 4 && now.threads <= before.threads + 2 {
            return now;
        }
        assert!(begun.elapsed() < PATIENCE, "{before:?} before, {now:?} now");
        tokio::task::yield_now().await;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The room of a pair.
fn room_of(d: usize, p: usize) -> u64 {
    (d * 1000 + p) as u64
}

fn pages_of(other: usize) -> Vec<u32> {
    (0..PAGES as u32)
        .map(|i| other as u32 * PAGES as u32 + i)
        .collect()
}

/// A room of each of these for each of so many receivers, all at once.
async fn send_to(sides: &[Side], receivers: usize) {
    let mut rooms = Vec::new();
    for (p, side) in sides.iter().enumerate() {
        for d in 0..receivers {
            let id = room_of(d, p);
            let room = within(side.node.send(RoomId(id)).start()).await.unwrap();
            let lease = side.stamped(&pages_of(d), id, 0);
            push(&room, 0..PAGES * TOKENS, lease).await;
            room.finish(PAGES * TOKENS, None).unwrap();
            rooms.push(room);
        }
    }
    for room in rooms {
        assert_eq!(within(room.outcome()).await, Outcome::Done);
        drop(within(room.released()).await);
    }
}

/// Each of these connects to each address, all at once.
async fn all_connect(sides: &[Side], addresses: &[String]) -> Vec<(usize, usize, Peer)> {
    let mut connecting = JoinSet::new();
    for (d, side) in sides.iter().enumerate() {
        for (p, address) in addresses.iter().enumerate() {
            let (node, address) = (side.node.clone(), address.clone());
            connecting.spawn(async move { (d, p, node.connect(&address).await) });
        }
    }
    let mut peers = Vec::new();
    while let Some(met) = within(connecting.join_next()).await {
        let (d, p, peer) = met.unwrap();
        let peer = peer.unwrap_or_else(|why| panic!("d{d} to p{p}: {why}"));
        assert_eq!(peer.fabric(), Some(Fabric::Ucx));
        peers.push((d, p, peer));
    }
    peers
}

/// So many nodes here connect to as many of another process, all at once, and each pair moves a room.
async fn storm(ucx: &str, count: usize) {
    let setup = setup(ucx, count as u32);
    let before = warm(&setup).await;
    let mut other = Other::start_told(PLAYER, TOLD, &format!("{count} {ucx}")).await;
    let decode = sides("d", count, &setup).await;
    let begun = Instant::now();
    let peers = all_connect(&decode, other.addresses()).await;
    println!("{ucx}: connected in {:?}: {:?}", begun.elapsed(), held());
    assert_eq!(peers.len(), count * count);
    let begun = Instant::now();
    let mut rooms = Vec::new();
    for (d, p, peer) in &peers {
        let (side, id) = (&decode[*d], room_of(*d, *p));
        let lease = side.pool.lease_write(&pages_of(*p)).unwrap();
        let room = side.node.receive(RoomId(id)).from(peer).into(lease);
        rooms.push((id, within(room.start()).await.unwrap()));
    }
    other.tell(&format!("rooms {count}"));
    for (id, room) in rooms {
        assert_eq!(within(room.outcome()).await, Outcome::Done);
        verify(&within(room.released()).await.leases[0], id, 0);
    }
    other.hears("@moved").await;
    println!(
        "{ucx}: rooms in {:?}: {} KiB resident",
        begun.elapsed(),
        resident_of("self") >> 10
    );
    // None of them was lost meanwhile.
    for (d, p, peer) in &peers {
        assert!(peer.is_up().is_ok(), "d{d} to p{p}");
    }
    drop(peers);
    let begun = Instant::now();
    let after = end(decode, before).await;
    // It says so only if it was so there, too.
    let there = other.ask("end", "@left").await;
    println!(
        "{ucx}: ended in {:?}: {before:?}, {after:?}; {}",
        begun.elapsed(),
        there.join(" ")
    );
}

#[tokio::test]
async fn a_storm_of_connects_from_many_nodes_to_many_comes_up_and_every_pair_moves_a_room() {
    let test = "a_storm_of_connects_from_many_nodes_to_many_comes_up_and_every_pair_moves_a_room";
    if !is_here(test).await {
        return;
    }
    let _alone = ALONE.lock().await;
    // A session has about ten descriptors on each side over tcp, and eight over shared memory, where it has
    // megabytes, too.
    for (ucx, count) in [
        ("tcp;messages;30000", 32),
        ("posix,sysv;messages;30000", 12),
    ] {
        let needed = 11 * count * count + 1000;
        let most = most_fds();
        assert!(
            most >= needed,
            "{most} descriptors, {needed} are needed: ulimit -n {needed}"
        );
        storm(ucx, count).await;
    }
}

/// What a process has after so many sessions, at some moments.
type Series = Vec<(Held, u64)>;

/// A node that meets another one of this process, gets a room from it, and leaves, again and again.
async fn come_and_go(ucx: &str, times: u64) -> Series {
    let mut duo = Duo::with(setup(ucx, 2)).await;
    let mut series = Vec::new();
    for id in 0..times {
        duo.moves(id, 0, &[0, 1], &[2, 3]).await;
        within(duo.decode.node.disconnect(&duo.peer)).await;
        let again = within(duo.decode.node.connect(&duo.prefill.address)).await;
        duo.peer = again.unwrap();
        assert_eq!(duo.peer.fabric(), Some(Fabric::Ucx));
        if (id + 1).is_multiple_of(times / 6) {
            series.push((held(), resident_of("self") >> 10));
        }
    }
    duo.end().await;
    series
}

#[tokio::test]
async fn a_node_that_has_shut_down_has_no_thread_of_ucx_any_more() {
    let test = "a_node_that_has_shut_down_has_no_thread_of_ucx_any_more";
    if !is_here(test).await {
        return;
    }
    let _alone = ALONE.lock().await;
    let threads = || {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let names =
            tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
        names.filter(|name| name.trim() == "kvroom-ucx").count()
    };
    let before = threads();
    for ucx in ["tcp;messages;30000", "posix,sysv;messages;30000"] {
        let duo = Duo::with(setup(ucx, 2)).await;
        duo.moves(1, 0, &[0, 1], &[2, 3]).await;
        assert_eq!(threads(), before + 2);
        let report = within(duo.decode.node.shutdown()).await;
        assert!(report.drained);
        // It calls UCX no more, and is about to end; the node itself is still held.
        until("the thread's end", || threads() == before + 1).await;
        within(duo.prefill.node.shutdown()).await;
        until("the other thread's end", || threads() == before).await;
    }
}

/// Of the UCX that is used here.
async fn version() -> (u32, u32, u32) {
    let side = sides("asked", 1, &setup("tcp;messages;30000", 1)).await;
    side[0].node.ucx().unwrap().unwrap().version
}

/// Sessions of each kind.
const TIMES: u64 = 240;

#[tokio::test]
async fn peers_that_come_and_go_hundreds_of_times_leave_nothing_but_the_workers_that_puts_keep() {
    let test =
        "peers_that_come_and_go_hundreds_of_times_leave_nothing_but_the_workers_that_puts_keep";
    if !is_here(test).await {
        return;
    }
    let _alone = ALONE.lock().await;
    let version = version().await;
    for ucx in ["tcp;messages;30000", "posix,sysv;messages;10000"] {
        let series = come_and_go(ucx, TIMES).await;
        println!("{ucx}: {series:?}");
        // The first third warms up: allocators, and what UCX keeps. What leaks would grow with every session.
        let (warm, last) = (series[1], series[series.len() - 1]);
        assert!(last.0.fds <= warm.0.fds + 8, "{ucx}: {series:?}");
        assert!(last.0.threads <= warm.0.threads + 2, "{ucx}: {series:?}");
        let grown = last.1.saturating_sub(warm.1);
        // UCX 1.13 never gives back what a worker that sends over tcp took for headers: half a megabyte.
        let kept = match ucx.starts_with("tcp") && version < (1, 14, 0) {
            true => TIMES * 4 / 6 * 600,
            false => 0,
        };
        assert!(
            grown < kept + (8 << 10),
            "{ucx}: {grown} KiB more: {series:?}"
        );
    }
    // Each session leaves two workers here, one of each side, with their descriptors; `ucx.retired` bounds them.
    let ucx = "posix,sysv;puts;30000";
    let series = come_and_go(ucx, TIMES / 2).await;
    println!("{ucx}: {series:?}");
    let (first, last) = (series[0], series[series.len() - 1]);
    let each = (last.0.fds - first.0.fds) as u64 / (TIMES / 2 * 5 / 6);
    assert!(each <= 24, "{each} descriptors of each session: {series:?}");
    assert!(last.0.threads <= first.0.threads + 2, "{series:?}");
}
