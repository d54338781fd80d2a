//! The legs of a receiver room and what has arrived on each.

use crate::ids::LegNo;
use crate::reason::{Code, Reason};
use crate::room::event::{Effect, Timer};
use kvroom_kernels::coverage::Coverage;

/// What a receiver room is told at its start.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Terms {
    /// One leg for each expected sender, numbered by place. The set is final.
    pub legs: Vec<LegPlan>,
    /// Length of the request in tokens.
    pub total: u64,
    /// Whether the sums of both sides are compared before `Done`.
    pub checksum: bool,
}

/// What one sender must write.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LegPlan {
    /// The cells, the aux row among them.
    pub wanted: Coverage,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Legs {
    legs: Vec<Leg>,
    total: u64,
    /// Sum of the legs' checksums, if they are compared.
    checksum: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Leg {
    phase: Phase,
    wanted: Coverage,
    posted: u64,
    written: u64,
}

/// How far a leg is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Phase {
    /// The claim was asked for.
    Asked,
    /// It has a number, its gate is open.
    Open,
    /// It was not opened and never will be.
    NotOpened,
    /// A sender room took it.
    Bound,
    /// All of it has been written.
    Complete,
    /// The session or the peer is gone.
    Lost,
}

/// Why a `Complete` was not taken.
pub(super) enum Wrong {
    Stale,
    End(Reason),
}

impl Legs {
    pub(super) fn new(terms: Terms) -> Self {
        let legs = terms
            .legs
            .into_iter()
            .map(|plan| Leg {
                phase: Phase::Asked,
                wanted: plan.wanted,
                posted: 0,
                written: 0,
            })
            .collect();
        Legs {
            legs,
            total: terms.total,
            checksum: terms.checksum.then_some(0),
        }
    }

    pub(super) fn numbers(&self) -> impl Iterator<Item = LegNo> + use<> {
        (0..self.legs.len() as u16).map(LegNo)
    }

    pub(super) fn phase(&self, leg: LegNo) -> Option<Phase> {
        self.legs.get(usize::from(leg.0)).map(|l| l.phase)
    }

    pub(super) fn set(&mut self, leg: LegNo, phase: Phase) {
        if let Some(l) = self.legs.get_mut(usize::from(leg.0)) {
            l.phase = phase;
        }
    }

    /// A sender took the claim. It may have told of its progress before.
    pub(super) fn bound<W>(&mut self, leg: LegNo, out: &mut Vec<Effect<W>>) {
        let was_stalled = self.stalled();
        self.set(leg, Phase::Bound);
        if !was_stalled && self.stalled() {
            out.push(Effect::SetTimer(Timer::Stall));
        }
    }

    pub(super) fn is_under_way(&self, leg: LegNo) -> bool {
        matches!(self.phase(leg), Some(Phase::Open | Phase::Bound))
    }

    /// What the senders' sums add up to; none if they are not compared.
    pub(super) fn checksum(&self) -> Option<u64> {
        self.checksum
    }

    /// What a draining room needs no more.
    pub(super) fn forget(&mut self) {
        self.legs = Vec::new();
    }

    pub(super) fn progress<W>(
        &mut self,
        leg: LegNo,
        posted: u64,
        written: u64,
        out: &mut Vec<Effect<W>>,
    ) {
        let Some(l) = self.legs.get_mut(usize::from(leg.0)) else {
            return;
        };
        let (was_stalled, moved) = (l.posted > l.written, written > l.written);
        l.posted = l.posted.max(posted);
        l.written = l.written.max(written);
        if moved || (!was_stalled && l.posted > l.written) {
            self.mind_the_stall(out);
        }
    }

    /// Some leg waits for bytes that were posted.
    pub(super) fn stalled(&self) -> bool {
        self.legs
            .iter()
            .filter(|l| l.phase == Phase::Bound)
            .any(|l| l.posted > l.written || crate::switched!(StallClockInQueue))
    }

    /// Starts the stall clock anew, or stops it if nothing is posted.
    pub(super) fn mind_the_stall<W>(&self, out: &mut Vec<Effect<W>>) {
        if self.stalled() {
            out.push(Effect::SetTimer(Timer::Stall));
        } else {
            out.push(Effect::ClearTimer(Timer::Stall));
        }
    }

    /// A leg says it wrote everything. `Ok(true)` if that was the last one.
    pub(super) fn complete(
        &mut self,
        leg: LegNo,
        total: u64,
        coverage: Coverage,
        checksum: Option<u64>,
    ) -> Result<bool, Wrong> {
        let Some(l) = self.legs.get_mut(usize::from(leg.0)) else {
            return Err(Wrong::Stale);
        };
        if l.phase != Phase::Bound {
            return Err(Wrong::Stale);
        }
        if total != self.total {
            return Err(Wrong::End(Reason::new(
                Code::LengthMismatch,
                format!(
                    "the claim is for {} tokens, the sender finished at {total}",
                    self.total
                ),
            )));
        }
        if let Err(error) = coverage.validate() {
            return Err(Wrong::End(Reason::new(
                Code::ProtocolViolation,
                format!("leg {}: {error}", leg.0),
            )));
        }
        let right_sum = crate::switched!(CoverageIsASum) && coverage.cells() == l.wanted.cells();
        if let Some(cell) = coverage.first_missing(&l.wanted)
            && !right_sum
        {
            return Err(Wrong::End(Reason::new(
                Code::CoverageIncomplete,
                format!("leg {}: the sender said complete, {cell} is missing", leg.0),
            )));
        }
        if let Some(cell) = coverage.first_extra(&l.wanted)
            && !right_sum
        {
            return Err(Wrong::End(Reason::new(
                Code::CoverageOverlap,
                format!(
                    "leg {}: the sender wrote {cell}, which is not its part",
                    leg.0
                ),
            )));
        }
        match (&mut self.checksum, checksum) {
            (Some(sum), Some(theirs)) => *sum = sum.wrapping_add(theirs),
            (Some(_), None) => {
                return Err(Wrong::End(Reason::new(
                    Code::ProtocolViolation,
                    format!("leg {}: the claim asked for a checksum, none came", leg.0),
                )));
            }
            (None, _) => {}
        }
        l.phase = Phase::Complete;
        l.wanted = Coverage::new();
        l.posted = 0;
        l.written = 0;
        Ok(self.legs.iter().all(|l| l.phase == Phase::Complete))
    }
}
