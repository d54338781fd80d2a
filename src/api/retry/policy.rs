//! When a room is tried again.

use kvroom_actors::reason::Code;
use kvroom_actors::room::Outcome;
use std::time::Duration;

/// How often a room whose path failed is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    times: u16,
}

impl Retry {
    /// The most that [`Retry::times`] takes.
    pub const MOST: u16 = 16;

    /// So many new tries at most, after the first one; more than [`Retry::MOST`] counts as that. They have the
    /// attempts that follow the room's own, which must be left to them: a caller's own next attempt lies
    /// beyond.
    pub const fn times(times: u16) -> Retry {
        match times > Retry::MOST {
            true => Retry { times: Retry::MOST },
            false => Retry { times },
        }
    }
}

impl Default for Retry {
    /// Once.
    fn default() -> Retry {
        Retry::times(1)
    }
}

/// The tries of a room so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tries {
    pub(super) retry: Retry,
    /// The attempt that it began with.
    pub(super) first: u32,
    /// New tries that were started.
    pub(super) again: u16,
    /// How long all of them may take together.
    pub(super) deadline: Option<Duration>,
}

/// The next try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Next {
    pub(super) attempt: u32,
    pub(super) retry_of: u32,
    /// What is left of the time.
    pub(super) deadline: Option<Duration>,
}

impl Tries {
    /// The next try after one that ended so, `gone` after the first one's start; none if it is over.
    pub(super) fn next(&self, outcome: &Outcome, gone: Duration) -> Option<Next> {
        let Outcome::Aborted(reason) = outcome else {
            return None;
        };
        if !is_of_the_path(reason.code) || self.again >= self.retry.times {
            return None;
        }
        let retry_of = self.first.checked_add(u32::from(self.again))?;
        let deadline = match self.deadline.map(|all| all.saturating_sub(gone)) {
            Some(Duration::ZERO) => return None,
            left => left,
        };
        Some(Next {
            attempt: retry_of.checked_add(1)?,
            retry_of,
            deadline,
        })
    }
}

/// Whether it was the way between two living nodes that failed. Both sides of a room end by the same of these
/// codes, or by two of them.
fn is_of_the_path(code: Code) -> bool {
    match code {
        Code::SessionLost | Code::RouteFenced | Code::CopyFailed => true,
        // Somebody wanted it.
        Code::Requested | Code::HandleDropped | Code::NodeShutdown | Code::PoolRetired => false,
        // The other side's pages are gone with it.
        Code::PeerLost | Code::PeerRestarted | Code::DeviceLost => false,
        // It would not end otherwise; or the time is over.
        Code::DeadlineExceeded
        | Code::Stalled
        | Code::LengthMismatch
        | Code::LayoutMismatch
        | Code::CoverageOverlap
        | Code::CoverageIncomplete
        | Code::ChecksumMismatch
        | Code::BadChunk
        | Code::BadClaim
        | Code::EarlyClaimExpired
        | Code::TooManyEarlyClaims
        | Code::KeySpent
        | Code::RoomExists
        | Code::ActorPanicked
        | Code::CopyRefused
        | Code::Rejected
        | Code::LimitReached
        | Code::ProtocolViolation => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvroom_actors::reason::Reason;

    fn tries(times: u16, again: u16) -> Tries {
        Tries {
            retry: Retry::times(times),
            first: 7,
            again,
            deadline: Some(Duration::from_secs(10)),
        }
    }

    fn ended(code: Code) -> Outcome {
        Outcome::Aborted(Reason::new(code, ""))
    }

    #[test]
    fn only_what_failed_on_the_way_is_tried_again_on_whichever_side_it_was_seen() {
        let soon = Duration::from_secs(1);
        let again: Vec<Code> = (Code::ALL.into_iter())
            .filter(|code| {
                let here = tries(1, 0).next(&ended(*code), soon);
                let there = Outcome::Aborted(Reason::new(*code, "").from_peer());
                assert_eq!(here, tries(1, 0).next(&there, soon), "{code:?}");
                here.is_some()
            })
            .collect();
        assert_eq!(
            again,
            [Code::SessionLost, Code::CopyFailed, Code::RouteFenced]
        );
        assert_eq!(tries(1, 0).next(&Outcome::Done, soon), None);
    }

    #[test]
    fn tries_follow_each_other_until_they_or_the_time_are_used_up() {
        let lost = ended(Code::SessionLost);
        let next = |again, gone| tries(2, again).next(&lost, Duration::from_secs(gone));
        let at = |attempt, left| {
            Some(Next {
                attempt,
                retry_of: attempt - 1,
                deadline: Some(Duration::from_secs(left)),
            })
        };
        assert_eq!(next(0, 1), at(8, 9));
        assert_eq!(next(1, 4), at(9, 6));
        assert_eq!(next(2, 4), None, "two were to be tried");
        assert_eq!(next(1, 10), None, "the time is over");
        let never = Tries {
            deadline: None,
            ..tries(2, 0)
        };
        let at = never.next(&lost, Duration::from_secs(1 << 30)).unwrap();
        assert_eq!(at.deadline, None);
        let last = Tries {
            first: u32::MAX,
            ..tries(2, 0)
        };
        assert_eq!(
            last.next(&lost, Duration::ZERO),
            None,
            "there is no attempt"
        );
    }

    #[test]
    fn nobody_tries_more_often_than_the_most() {
        assert_eq!(Retry::times(17), Retry::times(Retry::MOST));
        assert_eq!(
            tries(0, 0).next(&ended(Code::SessionLost), Duration::ZERO),
            None
        );
    }
}
