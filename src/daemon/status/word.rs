//! The word of a slot.
//!
//! ```text
//!   bits 0..8  state: 0 free, 1 registered, 2 transferring, 3 draining, 4 done, 5 aborted
//!       8..16  outcome: 0 not known, 1 done, from 2 the reason why it was aborted
//!      16      released: its memory is proven quiet and back
//!      32..64  rises by one with each change of the slot, also when it is another room's
//! ```
//!
//! Rule: a number that was given is never given another meaning; new reasons get new numbers.

use kvroom::{Code, Outcome, StateName};

const RELEASED: u32 = 1 << 16;

/// What a room's word says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Status(u32);

impl Status {
    /// A room that has just been registered.
    pub(crate) fn registered() -> Status {
        Status::of(StateName::Registered, None)
    }

    /// A room in this state, with its outcome if that is known.
    pub(crate) fn of(state: StateName, outcome: Option<&Outcome>) -> Status {
        let state = match state {
            StateName::Registered => 1,
            StateName::Transferring => 2,
            StateName::Draining => 3,
            StateName::Done => 4,
            StateName::Aborted => 5,
        };
        let outcome = match outcome {
            None => 0,
            Some(Outcome::Done) => 1,
            Some(Outcome::Aborted(reason)) => u32::from(code_number(reason.code)),
        };
        Status(state | outcome << 8)
    }

    /// Whether its memory is back.
    pub(crate) fn released(self, released: bool) -> Status {
        let without = self.0 & !RELEASED;
        Status(if released {
            without | RELEASED
        } else {
            without
        })
    }

    pub(super) fn bits(self) -> u32 {
        self.0
    }
}

/// The number of a reason, from 2; docs/pools.md has the same list.
pub(crate) fn code_number(code: Code) -> u8 {
    match code {
        Code::Requested => 2,
        Code::HandleDropped => 3,
        Code::PeerLost => 4,
        Code::PeerRestarted => 5,
        Code::SessionLost => 6,
        Code::DeadlineExceeded => 7,
        Code::Stalled => 8,
        Code::LengthMismatch => 9,
        Code::LayoutMismatch => 10,
        Code::CoverageOverlap => 11,
        Code::CoverageIncomplete => 12,
        Code::ChecksumMismatch => 13,
        Code::BadChunk => 14,
        Code::BadClaim => 15,
        Code::EarlyClaimExpired => 16,
        Code::TooManyEarlyClaims => 17,
        Code::KeySpent => 18,
        Code::RoomExists => 19,
        Code::ActorPanicked => 20,
        Code::CopyFailed => 21,
        Code::CopyRefused => 22,
        Code::RouteFenced => 23,
        Code::PoolRetired => 24,
        Code::NodeShutdown => 25,
        Code::Rejected => 26,
        Code::LimitReached => 27,
        Code::ProtocolViolation => 28,
        Code::DeviceLost => 29,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_of_pools_and_the_python_client_name_every_reason_by_its_number() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
        let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap();
        let docs = read("docs/pools.md");
        let python = read("examples/python/kvroom_client.py");
        let mut last = 1;
        for code in Code::ALL {
            let (number, name) = (code_number(code), format!("{code:?}"));
            assert_eq!(number, last + 1, "{name}");
            last = number;
            assert!(
                docs.contains(&format!("{number} `{name}`")),
                "{number} {name}"
            );
            assert!(
                python.contains(&format!("{number}: \"{name}\"")),
                "{number} {name}"
            );
        }
    }
}
