//! The table: what is off, in which world, and what must break there.
//!
//! ```text
//!   leases · copies and ends · names · sessions · planted bugs      one test each in stories.rs
//! ```
//!
//! Sizes are the smallest in which it was found. A rule that is kept twice is off twice in its row;
//! `KEPT_TWICE` names those that do no harm alone.

use crate::exhaustive::SIZE;
use crate::model::size::{Kind, Plant, Size};
use crate::model::truth::Broken;
use crate::mortals::{pool_survives, sender_dies};
use crate::planes::UCX;
use crate::rules_goals::*;
use Broken::*;
use Wrong::*;
use kvroom_actors::switch::Switch::{self, *};

/// One thing that is off, and what comes of it.
pub(crate) struct Row {
    pub(crate) off: &'static [Switch],
    pub(crate) plant: Option<Plant>,
    pub(crate) size: Size,
    pub(crate) wrong: Wrong,
}

const fn off(off: &'static [Switch], wrong: Wrong, size: Size) -> Row {
    let plant = None;
    Row {
        off,
        plant,
        size,
        wrong,
    }
}

const fn planted(plant: Plant, wrong: Wrong, size: Size) -> Row {
    with_plant(&[], plant, wrong, size)
}

/// A rule that is needed only where something around the cores is wrong as well.
const fn with_plant(off: &'static [Switch], plant: Plant, wrong: Wrong, size: Size) -> Row {
    let plant = Some(plant);
    Row {
        off,
        plant,
        size,
        wrong,
    }
}

const ABORT: Size = Size { aborts: 1, ..SIZE };
const LOSS: Size = Size { losses: 1, ..SIZE };
const PANIC: Size = Size { panics: 1, ..SIZE };
const ABORT_AND_PANIC: Size = Size { panics: 1, ..ABORT };
const TWICE: Size = Size {
    attempts: 2,
    pushes: 8,
    ..SIZE
};
const AGAIN: Size = Size { aborts: 1, ..TWICE };
const RESET: Size = Size { resets: 1, ..SIZE };
const TWO: Size = Size {
    receivers: 2,
    ..SIZE
};
const UCX_ABORT: Size = Size { aborts: 1, ..UCX };
const UCX_FLUSH: Size = Size {
    flush_errors: 1,
    ..UCX
};
const RESENT: Size = Size {
    plane: Kind::Tcp,
    resends: 1,
    ..SIZE
};
/// Rooms that begin and end, and nothing is ever copied.
const NO_DATA: Size = Size {
    prepared: false,
    pushes: 0,
    ..SIZE
};
/// The same, over owners of sessions that fall behind.
const SLOW_OWNERS: Size = Size {
    aborts: 1,
    eager: false,
    ..NO_DATA
};
/// The same, in rooms that fall behind, and no claim ever opens.
const SLOW_ROOMS: Size = Size {
    panics: 1,
    aborts: 1,
    at_once: false,
    credit: 0,
    ..NO_DATA
};
const TWO_CHUNKS: Size = Size {
    chunks: &[(0, 2), (2, 4)],
    pushes: 2,
    prepared: false,
    ..SIZE
};
/// A caller finishes before all is pushed, and may push a chunk again instead, or abort.
const TOO_EARLY: Size = Size {
    plant: Some(Plant::FinishedTooEarly),
    aborts: 1,
    ..TWO_CHUNKS
};
const STOPPED: Size = Size {
    crashes: 0,
    stops: 1,
    ..sender_dies(Kind::Shm)
};

/// Rules that do no harm when they alone are off, and in which size.
pub(crate) const KEPT_TWICE: &[(Switch, Size)] = &[
    (CoverageIsASum, TOO_EARLY),
    (
        MarkIgnored,
        Size {
            resets: 1,
            ..UCX_ABORT
        },
    ),
    (
        AbortLeavesNoMark,
        Size {
            resets: 1,
            ..UCX_ABORT
        },
    ),
    (
        AbortOvertakesClaim,
        Size {
            resets: 1,
            ..UCX_ABORT
        },
    ),
];

/// Switches that no world of this model can show, and why; another test does.
pub(crate) const NOT_YET: &[(Switch, &str)] = &[(
    MessageByNumberAlone,
    "a number is never used twice between two incarnations, and a session takes nothing about others, \
     so only a peer that lies could tell: see a_message_that_names_another_claim_moves_nothing",
)];

pub(crate) static LEASES: &[Row] = &[
    off(
        &[ReleaseOnDrainTimer],
        Promise(S1LateWrite),
        Size {
            clocks: true,
            ..SIZE
        },
    ),
    off(&[ReleaseOnPeerLost], Promise(S1LateWrite), LOSS),
    off(&[ReleaseOnDone], Promise(S1LateWrite), RESENT),
    off(&[ReleaseOnWithdrawal], Promise(S6NoProof), SLOW_OWNERS),
    off(&[ReleaseOfPostedChunk], Promise(S2TornSource), SIZE),
    off(&[ReleaseAfterFirstLeg], Promise(S2TornSource), TWO),
    off(&[CustodyAfterAddress], Promise(S6NoProof), SLOW_OWNERS),
    off(
        &[ReleaseWhileSumming],
        Promise(S2TornSource),
        Size {
            checksum: true,
            ..PANIC
        },
    ),
    off(&[ProofDiesWithRoom], Stuck(EVERYTHING_ENDS), SLOW_ROOMS),
];

pub(crate) static COPIES_AND_ENDS: &[Row] = &[
    off(&[QuiescedWhileJobsOut], Promise(S1LateWrite), UCX_ABORT),
    off(&[CompleteWhenPosted], Promise(S3DoneIsNotAll), SIZE),
    off(
        &[RefusedCountsAsLanded],
        Step(
            "the sender says Complete, and the gate had refused a copy",
            complete_for_a_refused_job,
        ),
        ABORT,
    ),
    off(
        &[ErroredCountsAsLanded],
        Promise(S3DoneIsNotAll),
        Size {
            failures: true,
            ..SIZE
        },
    ),
    with_plant(
        &[CoverageIsASum, RepeatPosted],
        Plant::FinishedTooEarly,
        Promise(S3DoneIsNotAll),
        TWO_CHUNKS,
    ),
    off(&[RepeatPosted], Promise(S8HarmedByAnother), TWO_CHUNKS),
    off(
        &[DoneBeforeGateClosed],
        Step(
            "a writer is inside the gate of a room that is Done",
            written_after_done,
        ),
        RESENT,
    ),
    off(&[DoneAfterFirstLeg], Promise(SenderDoneAlone), TWO),
    off(&[DoneOnComplete], Promise(SenderDoneAlone), SIZE),
    off(&[OutcomeRepeated], Promise(S5TwoEnds), ABORT_AND_PANIC),
    off(&[EndSaidTwice], Promise(ToldTwice), ABORT_AND_PANIC),
    off(
        &[StallClockInQueue],
        Step(
            "it is ended as stalled, and nothing was ever posted",
            stalled_with_nothing_posted,
        ),
        Size {
            progress: 8,
            prepared: false,
            ..SIZE
        },
    ),
];

pub(crate) static NAMES: &[Row] = &[
    off(&[UnequalAttemptsBind], Promise(S7WrongBytes), AGAIN),
    off(&[TombstoneByRoomId], Promise(S8HarmedByAnother), AGAIN),
    off(&[MessageByRoomId], Promise(S8HarmedByAnother), AGAIN),
    off(
        &[PanickedClaimUnknown],
        Promise(S1LateWrite),
        Size {
            panics: 1,
            ..UCX_ABORT
        },
    ),
    off(
        &[MarkIgnored, AbortOvertakesClaim],
        Promise(S1LateWrite),
        Size {
            resets: 1,
            ..UCX_ABORT
        },
    ),
    off(
        &[AbortLeavesNoMark, AbortOvertakesClaim],
        Promise(S1LateWrite),
        Size {
            resets: 1,
            ..UCX_ABORT
        },
    ),
];

pub(crate) static SESSIONS: &[Row] = &[
    with_plant(
        &[DuplicateDelivered],
        Plant::ResumedTooShort,
        Promise(CreditMiscounted),
        RESET,
    ),
    off(&[LostSessionKeepsRooms], Stuck(BOUND_ENDS_IN_TIME), LOSS),
    off(
        &[AbortNotSentAgain],
        Stuck(EVERYTHING_ENDS),
        Size {
            losses: 1,
            plane: Kind::Ucx,
            ..NO_DATA
        },
    ),
    off(&[NotSentAgain], Promise(Accused), RESET),
    off(&[EarlyClaimDropped], Stuck(ALL_ARE_DONE), SIZE),
    off(
        &[EarlyAbortForgotten],
        Stuck(ENDS_IN_TIME),
        Size {
            aborts: 1,
            ..NO_DATA
        },
    ),
    off(&[LateNumberForgotten], Stuck(EVERYTHING_ENDS), SLOW_OWNERS),
    off(&[CreditKept], Stuck(NEXT_IS_DONE), TWICE),
    off(&[ClaimWithoutCredit], Promise(Accused), TWICE),
];

pub(crate) static PLANTED: &[Row] = &[
    planted(Plant::GateYieldsEarly, Promise(S1LateWrite), ABORT),
    planted(Plant::LandedBeforeTheFlush, Promise(S3DoneIsNotAll), SIZE),
    planted(Plant::QuiescedWhileOut, Promise(S1LateWrite), UCX_ABORT),
    planted(
        Plant::CreditAcrossSessions,
        Promise(CreditMiscounted),
        Size {
            attempts: 2,
            ..LOSS
        },
    ),
    planted(
        Plant::WaitingForgotten,
        Stuck(EVERYTHING_ENDS),
        Size { credit: 0, ..LOSS },
    ),
    planted(Plant::ResumedTooFar, Promise(Accused), RESET),
    planted(Plant::ForcedCloseIsAFence, Promise(S1LateWrite), UCX_ABORT),
    planted(
        Plant::DeathEndsPuts,
        Promise(S1LateWrite),
        sender_dies(Kind::Ucx),
    ),
    planted(
        Plant::FenceNotSticky,
        Promise(S1LateWrite),
        Size {
            losses: 1,
            fence: true,
            ..UCX_ABORT
        },
    ),
    planted(
        Plant::FailedFlushIsAFlush,
        Promise(S3DoneIsNotAll),
        UCX_FLUSH,
    ),
    planted(Plant::RouteChanged, Promise(S1LateWrite), UCX_FLUSH),
    planted(Plant::DiscountedOnHello, Promise(S1LateWrite), STOPPED),
    planted(
        Plant::AbortToTheNewLife,
        Promise(S1LateWrite),
        sender_dies(Kind::Ucx),
    ),
    planted(
        Plant::AttachedWithoutClosing,
        Promise(S1WriteIntoAnother),
        pool_survives(Kind::Shm),
    ),
    planted(Plant::FreedAtTheOutcome, Promise(S4TwoOwners), AGAIN),
    planted(
        Plant::QuiescedWhileOut,
        Promise(Broken::QuiescedWhileOut),
        ABORT,
    ),
    planted(
        Plant::NumbersBeginAgain,
        Promise(S1WriteIntoAnother),
        pool_survives(Kind::Shm),
    ),
];

/// All of them.
pub(crate) fn rows() -> impl Iterator<Item = &'static Row> {
    [LEASES, COPIES_AND_ENDS, NAMES, SESSIONS, PLANTED]
        .into_iter()
        .flatten()
}
