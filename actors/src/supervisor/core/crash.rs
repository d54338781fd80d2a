//! A life whose actor panicked: the supervisor ends it, from custody alone.

use super::ShardCore;
use crate::ids::{LegNo, LifeId};
use crate::reason::{Code, Reason};
use crate::room::event::{Event, Say, Timer};
use crate::room::{Outcome, Role, StateName};
use crate::supervisor::io::{Counter, Output};

impl<L, W, A> ShardCore<L, W, A> {
    pub(super) fn room_panicked(&mut self, life: LifeId, out: &mut Vec<Output<L, W, A>>) {
        let Some(l) = self.lives.get_mut(&life) else {
            return;
        };
        if l.crashed {
            return;
        }
        l.crashed = true;
        l.state = StateName::Draining;
        let (role, legs) = (l.role, l.legs.len());
        out.push(Output::Count(Counter::Panicked));
        let reason = Reason::new(
            Code::ActorPanicked,
            "the room's actor panicked; this is a defect of kvroom, the log has its message",
        );
        self.publish(life, Outcome::Aborted(reason.clone()), out);
        for timer in [Timer::Outcome, Timer::Stall, Timer::Explain] {
            out.push(Output::ClearTimer { life, timer });
        }
        for leg in (0..legs).map(|i| LegNo(i as u16)) {
            let ended = self.ended(life, leg) && !crate::switched!(EndSaidTwice);
            match role {
                Role::Sender if ended => {}
                Role::Sender => self.say(life, leg, Say::Failed(reason.clone()), out),
                Role::Receiver => {
                    if let Some(peer) = self.peer_of(life, leg) {
                        out.push(Output::WithdrawClaim { life, leg, peer });
                    }
                    out.push(Output::CloseGate { life, leg });
                    if !ended {
                        self.say(life, leg, Say::Abort(reason.clone()), out);
                    }
                }
            }
        }
        out.push(Output::CancelJobs { life });
        out.push(Output::SetTimer {
            life,
            timer: Timer::Drain,
        });
        if let Some(l) = self.lives.get_mut(&life) {
            l.custody.seal();
            // A proof that was on its way to the room died with it. What it said is still true, so
            // the life is proven over again, from the record.
            if !crate::switched!(ProofDiesWithRoom) {
                l.custody.lost_proof();
            }
        }
        self.prove(life, out);
    }

    fn ended(&self, life: LifeId, leg: LegNo) -> bool {
        self.lives
            .get(&life)
            .and_then(|l| l.legs.get(usize::from(leg.0)))
            .is_some_and(|l| l.ended)
    }

    pub(super) fn timer(&mut self, life: LifeId, timer: Timer, out: &mut Vec<Output<L, W, A>>) {
        let Some(l) = self.lives.get(&life) else {
            return;
        };
        if !l.crashed {
            out.push(Output::ToRoom {
                life,
                event: Event::Timer(timer),
            });
        } else if timer == Timer::Drain {
            self.quarantine(life, out);
        }
    }
}
