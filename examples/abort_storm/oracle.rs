//! The oracle: who owns which page, what it may hold, and what was found there instead.
//!
//! It is not the runtime. It is told when a lease is taken and when it came back, keeps its own
//! record, and looks at the bytes. It is where the destination pages are; what is in source pages,
//! in this process or another, it knows by the stamps:
//!
//! ```text
//!   destination page   poison of its owner ──▶ source's bytes ──▶ back: at once the next owner's
//!                                                                 poison
//!   source page        stamped for its room ────────────────────▶ back: at once spoiled
//! ```
//!
//! Rules:
//! - *late byte*: a byte of a page that changed by another claim than its present owner's;
//! - *torn read*: a destination cell that holds bytes its source had only after the source lease
//!   came back: a spoiled stamp, or what a later room put on the source page of an earlier one;
//! - zeros in the owner's page are what a sender that was aborted in the middle of a frame sends for
//!   the rest of it; they are late bytes if its sender was not aborted;
//! - *missing byte*: a room was Done and a byte of its pages is still the poison;
//! - a page is looked at whenever it changes hands, before the evidence is stamped over, and in
//!   every scan; what was found in one life of a page is counted once.

use crate::stamp::{self, Origin, Stamp, Stamps, Words};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Where an engine's pages can be read at any time, and written while nobody leases them.
pub(crate) trait PageStore: Send + Sync {
    /// Copies what the cell holds now; it may be in the middle of a change.
    fn read(&self, layer: u32, page: u32, into: &mut [u8]);
    /// Overwrites the cell.
    fn write(&self, layer: u32, page: u32, bytes: &[u8]);
    /// Whether the engine's own table agrees that nobody has the page now.
    fn is_free(&self, _page: u32) -> bool {
        true
    }
}

/// The sizes that the oracle has to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Layers of both pools.
    pub(crate) layers: u32,
    /// Bytes of one cell; a multiple of 8.
    pub(crate) page_bytes: usize,
    /// Tokens of one page.
    pub(crate) page_tokens: u32,
    /// Pages of the receiving pool.
    pub(crate) destination_pages: u32,
    /// Pages of the sending pool.
    pub(crate) source_pages: u32,
}

impl Shape {
    /// Bytes of one page in all layers.
    pub(crate) fn page_total(&self) -> u64 {
        u64::from(self.layers) * self.page_bytes as u64
    }
}

/// One life of one room; the driver numbers them. An attempt is a claim of its own.
pub(crate) type Claim = usize;

/// What was found so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Findings {
    /// Bytes changed by another claim than the present owner's.
    pub(crate) late_bytes: u64,
    /// Destination cells with bytes that their source had only after its lease came back.
    pub(crate) torn_reads: u64,
    /// Bytes of rooms that were Done and had not been written.
    pub(crate) missing_bytes: u64,
}

impl Findings {
    /// Both together.
    #[must_use]
    pub(crate) fn plus(self, other: Findings) -> Findings {
        Findings {
            late_bytes: self.late_bytes + other.late_bytes,
            torn_reads: self.torn_reads + other.torn_reads,
            missing_bytes: self.missing_bytes + other.missing_bytes,
        }
    }
}

/// Writes a stamp into all layers of a page; `buffer` is as long as a cell.
pub(crate) fn write(
    shape: Shape,
    store: &dyn PageStore,
    page: u32,
    stamp: Stamp,
    buffer: &mut [u8],
) {
    for layer in 0..shape.layers {
        stamp::fill(stamp, layer, buffer);
        store.write(layer, page, buffer);
    }
}

/// A claim that had a destination page, and the stamp of what it had to bring there.
struct Past {
    claim: Claim,
    stamp: Stamp,
}

/// Where a source stamp was written.
#[derive(Clone, Copy)]
struct Placed {
    page: u32,
    /// Larger is later.
    order: u64,
}

struct Page {
    life: u64,
    owner: Option<Claim>,
    done: bool,
    poison: Stamp,
    /// What the owner has to bring.
    source: Option<Stamp>,
    past: Vec<Past>,
}

struct Book {
    stamps: Arc<Stamps>,
    placed: Placements,
    poisons: u32,
    lives: u64,
    destination: Vec<Page>,
    late: HashMap<(u64, u32), u64>,
    /// Bytes of zeros in pages of a claim, and the claims whose sender may have sent them.
    zeros: HashMap<(u64, u32), (Claim, u64)>,
    voided: HashSet<Claim>,
    torn: HashSet<(u64, u32)>,
    missing: HashMap<(u64, u32), u64>,
    buffer: Vec<u8>,
    scratch: Vec<u8>,
}

/// See the module.
pub(crate) struct Oracle {
    shape: Shape,
    stamps: Arc<Stamps>,
    /// With a lock of its own: who tells of it never waits for a page that is looked at.
    placed: Placements,
    book: Mutex<Book>,
}

type Placements = Arc<Mutex<HashMap<Stamp, Placed>>>;

impl Oracle {
    /// An oracle for a destination of `shape`; poisons all of its pages.
    pub(crate) fn new(shape: Shape, stamps: Arc<Stamps>, destination: &dyn PageStore) -> Self {
        let placed = Placements::default();
        let mut book = Book {
            stamps: Arc::clone(&stamps),
            placed: Arc::clone(&placed),
            poisons: 0,
            lives: 0,
            destination: Vec::new(),
            late: HashMap::new(),
            zeros: HashMap::new(),
            voided: HashSet::new(),
            torn: HashSet::new(),
            missing: HashMap::new(),
            buffer: vec![0; shape.page_bytes],
            scratch: vec![0; shape.page_bytes],
        };
        for page in 0..shape.destination_pages {
            let poison = book.poison(shape, destination, page);
            let life = book.next_life();
            let (owner, source) = (None, None);
            book.destination.push(Page {
                life,
                owner,
                done: false,
                poison,
                source,
                past: Vec::new(),
            });
        }
        Oracle {
            shape,
            stamps,
            placed,
            book: Mutex::new(book),
        }
    }

    /// `claim` takes destination pages, in the order of the request: they get its poison. Before
    /// the runtime is given them.
    pub(crate) fn destination_taken(&self, claim: Claim, pages: &[u32], store: &dyn PageStore) {
        for (index, &page) in (0..).zip(pages) {
            let to = Some((claim, index));
            self.lock().hand_over(self.shape, page, to, store);
        }
    }

    /// `claim`'s destination pages came back: looks at them, then hands them on at once.
    /// `done`: the room said that all of it is there.
    pub(crate) fn destination_back(
        &self,
        claim: Claim,
        pages: &[u32],
        done: bool,
        store: &dyn PageStore,
    ) {
        for &page in pages {
            let mut book = self.lock();
            let Some(record) = book.destination.get_mut(page as usize) else {
                continue;
            };
            if record.owner == Some(claim) {
                record.done = done;
                book.hand_over(self.shape, page, None, store);
            }
        }
    }

    /// The pages of `claim` from `first` on were written into these source pages. Only names the
    /// violations: what a page has to be is known without it.
    pub(crate) fn placed(&self, claim: Claim, first: u32, pages: &[u32]) {
        let mut placed = self.placed.lock().unwrap_or_else(PoisonError::into_inner);
        for (index, &page) in (first..).zip(pages) {
            let order = placed.len() as u64;
            placed.insert(self.stamps.source(claim, index), Placed { page, order });
        }
    }

    /// The sender of `claim` was aborted. A network lane that is in the middle of a frame then sends
    /// zeros for the rest of it, so that its source is free at once.
    pub(crate) fn voided(&self, claim: Claim) {
        self.lock().voided.insert(claim);
    }

    /// Reads `count` destination pages from `first` on (around the end) and records what is wrong.
    pub(crate) fn scan(&self, first: u32, count: u32, store: &dyn PageStore) {
        for step in 0..count.min(self.shape.destination_pages) {
            let page = (first.wrapping_add(step)) % self.shape.destination_pages;
            self.lock().inspect(self.shape, page, store);
        }
    }

    /// What was found so far.
    pub(crate) fn findings(&self) -> Findings {
        let book = self.lock();
        let strange = |(claim, bytes): &(Claim, u64)| match book.voided.contains(claim) {
            true => 0,
            false => *bytes,
        };
        let zeros: u64 = book.zeros.values().map(strange).sum();
        Findings {
            late_bytes: book.late.values().sum::<u64>() + zeros,
            torn_reads: book.torn.len() as u64,
            missing_bytes: book.missing.values().sum(),
        }
    }

    /// How many pages of which claims have not come back.
    pub(crate) fn out(&self) -> BTreeMap<Claim, u64> {
        let book = self.lock();
        let mut out = BTreeMap::new();
        for claim in book.destination.iter().filter_map(|page| page.owner) {
            *out.entry(claim).or_default() += 1;
        }
        out
    }

    fn lock(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Book {
    fn next_life(&mut self) -> u64 {
        self.lives += 1;
        self.lives
    }

    fn poison(&mut self, shape: Shape, store: &dyn PageStore, page: u32) -> Stamp {
        let stamp = Stamps::poison(self.poisons);
        self.poisons = self.poisons.wrapping_add(1);
        write(shape, store, page, stamp, &mut self.buffer);
        stamp
    }

    fn hand_over(
        &mut self,
        shape: Shape,
        page: u32,
        to: Option<(Claim, u32)>,
        store: &dyn PageStore,
    ) {
        self.inspect(shape, page, store);
        let poison = self.poison(shape, store, page);
        let life = self.next_life();
        let source = to.map(|(claim, index)| self.stamps.source(claim, index));
        if let Some(record) = self.destination.get_mut(page as usize) {
            record.life = life;
            record.owner = to.map(|(claim, _)| claim);
            record.done = false;
            record.poison = poison;
            record.source = source;
            let past = to
                .zip(source)
                .map(|((claim, _), stamp)| Past { claim, stamp });
            record.past.extend(past);
        }
    }

    /// Looks at all layers of one destination page.
    fn inspect(&mut self, shape: Shape, page: u32, store: &dyn PageStore) {
        let mut cell = std::mem::take(&mut self.buffer);
        if let Some(record) = self.destination.get(page as usize) {
            let mut found = Vec::new();
            for layer in 0..shape.layers {
                store.read(layer, page, &mut cell);
                let again = |into: &mut [u8]| store.read(layer, page, into);
                let seen = judge(
                    (&self.stamps, &self.placed),
                    record,
                    layer,
                    &cell,
                    &mut self.scratch,
                    &again,
                );
                if seen != Seen::default() {
                    found.push((layer, seen));
                }
            }
            let (life, owner) = (record.life, record.owner);
            for (layer, seen) in found {
                self.note(life, owner, layer, seen);
            }
        }
        self.buffer = cell;
    }

    fn note(&mut self, life: u64, owner: Option<Claim>, layer: u32, seen: Seen) {
        let key = (life, layer);
        if let Some(owner) = owner.filter(|_| seen.zeros > 0) {
            let (_, most) = self.zeros.entry(key).or_insert((owner, 0));
            *most = seen.zeros.max(*most);
        }
        if seen.late > 0 {
            let most = self.late.entry(key).or_default();
            *most = seen.late.max(*most);
        }
        if seen.missing > 0 {
            let most = self.missing.entry(key).or_default();
            *most = seen.missing.max(*most);
        }
        if seen.torn {
            self.torn.insert(key);
        }
    }
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Seen {
    late: u64,
    zeros: u64,
    missing: u64,
    torn: bool,
}

/// Judges one cell of a destination page by its record. A word that was read in the middle of a
/// change looks like nothing that was ever written: such words are read once more, with `again`,
/// and count if they are still the same.
fn judge(
    known: (&Stamps, &Placements),
    page: &Page,
    layer: u32,
    cell: &[u8],
    scratch: &mut [u8],
    again: &dyn Fn(&mut [u8]),
) -> Seen {
    let own = page.source;
    if own.is_some_and(|stamp| stamp::holds(stamp, layer, cell, scratch)) {
        return Seen::default();
    }
    if !page.done && stamp::holds(page.poison, layer, cell, scratch) {
        return Seen::default();
    }
    let mut seen = Seen::default();
    let poison = Words::new(page.poison, layer);
    let source = own.map(|stamp| Words::new(stamp, layer));
    let mut read_again = false;
    for (index, bytes) in cell.chunks_exact(8).enumerate() {
        let word = stamp::word(bytes);
        if source.as_ref().is_some_and(|words| words.at(index) == word) {
            continue;
        }
        if word == poison.at(index) {
            seen.missing += if page.done { 8 } else { 0 };
            continue;
        }
        if Words::new(stamp::stamp_of(word), layer).at(index) != word {
            if let Some(own) = source.as_ref().map(|words| words.at(index)) {
                let poison = poison.at(index);
                let zeros = word == 0 || cut(own, 0, word) || cut(0, poison, word);
                if zeros || cut(own, poison, word) {
                    seen.zeros += if zeros { 8 } else { 0 };
                    seen.missing += if page.done { 8 } else { 0 };
                    continue;
                }
            }
            if !read_again {
                again(scratch);
                read_again = true;
            }
            if scratch.get(index * 8..index * 8 + 8) != Some(bytes) {
                continue;
            }
        }
        match foreign(known, page, layer, index, word) {
            Foreign::OwnTorn => seen.torn = true,
            Foreign::LateTorn => {
                seen.torn = true;
                seen.late += 8;
            }
            Foreign::Late => seen.late += 8,
        }
    }
    seen
}

/// Whether a word begins with bytes of one and goes on with bytes of the other. A stream ends at any
/// byte when its sender is killed or the room is aborted.
fn cut(begin: u64, rest: u64, word: u64) -> bool {
    let mixed = |bytes: u32| {
        // Words are little-endian in a page: the first bytes are the lowest.
        let first = u64::MAX >> (64 - 8 * bytes);
        (begin & first) | (rest & !first)
    };
    (1..8).any(|bytes| mixed(bytes) == word)
}

enum Foreign {
    /// Written by the page's owner, from a source that had gone back.
    OwnTorn,
    /// Written by somebody else, from a source that had gone back.
    LateTorn,
    /// Written by somebody else.
    Late,
}

fn foreign(
    (stamps, placed): (&Stamps, &Placements),
    page: &Page,
    layer: u32,
    index: usize,
    word: u64,
) -> Foreign {
    let stamp = stamp::stamp_of(word);
    if Words::new(stamp, layer).at(index) != word {
        return Foreign::Late;
    }
    let placed = placed.lock().unwrap_or_else(PoisonError::into_inner);
    let own = page.source.and_then(|own| placed.get(&own));
    match stamps.origin(stamp) {
        Origin::Spoiled { page: spoiled } if own.is_some_and(|own| own.page == spoiled) => {
            Foreign::OwnTorn
        }
        Origin::Spoiled { .. } => Foreign::LateTorn,
        Origin::Source { claim, .. } => {
            let theirs = page.past.iter().any(|past| past.claim == claim);
            let later = placed.get(&stamp);
            let read = |past: &&Past| {
                let from = placed.get(&past.stamp).zip(later);
                from.is_some_and(|(from, later)| {
                    from.page == later.page && from.order < later.order
                })
            };
            match page.past.iter().rev().find(read) {
                Some(past) if !theirs && Some(past.claim) == page.owner => Foreign::OwnTorn,
                Some(_) if !theirs => Foreign::LateTorn,
                _ => Foreign::Late,
            }
        }
        _ => Foreign::Late,
    }
}

#[cfg(test)]
#[path = "oracle_tests.rs"]
mod tests;
