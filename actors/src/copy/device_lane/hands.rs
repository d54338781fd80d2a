//! What a lane queues with, and a piece while it is queued.

use super::Waker;
use crate::copy::device::{
    Context, Copy, DeviceError, Held, InFlight, Queue, QueueError, Ready, Slot, Staging, Stream,
};
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
    streams: Streams,
    /// Streams of devices that pieces of this one go to, by way of a slot.
    far: Vec<(Context, Stream)>,
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
    pub(super) runs: Vec<Piece>,
    pub(super) section: u16,
    pub(super) cursor: Cell<usize>,
}

/// Which stream.
#[derive(Clone, Debug)]
pub(super) enum When {
    Now,
    /// After the event, in this late stream.
    After(Arc<Ready>, usize),
    /// After the event, which has fired.
    Fired(Arc<Ready>),
}

impl Hands {
    pub(super) fn new(context: Context, staging: Staging, streams: Streams, waker: Waker) -> Self {
        Hands {
            context,
            staging,
            streams,
            far: Vec::new(),
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
        self.staging.slot_bytes()
    }

    /// Pieces that are queued at a time.
    pub(super) fn window(&self) -> usize {
        self.staging.slots()
    }

    pub(super) fn slot(&self) -> Option<Slot> {
        self.staging.take()
    }

    /// Whether the device can be made to reach memory of another one.
    pub(super) fn reaches(&self, other: &Context) -> bool {
        self.context.same(other) || self.context.reach(other).is_ok()
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
            When::After(ready, _) | When::Fired(ready) => Some(Arc::clone(ready)),
        };
        let waker = self.waker.clone();
        stream.queue(holds, move |holds, q| {
            if let Some(ready) = &ready {
                q.after(ready)?;
            }
            copy(way, holds, q)?;
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
        when: &When,
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
        let (stream, ready) = match when {
            When::Now => (self.nth_read(self.next), None),
            When::Fired(ready) => (self.nth_read(self.next), Some(Arc::clone(ready))),
            When::After(ready, late) => {
                let late = &self.streams.late[late % self.streams.late.len()];
                (late, Some(Arc::clone(ready)))
            }
        };
        let waker = self.waker.clone();
        stream.queue(holds, move |holds, q| {
            if let Some(ready) = &ready {
                q.after(ready)?;
            }
            across(holds, q, &far)?;
            let _ = q.call(move || waker.wake());
            Ok(())
        })
    }

    fn nth_read(&self, n: usize) -> &Stream {
        &self.streams.reads[n % self.streams.reads.len()]
    }
}

fn copy<'q>(way: Way, holds: &'q mut Holds, q: &mut Queue<'q>) -> Result<(), DeviceError> {
    let Holds {
        stay,
        part,
        slot,
        runs,
        section,
        cursor,
    } = holds;
    let (part, stay): (&'q Ticket, Option<&'q Staying>) = (part, stay.as_ref());
    let total: u64 = runs.iter().map(|run| run.bytes).sum();
    let mut copies = Vec::with_capacity(runs.len());
    let mut at = 0;
    match way {
        Way::Out => {
            let all = slot
                .as_mut()
                .ok_or_else(|| bug("no slot"))?
                .target(0..total)?;
            for run in &*runs {
                let from = part.device_source(run.src, run.bytes).map_err(unlent)?;
                let to = all.part(at..at + run.bytes)?;
                copies.push(Copy { to, from });
                at += run.bytes;
            }
        }
        Way::In => {
            let all = slot
                .as_ref()
                .ok_or_else(|| bug("no slot"))?
                .source(0..total)?;
            let stay = stay.ok_or_else(|| bug("not inside"))?;
            for run in &*runs {
                let to = stay
                    .device_target(*section, run.dst, run.bytes, cursor)
                    .map_err(unlent)?;
                let from = all.part(at..at + run.bytes)?;
                copies.push(Copy { to, from });
                at += run.bytes;
            }
        }
        Way::Direct => {
            let stay = stay.ok_or_else(|| bug("not inside"))?;
            for run in &*runs {
                let from = part.device_source(run.src, run.bytes).map_err(unlent)?;
                let to = stay
                    .device_target(*section, run.dst, run.bytes, cursor)
                    .map_err(unlent)?;
                copies.push(Copy { to, from });
            }
        }
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

fn bug(what: &str) -> DeviceError {
    DeviceError::BadArgument {
        call: "plan",
        why: what.to_owned(),
    }
}
