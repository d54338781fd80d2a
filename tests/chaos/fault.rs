//! The faults, and how each is taken back.

use super::storm::Storm;
use crate::common::proxy::{Act, Link, Way};
use std::process::Command;
use std::time::{Duration, Instant};

/// What happens to the network, or to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// All connections of a pair are reset.
    Reset,
    /// One of them is, once some bytes more have passed.
    ResetSoon,
    /// One direction of one of them ends.
    HalfClose,
    /// What one side sends is lost, and acknowledged.
    HoleOneWay,
    /// What both send is.
    HoleBothWays,
    /// Nothing of one direction is read, and all of it comes later.
    Stand,
    /// Few bytes in a second pass.
    Throttle,
    /// Everything comes later.
    Delay,
    /// A bit of a connection is changed.
    Flip,
    /// New connections are reset, the old ones too.
    Refuse,
    /// A process is killed, and its next life starts at the same address.
    Kill,
    /// A process is stopped and goes on.
    Stop,
    /// A process gets no new file descriptor.
    Files,
    /// A process gets no more memory, and tries to make a pool.
    Memory,
    /// A process aborts all of its rooms, twice.
    AbortAll,
    /// A lane is inside a gate for long: its page is slow.
    Hold,
}

/// All of them, and what is over soonest twice.
pub(crate) const KINDS: [Fault; 17] = [
    Fault::Reset,
    Fault::ResetSoon,
    Fault::HalfClose,
    Fault::HoleOneWay,
    Fault::HoleBothWays,
    Fault::Stand,
    Fault::Throttle,
    Fault::Delay,
    Fault::Flip,
    Fault::Refuse,
    Fault::Kill,
    Fault::Stop,
    Fault::Files,
    Fault::Memory,
    Fault::AbortAll,
    Fault::Hold,
    Fault::Hold,
];

impl Fault {
    /// What it is called in a report.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Fault::Reset => "reset",
            Fault::ResetSoon => "reset soon",
            Fault::HalfClose => "half close",
            Fault::HoleOneWay => "black hole, one way",
            Fault::HoleBothWays => "black hole, both ways",
            Fault::Stand => "one way stands",
            Fault::Throttle => "throttle",
            Fault::Delay => "delay",
            Fault::Flip => "flip",
            Fault::Refuse => "refuse",
            Fault::Kill => "kill",
            Fault::Stop => "stop",
            Fault::Files => "no files",
            Fault::Memory => "no memory",
            Fault::AbortAll => "abort all",
            Fault::Hold => "hold",
        }
    }
}

/// What is to be taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Undo {
    /// Of a pair. No byte of a TCP connection is missing between others, so that one that has lost
    /// some is reset.
    Mend(usize),
    /// Of a pair.
    Accept(usize),
    /// A node's next life.
    Start(usize),
    /// SIGCONT, if it is this life.
    GoOn(usize, u64),
    /// The limits of this life of a node.
    Limits(usize, u64),
}

/// A fault that strikes when something comes, and until then has not happened.
pub(crate) struct Armed {
    fault: Fault,
    sign: Sign,
    /// How often it had been seen before.
    before: u64,
}

/// What shows that it has happened.
enum Sign {
    /// A byte that was changed has gone on.
    Flipped(Link, Way),
    /// The connection was reset at the number of bytes.
    WasReset(Link, Way),
    /// A connection of this pair was refused.
    Refused(usize),
    /// In this life of a node, somebody tried to connect to it, or it to somebody, in vain.
    Tried(usize, u64),
}

impl Storm {
    /// Counts those that have happened. Those that no longer can go to the end of the deck.
    pub(crate) fn count_armed(&mut self) {
        for armed in std::mem::take(&mut self.armed) {
            // In this order: what happens in between has happened.
            let waits = self.waits(&armed.sign);
            if self.seen(&armed.sign) > armed.before {
                self.count(armed.fault);
            } else if waits {
                self.armed.push(armed);
            } else {
                self.deck.insert(0, armed.fault);
            }
        }
    }

    fn arm(&mut self, fault: Fault, sign: Sign) {
        let before = self.seen(&sign);
        self.armed.push(Armed {
            fault,
            sign,
            before,
        });
    }

    fn seen(&self, sign: &Sign) -> u64 {
        match sign {
            Sign::Flipped(link, way) => link.flipped(*way),
            Sign::WasReset(link, way) => link.resets(*way),
            Sign::Refused(at) => self.between[*at].proxy.refused(),
            Sign::Tried(..) if !self.waits(sign) => 0,
            Sign::Tried(at, _) => {
                let to = self.between.iter().filter(|between| between.low == *at);
                let to: u64 = to.map(|between| between.proxy.connections()).sum();
                to + self.places[*at].counted("not_connected")
            }
        }
    }

    fn waits(&self, sign: &Sign) -> bool {
        match sign {
            Sign::Flipped(link, way) | Sign::WasReset(link, way) => {
                link.is_open() && link.is_armed(*way)
            }
            Sign::Refused(at) => self.between[*at].proxy.refuses(),
            Sign::Tried(at, life) => {
                let place = &self.places[*at];
                place.seat.life == *life && place.process.is_some() && place.limited
            }
        }
    }

    fn count(&mut self, fault: Fault) {
        *self.report.faults.entry(fault.name()).or_default() += 1;
    }

    /// Does it somewhere, if it can be done there now.
    pub(crate) async fn strike(&mut self, fault: Fault) -> bool {
        let struck = match fault {
            Fault::Kill
            | Fault::Stop
            | Fault::Files
            | Fault::Memory
            | Fault::AbortAll
            | Fault::Hold => self.strike_process(fault).await,
            _ => self.strike_between(fault),
        };
        let waits = [Fault::ResetSoon, Fault::Flip, Fault::Refuse, Fault::Files];
        if struck && !waits.contains(&fault) {
            self.count(fault);
        }
        struck
    }

    /// One in four is longer than a silence that is borne.
    fn long(&mut self) -> Duration {
        let most = *self.rng.pick(&[300, 300, 600, 2_000]);
        Duration::from_millis(30 + self.rng.below(most))
    }

    fn strike_between(&mut self, fault: Fault) -> bool {
        if self.between.is_empty() {
            return false;
        }
        let at = self.rng.below(self.between.len() as u64) as usize;
        let way = *self.rng.pick(&[Way::Up, Way::Down]);
        let long = self.long();
        let bytes = self.rng.below(100_000);
        let proxy = &self.between[at].proxy;
        let open = proxy.open();
        if open.is_empty() && fault != Fault::Refuse {
            return false;
        }
        let now = Instant::now();
        let later = |undo| (now + long, undo);
        let all = |what: &dyn Fn(&Link)| open.iter().for_each(what);
        match fault {
            Fault::Reset => proxy.reset(),
            Fault::ResetSoon => {
                let link = self.rng.pick(&open).clone();
                self.arm(fault, Sign::WasReset(link.clone(), way));
                link.after_more(way, bytes % 700, Act::Reset);
            }
            Fault::HalfClose => self.rng.pick(&open).now(way, Act::HalfClose),
            Fault::Flip => {
                let bit = 1 << self.rng.below(8);
                let link = self.rng.pick(&open).clone();
                self.arm(fault, Sign::Flipped(link.clone(), way));
                link.after_more(way, bytes % 5_000, Act::Flip(bit));
            }
            Fault::HoleOneWay => {
                all(&|link| link.now(way, Act::Swallow));
                proxy.plan(move |_| vec![(way, 0, Act::Swallow)]);
                self.undo.push(later(Undo::Mend(at)));
            }
            Fault::HoleBothWays => {
                let both = [Way::Up, Way::Down];
                all(&|link| both.iter().for_each(|way| link.now(*way, Act::Swallow)));
                proxy.plan(move |_| both.map(|way| (way, 0, Act::Swallow)).to_vec());
                self.undo.push(later(Undo::Mend(at)));
            }
            Fault::Stand => {
                all(&|link| link.now(way, Act::Stop));
                self.undo.push(later(Undo::Mend(at)));
            }
            Fault::Throttle => {
                all(&|link| link.throttle(way, 20_000 + bytes * 10));
                self.undo.push(later(Undo::Mend(at)));
            }
            Fault::Delay => {
                all(&|link| link.delay(way, Duration::from_millis(bytes % 80)));
                self.undo.push(later(Undo::Mend(at)));
            }
            Fault::Refuse => {
                proxy.refuse(true);
                proxy.reset();
                self.undo.push(later(Undo::Accept(at)));
                self.arm(fault, Sign::Refused(at));
            }
            Fault::Kill
            | Fault::Stop
            | Fault::Files
            | Fault::Memory
            | Fault::AbortAll
            | Fault::Hold => {
                return false;
            }
        }
        true
    }

    async fn strike_process(&mut self, fault: Fault) -> bool {
        let at = self.rng.below(self.places.len() as u64) as usize;
        let now = Instant::now();
        let long = now + self.long();
        let soon = now + Duration::from_millis(self.rng.below(400));
        let (pieces, held) = (self.rng.below(3), 300 + self.rng.below(500));
        let has_network = self.between.iter().any(|b| b.low == at || b.high == at);
        let place = &mut self.places[at];
        let (Some(process), life) = (&mut place.process, place.seat.life) else {
            return false;
        };
        match fault {
            Fault::Kill => {
                process.kill();
                process.last_words().await;
                place.hear(&mut self.report);
                place.process = None;
                self.undo.push((soon, Undo::Start(at)));
            }
            Fault::Stop if !place.stopped => {
                process.stop();
                place.stopped = true;
                self.undo.push((long, Undo::GoOn(at, life)));
            }
            Fault::Files if !place.stopped && !place.limited && has_network => {
                // Fewer than it has: none is taken away, and no new one is given.
                limit(process.pid(), "--nofile=3:");
                place.limited = true;
                self.undo.push((long, Undo::Limits(at, life)));
                let said = process.ask("no-file", "@no-file").await;
                if said[1] != "refused" {
                    self.report.wrong.push(said.join(" "));
                }
                self.arm(fault, Sign::Tried(at, life));
                for between in &self.between {
                    if between.low == at || between.high == at {
                        between.proxy.reset();
                    }
                }
            }
            Fault::Memory if !place.stopped && !place.limited => {
                let has = address_space(process.pid());
                limit(process.pid(), &format!("--as={}:", has + (64 << 20)));
                place.limited = true;
                self.undo.push((soon, Undo::Limits(at, life)));
                let said = process.ask("no-fit 67108864", "@no-fit").await;
                if said[1] != "refused" {
                    self.report.wrong.push(said.join(" "));
                }
            }
            Fault::Hold if !place.stopped => process.tell(&format!("hold {pieces} {held}")),
            Fault::AbortAll => {
                // Also one that is stopped: then it does so when it goes on.
                process.tell("abort-all");
                process.tell("abort-all");
            }
            _ => return false,
        }
        true
    }

    /// Takes back what was to be by then.
    pub(crate) async fn undo_due(&mut self, by: Instant) {
        let (due, later) = self.undo.drain(..).partition(|(at, _)| *at <= by);
        self.undo = later;
        for (_, undo) in due {
            self.take_back(undo).await;
        }
    }

    async fn take_back(&mut self, undo: Undo) {
        match undo {
            Undo::Mend(at) => self.mend(at),
            Undo::Accept(at) => self.between[at].proxy.refuse(false),
            Undo::Start(at) => {
                self.begin(at).await;
                self.introduce(at);
            }
            Undo::GoOn(at, life) => {
                let place = &mut self.places[at];
                if let Some(process) = place.process.as_ref().filter(|_| place.seat.life == life) {
                    process.go_on();
                    place.stopped = false;
                }
            }
            Undo::Limits(at, life) => {
                let place = &mut self.places[at];
                if let Some(process) = place.process.as_ref().filter(|_| place.seat.life == life) {
                    limit(process.pid(), "--nofile=1024:");
                    limit(process.pid(), "--as=unlimited:");
                    place.limited = false;
                }
            }
        }
    }
}

/// Sets a soft limit of a process.
pub(crate) fn limit(pid: u32, what: &str) {
    let done = Command::new("prlimit")
        .args(["--pid", &pid.to_string(), what])
        .status();
    assert!(done.unwrap().success(), "prlimit {what}");
}

/// Bytes of it.
fn address_space(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|l| l.starts_with("VmSize:")).unwrap();
    let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kib << 10
}
