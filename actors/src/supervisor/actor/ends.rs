//! What is told and counted when a life ends: its outcome, its quarantine, and its leases when they are proven back.

use super::Shard;
use crate::handle::{Back, ChunkBack};
use crate::ids::{LegNo, LifeId};
use crate::memory::{Lease, Proof, Witness};
use crate::reason::Reason;
use crate::room::actor::Traced;
use crate::room::{Outcome, Quiescence, StateName};
use crate::runtime::meter::Meter;
use crate::supervisor::attached::{Attached, AttachedRole, Lent};
use crate::supervisor::custody::Held;
use crate::supervisor::io::Counter;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What a life counts for while it is quarantined.
#[derive(Default)]
pub(super) struct Quarantined {
    pages: u64,
    /// Of its peers.
    meters: Vec<Arc<Meter>>,
}

impl Shard {
    pub(super) fn count(&self, counter: Counter) {
        let stats = &self.node.stats;
        stats.add(match counter {
            Counter::StaleMessage => &stats.stale_messages,
            Counter::StaleEvent => &stats.stale_events,
            Counter::RepeatedChunk => &stats.repeated_chunks,
            Counter::ClaimRefused => &stats.claims_refused,
            Counter::Quarantined => &stats.quarantined,
            Counter::Panicked => &stats.panicked,
            Counter::StrayWitness => &stats.stray_witnesses,
        });
    }

    pub(super) fn publish(&mut self, life: LifeId, outcome: Outcome) {
        if let Some(attached) = self.core.attached(life)
            && let Some(since) = attached.late.take()
        {
            self.late.remove(&(since, life));
        }
        // One that has left the tables already is counted and told when its leases go back.
        if let Some(l) = self.core.life(life) {
            self.count_end(l.attached(), &outcome);
            let trace = l.attached().trace.as_deref();
            tracing::debug!(room = %l.key(), role = %l.role(), trace = trace.map(tracing::field::display), %outcome, "room ended");
            if l.attached().shared.outcome().is_none() {
                self.ended(l.attached(), &outcome);
            }
            l.attached().shared.publish(outcome);
        }
    }

    pub(super) fn count_end(&self, attached: &Attached, outcome: &Outcome) {
        let stats = &self.node.stats;
        if !attached.apart {
            stats.add(match outcome {
                Outcome::Done => &stats.done,
                Outcome::Aborted(_) => &stats.aborted,
            });
        }
    }

    /// Counts an end that is about to be told.
    pub(super) fn ended(&self, attached: &Attached, outcome: &Outcome) {
        let (now, shared) = (self.now(), &attached.shared);
        let asked = shared.abort_began();
        let rooms = &self.node.stats.rooms;
        if !attached.apart {
            rooms.ended(attached.role(), outcome, attached.since, asked, now);
        }
        if matches!(outcome, Outcome::Aborted(_)) {
            // Nobody here asked for it: then it begins when it is known.
            shared.abort_asked(now);
        }
    }

    /// A life passed its drain deadline.
    pub(super) fn quarantine(&mut self, life: LifeId) {
        let now = self.now();
        let Some(l) = self.core.life_mut(life) else {
            return;
        };
        let pages = l.pages();
        l.attached_mut().quarantined = Some(now);
        let open = l.legs().iter().filter(|leg| !leg.closed);
        let meters: Vec<_> = (open.filter_map(|leg| self.peers.get(&leg.peer)))
            .map(|link| Arc::clone(&link.meter))
            .collect();
        meters.iter().for_each(|meter| meter.quarantined(pages));
        let stats = &self.node.stats;
        stats.quarantined_now.fetch_add(1, Ordering::Relaxed);
        stats.quarantined_pages.fetch_add(pages, Ordering::Relaxed);
        self.quarantined
            .insert((now, life), Quarantined { pages, meters });
        self.tell_oldest();
    }

    pub(super) fn tell_oldest(&self) {
        if let Some(oldest) = self.node.stats.oldest.get(self.nth) {
            oldest.set(
                self.quarantined
                    .first_key_value()
                    .map(|((since, _), _)| *since),
            );
        }
    }

    /// A leg is bound to a claim that came with a trace context: the room is of that trace.
    pub(super) fn trace(&mut self, life: LifeId, leg: LegNo) {
        let Some(l) = self.core.life_mut(life) else {
            return;
        };
        let claim = l.legs().get(usize::from(leg.0)).and_then(|record| {
            let number = record.claim?.id.number;
            self.traces.get(&(record.peer, number))
        });
        if let Some(trace) = claim {
            let attached = l.attached_mut();
            attached.trace.get_or_insert_with(|| Box::new(*trace));
            if let Some(room) = &attached.actor {
                // In front of the event: within this thread, in order.
                room.do_send(Traced(*trace));
            }
        }
    }

    pub(super) fn give_back(
        &mut self,
        life: LifeId,
        leases: Vec<(Held, Lent)>,
        proof: Quiescence<Witness>,
        mut attached: Attached,
    ) {
        self.actors -= usize::from(attached.actor.is_some());
        self.timers.clear_all(life, &mut attached.armed);
        self.gone(life, &attached);
        let landed = match attached.role {
            AttachedRole::Receiver { landed, .. } => landed,
            AttachedRole::Sender { .. } => crate::handle::Landed::default(),
        };
        let mut kept = Vec::new();
        for (held, lent) in leases {
            match &lent.chunk {
                // Somebody waits for this one by itself.
                Some(chunk) if chunk.is_awaited() => give_back_chunk(lent, None),
                _ => kept.push((held, lent.lease)),
            }
        }
        let proofs: Vec<Proof> = proof.witnesses().iter().map(Witness::proof).collect();
        self.record_end(life, attached.key, &proofs);
        attached.shared.give_back(Back {
            leases: kept,
            proofs,
            landed,
        });
    }

    /// Counts a life that is over.
    pub(super) fn gone(&mut self, life: LifeId, attached: &Attached) {
        let stats = &self.node.stats;
        if !attached.apart {
            stats.rooms.gone(attached.role(), attached.state);
        }
        if let Some(began) = attached.shared.abort_began()
            && !attached.apart
            && matches!(attached.shared.outcome(), Some(Outcome::Aborted(_)))
        {
            stats.rooms.reusable(began, self.now());
        }
        if let Some(since) = attached.late {
            self.late.remove(&(since, life));
        }
        if let Some(since) = attached.quarantined
            && let Some(was) = self.quarantined.remove(&(since, life))
        {
            let pages = was.pages;
            was.meters.iter().for_each(|meter| meter.released(pages));
            stats.quarantined_now.fetch_sub(1, Ordering::Relaxed);
            stats.quarantined_pages.fetch_sub(pages, Ordering::Relaxed);
            self.tell_oldest();
        }
    }

    /// A room is in this state now.
    pub(super) fn stepped(&mut self, life: LifeId, state: StateName) {
        if let Some(l) = self.core.life_mut(life)
            && l.state() != state
        {
            let (role, before) = (l.role(), l.state());
            let attached = l.attached_mut();
            attached.state = state;
            attached.shared.set_state(state);
            if !attached.apart {
                self.node.stats.rooms.moved(role, before, state);
            }
        }
    }
}

pub(super) fn give_back_chunk(lent: Lent, bounced: Option<Reason>) {
    let Lent {
        lease, chunk, slot, ..
    } = lent;
    drop(slot);
    if let (Some(chunk), Lease::Read(lease)) = (chunk, lease) {
        chunk.keep(ChunkBack { lease, bounced });
    }
}
