//! What a dashboard draws, once a second, while anybody listens.

use crate::daemon::health::Health;
use crate::daemon::peers;
use crate::daemon::rooms::{Counts, RoomState, Rooms};
use kvroom::{Node, NodeStats};
use serde_json::{Value, json};
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::watch;

/// How often.
const EVERY: Duration = Duration::from_secs(1);
/// How long the node may take to count; then the sample says that it did not.
const WITHIN: Duration = Duration::from_millis(500);

/// Gives samples to whoever listens.
pub(crate) struct Sampler(watch::Sender<Value>);

impl Sampler {
    /// Starts the task.
    pub(crate) fn start(node: Node, rooms: Rooms, health: Health) -> Sampler {
        let (publish, _) = watch::channel(Value::Null);
        tokio::spawn(run(node, rooms, health, publish.clone()));
        Sampler(publish)
    }

    /// From the next one on.
    pub(crate) fn subscribe(&self) -> watch::Receiver<Value> {
        self.0.subscribe()
    }
}

async fn run(node: Node, rooms: Rooms, health: Health, publish: watch::Sender<Value>) {
    let mut before: Option<(Instant, NodeStats)> = None;
    let mut tick = tokio::time::interval(EVERY);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        if publish.receiver_count() == 0 {
            before = None;
            continue;
        }
        let stats = tokio::time::timeout(WITHIN, node.stats()).await.ok();
        let counts = rooms.counts().await;
        let peers = tokio::time::timeout(WITHIN, peers::of(&node, &health))
            .await
            .unwrap_or_default();
        let now = Instant::now();
        let mut sample = sample(
            &counts,
            stats.as_ref(),
            before.as_ref().map(|(at, s)| (now - *at, s)),
        );
        if let Value::Object(fields) = &mut sample {
            fields.insert("peers".to_owned(), json!(peers));
        }
        before = stats.map(|stats| (now, stats)).or(before);
        publish.send_replace(sample);
    }
}

fn sample(
    counts: &Counts,
    stats: Option<&NodeStats>,
    before: Option<(Duration, &NodeStats)>,
) -> Value {
    let rooms = |state| -> u64 {
        counts
            .iter()
            .filter(|((_, s), _)| *s == state)
            .map(|(_, n)| n)
            .sum()
    };
    let per_s = |of: fn(&NodeStats) -> u64| {
        let (elapsed, before) = before?;
        let difference = of(stats?).saturating_sub(of(before));
        Some((difference as f64 / elapsed.as_secs_f64().max(0.001)).round() as u64)
    };
    let at = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    json!({
        "at_ms": at.map_or(0, |at| at.as_millis() as u64),
        "answered": stats.is_some(),
        "rooms": {
            "registered": rooms(RoomState::Registered),
            "transferring": rooms(RoomState::Transferring),
            "draining": rooms(RoomState::Draining),
        },
        "done_per_s": per_s(|s| s.done),
        "aborted_per_s": per_s(|s| s.aborted),
        "bytes": [],
        "bytes_per_s": per_s(|s| s.bytes_copied),
        "abort_to_reusable_us": {"p50": null, "p90": null, "p99": null},
        "quarantined_pages": stats.map(|s| s.quarantined_pages),
        "lanes": [],
    })
}
