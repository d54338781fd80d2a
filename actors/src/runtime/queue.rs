//! What waits on lanes and for UCX, counted by whoever brings it, and by the job itself when it goes.

use super::histogram::Histogram;
use crate::ids::Tick;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// One queue of copy jobs: a lane's, that of small pieces for sockets on a shard's thread, or UCX's.
#[derive(Debug, Default)]
pub struct Queue {
    /// Jobs there now, those that are being copied among them.
    jobs: AtomicU64,
    /// Jobs that ever came.
    came: AtomicU64,
    /// Bytes that were copied, or read for checksums.
    pub(crate) bytes: AtomicU64,
    waited: Histogram,
}

/// A job's place in a queue: given up when it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    queue: Arc<Queue>,
    /// None when it has begun.
    came: Option<Instant>,
}

impl Place {
    pub(crate) fn take(queue: &Arc<Queue>) -> Place {
        queue.jobs.fetch_add(1, Ordering::Relaxed);
        queue.came.fetch_add(1, Ordering::Relaxed);
        Place {
            queue: Arc::clone(queue),
            came: Some(Instant::now()),
        }
    }

    /// Its first piece is taken. Counts once.
    pub(crate) fn begins(&mut self) {
        if let Some(came) = self.came.take() {
            self.queue.waited.record(came.elapsed());
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.queue.jobs.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Queue {
    /// Jobs there now.
    pub fn jobs(&self) -> u64 {
        self.jobs.load(Ordering::Relaxed)
    }

    /// Jobs that ever came.
    pub fn came(&self) -> u64 {
        self.came.load(Ordering::Relaxed)
    }

    /// Bytes that were copied, or read for checksums.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// How long jobs waited for their first piece.
    pub fn waited(&self) -> super::histogram::Durations {
        self.waited.read()
    }
}

/// Since when a shard has held its oldest quarantined room.
#[derive(Debug, Default)]
pub struct Oldest(AtomicU64);

impl Oldest {
    pub(crate) fn set(&self, since: Option<Tick>) {
        let word = since.map_or(0, |at| at.0.max(1));
        self.0.store(word, Ordering::Relaxed);
    }

    /// None if there is none.
    pub fn since(&self) -> Option<Tick> {
        match self.0.load(Ordering::Relaxed) {
            0 => None,
            at => Some(Tick(at)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_in_its_queue_until_it_is_dropped_and_waits_once() {
        let queue: Arc<Queue> = Arc::default();
        let mut first = Place::take(&queue);
        let second = Place::take(&queue);
        first.begins();
        first.begins();
        assert_eq!((queue.jobs(), queue.waited().count()), (2, 1));
        drop((first, second));
        assert_eq!(
            (queue.jobs(), queue.came(), queue.waited().count()),
            (0, 2, 1)
        );
    }
}
