//! What is wrong, from what was seen. Pure: no clock, no node.

use super::ledger::{Finding, Wrong};
use crate::daemon::devices::DeviceSeen;
use crate::daemon::tasks::{TaskSeen, Without};
use kvroom::UcxFacts;
use kvroom::health::{EntranceState, Part, PartPulse, Still, StillWhy};
use kvroom_ucx_sys::Version;
use std::time::Duration;

/// A pool of which so many percent are quarantined serves nobody, whoever is to blame.
const QUARANTINE_PERCENT: u64 = 90;

/// How many times its deadline a canary may take while its node is busy and gets on.
pub(crate) const PATIENCE: u32 = 10;

/// What was seen of the node.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// All parts.
    pub(crate) parts: Vec<PartPulse>,
    /// Those that have something to do and begin no turn.
    pub(crate) still: Vec<Still>,
    /// The listeners.
    pub(crate) listeners: Vec<EntranceState>,
    /// The daemon's own tasks.
    pub(crate) tasks: Vec<TaskSeen>,
    /// The pools.
    pub(crate) pools: Vec<PoolSeen>,
    /// How long ago a room of the node ended last, or it had none.
    pub(crate) ended: Duration,
    /// The canaries.
    pub(crate) canaries: Vec<CanarySeen>,
    /// The devices that may be used.
    pub(crate) devices: Vec<DeviceSeen>,
    /// UCX, if it is to be used.
    pub(crate) ucx: Option<UcxSeen>,
}

/// UCX, as the node found it when it started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UcxSeen {
    /// Whether it is used with RDMA only.
    pub(crate) rdma_only: bool,
    /// What it is; or why it is not used, and what to do.
    pub(crate) found: Result<UcxFacts, String>,
}

/// A pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PoolSeen {
    /// Its name.
    pub(crate) name: String,
    /// Pages that it has.
    pub(crate) pages: u64,
    /// Pages that are leased.
    pub(crate) leased: u64,
    /// Pages that are quarantined: by rooms, and by former lives of the pool.
    pub(crate) quarantined: u64,
}

/// A canary, at the moment of the look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CanarySeen {
    /// `canary tcp lane 0`.
    pub(crate) name: String,
    /// How long the present run takes, and what it does.
    pub(crate) running: Option<(Duration, &'static str)>,
    /// How the last run ended.
    pub(crate) last: LastSeen,
    /// Its node is busy, and gets on.
    pub(crate) busy: bool,
}

/// How a canary's last run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LastSeen {
    /// There was none.
    Never,
    /// All bytes came, in so long.
    Passed(Duration),
    /// It could not start, for so long now: the node has as many rooms as it may. And how long ago a
    /// room of the node ended last.
    Full(Duration, Duration),
    /// For so long now, for this reason.
    Failed(Duration, String),
}

/// How long things may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// A part with something to do and no turn.
    pub(crate) blocked_after: Duration,
    /// A canary.
    pub(crate) canary: Duration,
}

/// Every check.
pub(crate) fn judge(seen: &Seen, bounds: Bounds) -> Vec<Finding> {
    let mut found: Vec<Finding> = (seen.parts.iter())
        .map(|part| judge_part(part, &seen.still, bounds.blocked_after))
        .collect();
    found.push(judge_outcomes(&seen.parts));
    found.extend(seen.listeners.iter().map(judge_listener));
    found.extend(
        seen.tasks
            .iter()
            .map(|task| judge_task(task, bounds.blocked_after)),
    );
    let patience = bounds.canary.saturating_mul(PATIENCE);
    let pools = seen.pools.iter();
    found.extend(pools.map(|pool| judge_pool(pool, seen.ended, patience)));
    found.extend(seen.devices.iter().filter(|d| d.started).map(judge_device));
    found.extend(seen.ucx.iter().map(judge_ucx));
    let canaries = seen.canaries.iter();
    found.extend(canaries.map(|canary| judge_canary(canary, bounds.canary)));
    found
}

/// One part, against a bound.
pub(crate) fn judge_part(part: &PartPulse, still: &[Still], bound: Duration) -> Finding {
    let name = part.part.to_string();
    let still = still.iter().find(|s| s.part == part.part);
    match still.filter(|s| s.since >= bound || s.why == StillWhy::Gone) {
        Some(still) => Finding::wrong(
            name,
            Wrong {
                since: still.since,
                why: format!(
                    "{}, and has made no turn for {:.1?}",
                    still.why, still.since
                ),
                action: what_to_do(&part.part),
            },
        ),
        None => Finding::well(name),
    }
}

fn what_to_do(part: &Part) -> &'static str {
    match part {
        Part::Node => {
            "no peer can come or go: take a stack of the thread kvroom-NAME (gdb -p PID), then restart the daemon"
        }
        Part::Shard(_) | Part::Session(_) => {
            "its rooms stand still: take a stack of its thread (gdb -p PID), GET /v1/recording, then \
             restart the daemon"
        }
        Part::Ucx => {
            "what goes through UCX stands still, and the pages stay lent: send new rooms elsewhere, take a stack of \
             the thread kvroom-ucx (gdb -p PID), look at what UCX said in the log; restart only when no page of this \
             node may be in use"
        }
        Part::Lane(_) => {
            "what it copies stands still, and the pages stay lent: send new rooms elsewhere, take a stack \
             of its thread (gdb -p PID), GET /v1/recording; restart only when no page of this node may be \
             in use"
        }
    }
}

fn judge_outcomes(parts: &[PartPulse]) -> Finding {
    let overdue: u64 = parts.iter().map(|p| p.overdue).sum();
    if overdue == 0 {
        return Finding::well("outcomes");
    }
    let many = if overdue >= 1_000 { " or more" } else { "" };
    let wrong = Wrong {
        since: Duration::from_secs(1),
        why: format!("{overdue}{many} rooms have no outcome a second after their deadline"),
        action: "the shards do not keep up with their clocks: send less, or give the node more shards; if \
                 it is idle, GET /v1/recording and report it",
    };
    Finding::wrong("outcomes", wrong)
}

fn judge_listener(listener: &EntranceState) -> Finding {
    judge_entrance(format!("listener {}", listener.address), listener.failing)
}

fn judge_entrance(name: String, failing: Option<(Duration, i32)>) -> Finding {
    let Some((since, errno)) = failing else {
        return Finding::well(name);
    };
    let error = std::io::Error::from_raw_os_error(errno);
    let wrong = Wrong {
        since,
        why: format!("nobody can be accepted: {error}"),
        action: "raise the limit of open files (LimitNOFILE, ulimit -n), or see who holds them",
    };
    Finding::wrong(name, wrong)
}

/// A task of the daemon: it runs, or it is over, or is at one piece of work for longer than the bound, or the
/// system refuses what it has to do.
pub(crate) fn judge_task(task: &TaskSeen, bound: Duration) -> Finding {
    let Some((since, panicked)) = task.over else {
        if let Some(since) = task.in_turn.filter(|since| *since >= bound) {
            let wrong = Wrong {
                since,
                why: format!(
                    "this task of the daemon has been at one piece of work for {since:.1?}"
                ),
                action: "what asks it waits: take a stack of the threads kvroom-http (gdb -p PID), then restart the \
                         daemon",
            };
            return Finding::wrong(&task.name, wrong);
        }
        return judge_entrance(task.name.clone(), task.failing);
    };
    let how = if panicked { "panicked" } else { "ended" };
    let wrong = Wrong {
        since,
        why: format!("this task of the daemon {how}, and nobody told it to stop"),
        action: match task.without {
            Without::NotAlive => {
                "it does not come back by itself: keep the log of the daemon, restart it, and report it"
            }
            Without::NotReady => {
                "it does not come back by itself, and rooms go on without it: keep the log of the daemon, restart it \
                 when no page of this node may be in use, and report it"
            }
        },
    };
    Finding::wrong(&task.name, wrong)
}

fn judge_pool(pool: &PoolSeen, ended: Duration, patience: Duration) -> Finding {
    let name = format!("pool {}", pool.name);
    let (pages, quarantined) = (pool.pages, pool.quarantined);
    if pages == 0 || quarantined.saturating_mul(100) < pages.saturating_mul(QUARANTINE_PERCENT) {
        let leased = pool.leased;
        if pages > 0 && leased >= pages && ended > patience {
            let wrong = Wrong {
                since: ended.saturating_sub(patience),
                why: format!(
                    "all of its {pages} pages are leased, and no room of the node has ended for {ended:.1?}"
                ),
                action: "GET /v1/rooms shows who holds them, and why: abort the rooms that nobody waits for",
            };
            return Finding::wrong(name, wrong);
        }
        let note = format!("{leased} of {pages} pages are leased, {quarantined} quarantined");
        return Finding::well(name).with(note);
    }
    let wrong = Wrong {
        since: Duration::ZERO,
        why: format!("{quarantined} of its {pages} pages are quarantined"),
        action: "see in \"peers\" and in GET /v1/rooms?quarantined=true who may still write them; stop or \
                 reach those nodes, and the pages come back by proof",
    };
    Finding::wrong(name, wrong)
}

/// A device that is lost serves nobody in this process any more. One that is not there, or was never
/// asked for, is no concern of the node's.
fn judge_device(device: &DeviceSeen) -> Finding {
    let name = format!("device {}", device.ordinal);
    match &device.lost {
        None => {
            let queued = device.stats.queued;
            Finding::well(name).with(format!("{queued} pieces are queued"))
        }
        Some(lost) => Finding::wrong(
            name,
            Wrong {
                since: Duration::ZERO,
                why: format!("{lost}; no pool on it can serve any more"),
                action: "send new rooms elsewhere, look at the kernel's log and `nvidia-smi`, and restart the daemon \
                         when no page of this node may be in use; GET /v1/pools shows the pools",
            },
        ),
    }
}

/// What is there of it when the node starts stays, and a node that needs it does not start without: so this is
/// never red. Whether it moves bytes is for its canary.
fn judge_ucx(ucx: &UcxSeen) -> Finding {
    let note = match &ucx.found {
        Err(why) => format!("it is not used: {why}"),
        Ok(UcxFacts { version, rdma }) => {
            let (major, minor, release) = *version;
            let version = Version::new(major, minor, release);
            let tested = if version.is_tested() {
                ""
            } else {
                ", which tests have not run with"
            };
            let there = match (rdma, ucx.rdma_only) {
                (true, _) => "with RDMA",
                (false, false) => "without RDMA",
                (false, true) => {
                    "without RDMA: it is used only with peers that ask for it (ucx.when = \"rdma\"; see `ucx_info -d`, ucx.transports and ucx.devices)"
                }
            };
            format!("UCX {version}{tested}, {there}")
        }
    };
    Finding::well("ucx").with(note)
}

fn judge_canary(canary: &CanarySeen, deadline: Duration) -> Finding {
    let name = canary.name.clone();
    const LATE: &str = "see which part stands still in the other checks; if none does, GET \
                        /v1/recording shows where the room got stuck";
    if let Some((age, stage)) = canary.running
        && age > deadline
    {
        let why = format!("it is not done after {age:.1?}: {stage}");
        if canary.busy && age <= deadline.saturating_mul(PATIENCE) {
            return Finding::well(name).with(format!("{why}; but the node is busy, and gets on"));
        }
        return Finding::wrong(
            name,
            Wrong {
                since: age.saturating_sub(deadline),
                why,
                action: LATE,
            },
        );
    }
    match &canary.last {
        LastSeen::Passed(took) => Finding::well(name).with(format!("took {took:.1?}")),
        LastSeen::Never => Finding::wrong(
            name,
            Wrong {
                since: Duration::ZERO,
                why: "it has not passed yet".into(),
                action: "wait: the daemon has just started",
            },
        ),
        LastSeen::Full(since, ended) if *ended <= deadline.saturating_mul(PATIENCE) => {
            let note = format!(
                "the node has been full for {since:.1?}, and gets on: the canary waits (limits.rooms)"
            );
            Finding::well(name).with(note)
        }
        LastSeen::Full(since, ended) => Finding::wrong(
            name,
            Wrong {
                since: *since,
                why: format!(
                    "the node has as many rooms as limits.rooms allows, and none has ended for {ended:.1?}"
                ),
                action: "GET /v1/rooms shows them, and why their memory is held: abort those that nobody \
                         waits for",
            },
        ),
        LastSeen::Failed(since, why) => Finding::wrong(
            name,
            Wrong {
                since: *since,
                why: why.clone(),
                action: "this node does not move bytes by this way: the text says what refused; GET \
                         /v1/recording shows the room",
            },
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const BOUNDS: Bounds = Bounds {
        blocked_after: Duration::from_secs(2),
        canary: Duration::from_secs(2),
    };

    fn part(part: Part) -> PartPulse {
        PartPulse {
            part,
            turns: 1,
            running: false,
            since: SECOND,
            waiting: 0,
            asked: None,
            took: None,
            overdue: 0,
            gone: false,
        }
    }

    fn still(part: Part, since: Duration, why: StillWhy) -> Still {
        Still { part, since, why }
    }

    fn canary() -> CanarySeen {
        CanarySeen {
            name: "canary tcp lane 0".into(),
            running: None,
            last: LastSeen::Passed(SECOND),
            busy: false,
        }
    }

    #[test]
    fn a_lost_device_is_named_and_one_that_nobody_asked_for_is_not() {
        let device = |ordinal, started, lost: Option<&str>| DeviceSeen {
            ordinal,
            started,
            lost: lost.map(str::to_owned),
            stats: Default::default(),
        };
        let seen = Seen {
            devices: vec![
                device(0, false, None),
                device(1, true, None),
                device(3, true, Some("device 3 is lost: ECC")),
            ],
            ..Seen::default()
        };
        let found = judge(&seen, BOUNDS);
        let names: Vec<_> = found.iter().map(|f| f.name.as_str()).collect();
        assert!(
            names.contains(&"device 1") && !names.contains(&"device 0"),
            "{names:?}"
        );
        let red = red(&seen);
        assert_eq!(red.len(), 1, "{red:?}");
        assert_eq!(red[0].0, "device 3");
        assert!(
            red[0].1.starts_with("device 3 is lost: ECC; no pool on it"),
            "{red:?}"
        );
    }

    fn red(seen: &Seen) -> Vec<(String, String)> {
        let found = judge(seen, BOUNDS);
        let red = found.into_iter().filter_map(|f| Some((f.name, f.wrong?)));
        red.map(|(name, wrong)| {
            assert!(!wrong.action.is_empty(), "{name} says what to do");
            (name, wrong.why)
        })
        .collect()
    }

    #[test]
    fn ucx_that_is_to_be_used_is_told_with_its_version_or_why_it_is_not_used_and_is_not_red() {
        let said = |ucx: Option<UcxSeen>| {
            let seen = Seen {
                ucx,
                ..Seen::default()
            };
            let found = judge(&seen, BOUNDS);
            let ucx = found.into_iter().find(|f| f.name == "ucx")?;
            assert_eq!(ucx.wrong, None);
            ucx.note
        };
        assert_eq!(said(None), None, "nobody asked for it");
        let facts = |minor, rdma| {
            Ok(UcxFacts {
                version: (1, minor, 1),
                rdma,
            })
        };
        let seen = |rdma_only, found| said(Some(UcxSeen { rdma_only, found })).unwrap();
        assert_eq!(seen(true, facts(20, true)), "UCX 1.20.1, with RDMA");
        assert_eq!(seen(false, facts(20, false)), "UCX 1.20.1, without RDMA");
        let not_used = seen(true, facts(20, false));
        assert!(
            not_used.contains("without RDMA: it is used only with peers that ask for it (ucx.when"),
            "{not_used}"
        );
        let new = seen(false, facts(99, true));
        assert_eq!(new, "UCX 1.99.1, which tests have not run with, with RDMA");
        let none = seen(true, Err("no libucp.so.0; install it".into()));
        assert_eq!(none, "it is not used: no libucp.so.0; install it");
    }

    #[test]
    fn a_lane_is_named_when_it_stands_still_beyond_its_bound_and_not_before() {
        let mut seen = Seen {
            parts: vec![part(Part::Lane(0)), part(Part::Lane(1))],
            still: vec![still(Part::Lane(1), SECOND, StillWhy::Waiting(9))],
            ..Seen::default()
        };
        assert_eq!(red(&seen), []);
        seen.still[0].since = 2 * SECOND;
        let red = red(&seen);
        assert_eq!(red.len(), 1);
        assert_eq!(red[0].0, "lane 1");
        assert!(red[0].1.contains("9 messages"), "{red:?}");
    }

    #[test]
    fn a_part_that_has_died_is_not_waited_for() {
        let seen = Seen {
            parts: vec![part(Part::Shard(0))],
            still: vec![still(Part::Shard(0), Duration::ZERO, StillWhy::Gone)],
            ..Seen::default()
        };
        assert_eq!(red(&seen)[0].0, "shard 0");
    }

    #[test]
    fn everything_that_stands_still_is_named() {
        let parts = [Part::Node, Part::Shard(0), Part::Lane(0), Part::Ucx];
        let seen = Seen {
            parts: parts.iter().cloned().map(part).collect(),
            still: (parts.iter().cloned())
                .map(|p| still(p, 3 * SECOND, StillWhy::InTurn))
                .collect(),
            canaries: vec![CanarySeen {
                running: Some((3 * SECOND, "copying")),
                ..canary()
            }],
            ..Seen::default()
        };
        let names: Vec<String> = red(&seen).into_iter().map(|(name, _)| name).collect();
        assert_eq!(
            names,
            [
                "node",
                "shard 0",
                "lane 0",
                "ucx thread",
                "canary tcp lane 0"
            ]
        );
    }

    #[test]
    fn an_outcome_past_its_deadline_is_red() {
        let mut seen = Seen {
            parts: vec![part(Part::Shard(0))],
            ..Seen::default()
        };
        assert_eq!(red(&seen), []);
        seen.parts[0].overdue = 3;
        assert_eq!(red(&seen)[0].0, "outcomes");
    }

    #[test]
    fn a_canary_that_is_late_is_red_unless_its_node_is_busy_and_gets_on_and_not_for_ever() {
        let at = |age: u32, busy| {
            let canaries = vec![CanarySeen {
                running: Some((age * SECOND, "copying")),
                busy,
                ..canary()
            }];
            let seen = Seen {
                canaries,
                ..Seen::default()
            };
            red(&seen).len()
        };
        assert_eq!((at(2, false), at(3, false)), (0, 1));
        assert_eq!((at(3, true), at(20, true), at(21, true)), (0, 0, 1));
    }

    #[test]
    fn a_canary_that_could_not_start_is_red_only_if_the_node_does_not_get_on() {
        let full = |ended: u32| {
            let canaries = vec![CanarySeen {
                last: LastSeen::Full(60 * SECOND, ended * SECOND),
                ..canary()
            }];
            let seen = Seen {
                canaries,
                ..Seen::default()
            };
            red(&seen).len()
        };
        assert_eq!((full(0), full(20), full(21)), (0, 0, 1));
    }

    #[test]
    fn a_canary_that_never_passed_or_failed_is_red() {
        for last in [LastSeen::Never, LastSeen::Failed(SECOND, "torn".into())] {
            let canaries = vec![CanarySeen { last, ..canary() }];
            let seen = Seen {
                canaries,
                ..Seen::default()
            };
            assert_eq!(red(&seen).len(), 1);
        }
    }

    #[test]
    fn a_full_pool_is_well_and_one_that_is_quarantined_is_not() {
        let pool = |leased, quarantined| Seen {
            pools: vec![PoolSeen {
                name: "kv".into(),
                pages: 100,
                leased,
                quarantined,
            }],
            ..Seen::default()
        };
        assert_eq!(red(&pool(100, 0)), []);
        let mut stuck = pool(100, 0);
        stuck.ended = 20 * SECOND;
        assert_eq!(red(&stuck), [], "it was full, and rooms ended lately");
        stuck.ended += SECOND;
        assert_eq!(red(&stuck)[0].0, "pool kv");
        stuck.pools[0].leased = 99;
        assert_eq!(red(&stuck), [], "a page is free");
        assert_eq!(red(&pool(100, 89)), []);
        assert_eq!(red(&pool(100, 90))[0].0, "pool kv");
    }

    #[test]
    fn a_task_of_the_daemon_that_is_over_is_red_and_one_that_the_system_refuses_is_named_with_its_reason()
     {
        let task = |over, failing, in_turn| Seen {
            tasks: vec![TaskSeen {
                name: "http listener 127.0.0.1:7480".into(),
                without: Without::NotAlive,
                over,
                failing,
                in_turn,
            }],
            ..Seen::default()
        };
        assert_eq!(red(&task(None, None, None)), []);
        let over = red(&task(Some((SECOND, true)), Some((SECOND, 24)), None));
        assert_eq!(over[0].0, "http listener 127.0.0.1:7480");
        assert!(over[0].1.contains("panicked"), "{over:?}");
        let over = red(&task(Some((SECOND, false)), None, None));
        assert!(over[0].1.contains("ended"), "{over:?}");
        let failing = red(&task(None, Some((SECOND, 24)), None));
        assert_eq!(failing.len(), 1);
        assert!(failing[0].1.contains("open files"), "{failing:?}");
        assert_eq!(red(&task(None, None, Some(SECOND))), [], "work takes time");
        let stuck = red(&task(None, None, Some(2 * SECOND)));
        assert!(stuck[0].1.contains("one piece of work for 2"), "{stuck:?}");
    }

    #[test]
    fn a_listener_that_cannot_accept_is_named_with_the_systems_reason() {
        let listener = |failing| Seen {
            listeners: vec![EntranceState {
                address: "tcp://127.0.0.1:7400".into(),
                failing,
            }],
            ..Seen::default()
        };
        assert_eq!(red(&listener(None)), []);
        let red = red(&listener(Some((SECOND, 24))));
        assert_eq!(red[0].0, "listener tcp://127.0.0.1:7400");
        assert!(red[0].1.contains("open files"), "{red:?}");
    }
}
