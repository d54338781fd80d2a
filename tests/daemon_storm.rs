//! Rooms opened and aborted over HTTP by clients that are killed half-way: nothing is left of them.
//!
//! ```text
//!   80 clients, each:  life ─▶ life ─▶ life …      a life ends in the middle of a request: its sockets are reset,
//!        │ receive, chunks, finish, abort           and the next life aborts by tag what the last one left
//!        ▼
//!   decode ◀── session, shared memory ──▶ prefill    then: no live room, no leased page, no held claim, no
//!                                                    more memory or descriptors than before, and a room is done
//! ```
//!
//! `KVROOM_STORM_ROOMS` sets the number of rooms: 4,000 if not said, 10,000 is the full load.
#![allow(
    clippy::unwrap_used,
    reason = "helpers of tests fail by panicking, as tests do"
)]

#[path = "common/daemon.rs"]
mod daemon;

use daemon::{Answer, Daemon, PATIENCE, connect, read_answer};
use serde_json::{Value, json};
use socket2::SockRef;
use std::io::{BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const CLIENTS: u64 = 80;
/// Pages of each client; a room takes two of them.
const PAGES: u64 = 8;
/// Ways in which a life ends.
const DEATHS: usize = 5;
/// Rooms that are over and still shown: so few that they do not count as memory.
const REMEMBERED: u64 = 100;
/// How much more memory a daemon may have in use after the storm than after a small one before it. A room that is
/// only remembered costs some 2 KiB, one that is there some 4 KiB: what 4,000 of them would leave is more than this.
/// What the allocator keeps of the most that was ever in use at once differs by a MiB or two from run to run.
const MORE_MEMORY: u64 = 6 << 20;

fn rooms() -> u64 {
    let said = std::env::var("KVROOM_STORM_ROOMS").ok();
    said.map_or(4_000, |text| text.parse().unwrap())
}

/// Numbers that depend on the seed alone.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n
    }
}

/// What all clients count together.
#[derive(Default)]
struct Tally {
    opened: AtomicU64,
    lives: AtomicU64,
    deaths: [AtomicU64; DEATHS],
}

/// A connection that is reset when dropped, as one of a killed process with unread data is.
struct Socket(BufReader<TcpStream>);

impl Socket {
    fn open(to: SocketAddr) -> Socket {
        let stream = connect(to);
        let reset = SockRef::from(&stream).set_linger(Some(Duration::ZERO));
        reset.unwrap();
        Socket(BufReader::new(stream))
    }

    fn ask(&mut self, request: &[u8]) -> Answer {
        self.0.get_mut().write_all(request).unwrap();
        read_answer(&mut self.0).unwrap()
    }
}

fn request(method: &str, path: &str, body: Option<&Value>) -> Vec<u8> {
    let body = body.map(|body| serde_json::to_vec(body).unwrap());
    let mut message = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n").into_bytes();
    if let Some(body) = &body {
        let head = format!(
            "Content-Type: application/json\r\nContent-Length: {}\r\n",
            body.len()
        );
        message.extend(head.as_bytes());
    }
    message.extend(b"\r\n");
    message.extend(body.unwrap_or_default());
    message
}

/// The life ended.
struct Killed;

/// One life of a client.
struct Life<'a> {
    decode: Socket,
    prefill: Socket,
    dice: &'a mut Dice,
    tally: &'a Tally,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum To {
    Decode,
    Prefill,
}

impl Life<'_> {
    /// Asks, or dies in the middle of it.
    fn ask(
        &mut self,
        to: To,
        method: &str,
        path: &str,
        body: Option<&Value>,
        wanted: &[u16],
    ) -> Result<Answer, Killed> {
        let message = request(method, path, body);
        let dies = self.dice.below(10) == 0;
        let how = self.dice.below(DEATHS as u64) as usize;
        let socket = match to {
            To::Decode => &mut self.decode,
            To::Prefill => &mut self.prefill,
        };
        if dies {
            die(socket, &message, path, how);
            self.tally.deaths[how].fetch_add(1, Ordering::Relaxed);
            return Err(Killed);
        }
        let answer = socket.ask(&message);
        let text = answer.text();
        assert!(
            wanted.contains(&answer.status),
            "{method} {path}: {} {text}",
            answer.status
        );
        Ok(answer)
    }

    /// One room, from its start to its end, wherever that is.
    fn room(&mut self, id: u64, client: u64) -> Result<(), Killed> {
        let tag = tag(client);
        let first = client * PAGES + id % (PAGES / 2) * 2;
        let receive = json!({
            "role": "receive", "id": id, "from": [name_of("prefill")], "tag": tag,
            "pages": [{"pool": "kv", "pages": [first, first + 1]}],
        });
        // Pages may not be back that a former life lent.
        let opened = self.ask(To::Decode, "POST", "/v1/rooms", Some(&receive), &[201, 409])?;
        if opened.status == 201 {
            self.tally.opened.fetch_add(1, Ordering::Relaxed);
        }
        let path = format!("/v1/rooms/{id}");
        let chunks = format!("{path}/chunks");
        let send = json!({"role": "send", "id": id, "tag": tag});
        // Whoever aborted it at the other end was here first.
        self.ask(To::Prefill, "POST", "/v1/rooms", Some(&send), &[201, 409])?;
        let chunk = json!({"tokens": [0, 32], "pool": "kv", "pages": [first, first + 1]});
        self.ask(
            To::Prefill,
            "POST",
            &chunks,
            Some(&chunk),
            &[202, 404, 409, 429],
        )?;
        match self.dice.below(4) {
            0 => {
                let finish = format!("{path}/finish");
                let total = json!({"total": 32});
                self.ask(
                    To::Prefill,
                    "POST",
                    &finish,
                    Some(&total),
                    &[200, 202, 404, 409],
                )?;
            }
            1 => drop(self.ask(To::Decode, "DELETE", &path, None, &[202, 404])?),
            2 => drop(self.ask(To::Prefill, "DELETE", &path, None, &[202, 404])?),
            _ => {
                self.ask(To::Prefill, "DELETE", &path, None, &[202, 404])?;
                self.ask(To::Decode, "DELETE", &path, None, &[202, 404])?;
            }
        }
        Ok(())
    }
}

/// Leaves a request half done; the socket is reset right after.
fn die(socket: &mut Socket, message: &[u8], path: &str, how: usize) {
    let stream = socket.0.get_mut();
    let body = message
        .windows(4)
        .position(|end| end == b"\r\n\r\n")
        .unwrap()
        + 4;
    // The daemon may have closed the connection: then this is death enough.
    let _ = match how {
        // In the middle of the head.
        0 => stream.write_all(&message[..body / 2]),
        // In the middle of the body, if there is one.
        1 => stream.write_all(&message[..body + (message.len() - body) / 2]),
        // Without reading the answer.
        2 => stream.write_all(message),
        // In the middle of the answer.
        3 => stream.write_all(message).and_then(|()| {
            let mut some = [0; 20];
            stream.read_exact(&mut some)
        }),
        // While waiting for a room's end.
        _ => {
            let path = path.trim_end_matches("/chunks").trim_end_matches("/finish");
            stream.write_all(&request("GET", &format!("{path}?wait=30s"), None))
        }
    };
}

fn tag(client: u64) -> String {
    format!("agent-{client}")
}

/// The lives of one client, one after the other, until it has had its rooms.
fn client(ids: impl Iterator<Item = u64>, client: u64, at: [SocketAddr; 2], tally: &Tally) {
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15 ^ (client + 1));
    let mut ids = ids.peekable();
    while ids.peek().is_some() {
        tally.lives.fetch_add(1, Ordering::Relaxed);
        let mut life = Life {
            decode: Socket::open(at[0]),
            prefill: Socket::open(at[1]),
            dice: &mut dice,
            tally,
        };
        // What the last life left.
        let left = json!({"tag": tag(client), "reason": "its client is dead"});
        let left = request("POST", "/v1/aborts", Some(&left));
        for socket in [&mut life.decode, &mut life.prefill] {
            assert_eq!(socket.ask(&left).status, 202);
        }
        for id in ids.by_ref() {
            if life.room(id, client).is_err() {
                break;
            }
        }
    }
}

/// All clients at once, with rooms of these ids.
fn storm(ids: std::ops::Range<u64>, decode: &Daemon, prefill: &Daemon, tally: &Tally) {
    let at = [decode.http, prefill.http];
    std::thread::scope(|scope| {
        for n in 0..CLIENTS {
            let own = ids.clone().filter(move |id| id % CLIENTS == n);
            scope.spawn(move || client(own, n, at, tally));
        }
    });
}

/// Names of nodes are in the names of their pools' files: no two daemons of a host may share one.
fn name_of(role: &str) -> String {
    format!("storm-{role}-{}", std::process::id())
}

fn start(role: &str) -> Daemon {
    let name = name_of(role);
    let remembered = REMEMBERED.to_string();
    let daemon = Daemon::start(&[
        "--name",
        &name,
        "--node-listen",
        "tcp://127.0.0.1:0",
        "--retention-ended-rooms",
        &remembered,
        "--retention-ended-for",
        "1s",
        // Rings that are full after the first rooms, and no rooms but those of the clients.
        "--recorder-entries",
        "1024",
        "--health-canary",
        "false",
        "--limits-spent-keys",
        "256",
    ]);
    let pool = json!({
        "name": "kv", "layers": 2, "pages": CLIENTS * PAGES, "page_bytes": 4096, "page_tokens": 16,
        "memory": {"create": true},
    });
    daemon.post("/v1/pools", &pool).expect(201);
    daemon
}

fn pages_out(daemon: &Daemon) -> Value {
    daemon.get("/v1/pools/kv").expect(200)["leased_pages"].clone()
}

/// Waits until nothing is left of any room, and of those that are over only so many as are remembered.
fn settled(daemon: &Daemon) {
    let start = Instant::now();
    loop {
        // A request whose sender was gone may have been done after its rooms were aborted.
        let aborts = daemon.post("/v1/aborts", &json!({"all": true})).expect(202);
        let live: Vec<Value> = ["registered", "transferring", "draining"]
            .iter()
            .map(|state| {
                daemon.get(&format!("/v1/rooms?state={state}")).expect(200)["rooms"].clone()
            })
            .collect();
        let none = live
            .iter()
            .all(|rooms| rooms.as_array().unwrap().is_empty());
        let stats = daemon.get("/v1/node").expect(200)["stats"].clone();
        let held = [
            "rooms_live",
            "rooms_draining",
            "draining_pages",
            "quarantined_pages",
            "early_claims",
            "claims",
            "actors",
        ];
        let held: Vec<(&str, &Value)> = held.iter().map(|name| (*name, &stats[*name])).collect();
        let nothing = held.iter().all(|(_, value)| **value == json!(0));
        let remembered = daemon.get("/v1/rooms?limit=1000").expect(200)["rooms"].clone();
        let few = remembered.as_array().unwrap().len() as u64 <= REMEMBERED;
        let leased = pages_out(daemon);
        if none && nothing && few && leased == 0 {
            return;
        }
        assert!(
            start.elapsed() < PATIENCE,
            "left: {aborts} {live:?} {held:?}, {leased} pages leased, {few}"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The files that it has open, when they are as few as they were, or at the end of the patience.
fn files(daemon: &Daemon, before: usize) -> usize {
    let start = Instant::now();
    loop {
        let now = daemon.open_files();
        if now <= before || start.elapsed() > PATIENCE {
            return now;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A room through both daemons is done.
fn serves(decode: &Daemon, prefill: &Daemon, id: u64) {
    let receive = json!({
        "role": "receive", "id": id, "from": [name_of("prefill")], "pages": [{"pool": "kv", "pages": [0, 1]}],
    });
    decode.post("/v1/rooms", &receive).expect(201);
    prefill
        .post("/v1/rooms", &json!({"role": "send", "id": id}))
        .expect(201);
    let chunk = json!({"tokens": [0, 32], "pool": "kv", "pages": [0, 1]});
    prefill
        .post(&format!("/v1/rooms/{id}/chunks"), &chunk)
        .expect(202);
    prefill
        .post(&format!("/v1/rooms/{id}/finish"), &json!({"total": 32}))
        .expect(202);
    let room = decode
        .get(&format!("/v1/rooms/{id}?wait=30s&for=released"))
        .expect(200);
    assert_eq!(
        (&room["state"], &room["released"]),
        (&json!("done"), &json!(true)),
        "{room}"
    );
}

#[test]
fn rooms_of_clients_that_are_killed_half_way_leave_nothing_and_the_daemon_serves_on() {
    let rooms = rooms();
    let (mut prefill, mut decode) = (start("prefill"), start("decode"));
    let address = json!({"address": prefill.node_address()});
    decode.post("/v1/peers", &address).expect(201);

    // What is needed once, and the most that is needed at once, is there after a small storm.
    storm(0..rooms / 5, &decode, &prefill, &Tally::default());
    for daemon in [&decode, &prefill] {
        settled(daemon);
    }
    serves(&decode, &prefill, 1 << 40);
    let daemons = [&decode, &prefill];
    // Threads that look for work may come and go; sockets of the clients have to.
    let before = daemons.map(|daemon| (daemon.resident_bytes(), daemon.open_files()));

    let (begun, tally) = (Instant::now(), Tally::default());
    storm(rooms..2 * rooms, &decode, &prefill, &tally);
    let took = begun.elapsed();
    for daemon in daemons {
        settled(daemon);
    }
    let deaths: Vec<u64> = tally
        .deaths
        .iter()
        .map(|n| n.load(Ordering::Relaxed))
        .collect();
    let (opened, lives) = (tally.opened.into_inner(), tally.lives.into_inner());
    println!(
        "{rooms} rooms by {lives} lives of {CLIENTS} clients in {took:?}: {opened} heard that theirs was open"
    );
    println!("killed in the head, in the body, before, in, and waiting for an answer: {deaths:?}");
    assert!(deaths.iter().all(|n| *n > rooms / 100), "{deaths:?}");
    assert!(opened > rooms / 2, "{opened} of {rooms} were opened");
    serves(&decode, &prefill, (1 << 40) + 1);

    for (daemon, (memory, open)) in daemons.into_iter().zip(before) {
        let name = daemon.ready["name"].as_str().unwrap();
        let stats = daemon.get("/v1/node").expect(200)["stats"].clone();
        println!(
            "{name}: {} started, {} done, {} aborted",
            stats["started"], stats["done"], stats["aborted"]
        );
        assert!(stats["aborted"].as_u64() > Some(rooms / 2), "{stats}");
        assert!(stats["done"].as_u64() > Some(rooms / 50), "{stats}");
        assert_eq!(
            (&stats["panicked"], &stats["stray_witnesses"]),
            (&json!(0), &json!(0))
        );
        let (memory_now, open_now) = (daemon.resident_bytes(), files(daemon, open));
        println!(
            "{name}: {} KiB in use before, {} KiB after; {open} files before, {open_now} after",
            memory >> 10,
            memory_now >> 10
        );
        assert!(
            open_now <= open,
            "{name}: {open} files were open, {open_now} are"
        );
        assert!(
            memory_now <= memory + MORE_MEMORY,
            "{name}: {memory} bytes were in use, {memory_now} are"
        );
    }
    decode.delete("/v1/pools/kv?wait=10s").expect(200);
    prefill.delete("/v1/pools/kv?wait=10s").expect(200);
    for daemon in [&mut decode, &mut prefill] {
        let (status, last) = daemon.stop();
        assert!(status.success(), "{status}: {last:?}");
    }
}
