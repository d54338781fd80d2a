//! Rooms counted where they are: by role and state, by how they ended, and by what it took.
//!
//! ```text
//!   started ─▶ Registered ─▶ … moved from, to … ─▶ Done or Aborted ─▶ gone
//!                   └── how many are in a state: came in − went out, whenever somebody asks
//! ```
//!
//! Counted by a shard's shell, as it is told what its core decided; the cores count nothing.

use super::histogram::{Durations, Histogram};
use crate::ids::Tick;
use crate::reason::{Code, Side};
use crate::room::{Outcome, Role, StateName};
use std::sync::atomic::{AtomicU64, Ordering};

/// Both roles, in the order in which they are counted.
pub const ROLES: [Role; 2] = [Role::Sender, Role::Receiver];

/// All states, in the order in which they are counted.
pub const STATES: [StateName; 5] = [
    StateName::Registered,
    StateName::Transferring,
    StateName::Draining,
    StateName::Done,
    StateName::Aborted,
];

/// Ways to end: done, or each code on each side.
const ENDS: usize = 1 + 2 * Code::ALL.len();

/// Rooms of one role.
#[derive(Debug)]
struct OfRole {
    started: AtomicU64,
    again: AtomicU64,
    moved: [[AtomicU64; STATES.len()]; STATES.len()],
    gone: [AtomicU64; STATES.len()],
    ends: [AtomicU64; ENDS],
    lasted: Histogram,
}

/// All rooms of a node.
#[derive(Debug, Default)]
pub struct Tally {
    roles: [OfRole; ROLES.len()],
    answered: Histogram,
    reusable: Histogram,
}

/// How rooms ended, counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoomEnds {
    /// What the room was.
    pub role: Role,
    /// Done if none.
    pub aborted: Option<(Code, Side)>,
    /// How many.
    pub count: u64,
}

/// Steps from one state to another, counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoomSteps {
    /// What the room was.
    pub role: Role,
    /// The state that it left.
    pub from: StateName,
    /// The state that it came into.
    pub to: StateName,
    /// How many.
    pub count: u64,
}

/// Rooms in a state now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoomsIn {
    /// What they are.
    pub role: Role,
    /// Where they are.
    pub state: StateName,
    /// How many.
    pub count: u64,
}

impl Default for OfRole {
    fn default() -> Self {
        OfRole {
            started: AtomicU64::default(),
            again: AtomicU64::default(),
            moved: Default::default(),
            gone: Default::default(),
            ends: [const { AtomicU64::new(0) }; ENDS],
            lasted: Histogram::default(),
        }
    }
}

impl Tally {
    pub(crate) fn started(&self, role: Role) {
        add(&self.of(role).started);
    }

    /// One of those that were started is a new try of an earlier attempt.
    pub(crate) fn again(&self, role: Role) {
        add(&self.of(role).again);
    }

    /// Rooms that were new tries, by role.
    pub fn retries(&self) -> [(Role, u64); ROLES.len()] {
        ROLES.map(|role| (role, self.of(role).again.load(Ordering::Relaxed)))
    }

    pub(crate) fn moved(&self, role: Role, from: StateName, to: StateName) {
        add(&self.of(role).moved[from as usize][to as usize]);
    }

    /// A room left the tables, in this state.
    pub(crate) fn gone(&self, role: Role, state: StateName) {
        add(&self.of(role).gone[state as usize]);
    }

    /// An outcome was delivered at `now`. `asked` is when somebody here asked for its abort.
    pub(crate) fn ended(
        &self,
        role: Role,
        outcome: &Outcome,
        since: Tick,
        asked: Option<Tick>,
        now: Tick,
    ) {
        let of = self.of(role);
        of.lasted.record(now.since(since));
        let at = match outcome {
            Outcome::Done => 0,
            Outcome::Aborted(reason) => {
                if let Some(asked) = asked {
                    self.answered.record(now.since(asked));
                }
                1 + 2 * (reason.code as usize) + usize::from(reason.side == Side::Peer)
            }
        };
        add(&of.ends[at]);
    }

    /// The leases of an aborted room went back at `now`; its abort began at `began`.
    pub(crate) fn reusable(&self, began: Tick, now: Tick) {
        self.reusable.record(now.since(began));
    }

    /// Rooms by role and state now, zeroes too.
    pub fn present(&self) -> Vec<RoomsIn> {
        let mut all = Vec::new();
        for (role, of) in ROLES.into_iter().zip(&self.roles) {
            for (i, state) in STATES.into_iter().enumerate() {
                // What goes out is read first: it came in before.
                let left: u64 = of.moved[i].iter().map(get).sum::<u64>() + get(&of.gone[i]);
                let started = if i == 0 { get(&of.started) } else { 0 };
                let came = started + of.moved.iter().map(|to| get(&to[i])).sum::<u64>();
                let count = came.saturating_sub(left);
                all.push(RoomsIn { role, state, count });
            }
        }
        all
    }

    /// Rooms ever started, by role.
    pub fn begun(&self) -> [(Role, u64); ROLES.len()] {
        [0, 1].map(|i: usize| (ROLES[i], get(&self.roles[i].started)))
    }

    /// Steps that were ever made.
    pub fn steps(&self) -> Vec<RoomSteps> {
        let mut all = Vec::new();
        for (role, of) in ROLES.into_iter().zip(&self.roles) {
            for (from, row) in STATES.into_iter().zip(&of.moved) {
                for (to, count) in STATES.into_iter().zip(row) {
                    let count = get(count);
                    if count > 0 {
                        all.push(RoomSteps {
                            role,
                            from,
                            to,
                            count,
                        });
                    }
                }
            }
        }
        all
    }

    /// Ends, zeroes too.
    pub fn ends(&self) -> Vec<RoomEnds> {
        let mut all = Vec::new();
        for (role, of) in ROLES.into_iter().zip(&self.roles) {
            let sides = |code| [Some((code, Side::Local)), Some((code, Side::Peer))];
            let ends = [None]
                .into_iter()
                .chain(Code::ALL.into_iter().flat_map(sides));
            all.extend(ends.zip(&of.ends).map(|(aborted, count)| RoomEnds {
                role,
                aborted,
                count: get(count),
            }));
        }
        all
    }

    /// From start to outcome, by role.
    pub fn lasted(&self) -> [(Role, Durations); ROLES.len()] {
        [0, 1].map(|i: usize| (ROLES[i], self.roles[i].lasted.read()))
    }

    /// From the moment that somebody here asked for an abort to the room's outcome.
    pub fn abort_to_answer(&self) -> Durations {
        self.answered.read()
    }

    /// From the moment that somebody here asked for an abort, or else from the outcome, to the return
    /// of the leases of aborted rooms.
    pub fn abort_to_reusable(&self) -> Durations {
        self.reusable.read()
    }

    fn of(&self, role: Role) -> &OfRole {
        &self.roles[role as usize]
    }
}

fn add(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::reason::Reason;
    use std::time::Duration;

    #[test]
    fn states_and_roles_are_counted_at_their_own_places() {
        for (i, state) in STATES.into_iter().enumerate() {
            assert_eq!(state as usize, i);
        }
        for (i, role) in ROLES.into_iter().enumerate() {
            assert_eq!(role as usize, i);
        }
    }

    #[test]
    fn rooms_in_a_state_are_those_that_came_and_did_not_go() {
        let tally = Tally::default();
        for _ in 0..5 {
            tally.started(Role::Sender);
        }
        for _ in 0..3 {
            tally.moved(Role::Sender, StateName::Registered, StateName::Transferring);
        }
        tally.moved(Role::Sender, StateName::Transferring, StateName::Done);
        tally.gone(Role::Sender, StateName::Done);
        let there: Vec<_> = tally
            .present()
            .into_iter()
            .filter(|p| p.count > 0)
            .collect();
        let there: Vec<_> = there.iter().map(|p| (p.role, p.state, p.count)).collect();
        assert_eq!(
            there,
            [
                (Role::Sender, StateName::Registered, 2),
                (Role::Sender, StateName::Transferring, 2)
            ]
        );
        assert_eq!(tally.steps().len(), 2);
    }

    #[test]
    fn each_end_is_counted_under_its_code_and_side() {
        let tally = Tally::default();
        let (then, now) = (Tick(0), Tick(3_000));
        for code in Code::ALL {
            let reason = Reason::from(code);
            let end = |r| tally.ended(Role::Receiver, &Outcome::Aborted(r), then, None, now);
            end(reason.clone());
            end(reason.from_peer());
        }
        tally.ended(Role::Receiver, &Outcome::Done, then, None, now);
        let ends = tally.ends();
        let (sender, receiver): (Vec<_>, Vec<_>) =
            ends.into_iter().partition(|e| e.role == Role::Sender);
        assert!(sender.iter().all(|e| e.count == 0));
        assert!(receiver.iter().all(|e| e.count == 1), "{receiver:?}");
        assert_eq!(receiver.len(), 2 * Code::ALL.len() + 1);
    }

    #[test]
    fn how_long_an_abort_took_is_known_only_if_somebody_asked() {
        let tally = Tally::default();
        let outcome = Outcome::Aborted(Code::Requested.into());
        let (since, asked, now) = (Tick(0), Tick(7_000), Tick(9_000));
        tally.ended(Role::Sender, &outcome, since, None, now);
        assert_eq!(tally.abort_to_answer().count(), 0);
        tally.ended(Role::Sender, &outcome, since, Some(asked), now);
        tally.ended(Role::Sender, &Outcome::Done, since, Some(asked), now);
        let answered = tally.abort_to_answer();
        assert_eq!(
            (answered.count(), answered.sum()),
            (1, Duration::from_micros(2))
        );
        let [(_, sender), _] = tally.lasted();
        assert_eq!(
            (sender.count(), sender.sum()),
            (3, Duration::from_micros(27))
        );
    }
}
