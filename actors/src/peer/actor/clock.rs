//! All clocks of one peer: one tick, and how many of them have passed.
//!
//! Silence is counted in ticks that ran, not in time that passed: whatever stopped this process, or
//! the machine, cost at most one tick, and what came in meanwhile is read before the next. Nor are
//! ticks counted while the shards have not taken what came last: meanwhile nobody reads, and whatever
//! the peer says waits in the socket.

use crate::limits::Deadlines;
use std::time::Duration;

/// Ticks in the shortest of the deadlines.
const FINENESS: u32 = 4;

/// See the module.
#[derive(Debug)]
pub(super) struct Clock {
    pub(super) tick: Duration,
    ask_after: u32,
    dead_after: u32,
    resume_within: u32,
    /// Since anything came in, or since the transport was lost.
    passed: u32,
    asked: u32,
    /// A tick is on its way.
    pub(super) armed: bool,
}

/// What a tick means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tick {
    Nothing,
    /// Ask the peer whether it is there.
    Ask,
    /// It has been silent for too long.
    Dead,
}

impl Clock {
    pub(super) fn new(deadlines: &Deadlines) -> Self {
        let (ping, liveness) = (deadlines.ping, deadlines.liveness);
        let shortest = ping.min(liveness).min(deadlines.resume);
        let tick = (shortest / FINENESS).clamp(Duration::from_millis(5), Duration::from_secs(1));
        let ticks = |d: Duration| {
            u32::try_from(d.as_nanos().div_ceil(tick.as_nanos())).unwrap_or(u32::MAX - 1)
        };
        Clock {
            tick,
            ask_after: ticks(ping).max(1),
            // The first tick may come at once.
            dead_after: ticks(liveness) + 1,
            resume_within: ticks(deadlines.resume) + 1,
            passed: 0,
            asked: 0,
            armed: false,
        }
    }

    /// Something came in, or a transport came or went.
    pub(super) fn heard(&mut self) {
        self.passed = 0;
        self.asked = 0;
    }

    /// A tick with a transport.
    pub(super) fn listen(&mut self) -> Tick {
        self.passed = self.passed.saturating_add(1);
        if self.passed >= self.dead_after {
            return Tick::Dead;
        }
        if self.passed - self.asked >= self.ask_after {
            self.asked = self.passed;
            return Tick::Ask;
        }
        Tick::Nothing
    }

    /// A tick without one: whether it is time to give the session up.
    pub(super) fn wait(&mut self) -> bool {
        self.passed = self.passed.saturating_add(1);
        self.passed >= self.resume_within
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clock() -> Clock {
        Clock::new(&Deadlines {
            ping: Duration::from_secs(1),
            liveness: Duration::from_secs(5),
            resume: Duration::from_secs(10),
            ..Deadlines::default()
        })
    }

    #[test]
    fn a_silent_peer_is_asked_each_ping_and_dead_after_liveness_and_not_before() {
        let mut clock = clock();
        assert_eq!(clock.tick, Duration::from_millis(250));
        let mut asked = Vec::new();
        for tick in 1.. {
            match clock.listen() {
                Tick::Nothing => {}
                Tick::Ask => asked.push(tick),
                Tick::Dead => {
                    assert_eq!(tick, 21, "5 s are 20 whole ticks");
                    break;
                }
            }
        }
        assert_eq!(asked, [4, 8, 12, 16, 20]);
    }

    #[test]
    fn whatever_comes_in_begins_the_silence_anew() {
        let mut clock = clock();
        for _ in 0..100 {
            for _ in 0..15 {
                assert_ne!(clock.listen(), Tick::Dead);
            }
            clock.heard();
        }
    }

    #[test]
    fn a_session_is_kept_for_the_resume_deadline_in_ticks() {
        let mut clock = clock();
        assert_eq!((1..).find(|_| clock.wait()), Some(41));
    }

    #[test]
    fn deadlines_without_end_never_come() {
        let mut clock = Clock::new(&Deadlines {
            ping: Duration::from_millis(1),
            liveness: Duration::MAX,
            resume: Duration::MAX,
            ..Deadlines::default()
        });
        assert!((0..10_000).all(|_| clock.listen() != Tick::Dead && !clock.wait()));
    }
}
