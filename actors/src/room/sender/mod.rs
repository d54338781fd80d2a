//! The prefill side of a room.
//!
//! ```text
//!                  Bind                        every leg Accepted, then Quiet
//!   Registered ─────────▶ Transferring ─────────────────────────────────────▶ Done
//!       │                      │
//!       │ Abort, PeerEnded,    │ the same, Rejected, a job that failed,
//!       │ Timer, bad chunk     │ LengthMismatch
//!       └────────▶ Draining ◀──┘
//!                     │ Quiet: every job's ticket is back
//!                     ▼
//!                  Aborted
//! ```
//!
//! - The room is told how many receivers there will be. It is not over before that many legs were
//!   bound and answered `Accepted`; a leg that binds late gets all chunks pushed before.
//! - Positions are tokens. What lies below a leg's `skip` is not sent on that leg.
//! - A chunk repeated with the same pages is a no-op; overlapping otherwise ends the room.
//! - The aux row of a leg is posted after all its pages have landed; `Complete` follows it.
//! - Once every receiver accepted, nothing undoes it: an abort that comes then is too late.
//! - A refused piece means that the receiver closed its gate. Its reason is on the way, so the room
//!   waits for it, for as long as the `Explain` clock runs.

mod chunks;
mod leg;
mod moving;
#[cfg(test)]
mod tests;

use super::event::{Effect, Event, JobEnd, JobSpec, Note, Say, Timer};
use super::{Outcome, Quiescence, StateName};
use crate::ids::LegNo;
use crate::reason::{Code, Reason};
use kvroom_kernels::coverage::Coverage;
use moving::{Moving, Verdict};
use std::collections::BTreeMap;

/// Waits for its first leg; chunks queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Registered {
    moving: Moving,
}

/// At least one leg is bound.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Transferring {
    moving: Moving,
    /// Every leg accepted; waits for the proof.
    sealed: bool,
}

/// Ended, told so; waits until every ticket is back.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Draining {
    reason: Reason,
    legs: Vec<DrainingLeg>,
    /// Jobs that were not over when the end came, by number: what they still bring counts as landed.
    jobs: BTreeMap<u32, JobSpec>,
    quarantined: bool,
}

/// What is still to be said to a leg of a draining room.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct DrainingLeg {
    leg: LegNo,
    landed: Coverage,
    lost: bool,
}

/// Over: every receiver has all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Done(());

/// Over: it failed, and nobody touches the source any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Aborted(());

/// A sender room in whichever state it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Sender {
    /// See [`Registered`].
    Registered(Registered),
    /// See [`Transferring`].
    Transferring(Transferring),
    /// See [`Draining`].
    Draining(Draining),
    /// See [`Done`].
    Done(Done),
    /// See [`Aborted`].
    Aborted(Aborted),
}

impl Sender {
    /// A new room for `receivers` receivers (at least 1).
    #[must_use]
    pub fn register<W>(receivers: u16, out: &mut Vec<Effect<W>>) -> Sender {
        out.push(Effect::SetTimer(Timer::Outcome));
        Sender::Registered(Registered {
            moving: Moving::new(receivers.max(1)),
        })
    }

    /// The state's name.
    pub fn state(&self) -> StateName {
        match self {
            Sender::Registered(_) => StateName::Registered,
            Sender::Transferring(_) => StateName::Transferring,
            Sender::Draining(_) => StateName::Draining,
            Sender::Done(_) => StateName::Done,
            Sender::Aborted(_) => StateName::Aborted,
        }
    }

    pub(crate) fn handle<W>(self, event: Event<W>, out: &mut Vec<Effect<W>>) -> Sender {
        #[cfg(any(test, feature = "plant"))]
        if matches!(event, Event::Explode) {
            panic!("told to explode");
        }
        match self {
            Sender::Registered(s) => s.handle(event, out),
            Sender::Transferring(s) => s.handle(event, out),
            Sender::Draining(s) => s.handle(event, out),
            Sender::Done(s) => {
                refuse(event, Code::KeySpent, out);
                Sender::Done(s)
            }
            Sender::Aborted(s) => {
                refuse(event, Code::KeySpent, out);
                Sender::Aborted(s)
            }
        }
    }
}

impl Registered {
    fn handle<W>(mut self, event: Event<W>, out: &mut Vec<Effect<W>>) -> Sender {
        let bound = matches!(event, Event::Bind { .. });
        match self.moving.handle(event, out) {
            Verdict::Go if bound && self.moving.has_legs() => Sender::Transferring(self.begin()),
            Verdict::Go | Verdict::AllAccepted => Sender::Registered(self),
            Verdict::End { reason, told } => Sender::Draining(self.drain(reason, told, out)),
        }
    }

    /// The first leg is bound.
    #[must_use]
    pub fn begin(self) -> Transferring {
        Transferring {
            moving: self.moving,
            sealed: false,
        }
    }

    /// The room ends before anything could be copied. `told` is the leg that said so.
    #[must_use]
    pub fn drain<W>(
        self,
        reason: Reason,
        told: Option<LegNo>,
        out: &mut Vec<Effect<W>>,
    ) -> Draining {
        Draining::enter(self.moving, reason, told, out)
    }
}

impl Transferring {
    fn handle<W>(mut self, event: Event<W>, out: &mut Vec<Effect<W>>) -> Sender {
        if self.sealed {
            return self.handle_sealed(event, out);
        }
        match self.moving.handle(event, out) {
            Verdict::Go => Sender::Transferring(self),
            Verdict::AllAccepted => {
                self.sealed = true;
                out.push(Effect::Seal);
                Sender::Transferring(self)
            }
            Verdict::End { reason, told } => Sender::Draining(self.drain(reason, told, out)),
        }
    }

    /// Every receiver has all of it, so nothing can end the room but the proof. A leg is complete
    /// only when its tickets are back, so the proof waits for nobody.
    fn handle_sealed<W>(self, event: Event<W>, out: &mut Vec<Effect<W>>) -> Sender {
        match event {
            Event::Quiet(proof) => return Sender::Done(self.finish(proof, out)),
            // Too late, and harmless.
            Event::Abort(_) | Event::LegLost { .. } | Event::Timer(_) => {}
            other => refuse(other, Code::KeySpent, out),
        }
        Sender::Transferring(self)
    }

    /// Every receiver has all of it, and every ticket is back.
    #[must_use]
    pub fn finish<W>(self, proof: Quiescence<W>, out: &mut Vec<Effect<W>>) -> Done {
        out.push(Effect::ClearTimer(Timer::Outcome));
        out.push(Effect::Publish(Outcome::Done));
        out.push(Effect::ReturnLease(proof));
        Done(())
    }

    /// The room ends; jobs may be under way. `told` is the leg that said so.
    #[must_use]
    pub fn drain<W>(
        self,
        reason: Reason,
        told: Option<LegNo>,
        out: &mut Vec<Effect<W>>,
    ) -> Draining {
        Draining::enter(self.moving, reason, told, out)
    }
}

impl Draining {
    fn enter<W>(
        moving: Moving,
        reason: Reason,
        told: Option<LegNo>,
        out: &mut Vec<Effect<W>>,
    ) -> Draining {
        out.push(Effect::Publish(Outcome::Aborted(reason.clone())));
        out.push(Effect::ClearTimer(Timer::Outcome));
        out.push(Effect::ClearTimer(Timer::Explain));
        out.push(Effect::CancelJobs);
        let mut legs = Vec::new();
        let (all, jobs) = moving.into_parts();
        for (leg, state) in all {
            if !state.lost && told != Some(leg) {
                out.push(Effect::Say {
                    leg,
                    say: Say::Failed(reason.clone()),
                });
            }
            legs.push(DrainingLeg {
                leg,
                landed: state.landed,
                lost: state.lost,
            });
        }
        crate::switched!(QuiescedWhileJobsOut => {
            for DrainingLeg { leg, landed, .. } in &legs {
                let (leg, landed) = (*leg, landed.clone());
                let say = Say::Quiesced { landed };
                out.push(Effect::Say { leg, say });
            }
        });
        out.push(Effect::SetTimer(Timer::Drain));
        out.push(Effect::Seal);
        Draining {
            reason,
            legs,
            jobs,
            quarantined: false,
        }
    }

    fn handle<W>(mut self, event: Event<W>, out: &mut Vec<Effect<W>>) -> Sender {
        match event {
            Event::Quiet(proof) => return Sender::Aborted(self.quiet(proof, out)),
            Event::Bind { leg, .. } => {
                out.push(Effect::RefuseClaim {
                    leg,
                    reason: self.reason.clone(),
                });
            }
            Event::Push(chunk) => {
                out.push(Effect::BounceChunk {
                    chunk: chunk.no,
                    reason: self.reason.clone(),
                });
            }
            Event::LegLost { leg, .. } => {
                for l in self.legs.iter_mut().filter(|l| l.leg == leg) {
                    l.lost = true;
                }
            }
            Event::JobOver { leg, job, end, .. } => self.job_over(leg, job, &end),
            // The peer asks, perhaps in a new session: it is there and wants its answer.
            Event::PeerEnded { leg, .. } => {
                for l in self.legs.iter_mut().filter(|l| l.leg == leg) {
                    l.lost = false;
                }
            }
            Event::Timer(Timer::Drain) if !self.quarantined => {
                self.quarantined = true;
                out.push(Effect::Quarantine);
            }
            // Tickets come back, peers end too, the caller insists: all of it is expected here.
            Event::Moved { .. }
            | Event::Finish { .. }
            | Event::Accepted(_)
            | Event::Rejected { .. }
            | Event::Abort(_) => {}
            other => out.push(Effect::Note(Note::Stale(other.name()))),
        }
        Sender::Draining(self)
    }

    /// A job that had begun may have landed whole all the same.
    fn job_over(&mut self, leg: LegNo, job: u32, end: &JobEnd) {
        let Some(spec) = self.jobs.remove(&job) else {
            return;
        };
        if matches!(end, JobEnd::Landed { .. })
            && let Some(l) = self.legs.iter_mut().find(|l| l.leg == leg)
        {
            // A second writing of a cell is an error only in a room that could still be done.
            let _ = leg::account(&mut l.landed, &spec);
        }
    }

    /// Every ticket is back: nobody reads the source or writes a destination for this life.
    #[must_use]
    pub fn quiet<W>(self, proof: Quiescence<W>, out: &mut Vec<Effect<W>>) -> Aborted {
        out.push(Effect::ClearTimer(Timer::Drain));
        for leg in self.legs {
            if !leg.lost {
                out.push(Effect::Say {
                    leg: leg.leg,
                    say: Say::Quiesced { landed: leg.landed },
                });
            }
        }
        out.push(Effect::ReturnLease(proof));
        Aborted(())
    }
}

/// What an ended room answers to events that carry something which must go back.
fn refuse<W>(event: Event<W>, code: Code, out: &mut Vec<Effect<W>>) {
    match event {
        Event::Bind { leg, .. } => out.push(Effect::RefuseClaim {
            leg,
            reason: code.into(),
        }),
        Event::Push(chunk) => {
            out.push(Effect::BounceChunk {
                chunk: chunk.no,
                reason: code.into(),
            });
        }
        other => out.push(Effect::Note(Note::Stale(other.name()))),
    }
}
