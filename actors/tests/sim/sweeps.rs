//! One small transfer, and one trouble at each of its steps: it ends well whichever step that is.
//!
//! ```text
//!   each fabric × { abort by either side, reset, data reset, kill and stop of either side } × each step
//!   each fabric × { lose (with its connection), duplicate, delay }                          × each frame
//! ```
//!
//! "Well" is every promise of `invariants/`, and a fresh room afterwards. Where the trouble costs nothing
//! but time, the transfer itself must be done.

use super::control::Meddle;
use super::plan::{Fabric, Fault, FaultKind, LinkPlan, MS, NodePlan, Plan, Request, SEC, US, Who};
use super::world::{Inject, Options, Report, World};
use kvroom_actors::copy::schedule::Class;
use std::sync::Mutex;
use std::thread;

/// Two nodes and one request; what begins or ends later than this is not its transfer.
pub(crate) fn plan(fabric: Fabric, settle: u64) -> Plan {
    let node = |process| NodePlan {
        process,
        pages: 48,
        copies_small: false,
    };
    let mut plan = Plan {
        seed: 11,
        nodes: vec![node(0), node(usize::from(fabric != Fabric::Local))],
        links: vec![LinkPlan {
            sender: 0,
            receiver: 1,
            fabric,
            latency: 30 * US,
            credit: 4,
            backoff: MS / 2,
        }],
        requests: vec![Request {
            room: 0,
            at: 5 * MS,
            links: vec![0],
            pages: 4,
            ragged: true,
            skip: 0,
            cuts: vec![0, 2],
            pace: 200 * US,
            receivers_late: 0,
            sender_late: 0,
            aux: true,
            checksum: true,
            class: Class::Interactive,
            tag: None,
            deadline: 8 * SEC,
            aborts: Vec::new(),
            mistake: None,
            repeats: true,
            retries: 0,
            impatient: false,
            probe: false,
        }],
        // What an injection of a fault that ends takes the place of.
        faults: vec![Fault {
            at: 1_000 * SEC,
            lasts: 0,
            kind: FaultKind::AbortRoom {
                node: 0,
                room: u64::MAX,
            },
        }],
        calm: settle,
        settle,
        layers: 2,
    };
    plan.add_probes();
    plan
}

/// One trouble, and how long it takes to heal.
#[derive(Clone, Copy, Debug)]
enum Trouble {
    Inject(Inject),
    Meddle(Meddle),
    /// The second so many steps after the first.
    Both(Inject, u64, Inject),
}

/// All that can be combined.
fn heals_slowly(inject: Inject) -> bool {
    matches!(inject, Inject::Kill { .. } | Inject::Stop { .. })
}

impl Trouble {
    fn run(self, fabric: Fabric, at: u64) -> Report {
        let settle = match self {
            Trouble::Inject(inject) if heals_slowly(inject) => 4_500 * MS,
            Trouble::Both(one, _, two) if heals_slowly(one) || heals_slowly(two) => 4_500 * MS,
            _ => 300 * MS,
        };
        let mut options = Options::default();
        match self {
            Trouble::Inject(inject) => options.inject = [Some((at, inject)), None],
            Trouble::Both(one, later, two) => {
                options.inject = [Some((at, one)), Some((at + later, two))];
            }
            Trouble::Meddle(meddle) => options.meddle = Some((at, meddle)),
        }
        World::new(plan(fabric, settle), options).run()
    }

    /// It costs nothing but time.
    fn is_harmless(self, fabric: Fabric) -> bool {
        match self {
            Trouble::Meddle(Meddle::Twice | Meddle::Delay) => true,
            Trouble::Meddle(Meddle::Lose) | Trouble::Inject(Inject::Reset) => {
                fabric != Fabric::Local
            }
            Trouble::Inject(Inject::DataReset) => true,
            _ => false,
        }
    }
}

/// Every trouble at every place of the transfer. Gives how many cases there were.
fn sweep(fabric: Fabric) -> usize {
    let quiet = World::new(plan(fabric, 300 * MS), Options::default()).run();
    assert_eq!(quiet.violation, None);
    assert_eq!(
        (quiet.ended, quiet.done),
        (4, 4),
        "without trouble all is done"
    );
    let mut troubles = Vec::new();
    for who in [Who::Sender, Who::Receiver(0)] {
        troubles.push((Trouble::Inject(Inject::Abort(who)), quiet.early_steps));
    }
    let processes = if fabric == Fabric::Local { 1 } else { 2 };
    for process in 0..processes {
        for pool_survives in [false, true] {
            let kill = Inject::Kill {
                process,
                pool_survives,
            };
            troubles.push((Trouble::Inject(kill), quiet.early_steps));
        }
        let stop = Inject::Stop { process };
        troubles.push((Trouble::Inject(stop), quiet.early_steps));
    }
    for trouble in [
        Trouble::Inject(Inject::Reset),
        Trouble::Inject(Inject::GiveUp),
        Trouble::Inject(Inject::Panic { node: 0 }),
        Trouble::Inject(Inject::Panic { node: 1 }),
    ] {
        troubles.push((trouble, quiet.early_steps));
    }
    if fabric == Fabric::Tcp {
        troubles.push((Trouble::Inject(Inject::DataReset), quiet.early_steps));
    }
    for meddle in [Meddle::Lose, Meddle::Twice, Meddle::Delay] {
        troubles.push((Trouble::Meddle(meddle), quiet.early_frames));
    }
    let cases: Vec<(Trouble, u64)> = troubles
        .into_iter()
        .flat_map(|(trouble, places)| (1..=places).map(move |at| (trouble, at)))
        .collect();
    let failed = Mutex::new(Vec::new());
    let cores = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for part in cases.chunks(cases.len().div_ceil(cores)) {
            let failed = &failed;
            scope.spawn(move || {
                for (trouble, at) in part {
                    let report = trouble.run(fabric, *at);
                    let undone = trouble.is_harmless(fabric) && report.done < 4;
                    let why = report.violation.or(undone.then(|| "not done".into()));
                    if let Some(why) = why {
                        let line = format!("{trouble:?} at {at}: {why}");
                        failed.lock().unwrap().push(line);
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap();
    assert!(
        failed.is_empty(),
        "{} of {} cases over {fabric:?} end badly:\n{}",
        failed.len(),
        cases.len(),
        failed[..failed.len().min(12)].join("\n")
    );
    println!("{} cases over {fabric:?}", cases.len());
    cases.len()
}

/// The promises that this trouble breaks, at one step after the other over this fabric.
#[cfg(debug_assertions)]
pub(crate) fn broken_by(
    fabric: Fabric,
    one: Inject,
    two: Option<(u64, Inject)>,
) -> impl Iterator<Item = String> {
    let quiet = World::new(plan(fabric, 300 * MS), Options::default()).run();
    let trouble = match two {
        Some((later, two)) => Trouble::Both(one, later, two),
        None => Trouble::Inject(one),
    };
    (1..=quiet.early_steps).filter_map(move |at| trouble.run(fabric, at).violation)
}

#[test]
fn a_writer_that_is_stopped_and_told_to_stop_holds_its_pages_until_it_is_out() {
    for fabric in [Fabric::Shm, Fabric::Tcp] {
        let quiet = World::new(plan(fabric, 300 * MS), Options::default()).run();
        let stop = Inject::Stop { process: 0 };
        let abort = Inject::Abort(Who::Receiver(0));
        for at in 1..=quiet.early_steps {
            let report = Trouble::Both(stop, 1, abort).run(fabric, at);
            assert_eq!(report.violation, None, "{fabric:?}, step {at}");
        }
        assert!(quiet.early_steps > 50, "{fabric:?} {}", quiet.early_steps);
    }
}

#[test]
fn whatever_happens_at_whichever_step_a_transfer_within_the_process_ends_well() {
    assert!(sweep(Fabric::Local) > 500);
}

#[test]
fn whatever_happens_at_whichever_step_a_transfer_through_shared_memory_ends_well() {
    assert!(sweep(Fabric::Shm) > 500);
}

#[test]
fn whatever_happens_at_whichever_step_a_transfer_over_a_network_ends_well() {
    assert!(sweep(Fabric::Tcp) > 500);
}
