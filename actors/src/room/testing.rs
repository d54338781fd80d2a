//! What the tests of both machines share: a small request, and rooms brought into every state.
//!
//! The request has 4 pages of 2 tokens (the last one is half full), one layer, one aux row.

use super::event::{Chunk, Effect, Event, JobEnd, LegTerms, SectionShape, Timer};
use super::receiver::{LegPlan, Receiver, Terms};
use super::sender::Sender;
use super::{Quiescence, Room};
use crate::ids::{ChunkNo, LegNo, PoolId};
use crate::reason::{Code, Reason};
use kvroom_kernels::coverage::{Coverage, Rect};
use std::ops::Range;
use std::sync::Arc;

/// Stands in for a witness.
pub(crate) type W = u8;

pub(crate) const TOTAL: u64 = 7;
pub(crate) const LEG: LegNo = LegNo(0);
pub(crate) const OTHER: LegNo = LegNo(1);

/// Pages `pages` of the request, in as many source pages that start at `source`.
pub(crate) fn chunk_at(no: u32, pages: Range<u64>, source: u32) -> Chunk {
    let count = (pages.end - pages.start) as u32;
    Chunk {
        no: ChunkNo(no),
        pool: PoolId(0),
        tokens: pages.start * 2..(pages.end * 2).min(TOTAL),
        layers: 0..1,
        pages: (source..source + count).collect(),
        page_tokens: 2,
        pool_layers: 1,
    }
}

pub(crate) fn chunk(no: u32, pages: Range<u64>) -> Chunk {
    let source = pages.start as u32;
    chunk_at(no, pages, source)
}

/// The claim of one receiver: pages from `skip` on, and the aux row.
pub(crate) fn claim(receivers: u16, rank: u16, skip: u32) -> LegTerms {
    LegTerms {
        receivers,
        rank,
        skip: u64::from(skip) * 2,
        total: TOTAL,
        sections: Box::new([SectionShape {
            pool: PoolId(0),
            layer: 0,
            layer_end: 1,
            page_tokens: 2,
            page_bytes: 10,
            pages: 4 - skip,
            slice: None,
        }]),
        aux: true,
        checksum: false,
    }
}

pub(crate) fn bind(leg: LegNo, terms: LegTerms) -> Event<W> {
    Event::Bind {
        leg,
        terms: Arc::new(terms),
    }
}

pub(crate) fn finish() -> Event<W> {
    Event::Finish {
        total: TOTAL,
        aux: true,
    }
}

pub(crate) fn landed(leg: LegNo, job: u32) -> Event<W> {
    let end = JobEnd::Landed { checksum: 5 };
    over(leg, job, end)
}

pub(crate) fn over(leg: LegNo, job: u32, end: JobEnd) -> Event<W> {
    Event::JobOver {
        leg,
        job,
        rest: 10,
        end,
    }
}

pub(crate) fn why(code: Code) -> Reason {
    code.into()
}

pub(crate) fn peer_ended(leg: LegNo) -> Event<W> {
    Event::PeerEnded {
        leg,
        reason: Reason::from(Code::Requested).from_peer(),
    }
}

pub(crate) fn lost(leg: LegNo) -> Event<W> {
    Event::LegLost {
        leg,
        reason: why(Code::SessionLost),
    }
}

pub(crate) fn quiet() -> Event<W> {
    Event::Quiet(Quiescence::for_tests(vec![1]))
}

/// All cells that a receiver without a prefix wants.
pub(crate) fn cells(pages: Range<u32>, aux: bool) -> Coverage {
    let mut cells = Coverage::new();
    let _ = cells.insert(0, 0..1, pages);
    if aux {
        let _ = cells.insert(Rect::AUX, 0..1, 0..1);
    }
    cells
}

pub(crate) fn complete(leg: LegNo, coverage: Coverage) -> Event<W> {
    Event::Complete {
        leg,
        total: TOTAL,
        coverage,
        checksum: Some(5),
    }
}

pub(crate) fn progress(leg: LegNo, posted: u64, written: u64) -> Event<W> {
    Event::Progress {
        leg,
        posted,
        written,
    }
}

/// A room and what it has asked for since it was last looked at.
#[derive(Clone, Debug)]
pub(crate) struct Bench {
    pub(crate) room: Room<W>,
    out: Vec<Effect<W>>,
}

impl Bench {
    pub(crate) fn sender(receivers: u16) -> Self {
        let mut out = Vec::new();
        let room = Room::Sender(Sender::register(receivers, &mut out));
        Bench { room, out }
    }

    /// A receiver with `legs` legs of 4 pages, each in a section of its own, and one aux row each.
    pub(crate) fn receiver(legs: u16, checksum: bool) -> Self {
        let plan = LegPlan {
            wanted: cells(0..4, true),
        };
        let terms = Terms {
            legs: vec![plan; usize::from(legs)],
            total: TOTAL,
            checksum,
        };
        let mut out = Vec::new();
        let room = Room::Receiver(Receiver::register(terms, &mut out));
        Bench { room, out }
    }

    /// Tells the room something; gives back the effects of that alone.
    pub(crate) fn tell(&mut self, event: Event<W>) -> Vec<Effect<W>> {
        self.out.clear();
        let room = self.room.clone().handle(event, &mut self.out);
        self.room = room;
        self.out.clone()
    }

    pub(crate) fn with(mut self, events: impl IntoIterator<Item = Event<W>>) -> Self {
        for event in events {
            self.tell(event);
        }
        self
    }

    pub(crate) fn last(&self) -> &[Effect<W>] {
        &self.out
    }
}

/// A sender room of one receiver in every state, sub-phases among them.
pub(crate) fn senders() -> Vec<(&'static str, Room<W>)> {
    let start = || Bench::sender(1);
    let pushed = || start().with([Event::Push(chunk(0, 0..4))]);
    let copying = || pushed().with([bind(LEG, claim(1, 0, 0))]);
    let aux = || copying().with([finish(), landed(LEG, 0)]);
    let complete = || aux().with([landed(LEG, 1)]);
    let draining = || copying().with([Event::Abort(why(Code::Requested))]);
    let two = Bench::sender(2).with([
        Event::Push(chunk(0, 0..4)),
        finish(),
        bind(LEG, claim(2, 0, 0)),
        bind(OTHER, claim(2, 1, 0)),
        landed(LEG, 0),
        landed(LEG, 2),
        Event::Accepted(LEG),
    ]);
    vec![
        ("Registered", start().room),
        ("Registered/pushed", pushed().room),
        ("Registered/finished", pushed().with([finish()]).room),
        (
            "Transferring/idle",
            start().with([bind(LEG, claim(1, 0, 0))]).room,
        ),
        ("Transferring/copying", copying().room),
        (
            "Transferring/refused",
            copying().with([over(LEG, 0, JobEnd::Refused)]).room,
        ),
        ("Transferring/aux", aux().room),
        ("Transferring/complete", complete().room),
        ("Transferring/1of2", two.room),
        (
            "Transferring/sealed",
            complete().with([Event::Accepted(LEG)]).room,
        ),
        ("Draining", draining().room),
        ("Draining/lost", draining().with([lost(LEG)]).room),
        (
            "Draining/quarantined",
            draining().with([Event::Timer(Timer::Drain)]).room,
        ),
        (
            "Done",
            complete().with([Event::Accepted(LEG), quiet()]).room,
        ),
        ("Aborted", draining().with([quiet()]).room),
    ]
}

/// A receiver room in every state, sub-phases among them.
pub(crate) fn receivers() -> Vec<(&'static str, Room<W>)> {
    let abort = || Event::Abort(why(Code::Requested));
    let open = |checksum| Bench::receiver(1, checksum).with([Event::ClaimOpened(LEG)]);
    let bound = |checksum| open(checksum).with([Event::Bound(LEG)]);
    let sealing = |checksum| bound(checksum).with([complete(LEG, cells(0..4, true))]);
    let draining = || bound(false).with([abort()]);
    let two = Bench::receiver(2, false).with([
        Event::ClaimOpened(LEG),
        Event::ClaimOpened(OTHER),
        Event::Bound(LEG),
        complete(LEG, cells(0..4, true)),
    ]);
    vec![
        ("Registered/asked", Bench::receiver(1, false).room),
        ("Registered/open", open(false).room),
        ("Transferring/bound", bound(false).room),
        (
            "Transferring/posted",
            bound(false).with([progress(LEG, 20, 10)]).room,
        ),
        ("Transferring/1of2", two.room),
        ("Transferring/sealing", sealing(false).room),
        ("Transferring/sealing+sum", sealing(true).room),
        ("Transferring/summing", sealing(true).with([quiet()]).room),
        ("Draining", draining().room),
        (
            "Draining/summing",
            sealing(true).with([quiet(), abort()]).room,
        ),
        (
            "Draining/quarantined",
            draining().with([Event::Timer(Timer::Drain)]).room,
        ),
        ("Done", sealing(false).with([quiet()]).room),
        ("Aborted", draining().with([quiet()]).room),
    ]
}
