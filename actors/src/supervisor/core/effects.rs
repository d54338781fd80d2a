//! What a room wants, done in its name: debts are recorded before what they stand for goes out.

use super::ShardCore;
use crate::ids::{LegNo, LifeId};
use crate::peer::message::Body;
use crate::reason::Reason;
use crate::room::event::{Effect, JobSpec, Note, Say};
use crate::room::{Outcome, Quiescence, Role};
use crate::supervisor::custody::Held;
use crate::supervisor::early::Offer;
use crate::supervisor::io::{ClaimKey, Counter, Output};
use crate::supervisor::spent::KeyUse;
use kvroom_kernels::coverage::Coverage;

impl<L, W, A> ShardCore<L, W, A> {
    pub(super) fn effect(
        &mut self,
        life: LifeId,
        effect: Effect<W>,
        out: &mut Vec<Output<L, W, A>>,
    ) {
        match effect {
            Effect::OpenClaim(leg) => {
                let peer = if crate::switched!(CustodyAfterAddress) {
                    self.peer_of(life, leg)
                } else {
                    self.owe(life, leg, None, out)
                };
                if let Some(peer) = peer {
                    out.push(Output::OpenClaim { life, leg, peer });
                }
            }
            Effect::WithdrawClaim(leg) => {
                crate::switched!(ReleaseOnWithdrawal => {
                    if let Some(l) = self.lives.get_mut(&life) {
                        l.custody.forgive(Some(leg));
                    }
                });
                if let Some(peer) = self.peer_of(life, leg) {
                    out.push(Output::WithdrawClaim { life, leg, peer });
                }
            }
            Effect::CloseGate(leg) => out.push(Output::CloseGate { life, leg }),
            Effect::Sum => {
                if let Some(l) = self.lives.get_mut(&life) {
                    l.summing = true;
                    out.push(Output::Sum { life });
                }
            }
            Effect::RefuseClaim { leg, reason } => self.refuse_claim(life, leg, reason, out),
            Effect::Post { leg, job, spec } => {
                let carried = carried(&spec);
                if self.owe(life, leg, Some(carried), out).is_some() {
                    out.push(Output::Post {
                        life,
                        leg,
                        job,
                        spec,
                    });
                }
            }
            Effect::CancelJobs => out.push(Output::CancelJobs { life }),
            Effect::ReleaseChunk(chunk) => {
                let lease = self
                    .lives
                    .get_mut(&life)
                    .and_then(|l| l.custody.release(Held::Chunk(chunk)));
                if let Some(lease) = lease {
                    out.push(Output::ReleaseChunk { life, chunk, lease });
                }
            }
            Effect::BounceChunk { chunk, reason } => {
                let lease = self
                    .lives
                    .get_mut(&life)
                    .and_then(|l| l.custody.release(Held::Chunk(chunk)));
                if let Some(lease) = lease {
                    out.push(Output::Bounce { lease, reason });
                }
            }
            Effect::Say { leg, say } => self.say(life, leg, say, out),
            Effect::SetTimer(timer) => out.push(Output::SetTimer { life, timer }),
            Effect::ClearTimer(timer) => out.push(Output::ClearTimer { life, timer }),
            Effect::Publish(outcome) => self.publish(life, outcome, out),
            Effect::Seal => {
                if let Some(l) = self.lives.get_mut(&life) {
                    crate::switched!(ReleaseOnDone => {
                        if l.outcome.is_none() {
                            l.custody.forgive(None);
                        }
                    });
                    l.custody.seal();
                }
                self.prove(life, out);
            }
            Effect::Quarantine => self.quarantine(life, out),
            Effect::ReturnLease(proof) => self.give_back(life, proof, out),
            Effect::Note(note) => out.push(Output::Count(match note {
                Note::Stale(_) => Counter::StaleEvent,
                Note::RepeatedChunk => Counter::RepeatedChunk,
            })),
        }
    }

    /// Records a debt; says whose peer it concerns, or nothing if the life may owe no more.
    fn owe(
        &mut self,
        life: LifeId,
        leg: LegNo,
        carries: Option<Held>,
        out: &mut Vec<Output<L, W, A>>,
    ) -> Option<crate::ids::PeerRef> {
        let l = self.lives.get_mut(&life)?;
        let peer = l.legs.get(usize::from(leg.0))?.peer;
        if l.custody.owe(leg, carries).is_err() {
            out.push(Output::Count(Counter::StaleEvent));
            return None;
        }
        Some(peer)
    }

    pub(super) fn peer_of(&self, life: LifeId, leg: LegNo) -> Option<crate::ids::PeerRef> {
        self.lives
            .get(&life)?
            .legs
            .get(usize::from(leg.0))
            .map(|l| l.peer)
    }

    pub(super) fn say(
        &mut self,
        life: LifeId,
        leg: LegNo,
        say: Say,
        out: &mut Vec<Output<L, W, A>>,
    ) {
        let Some(record) = self
            .lives
            .get_mut(&life)
            .and_then(|l| l.legs.get_mut(usize::from(leg.0)))
        else {
            return;
        };
        let Some(tag) = record.claim.filter(|_| !record.closed) else {
            return;
        };
        record.ended |= matches!(say, Say::Failed(_) | Say::Abort(_));
        let peer = record.peer;
        let body = match say {
            Say::Bound => Body::Bound { tag },
            Say::Progress { posted, written } => Body::Progress {
                tag,
                posted,
                written,
            },
            Say::Complete {
                total,
                coverage,
                checksum,
            } => Body::Complete {
                tag,
                total,
                coverage,
                checksum,
            },
            Say::Failed(reason) => Body::Failed { tag, reason },
            Say::Quiesced { landed } => Body::Quiesced { tag, landed },
            Say::Accepted => Body::Accepted { tag },
            Say::Rejected(reason) => Body::Rejected { tag, reason },
            Say::Abort(reason) => Body::Abort { tag, reason },
        };
        out.push(Output::ToPeer { peer, body });
    }

    fn refuse_claim(
        &mut self,
        life: LifeId,
        leg: LegNo,
        reason: Reason,
        out: &mut Vec<Output<L, W, A>>,
    ) {
        let Some(record) = self
            .lives
            .get_mut(&life)
            .and_then(|l| l.legs.get_mut(usize::from(leg.0)))
        else {
            return;
        };
        let Some(tag) = record.claim.filter(|_| !record.closed) else {
            return;
        };
        record.closed = true;
        let (peer, gate, checksum) = (record.peer, record.gate, record.checksum);
        let key = ClaimKey {
            peer,
            role: Role::Sender,
            number: tag.id.number,
        };
        self.claims.remove(&key);
        self.refuse_offer(
            peer,
            &Offer {
                tag,
                gate,
                pages: 0,
                checksum,
                deadline_ms: 0,
            },
            reason,
            out,
        );
    }

    /// The outcome is out: the key is spent, the next attempt may start.
    pub(super) fn publish(
        &mut self,
        life: LifeId,
        outcome: Outcome,
        out: &mut Vec<Output<L, W, A>>,
    ) {
        let Some(l) = self.lives.get_mut(&life) else {
            return;
        };
        if l.outcome.is_some() && !crate::switched!(OutcomeRepeated) {
            return;
        }
        self.keys.remove(&KeyUse::new(l.key, l.role));
        self.spent
            .insert(KeyUse::new(l.key, l.role), (&outcome).into());
        l.outcome = Some(Box::new(outcome.clone()));
        out.push(Output::Publish { life, outcome });
    }

    pub(super) fn quarantine(&mut self, life: LifeId, out: &mut Vec<Output<L, W, A>>) {
        let Some(l) = self.lives.get_mut(&life) else {
            return;
        };
        if !l.quarantined {
            l.quarantined = true;
            for leg in l.legs.iter().filter(|leg| !leg.closed) {
                *self.quarantined.entry(leg.peer).or_insert(0) += l.pages;
            }
            out.push(Output::Count(Counter::Quarantined));
            crate::switched!(ReleaseOnDrainTimer => {
                l.custody.forgive(None);
                self.prove(life, out);
            });
        }
    }

    /// The end of a life: leases go back, and it leaves every table.
    pub(super) fn give_back(
        &mut self,
        life: LifeId,
        proof: Quiescence<W>,
        out: &mut Vec<Output<L, W, A>>,
    ) {
        let Some(l) = self.lives.remove(&life) else {
            return;
        };
        for leg in l.legs.iter().filter(|leg| !leg.closed) {
            if l.quarantined
                && let Some(pages) = self.quarantined.get_mut(&leg.peer)
            {
                *pages = pages.saturating_sub(l.pages);
                if *pages == 0 {
                    self.quarantined.remove(&leg.peer);
                }
            }
            let Some(tag) = leg.claim else {
                continue;
            };
            let key = ClaimKey {
                peer: leg.peer,
                role: l.role,
                number: tag.id.number,
            };
            self.claims.remove(&key);
            if l.role == Role::Sender && !crate::switched!(CreditKept) {
                let number = tag.id.number;
                out.push(Output::ClaimEnded {
                    peer: leg.peer,
                    number,
                });
            }
        }
        let leases = l.custody.give_back(&proof);
        out.push(Output::Return {
            life,
            leases,
            proof,
            outcome: l.outcome.map(|outcome| *outcome),
            attached: l.attached,
        });
        self.tell_if_empty(out);
    }

    pub(super) fn say_quiesced(&mut self, life: LifeId, out: &mut Vec<Output<L, W, A>>) {
        let Some(l) = self.lives.get(&life) else {
            return;
        };
        if l.role != Role::Sender {
            return;
        }
        for i in 0..l.legs.len() {
            let landed = Coverage::new();
            self.say(life, LegNo(i as u16), Say::Quiesced { landed }, out);
        }
    }
}

/// The lease that a job reads.
pub(crate) fn carried(spec: &JobSpec) -> Held {
    match spec {
        JobSpec::Pages { chunk, .. } => Held::Chunk(*chunk),
        JobSpec::Aux => Held::Aux,
    }
}
