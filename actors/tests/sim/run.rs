//! Many seeds over the machine's cores, and what is told of one that fails.

use super::fact::Load;
use super::minimise::shortest;
use super::plan::Plan;
use super::world::{Options, Report, World};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

/// Sums over many worlds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sums {
    pub(crate) seeds: u64,
    pub(crate) steps: u64,
    pub(crate) frames: u64,
    pub(crate) rooms: u64,
    pub(crate) ended: u64,
    pub(crate) done: u64,
    /// The most that a node of any held.
    pub(crate) peak: Load,
}

/// One world of a seed.
pub(crate) fn world(seed: u64, options: Options) -> Report {
    World::new(Plan::of(seed), options).run()
}

/// The worlds of these seeds, on all cores. The smallest seed that fails, if one does.
pub(crate) fn worlds(first: u64, seeds: u64, options: Options) -> (Sums, Option<u64>) {
    let next = AtomicU64::new(first);
    let sums = Mutex::new((Sums::default(), None::<u64>));
    let cores = thread::available_parallelism()
        .map_or(1, usize::from)
        .min(16);
    thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    let failed = sums.lock().unwrap().1;
                    if seed >= first + seeds || failed.is_some_and(|failed| failed < seed) {
                        return;
                    }
                    let report = world(seed, options);
                    let mut sums = sums.lock().unwrap();
                    let (sums, failed) = &mut *sums;
                    sums.seeds += 1;
                    sums.steps += report.steps;
                    sums.frames += report.frames;
                    sums.rooms += report.rooms;
                    sums.ended += report.ended;
                    sums.done += report.done;
                    sums.peak = sums.peak.most(report.peak);
                    if report.violation.is_some() && failed.is_none_or(|failed| seed < failed) {
                        *failed = Some(seed);
                    }
                }
            });
        }
    });
    sums.into_inner().unwrap()
}

/// What there is to say of a seed that fails: how to see it again, and the shortest story of it.
pub(crate) fn story(seed: u64, options: Options) -> String {
    let plan = Plan::of(seed);
    let (plan, report) = shortest(plan, options);
    let violation = report.violation.clone().unwrap_or_default();
    // Checks of a debug build are not in another one, nor are rules turned off.
    let profile = if cfg!(debug_assertions) {
        ""
    } else {
        "--release "
    };
    let mut text = format!(
        "seed {seed}: {violation}\n\nto see it again:\n  KVROOM_SIM_SEEDS=1 KVROOM_SIM_FIRST_SEED={seed} \
         cargo test {profile}-p kvroom-actors --test sim every_promise\n\nwhat is left of the plan when all is dropped that it fails \
         without:\n{plan}\nfrom the first step to the first broken promise:\n"
    );
    const LINES: usize = 400;
    let skip = report.trace.len().saturating_sub(LINES);
    if skip > 0 {
        text += &format!("  ({skip} lines before)\n");
    }
    for line in &report.trace[skip..] {
        text += line;
        text += "\n";
    }
    text + &format!("\n{violation}\n")
}
