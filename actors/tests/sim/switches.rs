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
use std::panic::{AssertUnwindSafe, catch_unwind};
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

/// Who finds what.
fn row(switch: Switch) -> Where {
    use Switch::*;
    match switch {
        ReleaseOnDrainTimer => Sweep(Fabric::Shm, STOPPED, Some((1, ABORTED))),
        ReleaseOnPeerLost => Sweep(Fabric::Shm, Inject::GiveUp, None),
        ReleaseOnWithdrawal | CustodyAfterAddress => Seeds(60),
        ReleaseOfPostedChunk | CompleteWhenPosted | CoverageIsASum => Seeds(10),
        QuiescedWhileJobsOut | DoneBeforeGateClosed | DoneOnComplete | DoneAfterFirstLeg => {
            Seeds(20)
        }
        ErroredCountsAsLanded => Seeds(100),
        ReleaseWhileSumming | ProofDiesWithRoom => Sweep(Fabric::Tcp, RECEIVER_PANICS, None),
        NotSentAgain => Sweep(Fabric::Tcp, Inject::Reset, None),
        EarlyClaimDropped | CreditKept | ClaimWithoutCredit => Seeds(20),
        UnequalAttemptsBind => Seeds(60),
        MessageByRoomId => Seeds(300),
        LateNumberForgotten => Seeds(100),
        // Tried, and not noticed by these worlds within 60 seeds: the model has a story of each.
        PanickedClaimUnknown | LostSessionKeepsRooms => Model,
        ReleaseOnDone | ReleaseAfterFirstLeg | RefusedCountsAsLanded => Model,
        OutcomeRepeated | EndSaidTwice | MessageByNumberAlone | RepeatPosted => Model,
        MarkIgnored | AbortLeavesNoMark | AbortOvertakesClaim | DuplicateDelivered => Model,
        EarlyAbortForgotten | AbortNotSentAgain | StallClockInQueue | TombstoneByRoomId => Model,
    }
}

fn hunt(switch: Switch) -> Option<String> {
    let found = || match row(switch) {
        Model => None,
        Seeds(seeds) => (1..=seeds).find_map(|seed| {
            let violation = world(seed, Options::default()).violation?;
            Some(format!("seed {seed}: {violation}"))
        }),
        Sweep(fabric, one, two) => broken_by(fabric, one, two),
    };
    // Some broken rules are noticed by the shipped memory itself, which panics.
    catch_unwind(AssertUnwindSafe(|| with(switch, found)))
        .unwrap_or_else(|_| Some("a panic".into()))
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
                    if matches!(row(*switch), Model) {
                        println!("{switch:?}: NOT noticed here, but by the model");
                        continue;
                    }
                    match hunt(*switch) {
                        Some(violation) => println!("{switch:?}: {violation}"),
                        None => missed.lock().unwrap().push(*switch),
                    }
                }
            });
        }
    });
    let missed = missed.into_inner().unwrap();
    assert!(missed.is_empty(), "nobody notices {missed:?}");
}

/// A row that would be met by worlds that keep every rule says nothing.
#[test]
fn with_every_rule_on_no_row_finds_anything() {
    let mut sweeps = Vec::new();
    for switch in Switch::ALL {
        if let Sweep(fabric, one, two) = row(*switch)
            && !sweeps.contains(&(fabric, one, two))
        {
            sweeps.push((fabric, one, two));
            assert_eq!(broken_by(fabric, one, two), None, "{switch:?}");
        }
    }
}
