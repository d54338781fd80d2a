//! All clocks of one shard in order, with one wake-up for the earliest.
//!
//! They run on the shard's running time ([`Running`]): time in which the process was stopped or the
//! machine paused does not count, since what the other side said meanwhile has not been read either.

use crate::ids::{LifeId, PeerRef, Tick};
use crate::peer::message::ClaimTag;
use crate::room::event::Timer;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::num::NonZeroU64;
use std::time::Duration;

/// Whose clock it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clock {
    /// A room's.
    Room(LifeId, Timer),
    /// A waiting claim's.
    Early(PeerRef, ClaimTag),
}

/// When a room's clocks run out; kept with the room, so that a clock is found without a search.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Armed {
    /// Nearly every room has this one, and no other.
    outcome: Option<NonZeroU64>,
    others: Option<Box<[Option<NonZeroU64>; Timer::ALL.len()]>>,
}

impl Armed {
    fn put(&mut self, timer: Timer, at: NonZeroU64) {
        match timer {
            Timer::Outcome => self.outcome = Some(at),
            other => self.others.get_or_insert_default()[other as usize] = Some(at),
        }
    }

    fn take(&mut self, timer: Timer) -> Option<NonZeroU64> {
        match timer {
            Timer::Outcome => self.outcome.take(),
            other => self.others.as_mut()?[other as usize].take(),
        }
    }
}

/// A life and one of its clocks, in one word: lives are counted up, and are far fewer than 2^62.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Packed(u64);

impl Packed {
    fn new(life: LifeId, timer: Timer) -> Self {
        Packed(life.0 << 2 | timer as u64)
    }

    fn parts(self) -> (LifeId, Timer) {
        (LifeId(self.0 >> 2), Timer::ALL[(self.0 & 3) as usize])
    }
}

/// Armed clocks of a shard.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    rooms: BTreeSet<(Tick, Packed)>,
    early: BTreeMap<(Tick, u64), (PeerRef, ClaimTag)>,
    early_at: HashMap<(PeerRef, ClaimTag), (Tick, u64)>,
    next_early: u64,
}

impl Timers {
    /// Arms a room's clock; one that was armed before is moved.
    pub(crate) fn set(&mut self, life: LifeId, armed: &mut Armed, timer: Timer, at: Tick) {
        self.clear(life, armed, timer);
        // The first nanosecond of a node is nobody's deadline.
        let at = NonZeroU64::new(at.0).unwrap_or(NonZeroU64::MIN);
        armed.put(timer, at);
        self.rooms
            .insert((Tick(at.get()), Packed::new(life, timer)));
    }

    /// Arms the clock of a waiting claim.
    pub(crate) fn set_early(&mut self, peer: PeerRef, tag: ClaimTag, at: Tick) {
        let place = (at, self.next_early);
        self.next_early += 1;
        self.early.insert(place, (peer, tag));
        self.early_at.insert((peer, tag), place);
    }

    /// Disarms the clock of a waiting claim.
    pub(crate) fn clear_early(&mut self, peer: PeerRef, tag: ClaimTag) {
        if let Some(place) = self.early_at.remove(&(peer, tag)) {
            self.early.remove(&place);
        }
    }

    /// Disarms a room's clock.
    pub(crate) fn clear(&mut self, life: LifeId, armed: &mut Armed, timer: Timer) {
        if let Some(at) = armed.take(timer) {
            self.rooms
                .remove(&(Tick(at.get()), Packed::new(life, timer)));
        }
    }

    /// Disarms all clocks of a life.
    pub(crate) fn clear_all(&mut self, life: LifeId, armed: &mut Armed) {
        for timer in Timer::ALL {
            self.clear(life, armed, timer);
        }
    }

    /// Outcomes of rooms whose clock ran out before this, counted up to 1,000.
    pub(crate) fn outcomes_before(&self, limit: Tick) -> usize {
        self.outcomes_of(limit).count()
    }

    /// Lives whose clock of the outcome ran out before this, among the first 1,000 clocks.
    pub(crate) fn outcomes_of(&self, limit: Tick) -> impl Iterator<Item = LifeId> {
        let ran_out = self.rooms.range(..(limit, Packed(0))).take(1_000);
        let parts = ran_out.map(|(_, packed)| packed.parts());
        parts.filter_map(|(life, timer)| (timer == Timer::Outcome).then_some(life))
    }

    /// When the next clock runs out.
    pub(crate) fn next(&self) -> Option<Tick> {
        let room = self.rooms.first().map(|(at, _)| *at);
        let early = self.early.first_key_value().map(|((at, _), _)| *at);
        room.into_iter().chain(early).min()
    }

    /// Takes out one clock that has run out.
    pub(crate) fn pop(&mut self, now: Tick) -> Option<Clock> {
        if self.rooms.first().is_some_and(|(at, _)| *at <= now) {
            let (_, packed) = self.rooms.pop_first()?;
            let (life, timer) = packed.parts();
            return Some(Clock::Room(life, timer));
        }
        if self
            .early
            .first_key_value()
            .is_some_and(|((at, _), _)| *at <= now)
        {
            let (_, (peer, tag)) = self.early.pop_first()?;
            self.early_at.remove(&(peer, tag));
            return Some(Clock::Early(peer, tag));
        }
        None
    }

    /// How many are armed.
    pub(crate) fn len(&self) -> usize {
        self.rooms.len() + self.early.len()
    }
}

/// Time that a shard has really run. Told at every turn, it sees a gap by itself.
#[derive(Debug, Default)]
pub(crate) struct Running {
    seen: Tick,
    gaps: Duration,
}

impl Running {
    /// The longest time between two turns of a shard with armed clocks; it wakes that often.
    pub(crate) const HEARTBEAT: Duration = Duration::from_secs(1);

    /// A longer time between two turns is a gap.
    const GAP: Duration = Duration::from_millis(1_500);

    /// A turn begins at `now` of the node's clock. Says how long the gap before it was, if there was
    /// one; `armed` tells whether the shard was to wake at all.
    pub(crate) fn turn(&mut self, now: Tick, armed: bool) -> Option<Duration> {
        let since = now.since(self.seen);
        self.seen = self.seen.max(now);
        if !armed || since <= Self::GAP {
            return None;
        }
        let gap = since - Self::HEARTBEAT;
        self.gaps += gap;
        Some(gap)
    }

    /// Running time of the present turn.
    pub(crate) fn now(&self) -> Tick {
        Tick(self.seen.since(Tick::default().after(self.gaps)).as_nanos() as u64)
    }
}

/// When a shard is woken for its clocks: one alarm for all of them, and at least one a heartbeat.
///
/// ```text
///   set ──▶ rings ──▶ what ran out waits behind what is in the inbox ──▶ fired ──▶ set …
/// ```
///
/// What has arrived comes first, since it may be what the clock waits for. Until then what ran out is
/// still armed, and an alarm for it would ring at once, again and again: none is set meanwhile.
#[derive(Debug, Default)]
pub(crate) struct Wakeup {
    due: Option<Tick>,
    firing: bool,
}

impl Wakeup {
    /// When an alarm has to be set for, `next` being the earliest clock, if there is none that rings as
    /// early. One that was set before is taken back by it.
    pub(crate) fn set(&mut self, next: Option<Tick>, now: Tick) -> Option<Tick> {
        let due = next?.min(now.after(Running::HEARTBEAT));
        if self.firing || self.due.is_some_and(|at| at <= due) {
            return None;
        }
        self.due = Some(due);
        Some(due)
    }

    /// Whether this alarm is meant. One that is not was on its way when it was taken back.
    pub(crate) fn is_set_for(&self, due: Tick) -> bool {
        self.due == Some(due)
    }

    /// The alarm rings. Whether the clocks are to be looked at, behind what is in the inbox; then
    /// [`Wakeup::fired`] follows.
    pub(crate) fn rings(&mut self, next: Option<Tick>, now: Tick) -> bool {
        self.due = None;
        let fires = !self.firing && next.is_some_and(|next| next <= now);
        self.firing |= fires;
        fires
    }

    /// The clocks are looked at.
    pub(crate) fn fired(&mut self) {
        self.firing = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIFE: LifeId = LifeId(1);

    #[test]
    fn a_clock_set_again_runs_out_once_at_the_later_time() {
        let (mut t, mut armed) = (Timers::default(), Armed::default());
        t.set(LIFE, &mut armed, Timer::Stall, Tick(10));
        t.set(LIFE, &mut armed, Timer::Stall, Tick(20));
        assert_eq!(t.pop(Tick(15)), None);
        assert_eq!(t.pop(Tick(20)), Some(Clock::Room(LIFE, Timer::Stall)));
        assert_eq!(t.pop(Tick(99)), None);
        assert_eq!(t.len(), 0);
    }

    #[test]
    fn a_cleared_clock_never_runs_out() {
        let (mut t, mut armed) = (Timers::default(), Armed::default());
        t.set(LIFE, &mut armed, Timer::Drain, Tick(10));
        t.set(LIFE, &mut armed, Timer::Outcome, Tick(5));
        t.clear_all(LIFE, &mut armed);
        assert_eq!(t.next(), None);
    }

    #[test]
    fn time_in_which_the_process_did_not_run_does_not_count() {
        let mut running = Running::default();
        let second = 1_000_000_000;
        assert_eq!(running.turn(Tick(second), true), None);
        assert_eq!(running.turn(Tick(2 * second), true), None);
        let gap = running.turn(Tick(62 * second), true);
        assert_eq!(gap, Some(Duration::from_secs(59)));
        assert_eq!(running.now(), Tick(3 * second));
    }

    #[test]
    fn a_shard_with_nothing_armed_sleeps_as_long_as_it_likes() {
        let mut running = Running::default();
        assert_eq!(running.turn(Tick(100_000_000_000), false), None);
        assert_eq!(running.now(), Tick(100_000_000_000));
    }

    #[test]
    fn an_alarm_is_for_the_earliest_clock_and_rings_once_a_heartbeat() {
        let (mut wakeup, beat) = (Wakeup::default(), Tick(1_000_000_000));
        assert_eq!(wakeup.set(None, Tick(0)), None);
        let far = Some(Tick(90_000_000_000));
        assert_eq!(wakeup.set(far, Tick(0)), Some(beat));
        assert_eq!(
            wakeup.set(far, Tick(5)),
            None,
            "the one that is set is earlier"
        );
        assert_eq!(wakeup.set(Some(Tick(70)), Tick(5)), Some(Tick(70)));
        assert_eq!(wakeup.set(Some(Tick(70)), Tick(6)), None, "it is set");
        assert!(!wakeup.is_set_for(beat) && wakeup.is_set_for(Tick(70)));
        // It was for the heartbeat alone, or the clock was cleared meanwhile.
        assert!(!wakeup.rings(far, Tick(70)));
        assert!(
            wakeup.set(far, Tick(70)).is_some(),
            "and another one is set"
        );
    }

    #[test]
    fn no_alarm_is_set_while_what_ran_out_waits_in_the_inbox() {
        let mut wakeup = Wakeup::default();
        let next = Some(Tick(10));
        assert_eq!(wakeup.set(next, Tick(0)), next);
        assert!(wakeup.rings(next, Tick(10)));
        for now in [10, 11, 2_000_000_000] {
            assert_eq!(wakeup.set(next, Tick(now)), None, "it would ring at once");
            assert!(!wakeup.rings(next, Tick(now)), "it waits there already");
        }
        wakeup.fired();
        assert_eq!(wakeup.set(Some(Tick(30)), Tick(11)), Some(Tick(30)));
    }
}
