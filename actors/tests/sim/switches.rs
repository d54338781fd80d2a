//! Rules of the cores, turned off one at a time: which promise is then seen to be broken, and where.
//!
//! ```text
//!   Row { rules off, where: seeds or a sweep, promise } ─▶ with(switch, || worlds) ─▶ broken, as it says
//! ```
//!
//! Each rule has a row. What whole nodes cannot show (a rule that is kept twice, or that only an order
//! shows which their sessions rule out) is for the model, which searches every order.

use super::plan::{Fabric, Who};
use super::run::world;
use super::sweeps::broken_by;
use super::world::{Inject, Options};
use kvroom_actors::switch::{Switch, with};
use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Where a rule that is off is noticed.
#[derive(Clone, Copy, Debug)]
enum Where {
    /// By one of the first so many seeds.
    Seeds(u64),
    /// By one trouble, or two, at some step of a small transfer.
    Sweep(Fabric, Inject, Option<(u64, Inject)>),
    /// Not here.
    Model,
}

use Where::{Model, Seeds, Sweep};

const ABORTED: Inject = Inject::Abort(Who::Receiver(0));
const STOPPED: Inject = Inject::Stop { process: 0 };
const RECEIVER_PANICS: Inject = Inject::Panic { node: 1 };

/// Who finds what, and which promise is then broken. No row is met by a panic: a world that panics
/// breaks none of these.
fn row(switch: Switch) -> (Where, &'static str) {
    use Switch::*;
    match switch {
        ReleaseOnDrainTimer => (Sweep(Fabric::Shm, STOPPED, Some((1, ABORTED))), "S6"),
        ReleaseOnPeerLost => (Sweep(Fabric::Shm, Inject::GiveUp, None), "S6"),
        ReleaseOnWithdrawal | CustodyAfterAddress => (Seeds(60), "S6"),
        ReleaseOfPostedChunk => (Seeds(60), "S2"),
        CompleteWhenPosted => (Seeds(60), "S3"),
        // Cells are counted in places where they are not: what lands there later overlaps.
        CoverageIsASum => (Seeds(10), "L4"),
        QuiescedWhileJobsOut => (Seeds(20), "S6"),
        DoneBeforeGateClosed => (Seeds(20), "L3"),
        DoneOnComplete | DoneAfterFirstLeg => (Seeds(20), "S3"),
        ErroredCountsAsLanded => (Seeds(100), "S3"),
        ReleaseWhileSumming => (Sweep(Fabric::Tcp, RECEIVER_PANICS, None), "S6"),
        ProofDiesWithRoom => (Sweep(Fabric::Tcp, RECEIVER_PANICS, None), "L4"),
        NotSentAgain => (Sweep(Fabric::Tcp, Inject::Reset, None), "L4"),
        EarlyClaimDropped | CreditKept => (Seeds(20), "L4"),
        ClaimWithoutCredit => (Seeds(20), "L3"),
        UnequalAttemptsBind => (Seeds(60), "S3"),
        MessageByRoomId => (Seeds(300), "S3"),
        LateNumberForgotten => (Seeds(100), "L4"),
        // Tried, and not noticed by these worlds within 60 seeds: the model has a story of each.
        PanickedClaimUnknown | LostSessionKeepsRooms => (Model, ""),
        ReleaseOnDone | ReleaseAfterFirstLeg | RefusedCountsAsLanded => (Model, ""),
        OutcomeRepeated | EndSaidTwice | MessageByNumberAlone | RepeatPosted => (Model, ""),
        MarkIgnored | AbortLeavesNoMark | AbortOvertakesClaim => (Model, ""),
        DuplicateDelivered | EarlyAbortForgotten | AbortNotSentAgain => (Model, ""),
        StallClockInQueue | TombstoneByRoomId => (Model, ""),
    }
}

/// What breaks the promise of its row; else which others are broken instead.
fn hunt(switch: Switch) -> Result<String, BTreeSet<String>> {
    let (at, promise) = row(switch);
    let mut others = BTreeSet::new();
    let mut is_it = |violation: String| {
        if violation.starts_with(promise) {
            return Some(violation);
        }
        others.insert(violation.chars().take(60).collect());
        None
    };
    let found = with(switch, || match at {
        Model => None,
        Seeds(seeds) => (1..=seeds).find_map(|seed| {
            let violation = is_it(world(seed, Options::default()).violation?)?;
            Some(format!("seed {seed}: {violation}"))
        }),
        Sweep(fabric, one, two) => broken_by(fabric, one, two).find_map(is_it),
    });
    found.ok_or(others)
}

#[test]
fn each_rule_that_is_turned_off_is_noticed_where_its_row_says() {
    let next = AtomicUsize::new(0);
    let missed = Mutex::new(Vec::new());
    let cores = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                while let Some(switch) = Switch::ALL.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if matches!(row(*switch), (Model, _)) {
                        println!("{switch:?}: NOT noticed here, but by the model");
                        continue;
                    }
                    match hunt(*switch) {
                        Ok(violation) => println!("{switch:?}: {violation}"),
                        Err(others) => missed.lock().unwrap().push((*switch, others)),
                    }
                }
            });
        }
    });
    let missed = missed.into_inner().unwrap();
    assert!(
        missed.is_empty(),
        "not noticed as their rows say: {missed:#?}"
    );
}

/// A row that would be met by worlds that keep every rule says nothing.
#[test]
fn with_every_rule_on_no_row_finds_anything() {
    let mut sweeps = Vec::new();
    for switch in Switch::ALL {
        if let (Sweep(fabric, one, two), _) = row(*switch)
            && !sweeps.contains(&(fabric, one, two))
        {
            sweeps.push((fabric, one, two));
            assert_eq!(broken_by(fabric, one, two).next(), None, "{switch:?}");
        }
    }
}
