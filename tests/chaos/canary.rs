//! The oracle over every page of a node's pool: what each may hold, and what was found instead.
//!
//! ```text
//!   free: a canary of its own ──take──▶ destination: poison ──bytes of its room──▶ back ──▶ free
//!                             ──take──▶ source: stamp of its room ───────────────▶ back ──▶ free
//! ```
//!
//! Rules:
//! - a page that came back holds its new canary, and nothing else, until it is taken again;
//! - a destination page holds its own poison or its own room's bytes; over sockets also the zeros of a frame
//!   that its sender declared void, and a bit that was changed, where that is done; of a room that is Done,
//!   its room's bytes and nothing else;
//! - a source page holds its room's bytes as long as it is out;
//! - no two stamps of a run are equal, whatever node, life, room, attempt or page they are of; so that
//!   whatever is out of its place is recognised, byte by byte;
//! - a page is looked at when it changes hands, under the lease, and by [`Canary::scan`] at any time.
//!
//! Pages of both kinds never mix, so that a node with all its destinations out can still send.

use crate::common::process::stamp_of;
use crate::common::{LAYERS, word};
use kvroom::{Fabric, Peer, Pool, ReadLease, WriteLease};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Which room's, and which of its pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Of {
    pub(crate) id: u64,
    pub(crate) attempt: u32,
    pub(crate) place: u64,
}

/// What a page is, and all layers of what it may hold.
struct Page {
    is: Is,
    own: Vec<u8>,
    /// What a destination page held before its room.
    poison: Vec<u8>,
    wire: Wire,
}

/// Where the bytes of a destination page come from.
#[derive(Clone, Default)]
pub(crate) struct Wire {
    peer: Option<Peer>,
    /// They came over sockets when the room began.
    sockets: bool,
}

impl Wire {
    pub(crate) fn from(peer: &Peer) -> Wire {
        Wire {
            sockets: peer.fabric() != Some(Fabric::Shm),
            peer: Some(peer.clone()),
        }
    }

    /// They come over sockets, or may: of a session that began later.
    fn is_sockets(&self) -> bool {
        let now = |peer: &Peer| peer.fabric() != Some(Fabric::Shm);
        self.sockets || self.peer.as_ref().is_some_and(now)
    }
}

/// What else than poison and its room's bytes a page may hold.
#[derive(Clone, Copy, Default)]
struct May {
    zeros: bool,
    bit: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Is {
    Free,
    Destination(Of),
    Source(Of),
}

/// What a page is taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    Destination,
    Source,
}

/// See the module.
pub(crate) struct Canary {
    pool: Pool,
    pages: Vec<Mutex<Page>>,
    free: [Mutex<Vec<u32>>; 2],
    /// Of this life of this node.
    base: u64,
    /// Bits are changed on their way.
    flips: bool,
    stamps: AtomicU64,
    looked_at: AtomicU64,
    found: Mutex<Vec<String>>,
}

const CANARY: u64 = 1 << 62;
const POISON: u64 = 1 << 63;

impl Canary {
    /// Takes the whole pool over. `base` differs between all lives of all nodes of a run, and is less
    /// than 2^20.
    pub(crate) fn new(pool: Pool, base: u64, flips: bool) -> Canary {
        let all: Vec<u32> = (0..pool.layout().pages).collect();
        let (destinations, sources) = all.split_at(all.len() / 2);
        let canary = Canary {
            pages: all.iter().map(|_| Mutex::new(Page::new())).collect(),
            free: [
                Mutex::new(destinations.to_vec()),
                Mutex::new(sources.to_vec()),
            ],
            base: base << 40,
            flips,
            stamps: AtomicU64::new(1),
            looked_at: AtomicU64::new(0),
            found: Mutex::default(),
            pool: pool.clone(),
        };
        match pool.lease_write(&all) {
            Ok(mut lease) => canary.set_free(&mut lease),
            Err(why) => canary.note(format!("a new pool is not free: {why}")),
        }
        canary
    }

    /// So many pages for pages `first..` of a room, filled; nothing if not as many are free.
    pub(crate) fn take(&self, kind: Use, n: usize, first: Of, wire: &Wire) -> Option<WriteLease> {
        let Of { id, attempt, .. } = first;
        let pages: Vec<u32> = {
            let mut free = lock(&self.free[kind as usize]);
            let left = free.len().checked_sub(n)?;
            free.drain(left..).collect()
        };
        let mut lease = match self.pool.lease_write(&pages) {
            Ok(lease) => lease,
            Err(why) => {
                self.note(format!("pages {pages:?} came back and are leased: {why}"));
                return None;
            }
        };
        for (index, page) in pages.iter().enumerate() {
            let of = Of {
                place: first.place + index as u64,
                ..first
            };
            let mut record = lock(&self.pages[*page as usize]);
            self.look(*page, &record, false);
            let own = self.bytes(stamp_of(id, attempt), of.place);
            match kind {
                Use::Destination => {
                    let poison = self.bytes(self.stamp() | POISON, of.place);
                    fill(&mut lease, index, &poison);
                    (record.is, record.poison) = (Is::Destination(of), poison);
                }
                Use::Source => {
                    fill(&mut lease, index, &own);
                    (record.is, record.poison) = (Is::Source(of), Vec::new());
                }
            }
            record.own = own;
            record.wire = wire.clone();
        }
        Some(lease)
    }

    /// Pages that came back: looked at, and given their canaries.
    pub(crate) fn back(&self, mut lease: WriteLease, done: bool) {
        for page in lease.pages() {
            let record = lock(&self.pages[*page as usize]);
            if record.is == Is::Free {
                self.note(format!("page {page} came back twice"));
            }
            self.look(*page, &record, done);
        }
        self.set_free(&mut lease);
        let pages = lease.pages().to_vec();
        drop(lease);
        for page in pages {
            let kind = usize::from(page >= self.pool.layout().pages / 2);
            // At the front: the longest time free before it is taken again.
            lock(&self.free[kind]).insert(0, page);
        }
    }

    /// As [`Canary::back`], of a source.
    pub(crate) fn source_back(&self, lease: ReadLease) {
        match lease.into_write() {
            Ok(lease) => self.back(lease, false),
            Err(lease) => self.note(format!(
                "pages {:?} came back and somebody reads them",
                lease.pages()
            )),
        }
    }

    /// Looks at every page once.
    pub(crate) fn scan(&self) {
        for (page, record) in (0..).zip(&self.pages) {
            let record = lock(record);
            self.look(page, &record, false);
        }
    }

    /// How many pages have not come back.
    pub(crate) fn out(&self) -> usize {
        let is_out = |page: &&Mutex<Page>| lock(page).is != Is::Free;
        self.pages.iter().filter(is_out).count()
    }

    /// Pages looked at so far.
    pub(crate) fn looked_at(&self) -> u64 {
        self.looked_at.load(Ordering::Relaxed)
    }

    /// What was found since it was last asked.
    pub(crate) fn found(&self) -> Vec<String> {
        std::mem::take(&mut lock(&self.found))
    }

    /// Something else that is wrong.
    pub(crate) fn note(&self, what: String) {
        let mut found = lock(&self.found);
        if found.len() < 20 {
            found.push(what);
        }
    }

    fn stamp(&self) -> u64 {
        self.base + self.stamps.fetch_add(1, Ordering::Relaxed)
    }

    fn set_free(&self, lease: &mut WriteLease) {
        for index in 0..lease.pages().len() {
            let page = lease.pages()[index];
            let mut record = lock(&self.pages[page as usize]);
            let own = self.bytes(self.stamp() | CANARY, u64::from(page));
            fill(lease, index, &own);
            *record = Page { own, ..Page::new() };
        }
    }

    /// All layers of a page with this stamp.
    fn bytes(&self, stamp: u64, place: u64) -> Vec<u8> {
        let cell = self.pool.layout().page_bytes as usize;
        let mut bytes = Vec::with_capacity(cell * LAYERS as usize);
        for layer in 0..LAYERS {
            for i in 0..cell / 8 {
                bytes.extend_from_slice(&word(stamp, layer, place, i).to_le_bytes());
            }
        }
        bytes
    }

    fn look(&self, page: u32, record: &Page, done: bool) {
        self.looked_at.fetch_add(1, Ordering::Relaxed);
        let cell = self.pool.layout().page_bytes as usize;
        let mut bytes = vec![0; cell];
        for layer in 0..LAYERS {
            if let Err(why) = self.pool.observe(layer, page, &mut bytes) {
                self.note(format!("page {page} cannot be seen: {why}"));
                return;
            }
            let of_layer = layer as usize * cell..(layer as usize + 1) * cell;
            let own = &record.own[of_layer.clone()];
            if own == bytes {
                continue;
            }
            let poison = match record.is {
                Is::Destination(_) if !done => Some(&record.poison[of_layer]),
                _ => None,
            };
            let sockets = record.wire.is_sockets();
            let may = May {
                zeros: sockets,
                bit: sockets && self.flips,
            };
            if let Some((at, n)) = strange(&bytes, own, poison, may) {
                let done = if done { ", done" } else { "" };
                let (first, is) = (bytes[at], record.is);
                self.note(format!(
                    "{n} bytes of page {page}, layer {layer} are not what it may hold, from byte \
                     {at} ({first:#04x}) on; it is {is:?}{done}"
                ));
            }
        }
    }
}

impl Page {
    fn new() -> Page {
        Page {
            is: Is::Free,
            own: Vec::new(),
            poison: Vec::new(),
            wire: Wire::default(),
        }
    }
}

/// All layers of one page of a lease.
fn fill(lease: &mut WriteLease, index: usize, bytes: &[u8]) {
    for (layer, bytes) in (0..).zip(bytes.chunks(bytes.len() / LAYERS as usize)) {
        lease.page_mut(layer, index).copy_from_slice(bytes);
    }
}

/// The first byte that is of neither, and how many such there are. A stream may be cut anywhere,
/// what its sender declared void comes as zeros, and a bit that was changed on its way is found out when
/// the rest of the frame has come: such pages are its room's, and it is not done.
fn strange(bytes: &[u8], own: &[u8], poison: Option<&[u8]>, may: May) -> Option<(usize, usize)> {
    const BLOCK: usize = 64;
    let mut first = None;
    let (mut n, mut bits) = (0, 0);
    for (block, part) in bytes.chunks(BLOCK).enumerate() {
        let here = block * BLOCK..block * BLOCK + part.len();
        let before = poison.map(|poison| &poison[here.clone()]);
        if part == &own[here.clone()] || Some(part) == before {
            continue;
        }
        for (at, byte) in here.zip(part) {
            let void = may.zeros && *byte == 0;
            if *byte != own[at] && !poison.is_some_and(|p| *byte == p[at] || void) {
                first.get_or_insert(at);
                n += 1;
                bits += (*byte ^ own[at]).count_ones();
            }
        }
    }
    if may.bit && poison.is_some() && bits == 1 {
        return None;
    }
    first.map(|first| (first, n))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
