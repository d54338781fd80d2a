//! What a copy job carries, and the witness that it is over.
//!
//! ```text
//!   ReadLease ──source_view──▶ Ticket ──▶ lane ──▶ dropped, however that happens
//!                                                    │ the view goes first
//!                                                    ▼
//!                                  TicketSink::returned(JobBack { facts, witness: JobOver })
//! ```
//!
//! Rules: the source can be read only through a live ticket. A ticket posts itself from `Drop`,
//! once: finished, refused, cancelled, or lost in a panic. A forgotten ticket never posts, and its
//! lease stays quarantined: that is right, since nobody can say what became of it. A ticket that was
//! split for several lanes is the parts together: the last of them posts, for all.

use super::held::Held;
use super::pool::PoolMemory;
use crate::ids::{LegNo, LifeId};
use std::cell::Cell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Which job of which leg of which room's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobId {
    /// The sender room's life.
    pub life: LifeId,
    /// Its leg.
    pub leg: LegNo,
    /// Counted by the room; means nothing here.
    pub job: u64,
}

/// What became of a job's pieces. Four different facts: a piece landed, was refused by the gate, or
/// went wrong; what is none of these was not tried.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Bytes written at the destination.
    pub landed_bytes: u64,
    /// Pieces written at the destination.
    pub landed_pieces: u64,
    /// Pieces that the gate refused.
    pub refused_pieces: u64,
    /// What went wrong first, if anything did.
    pub errored: Option<String>,
    /// Sum over the job's cells, if the claim asked for one.
    pub checksum: u64,
    /// Of the landed bytes, those that the room was told of while the job ran.
    pub told_bytes: u64,
}

/// Asks a job's lane to stop before its next piece. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct CancelFlag(Arc<AtomicBool>);

impl CancelFlag {
    /// Not cancelled.
    pub fn new() -> Self {
        CancelFlag::default()
    }

    /// Cancels every job that carries this flag.
    pub fn cancel(&self) {
        // Relaxed: a hint. What is proven rests on tickets and gates, never on this.
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether it was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Pages of one pool that a job may read. Keeps them held.
pub struct SourceView {
    held: Arc<Held>,
}

impl SourceView {
    pub(super) fn new(held: Arc<Held>) -> Self {
        SourceView { held }
    }

    pub(super) fn held(&self) -> &Held {
        &self.held
    }

    pub(super) fn again(&self) -> SourceView {
        SourceView {
            held: Arc::clone(&self.held),
        }
    }

    /// The pool's memory.
    pub fn memory(&self) -> &PoolMemory {
        self.held.memory()
    }

    /// The pages, in the lease's order.
    pub fn pages(&self) -> &[u32] {
        self.held.pages()
    }
}

impl fmt::Debug for SourceView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SourceView")
            .field("pool", &self.memory().layout().name)
            .field("pages", &self.pages())
            .finish()
    }
}

/// Where tickets come back to.
pub trait TicketSink: Send + Sync {
    /// A job is over. Called once for each ticket, from its `Drop`, on the lane's thread; must not
    /// block and must not lose it.
    fn returned(&self, back: JobBack);

    /// So many more bytes of a running job have landed. Must not block.
    fn moved(&self, id: JobId, bytes: u64) {
        let _ = (id, bytes);
    }

    /// A device was lost that the job needs. If it was at work, nobody can say when that ends, and the
    /// job never comes back; the room is to end all the same. Must not block.
    fn lost(&self, id: JobId, why: &str) {
        let _ = (id, why);
    }
}

/// A job that came back.
#[derive(Debug)]
pub struct JobBack {
    /// Which.
    pub id: JobId,
    /// What became of its pieces.
    pub facts: Facts,
    /// Whether the lane said that it did all of it. False if it was cancelled, refused or lost.
    pub finished: bool,
    /// The proof that it is over.
    pub witness: JobOver,
}

/// The witness that a job will never read or write again. Made only where a [`Ticket`] ends.
#[derive(Debug, PartialEq, Eq)]
pub struct JobOver {
    id: JobId,
}

impl JobOver {
    /// Which job it was.
    pub fn id(&self) -> JobId {
        self.id
    }
}

/// What a copy job carries: the right to read its source, and the duty to say when it is over.
#[must_use = "dropping a ticket ends its job"]
pub struct Ticket {
    id: JobId,
    /// `None` only within `Drop`.
    source: Option<SourceView>,
    cancel: CancelFlag,
    facts: Facts,
    finished: bool,
    sink: Arc<dyn TicketSink>,
    /// The other parts, if it was split.
    parts: Option<Arc<Mutex<Parts>>>,
    /// Where the last page was found in the source's and in the destination's list.
    pub(super) source_cursor: Cell<usize>,
    pub(super) target_cursor: Cell<usize>,
}

impl Ticket {
    /// A ticket for job `id`; `sink` hears of its end.
    pub fn new(
        id: JobId,
        source: SourceView,
        cancel: CancelFlag,
        sink: Arc<dyn TicketSink>,
    ) -> Self {
        Ticket {
            id,
            source: Some(source),
            cancel,
            facts: Facts::default(),
            finished: false,
            sink,
            parts: None,
            source_cursor: Cell::new(0),
            target_cursor: Cell::new(0),
        }
    }

    /// Which job.
    pub fn id(&self) -> JobId {
        self.id
    }

    /// Whether its lane should stop before the next piece.
    pub fn is_cancelled(&self) -> bool {
        self.cancel.is_cancelled()
    }

    /// What became of its pieces so far.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Counts a piece that landed.
    pub fn landed(&mut self, bytes: u64) {
        self.facts.landed_pieces += 1;
        self.facts.landed_bytes += bytes;
    }

    /// Counts a piece that the gate refused.
    pub fn refused(&mut self) {
        self.facts.refused_pieces += 1;
    }

    /// Notes what went wrong; the first text is kept.
    pub fn errored(&mut self, what: impl Into<String>) {
        self.facts.errored.get_or_insert_with(|| what.into());
    }

    /// Tells the room of so many more landed bytes.
    pub fn tell_moved(&mut self, bytes: u64) {
        self.facts.told_bytes += bytes;
        self.sink.moved(self.id, bytes);
    }

    /// Ends the job as done in full, with the sum over its cells.
    pub fn finish_with(mut self, checksum: u64) {
        self.facts.checksum = checksum;
        self.finish();
    }

    /// Ends the job as done in full.
    pub fn finish(mut self) {
        self.finished = true;
    }

    /// Another ticket of the same job, for one piece of it. The job is over when this one and all
    /// such are, and done in full if each was.
    pub(crate) fn part(&mut self) -> Ticket {
        let parts = self.parts.get_or_insert_with(|| {
            Arc::new(Mutex::new(Parts {
                left: 1,
                facts: Facts::default(),
                all_finished: true,
            }))
        });
        // This one counts as long as it lives, so the last part is not over before.
        Parts::of(parts).left += 1;
        let Some(source) = &self.source else {
            unreachable!("a ticket has its source until it is dropped");
        };
        let (source, cancel) = (source.again(), self.cancel.clone());
        let mut part = Ticket::new(self.id, source, cancel, Arc::clone(&self.sink));
        part.parts = Some(Arc::clone(parts));
        part
    }

    /// Tells the room that a device was lost that it needs. It ends at once, whenever its jobs do.
    pub(crate) fn tell_lost(&self, why: &str) {
        self.sink.lost(self.id, why);
    }

    /// Splits a job that nothing was done of yet into `count` parts (at least 1), each with the same
    /// rights and for a lane of its own. The job is over, and says so once, when the last part is; it
    /// is done in full if every part was.
    ///
    /// # Errors
    /// The ticket as it was, if it is a part already or its job has begun.
    pub(crate) fn split(self, count: usize) -> Result<Vec<Ticket>, Box<Ticket>> {
        if self.parts.is_some() || self.facts != Facts::default() {
            return Err(Box::new(self));
        }
        let mut first = self;
        let parts = Arc::new(Mutex::new(Parts {
            left: 1,
            facts: Facts::default(),
            all_finished: true,
        }));
        first.parts = Some(Arc::clone(&parts));
        let mut tickets = Vec::with_capacity(count);
        for _ in 1..count {
            let Some(source) = &first.source else {
                unreachable!("a ticket has its source until it is dropped");
            };
            let (source, cancel) = (source.again(), first.cancel.clone());
            let mut part = Ticket::new(first.id, source, cancel, Arc::clone(&first.sink));
            Parts::of(&parts).left += 1;
            part.parts = Some(Arc::clone(&parts));
            tickets.push(part);
        }
        tickets.push(first);
        Ok(tickets)
    }

    pub(super) fn source(&self) -> Option<&SourceView> {
        self.source.as_ref()
    }
}

/// Landed bytes of parts that have ended, between two reports of progress.
const TELL_EVERY: u64 = 8 << 20;

/// What the end of a ticket is.
enum End {
    /// Of one part; so many bytes have landed of which nobody was told.
    One(u64),
    /// Of the whole job.
    All(Facts, bool),
}

/// What the parts of a ticket that have ended leave for the last one.
struct Parts {
    /// Parts that have not ended.
    left: usize,
    facts: Facts,
    all_finished: bool,
}

impl Parts {
    fn of(parts: &Mutex<Parts>) -> MutexGuard<'_, Parts> {
        parts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A part has ended. If it is the last one: what became of all.
    fn end(&mut self, facts: Facts, finished: bool) -> End {
        self.facts.add(facts);
        self.all_finished &= finished;
        self.left -= 1;
        if self.left == 0 {
            return End::All(std::mem::take(&mut self.facts), self.all_finished);
        }
        let fresh = self
            .facts
            .landed_bytes
            .saturating_sub(self.facts.told_bytes);
        if fresh < TELL_EVERY {
            return End::One(0);
        }
        self.facts.told_bytes += fresh;
        End::One(fresh)
    }
}

impl Facts {
    /// Adds those of another part of the same job.
    fn add(&mut self, other: Facts) {
        self.landed_bytes += other.landed_bytes;
        self.landed_pieces += other.landed_pieces;
        self.refused_pieces += other.refused_pieces;
        self.errored = self.errored.take().or(other.errored);
        self.checksum = self.checksum.wrapping_add(other.checksum);
        self.told_bytes += other.told_bytes;
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        // Before the witness exists: who has it may turn the lease to other use. The lock of the parts
        // orders what every one of them did before what the last one says.
        drop(self.source.take());
        let facts = std::mem::take(&mut self.facts);
        let ended = match &self.parts {
            Some(parts) => Parts::of(parts).end(facts, self.finished),
            None => End::All(facts, self.finished),
        };
        let (facts, finished) = match ended {
            End::All(facts, finished) => (facts, finished),
            End::One(0) => return,
            End::One(fresh) => {
                let told = catch_unwind(AssertUnwindSafe(|| self.sink.moved(self.id, fresh)));
                if told.is_err() {
                    tracing::error!(id = ?self.id, "a ticket's sink panicked");
                }
                return;
            }
        };
        let back = JobBack {
            id: self.id,
            facts,
            finished,
            witness: JobOver { id: self.id },
        };
        // Perhaps while a lane unwinds: a second panic would abort the process.
        if catch_unwind(AssertUnwindSafe(|| self.sink.returned(back))).is_err() {
            tracing::error!(id = ?self.id, "a ticket's sink panicked; its lease stays quarantined");
        }
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket")
            .field("id", &self.id)
            .field("cancelled", &self.is_cancelled())
            .field("facts", &self.facts)
            .finish_non_exhaustive()
    }
}
