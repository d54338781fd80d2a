//! A copy job of this fabric: which cells go to which claim, what was sent, what was acknowledged.
//!
//! ```text
//!   bytes of the rectangle:   ████████▓▓▓▓▓▓▓▓▒▒▒▒········
//!                             acked    sent     │   not yet
//!                                               └ sent on a connection that was lost: again
//! ```
//!
//! Rules: the ticket (the right to read the source) goes when every byte is acknowledged, when the
//! receiver refused one, or when the room was cancelled; frames that are half written then go on with
//! zeroes. A job is in its route's scheduler as long as something of it is to be sent.
//!
//! A job that carries slices is counted in the bytes of these; see `sliced`.

use super::frame::{Data, Piece};
use super::sliced::SlicedJob;
use super::staged::StagedSource;
use super::window::Window;
use crate::copy::job::{Place, SourceSum};
use crate::copy::schedule::{Class, Work};
use crate::ids::{ClaimNo, LifeId};
use crate::limits::UNIT;
use crate::memory::{MAX_RANGES, PoolRange, Ticket};
use crate::runtime::meter::Meter;
use crate::runtime::queue;
use kvroom_kernels::layout::PoolLayout;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

/// A job on its way to a route.
pub(crate) struct NewJob {
    pub(crate) ticket: Ticket,
    pub(crate) class: Class,
    /// Of the source's pool.
    pub(crate) layout: Arc<PoolLayout>,
    pub(crate) place: Place,
    pub(crate) claim: ClaimNo,
    pub(crate) gate: u32,
    /// Whether the source is summed at the end.
    pub(crate) checksum: bool,
    /// The peer's; a route has its own.
    pub(crate) meter: Option<Arc<Meter>>,
    /// Its place in a route's queue.
    pub(crate) queued: Option<queue::Place>,
    /// The lane that it is for, if its room is kept to one.
    pub(crate) lane: Option<u16>,
}

impl NewJob {
    /// Bytes to be sent.
    pub(crate) fn bytes(&self) -> u64 {
        self.place.bytes(&self.layout)
    }
}

/// Landed bytes between two reports of progress.
const TELL_EVERY: u64 = 8 << 20;

/// How many stretches of one job are sent again because their payload arrived corrupted.
const CORRUPT_RETRIES: u32 = 3;

/// A job of one route. Its frames share it.
pub(in crate::fabric) struct Job {
    pub(in crate::fabric) life: LifeId,
    pub(in crate::fabric) class: Class,
    layout: Arc<PoolLayout>,
    place: Place,
    claim: ClaimNo,
    gate: u32,
    bytes: u64,
    sliced: Option<SlicedJob>,
    /// Its bytes come from staging.
    staged: bool,
    state: RefCell<State>,
}

struct State {
    ticket: Option<Ticket>,
    sent: u64,
    again: VecDeque<Stretch>,
    acked: u64,
    told: u64,
    corrupt: u32,
    queued: bool,
    sum: Option<SourceSum>,
    /// Let go of when the job is over.
    staged: Option<Box<dyn StagedSource>>,
    /// Given up when the job is over, whatever frames still share it.
    place: Option<queue::Place>,
}

/// Bytes of the job's rectangle of cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::fabric) struct Stretch {
    pub(in crate::fabric) position: u64,
    pub(in crate::fabric) length: u32,
}

/// What is left to do after an acknowledgement.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::fabric) enum Next {
    /// More is under way or to be sent.
    Wait,
    /// Put it into the scheduler: something is to be sent again.
    Queue,
    /// All has landed; its source is to be summed.
    Sum,
    /// It is over.
    Over,
}

impl Job {
    /// One that cannot be sent has no bytes, and an error.
    pub(in crate::fabric) fn new(
        mut new: NewJob,
        staged: Option<Box<dyn StagedSource>>,
    ) -> Rc<Job> {
        let slice = new.place.slice.as_ref();
        let sliced = slice.map(|slice| SlicedJob::new(&new.place, slice, staged.is_some()));
        let (sliced, bytes) = match sliced {
            None => (None, new.bytes()),
            Some(Ok(sliced)) => {
                let bytes = sliced.bytes();
                (Some(sliced), bytes)
            }
            Some(Err(what)) => {
                new.ticket.errored(what);
                (None, 0)
            }
        };
        Rc::new(Job {
            life: new.ticket.id().life,
            class: new.class,
            layout: new.layout,
            place: new.place,
            claim: new.claim,
            gate: new.gate,
            bytes,
            sliced,
            staged: staged.is_some(),
            state: RefCell::new(State {
                ticket: Some(new.ticket),
                sent: 0,
                again: VecDeque::new(),
                acked: 0,
                told: 0,
                corrupt: 0,
                queued: false,
                sum: new.checksum.then(SourceSum::new),
                staged,
                place: new.queued,
            }),
        })
    }

    /// Bytes in all.
    pub(in crate::fabric) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether its ticket is still here.
    pub(in crate::fabric) fn is_live(&self) -> bool {
        self.state.borrow().ticket.is_some()
    }

    /// Whether its room wants no more of it.
    pub(in crate::fabric) fn is_cancelled(&self) -> bool {
        let state = self.state.borrow();
        state.ticket.as_ref().is_none_or(Ticket::is_cancelled)
    }

    /// It goes into the scheduler. False if it is there, or has nothing to send.
    pub(super) fn enter_queue(&self) -> bool {
        let mut state = self.state.borrow_mut();
        let wants = state.ticket.is_some() && self.unsent(&state) > 0 && !state.queued;
        state.queued |= wants;
        wants
    }

    /// It came out of the scheduler.
    pub(super) fn left_queue(&self) {
        self.state.borrow_mut().queued = false;
    }

    /// The next stretch to send, about `budget` bytes; and whether it was the last for now. A stretch
    /// ends where a cell or a unit of a cell does.
    pub(in crate::fabric) fn take(&self, budget: u64, limit: usize) -> (Option<Stretch>, bool) {
        let mut state = self.state.borrow_mut();
        if let Some(place) = &mut state.place {
            place.begins();
        }
        let stretch = if let Some(again) = state.again.pop_front() {
            Some(again)
        } else {
            let (at, cell) = (state.sent, self.layout.page_bytes);
            let length = match &self.sliced {
                Some(sliced) => sliced.stretch_from(at, budget, limit),
                None => stretch_from(at, self.bytes, cell, budget, limit),
            };
            let stretch = Stretch {
                position: state.sent,
                length,
            };
            state.sent += u64::from(length);
            (length > 0).then_some(stretch)
        };
        let last = self.unsent(&state) == 0;
        (stretch, last)
    }

    /// The header of a stretch.
    pub(in crate::fabric) fn header(&self, seq: u64, stretch: Stretch, crc: bool) -> Data {
        let (layers, places, position) = match &self.sliced {
            Some(sliced) => sliced.cut(stretch),
            None => {
                let places = self.place.to.start as u32..self.place.to.end as u32;
                (self.place.layers.clone(), places, stretch.position)
            }
        };
        Data {
            seq,
            claim: self.claim,
            gate: self.gate,
            section: self.place.section,
            layers,
            places,
            position,
            length: stretch.length,
            crc,
            sliced: self.sliced.is_some(),
        }
    }

    /// Where in the source's pool the payload of a sliced frame is; none for a frame of whole cells
    /// ([`Job::ranges`] has those), and if that cannot be planned, which is an error of the job.
    pub(super) fn window(&self, data: &Data) -> Option<Box<Window>> {
        match self.sliced.as_ref()?.window(data) {
            Ok(window) => Some(Box::new(window)),
            Err(error) => {
                self.errored(format!("a sliced frame: {error}"));
                None
            }
        }
    }

    /// Where in the source's pool the rest of a frame is, from byte `from` of its payload on; at most
    /// as many ranges as one write takes.
    pub(super) fn ranges(&self, data: &Data, from: u32, into: &mut Vec<PoolRange>) {
        into.clear();
        let pieces = data.pieces(self.layout.page_bytes, from);
        into.extend(pieces.take(MAX_RANGES + 1).map(|p| self.range(&p)));
    }

    fn range(&self, piece: &Piece) -> PoolRange {
        // Places count in the claim's list; the source's list has the same stretch elsewhere.
        let index = self.place.from.start + (piece.place as usize - self.place.to.start);
        let page = self.place.pages.get(index).copied();
        let cell = page.and_then(|page| self.layout.cell_offset(piece.layer, page));
        PoolRange {
            // Out of every pool: refused before a byte moves.
            offset: cell.map_or(u64::MAX, |cell| cell + piece.offset),
            bytes: piece.bytes,
        }
    }

    /// Adds a frame's payload to `into`, out of the source's pages; false if it cannot be had, which is an
    /// error of the job.
    pub(in crate::fabric) fn gather(&self, data: &Data, into: &mut Vec<u8>) -> bool {
        let wanted = into.len() + data.length as usize;
        let mut add = |range: &PoolRange| {
            let read = self.with_ticket(|ticket| {
                ticket.with_source(range.offset, range.bytes, |bytes| {
                    into.extend_from_slice(bytes);
                })
            });
            match read {
                Some(Ok(())) => Ok(()),
                Some(Err(error)) => Err(error.to_string()),
                None => Err("the job is over".into()),
            }
        };
        let gathered: Result<(), String> = if self.sliced.is_some() {
            let Some(mut window) = self.window(data) else {
                return false;
            };
            loop {
                let ranges = window.ranges();
                let bytes = ranges.iter().map(|range| range.bytes).sum();
                if bytes == 0 {
                    break Ok(());
                }
                if let Err(why) = ranges.iter().try_for_each(&mut add) {
                    break Err(why);
                }
                window.advance(bytes);
            }
        } else {
            let mut pieces = data.pieces(self.layout.page_bytes, 0);
            pieces.try_for_each(|piece| add(&self.range(&piece)))
        };
        let whole = into.len() == wanted;
        match gathered {
            Ok(()) if whole => return true,
            Ok(()) => self.errored("a frame has another length than its cells".into()),
            Err(why) => self.errored(why),
        }
        false
    }

    /// Does something with the ticket, if it is still here.
    pub(super) fn with_ticket<R>(&self, f: impl FnOnce(&Ticket) -> R) -> Option<R> {
        self.state.borrow().ticket.as_ref().map(f)
    }

    /// Whether its bytes come from staging.
    pub(super) fn is_staged(&self) -> bool {
        self.staged
    }

    /// Does something with the rest of a stretch in staging, from its byte `from` on; nothing if the job is
    /// over, or if they are not there, which is an error of the job.
    pub(super) fn with_staged<R>(
        &self,
        stretch: Stretch,
        from: u32,
        f: impl FnOnce(&[u8]) -> R,
    ) -> Option<R> {
        let state = self.state.borrow();
        let staged = state.staged.as_ref()?;
        let range =
            stretch.position + u64::from(from)..stretch.position + u64::from(stretch.length);
        let wanted = range.end - range.start;
        let (mut f, mut done) = (Some(f), None);
        let read = staged.read(range, &mut |bytes| {
            if bytes.len() as u64 == wanted {
                done = f.take().map(|f| f(bytes));
            }
        });
        if !read || done.is_none() {
            drop(state);
            self.errored("bytes of a job are not in its staging; this is a bug of kvroom".into());
        }
        done
    }

    /// The CRC32C of a frame's payload.
    pub(super) fn crc(&self, data: &Data, stretch: Stretch) -> u32 {
        if self.staged {
            return self.with_staged(stretch, 0, crc32c::crc32c).unwrap_or(0);
        }
        let state = self.state.borrow();
        let Some(ticket) = &state.ticket else {
            return 0;
        };
        let mut crc = 0;
        if let Some(sliced) = &self.sliced {
            // What cannot be planned or read is reported when it is written.
            if let Ok(mut window) = sliced.window(data) {
                let mut left = u64::from(data.length);
                while left > 0 {
                    let summed = ticket.sum_source(window.ranges(), crc);
                    let Ok((sum, bytes @ 1..)) = summed else {
                        break;
                    };
                    crc = sum;
                    window.advance(bytes);
                    left = left.saturating_sub(bytes);
                }
            }
            return crc;
        }
        for piece in data.pieces(self.layout.page_bytes, 0) {
            let range = self.range(&piece);
            let summed = ticket.with_source(range.offset, range.bytes, |bytes| {
                crc = crc32c::crc32c_append(crc, bytes);
            });
            if summed.is_err() {
                // The write of the same range reports it.
                break;
            }
        }
        crc
    }

    /// A frame of it has landed.
    pub(in crate::fabric) fn landed(&self, stretch: Stretch) -> Next {
        let mut state = self.state.borrow_mut();
        let State {
            ticket: Some(ticket),
            acked,
            told,
            ..
        } = &mut *state
        else {
            return Next::Wait;
        };
        let bytes = u64::from(stretch.length);
        *acked += bytes;
        ticket.landed(bytes);
        if *acked >= self.bytes {
            return if state.sum.is_some() && !self.staged {
                Next::Sum
            } else {
                Next::Over
            };
        }
        if *acked - *told >= TELL_EVERY {
            ticket.tell_moved(*acked - *told);
            *told = *acked;
        }
        Next::Wait
    }

    /// The receiver's gate was closed.
    pub(in crate::fabric) fn refused(&self) -> Next {
        match &mut self.state.borrow_mut().ticket {
            Some(ticket) => {
                ticket.refused();
                Next::Over
            }
            None => Next::Wait,
        }
    }

    /// Something went wrong that another connection would not mend.
    pub(in crate::fabric) fn errored(&self, what: String) {
        if let Some(ticket) = &mut self.state.borrow_mut().ticket {
            ticket.errored(what);
        }
    }

    /// The payload of a frame arrived corrupted.
    pub(super) fn corrupted(&self, stretch: Stretch) -> Next {
        let mut state = self.state.borrow_mut();
        state.corrupt += 1;
        if state.corrupt > CORRUPT_RETRIES {
            drop(state);
            self.errored("the connection corrupts payloads again and again (payload_crc)".into());
            return Next::Over;
        }
        state.again.push_back(stretch);
        Next::Queue
    }

    /// The connection was lost before this was acknowledged.
    pub(super) fn lost(&self, stretch: Stretch) {
        self.state.borrow_mut().again.push_back(stretch);
    }

    /// Sums some of the source; true when the job is over.
    pub(in crate::fabric) fn sum(&self, budget: u64) -> bool {
        let mut state = self.state.borrow_mut();
        let State {
            ticket: Some(ticket),
            sum: Some(sum),
            ..
        } = &mut *state
        else {
            return true;
        };
        sum.step(ticket, &self.layout, &self.place, budget).over
    }

    /// Lets go of the source: the ticket says what became of it.
    pub(in crate::fabric) fn end(&self) {
        let mut state = self.state.borrow_mut();
        let whole = state.acked >= self.bytes;
        state.place = None;
        let (sum, staged) = (state.sum.take(), state.staged.take());
        let Some(mut ticket) = state.ticket.take() else {
            return;
        };
        let sum = match (sum, &staged) {
            (None, _) => 0,
            (Some(sum), None) => sum.value(),
            (Some(_), Some(staged)) => staged.checksum().unwrap_or_else(|| {
                ticket.errored("a staged job has no checksum; this is a bug of kvroom");
                0
            }),
        };
        // Before the ticket says that the job reads nothing any more.
        drop(staged);
        drop(state);
        let facts = ticket.facts();
        if whole && facts.errored.is_none() && facts.refused_pieces == 0 {
            ticket.finish_with(sum);
        }
    }

    fn unsent(&self, state: &State) -> u64 {
        let again: u64 = state.again.iter().map(|s| u64::from(s.length)).sum();
        again + (self.bytes - state.sent)
    }
}

/// How long a stretch from `at` of `total` bytes is, in cells of `cell` bytes.
fn stretch_from(at: u64, total: u64, cell: u64, budget: u64, limit: usize) -> u32 {
    let left = total.saturating_sub(at);
    if left == 0 || cell == 0 {
        return 0;
    }
    let most = (limit as u64)
        .min(u64::from(u32::MAX))
        .min(cell.saturating_mul(MAX_RANGES as u64));
    let mut end = at + budget.clamp(1, most).min(left);
    if end < at + left {
        // Back to the last place where a unit or a cell ends; if there is none, the next one.
        end -= (end % cell) % UNIT;
        if end <= at {
            end = at + UNIT.min(cell - at % cell).min(left);
        }
    }
    (end - at) as u32
}

/// As the scheduler holds it.
#[derive(Clone)]
pub(super) struct Queued(pub(super) Rc<Job>);

impl Work for Queued {
    fn remaining(&self) -> u64 {
        let state = self.0.state.borrow();
        self.0.unsent(&state)
    }

    fn is_cancelled(&self) -> bool {
        self.0.is_cancelled()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{CancelFlag, JobBack, JobId, Pool, TicketSink};
    use kvroom_kernels::layout::{Order, PoolKind};
    use proptest::prelude::*;
    use std::sync::Mutex;

    #[derive(Default)]
    struct Back(Mutex<Option<JobBack>>);

    impl TicketSink for Back {
        fn returned(&self, back: JobBack) {
            *self.0.lock().unwrap() = Some(back);
        }
    }

    #[test]
    fn a_payload_that_arrives_corrupted_is_sent_again_three_times_and_then_ends_the_job() {
        let pool = Pool::owned(PoolLayout {
            name: "kv".into(),
            kind: PoolKind::Kv,
            order: Order::LayersFirst,
            layers: 1,
            pages: 1,
            page_bytes: 64,
            page_tokens: 1,
        })
        .unwrap();
        let lease = pool.lease_read(&[0]).unwrap();
        let back = Arc::new(Back::default());
        let sink = Arc::clone(&back) as Arc<dyn TicketSink>;
        let id = JobId {
            life: LifeId(1),
            leg: crate::ids::LegNo(0),
            job: 0,
        };
        let job = Job::new(
            NewJob {
                ticket: Ticket::new(id, lease.source_view(), CancelFlag::new(), sink),
                class: Class::Bulk,
                layout: Arc::clone(pool.layout()),
                place: Place {
                    section: 0,
                    layers: 0..1,
                    pages: lease.arc_pages(),
                    from: 0..1,
                    to: 0..1,
                    slice: None,
                },
                claim: ClaimNo(1),
                gate: 0,
                checksum: false,
                meter: None,
                queued: None,
                lane: None,
            },
            None,
        );
        let stretch = Stretch {
            position: 0,
            length: 64,
        };
        for _ in 0..3 {
            let (sent, _) = job.take(64, 64);
            assert_eq!(sent, Some(stretch));
            assert_eq!(job.corrupted(stretch), Next::Queue);
        }
        assert_eq!(job.take(64, 64).0, Some(stretch), "it is sent once more");
        assert_eq!(job.corrupted(stretch), Next::Over);
        assert_eq!(job.take(64, 64).0, None, "and never again");
        job.end();
        let back = back.0.lock().unwrap().take().unwrap();
        assert!(!back.finished);
        let why = back.facts.errored.unwrap();
        assert!(why.contains("corrupts payloads again and again"), "{why}");
    }

    proptest! {
        #[test]
        fn stretches_cover_a_job_and_end_where_units_do(
            cell in 1u64..300_000, cells in 1u64..40, budget in 0u64..2_000_000, limit in 1usize..2_000_000,
        ) {
            let total = cell * cells;
            let mut at = 0;
            while at < total {
                let n = u64::from(stretch_from(at, total, cell, budget, limit));
                prop_assert!(n > 0 && at + n <= total);
                prop_assert!(n <= (limit as u64).max(UNIT.min(cell)));
                at += n;
                prop_assert!(at % cell == 0 || (at % cell).is_multiple_of(UNIT));
            }
            prop_assert_eq!(stretch_from(total, total, cell, budget, limit), 0);
        }
    }
}
