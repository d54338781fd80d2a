//! The decode side of a room.
//!
//! ```text
//!                  Bound                     coverage whole ─▶ gates closed and empty (Quiet)
//!   Registered ─────────▶ Transferring ──────────────────────────────────────────────▶ Done
//!       │                      │                    (checksum asked for: Quiet ─▶ Summed)
//!       │ Abort, PeerEnded,    │ the same, a coverage that does not fit,
//!       │ LegLost, Timer       │ ChecksumMismatch
//!       └────────▶ Draining ◀──┘
//!                     │ Quiet: every claim of it is withdrawn, or its gate closed and empty
//!                     ▼
//!                  Aborted
//! ```
//!
//! - The set of writers is sealed before an address leaves the node: legs are given at the start.
//! - `Done` needs every leg's coverage whole, without overlap, and then the proof that nobody can
//!   write any more; only then is `Accepted` said.
//! - The stall clock runs only while more was posted than has landed. Waiting in the sender's queue
//!   is not progress time.

mod legs;
#[cfg(test)]
mod tests;

use super::event::{Effect, Event, Note, Say, Timer};
use super::{Outcome, Quiescence, StateName};
use crate::ids::LegNo;
use crate::reason::{Code, Reason};
pub use legs::{LegPlan, Terms};
use legs::{Legs, Phase};

/// No sender has taken a claim yet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Registered {
    legs: Legs,
}

/// At least one sender has.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Transferring<W> {
    legs: Legs,
    phase: Moving<W>,
}

/// How far a live transfer is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Moving<W> {
    /// Cells are missing.
    Arriving,
    /// All cells are there; gates are closing.
    Sealing,
    /// Nobody writes any more; the sum over the cells is being taken.
    Summing(Quiescence<W>),
}

/// Ended, told so; waits for the proof.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Draining<W> {
    reason: Reason,
    /// The sum is still being read from the pages, on this proof.
    summing: Option<Quiescence<W>>,
    quarantined: bool,
}

/// Over: everything is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Done(());

/// Over: it failed, and nobody writes any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Aborted(());

/// A receiver room in whichever state it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Receiver<W> {
    /// See [`Registered`].
    Registered(Registered),
    /// See [`Transferring`].
    Transferring(Transferring<W>),
    /// See [`Draining`].
    Draining(Draining<W>),
    /// See [`Done`].
    Done(Done),
    /// See [`Aborted`].
    Aborted(Aborted),
}

impl<W> Receiver<W> {
    /// A new room; asks for one claim a leg.
    #[must_use]
    pub fn register(terms: Terms, out: &mut Vec<Effect<W>>) -> Receiver<W> {
        out.push(Effect::SetTimer(Timer::Outcome));
        let legs = Legs::new(terms);
        out.extend(legs.numbers().map(Effect::OpenClaim));
        Receiver::Registered(Registered { legs })
    }

    /// The state's name.
    pub fn state(&self) -> StateName {
        match self {
            Receiver::Registered(_) => StateName::Registered,
            Receiver::Transferring(_) => StateName::Transferring,
            Receiver::Draining(_) => StateName::Draining,
            Receiver::Done(_) => StateName::Done,
            Receiver::Aborted(_) => StateName::Aborted,
        }
    }

    pub(crate) fn handle(self, event: Event<W>, out: &mut Vec<Effect<W>>) -> Receiver<W> {
        #[cfg(any(test, feature = "plant"))]
        if matches!(event, Event::Explode) {
            panic!("told to explode");
        }
        match self {
            Receiver::Registered(s) => s.handle(event, out),
            Receiver::Transferring(s) => s.handle(event, out),
            Receiver::Draining(s) => s.handle(event, out),
            Receiver::Done(_) | Receiver::Aborted(_) => {
                out.push(Effect::Note(Note::Stale(event.name())));
                self
            }
        }
    }
}

impl Registered {
    fn handle<W>(mut self, event: Event<W>, out: &mut Vec<Effect<W>>) -> Receiver<W> {
        match event {
            Event::Bound(leg) if self.legs.phase(leg) == Some(Phase::Open) => {
                Receiver::Transferring(self.bound(leg, out))
            }
            event => match live(&mut self.legs, &event, out) {
                Some(end) => Receiver::Draining(self.drain(end.reason, end.told, out)),
                None => Receiver::Registered(self),
            },
        }
    }

    /// The first sender took its claim.
    #[must_use]
    pub fn bound<W>(mut self, leg: LegNo, out: &mut Vec<Effect<W>>) -> Transferring<W> {
        self.legs.bound(leg, out);
        Transferring {
            legs: self.legs,
            phase: Moving::Arriving,
        }
    }

    /// The room ends; claims may be under way. `told` is the leg that said so.
    #[must_use]
    pub fn drain<W>(
        self,
        reason: Reason,
        told: Option<LegNo>,
        out: &mut Vec<Effect<W>>,
    ) -> Draining<W> {
        Draining::enter(self.legs, reason, told, None, out)
    }
}

impl<W> Transferring<W> {
    fn handle(mut self, event: Event<W>, out: &mut Vec<Effect<W>>) -> Receiver<W> {
        match event {
            Event::Bound(leg) if self.legs.phase(leg) == Some(Phase::Open) => {
                self.legs.bound(leg, out);
                Receiver::Transferring(self)
            }
            Event::Complete {
                leg,
                total,
                coverage,
                checksum,
            } if matches!(self.phase, Moving::Arriving) => {
                match self.legs.complete(leg, total, coverage, checksum) {
                    Ok(true) => {
                        out.push(Effect::ClearTimer(Timer::Stall));
                        crate::switched!(DoneBeforeGateClosed => {
                            let say = Say::Accepted;
                            out.push(Effect::Say { leg, say });
                            out.push(Effect::Publish(Outcome::Done));
                        });
                        out.extend(self.legs.numbers().map(Effect::CloseGate));
                        out.push(Effect::Seal);
                        self.phase = Moving::Sealing;
                        Receiver::Transferring(self)
                    }
                    Ok(false) => {
                        self.legs.mind_the_stall(out);
                        Receiver::Transferring(self)
                    }
                    Err(legs::Wrong::Stale) => {
                        out.push(Effect::Note(Note::Stale("Complete")));
                        Receiver::Transferring(self)
                    }
                    Err(legs::Wrong::End(reason)) => {
                        Receiver::Draining(self.drain(reason, None, out))
                    }
                }
            }
            Event::Quiet(proof) => match self.phase {
                Moving::Sealing if self.legs.checksum().is_none() => {
                    Receiver::Done(self.finish(proof, out))
                }
                Moving::Sealing => {
                    out.push(Effect::Sum);
                    self.phase = Moving::Summing(proof);
                    Receiver::Transferring(self)
                }
                Moving::Arriving | Moving::Summing(_) => {
                    out.push(Effect::Note(Note::Stale("Quiet")));
                    Receiver::Transferring(self)
                }
            },
            Event::Summed(sum) => self.summed(sum, out),
            event => match live(&mut self.legs, &event, out) {
                Some(end) => Receiver::Draining(self.drain(end.reason, end.told, out)),
                None => Receiver::Transferring(self),
            },
        }
    }

    fn summed(mut self, sum: u64, out: &mut Vec<Effect<W>>) -> Receiver<W> {
        let phase = std::mem::replace(&mut self.phase, Moving::Arriving);
        let Moving::Summing(proof) = phase else {
            self.phase = phase;
            out.push(Effect::Note(Note::Stale("Summed")));
            return Receiver::Transferring(self);
        };
        match self.legs.checksum() {
            Some(expected) if expected != sum => {
                let reason = Reason::new(
                    Code::ChecksumMismatch,
                    format!("the senders' checksum is {expected:016x}, the pages give {sum:016x}"),
                );
                Receiver::Aborted(self.reject(reason, proof, out))
            }
            _ => Receiver::Done(self.finish(proof, out)),
        }
    }

    /// Everything is there and nobody writes any more.
    #[must_use]
    pub fn finish(self, proof: Quiescence<W>, out: &mut Vec<Effect<W>>) -> Done {
        out.push(Effect::ClearTimer(Timer::Outcome));
        for leg in self.legs.numbers() {
            out.push(Effect::Say {
                leg,
                say: Say::Accepted,
            });
        }
        out.push(Effect::Publish(Outcome::Done));
        out.push(Effect::ReturnLease(proof));
        Done(())
    }

    /// Everything arrived, nobody writes any more, and the bytes are wrong.
    #[must_use]
    pub fn reject(self, reason: Reason, proof: Quiescence<W>, out: &mut Vec<Effect<W>>) -> Aborted {
        out.push(Effect::ClearTimer(Timer::Outcome));
        for leg in self.legs.numbers() {
            out.push(Effect::Say {
                leg,
                say: Say::Rejected(reason.clone()),
            });
        }
        out.push(Effect::Publish(Outcome::Aborted(reason)));
        out.push(Effect::ReturnLease(proof));
        Aborted(())
    }

    /// The room ends; copies may be in flight. `told` is the leg that said so.
    #[must_use]
    pub fn drain(
        self,
        reason: Reason,
        told: Option<LegNo>,
        out: &mut Vec<Effect<W>>,
    ) -> Draining<W> {
        let summing = match self.phase {
            Moving::Summing(proof) => Some(proof),
            Moving::Arriving | Moving::Sealing => None,
        };
        Draining::enter(self.legs, reason, told, summing, out)
    }
}

impl<W> Draining<W> {
    fn enter(
        mut legs: Legs,
        reason: Reason,
        told: Option<LegNo>,
        summing: Option<Quiescence<W>>,
        out: &mut Vec<Effect<W>>,
    ) -> Draining<W> {
        out.push(Effect::Publish(Outcome::Aborted(reason.clone())));
        out.push(Effect::ClearTimer(Timer::Outcome));
        out.push(Effect::ClearTimer(Timer::Stall));
        for leg in legs.numbers() {
            match legs.phase(leg) {
                Some(Phase::Asked) => out.push(Effect::WithdrawClaim(leg)),
                Some(Phase::NotOpened) | None => {}
                // A lost leg's claim may still wait for its number. If it has one, its session may
                // be back before this is done, and then nobody else would say it there.
                Some(Phase::Lost) => {
                    out.push(Effect::WithdrawClaim(leg));
                    out.push(Effect::Say {
                        leg,
                        say: Say::Abort(reason.clone()),
                    });
                }
                Some(Phase::Open | Phase::Bound | Phase::Complete) => {
                    if told != Some(leg) {
                        out.push(Effect::Say {
                            leg,
                            say: Say::Abort(reason.clone()),
                        });
                    }
                }
            }
            if summing.is_none() {
                out.push(Effect::CloseGate(leg));
            }
        }
        legs.forget();
        out.push(Effect::SetTimer(Timer::Drain));
        if summing.is_none() {
            out.push(Effect::Seal);
        }
        Draining {
            reason,
            summing,
            quarantined: false,
        }
    }

    fn handle(mut self, event: Event<W>, out: &mut Vec<Effect<W>>) -> Receiver<W> {
        match event {
            // While the pages are read for their sum, the proof is here already.
            Event::Quiet(proof) if self.summing.is_none() => {
                return Receiver::Aborted(self.quiet(proof, out));
            }
            Event::Summed(_) => match self.summing.take() {
                Some(proof) => return Receiver::Aborted(self.quiet(proof, out)),
                None => out.push(Effect::Note(Note::Stale("Summed"))),
            },
            Event::ClaimOpened(_) if crate::switched!(LateNumberForgotten) => {}
            // It was numbered before the withdrawal arrived.
            Event::ClaimOpened(leg) => {
                out.push(Effect::CloseGate(leg));
                out.push(Effect::Say {
                    leg,
                    say: Say::Abort(self.reason.clone()),
                });
            }
            Event::Timer(Timer::Drain) if !self.quarantined => {
                self.quarantined = true;
                out.push(Effect::Quarantine);
            }
            // What was under way arrives; peers end too; the caller insists.
            Event::ClaimNotOpened { .. }
            | Event::Bound(_)
            | Event::Progress { .. }
            | Event::Complete { .. }
            | Event::PeerEnded { .. }
            | Event::PeerOut(_)
            | Event::LegLost { .. }
            | Event::Abort(_) => {}
            other => out.push(Effect::Note(Note::Stale(other.name()))),
        }
        Receiver::Draining(self)
    }

    /// Every claim is withdrawn, or its gate closed with nobody inside.
    #[must_use]
    pub fn quiet(self, proof: Quiescence<W>, out: &mut Vec<Effect<W>>) -> Aborted {
        out.push(Effect::ClearTimer(Timer::Drain));
        out.push(Effect::ReturnLease(proof));
        Aborted(())
    }
}

struct End {
    reason: Reason,
    told: Option<LegNo>,
}

/// What both live states do alike. Some if the room ends.
fn live<W>(legs: &mut Legs, event: &Event<W>, out: &mut Vec<Effect<W>>) -> Option<End> {
    match event {
        Event::Abort(reason) => Some(End {
            reason: reason.clone(),
            told: None,
        }),
        Event::ClaimOpened(leg) if legs.phase(*leg) == Some(Phase::Asked) => {
            legs.set(*leg, Phase::Open);
            None
        }
        Event::ClaimNotOpened { leg, reason } if legs.phase(*leg) == Some(Phase::Asked) => {
            legs.set(*leg, Phase::NotOpened);
            Some(End {
                reason: reason.clone(),
                told: None,
            })
        }
        Event::Progress {
            leg,
            posted,
            written,
        } if legs.is_under_way(*leg) => {
            legs.progress(*leg, *posted, *written, out);
            None
        }
        Event::PeerEnded { leg, reason } if legs.is_under_way(*leg) => Some(End {
            reason: reason.clone(),
            told: Some(*leg),
        }),
        // A sender that is out without a word of failure has lost its room.
        Event::PeerOut(leg) if legs.is_under_way(*leg) => Some(End {
            reason: Reason::new(Code::SessionLost, "the sender does not know the claim")
                .from_peer(),
            told: Some(*leg),
        }),
        Event::LegLost { leg, reason } if legs.phase(*leg).is_some() => {
            legs.set(*leg, Phase::Lost);
            Some(End {
                reason: reason.clone(),
                told: None,
            })
        }
        Event::Timer(Timer::Outcome) => Some(End {
            reason: Reason::new(Code::DeadlineExceeded, "the room's deadline passed"),
            told: None,
        }),
        Event::Timer(Timer::Stall) if legs.stalled() => Some(End {
            reason: Reason::new(
                Code::Stalled,
                "bytes were posted and none landed for the stall time",
            ),
            told: None,
        }),
        other => {
            out.push(Effect::Note(Note::Stale(other.name())));
            None
        }
    }
}
