//! A shard's clocks: one alarm for the earliest of them, and the inbox before whatever ran out.

use super::{Inbound, Shard};
use crate::ids::{LifeId, Tick};
use crate::room::event::Timer;
use crate::runtime::later::later;
use crate::supervisor::io::Input;
use crate::supervisor::timers::Clock;
use actix::{Context, Handler, Message};
use std::time::Duration;

#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Alarm {
    due: Tick,
}

impl Shard {
    pub(super) fn set_timer(&mut self, life: LifeId, timer: Timer) {
        let Some(attached) = self.core.attached(life) else {
            return;
        };
        let own = attached.deadline;
        let deadlines = &self.node.deadlines;
        let after = match timer {
            Timer::Outcome => match own.or(deadlines.outcome) {
                Some(after) => after,
                None => return,
            },
            Timer::Stall => deadlines.stall,
            Timer::Drain => deadlines.drain,
            Timer::Explain => deadlines.drain.min(deadlines.stall),
        };
        let at = self.running.now().after(after);
        self.timers.set(life, &mut attached.armed, timer, at);
    }

    /// A turn begins, because something happened.
    pub(super) fn wake(&mut self) {
        crate::runtime::spin::stay_awake();
        self.count_turn();
    }

    /// A turn begins, for whatever reason: a clock alone keeps no thread awake.
    pub(super) fn count_turn(&mut self) {
        let armed = self.timers.len() > 0;
        let now = self.node.now();
        self.scribe.turn_at(now);
        self.beat.begin_at(Duration::from_nanos(now.0));
        #[cfg(feature = "plant")]
        crate::copy::plant::wedge(self.beat.part());
        if let Some(gap) = self.running.turn(now, armed) {
            tracing::warn!(
                ?gap,
                "this process did not run for a while; its deadlines move"
            );
        }
    }

    pub(super) fn set_alarm(&mut self, ctx: &mut Context<Self>) {
        let now = self.running.now();
        if let Some(due) = self.wakeup.set(self.timers.next(), now) {
            let alarm = later(ctx, Alarm { due }, due.since(now));
            if let Some(old) = self.alarm.replace(alarm) {
                old.abort();
            }
        }
    }

    pub(super) fn wake_for_clocks(&mut self) {
        let fires = self.wakeup.rings(self.timers.next(), self.running.now());
        // It can be put there for as long as the shard lives: the queue has no bound.
        if fires && self.inbox.put(Inbound::Fire).is_err() {
            self.wakeup.fired();
        }
    }

    /// The alarm rings now, in the middle of whatever the shard does. For tests: when it rings by
    /// itself, a scheduler decides what it overtakes.
    #[cfg(feature = "plant")]
    pub fn ring_the_alarm(&mut self) {
        self.count_turn();
        self.wake_for_clocks();
    }

    pub(super) fn fire(&mut self, ctx: &mut Context<Self>) {
        self.wakeup.fired();
        let now = self.running.now();
        while let Some(clock) = self.timers.pop(now) {
            if let Clock::Room(life, Timer::Outcome) = clock
                && let Some(l) = self.core.life_mut(life)
                && l.outcome().is_none()
            {
                l.attached_mut().late = Some(now);
                self.late.insert((now, life));
            }
            let input = match clock {
                Clock::Room(life, timer) => Input::Timer { life, timer },
                Clock::Early(peer, tag) => Input::EarlyTimer { peer, tag },
            };
            self.input(input, ctx);
        }
    }
}

impl Handler<Alarm> for Shard {
    type Result = ();

    fn handle(&mut self, alarm: Alarm, ctx: &mut Context<Self>) {
        self.count_turn();
        if self.wakeup.is_set_for(alarm.due) {
            self.wake_for_clocks();
            self.settle(ctx);
        } else {
            self.beat.end();
        }
    }
}
