//! Bugs put into what is around the cores, on purpose: see `plants.rs`.

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plant {
    /// A page is written once more, after its lease went back.
    LateWrite,
    /// A closed gate's witness is said to be there while a writer is inside.
    WitnessBeforeEmpty,
    /// The witness of a gate is lost.
    WitnessLost,
    /// A caller keeps pages that its pool has back, and may give to another.
    PagesKept,
    /// The caller never gets its lease.
    LeaseLeaked,
    /// A copy that failed counts as landed.
    FailureCountsAsLanded,
    /// A cell is said to have landed and was left out.
    CellLeftOut,
    /// A cell lands in the next place.
    WrongPlace,
    /// A job's ticket ends before its source is read.
    TicketBeforeRead,
    /// A session that is given up forgets the claims that wait for a credit.
    WaitingForgotten,
    /// A claim of an earlier session gives its credit back in this one.
    CreditAcrossSessions,
    /// A greeting says that one more frame was received than was.
    ResumedTooFar,
    /// An outcome is delivered twice.
    OutcomeTwice,
    /// A shard's clocks never run out.
    DeadClocks,
    /// A reader does not wait for its shard.
    ReaderDoesNotWait,
    /// The first outcome brings the world down.
    Panics,
    /// Failed is said once more.
    FailedTwice,
}
