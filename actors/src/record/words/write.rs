//! From what happened to words.

use super::*;
use crate::ids::{ClaimNo, LifeId, PeerRef, RoomKey};
use crate::peer::message::FrameRef;
use crate::record::entry::{self, Begun, ChunkTold, MESSAGES, Road, Told, What, Word};
use crate::room::event::{Event, JobEnd, LegTerms};
use std::time::Duration;

/// What a room is told, before it is known what comes of it.
#[derive(Debug)]
pub(crate) enum Hearing {
    /// As words, of which those are missing that [`step`] fills in.
    Short(Words),
    /// It has a text, or more than one section.
    Whole(Box<Told>),
}

impl Hearing {
    /// What is to be recorded of this event.
    #[inline]
    pub(crate) fn of<W>(event: &Event<W>) -> Hearing {
        let mut w = [0; WORDS];
        let (which, marks) = match event {
            Event::Push(chunk) => (push(&mut w, &ChunkTold::of(chunk)), 0),
            Event::Finish { total, aux } => finish(&mut w, *total, *aux),
            Event::Bind { leg, terms } => match bind(&mut w, *leg, terms) {
                Some(put) => put,
                None => return Hearing::Whole(Box::new(Told::of(event))),
            },
            Event::ClaimOpened(leg) => (about(&mut w, told::CLAIM_OPENED, *leg), 0),
            Event::Bound(leg) => (about(&mut w, told::BOUND, *leg), 0),
            Event::Accepted(leg) => (about(&mut w, told::ACCEPTED, *leg), 0),
            Event::PeerOut(leg) => (about(&mut w, told::PEER_OUT, *leg), 0),
            Event::Progress {
                leg,
                posted,
                written,
            } => (progress(&mut w, *leg, *posted, *written), 0),
            Event::Complete {
                leg,
                total,
                coverage,
                checksum,
            } => complete(&mut w, *leg, *total, coverage.cells(), *checksum),
            Event::Moved { leg, bytes } => (moved(&mut w, *leg, *bytes), 0),
            Event::JobOver {
                leg,
                job,
                rest,
                end,
            } => match job_over(&mut w, *leg, *job, *rest, end) {
                Some(which) => (which, 0),
                None => return Hearing::Whole(Box::new(Told::of(event))),
            },
            Event::Summed(sum) => (summed(&mut w, *sum), 0),
            Event::Timer(timer) => (timer_of(&mut w, *timer), 0),
            Event::Quiet(_) => (told::QUIET, 0),
            _ => return Hearing::Whole(Box::new(Told::of(event))),
        };
        w[1] = head(ROOM, which, 0, marks, 0);
        Hearing::Short(w)
    }
}

/// Fills in whom it was told, and what came of it.
#[inline]
pub(in crate::record) fn step(
    w: &mut Words,
    key: RoomKey,
    life: LifeId,
    is: (Role, StateName, StateName),
) {
    w[1] |= u64::from(states(is.0, is.1, is.2)) << 16 | u64::from(key.attempt) << 32;
    w[2] = key.id.0;
    w[3] = life.0;
}

#[inline]
fn about(w: &mut Words, which: u8, leg: LegNo) -> u8 {
    w[4] = small(leg, 0, 0);
    which
}

#[inline]
fn push(w: &mut Words, chunk: &ChunkTold) -> u8 {
    w[4] = small(LegNo(0), chunk.pool, chunk.no);
    (w[5], w[6]) = chunk.tokens;
    w[7] = two(chunk.layers.0, chunk.layers.1);
    w[8] = two(chunk.pages, chunk.first);
    w[9] = two(chunk.last, chunk.page_tokens);
    w[10] = u64::from(chunk.pool_layers);
    told::PUSH
}

fn finish(w: &mut Words, total: u64, aux: bool) -> (u8, u8) {
    w[5] = total;
    (told::FINISH, if aux { HAS_AUX } else { 0 })
}

#[inline]
fn bind(w: &mut Words, leg: LegNo, terms: &LegTerms) -> Option<(u8, u8)> {
    let mut marks = 0;
    match &*terms.sections {
        [] => {}
        [section] if section.slice.is_none() => {
            marks |= HAS_SECTION;
            w[7] = two(u32::from(section.pool.0), section.page_tokens);
            w[8] = two(section.layer, section.layer_end);
            w[9] = section.page_bytes;
            w[10] = u64::from(section.pages);
        }
        _ => return None,
    }
    if terms.aux {
        marks |= HAS_AUX;
    }
    if terms.checksum {
        marks |= HAS_SUM;
    }
    w[4] = small(leg, terms.receivers, u32::from(terms.rank));
    (w[5], w[6]) = (terms.skip, terms.total);
    Some((told::BIND, marks))
}

fn progress(w: &mut Words, leg: LegNo, posted: u64, written: u64) -> u8 {
    (w[5], w[6]) = (posted, written);
    about(w, told::PROGRESS, leg)
}

fn complete(w: &mut Words, leg: LegNo, total: u64, cells: u64, sum: Option<u64>) -> (u8, u8) {
    (w[5], w[6], w[7]) = (total, cells, sum.unwrap_or_default());
    let marks = if sum.is_some() { HAS_SUM } else { 0 };
    (about(w, told::COMPLETE, leg), marks)
}

#[inline]
fn moved(w: &mut Words, leg: LegNo, bytes: u64) -> u8 {
    w[5] = bytes;
    about(w, told::MOVED, leg)
}

fn job_over(w: &mut Words, leg: LegNo, job: u32, rest: u64, end: &JobEnd) -> Option<u8> {
    w[4] = small(leg, 0, job);
    w[5] = rest;
    Some(match end {
        JobEnd::Landed { checksum } => {
            w[6] = *checksum;
            told::JOB_LANDED
        }
        JobEnd::Refused => told::JOB_REFUSED,
        JobEnd::Cancelled => told::JOB_CANCELLED,
        JobEnd::Errored(_) => return None,
    })
}

fn summed(w: &mut Words, sum: u64) -> u8 {
    w[5] = sum;
    told::SUMMED
}

fn timer_of(w: &mut Words, timer: Timer) -> u8 {
    w[5] = match timer {
        Timer::Outcome => 0,
        Timer::Stall => 1,
        Timer::Drain => 2,
        Timer::Explain => 3,
    };
    told::TIMER
}

/// A deadline as words, if it fits one.
#[inline]
fn deadline(w: &mut Words, deadline: Option<Duration>) -> Option<u8> {
    let Some(deadline) = deadline else {
        return Some(0);
    };
    w[5] = u64::try_from(deadline.as_nanos()).ok()?;
    Some(HAS_DEADLINE)
}

#[inline]
fn started(w: &mut Words, begun: &Begun) -> Option<(u8, u8)> {
    match begun {
        Begun::Sender {
            receivers,
            deadline: due,
        } => {
            w[4] = small(LegNo(0), *receivers, 0);
            Some((told::START_SENDER, deadline(w, *due)?))
        }
        Begun::Receiver {
            legs,
            peer,
            cells,
            total,
            checksum,
            pages,
            deadline: due,
        } => {
            w[4] = small(LegNo(0), *legs, peer.0);
            (w[6], w[7], w[8]) = (*cells, *total, *pages);
            let sum = if *checksum { HAS_SUM } else { 0 };
            Some((told::START_RECEIVER, deadline(w, *due)? | sum))
        }
    }
}

/// What was told, as words; none if it has no such form.
#[inline]
fn told_of(w: &mut Words, told: &Told) -> Option<(u8, u8)> {
    Some(match told {
        Told::Start(begun) => started(w, begun)?,
        Told::Leg { leg, peer, cells } => {
            w[4] = small(*leg, 0, peer.0);
            w[5] = *cells;
            (told::LEG, 0)
        }
        Told::Push(chunk) => (push(w, chunk), 0),
        Told::Finish { total, aux } => finish(w, *total, *aux),
        Told::Bind { leg, terms } => bind(w, *leg, terms)?,
        Told::ClaimOpened(leg) => (about(w, told::CLAIM_OPENED, *leg), 0),
        Told::Bound(leg) => (about(w, told::BOUND, *leg), 0),
        Told::Accepted(leg) => (about(w, told::ACCEPTED, *leg), 0),
        Told::PeerOut(leg) => (about(w, told::PEER_OUT, *leg), 0),
        Told::Progress {
            leg,
            posted,
            written,
        } => (progress(w, *leg, *posted, *written), 0),
        Told::Complete {
            leg,
            total,
            cells,
            checksum,
        } => complete(w, *leg, *total, *cells, *checksum),
        Told::Moved { leg, bytes } => (moved(w, *leg, *bytes), 0),
        Told::JobOver {
            leg,
            job,
            rest,
            end,
        } => (job_over(w, *leg, *job, *rest, end)?, 0),
        Told::Summed(sum) => (summed(w, *sum), 0),
        Told::Timer(timer) => (timer_of(w, *timer), 0),
        Told::Quiet => (told::QUIET, 0),
        Told::Panicked => (told::PANICKED, 0),
        Told::Abort(_)
        | Told::ClaimNotOpened { .. }
        | Told::Rejected { .. }
        | Told::PeerEnded { .. }
        | Told::LegLost { .. } => return None,
    })
}

/// An entry as words, without its time; none if it has no such form. Where it is known which kind it is,
/// this is no more than what that one takes.
#[inline(always)]
pub(in crate::record) fn of(what: &What) -> Option<Words> {
    let mut w = [0; WORDS];
    let room = |w: &mut Words, key: RoomKey, life: LifeId| (w[2], w[3]) = (key.id.0, life.0);
    match what {
        What::Room(told) => {
            if told.reason.is_some() {
                return None;
            }
            let (which, marks) = told_of(&mut w, &told.told)?;
            w[1] = head(ROOM, which, 0, marks, 0);
            step(&mut w, told.key, told.life, (told.role, told.from, told.to));
        }
        What::Sent(word) => message(&mut w, SENT, word)?,
        What::Received(word) => message(&mut w, RECEIVED, word)?,
        What::Leg {
            key,
            life,
            leg,
            peer,
            claim,
        } => {
            room(&mut w, *key, *life);
            w[1] = head(LEG, 0, 0, 0, key.attempt);
            w[4] = small(*leg, 0, peer.0);
            w[5] = claim.0;
        }
        What::Gate {
            key,
            life,
            leg,
            claim,
            is,
        } => {
            let is = match is {
                GateIs::Open => 0,
                GateIs::Occupied => 1,
                GateIs::Closed => 2,
                GateIs::WriterDead => 3,
                GateIs::Drained => 4,
                GateIs::Fenced => 5,
            };
            room(&mut w, *key, *life);
            w[1] = head(GATE, is, 0, 0, key.attempt);
            w[4] = small(*leg, 0, 0);
            w[5] = claim.0;
        }
        What::Job {
            key,
            life,
            leg,
            job,
            road,
            bytes,
        } => {
            let (which, lane) = match road {
                Road::Here => (0, 0),
                Road::Lane(lane) => (1, *lane),
                Road::Tcp => (2, 0),
                Road::Nowhere => (3, 0),
                Road::Device(device) => (4, *device),
                Road::Ucx => (5, 0),
            };
            room(&mut w, *key, *life);
            w[1] = head(JOB, which, 0, 0, key.attempt);
            w[4] = small(*leg, lane, *job);
            w[5] = *bytes;
        }
        What::Lease { key, life, proofs } => {
            room(&mut w, *key, *life);
            w[1] = head(LEASE, proofs.bits(), 0, 0, key.attempt);
        }
        What::Retry {
            key,
            life,
            role,
            of,
        } => {
            let is = states(*role, StateName::Registered, StateName::Registered);
            room(&mut w, *key, *life);
            w[1] = head(RETRY, 0, is, 0, key.attempt);
            w[4] = small(LegNo(0), 0, *of);
        }
        What::Refused { key, role } => {
            let is = states(*role, StateName::Registered, StateName::Registered);
            w[1] = head(REFUSED, 0, is, 0, key.attempt);
            w[2] = key.id.0;
        }
        What::Peer { .. } | What::Note(_) => return None,
    }
    Some(w)
}

#[inline]
fn message(w: &mut Words, what: u8, word: &Word) -> Option<()> {
    let no = MESSAGES.iter().position(|m| *m == word.message)?;
    let no = u8::try_from(no).ok()?;
    put_message(w, what, no, word.peer, word.frame, (word.claim, word.room));
    Some(())
}

#[inline]
fn put_message(
    w: &mut Words,
    what: u8,
    no: u8,
    peer: PeerRef,
    frame: u64,
    (claim, room): (Option<ClaimNo>, Option<RoomKey>),
) {
    let (mut marks, mut attempt) = (0, 0);
    if let Some(claim) = claim {
        marks |= HAS_CLAIM;
        w[3] = claim.0;
    }
    if let Some(room) = room {
        marks |= HAS_ROOM;
        attempt = room.attempt;
        w[2] = room.id.0;
    }
    w[1] = head(what, no, 0, marks, attempt);
    w[4] = small(LegNo(0), 0, peer.0);
    w[5] = frame;
}

/// A message, which is sent or came; none for acknowledgements and heartbeats.
#[inline]
pub(in crate::record) fn frame(sent: bool, peer: PeerRef, frame: FrameRef<'_>) -> Option<Words> {
    let body = frame.body?;
    let no = entry::message_no(body)?;
    let mut w = [0; WORDS];
    let what = if sent { SENT } else { RECEIVED };
    let tag = body.tag();
    let names = (tag.map(|t| t.id.number), tag.map(|t| t.room));
    put_message(&mut w, what, no, peer, frame.seq, names);
    Some(w)
}
