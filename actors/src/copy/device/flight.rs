//! Work that is queued, and owns what it uses until that is proven to be over.
//!
//! ```text
//!   InFlight ── poll ──▶ Pending(InFlight)      no event yet
//!                        Landed(T)              every event behind the work has fired
//!                        Lost(Lost<T>)          the device is lost: nobody can say any more
//!   drop(InFlight) ────▶ parked in the context, freed by `Context::reap` once it is over
//!   drop(Lost) ────────▶ leaked, and counted: never freed
//! ```

use super::backend::{Handle, Result};
use super::context::Inner;
use super::error::{DeviceError, Sticky};
use super::kernel::Kernel;
use super::stream::StreamInner;
use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How often in a row a driver may fail to say whether an event has fired, before it is not asked again.
const DOUBTS: u32 = 8;

/// What shows that work is over.
pub(super) enum Proof {
    /// An event behind it has fired. It is of the context of its stream.
    Event(Arc<Inner>, Handle),
    /// Its stream has nothing left to do.
    Idle(Arc<StreamInner>),
}

impl Proof {
    /// The event has fired, or is not waited for any more.
    pub(super) fn give_back(self) {
        if let Proof::Event(context, event) = self {
            context.give_event(event);
        }
    }

    fn is_there(&self) -> Result<bool> {
        match self {
            Proof::Event(context, event) => {
                context.usable()?;
                context.note(context.backend.event_query(*event))
            }
            Proof::Idle(stream) => {
                let context = &stream.context;
                context.usable()?;
                context.note(context.backend.stream_query(stream.handle))
            }
        }
    }
}

/// Work that is queued, with what it owns.
#[must_use = "what the work owns comes back by `poll` or `wait`"]
pub struct InFlight<T: Send + 'static> {
    flight: Option<Flight<T>>,
}

struct Flight<T> {
    context: Arc<Inner>,
    proofs: Vec<Proof>,
    keeps: Vec<Kernel>,
    /// How often in a row the driver could not say.
    doubts: u32,
    holds: T,
}

/// What became of work.
#[must_use = "it has what the work owned"]
pub enum Polled<T: Send + 'static> {
    /// It is over: here is what it owned.
    Landed(T),
    /// Not yet.
    Pending(InFlight<T>),
    /// The device is lost.
    Lost(Lost<T>),
}

/// What work on a lost device owned. No proof says that the work is over, so it is never freed.
#[must_use = "it says which work was lost"]
pub struct Lost<T> {
    holds: ManuallyDrop<T>,
    why: DeviceError,
}

impl<T: Send + 'static> InFlight<T> {
    pub(super) fn new(
        context: &Arc<Inner>,
        proofs: Vec<Proof>,
        keeps: Vec<Kernel>,
        holds: T,
    ) -> Self {
        context.counts.in_flight.fetch_add(1, Ordering::Relaxed);
        InFlight {
            flight: Some(Flight {
                context: Arc::clone(context),
                proofs,
                keeps,
                doubts: 0,
                holds,
            }),
        }
    }

    pub(super) fn proofs(&self) -> &[Proof] {
        self.flight.as_ref().map_or(&[], |flight| &flight.proofs)
    }

    /// Looks whether it is over. Does not wait.
    pub fn poll(mut self) -> Polled<T> {
        let Some(mut flight) = self.flight.take() else {
            unreachable!("a flight is there until it is polled or dropped");
        };
        match flight.look() {
            Ok(true) => Polled::Landed(flight.land()),
            Ok(false) => {
                self.flight = Some(flight);
                Polled::Pending(self)
            }
            Err(why) => Polled::Lost(flight.lose(why)),
        }
    }

    /// Looks again and again, at longer and longer intervals, at most for `bound`.
    pub fn wait(self, bound: Duration) -> Polled<T> {
        let until = Instant::now() + bound;
        let mut pause = Duration::from_micros(2);
        let mut flight = self;
        loop {
            match flight.poll() {
                Polled::Pending(again) if Instant::now() < until => {
                    flight = again;
                    std::thread::sleep(pause);
                    pause = (pause * 2).min(Duration::from_micros(200));
                }
                other => return other,
            }
        }
    }
}

impl<T: Send + 'static> Flight<T> {
    /// Whether all proofs are there. Those that are go back.
    fn look(&mut self) -> Result<bool> {
        while let Some(proof) = self.proofs.last() {
            match proof.is_there() {
                Ok(true) => self.doubts = 0,
                Ok(false) => {
                    self.doubts = 0;
                    if let Proof::Idle(stream) = proof
                        && let Ok(event) = stream.prove()
                    {
                        // An event could not be recorded behind the work; now one can. It is behind more than
                        // that, and a stream that others keep busy is never idle.
                        self.proofs.pop();
                        self.proofs.push(event);
                    }
                    return Ok(false);
                }
                Err(error) if !error.is_sticky() && self.doubts < DOUBTS => {
                    self.doubts += 1;
                    return Ok(false);
                }
                Err(error) => return Err(error),
            }
            if let Some(proof) = self.proofs.pop() {
                proof.give_back();
            }
        }
        Ok(true)
    }

    fn land(self) -> T {
        let counts = &self.context.counts;
        counts.in_flight.fetch_sub(1, Ordering::Relaxed);
        self.holds
    }

    fn lose(self, why: DeviceError) -> Lost<T> {
        let counts = &self.context.counts;
        counts.in_flight.fetch_sub(1, Ordering::Relaxed);
        counts.leaked.fetch_add(1, Ordering::Relaxed);
        // The code may run, too; and an event may be waited for.
        std::mem::forget((self.keeps, self.proofs));
        Lost {
            holds: ManuallyDrop::new(self.holds),
            why,
        }
    }
}

impl<T: Send + 'static> Drop for InFlight<T> {
    fn drop(&mut self) {
        if let Some(flight) = self.flight.take() {
            let context = Arc::clone(&flight.context);
            context.counts.in_flight.fetch_sub(1, Ordering::Relaxed);
            context.park(Box::new(flight));
        }
    }
}

impl<T: Send + 'static> fmt::Debug for InFlight<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InFlight").finish_non_exhaustive()
    }
}

impl<T: Send + 'static> fmt::Debug for Polled<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Polled::Landed(_) => f.write_str("Landed"),
            Polled::Pending(_) => f.write_str("Pending"),
            Polled::Lost(lost) => lost.fmt(f),
        }
    }
}

impl<T> Lost<T> {
    /// Why. [`DeviceError::Lost`], unless the driver failed again and again to say whether the work is
    /// over.
    #[must_use]
    pub fn why(&self) -> &DeviceError {
        &self.why
    }

    /// The error that stays, if it is one.
    #[must_use]
    pub fn sticky(&self) -> Option<&Sticky> {
        match &self.why {
            DeviceError::Lost(sticky) => Some(sticky),
            _ => None,
        }
    }

    /// What the work owned, to say whose it was.
    #[must_use]
    pub fn holds(&self) -> &T {
        &self.holds
    }
}

impl<T> fmt::Debug for Lost<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lost")
            .field("why", &self.why)
            .finish_non_exhaustive()
    }
}

/// Work that was let go of before it was over.
pub(super) trait Parked: Send {
    /// Frees what it owns if it is over; else here it is again.
    fn step(self: Box<Self>) -> Option<Box<dyn Parked>>;
}

impl<T: Send + 'static> Parked for Flight<T> {
    fn step(mut self: Box<Self>) -> Option<Box<dyn Parked>> {
        match self.look() {
            Ok(true) => None,
            // Also where the device is lost: it is counted as parked, and stays.
            Ok(false) | Err(_) => Some(self),
        }
    }
}
