//! Staying awake for a moment after something happened, and rings that are looked at meanwhile.
//!
//! ```text
//!            stay_awake                        nothing for `spin`, and every ring is armed
//!   asleep ──────────────▶ awake: look, yield ────────────────────────────────────────────▶ asleep
//!     ▲ arms each wait       ▲ arms none                        something there: awake ▲
//! ```
//!
//! A thread that sleeps takes tens of microseconds to wake, and a small room crosses six sleeping
//! threads. One that looks at its sockets and rings for a little longer is there when the answer
//! comes. It costs a core for that moment, never longer than [`MOST`]; between two looks it steps
//! aside for whoever waits for its core.
//!
//! While a thread is awake its rings are looked at, and nobody has to ring. Before it sleeps each
//! ring that is waited for is armed: it says so, and looks again. A thread that an engine drives is
//! awake as long as it is [`driven`].
//!
//! Clocks are no activity: the heartbeat of a thread on which nothing happens lets it sleep.

use super::readable::Readable;
use std::cell::{Cell, RefCell};
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// The longest that a thread stays awake for nothing; more is taken for this.
pub(crate) const MOST: Duration = Duration::from_millis(10);

/// How long a thread stays awake unless its node is told otherwise, as long as the node has a ring:
/// longer than a peer that is awake takes to answer (tens of microseconds on a busy machine), so that a
/// small room finds nobody asleep. Twice and four times as long made no room faster.
pub(crate) const WITH_RINGS: Duration = Duration::from_micros(50);

thread_local! {
    static AWAKE: Awake = Awake::default();
}

#[derive(Default)]
struct Awake {
    last: Cell<Option<Instant>>,
    /// The task of [`run`] looks at rings, or is about to, and arms them before it stops.
    spinning: Cell<bool>,
    /// Somebody else does.
    driven: Cell<bool>,
    again: Arc<Notify>,
    on: Cell<bool>,
    /// Only while the node has rings.
    with_rings: Cell<bool>,
    rings: RefCell<Rings>,
    waits: RefCell<Vec<Wait>>,
    next_wait: Cell<u64>,
}

/// How many rings the threads of a node have.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rings(Arc<AtomicUsize>);

/// One ring, as long as it is there.
pub(crate) struct RingHere(Rings);

impl RingHere {
    /// A ring of this thread.
    pub(crate) fn new() -> RingHere {
        let rings = AWAKE.with(|awake| awake.rings.borrow().clone());
        rings.0.fetch_add(1, Ordering::Relaxed);
        RingHere(rings)
    }
}

impl Drop for RingHere {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Something in shared memory that is waited for.
pub(crate) trait Watched {
    /// Whether it is there: one load.
    fn look(&self) -> bool;
    /// Asks to be rung when it is there. False if it is there already, and then nobody rings.
    fn arm(&self) -> bool;
    /// It is not waited for any more: nobody has to ring.
    fn awake(&self);
}

struct Wait {
    id: u64,
    watched: Rc<dyn Watched>,
    waker: Option<Waker>,
}

/// A wait's place in the list of its thread.
struct Listed(u64);

impl Listed {
    fn new(watched: &Rc<dyn Watched>) -> Listed {
        AWAKE.with(|awake| {
            let id = awake.next_wait.get();
            awake.next_wait.set(id.wrapping_add(1));
            awake.waits.borrow_mut().push(Wait {
                id,
                watched: Rc::clone(watched),
                waker: None,
            });
            Listed(id)
        })
    }

    fn set(&self, waker: &Waker) {
        AWAKE.with(|awake| {
            let mut waits = awake.waits.borrow_mut();
            if let Some(wait) = waits.iter_mut().find(|w| w.id == self.0) {
                match &mut wait.waker {
                    Some(known) => known.clone_from(waker),
                    none => *none = Some(waker.clone()),
                }
            }
        });
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        // The thread may be ending, and its list gone.
        let wait = AWAKE.try_with(|awake| {
            let mut waits = awake.waits.borrow_mut();
            let at = waits.iter().position(|w| w.id == self.0)?;
            Some(waits.swap_remove(at))
        });
        if let Ok(Some(wait)) = wait {
            wait.watched.awake();
        }
    }
}

/// Something happened on this thread: it stays awake for as long as it was told to.
pub(crate) fn stay_awake() {
    super::drive::happened();
    AWAKE.with(Awake::stay);
}

/// Whether this thread looks, so that nobody has to ring.
#[cfg(test)]
pub(crate) fn is_awake() -> bool {
    AWAKE.with(Awake::is_watching)
}

/// Ends when what is watched is there. `bell` is rung for it when this thread sleeps.
///
/// # Errors
/// The reactor's: it is shutting down.
pub(crate) async fn wait(watched: &Rc<dyn Watched>, bell: &Readable) -> io::Result<()> {
    let listed = Listed::new(watched);
    loop {
        let mut rung = pin!(bell.again());
        let there = std::future::poll_fn(|cx| {
            if watched.look() {
                return Poll::Ready(Ok(true));
            }
            listed.set(cx.waker());
            if !AWAKE.with(Awake::is_watching) && !watched.arm() {
                return Poll::Ready(Ok(true));
            }
            // Each ring is an edge of its own: the count is never read.
            rung.as_mut().poll(cx).map_ok(|()| false)
        });
        if there.await? {
            return Ok(());
        }
    }
}

/// Looks once at what this thread's tasks wait for in shared memory, and wakes those that have it:
/// whether there were any. One load for each, and no call to the kernel.
pub(crate) fn look() -> bool {
    AWAKE.with(Awake::look)
}

/// Whether [`look`] would find something. Wakes nobody.
pub(crate) fn is_there() -> bool {
    AWAKE.with(|awake| {
        let waits = awake.waits.borrow();
        waits.iter().any(|w| w.waker.is_some() && w.watched.look())
    })
}

/// This thread looks by itself, with [`look`], and need not be rung; or it does not any more. False if
/// something is there already, so that it must not sleep yet; what waits has been woken then.
pub(crate) fn driven(driven: bool) -> bool {
    AWAKE.with(|awake| {
        awake.driven.set(driven);
        if awake.is_watching() {
            awake.unarm_all();
            return true;
        }
        awake.arm_all()
    })
}

/// Keeps this thread awake for so long, at most [`MOST`], after each [`stay_awake`]; `None` for
/// [`WITH_RINGS`] as long as the node has `rings`. Never ends.
pub(crate) async fn run(spin: Option<Duration>, rings: Rings) {
    let most = spin.unwrap_or(WITH_RINGS).min(MOST);
    let again = AWAKE.with(|awake| {
        awake.rings.replace(rings);
        awake.with_rings.set(spin.is_none());
        awake.on.set(!most.is_zero());
        Arc::clone(&awake.again)
    });
    let _off = Off;
    loop {
        again.notified().await;
        loop {
            look();
            let lately = AWAKE
                .with(|awake| awake.last.get())
                .is_some_and(|last| last.elapsed() < most);
            if !lately && AWAKE.with(Awake::sleep) {
                break;
            }
            // The reactor looks at its sockets each time, without waiting.
            tokio::task::yield_now().await;
            std::thread::yield_now();
        }
    }
}

/// The end of [`run`]: nobody looks any more.
struct Off;

impl Drop for Off {
    fn drop(&mut self) {
        let _ = AWAKE.try_with(|awake| {
            awake.on.set(false);
            awake.sleep();
        });
    }
}

impl Awake {
    fn stay(&self) {
        let rings = || self.rings.borrow().0.load(Ordering::Relaxed) > 0;
        if self.on.get() && (!self.with_rings.get() || rings()) {
            self.last.set(Some(Instant::now()));
            if !self.spinning.replace(true) {
                self.again.notify_one();
                self.unarm_all();
            }
        }
    }

    /// Nobody has to ring.
    fn unarm_all(&self) {
        let waits = self.waits.borrow();
        waits.iter().for_each(|w| w.watched.awake());
    }

    /// Whether somebody looks at what is waited for, and arms it before that ends.
    fn is_watching(&self) -> bool {
        self.spinning.get() || self.driven.get()
    }

    fn look(&self) -> bool {
        let mut any = false;
        let mut at = 0;
        loop {
            // Nothing is woken while the list is borrowed.
            let waker = match self.waits.borrow_mut().get_mut(at) {
                None => return any,
                Some(wait) if wait.waker.is_some() && wait.watched.look() => wait.waker.take(),
                Some(_) => None,
            };
            if let Some(waker) = waker {
                any = true;
                waker.wake();
            }
            at += 1;
        }
    }

    /// False if something is there already: it has been woken then.
    fn arm_all(&self) -> bool {
        let waits = self.waits.borrow();
        // All of them, whatever the first one says.
        let there = waits.iter().filter(|w| !w.watched.arm()).count();
        drop(waits);
        if there > 0 {
            self.look();
        }
        there == 0
    }

    /// From here on what is waited for has to be rung, unless something is there already.
    fn sleep(&self) -> bool {
        self.spinning.set(false);
        let asleep = self.driven.get() || self.arm_all();
        self.spinning.set(!asleep && self.on.get());
        asleep
    }
}
