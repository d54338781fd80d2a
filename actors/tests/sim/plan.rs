//! Everything that a seed decides beforehand: nodes, links, requests and faults, printable.
//!
//! ```text
//!   seed ─▶ Plan { nodes, links, requests, faults, calm } ─▶ World
//!                          └─ the minimiser drops some ─┘
//! ```
//!
//! Times are nanoseconds of virtual time from the start. Every fault has ended by `calm`.

use super::chance::Rng;
use kvroom_actors::copy::schedule::Class;
use std::fmt;

pub(crate) const US: u64 = 1_000;
pub(crate) const MS: u64 = 1_000 * US;
pub(crate) const SEC: u64 = 1_000 * MS;

/// How bytes go over a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Fabric {
    /// Both nodes are one process.
    Local,
    /// Two processes of one host; the sender's lane enters the gate.
    Shm,
    /// The receiver's lane enters the gate; frames are under way.
    Tcp,
}

#[derive(Clone, Debug)]
pub(crate) struct NodePlan {
    /// Nodes of one process are stopped and killed together.
    pub(crate) process: usize,
    /// Pages of its pool.
    pub(crate) pages: u32,
    /// Its shard copies small jobs itself.
    pub(crate) copies_small: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct LinkPlan {
    /// The prefill node.
    pub(crate) sender: usize,
    /// The decode node.
    pub(crate) receiver: usize,
    pub(crate) fabric: Fabric,
    /// One way.
    pub(crate) latency: u64,
    /// Claims that the receiver may have open.
    pub(crate) credit: u32,
    /// The first wait before a lost peer is connected to again.
    pub(crate) backoff: u64,
}

/// Who of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Who {
    Sender,
    Receiver(usize),
}

/// What a caller does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mistake {
    /// `finish` says another length than the claim.
    Length,
    /// A chunk is pushed twice with other pages.
    OtherPages,
    /// One chunk is never pushed.
    Missing,
}

#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// Its room; no two requests have the same.
    pub(crate) room: u64,
    pub(crate) at: u64,
    pub(crate) links: Vec<usize>,
    pub(crate) pages: u32,
    /// Whether its last page is half full.
    pub(crate) ragged: bool,
    /// First page that each receiver wants.
    pub(crate) skip: u32,
    /// First page of each chunk.
    pub(crate) cuts: Vec<u32>,
    /// Between two pushes.
    pub(crate) pace: u64,
    /// How much later (or earlier) the receivers start than the sender.
    pub(crate) receivers_late: u64,
    pub(crate) sender_late: u64,
    pub(crate) aux: bool,
    pub(crate) checksum: bool,
    pub(crate) class: Class,
    pub(crate) tag: Option<u8>,
    pub(crate) deadline: u64,
    /// Who aborts, and how long after the request began. In the first attempt only.
    pub(crate) aborts: Vec<(Who, u64)>,
    pub(crate) mistake: Option<Mistake>,
    /// Chunks that are pushed again.
    pub(crate) repeats: bool,
    /// More attempts, if one fails.
    pub(crate) retries: u32,
    /// The next attempt begins as soon as any side of this one has failed.
    pub(crate) impatient: bool,
    /// A fresh room after the storm: it must be done.
    pub(crate) probe: bool,
}

impl Request {
    pub(crate) const PAGE_TOKENS: u64 = 2;

    /// Length in tokens.
    pub(crate) fn total(&self) -> u64 {
        u64::from(self.pages) * Self::PAGE_TOKENS - u64::from(self.ragged)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultKind {
    /// Nothing arrives at these sides of a link: sender, receiver.
    Partition { link: usize, at: [bool; 2] },
    /// Everything takes this many times as long.
    Slow { link: usize, times: u64 },
    /// The control connection breaks; the session can be resumed.
    Reset { link: usize },
    /// A data connection breaks; what was not acknowledged is sent again.
    DataReset { link: usize },
    /// One side (0: sender) gives the session up.
    GiveUp { link: usize, side: usize },
    /// SIGSTOP.
    Stop { process: usize },
    /// kill -9, and a restart.
    Kill { process: usize, pool_survives: bool },
    /// The node's clock jumps.
    ClockStep { node: usize, by: u64 },
    /// A room panics.
    Panic { node: usize, which: u64 },
    /// The next copies of a link fail.
    CopyFails { link: usize, copies: u32 },
    /// A shard takes this many times as long: its mailbox fills.
    SlowShard { node: usize, times: u64 },
    /// A caller aborts everything of a node.
    AbortAll { node: usize },
    /// Everything with the peer of a link.
    AbortPeer { link: usize, side: usize },
    /// Everything with a tag.
    AbortTag { node: usize, tag: u8 },
    /// Every attempt of a room.
    AbortRoom { node: usize, room: u64 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) at: u64,
    /// For faults that end.
    pub(crate) lasts: u64,
    pub(crate) kind: FaultKind,
}

#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) nodes: Vec<NodePlan>,
    pub(crate) links: Vec<LinkPlan>,
    pub(crate) requests: Vec<Request>,
    pub(crate) faults: Vec<Fault>,
    /// All faults have ended.
    pub(crate) calm: u64,
    /// So long after that fresh rooms begin.
    pub(crate) settle: u64,
    pub(crate) layers: u32,
}

/// Longest time of faults.
const STORM: u64 = 10 * SEC;
/// The longest deadline of a request.
const LONGEST: u64 = 15 * SEC;
/// After the storm until fresh rooms begin: sessions are noticed to be dead, given up, begun anew, and
/// whatever waits for somebody who is gone has run into its deadline. Nobody helps it along.
const SETTLE: u64 = LONGEST + 6 * SEC;
/// A fresh room must be done by then.
pub(crate) const PROBE: u64 = 5 * SEC;

impl Plan {
    pub(crate) fn of(seed: u64) -> Plan {
        let mut rng = Rng::new(seed);
        let (nodes, requests, faults) = match rng.draw(0..100) {
            0..75 => (2..4, 3..25, 0..7),
            75..96 => (3..6, 20..70, 2..14),
            _ => (4..6, 120..320, 6..24),
        };
        let nodes = rng.draw(nodes) as usize;
        let requests = rng.draw(requests);
        let faults = rng.draw(faults);
        let mut plan = Plan {
            seed,
            nodes: Vec::new(),
            links: Vec::new(),
            requests: Vec::new(),
            faults: Vec::new(),
            calm: STORM,
            settle: SETTLE,
            layers: rng.draw(1..3) as u32,
        };
        plan.draw_nodes(nodes, &mut rng);
        for room in 0..requests {
            let request = plan.draw_request(room, &mut rng);
            plan.requests.push(request);
        }
        for _ in 0..faults {
            let mut fault = plan.draw_fault(&mut rng);
            if let Some(last) = plan.faults.last()
                && rng.percent(30)
            {
                // Troubles come together.
                fault.at = last.at + rng.draw(0..40) * MS;
                fault.lasts = fault.lasts.min(STORM - fault.at);
            }
            plan.faults.push(fault);
        }
        plan.add_probes();
        plan
    }

    fn draw_nodes(&mut self, nodes: usize, rng: &mut Rng) {
        // The first nodes prefill; one of three may do both.
        let prefills = rng.draw(1..nodes as u64) as usize;
        for node in 0..nodes {
            self.nodes.push(NodePlan {
                process: node,
                pages: [48, 96, 256, 1_024][rng.index(4)],
                copies_small: rng.percent(30),
            });
        }
        for sender in 0..prefills {
            for receiver in prefills..nodes {
                let fabric = match rng.draw(0..100) {
                    0..50 => Fabric::Tcp,
                    50..85 => Fabric::Shm,
                    _ => Fabric::Local,
                };
                self.add_link(sender, receiver, fabric, rng);
                if fabric != Fabric::Local && rng.percent(15) {
                    // Both play both roles.
                    self.add_link(receiver, sender, fabric, rng);
                }
            }
        }
    }

    fn add_link(&mut self, sender: usize, receiver: usize, fabric: Fabric, rng: &mut Rng) {
        if fabric == Fabric::Local {
            let (from, to) = (self.nodes[receiver].process, self.nodes[sender].process);
            for node in &mut self.nodes {
                if node.process == from {
                    node.process = to;
                }
            }
        }
        self.links.push(LinkPlan {
            sender,
            receiver,
            fabric,
            latency: match fabric {
                Fabric::Tcp => rng.draw(20..2_000) * US,
                _ => rng.draw(1..20) * US,
            },
            credit: [1, 2, 4, 16, 64][rng.index(5)],
            backoff: [MS / 2, 20 * MS][rng.index(2)],
        });
    }

    fn draw_request(&self, room: u64, rng: &mut Rng) -> Request {
        let first = rng.index(self.links.len());
        let mut links = vec![first];
        if rng.percent(25) {
            let other =
                |l: &usize| *l != first && self.links[*l].sender == self.links[first].sender;
            links.extend((0..self.links.len()).filter(other).take(1));
        }
        let pages = rng.draw(1..9) as u32;
        let mut cuts = vec![0];
        for page in 1..pages {
            if rng.percent(40) {
                cuts.push(page);
            }
        }
        let late = |rng: &mut Rng| match rng.draw(0..4) {
            0 => rng.draw(0..200) * MS,
            1 => rng.draw(0..3_000) * US,
            _ => 0,
        };
        let mut aborts = Vec::new();
        while rng.percent(30) && aborts.len() < 3 {
            let who = match rng.draw(0..2) {
                0 => Who::Sender,
                _ => Who::Receiver(rng.index(links.len())),
            };
            let after = match rng.draw(0..3) {
                0 => rng.draw(0..500) * MS,
                _ => rng.draw(0..5_000) * US,
            };
            aborts.push((who, after));
        }
        Request {
            room,
            at: rng.draw(0..8_000) * MS,
            links,
            pages,
            ragged: rng.percent(50),
            skip: if pages > 1 && rng.percent(25) { 1 } else { 0 },
            cuts,
            pace: match rng.draw(0..4) {
                0 => rng.draw(1..100) * MS,
                _ => rng.draw(0..500) * US,
            },
            receivers_late: late(rng),
            sender_late: late(rng),
            aux: rng.percent(60),
            checksum: rng.percent(40),
            class: if rng.percent(50) {
                Class::Interactive
            } else {
                Class::Bulk
            },
            tag: rng.percent(50).then(|| rng.draw(0..4) as u8),
            deadline: [SEC, 3 * SEC, 8 * SEC, LONGEST][rng.index(4)],
            aborts,
            mistake: match rng.draw(0..40) {
                0 => Some(Mistake::Length),
                1 => Some(Mistake::OtherPages),
                2 => Some(Mistake::Missing),
                _ => None,
            },
            repeats: rng.percent(20),
            retries: rng.draw(0..3) as u32,
            impatient: rng.percent(40),
            probe: false,
        }
    }

    fn draw_fault(&self, rng: &mut Rng) -> Fault {
        let link = rng.index(self.links.len());
        let node = rng.index(self.nodes.len());
        let process = self.nodes[node].process;
        let side = rng.index(2);
        let tcp = self.links[link].fabric == Fabric::Tcp;
        let kind = match rng.draw(0..100) {
            0..14 if tcp => FaultKind::Partition {
                link,
                at: [[true, true], [true, false], [false, true]][rng.index(3)],
            },
            14..22 => FaultKind::Slow {
                link,
                times: [rng.draw(5..400), rng.draw(400..4_000)][rng.index(2)],
            },
            22..34 => FaultKind::Reset { link },
            34..42 if tcp => FaultKind::DataReset { link },
            42..50 => FaultKind::GiveUp { link, side },
            50..60 => FaultKind::Stop { process },
            60..72 => FaultKind::Kill {
                process,
                pool_survives: rng.percent(50),
            },
            72..77 => FaultKind::ClockStep {
                node,
                by: [rng.draw(1..1_000) * MS, rng.draw(1..100) * SEC][rng.index(2)],
            },
            77..83 => FaultKind::Panic {
                node,
                which: rng.next(),
            },
            83..87 => FaultKind::CopyFails {
                link,
                copies: rng.draw(1..4) as u32,
            },
            87..92 => FaultKind::SlowShard {
                node,
                times: rng.draw(10..300),
            },
            92..94 => FaultKind::AbortAll { node },
            94..96 => FaultKind::AbortPeer { link, side },
            96..98 => FaultKind::AbortTag {
                node,
                tag: rng.draw(0..4) as u8,
            },
            _ => FaultKind::AbortRoom {
                node,
                room: rng.draw(0..self.requests.len() as u64),
            },
        };
        let at = rng.draw(0..9_000) * MS;
        let lasts = match rng.draw(0..3) {
            0 => rng.draw(1..5_000) * MS,
            _ => rng.draw(1..300) * MS,
        };
        Fault {
            at,
            lasts: lasts.min(STORM - at),
            kind,
        }
    }

    /// One fresh room a link, after the storm.
    pub(crate) fn add_probes(&mut self) {
        for link in 0..self.links.len() {
            self.requests.push(Request {
                room: 1_000_000 + link as u64,
                at: self.calm + self.settle,
                links: vec![link],
                pages: 3,
                ragged: true,
                skip: 0,
                cuts: vec![0, 1],
                pace: 0,
                receivers_late: 0,
                sender_late: 0,
                aux: true,
                checksum: true,
                class: Class::Interactive,
                tag: None,
                deadline: PROBE,
                aborts: Vec::new(),
                mistake: None,
                repeats: false,
                retries: 0,
                impatient: false,
                probe: true,
            });
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, node) in self.nodes.iter().enumerate() {
            writeln!(f, "  node {i}: {node:?}")?;
        }
        for (i, link) in self.links.iter().enumerate() {
            writeln!(f, "  link {i}: {link:?}")?;
        }
        for request in self.requests.iter().filter(|r| !r.probe) {
            writeln!(f, "  at {:>9} us {request:?}", request.at / US)?;
        }
        for fault in &self.faults {
            let (at, lasts) = (fault.at / US, fault.lasts / US);
            writeln!(f, "  at {at:>9} us for {lasts} us: {:?}", fault.kind)?;
        }
        Ok(())
    }
}
