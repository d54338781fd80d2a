//! The recorder of a node, who writes into it, and how it is read.

use super::book::{Book, Source};
use super::entry::{Entry, Part, PeerIs, Step, Told, What};
use super::ring::Found;
use super::tail::Tail;
use super::words::{self, Hearing, WORDS, Words};
use crate::ids::{Incarnation, LifeId, PeerRef, RoomKey, Tick};
use crate::peer::message::FrameRef;
use crate::reason::Reason;
use crate::room::event::Event;
use crate::room::{Role, StateName};
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

/// Names of peers that are remembered; the oldest go first.
const MOST_NAMES: usize = 8_192;
/// Entries that are copied with one look at a ring.
const AT_ONCE: usize = 64;
/// Entries that a shard writes before it puts them into its ring itself.
const PLACES: usize = 64;

/// The flight recorder of a node. Clones are the same.
#[derive(Clone, Debug)]
pub struct Recorder(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// One for each shard; none if nothing is recorded.
    desks: Vec<Desk>,
    /// What was taken off the desks. Whoever holds it may take.
    book: Mutex<Book>,
    started: Instant,
    size: usize,
    names: Mutex<BTreeMap<PeerRef, Arc<str>>>,
}

/// What [`Recorder::read`] gives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Records {
    /// In the order of their numbers.
    pub entries: Vec<Entry>,
    /// Entries between `since` and `next` that were overwritten before they were read.
    pub lost: u64,
    /// Where to go on.
    pub next: u64,
}

/// Where a shard writes. Apart from those of other threads.
#[derive(Debug)]
#[repr(align(128))]
struct Desk {
    /// When the shard's turn began, in nanoseconds since the node's start.
    turn: AtomicU64,
    /// The only thread that puts anything into the tail.
    owner: OnceLock<ThreadId>,
    tail: Tail<WORDS, PLACES>,
}

impl Source for Desk {
    fn waiting(&self) -> u64 {
        self.tail.waiting()
    }

    #[inline]
    fn peek(&self, ahead: u64, entry: &mut Words) {
        self.tail.peek(ahead, entry);
    }

    #[inline]
    fn time(&self, ahead: u64) -> u64 {
        self.tail.first(ahead)
    }

    fn taken(&self, count: u64) {
        self.tail.taken(count);
    }
}

/// Writes entries of one part. Stays on the thread that it was made on.
#[derive(Clone, Debug)]
pub struct Scribe {
    recorder: Recorder,
    /// The desk, if it is this thread's; and which ring.
    own: bool,
    ring: usize,
    part: Part,
    stays: PhantomData<Rc<()>>,
}

impl Recorder {
    /// For a node with so many shards; each ring keeps `size` entries. With 0 nothing is recorded.
    pub(crate) fn new(shards: usize, size: usize, started: Instant) -> Recorder {
        let (desks, rings) = match size {
            0 => (0, 0),
            _ => (shards, shards + 1),
        };
        let desk = |_| Desk {
            turn: AtomicU64::new(0),
            owner: OnceLock::new(),
            tail: Tail::new(),
        };
        Recorder(Arc::new(Shared {
            desks: (0..desks).map(desk).collect(),
            book: Mutex::new(Book::new(rings, size)),
            started,
            size,
            names: Mutex::default(),
        }))
    }

    /// Entries that each ring keeps; 0 if nothing is recorded.
    pub fn size(&self) -> usize {
        self.0.size
    }

    /// The number that the next entry gets. What happens from now on has this number or a higher one.
    pub fn next_seq(&self) -> u64 {
        self.0.book().next()
    }

    /// Entries from number `since` on, `max` of them at most, oldest first. Asks no thread of the node
    /// and waits for none of them.
    ///
    /// Who goes on with `next` each time reads everything once, or knows how much was lost. With a
    /// `since` that has not happened yet there are no entries, and `next` is `since`.
    pub fn read(&self, since: u64, max: usize) -> Records {
        let below = self.next_seq();
        let mut found: Vec<Found> = Vec::new();
        // Which ring they are of: as many of each.
        let mut parts = Vec::new();
        for ring in 0..self.rings() {
            let mut from = since;
            let mut left = max;
            while left > 0 {
                let before = found.len();
                // A writer waits for no more than this.
                lock(&self.0.book).copy(ring, (from, below), left.min(AT_ONCE), &mut found);
                let got = found.len() - before;
                let Some(last) = found.last().filter(|_| got > 0) else {
                    break;
                };
                (from, left) = (last.seq + 1, left - got);
            }
            parts.push((ring, found.len()));
        }
        let mut entries = self.entries(found, &parts);
        entries.sort_unstable_by_key(|entry| entry.seq);
        entries.truncate(max);
        let next = match entries.last() {
            // There may be more than was taken, of each ring.
            Some(last) if entries.len() == max => last.seq + 1,
            _ if max == 0 => since,
            _ => below.max(since),
        };
        let lost = next
            .saturating_sub(since)
            .saturating_sub(entries.len() as u64);
        Records {
            entries,
            lost,
            next,
        }
    }

    /// Everything that is there, oldest first; `lost` is what was overwritten since the node's start.
    pub fn read_all(&self) -> Records {
        self.read(0, usize::MAX)
    }

    fn rings(&self) -> usize {
        match self.0.size {
            0 => 0,
            _ => self.0.desks.len() + 1,
        }
    }

    /// As values. `parts` says up to where they are of which ring.
    fn entries(&self, found: Vec<Found>, parts: &[(usize, usize)]) -> Vec<Entry> {
        let names = lock(&self.0.names);
        let mut parts = parts.iter();
        let mut part = parts.next();
        let mut entries = Vec::with_capacity(found.len());
        for (at, found) in found.into_iter().enumerate() {
            while part.is_some_and(|(_, end)| *end <= at) {
                part = parts.next();
            }
            let shard = part.map_or(0, |(ring, _)| *ring);
            let of = match words::is_whole(&found.words) {
                true => words::part(&found.words),
                false => Part::Shard(u16::try_from(shard).unwrap_or(u16::MAX)),
            };
            let Some(what) = found.whole.or_else(|| words::read(&found.words)) else {
                continue;
            };
            entries.push(Entry {
                seq: found.seq,
                at: Duration::from_micros(found.words[0] / 1_000),
                part: of,
                peer: what.peer().and_then(|peer| names.get(&peer).cloned()),
                what,
            });
        }
        entries
    }

    /// The writer for what a shard does, to be made on its thread. Another thread may write in its
    /// name, too; that takes longer.
    pub(crate) fn shard(&self, shard: usize) -> Scribe {
        let me = thread::current().id();
        let desk = self.0.desks.get(shard);
        Scribe {
            recorder: self.clone(),
            own: desk.is_some_and(|desk| *desk.owner.get_or_init(|| me) == me),
            ring: shard.min(self.0.desks.len()),
            part: Part::Shard(u16::try_from(shard).unwrap_or(u16::MAX)),
            stays: PhantomData,
        }
    }

    /// The writer for anything that is not on a shard's thread.
    pub(crate) fn part(&self, part: Part) -> Scribe {
        Scribe {
            recorder: self.clone(),
            own: false,
            ring: self.0.desks.len(),
            part,
            stays: PhantomData,
        }
    }

    /// From now on this peer has a name.
    pub(crate) fn know(&self, peer: PeerRef, name: &str) {
        let mut names = lock(&self.0.names);
        names.insert(peer, name.into());
        if names.len() > MOST_NAMES {
            names.pop_first();
        }
    }
}

impl Scribe {
    /// Writes an entry, made only if anything is recorded.
    #[inline]
    pub(crate) fn write(&self, what: impl FnOnce() -> What) {
        if self.is_on() {
            let what = what();
            match words::of(&what) {
                Some(words) => self.put(words),
                None => self.put_whole(what),
            }
        }
    }

    /// What is to be recorded of what a room is told; none if nothing is.
    #[inline]
    pub(crate) fn hear<W>(&self, event: &Event<W>) -> Option<Hearing> {
        self.is_on().then(|| Hearing::of(event))
    }

    /// A room was told this, and went from the one state to the other.
    #[inline]
    pub(crate) fn heard(
        &self,
        (key, life): (RoomKey, LifeId),
        (role, from, to): (Role, StateName, StateName),
        hearing: Hearing,
        reason: Option<&Reason>,
    ) {
        let told = match hearing {
            Hearing::Short(mut words) => {
                words::step(&mut words, key, life, (role, from, to));
                if reason.is_none() {
                    return self.put(words);
                }
                match words::read(&words) {
                    Some(What::Room(step)) => step.told,
                    _ => return,
                }
            }
            Hearing::Whole(told) => *told,
        };
        self.put_whole(What::Room(Step {
            key,
            life,
            role,
            from,
            to,
            told,
            reason: reason.map(|reason| Box::new(reason.clone())),
        }));
    }

    /// The room's actor panicked.
    pub(crate) fn panicked(&self, key: RoomKey, life: LifeId, role: Role, from: StateName) {
        self.write(|| {
            What::Room(Step {
                key,
                life,
                role,
                from,
                to: StateName::Draining,
                told: Told::Panicked,
                reason: None,
            })
        });
    }

    /// This message goes into a transport.
    #[inline]
    pub(crate) fn sent(&self, peer: PeerRef, frame: FrameRef<'_>) {
        if self.is_on()
            && let Some(words) = words::frame(true, peer, frame)
        {
            self.put(words);
        }
    }

    /// What is to be recorded of a message if it is taken; none if nothing is.
    #[inline]
    pub(crate) fn came(&self, peer: PeerRef, frame: FrameRef<'_>) -> Option<Came> {
        match self.is_on() {
            true => words::frame(false, peer, frame).map(Came),
            false => None,
        }
    }

    /// The message was taken.
    #[inline]
    pub(crate) fn received(&self, came: Came) {
        self.put(came.0);
    }

    /// Whether anything is recorded.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.recorder.0.size != 0
    }

    #[inline]
    fn put(&self, mut words: Words) {
        if self.own
            && let Some(desk) = self.recorder.0.desks.get(self.ring)
        {
            words[0] = desk.turn.load(Ordering::Relaxed);
            if !desk.tail.put(&words) {
                self.put_full(desk, &words);
            }
        } else if let Some(what) = words::read(&words) {
            self.put_whole(what);
        }
    }

    /// With no place left: the book is filled, and there is.
    #[cold]
    fn put_full(&self, desk: &Desk, words: &Words) {
        let mut book = self.recorder.0.book();
        // Nobody but this thread puts anything in.
        if !desk.tail.put(words) {
            book.push(self.ring, words);
        }
    }

    /// Straight into the ring, behind all that was written before.
    #[cold]
    fn put_whole(&self, what: What) {
        let shared = &*self.recorder.0;
        let at = match self.part {
            Part::Shard(_) if self.own => shared
                .desks
                .get(self.ring)
                .map_or(0, |desk| desk.turn.load(Ordering::Relaxed)),
            // No turns are told of, and little happens.
            _ => shared.now(),
        };
        (shared.book()).push_whole(self.ring, at, self.part, what);
    }

    /// A turn of the shard's thread begins. What is written within it has this time: reading the clock
    /// costs more than all else about an entry.
    #[inline]
    pub(crate) fn turn(&self) {
        if let Some(desk) = self.recorder.0.desks.get(self.ring) {
            desk.turn.store(self.recorder.0.now(), Ordering::Relaxed);
        }
    }

    /// The same, for who has just read the node's clock.
    #[inline]
    pub(crate) fn turn_at(&self, now: Tick) {
        if let Some(desk) = self.recorder.0.desks.get(self.ring) {
            desk.turn.store(now.0, Ordering::Relaxed);
        }
    }

    /// A peer's session is so now.
    pub(crate) fn peer(&self, peer: PeerRef, incarnation: Incarnation, is: PeerIs, why: &str) {
        self.turn();
        self.write(|| What::Peer {
            peer,
            incarnation,
            is,
            why: why.into(),
        });
    }

    /// Something that needs no more than a sentence.
    pub(crate) fn note(&self, note: &'static str) {
        self.write(|| What::Note(note.into()));
    }
}

/// A message that may yet turn out to be a repeated one.
#[derive(Debug)]
pub(crate) struct Came(Words);

impl Shared {
    fn now(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// The book, with all in it that was written.
    fn book(&self) -> MutexGuard<'_, Book> {
        let mut book = lock(&self.book);
        book.fill(&self.desks);
        book
    }
}

/// Nothing panics with a lock of this module held; what was written before is whole anyway.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
