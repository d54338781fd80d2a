//! One client's events, out of the recorder.

use crate::daemon::App;
use crate::daemon::health;
use crate::daemon::http::Id;
use crate::daemon::rooms::{RoleName, RoomState, Why};
use axum::body::Bytes;
use kvroom::Node;
use kvroom::record::{Entry, Part, PeerIs, What};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

/// How often the recorder is read.
const EVERY: Duration = Duration::from_millis(50);
/// Entries that are read at once.
const AT_ONCE: usize = 1_024;
/// How often a client that hears nothing hears that nothing happened.
const QUIET: Duration = Duration::from_secs(15);

/// What a client wants to hear of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) rooms: bool,
    pub(super) peers: bool,
    pub(super) samples: bool,
    pub(super) room: Option<u64>,
    /// Room events in a second.
    pub(super) most: u32,
}

/// Where a client is.
pub(super) struct Feed {
    node: Node,
    incarnation: String,
    wanted: Wanted,
    samples: watch::Receiver<Value>,
    stopping: watch::Receiver<bool>,
    next: u64,
    /// Of this second: since when, told, and left out.
    second: (Instant, u32, u64),
    text: String,
}

impl Feed {
    /// From now on, or from behind the event that was read last.
    pub(super) fn new(app: &App, wanted: Wanted, last: Option<&str>) -> Feed {
        let node = app.node().clone();
        let incarnation = node.incarnation().to_string();
        let mut feed = Feed {
            next: node.recorder().next_seq(),
            node,
            incarnation,
            wanted,
            samples: app.sampler().subscribe(),
            stopping: app.stopping(),
            second: (Instant::now(), 0, 0),
            text: format!(": kvroom {}\nretry: 1000\n\n", env!("CARGO_PKG_VERSION")),
        };
        match last.and_then(|last| last.rsplit_once('-')) {
            Some((life, seq)) if life == feed.incarnation => {
                // One that has not happened yet is not waited for.
                feed.next = seq
                    .parse::<u64>()
                    .map_or(feed.next, |seq| seq.saturating_add(1).min(feed.next));
            }
            Some(_) => {
                feed.next = 0;
                feed.put(
                    "gap",
                    None,
                    &json!({"lost": null, "why": "the node is another life of it"}),
                );
            }
            None => {}
        }
        feed
    }

    /// Tells until the client is gone or the daemon stops.
    pub(super) async fn run(mut self, blocks: mpsc::Sender<Bytes>) {
        let mut heard = Instant::now();
        self.samples.mark_unchanged();
        loop {
            self.read();
            if self.wanted.samples && self.samples.has_changed().unwrap_or(false) {
                self.sample();
            }
            if self.text.is_empty() && heard.elapsed() >= QUIET {
                self.text.push_str(": \n\n");
            }
            if !self.text.is_empty() {
                heard = Instant::now();
                let block = Bytes::from(std::mem::take(&mut self.text));
                if blocks.send(block).await.is_err() {
                    return;
                }
            }
            tokio::select! {
                () = blocks.closed() => return,
                () = told_to_stop(&mut self.stopping) => {
                    // The ends of the rooms come yet.
                    tokio::time::sleep(EVERY).await;
                    if self.node.recorder().next_seq() == self.next {
                        return;
                    }
                }
                () = tokio::time::sleep(EVERY) => {}
            }
        }
    }

    fn read(&mut self) {
        loop {
            let records = self.node.recorder().read(self.next, AT_ONCE);
            let full = records.entries.len() == AT_ONCE;
            if records.lost > 0 && self.next > 0 {
                self.put(
                    "gap",
                    None,
                    &json!({"lost": records.lost, "why": "overwritten before it was read"}),
                );
            }
            self.next = records.next;
            for entry in &records.entries {
                self.tell(entry);
            }
            // A block has a bound: the rest is read when it is on its way.
            if !full || self.text.len() > 64 << 10 {
                return;
            }
        }
    }

    fn tell(&mut self, entry: &Entry) {
        match &entry.what {
            What::Room(step) if self.wanted.rooms => {
                let other = self.wanted.room.is_some_and(|id| id != step.key.id.0);
                if health::is_canary_room(step.key)
                    || other
                    || (step.from == step.to && step.reason.is_none())
                    || !self.may_tell()
                {
                    return;
                }
                let data = json!({
                    "seq": entry.seq,
                    "at_us": micros(entry.at),
                    "shard": shard(entry.part),
                    "room": Id(step.key.id.0),
                    "attempt": step.key.attempt,
                    "role": RoleName::from(step.role),
                    "from": RoomState::from(step.from),
                    "to": RoomState::from(step.to),
                    "event": step.event(),
                    "reason": step.reason.as_deref().map(Why::from),
                    "peer": entry.peer.as_deref(),
                });
                self.put("room", Some(entry.seq), &data);
            }
            What::Peer { is, why, .. } if self.wanted.peers => {
                let name = entry.peer.as_deref().unwrap_or_default();
                if health::is_canary(self.node.name(), name) {
                    return;
                }
                let state = match is {
                    PeerIs::Up => "up",
                    PeerIs::Resuming => "resuming",
                    PeerIs::Down => "down",
                };
                let why = Some(why).filter(|why| !why.is_empty());
                let data = json!({"seq": entry.seq, "peer": entry.peer.as_deref(), "state": state, "why": why});
                self.put("peer", Some(entry.seq), &data);
            }
            _ => {}
        }
    }

    fn may_tell(&mut self) -> bool {
        let (since, told, left_out) = &mut self.second;
        if since.elapsed() >= Duration::from_secs(1) && *left_out == 0 {
            (*since, *told) = (Instant::now(), 0);
        }
        if *told < self.wanted.most {
            *told += 1;
            return true;
        }
        *left_out += 1;
        // Without samples nobody would start the next second.
        if since.elapsed() >= Duration::from_secs(1) && !self.wanted.samples {
            self.second = (Instant::now(), 0, 0);
        }
        false
    }

    fn sample(&mut self) {
        let mut data = self.samples.borrow_and_update().clone();
        let (_, told, left_out) = std::mem::replace(&mut self.second, (Instant::now(), 0, 0));
        if let Value::Object(fields) = &mut data {
            fields.insert("sampled".to_owned(), json!(left_out > 0));
            let all = (left_out > 0).then(|| u64::from(told) + left_out);
            fields.insert("shown".to_owned(), json!(told));
            fields.insert("shown_of".to_owned(), json!(all.unwrap_or(u64::from(told))));
            self.put("sample", None, &data);
        }
    }

    fn put(&mut self, event: &str, seq: Option<u64>, data: &Value) {
        if let Some(seq) = seq {
            self.text
                .push_str(&format!("id: {}-{seq}\n", self.incarnation));
        }
        self.text
            .push_str(&format!("event: {event}\ndata: {data}\n\n"));
    }
}

/// Without the guard of the value, which must not be held across a wait.
async fn told_to_stop(stopping: &mut watch::Receiver<bool>) {
    let _ = stopping.wait_for(|stopping| *stopping).await;
}

fn micros(at: Duration) -> u64 {
    u64::try_from(at.as_micros()).unwrap_or(u64::MAX)
}

fn shard(part: Part) -> Option<u16> {
    match part {
        Part::Shard(n) => Some(n),
        _ => None,
    }
}
