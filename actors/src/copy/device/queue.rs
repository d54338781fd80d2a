//! What a closure queues with: copies, kernels, waits, and one stream after the other.

use super::backend::{Handle, Kind, RawCopy, Result};
use super::context::Inner;
use super::error::DeviceError;
use super::flight::{InFlight, Proof};
use super::kernel::{Arg, Kernel, Launch};
use super::memory::{Source, Target};
use super::ready::Ready;
use super::stream::{Stream, StreamInner};
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

/// What a closure queues with. `'q` is the life of what the work owns.
pub struct Queue<'q> {
    pub(super) stream: Arc<StreamInner>,
    /// Something may be in this stream since the last proof.
    pub(super) touched: bool,
    /// For what is in the streams before this one.
    pub(super) proofs: Vec<Proof>,
    /// This stream waits for all of that.
    chained: bool,
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

impl<'q> Queue<'q> {
    pub(super) fn new(stream: &Arc<StreamInner>) -> Self {
        Queue {
            stream: Arc::clone(stream),
            touched: false,
            proofs: Vec::new(),
            chained: true,
            keeps: Vec::new(),
            lives: PhantomData,
        }
    }

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
        let raw: Vec<_> = args.iter().map(|arg| arg.raw.clone()).collect();
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

    /// Goes on in another stream, also another device's, behind everything that was queued so far.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn on(&mut self, stream: &Stream) -> Result<()> {
        self.is_of_here("cuStreamWaitEvent", stream.inner.context.kind())?;
        if Arc::ptr_eq(&self.stream, &stream.inner) {
            return Ok(());
        }
        if self.touched {
            let proof = self.stream.prove()?;
            self.prove(proof);
        }
        self.stream = Arc::clone(&stream.inner);
        self.touched = false;
        let proofs = std::mem::take(&mut self.proofs);
        let waits = proofs.iter().try_for_each(|proof| self.behind(proof));
        self.proofs = proofs;
        self.chained = waits.is_ok();
        waits
    }

    /// Adds a proof for this stream, which stands for those before if this stream waits for them.
    fn prove(&mut self, proof: Proof) {
        if self.chained {
            self.proofs.drain(..).for_each(Proof::give_back);
        }
        self.proofs.push(proof);
    }

    /// What shows that all of it is over.
    pub(super) fn finish(mut self) -> (Vec<Proof>, Vec<Kernel>, Result<()>) {
        let recorded = match self.stream.prove() {
            Ok(proof) => {
                self.prove(proof);
                Ok(())
            }
            Err(error) => {
                // An idle stream has done its work, whatever else it was given since.
                self.proofs.push(Proof::Idle(Arc::clone(&self.stream)));
                Err(error)
            }
        };
        (self.proofs, self.keeps, recorded)
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

    fn is_of_here(&self, call: &'static str, kind: Kind) -> Result<()> {
        self.stream.is_of_here(call, kind)
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
