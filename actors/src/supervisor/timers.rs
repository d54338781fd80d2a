//! All clocks of one shard in one ordered set, with one wake-up for the earliest.

use crate::ids::{LifeId, PeerRef, Tick};
use crate::peer::message::ClaimTag;
use crate::room::event::Timer;
use std::collections::{BTreeSet, HashMap};

/// Whose clock it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Clock {
    /// A room's.
    Room(LifeId, Timer),
    /// A waiting claim's.
    Early(PeerRef, ClaimTag),
}

/// Armed clocks.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    due: BTreeSet<(Tick, Clock)>,
    rooms: HashMap<(LifeId, Timer), Tick>,
}

impl Timers {
    /// Arms a clock; a room's clock that was armed before is moved.
    pub(crate) fn set(&mut self, clock: Clock, at: Tick) {
        if let Clock::Room(life, timer) = clock
            && let Some(before) = self.rooms.insert((life, timer), at)
        {
            self.due.remove(&(before, clock));
        }
        self.due.insert((at, clock));
    }

    /// Disarms a room's clock.
    pub(crate) fn clear(&mut self, life: LifeId, timer: Timer) {
        if let Some(at) = self.rooms.remove(&(life, timer)) {
            self.due.remove(&(at, Clock::Room(life, timer)));
        }
    }

    /// Disarms all clocks of a life.
    pub(crate) fn clear_all(&mut self, life: LifeId) {
        for timer in Timer::ALL {
            self.clear(life, timer);
        }
    }

    /// When the next clock runs out.
    pub(crate) fn next(&self) -> Option<Tick> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Takes out one clock that has run out.
    pub(crate) fn pop(&mut self, now: Tick) -> Option<Clock> {
        let (at, _) = self.due.first()?;
        if *at > now {
            return None;
        }
        let (_, clock) = self.due.pop_first()?;
        if let Clock::Room(life, timer) = clock {
            self.rooms.remove(&(life, timer));
        }
        Some(clock)
    }

    /// A gap in the node's own clock (a stopped process, a paused machine): everything waits that
    /// much longer, since the other side's messages of that time have not been read either.
    pub(crate) fn shift(&mut self, gap: std::time::Duration) {
        let due = std::mem::take(&mut self.due);
        self.due = due
            .into_iter()
            .map(|(at, clock)| (at.after(gap), clock))
            .collect();
        for at in self.rooms.values_mut() {
            *at = at.after(gap);
        }
    }

    /// How many are armed.
    pub(crate) fn len(&self) -> usize {
        self.due.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_clock_set_again_runs_out_once_at_the_later_time() {
        let mut t = Timers::default();
        let c = Clock::Room(LifeId(1), Timer::Stall);
        t.set(c, Tick(10));
        t.set(c, Tick(20));
        assert_eq!(t.pop(Tick(15)), None);
        assert_eq!(t.pop(Tick(20)), Some(c));
        assert_eq!(t.pop(Tick(99)), None);
        assert_eq!(t.len(), 0);
    }

    #[test]
    fn a_cleared_clock_never_runs_out() {
        let mut t = Timers::default();
        t.set(Clock::Room(LifeId(1), Timer::Drain), Tick(10));
        t.set(Clock::Room(LifeId(1), Timer::Outcome), Tick(5));
        t.clear_all(LifeId(1));
        assert_eq!(t.next(), None);
    }

    #[test]
    fn a_clock_gap_moves_every_deadline() {
        let mut t = Timers::default();
        let c = Clock::Room(LifeId(1), Timer::Outcome);
        t.set(c, Tick(10));
        t.shift(Duration::from_nanos(100));
        assert_eq!(t.pop(Tick(109)), None);
        assert_eq!(t.pop(Tick(110)), Some(c));
    }
}
