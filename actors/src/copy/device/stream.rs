//! Streams: queues of work, and how work comes to own what it uses.
//!
//! ```text
//!   queue(holds, |holds, q| { q.copy(holds.to.target(..)?, holds.from.source(..)?)?; … })
//!      │        for every 'q: what q takes is borrowed from `holds`, or lives for ever
//!      ├─ Ok ──────────────▶ InFlight(holds, event)  ── event fired ──▶ holds
//!      └─ Err: nothing queued ─▶ holds, at once
//!              some queued ────▶ InFlight(holds, event or idle stream)
//! ```

use super::backend::{Handle, Kind, Priority, RawCopy, Result};
use super::context::Inner;
use super::error::DeviceError;
use super::flight::{InFlight, Proof};
use super::kernel::{Arg, Kernel, Launch};
use super::memory::{Source, Target};
use super::ready::Ready;
use std::fmt;
use std::marker::PhantomData;
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

/// What a closure queues with. `'q` is the life of what the work owns.
pub struct Queue<'q> {
    stream: Arc<StreamInner>,
    /// Something may be in the queue.
    touched: bool,
    keeps: Vec<Kernel>,
    lives: PhantomData<fn(&'q ()) -> &'q ()>,
}

/// One copy of a batch; as many bytes as both ends have.
#[derive(Clone, Copy, Debug)]
pub struct Copy<'q> {
    /// Where to.
    pub to: Target<'q>,
    /// Where from.
    pub from: Source<'q>,
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
        self.queue_behind(Vec::new(), Vec::new(), holds, work)
    }

    /// The same, for things that the work before `proofs` owns already.
    #[allow(clippy::result_large_err)] // It hands things back.
    pub(super) fn queue_behind<T, F>(
        &self,
        mut proofs: Vec<Proof>,
        keeps: Vec<Kernel>,
        mut holds: T,
        work: F,
    ) -> std::result::Result<InFlight<T>, QueueError<T>>
    where
        T: Send + 'static,
        F: for<'q> FnOnce(&'q mut T, &mut Queue<'q>) -> Result<()>,
    {
        let context = &self.inner.context;
        let first = proofs.is_empty();
        // Before anything is queued, so that it cannot be missing afterwards.
        let event = match context.usable().and_then(|()| context.event()) {
            Ok(event) => event,
            Err(error) => {
                let holds = if first {
                    Held::Back(holds)
                } else {
                    Held::InFlight(InFlight::new(context, proofs, keeps, holds))
                };
                return Err(QueueError { error, holds });
            }
        };
        let mut queue = Queue {
            stream: Arc::clone(&self.inner),
            touched: false,
            keeps,
            lives: PhantomData,
        };
        let waited = proofs.iter().try_for_each(|proof| queue.behind(proof));
        let waits = waited.is_ok();
        let worked = catch_unwind(AssertUnwindSafe(|| {
            waited.and_then(|()| work(&mut holds, &mut queue))
        }));
        let Queue { touched, keeps, .. } = queue;
        let (done, panic) = match worked {
            Ok(done) => (done, None),
            Err(panic) => (Err(unknown()), Some(panic)),
        };
        if done.is_err() && !touched && first && panic.is_none() {
            context.give_event(event);
            let error = done.err().unwrap_or_else(unknown);
            return Err(QueueError {
                error,
                holds: Held::Back(holds),
            });
        }
        let recorded = context.note(context.backend.event_record(event, self.inner.handle));
        if waits && recorded.is_ok() {
            // The new event is behind the old ones.
            proofs.drain(..).for_each(Proof::give_back);
        }
        match &recorded {
            Ok(()) => proofs.push(Proof::Event(Arc::clone(context), event)),
            Err(_) => {
                context.give_event(event);
                // An idle stream has done its work, whatever else it was given since.
                proofs.push(Proof::Idle(Arc::clone(&self.inner)));
            }
        }
        let flight = InFlight::new(context, proofs, keeps, holds);
        if let Some(panic) = panic {
            // What may be queued keeps its things also when this unwinds.
            drop(flight);
            resume_unwind(panic);
        }
        match done.and(recorded) {
            Ok(()) => Ok(flight),
            Err(error) => Err(QueueError {
                error,
                holds: Held::InFlight(flight),
            }),
        }
    }

    /// Records an event at the end of what is queued now.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn record(&self, ready: &Ready) -> Result<()> {
        let context = &self.inner.context;
        context.usable()?;
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

impl<'q> Queue<'q> {
    /// Copies one range.
    ///
    /// # Errors
    ///
    /// As [`copies`](Self::copies).
    pub fn copy(&mut self, to: Target<'q>, from: impl Into<Source<'q>>) -> Result<()> {
        let from = from.into();
        self.copies(&[Copy { to, from }])
    }

    /// Copies many ranges with one call of the driver where it has that. They are not in order among
    /// each other, so none may write what another one reads or writes. Those of no bytes are left out.
    ///
    /// # Errors
    ///
    /// [`DeviceError::OutOfRange`] if two ends are not of the same size; or what the driver says.
    pub fn copies(&mut self, copies: &[Copy<'q>]) -> Result<()> {
        let mut raw = Vec::with_capacity(copies.len());
        for copy in copies {
            self.is_of_here("cuMemcpyAsync", copy.from.kind())?;
            self.is_of_here("cuMemcpyAsync", copy.to.kind())?;
            let (bytes, of) = (copy.from.bytes(), copy.to.bytes());
            if bytes != of {
                return Err(DeviceError::OutOfRange {
                    offset: 0,
                    bytes,
                    of,
                });
            }
            if bytes > 0 {
                raw.push(RawCopy {
                    to: copy.to.address(),
                    from: copy.from.address(),
                    bytes,
                });
            }
        }
        if raw.is_empty() {
            return Ok(());
        }
        let stream = self.begins()?;
        stream
            .context
            .note(stream.context.backend.copy(stream.handle, &raw))
    }

    /// Starts a kernel.
    ///
    /// # Errors
    ///
    /// [`DeviceError::BadArgument`] if it is another context's; or what the driver says.
    pub fn launch(&mut self, kernel: &Kernel, launch: &Launch, args: &[Arg<'q>]) -> Result<()> {
        if !kernel.is_of(&self.stream.context) {
            return Err(DeviceError::BadArgument {
                call: "cuLaunchKernel",
                why: "the kernel was loaded into another context".to_owned(),
            });
        }
        for kind in args.iter().filter_map(|arg| arg.kind) {
            self.is_of_here("cuLaunchKernel", kind)?;
        }
        let raw: Vec<_> = args.iter().map(|arg| arg.raw).collect();
        self.keeps.push(kernel.clone());
        let stream = self.begins()?;
        let backend = &stream.context.backend;
        stream
            .context
            .note(backend.launch(stream.handle, kernel.handle, launch, &raw))
    }

    /// Goes on when the event has fired, as it is recorded now. The host does not wait.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn after(&mut self, ready: &Ready) -> Result<()> {
        self.wait(&ready.context, ready.event)
    }

    /// Goes on when other work is over. The host does not wait.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn after_work<U: Send + 'static>(&mut self, other: &InFlight<U>) -> Result<()> {
        other
            .proofs()
            .iter()
            .try_for_each(|proof| self.behind(proof))
    }

    /// Calls it when what is queued before is over: to wake who polls. It must be short, and call
    /// nothing of a device. It may never be called: if the device is lost, or if this fails.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn call(&mut self, call: impl FnOnce() + Send + 'static) -> Result<()> {
        let stream = self.begins()?;
        let backend = &stream.context.backend;
        stream
            .context
            .note(backend.call(stream.handle, Box::new(call)))
    }

    fn behind(&mut self, proof: &Proof) -> Result<()> {
        match proof {
            Proof::Event(context, event) => self.wait(context, *event),
            Proof::Idle(_) => Err(DeviceError::BadArgument {
                call: "cuStreamWaitEvent",
                why: "the work before has no event, since it failed; wait for it first".to_owned(),
            }),
        }
    }

    fn wait(&mut self, of: &Inner, event: Handle) -> Result<()> {
        self.is_of_here("cuStreamWaitEvent", of.kind())?;
        let stream = self.begins()?;
        let backend = &stream.context.backend;
        stream
            .context
            .note(backend.stream_wait(stream.handle, event))
    }

    /// What another driver has made means nothing to this one.
    fn is_of_here(&self, call: &'static str, kind: Kind) -> Result<()> {
        let here = self.stream.context.kind();
        if kind == here {
            return Ok(());
        }
        Err(DeviceError::BadArgument {
            call,
            why: format!("something of a device that is {kind}, for one that is {here}"),
        })
    }

    /// From here on something may be queued.
    fn begins(&mut self) -> Result<&StreamInner> {
        self.stream.context.usable()?;
        self.touched = true;
        Ok(&self.stream)
    }
}

impl fmt::Debug for Queue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").finish_non_exhaustive()
    }
}

fn unknown() -> DeviceError {
    DeviceError::BadArgument {
        call: "queue",
        why: "nothing was said to be wrong".to_owned(),
    }
}
