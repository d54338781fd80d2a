//! A node of the storm in a process of its own: it receives from every peer that is up, sends to whoever
//! claims, ends some rooms early on either side, and looks at its pages all the time.
//!
//! | Line | What it does | What it answers |
//! |---|---|---|
//! | `peer NAME ADDRESS` | connects, and again whenever there is no session | |
//! | `calm` | starts no room any more but fresh ones | `@calm` |
//! | `abort-all` | aborts every room that there is | |
//! | `hold PIECES MS` | the lane that begins the piece after so many stays inside its gate so long | |
//! | `fresh NAME` | receives a room from that peer | `@fresh NAME done`, `@fresh NAME WHY` |
//! | `no-fit BYTES` | tries to add pools that do not fit | `@no-fit refused`, `@no-fit WHAT` |
//! | `no-file` | tries to open a file | `@no-file refused`, `@no-file opened` |
//! | `free MS` | waits until everything is back and quiet, so long at most | `@free TALLY`, `@stuck WHY` |
//! | `bye` | shuts the node down, and looks at all pages | `@bye DRAINED` |
//! | `look` | looks at all pages | `@looked` |
//!
//! What is wrong it says at once, `@wrong WHAT`, and all the time what it has counted, `@tally TALLY`. Of
//! each room that is Done it says so, `@end s|r ID.ATTEMPT`: what is for its sender must be for its receiver.

use super::canary::Canary;
use super::rooms::FRESH;
use super::seat::Seat;
use crate::common::process::{play_with, say};
use crate::common::{PATIENCE, kv};
use kvroom::actors::copy::plant::Brake;
use kvroom::{Code, Node, Outcome, Peer, PeerState, Pool, PoolLayout, Reason, Which};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::UnboundedReceiver;

pub(crate) const VARIABLE: &str = "KVROOM_CHAOS_NODE";
/// Plays a node if this process was started for that.
pub(crate) fn play_if_told() {
    if let Ok(words) = std::env::var(VARIABLE) {
        play_with(async |told| play(&Seat::of(&words), told).await);
    }
}

/// One life of it.
pub(crate) struct Storm {
    pub(crate) node: Node,
    pub(crate) canary: Canary,
    pub(crate) seat: Seat,
    pub(crate) calm: AtomicBool,
    /// Rooms that are not over, of both roles.
    pub(crate) rooms: AtomicUsize,
    pub(crate) count: Mutex<u64>,
    looks: Mutex<()>,
    /// How often who looks at all pages all the time has done so.
    rounds: AtomicU64,
    tally: Mutex<BTreeMap<String, u64>>,
    dials: Mutex<BTreeMap<String, String>>,
    pub(crate) from: Mutex<BTreeMap<String, usize>>,
}

async fn play(seat: &Seat, mut told: UnboundedReceiver<String>) {
    let (node, pool, brake) = seat.start().await;
    let storm = Arc::new(Storm {
        canary: Canary::new(pool, seat.index << 12 | seat.life, seat.flips),
        seat: seat.clone(),
        calm: AtomicBool::new(false),
        rooms: AtomicUsize::new(0),
        count: Mutex::new(0),
        looks: Mutex::default(),
        rounds: AtomicU64::new(0),
        tally: Mutex::default(),
        dials: Mutex::default(),
        from: Mutex::default(),
        node,
    });
    say(format_args!("ready {}", storm.node.addresses()[0]));
    let looks = Arc::clone(&storm);
    std::thread::spawn(move || {
        loop {
            looks.look();
            looks.rounds.fetch_add(1, Ordering::SeqCst);
            // Often: whoever is killed says nothing more.
            say(format_args!("tally {}", looks.tally()));
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    tokio::spawn(Arc::clone(&storm).connects());
    tokio::spawn(Arc::clone(&storm).receives());
    tokio::spawn(Arc::clone(&storm).sends());
    while let Some(line) = told.recv().await {
        let words: Vec<&str> = line.split(' ').collect();
        match words[0] {
            "peer" => {
                let (name, address) = (words[1].to_owned(), words[2].to_owned());
                lock(&storm.dials).insert(name, address);
            }
            "calm" => {
                storm.calm.store(true, Ordering::SeqCst);
                say("calm");
            }
            "abort-all" => {
                storm.node.abort_where(Which::All, "everything ends").await;
            }
            "hold" => {
                brake.hold_after(words[1].parse().unwrap());
                let long = Duration::from_millis(words[2].parse().unwrap());
                tokio::spawn(Arc::clone(&storm).hold(brake.clone(), long));
            }
            "fresh" => {
                tokio::spawn(Arc::clone(&storm).fresh(words[1].to_owned()));
            }
            "no-fit" => say(format_args!(
                "no-fit {}",
                storm.no_fit(words[1].parse().unwrap())
            )),
            "no-file" => {
                let file = std::fs::File::open("/proc/self/stat");
                let said = file.map_or("refused", |_| "opened");
                say(format_args!("no-file {said}"));
            }
            "free" => {
                storm
                    .free(Duration::from_millis(words[1].parse().unwrap()))
                    .await
            }
            "bye" => {
                let drained = storm.node.shutdown().await.drained;
                storm.look();
                say(format_args!("bye {drained}"));
            }
            "look" => {
                storm.look();
                say("looked");
            }
            other => panic!("told {other:?}"),
        }
    }
}

impl Storm {
    /// Looks at all pages, and has said what is wrong when it returns.
    fn look(&self) {
        // Whoever comes second may find nothing while the first one is about to say it.
        let _one = lock(&self.looks);
        self.canary.scan();
        self.tell_found();
    }

    /// Says what was found wrong.
    pub(crate) fn tell(&self) {
        let _one = lock(&self.looks);
        self.tell_found();
    }

    fn tell_found(&self) {
        for wrong in self.canary.found() {
            say(format_args!("wrong {} {wrong}", self.node.name()));
        }
    }

    pub(crate) fn add(&self, what: impl Into<String>) {
        self.add_n(what, 1);
    }

    fn add_n(&self, what: impl Into<String>, n: u64) {
        *lock(&self.tally).entry(what.into()).or_default() += n;
    }

    /// In words.
    fn tally(&self) -> String {
        let mut words = format!("looked={}", self.canary.looked_at());
        for (what, n) in lock(&self.tally).iter() {
            let _ = write!(words, " {}={n}", what.replace(' ', "_"));
        }
        words
    }

    /// Connects whenever there is no session.
    async fn connects(self: Arc<Self>) {
        loop {
            let dials = lock(&self.dials).clone();
            for (name, address) in dials {
                let peer = self.node.peer(&name).await;
                let is_over = |peer: Peer| matches!(peer.state(), PeerState::Down(_));
                if peer.is_none_or(is_over) {
                    match self.node.connect(&address).await {
                        Ok(_) => self.add("connected"),
                        Err(_) => self.add("not connected"),
                    }
                }
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
    }

    /// A room from this peer that nobody ends.
    async fn fresh(self: Arc<Self>, from: String) {
        let begun = Instant::now();
        let id = self.next_id() | FRESH;
        let mut attempt = 0;
        let outcome = loop {
            let why = match self.node.peer(&from).await {
                Some(peer) if peer.is_up().is_ok() => {
                    match self.receive(&peer, id, attempt).await {
                        // Of a session that had ended on the other side before all was healed: the
                        // next one is there, or comes.
                        Some(Outcome::Aborted(why)) if attempt < 2 && ENDED.contains(&why.code) => {
                            attempt += 1;
                            self.add("fresh again");
                            continue;
                        }
                        Some(outcome) => break outcome,
                        None => "all pages are out",
                    }
                }
                _ => "there is no session",
            };
            if begun.elapsed() > PATIENCE {
                break Outcome::Aborted(Reason::new(Code::LimitReached, why));
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        };
        match outcome {
            Outcome::Done => say(format_args!("fresh {from} done")),
            Outcome::Aborted(why) => say(format_args!("fresh {from} {why}")),
        }
    }

    /// Waits until a lane is inside a gate, not for ever, and lets it go on so long after.
    async fn hold(self: Arc<Self>, brake: Brake, long: Duration) {
        let begun = Instant::now();
        while brake.held() == 0 && begun.elapsed() < Duration::from_secs(2) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        self.add_n("held", brake.held() as u64);
        tokio::time::sleep(long).await;
        brake.release();
    }

    /// Pools that are larger than what this process may have.
    fn no_fit(&self, bytes: u64) -> String {
        let layout = PoolLayout {
            name: "large".into(),
            ..kv(2, bytes)
        };
        let tried = [Pool::owned(layout.clone()), Pool::shared(layout)];
        let mut fits = 0;
        for pool in tried {
            match pool {
                Ok(_) => fits += 1,
                Err(why) => self.add(format!("no pool: {}", kind(&why.to_string()))),
            }
        }
        match fits {
            0 => "refused".into(),
            n => format!("{n} of 2 fit"),
        }
    }

    /// Says when everything is back, or what is not.
    async fn free(&self, patience: Duration) {
        let begun = Instant::now();
        let rounds = || self.rounds.load(Ordering::SeqCst);
        // Whoever looks at the pages does so still.
        let all = rounds() + 2;
        loop {
            let stats = self.node.stats().await;
            let held = [
                stats.rooms_live,
                stats.rooms_draining,
                stats.early_claims,
                stats.claims,
                stats.actors,
                stats.clocks,
                stats.quarantined_pages,
                self.canary.out() as u64,
                self.rooms.load(Ordering::SeqCst) as u64,
                all.saturating_sub(rounds()),
            ];
            if held.iter().all(|n| *n == 0) {
                if stats.stray_witnesses + stats.panicked + stats.overwritten_words > 0 {
                    let what = "stray, panicked or overwritten";
                    self.canary.note(format!("{what}: {stats:?}"));
                }
                self.look();
                self.add_n("resumed", stats.sessions_resumed);
                self.add_n("lost", stats.transports_lost);
                self.add_n("quarantined", stats.rooms_quarantined);
                say(format_args!("free {}", self.tally()));
                return;
            }
            if begun.elapsed() > patience {
                let rooms = self.node.rooms().await;
                say(format_args!("stuck {held:?} {stats:?} {rooms:?}"));
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// How a room ends with its session.
const ENDED: [Code; 3] = [Code::SessionLost, Code::PeerLost, Code::PeerRestarted];

/// The first words of a text, which say what kind it is.
pub(crate) fn kind(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    let kind = words.iter().filter(|w| !w.contains(char::is_numeric));
    kind.take(5).copied().collect::<Vec<_>>().join(" ")
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
