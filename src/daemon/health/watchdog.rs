//! The watchdog: a plain thread that needs nothing of the runtimes it watches.
//!
//! It reads pulses, which are atomics, and so notices a part that stands still when nothing else in the
//! process runs any more. What it finds is logged once, when it begins and when it ends.

use super::judge::{judge_part, judge_task};
use super::ledger::{Finding, Ledger, Wrong};
use super::notify::Notifier;
use super::report::{Finished, now_ms};
use super::{Heart, STALE};
use crate::daemon::tasks::{TaskSeen, Tasks, Without};
use kvroom::Node;
use kvroom::health::{Part, PulseWatch, Still, StillWhy};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Between two looks.
const LOOK: Duration = Duration::from_millis(250);
/// A shard or the node's own task that stands still for so long is not alive, nor are the threads of
/// HTTP that run no task. At least; it is never less than five times the bound for being ready.
const DEAD: Duration = Duration::from_secs(10);

/// What the watchdog watches, and whom it tells.
pub(crate) struct Watching {
    pub(crate) node: Node,
    pub(crate) tasks: Tasks,
    pub(crate) heart: Arc<Heart>,
    pub(crate) ready: watch::Receiver<Arc<Finished>>,
    pub(crate) live: watch::Sender<Arc<Finished>>,
    pub(crate) stopping: Arc<AtomicBool>,
    pub(crate) notifier: Arc<Notifier>,
    pub(crate) blocked_after: Duration,
}

/// Starts it. It ends with the last reader of its result.
pub(crate) fn start(watching: Watching) {
    let spawned = std::thread::Builder::new()
        .name("kvroom-watchdog".into())
        .spawn(move || watch(watching));
    if let Err(error) = spawned {
        // Without it /livez is red before long, by the age of its result.
        tracing::error!(%error, "the watchdog's thread could not be started");
    }
}

fn watch(watching: Watching) {
    let (mut pulses, mut ledger) = (PulseWatch::default(), Ledger::default());
    let mut log = Log::default();
    let dead = DEAD.max(watching.blocked_after.saturating_mul(5));
    let mut told = Instant::now();
    loop {
        // Before it is known whether all is to stop: who was seen to be over was not told to be.
        let tasks = watching.tasks.look();
        // When the node stops its parts go, in order.
        let stopping = watching.stopping.load(Ordering::Relaxed);
        let pulse = watching.node.pulse();
        let still = pulses.look(&pulse);
        if !stopping {
            log.parts(watching.node.name(), &still, watching.blocked_after);
        }
        let silent = watching.heart.silent_for();
        let late = watching.ready.borrow().at.elapsed();
        if !stopping {
            log.one("the threads of HTTP", silent, STALE, "run no task");
            log.one("the health task", late, STALE, "has said nothing");
        }
        let restart = |part: &Part| matches!(part, Part::Node | Part::Shard(_));
        let parts = pulse.parts.iter().filter(|p| restart(&p.part));
        let mut findings: Vec<Finding> = if stopping {
            Vec::new()
        } else {
            parts.map(|p| judge_part(p, &still, dead)).collect()
        };
        if !stopping {
            findings.push(runtime(silent, dead));
            let needed = tasks
                .into_iter()
                .filter(|task| task.without == Without::NotAlive);
            // What the system refuses one is not mended by a restart.
            let needed = needed.map(|task| TaskSeen {
                failing: None,
                ..task
            });
            findings.extend(needed.map(|task| judge_task(&task, dead)));
        }
        let at_ms = now_ms();
        let live = Finished {
            at: pulse.at,
            at_ms,
            checks: ledger.enter(findings, pulse.at, at_ms),
            canaries_started: 0,
            canaries: Vec::new(),
            peers: Vec::new(),
        };
        let alive = live.ok();
        if watching.live.is_closed() {
            return;
        }
        watching.live.send_replace(Arc::new(live));
        if alive && told.elapsed() >= watching.notifier.every() {
            told = Instant::now();
            watching.notifier.alive();
        }
        std::thread::sleep(LOOK);
    }
}

fn runtime(silent: Duration, dead: Duration) -> Finding {
    if silent < dead {
        return Finding::well("http");
    }
    let wrong = Wrong {
        since: silent,
        why: format!("the threads of HTTP have run no task for {silent:.1?}"),
        action: "take a stack of the threads kvroom-http (gdb -p PID), then restart the daemon",
    };
    Finding::wrong("http", wrong)
}

/// What was logged, so that it is logged once.
#[derive(Default)]
struct Log(BTreeSet<String>);

impl Log {
    fn parts(&mut self, node: &str, still: &[Still], bound: Duration) {
        let blocked = |s: &&Still| s.since >= bound || s.why == StillWhy::Gone;
        let now: Vec<(String, &Still)> = still
            .iter()
            .filter(blocked)
            .map(|s| (s.part.to_string(), s))
            .collect();
        for (part, still) in &now {
            if self.0.insert(part.clone()) {
                let (why, since) = (still.why, still.since);
                tracing::error!(node, part, ?since, "stands still: {why}");
            }
        }
        let names = ["node", "shard ", "lane ", "ucx thread"];
        self.0.retain(|logged| {
            let part = names.iter().any(|name| logged.starts_with(name));
            let keep = !part || now.iter().any(|(part, _)| part == logged);
            if !keep {
                tracing::warn!(node, part = logged, "goes on");
            }
            keep
        });
    }

    fn one(&mut self, what: &str, silent: Duration, bound: Duration, says: &str) {
        if silent < bound {
            if self.0.remove(what) {
                tracing::warn!("{what} go on");
            }
        } else if self.0.insert(what.to_owned()) {
            tracing::error!("{what} {says} for {silent:.1?}");
        }
    }
}
