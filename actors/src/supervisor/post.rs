//! Small jobs, copied on the shard's own thread in the turn that posts them.
//!
//! ```text
//!   Output::Post ──▶ build ──▶ small enough, and some left for this turn? ──no──▶ a lane ··▶ inbox ··▶ JobOver
//!                                     │ yes
//!                                     ▼
//!                              copy ─▶ Ticket dropped ─▶ Kept ─▶ JobOver, next in the same turn
//! ```
//!
//! A hop to a lane and back costs more than copying a few pages. Nothing else differs: the job passes
//! the same gate, carries the same ticket and witness, and is given back untouched if it was cancelled.
//!
//! Rules: a shard copies at most [`EACH_TURN`] bytes between two looks at what came from outside, so
//! that an abort never waits behind more than that. What is over goes to a lane.

use crate::copy::job::Job;
use crate::memory::{JobBack, TicketSink};
use crate::runtime::stats::Stats;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

/// The largest job that a shard copies itself, in bytes.
const SMALL: u64 = 64 << 10;

/// The most that it reads for that between two batches from outside, in bytes.
const EACH_TURN: u64 = 256 << 10;

/// What a shard may copy itself, and where the tickets of that come back to.
pub(crate) struct Small {
    left: u64,
    back: Arc<Kept>,
    #[cfg(feature = "plant")]
    watched: crate::copy::plant::Watched,
}

/// Tickets that came back on the shard's own thread. The lock is never waited for: nobody else has it.
#[derive(Default)]
struct Kept(Mutex<Option<JobBack>>);

impl TicketSink for Kept {
    fn returned(&self, back: JobBack) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(back);
    }
}

impl Default for Small {
    fn default() -> Self {
        Small {
            left: EACH_TURN,
            back: Arc::default(),
            #[cfg(feature = "plant")]
            watched: crate::copy::plant::Watched::default(),
        }
    }
}

impl Small {
    /// Jobs go to lanes while a test holds them up or makes them do wrong.
    #[cfg(feature = "plant")]
    pub(crate) fn watched(mut self, watched: crate::copy::plant::Watched) -> Self {
        self.watched = watched;
        self
    }

    /// What had come from outside is being handled now.
    pub(super) fn refill(&mut self) {
        self.left = EACH_TURN;
    }

    /// Whether to copy a job of `bytes` bytes here, which are read twice if it is summed. If so it is
    /// to be copied at once, with [`Small::sink`] in its ticket.
    pub(super) fn takes(&mut self, bytes: u64, summed: bool) -> bool {
        #[cfg(feature = "plant")]
        if self.watched.lanes_only() {
            return false;
        }
        let read = bytes.saturating_mul(1 + u64::from(summed));
        let takes = bytes <= SMALL && read <= self.left;
        if takes {
            self.left -= read;
        }
        takes
    }

    /// Where the ticket of such a job comes back to.
    pub(super) fn sink(&self) -> Arc<dyn TicketSink> {
        Arc::clone(&self.back) as Arc<dyn TicketSink>
    }

    /// Copies the job, or gives it back untouched if it was cancelled. None only if its ticket does
    /// not come back here.
    pub(super) fn copy(&self, mut job: Job, stats: &Stats) -> Option<JobBack> {
        while !job.ticket().is_cancelled() {
            // A panic costs the job, not the shard.
            let step =
                catch_unwind(AssertUnwindSafe(|| job.step(SMALL))).unwrap_or_else(|_| job.broke());
            stats.copied_bytes.fetch_add(step.bytes, Ordering::Relaxed);
            if step.over {
                break;
            }
        }
        job.end();
        (self.back.0.lock().unwrap_or_else(PoisonError::into_inner)).take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_copies_no_more_than_its_share_itself() {
        let mut small = Small::default();
        let taken = (0..100).filter(|_| small.takes(SMALL, false)).count() as u64;
        assert_eq!(taken, EACH_TURN / SMALL);
        assert!(!small.takes(1, false));
        small.refill();
        assert!(small.takes(1, false));
    }

    #[test]
    fn a_job_that_is_summed_counts_twice() {
        let mut small = Small::default();
        let taken = (0..100).filter(|_| small.takes(SMALL, true)).count() as u64;
        assert_eq!(taken, EACH_TURN / SMALL / 2);
    }

    #[test]
    fn a_job_that_is_too_large_leaves_the_share_as_it_was() {
        let mut small = Small::default();
        assert!(!small.takes(SMALL + 1, false));
        assert_eq!(small.left, EACH_TURN);
    }
}
