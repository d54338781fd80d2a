//! What a dashboard draws, once a second, while anybody listens.
//!
//! ```text
//!   Node::metrics ─▶ Reading ─┬─▶ the last few seconds ─┐
//!                             └────────────────────────┴─▶ sample: what changed, per second
//! ```
//!
//! Rules: counters are read without asking any thread of the node, so a sample comes also while one of
//! them stands still. Rates are between two readings; durations are of the last [`WINDOW`] seconds.

use crate::daemon::health::is_canary;
use crate::daemon::peers;
use crate::daemon::rooms::{Counts, RoomState, Rooms};
use crate::daemon::tasks::{Tasks, Without};
use kvroom::metrics::{Durations, Metrics, PeerMetrics, QueueOf};
use kvroom::{Fabric, Node};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::time::{Duration, SystemTime};
use tokio::sync::watch;

/// How often.
const EVERY: Duration = Duration::from_secs(1);
/// How long the node may take to tell its peers; then the sample has none.
const WITHIN: Duration = Duration::from_millis(500);
/// Readings that are kept.
const WINDOW: usize = 10;

/// Gives samples to whoever listens.
pub(crate) struct Sampler(watch::Sender<Value>);

impl Sampler {
    /// Starts the task.
    pub(crate) fn start(node: Node, rooms: Rooms, tasks: &Tasks) -> Sampler {
        let (publish, _) = watch::channel(Value::Null);
        let sampling = run(node, rooms, publish.clone());
        tasks.spawn("sampler", Without::NotReady, sampling);
        Sampler(publish)
    }

    /// From the next one on.
    pub(crate) fn subscribe(&self) -> watch::Receiver<Value> {
        self.0.subscribe()
    }
}

/// What is read each second, a few microseconds' work, also while nobody listens: so that the first
/// sample has something to be compared with.
#[derive(Clone, Debug, Default)]
struct Reading {
    /// Since the node's start.
    at: Duration,
    done: u64,
    aborted: u64,
    flows: Vec<Flow>,
    lanes: Vec<Lane>,
    abort_to_reusable: Durations,
    quarantined_pages: u64,
}

/// Bytes that went one way.
#[derive(Clone, Debug)]
struct Flow {
    /// None for all peers that are counted together.
    peer: Option<String>,
    fabric: Fabric,
    direction: &'static str,
    bytes: u64,
}

/// A queue of copies.
#[derive(Clone, Debug)]
struct Lane {
    name: String,
    queued: u64,
    wait: Durations,
}

async fn run(node: Node, rooms: Rooms, publish: watch::Sender<Value>) {
    let mut last: VecDeque<Reading> = VecDeque::with_capacity(WINDOW);
    let mut tick = tokio::time::interval(EVERY);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        let now = Reading::of(&node.metrics(), |peer| is_canary(node.name(), peer));
        if publish.receiver_count() > 0 {
            let counts = rooms.counts().await;
            let peers = peers::of(&node, WITHIN).await.ok();
            let mut sample = now.sample(&last, &counts);
            if let Value::Object(fields) = &mut sample {
                fields.insert("peers".to_owned(), json!(peers));
            }
            publish.send_replace(sample);
        }
        if last.len() == WINDOW {
            last.pop_front();
        }
        last.push_back(now);
    }
}

impl Reading {
    fn of(metrics: &Metrics, left_out: impl Fn(&str) -> bool) -> Reading {
        let shown = |p: &&PeerMetrics| !p.name.as_deref().is_some_and(&left_out);
        let flows = metrics.peers.iter().filter(shown).flat_map(|peer| {
            let sent = peer.sent.iter().map(|one| ("sent", one));
            let received = peer.received.iter().map(|one| ("received", one));
            sent.chain(received)
                .map(|(direction, (fabric, bytes))| Flow {
                    peer: peer.name.clone(),
                    fabric: *fabric,
                    direction,
                    bytes: *bytes,
                })
        });
        let lanes = metrics.queues.iter().map(|queue| Lane {
            name: match queue.of {
                QueueOf::Lane(n) => format!("lane {n}"),
                QueueOf::Shard(n) => format!("shard {n}"),
                QueueOf::Ucx => "ucx".to_owned(),
            },
            queued: queue.queued,
            wait: queue.wait.clone(),
        });
        Reading {
            at: metrics.at,
            done: metrics.counts.done,
            aborted: metrics.counts.aborted,
            // Those that never had a byte are most of them.
            flows: flows.filter(|flow| flow.bytes > 0).collect(),
            lanes: lanes.collect(),
            abort_to_reusable: metrics.abort_to_reusable.clone(),
            quarantined_pages: metrics.quarantine.pages,
        }
    }

    /// What to draw, next to the readings before this one, oldest first.
    fn sample(&self, before: &VecDeque<Reading>, counts: &Counts) -> Value {
        let (oldest, last) = (before.front(), before.back());
        let elapsed = last.map(|last| self.at.saturating_sub(last.at).as_secs_f64());
        let rate = |now: u64, then: u64| {
            let elapsed = elapsed?.max(0.001);
            Some((now.saturating_sub(then) as f64 / elapsed).round() as u64)
        };
        let per_s = |of: fn(&Reading) -> u64| rate(of(self), last.map_or(0, of));
        let bytes = self.flows.iter().map(|flow| {
            let then = last.map_or(0, |last| last.flow(flow));
            let (peer, fabric) = (flow.peer.as_deref().unwrap_or("other"), flow.fabric);
            json!({
                "peer": peer, "fabric": fabric.to_string(), "direction": flow.direction,
                "per_s": rate(flow.bytes, then),
            })
        });
        let lanes = self.lanes.iter().zip(0..).map(|(lane, n)| {
            let then = oldest.and_then(|oldest| oldest.lanes.get(n));
            let waits = then.map_or_else(|| lane.wait.clone(), |then| lane.wait.since(&then.wait));
            json!({"lane": lane.name, "queued": lane.queued, "wait_us": micros(&waits, 0.9)})
        });
        let rooms = |state| -> u64 {
            let those = counts.iter().filter(|((_, s), _)| *s == state);
            those.map(|(_, n)| n).sum()
        };
        let reusable = match oldest {
            Some(oldest) => self.abort_to_reusable.since(&oldest.abort_to_reusable),
            None => self.abort_to_reusable.clone(),
        };
        let at = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        json!({
            "at_ms": at.map_or(0, |at| at.as_millis() as u64),
            "rooms": {
                "registered": rooms(RoomState::Registered),
                "transferring": rooms(RoomState::Transferring),
                "draining": rooms(RoomState::Draining),
            },
            "done_per_s": per_s(|r| r.done),
            "aborted_per_s": per_s(|r| r.aborted),
            "bytes": bytes.collect::<Vec<_>>(),
            "bytes_per_s": per_s(|r| r.flows.iter().map(|flow| flow.bytes).sum()),
            "abort_to_reusable_us": {
                "p50": micros(&reusable, 0.5), "p90": micros(&reusable, 0.9), "p99": micros(&reusable, 0.99),
            },
            "quarantined_pages": self.quarantined_pages,
            "lanes": lanes.collect::<Vec<_>>(),
        })
    }

    /// Bytes of the same flow; none had gone if it is not there.
    fn flow(&self, like: &Flow) -> u64 {
        let same = |flow: &&Flow| {
            flow.peer == like.peer && flow.fabric == like.fabric && flow.direction == like.direction
        };
        self.flows.iter().find(same).map_or(0, |flow| flow.bytes)
    }
}

fn micros(all: &Durations, share: f64) -> Option<u64> {
    let took = all.quantile(share)?;
    Some(u64::try_from(took.as_micros()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::rooms::RoleName;
    use kvroom::actors::runtime::histogram::Histogram;

    fn flow(peer: &str, bytes: u64) -> Flow {
        Flow {
            peer: Some(peer.to_owned()),
            fabric: Fabric::Tcp,
            direction: "sent",
            bytes,
        }
    }

    fn lane(wait: &Histogram, queued: u64) -> Lane {
        Lane {
            name: "lane 0".to_owned(),
            queued,
            wait: wait.read(),
        }
    }

    #[test]
    fn rates_are_what_came_since_the_reading_before_by_the_time_between() {
        let before = Reading {
            at: Duration::from_secs(10),
            done: 100,
            flows: vec![flow("p", 1_000)],
            ..Reading::default()
        };
        let now = Reading {
            at: Duration::from_secs(12),
            done: 150,
            aborted: 3,
            flows: vec![flow("p", 5_000), flow("new", 600)],
            ..Reading::default()
        };
        let counts = Counts::from([((RoleName::Send, RoomState::Draining), 4)]);
        let sample = now.sample(&VecDeque::from([Reading::default(), before]), &counts);
        assert_eq!(
            (&sample["done_per_s"], &sample["aborted_per_s"]),
            (&json!(25), &json!(2)),
            "{sample}"
        );
        assert_eq!(
            sample["bytes"],
            json!([
                {"peer": "p", "fabric": "tcp", "direction": "sent", "per_s": 2_000},
                {"peer": "new", "fabric": "tcp", "direction": "sent", "per_s": 300},
            ])
        );
        assert_eq!(sample["bytes_per_s"], 2_300);
        assert_eq!(
            sample["rooms"],
            json!({"registered": 0, "transferring": 0, "draining": 4})
        );
    }

    #[test]
    fn the_first_sample_of_all_has_no_rates() {
        let sample = Reading::default().sample(&VecDeque::new(), &Counts::new());
        for field in ["done_per_s", "aborted_per_s", "bytes_per_s"] {
            assert_eq!(sample[field], Value::Null, "{field}");
        }
    }

    #[test]
    fn durations_are_of_the_last_seconds_and_null_if_nothing_happened_in_them() {
        let (aborts, waits) = (Histogram::default(), Histogram::default());
        aborts.record(Duration::from_secs(60));
        waits.record(Duration::from_secs(60));
        let reading = |aborts: &Histogram, waits: &Histogram| Reading {
            abort_to_reusable: aborts.read(),
            lanes: vec![lane(waits, 7)],
            ..Reading::default()
        };
        let old = reading(&aborts, &waits);
        let quiet = old.sample(&VecDeque::from([old.clone()]), &Counts::new());
        assert_eq!(
            quiet["abort_to_reusable_us"],
            json!({"p50": null, "p90": null, "p99": null})
        );
        assert_eq!(
            quiet["lanes"],
            json!([{"lane": "lane 0", "queued": 7, "wait_us": null}])
        );
        (0..100).for_each(|_| aborts.record(Duration::from_micros(200)));
        waits.record(Duration::from_micros(3));
        let now = reading(&aborts, &waits);
        let sample = now.sample(&VecDeque::from([old]), &Counts::new());
        for share in ["p50", "p90", "p99"] {
            let us = sample["abort_to_reusable_us"][share].as_u64().unwrap();
            assert!((129..=256).contains(&us), "{share}: {us}");
        }
        let us = sample["lanes"][0]["wait_us"].as_u64().unwrap();
        assert!((2..=4).contains(&us), "{us}");
    }
}
