//! The shard core, driven with its rooms beside it.

mod claims;
mod crash;
mod ends;
mod keys;
mod limits;
mod lives;

use super::{CoreLimits, ShardCore};
use crate::ids::{ChunkNo, ClaimId, ClaimNo, Incarnation, LegNo, LifeId, PeerRef, RoomKey};
use crate::peer::message::{Body, ClaimTag};
use crate::reason::{Code, Reason};
use crate::room::testing::{TOTAL, W, cells, chunk, claim};
use crate::room::{JobEnd, Outcome, Room, receiver};
use crate::supervisor::custody::Held;
use crate::supervisor::early::Offer;
use crate::supervisor::io::{Counter, Input, Output, Start, StartRole};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

type L = &'static str;
type In = Input<L, W, ()>;
type Out = Output<L, W, ()>;

const P: PeerRef = PeerRef(1);
const Q: PeerRef = PeerRef(2);
const LEG: LegNo = LegNo(0);
const OTHER: LegNo = LegNo(1);

/// A core and its rooms. Rooms answer at once, unless `stopped`.
struct Shard {
    core: ShardCore<L, W, ()>,
    rooms: BTreeMap<LifeId, Room<W>>,
    mail: VecDeque<(LifeId, crate::room::Event<W>)>,
    stopped: bool,
}

impl Shard {
    fn new() -> Self {
        Shard::with(|_| {})
    }

    fn with(change: impl FnOnce(&mut CoreLimits)) -> Self {
        let mut limits = CoreLimits {
            early_claims_per_peer: 4,
            quarantined_pages_per_peer: 100,
            spent_keys: 8,
        };
        change(&mut limits);
        Shard {
            core: ShardCore::new(limits),
            rooms: BTreeMap::new(),
            mail: VecDeque::new(),
            stopped: false,
        }
    }

    /// Tells the core something and lets everything run; gives back what left the shard.
    fn tell(&mut self, input: In) -> Vec<Out> {
        let mut seen = Vec::new();
        self.core_handles(input, &mut seen);
        self.run_into(&mut seen);
        seen
    }

    /// Lets the rooms catch up.
    fn resume(&mut self) -> Vec<Out> {
        self.stopped = false;
        let mut seen = Vec::new();
        self.run_into(&mut seen);
        seen
    }

    fn run_into(&mut self, seen: &mut Vec<Out>) {
        while !self.stopped
            && let Some((life, event)) = self.mail.pop_front()
        {
            let Some(room) = self.rooms.remove(&life) else {
                continue;
            };
            let mut effects = Vec::new();
            let room = room.handle(event, &mut effects);
            let state = room.state();
            self.rooms.insert(life, room);
            let said = Input::RoomSaid {
                life,
                state,
                effects,
            };
            self.core_handles(said, seen);
        }
    }

    fn core_handles(&mut self, input: In, seen: &mut Vec<Out>) {
        let mut out = Vec::new();
        self.core.handle(input, &mut out);
        for output in out {
            match output {
                Output::Spawn { life, room } => {
                    self.rooms.insert(life, room);
                }
                Output::ToRoom { life, event } => self.mail.push_back((life, event)),
                other => {
                    if let Output::Return { life, .. } = &other {
                        self.rooms.remove(life);
                    }
                    seen.push(other);
                }
            }
        }
    }

    fn send(&mut self, life: u64, key: RoomKey, receivers: u16) -> Vec<Out> {
        self.tell(start(life, key, StartRole::Sender { receivers }))
    }

    /// A receiver with one leg to each peer.
    fn receive(&mut self, life: u64, key: RoomKey, peers: &[PeerRef], checksum: bool) -> Vec<Out> {
        let wanted = cells(0..4, true);
        let legs = vec![receiver::LegPlan { wanted }; peers.len()];
        let terms = receiver::Terms {
            legs,
            total: TOTAL,
            checksum,
        };
        let role = StartRole::Receiver {
            terms,
            peers: peers.to_vec(),
            leases: vec![(Held::Section(0), "dest")],
        };
        self.tell(start(life, key, role))
    }

    /// A claim of `peer` for `key`, rank `rank` of `receivers`.
    fn claim(
        &mut self,
        peer: PeerRef,
        no: u64,
        key: RoomKey,
        receivers: u16,
        rank: u16,
    ) -> Vec<Out> {
        self.tell(Input::Claim {
            peer,
            offer: Offer {
                tag: tag(peer, no, key),
                gate: 7,
                pages: 5,
                checksum: false,
                deadline_ms: u32::MAX,
            },
            terms: Ok(Arc::new(claim(receivers, rank, 0))),
        })
    }

    fn open(&mut self, life: u64, leg: LegNo, tag: ClaimTag) -> Vec<Out> {
        let life = LifeId(life);
        self.tell(Input::ClaimOpened { life, leg, tag })
    }

    fn say(&mut self, peer: PeerRef, body: Body) -> Vec<Out> {
        self.tell(Input::Message { peer, body })
    }

    fn push(&mut self, life: u64) -> Vec<Out> {
        self.tell(Input::Push {
            life: LifeId(life),
            chunk: chunk(0, 0..4),
            lease: "source",
        })
    }

    fn finish(&mut self, life: u64) -> Vec<Out> {
        self.tell(Input::Finish {
            life: LifeId(life),
            total: TOTAL,
            aux: Some("aux"),
        })
    }

    fn job_over(&mut self, life: u64, leg: LegNo, job: u32, end: JobEnd) -> Vec<Out> {
        let carried = if job == 0 {
            Held::Chunk(ChunkNo(0))
        } else {
            Held::Aux
        };
        self.tell(Input::JobOver {
            life: LifeId(life),
            leg,
            job,
            carried,
            rest: 0,
            end,
            witness: 1,
        })
    }

    fn landed(&mut self, life: u64, leg: LegNo, job: u32) -> Vec<Out> {
        self.job_over(life, leg, job, JobEnd::Landed { checksum: 0 })
    }

    fn gate_closed(&mut self, life: u64, leg: LegNo) -> Vec<Out> {
        self.tell(Input::GateClosed {
            life: LifeId(life),
            leg,
            witness: 2,
        })
    }

    fn abort(&mut self, life: u64) -> Vec<Out> {
        self.tell(Input::Abort {
            life: LifeId(life),
            reason: Code::Requested.into(),
        })
    }

    /// Loses the room's actor.
    fn panic(&mut self, life: u64) -> Vec<Out> {
        let life = LifeId(life);
        self.rooms.remove(&life);
        self.mail.retain(|(l, _)| *l != life);
        self.tell(Input::RoomPanicked { life })
    }
}

fn start(life: u64, key: RoomKey, role: StartRole<L>) -> In {
    Input::Start(Box::new(Start {
        life: LifeId(life),
        key,
        tag: None,
        pages: 10,
        attached: (),
        role,
    }))
}

fn key(attempt: u32) -> RoomKey {
    RoomKey::new(42, attempt)
}

fn tag(peer: PeerRef, no: u64, room: RoomKey) -> ClaimTag {
    let life = |node: u32| Incarnation {
        started_ns: u64::from(node),
        nonce: 0,
    };
    ClaimTag {
        id: ClaimId {
            receiver: life(peer.0),
            sender: life(0),
            number: ClaimNo(no),
        },
        room,
    }
}

fn abort_body(tag: ClaimTag) -> Body {
    let reason = Code::Requested.into();
    Body::Abort { tag, reason }
}

fn failed(tag: ClaimTag, code: Code) -> Body {
    let reason = Reason::from(code);
    Body::Failed { tag, reason }
}

/// Names of what was said to a peer, in order.
fn said(out: &[Out], to: PeerRef) -> Vec<&'static str> {
    let say = |o: &Out| match o {
        Output::ToPeer { peer, body } if *peer == to => Some(body.name()),
        _ => None,
    };
    out.iter().filter_map(say).collect()
}

/// The code of the first `Failed` or `Abort` said.
fn told(out: &[Out]) -> Option<Code> {
    out.iter().find_map(|o| match o {
        Output::ToPeer {
            body: Body::Failed { reason, .. } | Body::Abort { reason, .. },
            ..
        } => Some(reason.code),
        _ => None,
    })
}

fn outcomes(out: &[Out]) -> Vec<(u64, Option<Code>)> {
    let publish = |o: &Out| match o {
        Output::Publish { life, outcome } => Some(match outcome {
            Outcome::Done => (life.0, None),
            Outcome::Aborted(reason) => (life.0, Some(reason.code)),
        }),
        _ => None,
    };
    out.iter().filter_map(publish).collect()
}

/// Leases that came back with a life's end.
fn returned(out: &[Out]) -> Option<Vec<L>> {
    out.iter().find_map(|o| match o {
        Output::Return { leases, .. } => Some(leases.iter().map(|(_, l)| *l).collect()),
        _ => None,
    })
}

fn counted(out: &[Out], counter: Counter) -> usize {
    let is = |o: &&Out| **o == Output::Count(counter);
    out.iter().filter(is).count()
}

fn ended_claims(out: &[Out]) -> usize {
    let is = |o: &&Out| matches!(o, Output::ClaimEnded { .. });
    out.iter().filter(is).count()
}
