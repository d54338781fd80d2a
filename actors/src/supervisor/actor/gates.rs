//! The gates of receiving rooms: a claim is recorded, then opened; its gate is closed, and looked at until nobody is
//! inside. What pays the debt is the witness that the gate gives.

use super::{Bell, Shard};
use crate::fabric::{Fabric, PeerRoute};
use crate::ids::{ClaimId, ClaimNo, Incarnation, LegNo, LifeId, PeerRef, RoomKey};
use crate::memory::{
    Closing, FarOver, GateLanded, Lease, PeerOut, Pool, Target, Withdrawn, Witness,
};
use crate::peer::actor::{Command, OpenRequest};
use crate::peer::message::{Body, Claim, ClaimTag, Part, Section};
use crate::reason::{Code, Reason};
use crate::record::GateIs;
use crate::slice::TargetSlice;
use crate::supervisor::attached::{AttachedRole, Draft, Gate};
use crate::supervisor::custody::Held;
use crate::supervisor::io::Input;
use kvroom_kernels::plan::cube::Part as CubePart;
use std::ops::Range;
use std::sync::Arc;

impl Shard {
    pub(super) fn open_claim(&mut self, life: LifeId, leg: LegNo, peer: PeerRef) {
        let inbox = self.inbox.clone();
        let known = self.peers.contains_key(&peer);
        let (me, limits) = (self.node.incarnation, &self.node.deadlines);
        let default_deadline = limits.outcome;
        let Some(l) = self.core.life_mut(life) else {
            return;
        };
        let key = l.key();
        let deadline = l.attached().deadline.or(default_deadline);
        // A new try is there before the route that it is for.
        let patient = l.attached().retry_of.is_some();
        let mut sections = Vec::new();
        let mut targets = Vec::new();
        let mut aux_target = None;
        let mut cannot = None;
        let AttachedRole::Receiver { draft, .. } = &l.attached().role else {
            return;
        };
        let of_leg = |draft: &Draft| {
            let said = draft.legs.get(usize::from(leg.0))?.clone();
            Some((said, draft.skip..draft.total))
        };
        let Some((said, tokens)) = draft.as_deref().and_then(of_leg) else {
            return;
        };
        for (held, lent) in l.leases_mut() {
            let Lease::Write(lease) = &mut lent.lease else {
                continue;
            };
            match held {
                Held::Section(i) => {
                    let slice = allowed(&said.part, i, lease.pool(), &tokens);
                    let target = lease.target_section();
                    targets.push(match slice {
                        Ok(Some(slice)) => target.only(Arc::new(slice)),
                        Ok(None) => target,
                        Err(why) => {
                            cannot = Some(Reason::new(Code::LayoutMismatch, why));
                            target
                        }
                    });
                    sections.push(lease.pages().to_vec());
                }
                Held::Aux => aux_target = Some(lease.target_section()),
                Held::Chunk(_) => {}
            }
        }
        let AttachedRole::Receiver { draft: kept, .. } = &mut l.attached_mut().role else {
            return;
        };
        let Some(draft) = kept.as_deref() else {
            return;
        };
        let tag = ClaimTag {
            id: ClaimId {
                receiver: me,
                sender: Incarnation::default(),
                number: ClaimNo(0),
            },
            room: key,
        };
        let claim = Box::new(Claim {
            tag,
            receivers: said.receivers,
            rank: said.rank,
            part: said.part,
            sections: draft
                .pools
                .iter()
                .zip(sections)
                .map(|(pool, pages)| Section { pool: *pool, pages })
                .collect(),
            skip: draft.skip,
            total: draft.total,
            aux: draft.aux.filter(|_| leg.0 == 0),
            gate: 0,
            deadline_ms: deadline.map_or(u32::MAX, |d| {
                u32::try_from(d.as_millis()).unwrap_or(u32::MAX)
            }),
            checksum: draft.checksum,
            trace: draft.trace,
        });
        if usize::from(leg.0) + 1 == draft.legs.len() {
            *kept = None;
        }
        let aux_target = aux_target.filter(|_| leg.0 == 0);
        let layers = match claim.part {
            Part::Whole | Part::Slices(_) => 0..u32::MAX,
            Part::Layers { first, end } => first..end,
        };
        let bell = Arc::new(Bell { inbox, life, leg });
        let target = Target::new(targets, aux_target, bell).only_for(peer, layers);
        let request = OpenRequest {
            life,
            leg,
            claim,
            target,
            patient,
            until: None,
        };
        if !known {
            let lost = Reason::new(Code::PeerLost, "the peer is not connected");
            cannot.get_or_insert(lost);
        }
        if let Some(reason) = cannot {
            let witness = Witness::NeverSubmitted(Withdrawn::unnumbered());
            drop(request);
            self.follow_up.push_back(Input::ClaimNotOpened {
                life,
                leg,
                reason,
                witness,
            });
        } else {
            self.command(peer, Command::Open(Box::new(request)));
        }
    }

    pub(super) fn close_gate(&mut self, life: LifeId, leg: LegNo) {
        let Some((key, gate)) = self.key_and_gate(life, leg) else {
            return;
        };
        match std::mem::replace(gate, Gate::None) {
            Gate::Open(open) => {
                let claim = open.number();
                *gate = Gate::Closing(open.close());
                self.finish_gate(life, leg);
                if let Some(Gate::Closing(_)) = self.gate(life, leg) {
                    self.record_gate(key, life, leg, claim, GateIs::Occupied);
                }
            }
            other => *gate = other,
        }
    }

    /// Tries to finish a closing gate; its witness goes to the core.
    pub(super) fn finish_gate(&mut self, life: LifeId, leg: LegNo) {
        let Some((key, gate)) = self.key_and_gate(life, leg) else {
            return;
        };
        let Gate::Closing(closing) = std::mem::replace(gate, Gate::Closed) else {
            return;
        };
        let claim = closing.number();
        match closing.try_finish() {
            Ok(witness) => {
                self.record_gate(key, life, leg, claim, GateIs::Closed);
                let landed = witness.landed();
                self.gate_over(life, leg, landed, Witness::GateClosed(witness));
            }
            // Whoever is inside may be dead.
            Err(closing) => match closing.try_finish_dead() {
                Ok(witness) => {
                    self.record_gate(key, life, leg, claim, GateIs::WriterDead);
                    let landed = witness.landed();
                    self.gate_over(life, leg, landed, Witness::WriterDead(witness));
                }
                Err(closing) => self.finish_far_gate(key, (life, leg), closing),
            },
        }
    }

    /// Its writer keeps to it by itself, and may have said that it is out.
    fn finish_far_gate(
        &mut self,
        key: Option<RoomKey>,
        (life, leg): (LifeId, LegNo),
        closing: Closing,
    ) {
        let claim = closing.number();
        match closing.try_finish_far() {
            Ok(FarOver::Drained(witness)) => {
                self.record_gate(key, life, leg, claim, GateIs::Drained);
                let landed = witness.landed();
                self.gate_over(life, leg, landed, Witness::PeerDrained(witness));
            }
            Ok(FarOver::Fenced(witness)) => {
                self.record_gate(key, life, leg, claim, GateIs::Fenced);
                let landed = witness.landed();
                self.gate_over(life, leg, landed, Witness::PathFenced(witness));
            }
            Err(closing) => {
                if let Some(gate) = self.gate(life, leg) {
                    *gate = Gate::Closing(closing);
                }
                self.stuck_gates.push((life, leg));
            }
        }
    }

    /// The writer of a claim says that it is out of it: for good, since `Quiesced` follows the last of its
    /// jobs, and nothing is posted on a leg behind `Complete`. The session has seen that it is the
    /// incarnation which the claim names.
    pub(super) fn hear_out(&mut self, peer: PeerRef, body: &Body) {
        let (tag, cells) = match body {
            Body::Quiesced { tag, landed } => (*tag, landed),
            Body::Complete { tag, coverage, .. } => (*tag, coverage),
            _ => return,
        };
        let Some((life, leg)) = self.core.offered(peer, tag.id.number) else {
            return;
        };
        let of = self.core.life(life);
        let of = of.and_then(|l| l.legs().get(usize::from(leg.0)));
        if of.is_none_or(|record| record.claim != Some(tag)) {
            return;
        }
        let said = PeerOut::heard(tag.id);
        match self.gate(life, leg) {
            Some(Gate::Open(gate)) => gate.hear(&said, cells),
            Some(Gate::Closing(gate)) => {
                gate.hear(&said, cells);
                self.heard_out.push((life, leg));
            }
            _ => {}
        }
    }

    pub(super) fn gate_over(
        &mut self,
        life: LifeId,
        leg: LegNo,
        landed: GateLanded,
        witness: Witness,
    ) {
        if let Some(attached) = self.core.attached(life)
            && let AttachedRole::Receiver { landed: all, .. } = &mut attached.role
        {
            let bytes = all.add(landed);
            attached.moved_on(leg).written += bytes;
            self.count_landed(life, leg, bytes);
        }
        self.follow_up
            .push_back(Input::GateClosed { life, leg, witness });
    }

    /// What a peer wrote by itself is known when its gate is closed; what this node's lanes read from
    /// sockets they have counted.
    pub(super) fn count_landed(&self, life: LifeId, leg: LegNo, bytes: u64) {
        let leg = (self.core.life(life)).and_then(|l| l.legs().get(usize::from(leg.0)));
        if let Some(link) = leg.and_then(|leg| self.peers.get(&leg.peer)) {
            // Only memory that is shared is let go of before the peer is.
            let fabric = link.route.as_ref().map_or(Fabric::Shm, PeerRoute::fabric);
            if !link.route.as_ref().is_some_and(PeerRoute::marks_here) {
                link.meter.received(fabric, bytes);
            }
        }
    }

    pub(super) fn gate(&mut self, life: LifeId, leg: LegNo) -> Option<&mut Gate> {
        self.key_and_gate(life, leg).map(|(_, gate)| gate)
    }

    /// With the room's key, if it was admitted.
    pub(super) fn key_and_gate(
        &mut self,
        life: LifeId,
        leg: LegNo,
    ) -> Option<(Option<RoomKey>, &mut Gate)> {
        let attached = self.core.attached(life)?;
        let gate = match &mut attached.role {
            AttachedRole::Receiver { gates, .. } => gates.get_mut(usize::from(leg.0))?,
            AttachedRole::Sender { .. } => return None,
        };
        Some((attached.key, gate))
    }
}

/// What the sender of a leg may write of a section, if it is not whole cells: the part that it covers, or
/// nothing. An error names a pool that does not say what its bytes mean.
fn allowed(
    part: &Part,
    section: u16,
    pool: &Pool,
    tokens: &Range<u64>,
) -> Result<Option<TargetSlice>, String> {
    let Part::Slices(parts) = part else {
        return Ok(None);
    };
    let Some(content) = pool.content() else {
        let name = &pool.layout().name;
        return Err(format!("pool {name:?} does not say what its bytes mean"));
    };
    let part = parts.get(usize::from(section)).cloned().flatten();
    Ok(Some(TargetSlice {
        part: part.unwrap_or_else(|| CubePart::nothing(content.planes.len())),
        dst: Arc::clone(content),
        tokens: tokens.clone(),
    }))
}
