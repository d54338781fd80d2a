//! Two to five nodes in processes of their own, what is between them, and the faults.
//!
//! ```text
//!   n0 ═shared memory═ n1          every pair is connected, the higher number dials; rooms run in both
//!     ╲               ╱            directions of each pair all the time
//!    proxy         proxy
//!       ╲           ╱
//!        ╲─  n2  ─╱                n2 shares no memory: TCP, through a proxy
//! ```
//!
//! Faults come from a seed and are taken back some time later. In the end everything is healed; then a
//! fresh room of each pair and direction must be Done, and nothing may be left behind.

use super::fault::{Armed, Fault, KINDS, Undo};
use super::node::VARIABLE;
use super::rng::Rng;
use super::rooms::LIFE;
use super::seat::Seat;
use crate::common::PATIENCE;
use crate::common::process::Other;
use crate::common::proxy::{Act, Proxy, Way};
use kvroom::actors::copy::plant::Plant;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

pub(crate) const PLAYER: &str = "plays_a_node_of_the_storm_when_told_to";

/// What is to be done.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    /// Which of the nodes share memory.
    pub(crate) shared: Vec<bool>,
    pub(crate) time: Duration,
    pub(crate) faults: bool,
    /// What the lanes of node 0 do wrong.
    pub(crate) plant: Option<Plant>,
    /// How long everything may take to come back at the end.
    pub(crate) patience: Duration,
    /// The first faults, from the last one on.
    pub(crate) deck: Vec<Fault>,
}

/// What the plan's seed is for.
const DECKS: u64 = 1;
const STRIKES: u64 = 2;

/// What came of it.
#[derive(Debug, Default)]
pub(crate) struct Report {
    /// Everything that is not as it must be.
    pub(crate) wrong: Vec<String>,
    /// What the nodes counted, in all their lives.
    pub(crate) tally: BTreeMap<String, u64>,
    pub(crate) faults: BTreeMap<&'static str, u64>,
}

impl Report {
    /// How many of these the nodes counted.
    pub(crate) fn n(&self, what: &str) -> u64 {
        self.tally.get(what).copied().unwrap_or(0)
    }

    /// What another one counted, too.
    pub(crate) fn add(&mut self, other: Report) {
        for (what, n) in other.tally {
            *self.tally.entry(what).or_default() += n;
        }
        for (fault, n) in other.faults {
            *self.faults.entry(fault).or_default() += n;
        }
    }

    fn count(&mut self, tally: &str) {
        for entry in tally.split(' ').skip(1) {
            if let Some((what, n)) = entry.split_once('=') {
                let n: u64 = n.parse().unwrap();
                *self.tally.entry(what.to_owned()).or_default() += n;
            }
        }
    }
}

/// One node, in whichever life.
pub(crate) struct Place {
    pub(crate) seat: Seat,
    pub(crate) process: Option<Other>,
    /// What its present life has counted, as it said last.
    pub(crate) tally: String,
    pub(crate) stopped: bool,
    /// Its limits are lowered.
    pub(crate) limited: bool,
    /// Rooms that were Done as it said in all its lives: those that it sent, those that it received.
    done: [BTreeSet<String>; 2],
}

fn counted(tally: &str, what: &str) -> u64 {
    let entries = tally.split(' ').filter_map(|e| e.split_once('='));
    let mut n = entries.filter(|(name, _)| *name == what);
    n.next().map_or(0, |(_, n)| n.parse().unwrap())
}

/// Pages that were looked at.
fn looked(tally: &str) -> u64 {
    counted(tally, "looked")
}

impl Place {
    /// How many of these its present life has counted.
    pub(crate) fn counted(&self, what: &str) -> u64 {
        counted(&self.tally, what)
    }

    /// Hears what it says is wrong, and what it has counted.
    pub(crate) fn hear(&mut self, report: &mut Report) {
        let Some(process) = &mut self.process else {
            return;
        };
        report.wrong.extend(process.said("@wrong"));
        for tally in process.said("@tally") {
            // Said by who looks, each time that it has.
            let before = looked(&self.tally);
            if looked(&tally) <= before {
                let name = self.seat.name();
                let wrong = format!("{name} no longer looks at its pages: {before}, then {tally}");
                report.wrong.push(wrong);
            }
            self.tally = tally;
        }
        for end in process.said("@end") {
            let words: Vec<&str> = end.split(' ').collect();
            let done = &mut self.done[usize::from(words[1] == "r")];
            done.insert(words[2].to_owned());
        }
    }
}

/// What is between two nodes that do not share memory. The later one dials through it.
pub(crate) struct Between {
    pub(crate) low: usize,
    pub(crate) high: usize,
    pub(crate) proxy: Proxy,
}

pub(crate) struct Storm {
    pub(crate) rng: Rng,
    pub(crate) places: Vec<Place>,
    pub(crate) between: Vec<Between>,
    pub(crate) undo: Vec<(Instant, Undo)>,
    /// The next fault is the last of these.
    pub(crate) deck: Vec<Fault>,
    pub(crate) armed: Vec<Armed>,
    pub(crate) report: Report,
}

/// Runs it from start to end. Faults are drawn from the deck; those that could strike nothing, or that
/// nothing came to be struck by, go to its end.
pub(crate) async fn run(plan: &Plan) -> Report {
    let mut storm = Storm::start(plan).await;
    let mut decks = Rng::of(plan.seed, &[DECKS]);
    storm.deck.clone_from(&plan.deck);
    let mut strikes = 0;
    let end = Instant::now() + plan.time;
    let mut next = Instant::now() + Duration::from_millis(300);
    while Instant::now() < end && storm.report.wrong.is_empty() {
        // Before anything that was armed is taken back.
        storm.count_armed();
        storm.undo_due(Instant::now()).await;
        if plan.faults && Instant::now() >= next {
            if storm.deck.is_empty() {
                storm.deck.extend(KINDS);
                decks.shuffle(&mut storm.deck);
            }
            // What one draws does not depend on what those before it found.
            strikes += 1;
            storm.rng = Rng::of(plan.seed, &[STRIKES, strikes]);
            let gap = 50 + storm.rng.below(400);
            if let Some(fault) = storm.deck.pop()
                && !storm.strike(fault).await
            {
                storm.deck.insert(0, fault);
            }
            // The fewer there are, the more of them one fault strikes.
            next = Instant::now() + Duration::from_millis(gap * 4 / storm.places.len() as u64);
        }
        storm.listen().await;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    storm.count_armed();
    if storm.report.wrong.is_empty() {
        storm.heal().await;
        storm.fresh().await;
        storm.account(plan.patience).await;
    }
    storm.report
}

impl Storm {
    async fn start(plan: &Plan) -> Storm {
        let mut storm = Storm {
            rng: Rng::new(plan.seed),
            places: Vec::new(),
            between: Vec::new(),
            undo: Vec::new(),
            deck: Vec::new(),
            armed: Vec::new(),
            report: Report::default(),
        };
        for (index, shared) in (0..).zip(&plan.shared) {
            storm.places.push(Place {
                seat: Seat {
                    index,
                    life: 0,
                    listen: "tcp://127.0.0.1:0".into(),
                    shared: *shared,
                    seed: plan.seed,
                    flips: plan.faults,
                    plant: plan.plant.filter(|_| index == 0),
                },
                process: None,
                tally: String::new(),
                stopped: false,
                limited: false,
                done: Default::default(),
            });
            let high = storm.places.len() - 1;
            storm.begin(high).await;
            for low in 0..high {
                if !(plan.shared[low] && plan.shared[high]) {
                    let proxy = Proxy::tcp(&storm.places[low].seat.listen);
                    storm.between.push(Between { low, high, proxy });
                }
            }
            storm.introduce(high);
        }
        storm
    }

    /// Starts a life of a node, at the address that it has, if it had one before.
    pub(crate) async fn begin(&mut self, at: usize) {
        let place = &mut self.places[at];
        let other = Other::start_told(PLAYER, VARIABLE, &place.seat.words()).await;
        place.seat.listen.clone_from(&other.address);
        place.seat.life += 1;
        place.process = Some(other);
        let before = std::mem::take(&mut place.tally);
        self.report.count(&before);
        let place = &mut self.places[at];
        (place.stopped, place.limited) = (false, false);
    }

    /// Tells a node whom to dial.
    pub(crate) fn introduce(&mut self, high: usize) {
        for low in 0..high {
            let name = self.places[low].seat.name();
            let between = self.between.iter().find(|b| (b.low, b.high) == (low, high));
            let address = match between {
                Some(between) => between.proxy.address().to_owned(),
                None => self.places[low].seat.listen.clone(),
            };
            if let Some(process) = &mut self.places[high].process {
                process.tell(&format!("peer {name} {address}"));
            }
        }
    }

    /// Hears what the nodes say is wrong, and that none has ended by itself.
    async fn listen(&mut self) {
        for place in &mut self.places {
            let ended = match &mut place.process {
                Some(process) => process.has_ended(),
                None => continue,
            };
            if ended {
                if let Some(process) = &mut place.process {
                    process.last_words().await;
                }
                let name = place.seat.name();
                self.report
                    .wrong
                    .push(format!("{name} has ended by itself"));
            }
            place.hear(&mut self.report);
            if ended {
                place.process = None;
            }
        }
        for between in &self.between {
            between.proxy.forget();
        }
    }

    async fn heal(&mut self) {
        let all = Instant::now() + Duration::from_secs(3_600);
        self.undo_due(all).await;
        for between in &self.between {
            between.proxy.refuse(false);
            between.proxy.plan(|_| Vec::new());
            between.proxy.reset();
        }
        for place in &mut self.places {
            if let Some(process) = &mut place.process {
                process.ask("calm", "@calm").await;
            }
        }
    }

    /// A fresh room for each pair, in both directions.
    async fn fresh(&mut self) {
        let names: Vec<String> = self.places.iter().map(|p| p.seat.name()).collect();
        for place in &mut self.places {
            for name in names.iter().filter(|name| **name != place.seat.name()) {
                if let Some(process) = &mut place.process {
                    process.tell(&format!("fresh {name}"));
                }
            }
        }
        for place in &mut self.places {
            let own = place.seat.name();
            for name in names.iter().filter(|name| **name != own) {
                if let Some(process) = &mut place.process {
                    let said = process.hears(&format!("@fresh {name}")).await;
                    if said[2..].join(" ") != "done" {
                        self.report.wrong.push(format!("{own}: {}", said.join(" ")));
                    }
                }
            }
        }
    }

    async fn account(&mut self, patience: Duration) {
        for place in &mut self.places {
            if let Some(process) = &mut place.process {
                process.tell(&format!("free {}", patience.as_millis()));
            }
        }
        for place in &mut self.places {
            let Some(process) = &mut place.process else {
                continue;
            };
            let name = place.seat.name();
            let free = process
                .hears_one_of(&["@free", "@stuck"], patience + PATIENCE)
                .await;
            if free.starts_with("@stuck") {
                self.report.wrong.push(format!("{name}: {free}"));
                continue;
            }
            self.report.count(&free);
            self.report.wrong.extend(process.said("@wrong"));
        }
        if !self.report.wrong.is_empty() {
            return;
        }
        for place in &mut self.places {
            if let Some(process) = &mut place.process {
                let said = process.ask("bye", "@bye").await;
                if said[1] != "true" {
                    let name = place.seat.name();
                    self.report
                        .wrong
                        .push(format!("{name} stopped with rooms left"));
                }
            }
        }
        // While one stopped, others may still have written.
        for place in &mut self.places {
            if let Some(process) = &mut place.process {
                process.ask("look", "@looked").await;
            }
        }
        self.listen().await;
        self.compare();
    }

    /// No room is Done for its sender only, but one whose receiver was killed and may not have said so.
    fn compare(&mut self) {
        let mut both = 0;
        let of = |place: &Place| place.seat.index << 44 | (place.seat.life - 1) << 32;
        for receiver in &self.places {
            for room in self.places.iter().flat_map(|sender| &sender.done[0]) {
                let id: u64 = room.split('.').next().unwrap().parse().unwrap();
                if id & LIFE != of(receiver) {
                    continue;
                }
                match receiver.done[1].contains(room) {
                    true => both += 1,
                    false => {
                        let wrong = format!("room {room} is Done for its sender only");
                        self.report.wrong.push(wrong);
                    }
                }
            }
        }
        *self.report.tally.entry("both_Done".into()).or_default() += both;
    }

    /// What is between two nodes is as it was when they began.
    pub(crate) fn mend(&self, at: usize) {
        let proxy = &self.between[at].proxy;
        proxy.plan(|_| Vec::new());
        for link in proxy.open() {
            // Before it is healed: it may have been in a hole, too.
            let lost = [Way::Up, Way::Down].iter().any(|way| link.swallows(*way));
            match lost {
                true => link.now(Way::Up, Act::Reset),
                false => link.heal(),
            }
        }
    }
}
