//! A shard that runs on its engine's own thread, turn by turn.
//!
//! ```text
//!   engine's thread                                   the node's own threads
//!   loop { step(); driver.drive(); }                  kvroom-NAME: control; lanes
//!            │ what the inbox holds ─▶ Shard              │
//!            │ one round of its tasks (rooms, sessions)   │ ArbiterHandle: start a session here
//!            ▼ a look at its sockets and clocks           ▼
//!       System of this thread ◀───────────────────────────┘
//! ```
//!
//! Nothing runs on the shard between two turns: no message is read, no clock fires. A pause of more
//! than a second and a half is a gap, and moves the deadlines of rooms (`timers::Running`); but other
//! nodes have clocks of their own, and take one that is silent for dead.
//!
//! Rules: the inbox and rings in shared memory wake nobody while the engine turns; they are looked at
//! by a load each. Whoever parks (`run`, `wait`) arms the rings first. A turn costs
//! one look at the sockets, a system call; an idle one is left out until `LOOK` has passed. When the
//! driver goes before its node, the shard goes as one that died does: what it holds is leaked, and
//! whoever waits is told.

use super::config::NodeConfig;
use super::control::ControlMsg;
use super::spin;
use super::thread::{NodeError, Runtime};
use crate::supervisor::actor::{FromInbox, Inbound, Shard};
use actix::{ActorContext, Addr, ArbiterHandle, System, SystemRunner};
use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};

/// Between two looks at the sockets and clocks of a shard on which nothing happens.
const LOOK: Duration = Duration::from_micros(2);

/// Messages of the inbox that one turn hands to its shard.
const BATCH: usize = 256;

/// Looks at which nothing is there between two steps aside.
const STEP_ASIDE: u32 = 16;

/// How long a thread that drives several nodes rests when none of them has anything to do.
const REST: Duration = Duration::from_micros(100);

thread_local! {
    static HERE: Here = Here::default();
}

/// What a thread knows of the shards that it drives.
#[derive(Default)]
struct Here {
    /// Turns of shards, in all.
    happened: Cell<u64>,
    /// Who waits for the next one.
    waits: RefCell<Option<Waker>>,
    drivers: RefCell<Vec<Weak<Inner>>>,
    /// A system of ours was made on this thread.
    ours: Cell<bool>,
}

/// Something happened on a shard of this thread.
pub(crate) fn happened() {
    HERE.with(|here| {
        here.happened.set(here.happened.get().wrapping_add(1));
        if let Some(waker) = here.waits.take() {
            waker.wake();
        }
    });
}

fn count() -> u64 {
    HERE.with(|here| here.happened.get())
}

/// What the node's own thread needs to put a shard on another's thread.
pub(super) struct Seat {
    pub(super) arbiter: ArbiterHandle,
}

/// The shard that sits there, and its inbox, which the driver carries.
pub(super) struct Seated {
    pub(super) shard: Addr<Shard>,
    pub(super) inbox: mpsc::UnboundedReceiver<Inbound>,
    /// Ends when the node has stopped.
    pub(super) over: oneshot::Receiver<()>,
}

/// Drives the one shard of a node, on the thread that started it, which it never leaves.
///
/// Dropped before its node has stopped, it stops the node as one whose shard has died: what rooms
/// hold is leaked, never unmapped, and whoever waits for them is told. To stop in order, run
/// `shutdown` to its end first.
pub struct Driver {
    inner: Rc<Inner>,
}

struct Inner {
    name: String,
    control: mpsc::WeakSender<ControlMsg>,
    /// None once the node is over; borrowed during a turn.
    turning: RefCell<Option<Turning>>,
}

/// What to do with a future when the node is over before it.
#[derive(Clone, Copy)]
enum Then {
    Wait,
    Leave,
}

struct Turning {
    system: SystemRunner,
    shard: Addr<Shard>,
    inbox: mpsc::UnboundedReceiver<Inbound>,
    over: oneshot::Receiver<()>,
    /// The last turn had something to do.
    busy: bool,
    looked: Instant,
}

impl Runtime {
    /// Starts a node whose only shard runs on the calling thread, whenever that drives it; how many
    /// shards the configuration asks for does not count. Blocks for the few milliseconds that the
    /// node's other threads take to start.
    ///
    /// # Errors
    /// [`NodeError::InsideRuntime`] on a thread of a tokio runtime, [`NodeError::InsideSystem`] on one
    /// with an actix system, or as [`Runtime::start`]; nothing was started.
    pub fn start_driven(mut config: NodeConfig) -> Result<(Runtime, Driver), NodeError> {
        if tokio::runtime::Handle::try_current().is_ok() {
            return Err(NodeError::InsideRuntime);
        }
        if System::is_registered() && !HERE.with(|here| here.ours.get()) {
            return Err(NodeError::InsideSystem);
        }
        // A thread that drives looks at its rings, and need not be rung but while it is parked.
        let tokio = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .on_thread_park(|| {
                // What is there already has been woken: then nobody parks.
                spin::driven(false);
            })
            .on_thread_unpark(|| {
                spin::driven(true);
            })
            .build()?;
        HERE.with(|here| here.ours.set(true));
        spin::driven(true);
        let system = System::with_tokio_rt(|| tokio);
        let arbiter = System::current().arbiter().clone();
        config.shards = Some(1);
        let name = config.name.clone();
        let (runtime, seated) = Runtime::begin(config, Some(Seat { arbiter }))?;
        let seated = seated.ok_or(NodeError::Died)?;
        let inner = Rc::new(Inner {
            name,
            control: runtime.control().downgrade(),
            turning: RefCell::new(Some(Turning {
                system,
                shard: seated.shard,
                inbox: seated.inbox,
                over: seated.over,
                busy: true,
                looked: Instant::now(),
            })),
        });
        HERE.with(|here| here.drivers.borrow_mut().push(Rc::downgrade(&inner)));
        Ok((runtime, Driver { inner }))
    }
}

impl Driver {
    /// Handles what is there, without waiting, and says whether there was something. To be called
    /// again and again. Bounded: 256 messages from handles and lanes, and one round of what they and
    /// the sessions lead to. Without anything to do it costs a few loads and the time, and every
    /// 2 µs a look at the sockets.
    ///
    /// Gives false once the node has stopped.
    ///
    /// # Panics
    /// From inside a tokio runtime, or from inside a turn of its own.
    pub fn drive(&mut self) -> bool {
        self.inner.turn()
    }

    /// Drives until the future is done, parked while there is nothing to do. A node that stops
    /// meanwhile is driven to its end, and the future waited for.
    ///
    /// # Panics
    /// As [`Driver::drive`], or if the future does.
    pub fn run<F: Future>(&mut self, future: F) -> F::Output {
        let mut future = pin!(future);
        match self.inner.run(future.as_mut(), Then::Wait) {
            Some(value) => value,
            None => park_on(future),
        }
    }

    /// As [`Driver::run`], and never parks: it looks without a break, at the cost of a busy core, so that
    /// nobody waits for this thread to wake. Between two looks at which nothing is there it steps aside
    /// for whoever waits for its core.
    ///
    /// # Panics
    /// As [`Driver::drive`], or if the future does.
    pub fn run_looking<F: Future>(&mut self, future: F) -> F::Output {
        let mut future = pin!(future);
        match self.inner.run_looking(future.as_mut()) {
            Some(value) => value,
            None => park_on(future),
        }
    }

    /// Drives for so long, parked while there is nothing to do; shorter if the node stops.
    ///
    /// # Panics
    /// As [`Driver::drive`].
    pub fn drive_for(&mut self, time: Duration) {
        // Made inside, where there is a clock.
        let sleep = async move { tokio::time::sleep(time).await };
        let _ = self.inner.run(pin!(sleep), Then::Leave);
    }

    /// Parks until something happens, handles it, and gives true; false when `at_most` is over, or the
    /// node has stopped.
    ///
    /// # Panics
    /// As [`Driver::drive`].
    pub fn wait(&mut self, at_most: Duration) -> bool {
        if self.inner.turn() {
            return true;
        }
        let before = count();
        let something = async {
            tokio::select! {
                biased;
                () = next(before) => true,
                () = tokio::time::sleep(at_most) => false,
            }
        };
        self.inner
            .run(pin!(something), Then::Leave)
            .unwrap_or(false)
    }

    /// Whether the node has stopped, so that there is nothing to drive any more.
    pub fn is_over(&self) -> bool {
        self.inner.turning.borrow().is_none()
    }
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driver")
            .field("node", &self.inner.name)
            .finish_non_exhaustive()
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let turning = self.inner.turning.take();
        if turning.is_some()
            && let Some(control) = self.inner.control.upgrade()
        {
            // The shard is gone: nothing can begin any more, and the node may go too.
            let _ = control.try_send(ControlMsg::Stop);
        }
        drop(turning);
        HERE.with(|here| {
            let me = Rc::as_ptr(&self.inner);
            let mut drivers = here.drivers.borrow_mut();
            drivers.retain(|d| d.as_ptr() != me);
            if drivers.is_empty() {
                spin::driven(false);
            }
        });
    }
}

impl Inner {
    fn turn(&self) -> bool {
        let mut slot = self.borrow();
        let Some(turning) = slot.as_mut() else {
            return false;
        };
        if !turning.is_due() {
            return false;
        }
        let happened = turning.turn();
        if turning.is_over() {
            let gone = slot.take();
            drop(slot);
            drop(gone);
        }
        happened
    }

    /// None if the node was over, and the future was not touched.
    fn run_looking<F: Future>(&self, mut future: Pin<&mut F>) -> Option<F::Output> {
        let woken = Arc::new(Woken(AtomicBool::new(true)));
        let waker = Waker::from(Arc::clone(&woken));
        let mut slot = self.borrow();
        let turning = slot.as_mut()?;
        let mut idle = 0_u32;
        loop {
            if woken.0.swap(false, Ordering::AcqRel)
                && let Some(value) = turning.turn_for(future.as_mut(), &waker)
            {
                return Some(value);
            }
            let looked = turning.is_due();
            if looked && turning.turn() {
                idle = 0;
            } else {
                idle = idle.wrapping_add(1);
                if idle.is_multiple_of(STEP_ASIDE) {
                    thread::yield_now();
                }
            }
            if looked && turning.is_over() {
                let value = turning.end(future);
                let gone = slot.take();
                drop(slot);
                drop(gone);
                return value;
            }
        }
    }

    /// None if the node was over, and the future was not touched; or if it is, and that is left.
    fn run<F: Future>(&self, future: Pin<&mut F>, then: Then) -> Option<F::Output> {
        let mut slot = self.borrow();
        let turning = slot.as_mut()?;
        let value = turning.run(future, then);
        turning.busy = true;
        if turning.is_over() {
            let gone = slot.take();
            drop(slot);
            drop(gone);
        }
        value
    }

    fn borrow(&self) -> std::cell::RefMut<'_, Option<Turning>> {
        match self.turning.try_borrow_mut() {
            Ok(turning) => turning,
            Err(_) => panic!(
                "node {:?} is being driven by this very thread, which cannot wait for it here: await the future instead",
                self.name
            ),
        }
    }
}

impl Turning {
    fn is_due(&self) -> bool {
        self.busy || !self.inbox.is_empty() || spin::is_there() || self.looked.elapsed() >= LOOK
    }

    fn is_over(&mut self) -> bool {
        self.inbox.is_closed()
            || !matches!(
                self.over.try_recv(),
                Err(oneshot::error::TryRecvError::Empty)
            )
    }

    /// What waits in the inbox goes to the shard, every task that is ready has its turn, and sockets
    /// and clocks are looked at.
    fn turn(&mut self) -> bool {
        let before = count();
        let mut first = true;
        let (inbox, shard) = (&mut self.inbox, &self.shard);
        // Tasks run when this future has been polled and is not ready.
        self.system.block_on(poll_fn(|cx| {
            if !std::mem::take(&mut first) {
                return Poll::Ready(());
            }
            carry(inbox, shard);
            spin::look();
            cx.waker().wake_by_ref();
            Poll::Pending
        }));
        self.looked = Instant::now();
        self.busy = count() != before;
        self.busy
    }

    /// A turn in which a future is polled, too. None if it is not ready.
    fn turn_for<F: Future>(&mut self, mut future: Pin<&mut F>, waker: &Waker) -> Option<F::Output> {
        let mut first = true;
        let (inbox, shard) = (&mut self.inbox, &self.shard);
        let value = self.system.block_on(poll_fn(|cx| {
            if !std::mem::take(&mut first) {
                return Poll::Ready(None);
            }
            carry(inbox, shard);
            spin::look();
            let ready = future.as_mut().poll(&mut Context::from_waker(waker));
            if let Poll::Ready(value) = ready {
                return Poll::Ready(Some(value));
            }
            // Not at once: what the future left for the end of the turn is only done then.
            cx.waker().wake_by_ref();
            Poll::Pending
        }));
        self.busy = true;
        value
    }

    /// The node is over; the future is waited for all the same.
    fn end<F: Future>(&mut self, future: Pin<&mut F>) -> Option<F::Output> {
        let (inbox, shard) = (&mut self.inbox, &self.shard);
        self.system.block_on(async {
            stop(inbox, shard);
            Some(future.await)
        })
    }

    /// The future may need this thread's runtime (its clocks), so that goes last. None if the node is
    /// over and nobody wants to wait for the future then.
    fn run<F: Future>(&mut self, mut future: Pin<&mut F>, then: Then) -> Option<F::Output> {
        let (inbox, shard) = (&mut self.inbox, &self.shard);
        let over = &mut self.over;
        self.system.block_on(async {
            let mut batch = Vec::new();
            // Whatever woke this: a future that looks on without a break lets no thread park, and only
            // a thread that parks asks to be rung.
            let mut look = poll_fn(|_| {
                spin::look();
                Poll::<()>::Pending
            });
            loop {
                tokio::select! {
                    biased;
                    () = &mut look => {}
                    value = &mut future => return Some(value),
                    _ = &mut *over => break,
                    n = inbox.recv_many(&mut batch, BATCH) => {
                        if n > 0 {
                            shard.do_send(FromInbox(std::mem::take(&mut batch)));
                        } else {
                            break;
                        }
                    }
                }
            }
            // The node has stopped. What its shard still holds is leaked, and whoever waits is told:
            // the future may be the one that does.
            stop(inbox, shard);
            match then {
                Then::Wait => Some(future.await),
                Then::Leave => None,
            }
        })
    }
}

/// Nothing reaches the shard any more, and it lets go of what it holds.
fn stop(inbox: &mut mpsc::UnboundedReceiver<Inbound>, shard: &Addr<Shard>) {
    let stop = Inbound::Ask(Box::new(|_, ctx| ctx.stop()));
    shard.do_send(FromInbox(vec![stop]));
    inbox.close();
    while inbox.try_recv().is_ok() {}
}

/// One batch for the shard, which takes it in the same turn.
fn carry(inbox: &mut mpsc::UnboundedReceiver<Inbound>, shard: &Addr<Shard>) {
    if inbox.is_empty() {
        return;
    }
    let mut batch = Vec::with_capacity(inbox.len().min(BATCH));
    while batch.len() < BATCH
        && let Ok(message) = inbox.try_recv()
    {
        batch.push(message);
    }
    shard.do_send(FromInbox(batch));
}

/// Ready when something has happened on this thread since `before`.
async fn next(before: u64) {
    poll_fn(|cx| {
        HERE.with(|here| {
            if here.happened.get() != before {
                return Poll::Ready(());
            }
            here.waits.replace(Some(cx.waker().clone()));
            Poll::Pending
        })
    })
    .await;
}

/// Set when a future is to be polled again.
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future of this project to its end on the calling thread. Needs no runtime: such futures
/// wait for channels and atomics only. Nodes that this thread drives are driven meanwhile, or it might
/// wait for itself.
///
/// # Panics
/// From inside a turn of a node that this thread drives.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    loop {
        let mut drivers = HERE.with(|here| {
            let drivers = here.drivers.borrow();
            drivers.iter().filter_map(Weak::upgrade).collect::<Vec<_>>()
        });
        drivers.retain(|d| d.turning.try_borrow().map_or(true, |t| t.is_some()));
        match drivers.as_slice() {
            [] => return park_on(future),
            [one] => {
                if let Some(value) = one.run(future.as_mut(), Then::Wait) {
                    return value;
                }
            }
            several => {
                let waker = Waker::from(Arc::new(Unpark(thread::current())));
                if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                    return value;
                }
                let happened = several.iter().filter(|d| d.turn()).count();
                if happened == 0 {
                    thread::park_timeout(REST);
                }
            }
        }
    }
}

fn park_on<F: Future>(mut future: Pin<&mut F>) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(value) => return value,
            Poll::Pending => thread::park(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_with_a_system_of_somebody_else_is_left_alone() {
        let system = System::new();
        let refused = Runtime::start_driven(NodeConfig::new("d"));
        assert!(matches!(refused, Err(NodeError::InsideSystem)));
        drop(system);
    }

    #[test]
    fn a_node_that_does_not_start_leaves_its_thread_as_good_as_before() {
        let mut config = NodeConfig::new("d");
        config.lanes = 0;
        let refused = Runtime::start_driven(config);
        assert!(matches!(refused, Err(NodeError::Zero("lanes"))));
        let (runtime, mut driver) = Runtime::start_driven(NodeConfig::new("d")).unwrap();
        assert!(driver.run(runtime.stop()).drained);
        assert!(driver.is_over());
    }

    #[test]
    fn an_idle_driver_looks_at_its_sockets_only_now_and_then() {
        let (runtime, mut driver) = Runtime::start_driven(NodeConfig::new("d")).unwrap();
        let start = Instant::now();
        while driver.drive() {}
        let mut looks = 0;
        let mut seen = driver.looked();
        for _ in 0..100_000 {
            driver.drive();
            looks += u128::from(driver.looked() != seen);
            seen = driver.looked();
        }
        let most = start.elapsed().as_nanos() / LOOK.as_nanos() + 1;
        assert!(looks <= most, "{looks} looks, {most} were due");
        assert!(driver.run(runtime.stop()).drained);
    }

    impl Driver {
        fn looked(&self) -> Option<Instant> {
            self.inner.turning.borrow().as_ref().map(|t| t.looked)
        }
    }
}
