//! What goes to and comes from each peer, by name.
//!
//! ```text
//!   peer "prefill-0" ─▶ slot 0      its lives share it, so that what it counts never goes down
//!   peer "prefill-1" ─▶ slot 1
//!   …                               a slot is filled once and never emptied
//!   64 names later   ─▶ other       all further names together
//! ```
//!
//! Names are bounded here and not where they are shown: a name that lost its place would take its
//! counts with it, and whoever adds them up would see them go down.

use super::histogram::Histogram;
use crate::fabric::Fabric;
use crate::peer::actor::PeerState;
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Names that have a meter of their own: those that a node meets first.
pub const MOST_NAMED: usize = 64;

/// One piece in so many is timed.
const TIMED_OF: u32 = 16;

/// The fabrics, in the order in which they are counted.
pub const FABRICS: [Fabric; 4] = [Fabric::Local, Fabric::Shm, Fabric::Tcp, Fabric::Ucx];

thread_local! {
    static UNTIMED: Cell<u32> = const { Cell::new(0) };
}

/// When this piece began, if it is one of those that are timed: one in sixteen of each thread, so that
/// clocks cost the others nothing.
pub(crate) fn time_some() -> Option<Instant> {
    let due = UNTIMED.with(|untimed| {
        let n = untimed.get();
        untimed.set(if n + 1 == TIMED_OF { 0 } else { n + 1 });
        n == 0
    });
    due.then(Instant::now)
}

/// Durations of pieces, by fabric.
pub(crate) type Pieces = [Histogram; FABRICS.len()];

/// A name and its meter.
type Named = (String, Arc<Meter>);

/// The meters of a node.
#[derive(Debug)]
pub struct Meters {
    named: Box<[OnceLock<Named>]>,
    other: Arc<Meter>,
    pieces: Arc<Pieces>,
}

/// Counts what concerns one peer. Bytes are those that landed: a sender's when the destination, or
/// its answer, says so.
#[derive(Debug, Default)]
pub struct Meter {
    sent: [AtomicU64; FABRICS.len()],
    received: [AtomicU64; FABRICS.len()],
    /// Its lives with a session.
    up: AtomicU64,
    /// Its lives whose session waits for a connection.
    resuming: AtomicU64,
    /// Pages of rooms with it that passed their drain deadline.
    quarantined_pages: AtomicU64,
    pieces: Arc<Pieces>,
}

/// A reading of a [`Meter`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metered {
    /// The peer's name; none for all that have no meter of their own.
    pub name: Option<String>,
    /// Bytes to it, for each of [`FABRICS`].
    pub sent: [u64; FABRICS.len()],
    /// Bytes from it.
    pub received: [u64; FABRICS.len()],
    /// Lives with a session.
    pub up: u64,
    /// Lives whose session waits for a connection.
    pub resuming: u64,
    /// Pages of rooms with it that passed their drain deadline.
    pub quarantined_pages: u64,
}

impl Default for Meters {
    fn default() -> Self {
        let pieces: Arc<Pieces> = Arc::default();
        Meters {
            named: (0..MOST_NAMED).map(|_| OnceLock::new()).collect(),
            other: Arc::new(Meter::new(&pieces)),
            pieces,
        }
    }
}

impl Meters {
    /// The meter of a name; the same one each time.
    pub(crate) fn of(&self, name: &str) -> Arc<Meter> {
        for slot in &self.named {
            let new = || (name.to_owned(), Arc::new(Meter::new(&self.pieces)));
            // Filled by somebody else meanwhile, it is theirs.
            let (owner, meter) = slot.get_or_init(new);
            if owner == name {
                return Arc::clone(meter);
            }
        }
        Arc::clone(&self.other)
    }

    /// All readings: named ones in the order in which they were met, then the others together.
    pub fn read(&self) -> Vec<Metered> {
        let named = self.named.iter().map_while(OnceLock::get);
        let named = named.map(|(name, meter)| meter.read(Some(name.clone())));
        named.chain([self.other.read(None)]).collect()
    }

    /// How long pieces took, for each of [`FABRICS`].
    pub fn pieces(&self) -> &[Histogram; FABRICS.len()] {
        &self.pieces
    }
}

impl Meter {
    fn new(pieces: &Arc<Pieces>) -> Self {
        Meter {
            pieces: Arc::clone(pieces),
            ..Meter::default()
        }
    }

    pub(crate) fn sent(&self, fabric: Fabric, bytes: u64) {
        self.sent[at(fabric)].fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn received(&self, fabric: Fabric, bytes: u64) {
        self.received[at(fabric)].fetch_add(bytes, Ordering::Relaxed);
    }

    /// A piece that was timed.
    pub(crate) fn piece(&self, fabric: Fabric, took: Duration) {
        self.pieces[at(fabric)].record(took);
    }

    /// One of its lives went from one state to another.
    pub(crate) fn state(&self, before: &PeerState, now: &PeerState) {
        let gauge = |state: &PeerState| match state {
            PeerState::Up => Some(&self.up),
            PeerState::Resuming(_) => Some(&self.resuming),
            PeerState::Down(_) => None,
        };
        if let Some(gauge) = gauge(now) {
            gauge.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(gauge) = gauge(before) {
            gauge.fetch_sub(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn quarantined(&self, pages: u64) {
        self.quarantined_pages.fetch_add(pages, Ordering::Relaxed);
    }

    pub(crate) fn released(&self, pages: u64) {
        self.quarantined_pages.fetch_sub(pages, Ordering::Relaxed);
    }

    fn read(&self, name: Option<String>) -> Metered {
        let all = |counts: &[AtomicU64; FABRICS.len()]| {
            std::array::from_fn(|i| counts[i].load(Ordering::Relaxed))
        };
        Metered {
            name,
            sent: all(&self.sent),
            received: all(&self.received),
            up: self.up.load(Ordering::Relaxed),
            resuming: self.resuming.load(Ordering::Relaxed),
            quarantined_pages: self.quarantined_pages.load(Ordering::Relaxed),
        }
    }
}

fn at(fabric: Fabric) -> usize {
    match fabric {
        Fabric::Local => 0,
        Fabric::Shm => 1,
        Fabric::Tcp => 2,
        Fabric::Ucx => 3,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_name_keeps_its_meter_and_those_beyond_the_bound_share_one() {
        let meters = Meters::default();
        for i in 0..MOST_NAMED + 10 {
            meters.of(&format!("peer-{i}")).sent(Fabric::Tcp, 1);
            meters.of("peer-3").received(Fabric::Shm, 2);
        }
        let read = meters.read();
        assert_eq!(read.len(), MOST_NAMED + 1);
        let peer_3 = read.iter().find(|m| m.name.as_deref() == Some("peer-3"));
        // It was met three times as another one's neighbour before it came itself.
        let peer_3 = peer_3.unwrap();
        assert_eq!(peer_3.received[1], 2 * (MOST_NAMED as u64 + 10));
        assert_eq!(peer_3.sent[2], 1);
        let other = read.last().unwrap();
        // One name fewer fits, since peer-3 came first, and again it is the same.
        assert_eq!((other.name.as_deref(), other.sent[2]), (None, 10));
    }

    #[test]
    fn one_piece_in_sixteen_is_timed() {
        std::thread::spawn(|| {
            let timed = (0..160).filter(|_| time_some().is_some()).count();
            assert_eq!(timed, 10);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn lives_of_a_peer_are_counted_by_their_state() {
        let (meter, down) = (Meter::default(), PeerState::Down(String::new()));
        let resuming = PeerState::Resuming(String::new());
        meter.state(&down, &PeerState::Up);
        meter.state(&down, &PeerState::Up);
        meter.state(&PeerState::Up, &resuming);
        meter.state(&resuming, &resuming);
        let read = meter.read(None);
        assert_eq!((read.up, read.resuming), (1, 1));
        meter.state(&resuming, &down);
        assert_eq!(meter.read(None).resuming, 0);
    }
}
