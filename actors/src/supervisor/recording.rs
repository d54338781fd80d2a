//! What a shard tells the flight recorder, besides what its rooms tell it.

use super::actor::{Road, Shard};
use super::attached::{Lent, RealInput, RealOutput};
use super::io::{Input, Output, Start, StartRole};
use crate::fabric::tcp::NewJob;
use crate::ids::{ClaimNo, LegNo, LifeId, PeerRef, RoomKey};
use crate::memory::{JobId, Proof, Witness};
use crate::record::{self, Begun, GateIs, Step, Told, What};
use crate::room::event::Event;
use crate::room::{Role, StateName};
use std::time::Duration;

/// A room that is to be started, as the recorder will have it.
pub(super) struct Starting {
    key: RoomKey,
    life: LifeId,
    begun: Begun,
    /// The attempt that it is a new try of.
    retry_of: Option<u32>,
    /// Legs behind the first one. Few rooms have any.
    legs: Vec<(LegNo, PeerRef, u64)>,
}

impl Shard {
    /// What is to be said of a start, before the core takes it.
    pub(super) fn begun(&self, input: &RealInput) -> Option<Starting> {
        let Input::Start(start) = input else {
            return None;
        };
        self.scribe.is_on().then(|| self.starting(start))
    }

    fn starting<A>(&self, start: &Start<Lent, A>) -> Starting
    where
        A: std::ops::Deref<Target = super::attached::Attached>,
    {
        let deadline = start.attached.deadline.or(self.default_deadline());
        let (begun, legs) = match &start.role {
            StartRole::Sender { receivers } => {
                let receivers = *receivers;
                let begun = Begun::Sender {
                    receivers,
                    deadline,
                };
                (begun, Vec::new())
            }
            StartRole::Receiver { terms, peers, .. } => {
                let cells = |leg: usize| terms.legs.get(leg).map_or(0, |l| l.wanted.cells());
                let begun = Begun::Receiver {
                    legs: u16::try_from(terms.legs.len()).unwrap_or(u16::MAX),
                    peer: peers.first().copied().unwrap_or(PeerRef(u32::MAX)),
                    cells: cells(0),
                    total: terms.total,
                    checksum: terms.checksum,
                    pages: start.pages,
                    deadline,
                };
                let more = peers.iter().enumerate().skip(1);
                let legs = more.map(|(i, peer)| (LegNo(i as u16), *peer, cells(i)));
                (begun, legs.collect())
            }
        };
        Starting {
            key: start.key,
            life: start.life,
            begun,
            retry_of: start.attached.retry_of,
            legs,
        }
    }

    /// What became of a start.
    pub(super) fn record_start(&self, starting: Option<Starting>, out: &[RealOutput]) {
        let Some(Starting {
            key,
            life,
            begun,
            retry_of,
            legs,
        }) = starting
        else {
            return;
        };
        let role = match begun {
            Begun::Sender { .. } => Role::Sender,
            Begun::Receiver { .. } => Role::Receiver,
        };
        if let Some(Output::StartRefused { .. }) = out.first() {
            return self.scribe.write(|| What::Refused { key, role });
        }
        let step = |told| {
            What::Room(Step {
                key,
                life,
                role,
                from: StateName::Registered,
                to: StateName::Registered,
                told,
                reason: None,
            })
        };
        self.scribe.write(|| step(Told::Start(begun)));
        if let Some(of) = retry_of {
            self.scribe.write(|| What::Retry {
                key,
                life,
                role,
                of,
            });
        }
        for (leg, peer, cells) in legs {
            let told = Told::Leg { leg, peer, cells };
            self.scribe.write(|| step(told));
        }
    }

    /// A claim meets its room: whose it is.
    pub(super) fn record_bind(&self, life: LifeId, event: &Event<Witness>) {
        let Event::Bind { leg, .. } = event else {
            return;
        };
        let leg = *leg;
        if let Some(l) = self.core().life(life)
            && let Some(record) = l.legs().get(usize::from(leg.0))
            && let Some(tag) = record.claim
        {
            self.scribe.write(|| What::Leg {
                key: l.key(),
                life,
                leg,
                peer: record.peer,
                claim: tag.id.number,
            });
        }
    }

    pub(super) fn record_gate(
        &self,
        key: Option<RoomKey>,
        life: LifeId,
        leg: LegNo,
        claim: ClaimNo,
        is: GateIs,
    ) {
        if let Some(key) = key {
            self.scribe.write(|| What::Gate {
                key,
                life,
                leg,
                claim,
                is,
            });
        }
    }

    /// A job that was built, or could not be; `lane` is the one that it would go to.
    pub(super) fn record_job(
        &self,
        id: JobId,
        job: u32,
        lane: usize,
        built: Option<&(Road, NewJob, bool)>,
    ) {
        if !self.scribe.is_on() {
            return;
        }
        let JobId { life, leg, .. } = id;
        let Some(l) = self.core().life(life) else {
            return;
        };
        let (road, bytes) = match built {
            None => (record::Road::Nowhere, 0),
            Some((road, new, here)) => {
                let lane = record::Road::Lane(u16::try_from(lane).unwrap_or(u16::MAX));
                let road = match road {
                    Road::Tcp(_) => record::Road::Tcp,
                    Road::Ucx(..) => record::Road::Ucx,
                    Road::Device(_, device, _) => {
                        let ordinal = device.context().identity().ordinal;
                        record::Road::Device(u16::try_from(ordinal).unwrap_or(u16::MAX))
                    }
                    Road::Copy(_) if *here => record::Road::Here,
                    Road::Copy(_) => lane,
                };
                (road, new.place.bytes(&new.layout))
            }
        };
        self.scribe.write(|| What::Job {
            key: l.key(),
            life,
            leg,
            job,
            road,
            bytes,
        });
    }

    /// A life is over.
    pub(super) fn record_end(&self, life: LifeId, key: Option<RoomKey>, proofs: &[Proof]) {
        if let Some(key) = key {
            self.scribe.write(|| What::Lease {
                key,
                life,
                proofs: proofs.iter().copied().collect(),
            });
        }
    }

    fn default_deadline(&self) -> Option<Duration> {
        self.deadlines().outcome
    }
}
