//! A node in a process of its own: this test binary once more, told by lines what to do.
//!
//! ```text
//!   test ── "send 1 0" ──▶ stdin   the other process   stdout ── "@done s 1 0" ──▶ test
//! ```
//!
//! A test file that uses it has a test that calls [`play_if_told`]; the other process runs that test
//! and no other. It ends when its stdin does, so it never outlives the test that started it.
//!
//! | Line | What it does | What it answers |
//! |---|---|---|
//! | `connect ADDRESS` | connects | `@connected NAME`, `@refused WHY` |
//! | `send ID ATTEMPT` | starts a sender room | `@sending ID ATTEMPT` |
//! | `push ID ATTEMPT FIRST PAGES` | pushes so many stamped pages, from this page of the request on | `@pushed ID ATTEMPT FIRST` |
//! | `finish ID ATTEMPT PAGES` | finishes it | |
//! | `receive ID ATTEMPT NAME PAGE,…` | starts a receiver room from that peer | `@receiving ID ATTEMPT` |
//! | `retried ID ATTEMPT NAME PAGE,… PAGE,…` | the same, tried again once on the second pages | `@receiving ID ATTEMPT` |
//! | `abort ID ATTEMPT` | aborts whatever has this key | |
//! | `state ID ATTEMPT` | | `@state ID ATTEMPT STATE` |
//! | `hold PIECES` | lets so many pieces pass; the next lane stays inside its gate | `@holding` |
//! | `held` | waits until a lane stands inside a gate | `@held` |
//! | `release` | lets that lane go on, and all after it | `@going` |
//! | `free` | waits until all pages are back and the node is quiet | `@free` |
//! | `disconnect NAME` | ends the session with that peer | `@disconnected NAME` |
//! | `end` | shuts the node down and ends the process | `@ended` |
//! | `ping` | | `@pong` |
//!
//! When a room ends: `@done s|r ID ATTEMPT` (a receiver has compared every byte) or `@aborted s|r ID
//! ATTEMPT CODE WHY`, and when its memory is back `@released s|r ID ATTEMPT`.
#![allow(clippy::unwrap_used)]

use super::*;
use kvroom::{ClusterKey, OneSided, Pages, Retry, UcxUse};
use std::collections::HashMap;
use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;

const PLAY: &str = "KVROOM_TEST_PLAY";

/// The stamp of a room's pages, the same in every process.
pub(crate) fn stamp_of(id: u64, attempt: u32) -> u64 {
    id << 8 | u64::from(attempt)
}

/// Which node another process plays.
#[derive(Clone, Debug)]
pub(crate) struct Role {
    pub(crate) name: &'static str,
    pub(crate) listen: String,
    pub(crate) pages: u32,
    pub(crate) page_bytes: u64,
    /// Its pool can be mapped by nodes of this host.
    pub(crate) shared: bool,
    pub(crate) key: Option<&'static str>,
    pub(crate) liveness_ms: u64,
    pub(crate) resume_ms: u64,
    /// How it uses UCX: transports, whether senders put, a flush's milliseconds, and perhaps a library.
    pub(crate) ucx: Option<String>,
}

impl Default for Role {
    fn default() -> Self {
        Role {
            name: "other",
            listen: "tcp://127.0.0.1:0".into(),
            pages: 16,
            page_bytes: 4096,
            shared: false,
            key: None,
            liveness_ms: 5_000,
            resume_ms: 10_000,
            ucx: None,
        }
    }
}

impl Role {
    fn to_words(&self) -> String {
        let key = self.key.unwrap_or("-");
        let (name, listen) = (self.name, &self.listen);
        let (pages, page_bytes) = (self.pages, self.page_bytes);
        let (liveness, resume) = (self.liveness_ms, self.resume_ms);
        let shared = self.shared;
        let ucx = self.ucx.as_deref().unwrap_or("-");
        format!("{name} {listen} {pages} {page_bytes} {key} {liveness} {resume} {shared} {ucx}")
    }

    async fn start(words: &str, brake: &Brake) -> Side {
        let words: Vec<&str> = words.split(' ').collect();
        let number = |i: usize| words[i].parse::<u64>().unwrap();
        let net = Net {
            key: (words[4] != "-").then(|| ClusterKey::new(words[4]).unwrap()),
            listen: vec![words[1].to_owned()],
            ucx: ucx_of(words[8]),
            ..Net::default()
        };
        let layout = kv(number(2) as u32, number(3));
        let pool = match words[7] {
            "true" => Pool::shared(layout),
            _ => Pool::owned(layout),
        };
        let pool = pool.unwrap();
        let builder = || {
            let brake = brake.clone();
            let node = Node::builder(words[0]).net(net.clone()).pool(pool.clone());
            node.deadlines(Deadlines {
                ping: Duration::from_millis(number(5) / 4),
                liveness: Duration::from_millis(number(5)),
                resume: Duration::from_millis(number(6)),
                backoff_first: Duration::from_millis(5),
                backoff_most: Duration::from_millis(50),
                ..Deadlines::default()
            })
            .configure(|config| config.brake = Some(brake))
        };
        let node = start_at(builder).await;
        let address = node.addresses()[0].clone();
        Side {
            node,
            pool,
            address,
        }
    }
}

/// What [`Role::ucx`] says; not at all for `-`.
pub(crate) fn ucx_of(word: &str) -> UcxOptions {
    if word == "-" {
        return UcxOptions::default();
    }
    let words: Vec<&str> = word.split(';').collect();
    let options = ucx_options();
    UcxOptions {
        when: match words[1] {
            "preferred" => UcxUse::Prefer,
            _ => options.when,
        },
        transports: Some(words[0].to_owned()),
        one_sided: match words[1] {
            "puts" => OneSided::Always,
            _ => OneSided::Rdma,
        },
        flush: Duration::from_millis(words[2].parse().unwrap()),
        library: words.get(3).map(PathBuf::from).or(options.library.clone()),
        ..options
    }
}

/// Starts a node at an address that one had before. Somebody else may have its port just now: a connection
/// that leaves this host takes any that is free.
pub(crate) async fn start_at(builder: impl Fn() -> kvroom::NodeBuilder) -> Node {
    let start = Instant::now();
    loop {
        match builder().start().await {
            Ok(node) => return node,
            Err(why) => {
                let taken = why.to_string().contains("in use");
                assert!(taken && start.elapsed() < Duration::from_secs(1), "{why}");
            }
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Another process that plays a node. Killed when dropped.
pub(crate) struct Other {
    child: Child,
    stdin: ChildStdin,
    lines: tokio::sync::mpsc::UnboundedReceiver<String>,
    /// Said and not asked for yet.
    heard: VecDeque<String>,
    pub(crate) address: String,
    addresses: Vec<String>,
}

impl Other {
    /// Starts it; `player` is the test of this file that calls [`play_if_told`].
    pub(crate) async fn start(player: &str, role: &Role) -> Other {
        Other::start_told(player, PLAY, &role.to_words()).await
    }

    /// Starts this test binary once more, with one test of it and this variable. It says `@ready
    /// ADDRESS…` when it is there.
    pub(crate) async fn start_told(player: &str, variable: &str, told: &str) -> Other {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", player, "--nocapture", "--test-threads=1"])
            .env(variable, told)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = child.stdin.take().unwrap();
        let stdout = child.stdout.take().unwrap();
        let (say, lines) = tokio::sync::mpsc::unbounded_channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                // libtest writes "test NAME ... " in front of the first one.
                if let Some(at) = line.find('@') {
                    let _ = say.send(line[at..].to_owned());
                }
            }
        });
        let mut other = Other {
            child,
            stdin,
            lines,
            heard: VecDeque::new(),
            address: String::new(),
            addresses: Vec::new(),
        };
        let ready = other.hears("@ready").await;
        other.address = ready[1].clone();
        other.addresses = ready[1..].to_vec();
        other
    }

    /// All that it said it can be found at.
    pub(crate) fn addresses(&self) -> &[String] {
        &self.addresses
    }

    pub(crate) fn tell(&mut self, line: &str) {
        // Told in vain if it is dead: whoever waits for its answer will say so.
        let _ = writeln!(self.stdin, "{line}");
        let _ = self.stdin.flush();
    }

    /// Waits until it says a line that begins with these words; others are kept for later. Gives
    /// the words of the line.
    pub(crate) async fn hears(&mut self, begin: &str) -> Vec<String> {
        let fits = |line: &String| {
            line.strip_prefix(begin)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
        };
        let start = Instant::now();
        loop {
            if let Some(at) = self.heard.iter().position(fits) {
                let line = self.heard.remove(at).unwrap();
                return line.split(' ').map(str::to_owned).collect();
            }
            let left = PATIENCE.saturating_sub(start.elapsed());
            match tokio::time::timeout(left, self.lines.recv()).await {
                Ok(Some(line)) => self.heard.push_back(line),
                Ok(None) => panic!("the other process ended before {begin:?}: {:?}", self.heard),
                Err(_) => panic!("never heard {begin:?}, but {:?}", self.heard),
            }
        }
    }

    /// Lines that begin so and were said so far.
    pub(crate) fn said(&mut self, begin: &str) -> Vec<String> {
        while let Ok(line) = self.lines.try_recv() {
            self.heard.push_back(line);
        }
        let all = self.heard.drain(..);
        let (said, rest): (Vec<_>, Vec<_>) = all.partition(|line| line.starts_with(begin));
        self.heard = rest.into();
        said
    }

    /// Whether it has ended by itself, or was killed.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Waits, for so long at most, until it says a line that begins with one of these.
    pub(crate) async fn hears_one_of(&mut self, begins: &[&str], patience: Duration) -> String {
        let start = Instant::now();
        loop {
            let fits = |line: &String| begins.iter().any(|begin| line.starts_with(begin));
            if let Some(at) = self.heard.iter().position(fits) {
                return self.heard.remove(at).unwrap();
            }
            let left = patience.saturating_sub(start.elapsed());
            match tokio::time::timeout(left, self.lines.recv()).await {
                Ok(Some(line)) => self.heard.push_back(line),
                Ok(None) => panic!(
                    "the other process ended before {begins:?}: {:?}",
                    self.heard
                ),
                Err(_) => panic!("never heard any of {begins:?}, but {:?}", self.heard),
            }
        }
    }

    /// Tells it, and waits for an answer that begins so.
    pub(crate) async fn ask(&mut self, line: &str, answer: &str) -> Vec<String> {
        self.tell(line);
        self.hears(answer).await
    }

    /// Whether it has said a line that begins so, and nobody has asked for it.
    pub(crate) fn has_said(&mut self, begin: &str) -> bool {
        while let Ok(line) = self.lines.try_recv() {
            self.heard.push_back(line);
        }
        self.heard.iter().any(|line| line.starts_with(begin))
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// kill -9, and waits until it is gone.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits until it is gone, by itself.
    pub(crate) async fn ends(&mut self) {
        let start = Instant::now();
        while !self.has_ended() {
            assert!(start.elapsed() < PATIENCE, "it does not end");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Everything that it said before it ended has been heard.
    pub(crate) async fn last_words(&mut self) {
        let all = async {
            while let Some(line) = self.lines.recv().await {
                self.heard.push_back(line);
            }
        };
        let heard = tokio::time::timeout(PATIENCE, all).await;
        assert!(heard.is_ok(), "it has ended, and its output has not");
    }

    /// SIGSTOP, and waits until all of it stands.
    pub(crate) fn stop(&self) {
        self.signal("-STOP");
        let start = Instant::now();
        while !self.stands() {
            assert!(start.elapsed() < PATIENCE, "it does not stop");
            std::thread::yield_now();
        }
    }

    /// SIGCONT.
    pub(crate) fn go_on(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        let done = Command::new("kill").args([signal, &pid]).status().unwrap();
        assert!(done.success(), "kill {signal} {pid}: {done}");
    }

    fn stands(&self) -> bool {
        let tasks = format!("/proc/{}/task", self.child.id());
        let stands = |task: std::fs::DirEntry| {
            let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            // The state follows the name in parentheses.
            stat.rsplit(") ").next().is_some_and(|s| s.starts_with('T'))
        };
        let mut tasks = std::fs::read_dir(tasks).unwrap();
        tasks.all(|task| task.is_ok_and(stands))
    }

    /// Resident memory of it in bytes.
    pub(crate) fn resident(&self) -> u64 {
        resident_of(&self.child.id().to_string())
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Resident memory of a process (`self` for this one) in bytes.
pub(crate) fn resident_of(pid: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|l| l.starts_with("VmRSS:")).unwrap();
    let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kib << 10
}

/// Plays a node until stdin ends, if this process was started by [`Other::start`]; else nothing.
pub(crate) fn play_if_told() {
    if let Ok(role) = std::env::var(PLAY) {
        play_with(async |told| play(&role, told).await);
    }
}

/// Runs what plays, with the lines of stdin, and ends this process when stdin does.
pub(crate) fn play_with(play: impl AsyncFnOnce(tokio::sync::mpsc::UnboundedReceiver<String>)) {
    let (tell, told) = tokio::sync::mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            let _ = tell.send(line);
        }
        // Whoever started it is gone, or does not need it any more.
        std::process::exit(0);
    });
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.unwrap().block_on(play(told));
}

/// Says a line to whoever started this process.
pub(crate) fn say(line: impl std::fmt::Display) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "@{line}");
    let _ = out.flush();
}

#[derive(Default)]
struct Rooms {
    sends: HashMap<(u64, u32), Arc<SendRoom>>,
    receives: HashMap<(u64, u32), Arc<ReceiveRoom>>,
    /// Next page of the pool for a chunk.
    next: u32,
}

async fn play(role: &str, mut told: tokio::sync::mpsc::UnboundedReceiver<String>) {
    let brake = Brake::default();
    let side = Role::start(role, &brake).await;
    let mut rooms = Rooms::default();
    say(format_args!("ready {}", side.address));
    while let Some(line) = told.recv().await {
        let words: Vec<&str> = line.split(' ').collect();
        if matches!(
            words[0],
            "send" | "push" | "finish" | "receive" | "retried" | "abort" | "state"
        ) {
            let key = (words[1].parse().unwrap(), words[2].parse().unwrap());
            of_room(&side, &mut rooms, key, words[0], &words[3..]).await;
            continue;
        }
        match words[0] {
            "connect" => match side.node.connect(words[1]).await {
                Ok(peer) => say(format_args!("connected {}", peer.name())),
                Err(why) => say(format_args!("refused {why}")),
            },
            "free" => {
                rooms.sends.clear();
                rooms.receives.clear();
                side.quiet().await;
                say("free");
            }
            "hold" => {
                brake.hold_after(words[1].parse().unwrap());
                say("holding");
            }
            "held" => {
                until("a lane is held", || brake.held() > 0).await;
                say("held");
            }
            "release" => {
                brake.release();
                say("going");
            }
            "disconnect" => {
                let peer = side.node.peer(words[1]).await.unwrap();
                side.node.disconnect(&peer).await;
                say(format_args!("disconnected {}", words[1]));
            }
            "end" => {
                side.node.shutdown().await;
                say("ended");
                return;
            }
            "ping" => say("pong"),
            other => panic!("told {other:?}"),
        }
    }
}

async fn of_room(side: &Side, rooms: &mut Rooms, key: (u64, u32), what: &str, words: &[&str]) {
    let (id, attempt) = key;
    let stamp = stamp_of(id, attempt);
    let number = |i: usize| words[i].parse::<u64>().unwrap();
    match what {
        "send" => {
            let room = side.node.send(RoomId(id)).attempt(attempt);
            let room = Arc::new(room.start().await.unwrap());
            rooms.sends.insert(key, Arc::clone(&room));
            say(format_args!("sending {id} {attempt}"));
            tokio::spawn(async move {
                let outcome = room.outcome().await;
                tell_outcome("s", key, &outcome);
                drop(room.released().await);
                say(format_args!("released s {id} {attempt}"));
            });
        }
        "push" => {
            let (first, n) = (number(0), number(1) as u32);
            let all = side.pool.layout().pages;
            let pages: Vec<u32> = (0..n).map(|i| (rooms.next + i) % all).collect();
            rooms.next = (rooms.next + n) % all;
            let lease = side.stamped(&pages, stamp, first);
            let room = &rooms.sends[&key];
            let tokens = first * TOKENS..(first + u64::from(n)) * TOKENS;
            // Refused if the room is over: whoever told it so waits for that.
            if let Ok(slot) = room.reserve().await {
                let _ = slot.push(Chunk::tokens(tokens).pages(lease));
            }
            say(format_args!("pushed {id} {attempt} {first}"));
        }
        "finish" => {
            let _ = rooms.sends[&key].finish(number(0) * TOKENS, None);
        }
        "receive" => {
            let peer = side.node.peer(words[0]).await.unwrap();
            let pages: Vec<u32> = words[1].split(',').map(|p| p.parse().unwrap()).collect();
            let lease = side.pool.lease_write(&pages).unwrap();
            let room = side.node.receive(RoomId(id)).attempt(attempt);
            let room = Arc::new(room.from(&peer).into(lease).start().await.unwrap());
            rooms.receives.insert(key, Arc::clone(&room));
            say(format_args!("receiving {id} {attempt}"));
            tokio::spawn(async move {
                let outcome = room.outcome().await;
                let back = room.released().await;
                if outcome == Outcome::Done {
                    verify(&back.leases[0], stamp, 0);
                }
                drop(back);
                tell_outcome("r", key, &outcome);
                say(format_args!("released r {id} {attempt}"));
            });
        }
        "retried" => {
            let peer = side.node.peer(words[0]).await.unwrap();
            let lease = |pages: &str| {
                let pages: Vec<u32> = pages.split(',').map(|p| p.parse().unwrap()).collect();
                side.pool.lease_write(&pages).unwrap()
            };
            let mut other = Some(lease(words[2]));
            let room = side.node.receive(RoomId(id)).attempt(attempt);
            let room = room.from(&peer).into(lease(words[1]));
            let pages = move |_: &ReceiveRoom| {
                let leases = vec![other.take()?];
                Some(Pages { leases, aux: None })
            };
            let mut room = room.start_retried(Retry::times(1), pages).await.unwrap();
            say(format_args!("receiving {id} {attempt}"));
            tokio::spawn(async move {
                let outcome = room.outcome().await;
                for room in room.into_rooms() {
                    let back = room.released().await;
                    if back.outcome == Outcome::Done {
                        verify(&back.leases[0], stamp, 0);
                    }
                }
                tell_outcome("r", key, &outcome);
                say(format_args!("released r {id} {attempt}"));
            });
        }
        "abort" => {
            if let Some(room) = rooms.sends.get(&key) {
                room.abort("told to");
            }
            if let Some(room) = rooms.receives.get(&key) {
                room.abort("told to");
            }
        }
        "state" => {
            let send = rooms.sends.get(&key).map(|r| r.poll().state);
            let state = send.or_else(|| rooms.receives.get(&key).map(|r| r.poll().state));
            say(format_args!("state {id} {attempt} {:?}", state.unwrap()));
        }
        other => panic!("told {other:?}"),
    }
}

fn tell_outcome(role: &str, (id, attempt): (u64, u32), outcome: &Outcome) {
    match outcome {
        Outcome::Done => say(format_args!("done {role} {id} {attempt}")),
        Outcome::Aborted(why) => say(format_args!(
            "aborted {role} {id} {attempt} {:?} {why}",
            why.code
        )),
    }
}
