//! The status page: one word a room in shared memory, so that a scheduler that polls needs no HTTP.
//!
//! ```text
//!   words   0 magic  1 version, words of a slot << 32  2 slots  3, 4 incarnation of the node
//!           5 changes so far  6 slots in use  7 the writer: 1 serves, 2 stopped in order
//!   slot n  8 + 4n  state: see `word`      9 + 4n  room id
//!          10 + 4n  attempt, role << 32   11 + 4n  0
//! ```
//!
//! Rules:
//! - One task writes. Who reads maps the file for reading, and needs no lock: a slot's first word has a
//!   number that rises with each change of the slot, so it is the same before and after the others were
//!   read only if they belong together.
//! - A reader trusts what it reads as long as the incarnation is the one that it knows, and word 7 is 1.
//! - There are as many slots as were asked for. A room that finds none works without.

mod word;

pub(crate) use word::Status;

use kvroom::{Incarnation, Role, RoomKey, SharedError, SharedWords};
use std::path::Path;
use std::sync::atomic::{Ordering, fence};

const MAGIC: u64 = u64::from_le_bytes(*b"kvroomSP");
const VERSION: u64 = 1;
const HEADER: usize = 8;
const SLOT: usize = 4;
/// The most slots that there may be: 128 MiB.
const MAX_SLOTS: u32 = 1 << 22;

const CHANGES: usize = 5;
const USED: usize = 6;
const WRITER: usize = 7;
const SERVES: u64 = 1;
const STOPPED: u64 = 2;

/// A slot of the page, of one room from `assign` to `release`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct StatusSlot(u32);

impl StatusSlot {
    /// Its index, which the room's JSON says as `status_slot`.
    pub(crate) fn index(&self) -> u32 {
        self.0
    }
}

/// The page. Whoever has it is its only writer.
#[derive(Debug)]
pub(crate) struct StatusPage {
    words: SharedWords,
    /// Slots that nobody has; the last one is taken next.
    free: Vec<u32>,
    slots: u32,
}

impl StatusPage {
    /// A page of `slots` slots in the file at `path`, which others may read; 4,194,304 slots at most.
    ///
    /// # Errors
    /// See [`SharedWords::create`]; among them, that another daemon writes it, or that the file at `path` is
    /// no status page.
    pub(crate) fn create(
        path: &Path,
        slots: u32,
        incarnation: Incarnation,
    ) -> Result<StatusPage, SharedError> {
        let slots = slots.clamp(1, MAX_SLOTS);
        let words = SharedWords::create(path, HEADER + SLOT * slots as usize, MAGIC)?;
        words.store(1, VERSION | (SLOT as u64) << 32);
        words.store(2, u64::from(slots));
        words.store(3, incarnation.started_ns);
        words.store(4, incarnation.nonce);
        words.store(WRITER, SERVES);
        // Last: a page without it is not ready.
        words.store(0, MAGIC);
        Ok(StatusPage {
            words,
            free: (0..slots).rev().collect(),
            slots,
        })
    }

    /// A slot for a room that has just been registered; none if all are taken.
    pub(crate) fn assign(&mut self, key: RoomKey, role: Role) -> Option<StatusSlot> {
        let index = self.free.pop()?;
        let at = place(index);
        // Free, with another number: who reads in between sees that it changes.
        self.change(at, 0);
        fence(Ordering::Release);
        let role = match role {
            Role::Sender => 1,
            Role::Receiver => 2,
        };
        self.words.store(at + 1, key.id.0);
        self.words
            .store(at + 2, u64::from(key.attempt) | role << 32);
        self.change(at, Status::registered().bits());
        self.count();
        Some(StatusSlot(index))
    }

    /// Says how far the room is.
    pub(crate) fn set(&mut self, slot: &StatusSlot, status: &Status) {
        let (at, bits) = (place(slot.0), status.bits());
        if self.words.load(at) as u32 != bits {
            self.change(at, bits);
            self.count();
        }
    }

    /// Nobody asks about the room any more: its slot may be another one's.
    pub(crate) fn release(&mut self, slot: StatusSlot) {
        if slot.0 < self.slots {
            self.change(place(slot.0), 0);
            self.free.push(slot.0);
            self.count();
        }
    }

    /// Slots in use.
    fn used(&self) -> u64 {
        u64::from(self.slots) - self.free.len() as u64
    }

    fn change(&self, at: usize, bits: u32) {
        let number = (self.words.load(at) >> 32) as u32;
        let next = u64::from(number.wrapping_add(1)) << 32;
        self.words.store(at, next | u64::from(bits));
    }

    fn count(&self) {
        self.words.store(USED, self.used());
        // After the change itself: who has seen the count has it to see.
        self.words
            .store(CHANGES, self.words.load(CHANGES).wrapping_add(1));
    }
}

impl Drop for StatusPage {
    fn drop(&mut self) {
        self.words.store(WRITER, STOPPED);
    }
}

fn place(slot: u32) -> usize {
    HEADER + SLOT * slot as usize
}

#[cfg(test)]
mod tests {
    use super::word::code_number;
    use super::*;
    use kvroom::{Code, Outcome, Reason, StateName};
    use std::path::PathBuf;

    fn path(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("kvroom-status-{}-{name}", std::process::id()))
    }

    fn read(path: &Path) -> Vec<u64> {
        let bytes = std::fs::read(path).unwrap();
        let words = bytes.chunks_exact(8);
        words
            .map(|w| u64::from_ne_bytes(w.try_into().unwrap()))
            .collect()
    }

    const LIFE: Incarnation = Incarnation {
        started_ns: 77,
        nonce: 88,
    };

    #[test]
    fn a_room_has_a_slot_with_its_key_and_a_word_that_says_how_far_it_is() {
        let path = path("room");
        let mut page = StatusPage::create(&path, 4, LIFE).unwrap();
        let slot = page.assign(RoomKey::new(42, 7), Role::Receiver).unwrap();
        assert_eq!(slot.index(), 0);
        let words = read(&path);
        assert_eq!(words[..5], [MAGIC, 1 | 4 << 32, 4, 77, 88]);
        assert_eq!(words[5..8], [1, 1, SERVES]);
        assert_eq!(words[8..12], [1 | 2 << 32, 42, 7 | 2 << 32, 0]);
        assert_eq!(words.len(), HEADER + 4 * SLOT);

        let failed = Outcome::Aborted(Reason::new(Code::Stalled, "x"));
        let status = Status::of(StateName::Draining, Some(&failed));
        page.set(&slot, &status);
        let word = read(&path)[8];
        let number = u64::from(code_number(Code::Stalled));
        assert_eq!(word, 3 | number << 8 | 3 << 32);
        page.set(&slot, &status);
        assert_eq!(read(&path)[8], word, "nothing changed");
        page.set(
            &slot,
            &Status::of(StateName::Done, Some(&Outcome::Done)).released(true),
        );
        assert_eq!(read(&path)[8], 4 | 1 << 8 | 1 << 16 | 4 << 32);
        assert_eq!(read(&path)[CHANGES], 3);

        page.release(slot);
        assert_eq!(read(&path)[8], 5 << 32, "free");
        drop(page);
        assert_eq!(read(&path)[WRITER], STOPPED);
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_full_page_gives_no_slot_and_one_that_is_given_back_is_given_again() {
        let path = path("full");
        let mut page = StatusPage::create(&path, 2, LIFE).unwrap();
        let key = |id| RoomKey::new(id, 0);
        let first = page.assign(key(1), Role::Sender).unwrap();
        let second = page.assign(key(2), Role::Sender).unwrap();
        assert_eq!(page.assign(key(3), Role::Sender), None);
        assert_eq!(read(&path)[USED], 2);
        let index = first.index();
        let before = read(&path)[place(index)];
        page.release(first);
        let third = page.assign(key(3), Role::Sender).unwrap();
        assert_eq!(third.index(), index);
        let after = read(&path)[place(index)];
        assert_eq!(after as u32, before as u32, "both are registered");
        assert_ne!(
            after, before,
            "who knew the first one sees that it is another"
        );
        assert_ne!(second.index(), index);
        std::fs::remove_file(&path).unwrap();
    }
}
