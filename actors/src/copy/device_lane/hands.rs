//! What a lane queues with, and a piece while it is queued.

use super::Waker;
use super::kernels::{Alike, Kernels, table_at, table_bytes};
use super::net::{Landing, Quota};
use super::straight::Ring;
use crate::copy::device::{
    Context, Copy, DeviceError, ExportedSlot, Held, InFlight, Queue, QueueError, Ready, Slot,
    Staging, Stream,
};
use crate::fabric::tcp::TcpRoute;
use crate::fabric::tcp::handed::Hands as HandsOver;
use crate::memory::{CopyError, Staying, Ticket};
use kvroom_kernels::plan::Piece;
use std::cell::Cell;
use std::sync::Arc;

/// The lane's streams.
pub(super) struct Streams {
    /// From the device, and within it.
    pub(super) reads: Vec<Stream>,
    /// To the device.
    pub(super) writes: Vec<Stream>,
    /// For data that is not there yet.
    pub(super) late: Vec<Stream>,
}

/// See the module.
pub(super) struct Hands {
    context: Context,
    staging: Staging,
    /// For what goes over a network.
    outgoing: Staging,
    /// For what goes to devices of other processes of the host.
    ring: Ring,
    streams: Streams,
    kernels: Option<Kernels>,
    /// Streams of devices that pieces of this one go to, by way of a slot.
    far: Vec<(Context, Stream)>,
    /// Whether other devices were found to be reached.
    reached: Vec<(Context, bool)>,
    next: usize,
    waker: Waker,
}

/// Where a piece goes, and by which way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// From the device into a slot; the lane copies on from there.
    Out,
    /// The slot is full; from there to the device.
    In,
    /// From device to device.
    Direct,
}

/// What is queued owns this until its event has fired. The order is that of dropping: the gate is left
/// before the job can be over.
pub(super) struct Holds {
    /// Inside the destination's gate, if a device writes.
    pub(super) stay: Option<Staying>,
    /// The right to read the source.
    pub(super) part: Ticket,
    pub(super) slot: Option<Slot>,
    /// Where it goes, if that is in the ring, of this number; `slot` has no more than tables then.
    pub(super) ring: Option<(u32, ExportedSlot)>,
    pub(super) runs: Vec<Piece>,
    pub(super) section: u16,
    pub(super) cursor: Cell<usize>,
    /// A kernel copies it; then its tables are in the slot, behind the data.
    pub(super) alike: Option<Alike>,
    /// The slot is one of those of a peer.
    pub(super) quota: Option<Quota>,
}

/// Which stream.
#[derive(Clone, Debug)]
pub(super) enum When {
    Now,
    /// After the event, in this late stream.
    After(Arc<Ready>, usize),
}

impl Hands {
    pub(super) fn new(
        context: Context,
        (staging, outgoing, ring): (Staging, Staging, Ring),
        streams: Streams,
        waker: Waker,
    ) -> Self {
        Hands {
            context,
            staging,
            outgoing,
            ring,
            streams,
            kernels: None,
            far: Vec::new(),
            reached: Vec::new(),
            next: 0,
            waker,
        }
    }

    pub(super) fn context(&self) -> &Context {
        &self.context
    }

    pub(super) fn waker(&self) -> &Waker {
        &self.waker
    }

    /// Bytes of the largest piece.
    pub(super) fn slot_bytes(&self) -> u64 {
        self.staging.slot_bytes() - table_bytes(super::job::RUNS)
    }

    /// Pieces that are queued at a time.
    pub(super) fn window(&self) -> usize {
        self.staging.slots()
    }

    pub(super) fn slot(&self) -> Option<Slot> {
        self.staging.take()
    }

    /// One for what goes over a network.
    pub(super) fn outgoing_slot(&self) -> Option<Slot> {
        self.outgoing.take()
    }

    /// Whether there is one of those.
    pub(super) fn has_outgoing(&self) -> bool {
        self.outgoing.free() > 0
    }

    /// One for what is handed to another process of the host.
    pub(super) fn ring_slot(&self) -> Option<(u32, ExportedSlot)> {
        self.ring.take()
    }

    /// Whether there is one of those.
    pub(super) fn has_ring_slot(&self) -> bool {
        self.ring.has_slot()
    }

    /// How bytes for this pool of a peer go.
    pub(super) fn way_to(&mut self, route: &TcpRoute, pool: &str) -> HandsOver {
        if !route.is_near() {
            return HandsOver::No;
        }
        match self.ring.name(&self.context) {
            Some(ring) => route.way(ring, pool),
            None => HandsOver::No,
        }
    }

    /// Queues the copy of a frame from its slot into its pages.
    #[allow(clippy::result_large_err)] // It hands things back.
    pub(super) fn queue_landing(
        &mut self,
        landing: Landing,
    ) -> Result<InFlight<Landing>, QueueError<Landing>> {
        self.next = self.next.wrapping_add(1);
        let list = &self.streams.writes;
        let stream = &list[self.next % list.len()];
        let waker = self.waker.clone();
        stream.queue(landing, move |landing, q| {
            land(landing, q)?;
            let _ = q.call(move || waker.wake());
            Ok(())
        })
    }

    /// Has many small runs copied by kernels from now on, if they can be had.
    pub(super) fn load_kernels(&mut self) -> Result<(), DeviceError> {
        self.kernels = Some(Kernels::load(&self.context)?);
        Ok(())
    }

    /// Whether a kernel is to copy these runs.
    pub(super) fn alike(&self, runs: &[Piece], to_pages: bool) -> Option<Alike> {
        self.kernels.as_ref()?;
        Alike::of(runs, to_pages)
    }

    /// Whether the device can be made to reach memory of another one.
    pub(super) fn reaches(&mut self, other: &Context) -> bool {
        if self.context.same(other) {
            return true;
        }
        if let Some((_, reaches)) = self.reached.iter().find(|(c, _)| c.same(other)) {
            return *reaches;
        }
        let reaches = self.context.reach(other).is_ok();
        self.reached.push((other.clone(), reaches));
        reaches
    }

    /// Whether a slot is free.
    pub(super) fn has_slot(&self) -> bool {
        self.staging.free() > 0
    }

    /// Queues a piece.
    #[allow(clippy::result_large_err)] // It hands things back.
    pub(super) fn queue(
        &mut self,
        way: Way,
        when: &When,
        holds: Holds,
    ) -> Result<InFlight<Holds>, QueueError<Holds>> {
        self.next = self.next.wrapping_add(1);
        let list = match (when, way) {
            (When::After(..), _) => &self.streams.late,
            (_, Way::In) => &self.streams.writes,
            (_, Way::Out | Way::Direct) => &self.streams.reads,
        };
        let nth = match when {
            When::After(_, late) => *late,
            _ => self.next,
        };
        let stream = &list[nth % list.len()];
        let ready = match when {
            When::Now => None,
            When::After(ready, _) => Some(Arc::clone(ready)),
        };
        let (waker, kernels) = (self.waker.clone(), self.kernels.clone());
        stream.queue(holds, move |holds, q| {
            if let Some(ready) = &ready {
                q.after(ready)?;
            }
            copy(way, holds, q, kernels.as_ref())?;
            // Without it the lane looks by itself, later.
            let _ = q.call(move || waker.wake());
            Ok(())
        })
    }

    /// Queues a piece from here by a slot to a device that this one does not reach.
    #[allow(clippy::result_large_err)] // It hands things back.
    pub(super) fn queue_across(
        &mut self,
        to: &Context,
        holds: Holds,
    ) -> Result<InFlight<Holds>, QueueError<Holds>> {
        let back = |holds, error| QueueError {
            error,
            holds: Held::Back(holds),
        };
        let far = match self.far.iter().find(|(context, _)| context.same(to)) {
            Some((_, stream)) => stream.clone(),
            None => match to.stream(crate::copy::device::Priority::Usual) {
                Ok(stream) => {
                    self.far.push((to.clone(), stream.clone()));
                    stream
                }
                Err(error) => return Err(back(holds, error)),
            },
        };
        self.next = self.next.wrapping_add(1);
        // What waits for an event is not queued here: the far stream would wait with it.
        let stream = self.nth_read(self.next);
        let waker = self.waker.clone();
        stream.queue(holds, move |holds, q| {
            across(holds, q, &far)?;
            let _ = q.call(move || waker.wake());
            Ok(())
        })
    }

    fn nth_read(&self, n: usize) -> &Stream {
        &self.streams.reads[n % self.streams.reads.len()]
    }
}

fn copy<'q>(
    way: Way,
    holds: &'q mut Holds,
    q: &mut Queue<'q>,
    kernels: Option<&Kernels>,
) -> Result<(), DeviceError> {
    let Holds {
        stay,
        part,
        slot,
        ring,
        runs,
        section,
        cursor,
        alike,
        ..
    } = holds;
    let (part, stay): (&'q Ticket, Option<&'q Staying>) = (part, stay.as_ref());
    let total: u64 = runs.iter().map(|run| run.bytes).sum();
    // Each run by itself, whoever copies it: it lies in pages that are lent.
    let mut from = Vec::with_capacity(runs.len());
    let mut to = Vec::with_capacity(runs.len());
    if way != Way::In {
        for run in &*runs {
            from.push(part.device_source(run.src, run.bytes).map_err(unlent)?);
        }
    }
    if way != Way::Out {
        let stay = stay.ok_or_else(|| bug("not inside"))?;
        for run in &*runs {
            let range = stay.device_target(*section, run.dst, run.bytes, cursor);
            to.push(range.map_err(unlent)?);
        }
    }
    // Where the pools begin, by any run of them; and where the slot does.
    let first = runs.first().ok_or_else(|| bug("no runs"))?;
    let pages = |at: u64, offset: u64, end: u64| (at.wrapping_sub(offset), end);
    let ends = |of: fn(&Piece) -> u64| runs.iter().map(|r| of(r) + r.bytes).max().unwrap_or(0);
    let source = from
        .first()
        .map(|s| pages(s.address(), first.src, ends(|r| r.src)));
    let target = to
        .first()
        .map(|t| pages(t.address(), first.dst, ends(|r| r.dst)));
    let tables = 2 * 4 * runs.len() as u64;
    if let (Some(kernels), Some(alike), Some(slot)) = (kernels, *alike, slot.as_mut()) {
        let all = slot.target(0..table_at(total) + tables)?;
        let table = all.address() + table_at(total);
        let data = match ring {
            Some((_, ring)) => ring.target(0..total)?.address(),
            None => all.address(),
        };
        let places = table + 4 * runs.len() as u64;
        let many = (alike, &**runs);
        return match (way, source, target) {
            (Way::Out, Some(source), _) => kernels.gather(q, many, source, (data, total), table),
            (Way::In, _, Some(target)) => kernels.scatter(q, many, (data, total), target, places),
            (Way::Direct, Some(source), Some(target)) => {
                kernels.reslice(q, many, source, target, (table, places))
            }
            _ => Err(bug("no ends")),
        };
    }
    let mut copies = Vec::with_capacity(runs.len());
    let mut at = 0;
    match way {
        Way::Out => {
            let all = match (ring, slot) {
                (Some((_, ring)), _) => ring.target(0..total)?,
                (None, Some(slot)) => slot.target(0..total)?,
                (None, None) => return Err(bug("no slot")),
            };
            for from in from {
                let to = all.part(at..at + from.bytes())?;
                at += from.bytes();
                copies.push(Copy { to, from });
            }
        }
        Way::In => {
            let all = slot
                .as_ref()
                .ok_or_else(|| bug("no slot"))?
                .source(0..total)?;
            for to in to {
                let from = all.part(at..at + to.bytes())?;
                at += to.bytes();
                copies.push(Copy { to, from });
            }
        }
        Way::Direct => {
            let pairs = from.into_iter().zip(to);
            copies.extend(pairs.map(|(from, to)| Copy { to, from }));
        }
    }
    q.copies(&copies)
}

fn land<'q>(landing: &'q mut Landing, q: &mut Queue<'q>) -> Result<(), DeviceError> {
    let landing: &'q Landing = landing;
    let (delivery, ranges) = (&landing.delivery, &landing.ranges);
    let total: u64 = ranges.iter().map(|range| range.bytes).sum();
    let all = landing.from.source(total)?;
    let mut copies = Vec::with_capacity(ranges.len());
    let mut at = 0;
    for range in ranges {
        let (offset, bytes) = (range.offset, range.bytes);
        let to = delivery
            .stay()
            .device_target(delivery.section(), offset, bytes, &landing.cursor);
        let from = all.part(at..at + bytes)?;
        copies.push(Copy {
            to: to.map_err(unlent)?,
            from,
        });
        at += bytes;
    }
    q.copies(&copies)
}

fn across<'q>(holds: &'q mut Holds, q: &mut Queue<'q>, far: &Stream) -> Result<(), DeviceError> {
    let Holds {
        stay,
        part,
        slot,
        runs,
        section,
        cursor,
        ..
    } = holds;
    let (part, stay): (&'q Ticket, Option<&'q Staying>) = (part, stay.as_ref());
    let stay = stay.ok_or_else(|| bug("not inside"))?;
    let total: u64 = runs.iter().map(|run| run.bytes).sum();
    let all = slot
        .as_mut()
        .ok_or_else(|| bug("no slot"))?
        .target(0..total)?;
    let (mut out, mut into) = (
        Vec::with_capacity(runs.len()),
        Vec::with_capacity(runs.len()),
    );
    let mut at = 0;
    for run in &*runs {
        let staged = all.part(at..at + run.bytes)?;
        let from = part.device_source(run.src, run.bytes).map_err(unlent)?;
        let to = stay
            .device_target(*section, run.dst, run.bytes, cursor)
            .map_err(unlent)?;
        out.push(Copy { to: staged, from });
        into.push(Copy {
            to,
            from: staged.into(),
        });
        at += run.bytes;
    }
    q.copies(&out)?;
    q.on(far)?;
    q.copies(&into)
}

fn unlent(error: CopyError) -> DeviceError {
    DeviceError::BadArgument {
        call: "plan",
        why: error.to_string(),
    }
}

pub(super) fn bug(what: &str) -> DeviceError {
    DeviceError::BadArgument {
        call: "plan",
        why: what.to_owned(),
    }
}
