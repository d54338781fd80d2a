//! Streams: queues of work, and how work comes to own what it uses.
//!
//! ```text
//!   queue(holds, |holds, q| { q.copy(holds.to.target(..)?, holds.from.source(..)?)?; q.on(other)?; … })
//!      │        for every 'q: what q takes is borrowed from `holds`, or lives for ever
//!      ├─ Ok ──────────────▶ InFlight(holds, event)  ── event fired ──▶ holds
//!      └─ Err: nothing queued ─▶ holds, at once
//!              some queued ────▶ InFlight(holds, event or idle stream)
//! ```

use super::backend::{Handle, Kind, Priority, Result};
use super::context::Inner;
use super::error::DeviceError;
use super::flight::{InFlight, Proof};
use super::queue::Queue;
use super::ready::Ready;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

/// A queue of work on a device. What is in it happens in order.
#[derive(Clone)]
pub struct Stream {
    pub(super) inner: Arc<StreamInner>,
}

pub(super) struct StreamInner {
    pub(super) context: Arc<Inner>,
    pub(super) handle: Handle,
}

/// Work could not be queued, and where its things are.
pub struct QueueError<T: Send + 'static> {
    /// Why.
    pub error: DeviceError,
    /// What the work was to own.
    pub holds: Held<T>,
}

/// Where the things of work are that was not queued, or only in part.
pub enum Held<T: Send + 'static> {
    /// Nothing was queued.
    Back(T),
    /// Some was, and has to be waited for.
    InFlight(InFlight<T>),
}

impl<T: Send + 'static> fmt::Display for QueueError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<T: Send + 'static> fmt::Debug for QueueError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueueError")
            .field("error", &self.error)
            .field("holds", &self.holds)
            .finish()
    }
}

impl<T: Send + 'static> fmt::Debug for Held<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Held::Back(_) => "Back",
            Held::InFlight(_) => "InFlight",
        })
    }
}

impl<T: Send + 'static> std::error::Error for QueueError<T> {}

impl Stream {
    pub(super) fn new(context: &Arc<Inner>, priority: Priority) -> Result<Self> {
        context.usable()?;
        let handle = context.note(context.backend.stream_create(priority))?;
        Ok(Stream {
            inner: Arc::new(StreamInner {
                context: Arc::clone(context),
                handle,
            }),
        })
    }

    /// Queues what `work` says, which takes memory only from `holds`; `holds` belongs to the work until
    /// an event behind it has fired.
    ///
    /// # Errors
    ///
    /// What `work` returned or the driver said, with `holds`.
    #[allow(clippy::result_large_err)] // It hands things back.
    pub fn queue<T, F>(&self, holds: T, work: F) -> std::result::Result<InFlight<T>, QueueError<T>>
    where
        T: Send + 'static,
        F: for<'q> FnOnce(&'q mut T, &mut Queue<'q>) -> Result<()>,
    {
        let context = &self.inner.context;
        if let Err(error) = context.usable() {
            let holds = Held::Back(holds);
            return Err(QueueError { error, holds });
        }
        let mut holds = holds;
        let mut queue = Queue::new(&self.inner);
        let worked = catch_unwind(AssertUnwindSafe(|| work(&mut holds, &mut queue)));
        match worked {
            Ok(Err(error)) if !queue.touched && queue.proofs.is_empty() => {
                let holds = Held::Back(holds);
                Err(QueueError { error, holds })
            }
            Ok(done) => {
                let (proofs, keeps, recorded) = queue.finish();
                let flight = InFlight::new(context, proofs, keeps, holds);
                match done.and(recorded) {
                    Ok(()) => Ok(flight),
                    Err(error) => {
                        let holds = Held::InFlight(flight);
                        Err(QueueError { error, holds })
                    }
                }
            }
            Err(panic) => {
                // What may be queued keeps its things also when this unwinds.
                let (proofs, keeps, _) = queue.finish();
                drop(InFlight::new(context, proofs, keeps, holds));
                resume_unwind(panic);
            }
        }
    }

    /// Records an event at the end of what is queued now. It is to be of the same context.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn record(&self, ready: &Ready) -> Result<()> {
        let context = &self.inner.context;
        context.usable()?;
        self.inner
            .is_of_here("cuEventRecord", ready.context.kind())?;
        context.note(context.backend.event_record(ready.event, self.inner.handle))
    }

    /// Whether all that was queued has happened.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn is_idle(&self) -> Result<bool> {
        let context = &self.inner.context;
        context.usable()?;
        context.note(context.backend.stream_query(self.inner.handle))
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").finish_non_exhaustive()
    }
}

impl Drop for StreamInner {
    fn drop(&mut self) {
        self.context
            .freed(self.context.backend.stream_destroy(self.handle));
    }
}

impl StreamInner {
    /// What another driver has made means nothing to this one.
    pub(super) fn is_of_here(&self, call: &'static str, kind: Kind) -> Result<()> {
        let here = self.context.kind();
        if kind == here {
            return Ok(());
        }
        Err(DeviceError::BadArgument {
            call,
            why: format!("something of a device that is {kind}, for one that is {here}"),
        })
    }

    /// Records an event behind all that is queued.
    pub(super) fn prove(&self) -> Result<Proof> {
        let context = &self.context;
        context.usable()?;
        let event = context.event()?;
        match context.note(context.backend.event_record(event, self.handle)) {
            Ok(()) => Ok(Proof::Event(Arc::clone(context), event)),
            Err(error) => {
                context.give_event(event);
                Err(error)
            }
        }
    }
}
