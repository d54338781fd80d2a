//! Whether a node's parts do their work: their pulse, which asks nobody, and a question to each.
//!
//! ```text
//!   Node::pulse ─▶ Pulse ─▶ PulseWatch ─▶ Still: has something to do, and no turn for so long
//!   Node::ask   ─▶ a message to every part; answered in the pulse, or waiting there
//!   Node::probe ─▶ both: asks, waits at most so long, and says who answered
//! ```
//!
//! A part that has much to do and gets on with it is overloaded, and not still. One that is asked has
//! something to do.

use super::node::Node;
use kvroom_actors::ids::{PeerRef, RoomId};
use kvroom_actors::limits::Limits;
pub use kvroom_actors::runtime::pulse::{EntranceState, Part, PartPulse};
use kvroom_actors::runtime::shared::NodeShared;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::time::{Duration, Instant};

/// The parts of a node at one moment: its own task, its shards, its lanes, the thread of UCX.
#[derive(Clone, Debug)]
pub struct Pulse {
    /// When it was read.
    pub at: Instant,
    /// Each part.
    pub parts: Vec<PartPulse>,
}

/// What a part said to a question, or did not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Which part.
    pub part: Part,
    /// How long its answer took; `None` if there was none in time.
    pub took: Option<Duration>,
    /// How long the question waits, if there was no answer. It may have been put before this one:
    /// a part that has not answered is not asked again.
    pub waits: Option<Duration>,
    /// The part has died, or has stopped with its node.
    pub gone: bool,
}

/// What an embedding host, or a watchdog, must know to tell a wedge from work: keeps what each part
/// had done when it was last looked at.
#[derive(Clone, Debug, Default)]
pub struct PulseWatch {
    seen: BTreeMap<Part, Seen>,
    last: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    turns: u64,
    /// Since when it has something to do and has begun no turn.
    still: Option<Instant>,
    /// It had something to do, and has got on with it since.
    busy: bool,
}

/// A part that has something to do and began no turn since it was first seen so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Still {
    /// Which part.
    pub part: Part,
    /// For how long, as far as it was looked at.
    pub since: Duration,
    /// What it has to do.
    pub why: StillWhy,
}

/// What a part has to do that it does not do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StillWhy {
    /// It has died.
    Gone,
    /// It is in a turn that does not end.
    InTurn,
    /// So many messages and jobs wait for it.
    Waiting(u64),
    /// It was asked whether it is there.
    Asked,
}

impl fmt::Display for StillWhy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StillWhy::Gone => f.write_str("it has died"),
            StillWhy::InTurn => f.write_str("it is in a turn that does not end"),
            StillWhy::Waiting(n) => write!(f, "{n} messages and jobs wait for it"),
            StillWhy::Asked => f.write_str("it does not answer"),
        }
    }
}

/// Whoever looks less often than this did not run: what was still meanwhile may not have run either.
const GAP: Duration = Duration::from_millis(1_500);

impl PulseWatch {
    /// Looks at a pulse; to be called a few times a second. Gives the parts that have something to do
    /// and have begun no turn since the last look, with how long that has been so. A gap of more than
    /// a second and a half between two looks does not count: then this process did not run.
    pub fn look(&mut self, pulse: &Pulse) -> Vec<Still> {
        let gap = self.last.map_or(Duration::ZERO, |last| {
            pulse.at.saturating_duration_since(last)
        });
        let gap = if gap > GAP { gap } else { Duration::ZERO };
        self.last = Some(pulse.at);
        let mut still = Vec::new();
        for part in &pulse.parts {
            let why = why(part);
            let seen = self.seen.entry(part.part.clone()).or_insert(Seen {
                turns: part.turns,
                still: None,
                busy: false,
            });
            let moved = seen.turns != part.turns && !part.gone;
            seen.busy = moved && (seen.still.is_some() || part.waiting > 0);
            seen.turns = part.turns;
            let Some(why) = why else {
                seen.still = None;
                continue;
            };
            let since = match seen.still {
                Some(since) if !moved => (since + gap).min(pulse.at),
                _ => pulse.at,
            };
            seen.still = Some(since);
            still.push(Still {
                part: part.part.clone(),
                since: pulse.at.saturating_duration_since(since),
                why,
            });
        }
        still
    }

    /// Whether the part had something to do when it was last looked at, and gets on with it.
    pub fn is_busy(&self, part: &Part) -> bool {
        self.seen.get(part).is_some_and(|seen| seen.busy)
    }
}

fn why(part: &PartPulse) -> Option<StillWhy> {
    if part.gone {
        Some(StillWhy::Gone)
    } else if part.running {
        Some(StillWhy::InTurn)
    } else if part.waiting > 0 {
        Some(StillWhy::Waiting(part.waiting))
    } else {
        part.asked.map(|_| StillWhy::Asked)
    }
}

/// Pages that rooms hold beyond their drain deadline, on behalf of writers (or readers) that have not
/// been proven to be out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QuarantinedPages {
    /// By the name of the peer; those of a room with several peers count for each.
    pub by_peer: BTreeMap<String, u64>,
    /// By the name of the pool.
    pub by_pool: BTreeMap<String, u64>,
    /// Names of peers to which new claims are refused because of that
    /// ([`Limits::quarantined_pages_per_peer`], of each shard).
    pub refused: BTreeSet<String>,
}

impl Node {
    /// What each part of the node does now. Asks nobody and waits for nobody: a few loads. It works
    /// when every thread of the node is stuck, and after the node has stopped.
    pub fn pulse(&self) -> Pulse {
        let shared = self.shared();
        let mut parts: Vec<PartPulse> = shared.beats.all().map(|beat| beat.read()).collect();
        let depth = self.runtime().control_depth() as u64;
        let node = parts.iter_mut().filter(|p| p.part == Part::Node);
        node.for_each(|p| p.waiting += depth);
        Pulse {
            at: Instant::now(),
            parts,
        }
    }

    /// Asks every part whether it is there, and waits for nobody: the answers, or that they are
    /// missing, are in the next [`Node::pulse`]. A part that has not answered the last time is not
    /// asked again. The owners of sessions are asked too; [`Node::probe`] tells of those.
    pub fn ask(&self) {
        self.runtime().ask();
    }

    /// Asks every part, the owners of sessions among them, and waits until all have answered, or so
    /// long. To be awaited in a tokio runtime that has a clock.
    pub async fn probe(&self, within: Duration) -> Vec<Answer> {
        let deadline = tokio::time::Instant::now() + within;
        let shared = self.shared();
        self.runtime().ask();
        loop {
            let mut answered = std::pin::pin!(shared.beats.answered.notified());
            // From here on no answer is missed.
            answered.as_mut().enable();
            // Whoever asked first: when the node's own task has answered, the sessions are those that it
            // has asked, and until then those of the last time.
            let sessions = shared.beats.sessions();
            let beats = shared.beats.all().chain(sessions.iter());
            let read: Vec<PartPulse> = beats.map(|beat| beat.read()).collect();
            let all_said = read.iter().all(|p| p.gone || p.asked.is_none());
            if all_said || tokio::time::timeout_at(deadline, answered).await.is_err() {
                return read.into_iter().map(answer).collect();
            }
        }
    }

    /// Its listeners, and whether they can accept. Asks nobody. Whoever knows one only by its socket
    /// in shared memory of this host is not among them.
    pub fn listeners(&self) -> Vec<EntranceState> {
        self.shared().doors.iter().map(|door| door.read()).collect()
    }

    /// Its limits.
    pub fn limits(&self) -> &Limits {
        &self.shared().limits
    }

    /// How many shards it has.
    pub fn shards(&self) -> usize {
        self.shared().beats.shards.len()
    }

    /// How many lanes it has.
    pub fn lanes(&self) -> usize {
        self.shared().beats.lanes.len()
    }

    /// Which shard a room of this id is on, counted from 0.
    pub fn shard_of(&self, room: RoomId) -> usize {
        NodeShared::shard_of(room, self.shards())
    }

    /// Pages that are quarantined, by peer and by pool. Asks every shard, and waits for as long as they
    /// take.
    pub async fn quarantined(&self) -> QuarantinedPages {
        let mut peers: HashMap<PeerRef, u64> = HashMap::new();
        let mut refused = Vec::new();
        let mut all = QuarantinedPages::default();
        for inbox in self.runtime().inboxes() {
            let Some(overdue) = super::node::ask(inbox, |s| s.overdue()).await else {
                continue;
            };
            refused.extend(overdue.refused);
            for (peer, pages) in overdue.by_peer {
                *peers.entry(peer).or_default() += pages;
            }
            for (pool, pages) in overdue.by_pool {
                *all.by_pool.entry(pool).or_default() += pages;
            }
        }
        if !peers.is_empty() {
            let names = self.peer_names().await;
            let name = |peer| super::node::name_of(&names, peer);
            all.refused = refused.into_iter().map(name).collect();
            for (peer, pages) in peers {
                let name = super::node::name_of(&names, peer);
                *all.by_peer.entry(name).or_default() += pages;
            }
        }
        all
    }
}

fn answer(part: PartPulse) -> Answer {
    Answer {
        took: part.took.filter(|_| part.asked.is_none() && !part.gone),
        waits: part.asked,
        gone: part.gone,
        part: part.part,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LANE: Part = Part::Lane(0);

    fn lane(turns: u64, running: bool, waiting: u64, asked: bool) -> PartPulse {
        PartPulse {
            part: LANE,
            turns,
            running,
            since: Duration::ZERO,
            waiting,
            asked: asked.then_some(Duration::ZERO),
            took: None,
            overdue: 0,
            gone: false,
        }
    }

    fn seen(watch: &mut PulseWatch, at: Instant, part: PartPulse) -> Option<(u128, StillWhy)> {
        let parts = vec![part];
        let still = watch.look(&Pulse { at, parts });
        still.first().map(|s| (s.since.as_millis(), s.why))
    }

    #[test]
    fn a_lane_that_has_work_and_makes_progress_is_not_still_however_much_it_is() {
        let (mut watch, start) = (PulseWatch::default(), Instant::now());
        for turn in 0..100 {
            let at = start + turn * Duration::from_millis(500);
            let still = seen(&mut watch, at, lane(turn.into(), true, 1 << 20, true));
            assert_eq!(still, Some((0, StillWhy::InTurn)));
            assert_eq!(watch.is_busy(&LANE), turn > 0);
        }
    }

    #[test]
    fn an_idle_lane_is_not_still_and_one_with_work_is_from_when_it_was_first_seen() {
        let (mut watch, start) = (PulseWatch::default(), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        for ms in (0..10_000).step_by(1_000) {
            assert_eq!(seen(&mut watch, at(ms), lane(7, false, 0, false)), None);
        }
        let waits = || lane(7, false, 3, false);
        let why = StillWhy::Waiting(3);
        assert_eq!(seen(&mut watch, at(10_000), waits()), Some((0, why)));
        assert_eq!(seen(&mut watch, at(11_000), waits()), Some((1_000, why)));
        assert_eq!(seen(&mut watch, at(12_000), waits()), Some((2_000, why)));
        assert!(!watch.is_busy(&LANE));
        let turned = seen(&mut watch, at(12_500), lane(8, false, 2, false));
        assert_eq!(turned, Some((0, StillWhy::Waiting(2))));
        assert!(watch.is_busy(&LANE));
        assert_eq!(seen(&mut watch, at(13_000), lane(9, false, 0, false)), None);
    }

    #[test]
    fn a_question_is_something_to_do_and_so_is_a_turn_that_does_not_end() {
        let (mut watch, start) = (PulseWatch::default(), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        seen(&mut watch, at(0), lane(1, false, 0, true));
        let asked = seen(&mut watch, at(900), lane(1, false, 0, true));
        assert_eq!(asked, Some((900, StillWhy::Asked)));
        let turn = seen(&mut watch, at(1_800), lane(1, true, 0, true));
        assert_eq!(turn, Some((1_800, StillWhy::InTurn)));
    }

    #[test]
    fn time_in_which_nobody_looked_does_not_count() {
        let (mut watch, start) = (PulseWatch::default(), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        let waits = || lane(1, false, 1, false);
        seen(&mut watch, at(0), waits());
        assert_eq!(seen(&mut watch, at(500), waits()).map(|s| s.0), Some(500));
        let after = seen(&mut watch, at(60_500), waits());
        assert_eq!(after.map(|s| s.0), Some(500));
        assert_eq!(
            seen(&mut watch, at(61_500), waits()).map(|s| s.0),
            Some(1_500)
        );
    }

    #[test]
    fn who_has_died_is_still_from_then_on() {
        let (mut watch, start) = (PulseWatch::default(), Instant::now());
        let dead = || PartPulse {
            gone: true,
            ..lane(1, false, 0, false)
        };
        seen(&mut watch, start, dead());
        let later = seen(&mut watch, start + Duration::from_secs(1), dead());
        assert_eq!(later, Some((1_000, StillWhy::Gone)));
    }
}
