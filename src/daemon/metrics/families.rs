//! Which families there are, and what their samples are made of. In the order of `docs/metrics.md`.

use super::process::Process;
use super::requests::Answered;
use super::write::{Family, Labels, Writer};
use crate::daemon::devices::DeviceSeen;
use crate::daemon::health::CanaryRuns;
use kvroom::metrics::{Metrics, PeerMetrics, QueueMetrics, QueueOf};
use kvroom::{Role, Side};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::registry::Unit;
use std::borrow::Cow;
use std::fmt;

/// Everything that a scrape shows.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) node: Metrics,
    pub(super) requests: Vec<Answered>,
    pub(super) process: Process,
    pub(super) canaries: Vec<CanaryRuns>,
    pub(super) devices: Vec<DeviceSeen>,
    /// Of each of those, bytes that are kept for engines that may have them open.
    pub(super) kept_bytes: Vec<u64>,
    /// Each probe, and whether it is green.
    pub(super) probes: [(&'static str, bool); 2],
}

impl Collector for Reading {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut to = Writer(encoder);
        self.about(&mut to)?;
        self.rooms(&mut to)?;
        self.times(&mut to)?;
        self.peers(&mut to)?;
        self.held(&mut to)?;
        self.lanes(&mut to)?;
        self.devices(&mut to)?;
        self.pressure(&mut to)?;
        self.odd(&mut to)?;
        self.health(&mut to)?;
        self.process(&mut to)
    }
}

const fn none() -> Labels {
    Vec::new()
}

fn one(value: u64) -> [(Labels, u64); 1] {
    [(none(), value)]
}

/// A label whose value is one of a few.
fn label(name: &'static str, value: impl fmt::Display) -> (&'static str, Cow<'static, str>) {
    (name, Cow::Owned(value.to_string()))
}

fn word(name: &'static str, value: &'static str) -> (&'static str, Cow<'static, str>) {
    (name, Cow::Borrowed(value))
}

fn role(role: Role) -> (&'static str, Cow<'static, str>) {
    word(
        "role",
        if role == Role::Sender {
            "send"
        } else {
            "receive"
        },
    )
}

fn lower(name: &'static str, value: impl fmt::Display) -> (&'static str, Cow<'static, str>) {
    (name, Cow::Owned(value.to_string().to_lowercase()))
}

impl Reading {
    fn about(&self, to: &mut Writer<'_>) -> fmt::Result {
        let version = vec![word("version", env!("CARGO_PKG_VERSION"))];
        to.info(
            Family("build", None, "The version of kvroom that is running."),
            &version,
        )?;
        let help = "Time since the node of this daemon was started.";
        let up = [(none(), self.node.at.as_secs_f64())];
        to.gauges(Family("uptime", Some(Unit::Seconds), help), up)?;
        let help =
            "HTTP requests by route and class of the answer's status; strangers are under other.";
        to.counters(
            Family("http_requests", None, help),
            self.requests.iter().map(|a| {
                (
                    vec![label("route", &a.route), word("status", a.status)],
                    a.count,
                )
            }),
        )
    }

    fn rooms(&self, to: &mut Writer<'_>) -> fmt::Result {
        let node = &self.node;
        to.gauges(
            Family("rooms", None, "Rooms now, by role and state."),
            (node.rooms.iter()).map(|r| (vec![role(r.role), lower("state", r.state)], r.count)),
        )?;
        to.counters(
            Family("rooms_started", None, "Rooms that were admitted."),
            node.started
                .iter()
                .map(|(r, count)| (vec![role(*r)], *count)),
        )?;
        let help = "Rooms that were started as a new try of an earlier attempt, which failed.";
        to.counters(
            Family("room_retries", None, help),
            node.retries
                .iter()
                .map(|(r, count)| (vec![role(*r)], *count)),
        )?;
        to.counters(
            Family(
                "room_transitions",
                None,
                "Steps of rooms from one state to another.",
            ),
            node.steps.iter().map(|s| {
                (
                    vec![role(s.role), lower("from", s.from), lower("to", s.to)],
                    s.count,
                )
            }),
        )?;
        let help = "Outcomes that were delivered: Done, or the code of the abort; and on which side it happened.";
        to.counters(
            Family("room_ends", None, help),
            node.ends.iter().map(|e| {
                let (reason, side) = match e.aborted {
                    None => (word("reason", "Done"), "none"),
                    Some((code, Side::Local)) => (label("reason", format!("{code:?}")), "local"),
                    Some((code, Side::Peer)) => (label("reason", format!("{code:?}")), "peer"),
                };
                (vec![role(e.role), reason, word("side", side)], e.count)
            }),
        )
    }

    fn times(&self, to: &mut Writer<'_>) -> fmt::Result {
        let (node, seconds) = (&self.node, || Some(Unit::Seconds));
        to.durations(
            Family(
                "room_duration",
                seconds(),
                "From a room's start to its outcome.",
            ),
            node.room_duration
                .iter()
                .map(|(r, took)| (vec![role(*r)], took.clone())),
        )?;
        let help = "One piece of a copy, of one in sixteen; over tcp from its first byte to its acknowledgement.";
        to.durations(
            Family("piece_duration", seconds(), help),
            node.piece_duration
                .iter()
                .map(|(f, took)| (vec![label("fabric", f)], took.clone())),
        )?;
        let help = "From an abort that was asked for here to the room's outcome.";
        to.durations(
            Family("abort_to_answer", seconds(), help),
            [(none(), node.abort_to_answer.clone())],
        )?;
        let help = "From an abort that was asked for here, or else from the outcome, until the memory of the aborted room may be used again.";
        to.durations(
            Family("abort_to_reusable", seconds(), help),
            [(none(), node.abort_to_reusable.clone())],
        )
    }

    fn peers(&self, to: &mut Writer<'_>) -> fmt::Result {
        let peers = &self.node.peers;
        let peer = |p: &PeerMetrics| match &p.name {
            Some(name) => ("peer", Cow::Owned(name.clone())),
            None => word("peer", "other"),
        };
        let bytes = peers.iter().flat_map(|p| {
            [("sent", &p.sent), ("received", &p.received)]
                .into_iter()
                .flat_map(move |(direction, of)| {
                    of.iter().map(move |(fabric, bytes)| {
                        let labels = vec![
                            peer(p),
                            label("fabric", fabric),
                            word("direction", direction),
                        ];
                        (labels, *bytes)
                    })
                })
        });
        let help = "Bytes that landed, by peer, fabric and direction.";
        to.counters(Family("transferred", Some(Unit::Bytes), help), bytes)?;
        let states = peers.iter().flat_map(|p| {
            [("up", p.up), ("resuming", p.resuming)]
                .map(|(state, n)| (vec![peer(p), word("state", state)], n))
        });
        let help = "Sessions by peer and state.";
        to.gauges(Family("peer_sessions", None, help), states)?;
        let help = "Pages of rooms with this peer that passed their drain deadline.";
        to.gauges(
            Family("peer_quarantined_pages", None, help),
            peers.iter().map(|p| (vec![peer(p)], p.quarantined_pages)),
        )
    }

    fn held(&self, to: &mut Writer<'_>) -> fmt::Result {
        let (held, counts) = (&self.node.quarantine, &self.node.counts);
        let help = "Rooms that passed their drain deadline and are not proven quiet.";
        to.gauges(Family("quarantined_rooms", None, help), one(held.rooms))?;
        let help = "Pages of the rooms that are quarantined.";
        to.gauges(Family("quarantined_pages", None, help), one(held.pages))?;
        let help = "How long ago the oldest quarantined room passed its drain deadline; 0 if there is none.";
        let oldest = held.oldest.unwrap_or_default().as_secs_f64();
        to.gauges(
            Family("quarantine_oldest_age", Some(Unit::Seconds), help),
            [(none(), oldest)],
        )?;
        let help = "Pages that writers of former lives of this node's pools may still write.";
        to.gauges(
            Family("former_life_pages", None, help),
            one(held.former_pages),
        )?;
        let help = "Rooms that ever passed their drain deadline.";
        to.counters(
            Family("rooms_quarantined", None, help),
            one(counts.quarantined),
        )
    }

    fn lanes(&self, to: &mut Writer<'_>) -> fmt::Result {
        let queues = &self.node.queues;
        let lane = |q: &QueueMetrics| match q.of {
            QueueOf::Lane(n) => vec![label("lane", n)],
            QueueOf::Shard(n) => vec![("lane", Cow::Owned(format!("shard-{n}")))],
            QueueOf::Ucx => vec![("lane", Cow::Borrowed("ucx"))],
        };
        let help = "Copy jobs that wait for this lane or are copied by it; shard-N is what waits for sockets on a shard's own thread, ucx for the thread of UCX.";
        to.gauges(
            Family("lane_queued_jobs", None, help),
            queues.iter().map(|q| (lane(q), q.queued)),
        )?;
        to.counters(
            Family("lane_jobs", None, "Copy jobs that ever came to this lane."),
            queues.iter().map(|q| (lane(q), q.jobs)),
        )?;
        let help = "Bytes that this lane copied itself, or read for checksums.";
        to.counters(
            Family("lane_copied", Some(Unit::Bytes), help),
            queues.iter().map(|q| (lane(q), q.bytes)),
        )?;
        let help = "From a job's arrival at its lane to its first piece.";
        to.durations(
            Family("lane_wait", Some(Unit::Seconds), help),
            queues.iter().map(|q| (lane(q), q.wait.clone())),
        )?;
        let help = "Bytes that all threads of the node copied or sent, or read for checksums, whatever became of them.";
        let all = one(self.node.counts.copied_bytes);
        to.counters(Family("copied", Some(Unit::Bytes), help), all)
    }

    fn devices(&self, to: &mut Writer<'_>) -> fmt::Result {
        let each = |count: fn(&DeviceSeen) -> u64| {
            let devices = self.devices.iter();
            devices.map(move |of| (vec![label("device", of.ordinal)], count(of)))
        };
        let help = "Pieces that landed, by the number of the device whose copy actor copied them.";
        to.counters(
            Family("device_pieces", None, help),
            each(|d| d.stats.pieces),
        )?;
        let help = "Bytes of those pieces.";
        to.counters(
            Family("device_copied", Some(Unit::Bytes), help),
            each(|d| d.stats.bytes),
        )?;
        let help = "Pieces between this device and other processes, by whether they were sent or received, and whether they \
                    went from device to device or by pinned memory and a socket.";
        let crossed = self.devices.iter().flat_map(|of| {
            let row = |direction: &'static str, way: &'static str, count| {
                let labels = [
                    label("device", of.ordinal),
                    label("direction", direction),
                    label("way", way),
                ];
                (labels.to_vec(), count)
            };
            [
                row("sent", "straight", of.stats.handed),
                row("sent", "pinned", of.stats.sent),
                row("received", "straight", of.stats.taken),
                row("received", "pinned", of.stats.received),
            ]
        });
        to.counters(Family("device_crossed_pieces", None, help), crossed)?;
        let help = "Pieces that are queued on the device now; an abort waits for them.";
        to.gauges(
            Family("device_queued_pieces", None, help),
            each(|d| d.stats.queued),
        )?;
        let help = "Jobs that wait for an engine's event now, and are not wholly queued behind it.";
        to.gauges(
            Family("device_waiting_jobs", None, help),
            each(|d| d.stats.waiting),
        )?;
        let help =
            "Pieces that were queued when the device was lost; nobody can prove that they ended.";
        to.counters(
            Family("device_lost_pieces", None, help),
            each(|d| d.stats.lost),
        )?;
        let help = "Whether the device is lost: 1 or 0. Its pools serve nobody any more then.";
        to.gauges(
            Family("device_lost", None, help),
            each(|d| u64::from(d.lost.is_some())),
        )?;
        let help = "Bytes of pools that are retired, kept since engines may have them open.";
        let kept = self.devices.iter().zip(&self.kept_bytes);
        to.gauges(
            Family("device_kept", Some(Unit::Bytes), help),
            kept.map(|(of, bytes)| (vec![label("device", of.ordinal)], *bytes)),
        )
    }

    fn pressure(&self, to: &mut Writer<'_>) -> fmt::Result {
        let p = &self.node.pressure;
        let events = [
            ("start", "waited", p.start_waited),
            ("start", "refused", p.start_refused),
            ("chunk_window", "waited", p.reserve_waited_for_window),
            ("chunk_window", "refused", p.reserve_refused_by_window),
            ("lanes", "waited", p.reserve_waited_for_lanes),
            ("lanes", "refused", p.reserve_refused_by_lanes),
            ("peer_credit", "waited", p.claims_waited),
        ];
        let help = "Who had to wait or was turned away: at a start, at a room's window of chunks, at the lanes, at a peer's credit.";
        to.counters(
            Family("backpressure", None, help),
            events.map(|(at, how, n)| (vec![word("at", at), word("how", how)], n)),
        )?;
        let help = "Claims that wait for a peer's credit now.";
        to.gauges(Family("claims_waiting", None, help), one(p.claims_waiting))?;
        let help = "How much the node holds at most (Limits::rooms, and Limits::jobs_per_lane of all lanes).";
        let limits = [("rooms", p.rooms_limit), ("lane_jobs", p.jobs_limit)];
        let of = |what| vec![word("what", what)];
        to.gauges(
            Family("limit", None, help),
            limits.map(|(what, n)| (of(what), n)),
        )?;
        let free = [("rooms", p.rooms_free), ("lane_jobs", p.jobs_free)];
        let help = "How much of that is free.";
        to.gauges(
            Family("limit_free", None, help),
            free.map(|(what, n)| (of(what), n)),
        )
    }

    fn odd(&self, to: &mut Writer<'_>) -> fmt::Result {
        let c = &self.node.counts;
        let help = "Payload bytes that came over sockets for a claim whose gate was closed, and were thrown away.";
        to.counters(Family("late", Some(Unit::Bytes), help), one(c.late_bytes))?;
        let dropped = [
            ("late", c.late_frames),
            ("void", c.void_frames),
            ("corrupt", c.corrupt_frames),
        ];
        let help = "Data frames that did not count: too late, declared void by their sender, or damaged on the way.";
        to.counters(
            Family("dropped_frames", None, help),
            dropped.map(|(why, n)| (vec![word("why", why)], n)),
        )?;
        let ignored = [
            ("stale_message", c.stale_messages),
            ("stale_event", c.stale_events),
            ("repeated_chunk", c.repeated_chunks),
            ("duplicate_frame", c.duplicate_frames),
        ];
        let help = "What meant nothing any more, or came twice, and was ignored as it should be.";
        to.counters(
            Family("ignored", None, help),
            ignored.map(|(what, n)| (vec![word("what", what)], n)),
        )?;
        let help = "Claims of peers that were refused.";
        to.counters(Family("claims_refused", None, help), one(c.claims_refused))?;
        let help = "Copy jobs that met a closed gate.";
        to.counters(Family("refused_jobs", None, help), one(c.refused_jobs))?;
        let sessions = [
            ("opened", c.sessions_opened),
            ("connection_lost", c.transports_lost),
            ("resumed", c.sessions_resumed),
        ];
        let help = "Sessions that were opened, lost their connection, or went on over another one.";
        to.counters(
            Family("sessions", None, help),
            sessions.map(|(event, n)| (vec![word("event", event)], n)),
        )?;
        let greetings = [
            ("refused", c.greetings_refused),
            ("put_out", c.greetings_put_out),
        ];
        let help =
            "Connections that did not become a session: one side refused, or others came first.";
        to.counters(
            Family("greetings_failed", None, help),
            greetings.map(|(how, n)| (vec![word("how", how)], n)),
        )?;
        let defects = [
            ("room_panicked", c.panicked),
            ("stray_witness", c.stray_witnesses),
            ("overwritten_word", c.overwritten_words),
        ];
        let help =
            "What must never happen. Not zero is a defect of kvroom, or of a peer on this host.";
        to.counters(
            Family("defects", None, help),
            defects.map(|(what, n)| (vec![word("what", what)], n)),
        )
    }

    fn health(&self, to: &mut Writer<'_>) -> fmt::Result {
        let help = "Whether /livez and /readyz are green: 1 or 0.";
        to.gauges(
            Family("healthy", None, help),
            (self.probes.iter()).map(|(probe, ok)| (vec![word("probe", probe)], u64::from(*ok))),
        )?;
        let runs = self.canaries.iter().flat_map(|c| {
            [("passed", c.passed), ("failed", c.failed), ("full", c.full)]
                .map(|(result, n)| (vec![label("canary", &c.name), word("result", result)], n))
        });
        let help = "Runs of the canary rooms, by fabric and lane; full is one that the node had no room for.";
        to.counters(Family("canary_runs", None, help), runs)?;
        let took = self.canaries.iter().filter_map(|c| {
            let took = c.took?.as_secs_f64();
            Some((vec![label("canary", &c.name)], took))
        });
        let help = "How long a canary's last run took, if it passed.";
        to.gauges(Family("canary_last_run", Some(Unit::Seconds), help), took)
    }

    fn process(&self, to: &mut Writer<'_>) -> fmt::Result {
        let p = &self.process;
        let help = "Memory of this process that is in use.";
        to.gauges(
            Family("process_resident_memory", Some(Unit::Bytes), help),
            p.resident_bytes.map(|n| (none(), n)),
        )?;
        let help = "Descriptors that this process has open.";
        to.gauges(
            Family("process_open_fds", None, help),
            p.open_fds.map(|n| (none(), n)),
        )?;
        let help = "Threads of this process.";
        to.gauges(
            Family("process_threads", None, help),
            p.threads.map(|n| (none(), n)),
        )?;
        let help = "Processor time that this process has taken.";
        to.counters(
            Family("process_cpu", Some(Unit::Seconds), help),
            p.cpu_seconds.map(|n| (none(), n)),
        )
    }
}
