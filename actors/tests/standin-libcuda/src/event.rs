//! An event, of this process or of another one.

use crate::memory::Mapping;
use crate::state::lock;
use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that processes share of one: how often it was recorded, and up to which of that all are done.
pub(crate) const SHARED: u64 = 16;

/// An event. Each record of it is by itself: who waits for one is not let go by a later one that is
/// done sooner, in another stream.
#[derive(Default)]
pub(crate) struct Event {
    recorded: AtomicU64,
    done: Mutex<Done>,
    /// Of one that is between processes.
    shared: Option<Mapping>,
}

/// Which records are done: all up to one, and some above it.
#[derive(Default)]
struct Done {
    upto: u64,
    above: BTreeSet<u64>,
}

impl Event {
    pub(crate) fn shared(mapping: Mapping) -> Event {
        Event {
            shared: Some(mapping),
            ..Event::default()
        }
    }

    pub(crate) fn mapping(&self) -> Option<&Mapping> {
        self.shared.as_ref()
    }

    /// Whether another process records it.
    pub(crate) fn is_anothers(&self) -> bool {
        self.shared.as_ref().is_some_and(|shared| shared.opened)
    }

    fn word(&self, nth: u64) -> Option<&AtomicU64> {
        let shared = self.shared.as_ref()?;
        // SAFETY: mapped with so many bytes, at the start of a page, as long as the event is; all
        // processes use the words as atomics.
        Some(unsafe { &*((shared.at + 8 * nth) as *const AtomicU64) })
    }

    /// How often it was recorded.
    pub(crate) fn recorded(&self) -> u64 {
        let count = self.word(0).unwrap_or(&self.recorded);
        count.load(Ordering::SeqCst)
    }

    /// One record more: which.
    pub(crate) fn record(&self) -> u64 {
        let count = self.word(0).unwrap_or(&self.recorded);
        count.fetch_add(1, Ordering::SeqCst) + 1
    }

    pub(crate) fn is_done(&self, recorded: u64) -> bool {
        if let Some(upto) = self.word(1)
            && self.is_anothers()
        {
            return recorded <= upto.load(Ordering::SeqCst);
        }
        let done = lock(&self.done);
        recorded <= done.upto || done.above.contains(&recorded)
    }

    pub(crate) fn fires(&self, recorded: u64) {
        let done = &mut *lock(&self.done);
        done.above.insert(recorded);
        while done.above.remove(&(done.upto + 1)) {
            done.upto += 1;
        }
        if let Some(upto) = self.word(1) {
            upto.store(done.upto, Ordering::SeqCst);
        }
    }
}
