//! The outgoing half of a data connection: acknowledgements and one frame at a time.
//!
//! ```text
//!   acks ─▶ head ─┐
//!   header ─▶ head ┴─ pages of the source ── trailer      one writev, as much as fits
//!                         │ the job is over
//!                         └─ zeroes ── trailer that says void
//! ```
//!
//! Rules: a source is looked up again at each write, through the job's ticket; between two writes
//! nothing of it is kept. The trailer says valid only if every byte of the payload came from pages; that
//! of a handed frame, only if the job was not over when it went out.

use super::frame::{Ack, Data, Fate, HEADER, Header, Note, REFERENCE, TRAILER, Trailer};
use super::job::{Job, Stretch};
use super::window::Window;
use crate::fabric::stream::Stream;
use crate::memory::{PoolRange, SocketError};
use crate::runtime::meter::time_some;
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::AsFd;
use std::rc::Rc;
use std::time::Instant;
use tokio::io::Interest;

/// Stretches of different fates that may wait to be acknowledged. A peer that has more does not read
/// what it is told.
const MAX_ACKS: usize = 1 << 16;

/// Acknowledgements that go in front of one frame.
const ACKS_AT_ONCE: usize = 64;

/// What half written frames go on with.
static ZEROES: [u8; 64 << 10] = [0; 64 << 10];

/// A frame that was written whole and not acknowledged.
pub(super) struct Unacked {
    pub(super) seq: u64,
    pub(super) stretch: Stretch,
    pub(super) job: Rc<Job>,
    /// Its trailer said so.
    pub(super) void: bool,
    /// When it was begun, if it is timed.
    pub(super) since: Option<Instant>,
}

/// A frame on its way.
struct Outgoing {
    data: Data,
    stretch: Stretch,
    job: Rc<Job>,
    /// Where the rest of a sliced payload is.
    window: Option<Box<Window>>,
    /// What goes in place of a payload that is handed.
    reference: Option<[u8; REFERENCE]>,
    /// Bytes of payload that the kernel has taken.
    written: u32,
    /// Once true, it stays so: zeroes went out.
    void: bool,
    crc: u32,
    trailer: [u8; TRAILER],
    /// Bytes of the trailer that the kernel has taken.
    trailed: usize,
    since: Option<Instant>,
}

/// See the module.
#[derive(Default)]
pub(super) struct Sending {
    acks: VecDeque<Ack>,
    /// Notes that wait for the end of a frame.
    notes: VecDeque<Note>,
    /// Say that this side is there.
    alive: bool,
    /// Headers and acknowledgements that wait to be written.
    head: Vec<u8>,
    /// Of these the kernel has taken so many bytes.
    head_at: usize,
    frame: Option<Outgoing>,
    last_seq: u64,
    /// By number.
    unacked: VecDeque<Unacked>,
    ranges: Vec<PoolRange>,
}

/// What a write came to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wrote {
    /// So many bytes; more can follow.
    Some(usize),
    /// Nothing is to be written.
    Nothing,
    /// The kernel takes no more now.
    Full,
}

impl Sending {
    /// Notes what became of frame `seq` of the other side. False if it does not read its answers.
    pub(super) fn acknowledge(&mut self, seq: u64, fate: Fate) -> bool {
        match self.acks.back_mut() {
            Some(last) if last.fate == fate && last.last + 1 == seq => last.last = seq,
            _ => self.acks.push_back(Ack {
                first: seq,
                last: seq,
                fate,
            }),
        }
        self.acks.len() <= MAX_ACKS
    }

    /// Whether a new frame can be begun.
    pub(super) fn is_between_frames(&self) -> bool {
        self.frame.is_none()
    }

    /// Begins a frame. Only between frames.
    pub(super) fn begin(&mut self, job: Rc<Job>, stretch: Stretch, with_crc: bool) {
        self.take_acks();
        self.last_seq += 1;
        let data = job.header(self.last_seq, stretch, with_crc);
        self.head.extend_from_slice(&data.encode());
        let crc = if data.crc { job.crc(&data, stretch) } else { 0 };
        let reference = job.reference(stretch).map(|r| r.encode(self.last_seq));
        let planned = data.sliced && !job.is_staged();
        let window = if planned { job.window(&data) } else { None };
        self.frame = Some(Outgoing {
            void: planned && window.is_none(),
            data,
            stretch,
            job,
            window,
            reference,
            written: 0,
            crc,
            trailer: [0; TRAILER],
            trailed: 0,
            since: time_some(),
        });
    }

    /// Frame `seq`, which was acknowledged; none if it does not wait for that. Mostly it is the first one:
    /// only what goes on from a slot of the other side may end in another order.
    pub(super) fn take_acked(&mut self, seq: u64) -> Option<Unacked> {
        let at = match self.unacked.front() {
            Some(first) if first.seq == seq => 0,
            _ => self.unacked.binary_search_by_key(&seq, |u| u.seq).ok()?,
        };
        self.unacked.remove(at)
    }

    /// What the other side has not acknowledged, now that the connection is lost.
    pub(super) fn take_unacked(&mut self) -> Vec<Unacked> {
        let mut all: Vec<Unacked> = std::mem::take(&mut self.unacked).into();
        all.extend(self.frame.take().map(Outgoing::into_unacked));
        all
    }

    /// Whether the last note is on its way, so that another one can be taken.
    pub(super) fn takes_note(&self) -> bool {
        self.notes.is_empty()
    }

    /// Says this, when the frame under way is out.
    pub(super) fn say(&mut self, note: Note) {
        self.notes.push_back(note);
    }

    /// Says that this side is there, when the frame under way is out.
    pub(super) fn say_alive(&mut self) {
        self.alive = true;
    }

    /// Writes once.
    pub(super) fn write(&mut self, stream: &Stream) -> io::Result<Wrote> {
        if self.frame.is_none() {
            self.take_acks();
        }
        if self.head_at == self.head.len() && self.frame.is_none() {
            return Ok(Wrote::Nothing);
        }
        let wrote = match &mut self.frame {
            Some(frame) => frame.write(stream, &self.head[self.head_at..], &mut self.ranges),
            None => stream.try_write(&self.head[self.head_at..]),
        };
        match wrote {
            Ok(0) => Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => {
                self.wrote(n);
                Ok(Wrote::Some(n))
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(Wrote::Full),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(Wrote::Some(0)),
            Err(e) => Err(e),
        }
    }

    fn wrote(&mut self, n: usize) {
        let of_head = n.min(self.head.len() - self.head_at);
        self.head_at += of_head;
        if self.head_at == self.head.len() {
            self.head.clear();
            self.head_at = 0;
        }
        if let Some(frame) = &mut self.frame
            && frame.took(n - of_head)
            && let Some(frame) = self.frame.take()
        {
            self.unacked.push_back(frame.into_unacked());
        }
    }

    fn take_acks(&mut self) {
        if std::mem::take(&mut self.alive) {
            self.head.extend_from_slice(&Header::alive());
        }
        while self.head.len() < ACKS_AT_ONCE * HEADER
            && let Some(note) = self.notes.pop_front()
        {
            self.head.extend_from_slice(&note.encode());
        }
        while self.head.len() < ACKS_AT_ONCE * HEADER
            && let Some(ack) = self.acks.pop_front()
        {
            self.head.extend_from_slice(&ack.encode());
        }
    }
}

impl Outgoing {
    fn into_unacked(self) -> Unacked {
        Unacked {
            seq: self.data.seq,
            stretch: self.stretch,
            job: self.job,
            void: self.void,
            since: self.since,
        }
    }

    fn write(
        &mut self,
        stream: &Stream,
        head: &[u8],
        ranges: &mut Vec<PoolRange>,
    ) -> io::Result<usize> {
        if let Some(reference) = self.reference {
            // Its slot is another's once the job is over.
            self.void |= self.trailed == 0 && !self.job.is_live();
            let trailer = self.sealed(!self.void);
            let (reference, trailer) = (
                &reference[self.written as usize..],
                &trailer[self.trailed..],
            );
            return stream.try_write_vectored(&[head, reference, trailer].map(IoSlice::new));
        }
        let left = self.data.length - self.written;
        if left > 0 && !self.void && self.job.is_staged() {
            let trailer = self.sealed(true);
            let wrote = self.job.with_staged(self.stretch, self.written, |bytes| {
                let slices = [head, bytes, &trailer].map(IoSlice::new);
                stream.try_write_vectored(&slices)
            });
            if let Some(wrote) = wrote {
                return wrote;
            }
            self.void = true;
        }
        if left > 0 && !self.void {
            let trailer = self.sealed(true);
            let ranges = match &mut self.window {
                Some(window) => window.ranges(),
                None => {
                    self.job.ranges(&self.data, self.written, ranges);
                    ranges
                }
            };
            let wrote = self.job.with_ticket(|ticket| {
                let mut range_error = None;
                let wrote = stream.try_io(Interest::WRITABLE, || {
                    match ticket.write_to(stream.as_fd(), head, ranges, &trailer) {
                        Ok(n) => Ok(n),
                        Err(SocketError::Socket(e)) => Err(e),
                        Err(SocketError::Range(e)) => {
                            range_error = Some(e);
                            Ok(0)
                        }
                    }
                });
                (wrote, range_error)
            });
            match wrote {
                Some((wrote, None)) => return wrote,
                Some((_, Some(error))) => self.job.errored(error.to_string()),
                None => {}
            }
            // The job is over, or cannot be read: the rest of the frame is void.
            self.void = true;
        }
        let trailer = self.sealed(!self.void);
        let mut slices = Vec::with_capacity(20);
        slices.push(IoSlice::new(head));
        let mut zeroes = left as usize;
        while zeroes > 0 && slices.len() < 18 {
            let n = zeroes.min(ZEROES.len());
            slices.push(IoSlice::new(&ZEROES[..n]));
            zeroes -= n;
        }
        if zeroes == 0 {
            slices.push(IoSlice::new(&trailer[self.trailed..]));
        }
        stream.try_write_vectored(&slices)
    }

    /// The trailer; the same one once a byte of it is out.
    fn sealed(&mut self, valid: bool) -> [u8; TRAILER] {
        if self.trailed == 0 {
            let crc = self.crc;
            self.trailer = Trailer { valid, crc }.encode(self.data.seq);
        }
        self.trailer
    }

    /// The kernel took `n` bytes of payload and trailer. True when the frame is out.
    fn took(&mut self, n: usize) -> bool {
        let payload = match self.reference {
            Some(_) => REFERENCE as u32,
            None => self.data.length,
        };
        let of_payload = n.min((payload - self.written) as usize);
        if let Some(window) = &mut self.window {
            window.advance(of_payload as u64);
        }
        self.written += of_payload as u32;
        self.trailed += n - of_payload;
        self.trailed >= TRAILER
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_that_nobody_reads_are_kept_up_to_a_bound_and_then_blamed() {
        let mut sending = Sending::default();
        let fate = |seq: u64| [Fate::Landed, Fate::Refused][(seq % 2) as usize];
        for seq in 1..=65_536 {
            assert!(sending.acknowledge(seq, fate(seq)), "{seq} are too many");
        }
        // One that goes on where the last one ends takes no more room.
        assert!(sending.acknowledge(65_537, fate(65_536)));
        assert!(!sending.acknowledge(65_538, fate(65_537)));
        // What is read makes room again.
        sending.take_acks();
        assert_eq!(sending.head.len(), ACKS_AT_ONCE * HEADER);
        assert!(sending.acknowledge(65_539, fate(65_538)));
    }

    #[test]
    fn an_answer_is_joined_to_the_last_one_only_if_it_goes_on_with_the_same_fate() {
        let mut sending = Sending::default();
        let fates = [Fate::Landed, Fate::Landed, Fate::Refused];
        for (seq, fate) in (1..).zip(fates).chain([(5, Fate::Refused)]) {
            assert!(sending.acknowledge(seq, fate));
        }
        let told: Vec<_> = sending.acks.iter().map(|a| (a.first, a.last)).collect();
        assert_eq!(told, [(1, 2), (3, 3), (5, 5)]);
    }
}
