//! The health task: looks at everything a few times a second, and publishes what it found.

use super::canary::{Canaries, is_canary};
use super::facts::Facts;
use super::judge::{Bounds, Seen, UcxSeen, judge};
use super::ledger::{Finding, Ledger, Wrong};
use super::report::{Finished, now_ms};
use super::{Heart, Watched};
use crate::daemon::config::HealthSettings;
use crate::daemon::tasks::Without;
use kvroom::UcxUse;
use kvroom::health::{Part, PulseWatch};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

/// Between two looks.
const LOOK: Duration = Duration::from_millis(250);
/// Looks between two questions to all parts.
const ASK_EVERY: u64 = 2;
/// Between two questions about peers and pages.
const FACTS: Duration = Duration::from_secs(1);

/// Until it is told to stop. Gives the canaries, which are to be ended.
pub(crate) async fn run(
    watched: Watched,
    settings: HealthSettings,
    heart: Arc<Heart>,
    ready: watch::Sender<Arc<Finished>>,
    mut stop: watch::Receiver<bool>,
) -> Canaries {
    let node = watched.node.clone();
    let (canaries, refused) = if settings.canary {
        match Canaries::start(&watched, &settings).await {
            Ok(canaries) => (canaries, None),
            Err(why) => (Canaries::none(), Some(why)),
        }
    } else {
        (Canaries::none(), None)
    };
    let (facts_tx, facts) = watch::channel(Facts::none());
    let tasks = watched.tasks.clone();
    let asking = tasks.spawn("facts", Without::NotReady, ask(node.clone(), facts_tx));
    // It does not change any more.
    let ucx = node.ucx().map(|found| UcxSeen {
        rdma_only: watched.ucx.when == UcxUse::Rdma,
        found: found.map_err(|error| error.to_string()),
    });
    let bounds = Bounds {
        blocked_after: settings.blocked_after,
        canary: settings.canary_deadline,
    };
    let (mut pulses, mut ledger) = (PulseWatch::default(), Ledger::default());
    let mut each = interval(LOOK);
    each.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for look in 0_u64.. {
        tokio::select! {
            _ = stop.wait_for(|stop| *stop) => break,
            _ = each.tick() => {}
        }
        heart.beat();
        let pulse = node.pulse();
        let still = pulses.look(&pulse);
        let (at, facts) = (pulse.at, facts.borrow().clone());
        let seen = Seen {
            parts: pulse.parts,
            still,
            listeners: node.listeners(),
            tasks: tasks.look(),
            pools: facts.pools(&node),
            ended: facts.ended_at.elapsed(),
            devices: watched.devices.seen(),
            ucx: ucx.clone(),
            canaries: canaries.seen(&pulses, node.shards(), facts.ended_at.elapsed()),
        };
        let mut findings = judge(&seen, bounds);
        findings.extend(refused.as_deref().map(no_canaries));
        let at_ms = now_ms();
        let checks = ledger.enter(findings, at, at_ms);
        let peers = facts.peers.into_iter();
        ready.send_replace(Arc::new(Finished {
            at,
            at_ms,
            checks,
            canaries_started: canaries.started(),
            canaries: canaries.runs(),
            peers: peers.filter(|p| !is_canary(node.name(), &p.name)).collect(),
        }));
        if look % ASK_EVERY == 0 {
            node.ask();
        }
    }
    asking.abort();
    canaries
}

/// Asks about peers and pages, one question after the other.
async fn ask(node: kvroom::Node, told: watch::Sender<Facts>) {
    let mut each = interval(FACTS);
    each.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut pulses = PulseWatch::default();
    loop {
        each.tick().await;
        // A part that stands still would collect questions.
        let still = pulses.look(&node.pulse());
        let blocked = |part: &Part| matches!(part, Part::Node | Part::Shard(_));
        if still.iter().any(|s| blocked(&s.part) && s.since >= FACTS) {
            continue;
        }
        let last = told.borrow().clone();
        told.send_replace(last.ask(&node, 2 * FACTS).await);
    }
}

fn no_canaries(why: &str) -> Finding {
    let wrong = Wrong {
        since: Duration::ZERO,
        why: why.to_owned(),
        action: "make room, or name the pool otherwise, and restart; or set health.canary = false",
    };
    Finding::wrong("canary", wrong)
}
