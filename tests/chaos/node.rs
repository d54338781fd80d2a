//! A node of the storm in a process of its own: it receives from every peer that is up, sends to whoever
//! claims, ends some rooms early on either side, and looks at its pages all the time.
//!
//! | Line | What it does | What it answers |
//! |---|---|---|
//! | `peer NAME ADDRESS` | connects, and again whenever there is no session | |
//! | `calm` | starts no room any more but fresh ones | |
//! | `fresh NAME` | receives a room from that peer | `@fresh NAME done`, `@fresh NAME WHY` |
//! | `no-fit BYTES` | tries to add pools that do not fit | `@no-fit refused`, `@no-fit WHAT` |
//! | `free MS` | waits until everything is back and quiet, so long at most | `@free TALLY`, `@stuck WHY` |
//! | `bye` | shuts the node down | `@bye DRAINED` |
//!
//! What is wrong it says at once, `@wrong WHAT`, and all the time what it has counted, `@tally TALLY`.

use super::canary::{Canary, Of, Use};
use super::rng::Rng;
use crate::common::process::{play_with, say};
use crate::common::{PATIENCE, TOKENS, kv};
use kvroom::actors::copy::plant::Plant;
use kvroom::{
    Chunk, Code, Deadlines, EarlyClaim, Limits, Net, Node, Outcome, Peer, PeerState, Pool,
    PoolLayout, RoomId, SendRoom,
};
use std::collections::{BTreeMap, HashSet};
use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::UnboundedReceiver;

pub(crate) const VARIABLE: &str = "KVROOM_CHAOS_NODE";

/// Bytes of a page in one layer; a room has up to [`MOST`] of them.
const PAGE: u64 = 16 << 10;
const MOST: u64 = 6;
const PAGES: u32 = 64;
/// Rooms from one peer at once. More than its credit, so that some wait for that.
const AT_ONCE: usize = 4;
/// Rooms with this bit are not ended early.
const FRESH: u64 = 1 << 50;
/// A session that is lost is noticed in this time.
pub(crate) const LIVENESS: Duration = Duration::from_millis(1_000);

/// What a node of the storm is.
#[derive(Clone, Debug)]
pub(crate) struct Seat {
    pub(crate) index: u64,
    /// Which start of it.
    pub(crate) life: u64,
    pub(crate) listen: String,
    /// It shares its memory with others that do.
    pub(crate) shared: bool,
    pub(crate) seed: u64,
    /// What its lanes do wrong on purpose.
    pub(crate) plant: Option<Plant>,
}

impl Seat {
    pub(crate) fn name(&self) -> String {
        format!("n{}", self.index)
    }

    pub(crate) fn words(&self) -> String {
        let plant = match self.plant {
            None => "-",
            Some(Plant::LateWrite) => "late",
            Some(Plant::TornRead) => "torn",
            Some(Plant::Leak) => "leak",
        };
        format!(
            "{} {} {} {} {} {plant}",
            self.index, self.life, self.listen, self.shared, self.seed
        )
    }

    fn of(words: &str) -> Seat {
        let words: Vec<&str> = words.split(' ').collect();
        Seat {
            index: words[0].parse().unwrap(),
            life: words[1].parse().unwrap(),
            listen: words[2].to_owned(),
            shared: words[3] == "true",
            seed: words[4].parse().unwrap(),
            plant: match words[5] {
                "late" => Some(Plant::LateWrite),
                "torn" => Some(Plant::TornRead),
                "leak" => Some(Plant::Leak),
                _ => None,
            },
        }
    }

    async fn start(&self) -> (Node, Pool) {
        let pool = match self.shared {
            true => Pool::shared(kv(PAGES, PAGE)),
            false => Pool::owned(kv(PAGES, PAGE)),
        };
        let pool = pool.unwrap();
        let (plant, net) = (
            self.plant,
            Net {
                listen: vec![self.listen.clone()],
                // Every changed bit is found.
                payload_crc: true,
                shm: self.shared,
                ..Net::default()
            },
        );
        let node = Node::builder(&self.name())
            .net(net)
            .pool(pool.clone())
            .shards(1 + self.index as usize % 2)
            .limits(Limits {
                rooms: 64,
                gates: 64,
                claims_per_peer: 3,
                early_claims_per_peer: 3,
                chunks_in_flight: 2,
                data_frame_bytes: 64 << 10,
                ..Limits::default()
            })
            .deadlines(Deadlines {
                outcome: Some(Duration::from_secs(8)),
                stall: Duration::from_secs(4),
                drain: Duration::from_millis(500),
                early_claim: Duration::from_secs(3),
                connect: Duration::from_secs(1),
                ping: LIVENESS / 4,
                liveness: LIVENESS,
                resume: Duration::from_millis(700),
                backoff_first: Duration::from_millis(5),
                backoff_most: Duration::from_millis(100),
                ..Deadlines::default()
            })
            .configure(|config| config.plant = plant)
            .start();
        (node.await.unwrap(), pool)
    }
}

/// Plays a node if this process was started for that.
pub(crate) fn play_if_told() {
    if let Ok(words) = std::env::var(VARIABLE) {
        play_with(async |told| play(&Seat::of(&words), told).await);
    }
}

struct Storm {
    node: Node,
    canary: Canary,
    seat: Seat,
    calm: AtomicBool,
    /// Rooms that are not over, of both roles.
    rooms: AtomicUsize,
    count: Mutex<u64>,
    tally: Mutex<BTreeMap<String, u64>>,
    dials: Mutex<BTreeMap<String, String>>,
    from: Mutex<BTreeMap<String, usize>>,
}

async fn play(seat: &Seat, mut told: UnboundedReceiver<String>) {
    let (node, pool) = seat.start().await;
    let storm = Arc::new(Storm {
        canary: Canary::new(pool, seat.index << 12 | seat.life),
        seat: seat.clone(),
        calm: AtomicBool::new(false),
        rooms: AtomicUsize::new(0),
        count: Mutex::new(0),
        tally: Mutex::default(),
        dials: Mutex::default(),
        from: Mutex::default(),
        node,
    });
    say(format_args!("ready {}", storm.node.addresses()[0]));
    let looks = Arc::clone(&storm);
    std::thread::spawn(move || {
        loop {
            looks.canary.scan();
            looks.tell();
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
            "calm" => storm.calm.store(true, Ordering::SeqCst),
            "fresh" => {
                tokio::spawn(Arc::clone(&storm).fresh(words[1].to_owned()));
            }
            "no-fit" => say(format_args!(
                "no-fit {}",
                storm.no_fit(words[1].parse().unwrap())
            )),
            "free" => {
                storm
                    .free(Duration::from_millis(words[1].parse().unwrap()))
                    .await
            }
            "bye" => say(format_args!("bye {}", storm.node.shutdown().await.drained)),
            other => panic!("told {other:?}"),
        }
    }
}

impl Storm {
    fn tell(&self) {
        for wrong in self.canary.found() {
            say(format_args!("wrong {} {wrong}", self.node.name()));
        }
    }

    fn add(&self, what: impl Into<String>) {
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

    async fn receives(self: Arc<Self>) {
        loop {
            let peers = self.node.peers().await;
            for peer in peers {
                let busy = *lock(&self.from).entry(peer.name().to_owned()).or_default();
                if busy < AT_ONCE && peer.is_up().is_ok() && !self.calm.load(Ordering::SeqCst) {
                    let id = self.next_id();
                    self.receive_apart(peer, id, 0);
                }
            }
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
    }

    fn next_id(&self) -> u64 {
        let mut count = lock(&self.count);
        *count += 1;
        self.seat.index << 44 | self.seat.life << 32 | *count
    }

    fn receive_apart(self: &Arc<Self>, peer: Peer, id: u64, attempt: u32) {
        let storm = Arc::clone(self);
        *lock(&self.from).entry(peer.name().to_owned()).or_default() += 1;
        self.rooms.fetch_add(1, Ordering::SeqCst);
        tokio::spawn(async move {
            let outcome = storm.receive(&peer, id, attempt).await;
            if let Some(left) = lock(&storm.from).get_mut(peer.name()) {
                *left -= 1;
            }
            storm.rooms.fetch_sub(1, Ordering::SeqCst);
            storm.count_end("r", outcome);
        });
    }

    /// A whole room from that peer; nothing if no page is free.
    async fn receive(self: &Arc<Self>, peer: &Peer, id: u64, attempt: u32) -> Option<Outcome> {
        let mut rng = Rng::of(self.seat.seed, &[1, id, attempt.into()]);
        let fresh = id & FRESH != 0;
        let of = Of {
            id,
            attempt,
            place: 0,
        };
        let n = 1 + rng.below(MOST) as usize;
        let lease = self.canary.take(Use::Destination, n, of)?;
        let room = self.node.receive(RoomId(id)).attempt(attempt).from(peer);
        let room = room.checksum(rng.percent(20)).into(lease).start();
        let room = match room.await {
            Ok(room) => room,
            Err(why) => {
                self.add(format!("not started: {:?}", kind(&why.to_string())));
                for lease in why.leases {
                    self.canary.back(lease, false);
                }
                return None;
            }
        };
        if !fresh && rng.percent(20) {
            let soon = Duration::from_millis(rng.below(12));
            if tokio::time::timeout(soon, room.outcome()).await.is_err() {
                room.abort("the user left");
            }
        }
        let outcome = room.outcome().await;
        let again = outcome != Outcome::Done && attempt < 2 && rng.percent(50);
        if again && !fresh && !self.calm.load(Ordering::SeqCst) && peer.is_up().is_ok() {
            // At once, whatever becomes of the memory of this one.
            self.receive_apart(peer.clone(), id, attempt + 1);
        }
        let back = room.released().await;
        self.look_at_end(&back.outcome, &outcome, id, attempt);
        if back.proofs.is_empty() || back.leases.len() != 1 {
            self.canary.note(format!(
                "room {id}.{attempt} came back with {} leases on {:?}",
                back.leases.len(),
                back.proofs
            ));
        }
        for lease in back.leases {
            self.canary.back(lease, outcome == Outcome::Done);
        }
        Some(outcome)
    }

    async fn sends(self: Arc<Self>) {
        let mut begun = HashSet::new();
        loop {
            for claim in self.node.early_claims().await {
                let key = (claim.key.id.0, claim.key.attempt);
                if begun.insert(key) {
                    self.rooms.fetch_add(1, Ordering::SeqCst);
                    let storm = Arc::clone(&self);
                    tokio::spawn(async move {
                        let outcome = storm.send(&claim).await;
                        storm.rooms.fetch_sub(1, Ordering::SeqCst);
                        storm.count_end("s", outcome);
                    });
                }
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// The room that this claim is for.
    async fn send(self: &Arc<Self>, claim: &EarlyClaim) -> Option<Outcome> {
        let (id, attempt) = (claim.key.id.0, claim.key.attempt);
        let mut rng = Rng::of(self.seat.seed, &[2, id, attempt.into()]);
        let room = self.node.send(RoomId(id)).attempt(attempt).start();
        let room = match room.await {
            Ok(room) => room,
            Err(why) => {
                self.add(format!("not started: {:?}", kind(&why.to_string())));
                return None;
            }
        };
        let early = (id & FRESH == 0).then(|| rng.below(100));
        let (mut place, total) = (0, claim.pages);
        while place < total {
            let slow = early.is_some_and(|r| (20..30).contains(&r));
            if slow {
                tokio::time::sleep(Duration::from_millis(rng.below(60))).await;
            }
            if early.is_some_and(|r| r < 10) && rng.percent(40) {
                room.abort("preempted");
            }
            if early.is_some_and(|r| (10..14).contains(&r)) && rng.percent(40) {
                // Its chunks come back by themselves.
                self.add("dropped");
                return None;
            }
            // Some are sent at once by the shard, and some by a lane.
            let n = (1 + rng.below(4)).min(total - place);
            if !self.push(&room, id, attempt, place, n).await {
                break;
            }
            place += n;
        }
        let _ = room.finish(total * TOKENS, None);
        let outcome = room.outcome().await;
        let back = room.released().await;
        self.look_at_end(&back.outcome, &outcome, id, attempt);
        for lease in back.leases {
            self.canary.source_back(lease);
        }
        Some(outcome)
    }

    /// False if the room is over.
    async fn push(
        self: &Arc<Self>,
        room: &SendRoom,
        id: u64,
        attempt: u32,
        place: u64,
        n: u64,
    ) -> bool {
        let Ok(slot) = room.reserve().await else {
            return false;
        };
        let of = Of { id, attempt, place };
        let lease = loop {
            match self.canary.take(Use::Source, n as usize, of) {
                Some(lease) => break lease,
                None => tokio::time::sleep(Duration::from_millis(2)).await,
            }
            if room.try_outcome().is_some() {
                return false;
            }
        };
        let tokens = place * TOKENS..(place + n) * TOKENS;
        match slot.push(Chunk::tokens(tokens).pages(lease.into_read())) {
            Ok(chunk) => {
                let storm = Arc::clone(self);
                self.rooms.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(async move {
                    match chunk.released().await {
                        Some(lease) => storm.canary.source_back(lease),
                        None => storm
                            .canary
                            .note(format!("a chunk of {id}.{attempt} never came back")),
                    }
                    storm.rooms.fetch_sub(1, Ordering::SeqCst);
                });
                true
            }
            Err(refused) => {
                self.canary.source_back(refused.chunk.into_lease());
                false
            }
        }
    }

    fn look_at_end(&self, back: &Outcome, said: &Outcome, id: u64, attempt: u32) {
        if back != said {
            self.canary.note(format!(
                "room {id}.{attempt} ended twice: {said}, then {back}"
            ));
        }
        if let Outcome::Aborted(why) = said
            && !MAY_BE.contains(&why.code)
        {
            self.canary.note(format!(
                "room {id}.{attempt} ended for what nobody did: {why}"
            ));
        }
    }

    fn count_end(&self, role: &str, outcome: Option<Outcome>) {
        match outcome {
            Some(Outcome::Done) => self.add(format!("{role} Done")),
            Some(Outcome::Aborted(why)) => self.add(format!("{role} {:?}", why.code)),
            None => {}
        }
    }

    /// A room from this peer that nobody ends.
    async fn fresh(self: Arc<Self>, from: String) {
        let begun = Instant::now();
        let peer = loop {
            if let Some(peer) = self.node.peer(&from).await
                && peer.is_up().is_ok()
            {
                break peer;
            }
            if begun.elapsed() > PATIENCE {
                say(format_args!("fresh {from} there is no session"));
                return;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        };
        let id = self.next_id() | FRESH;
        let outcome = loop {
            match self.receive(&peer, id, 0).await {
                Some(outcome) => break outcome,
                // All pages are out still.
                None if begun.elapsed() < PATIENCE => {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                None => break Outcome::Aborted(Code::LimitReached.into()),
            }
        };
        match outcome {
            Outcome::Done => say(format_args!("fresh {from} done")),
            Outcome::Aborted(why) => say(format_args!("fresh {from} {why}")),
        }
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
            ];
            if held.iter().all(|n| *n == 0) {
                if stats.stray_witnesses + stats.panicked > 0 {
                    self.canary.note(format!("stray or panicked: {stats:?}"));
                }
                self.canary.scan();
                self.tell();
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

/// Ends that these faults can have. No other code is an honest end here.
const MAY_BE: [Code; 12] = [
    Code::Requested,
    Code::HandleDropped,
    Code::PeerLost,
    Code::PeerRestarted,
    Code::SessionLost,
    Code::DeadlineExceeded,
    Code::Stalled,
    Code::EarlyClaimExpired,
    Code::CopyFailed,
    Code::RouteFenced,
    Code::Rejected,
    Code::LimitReached,
];

/// The first words of a text, which say what kind it is.
fn kind(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    let kind = words.iter().filter(|w| !w.contains(char::is_numeric));
    kind.take(5).copied().collect::<Vec<_>>().join(" ")
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
