//! The shortest story of a failure: requests and faults are dropped as long as the same promise is broken.

use super::plan::Plan;
use super::world::{Options, Report, World};

/// Worlds that are tried.
const TRIES: u32 = 400;

/// Which promise a violation is of.
fn promise(report: &Report) -> Option<&str> {
    report.violation.as_deref()?.split(':').next()
}

/// Drops what the failure does not need (delta debugging: large parts first), and runs what is left.
pub(crate) fn shortest(plan: Plan, options: Options) -> (Plan, Report) {
    let quiet = Options {
        trace: false,
        ..options
    };
    let wanted = World::new(plan.clone(), quiet).run();
    let wanted = promise(&wanted).map(str::to_owned);
    let mut best = plan;
    let mut tries = TRIES;
    let mut part = (best.requests.len() + best.faults.len()).div_ceil(2);
    while wanted.is_some() && part > 0 && tries > 0 {
        let mut at = 0;
        let mut dropped = false;
        while at < best.requests.len() + best.faults.len() && tries > 0 {
            let smaller = without(&best, at, part);
            tries -= 1;
            let report = World::new(smaller.clone(), quiet).run();
            if promise(&report) == wanted.as_deref() {
                best = smaller;
                dropped = true;
            } else {
                at += part;
            }
        }
        part = match (part, dropped) {
            (1, true) => 1,
            (1, false) => 0,
            (part, _) => part / 2,
        };
    }
    let options = Options {
        trace: true,
        ..options
    };
    let report = World::new(best.clone(), options).run();
    (best, report)
}

/// The plan without some of its requests and faults, which are counted together.
fn without(plan: &Plan, at: usize, count: usize) -> Plan {
    let mut smaller = plan.clone();
    let requests = plan.requests.len();
    let gone = at..at + count;
    let keep = |i: usize| !gone.contains(&i);
    let mut i = 0;
    smaller.requests.retain(|_| {
        i += 1;
        keep(i - 1)
    });
    let mut i = requests;
    smaller.faults.retain(|_| {
        i += 1;
        keep(i - 1)
    });
    smaller
}
