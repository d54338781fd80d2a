//! A stream: a queue and the thread that works it off.

use super::super::backend::{Priority, RawCopy};
use super::super::context::lock;
use super::super::kernel::Launch;
use super::kernels::{HostKernel, IllegalAccess, Value, View};
use super::timeline::{Line, Span, Work};
use super::{DeviceState, Event, Shared};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Operations in one queue; who queues more waits.
const DEPTH: usize = 1024;
/// An illegal address.
const ILLEGAL: u32 = 700;
/// What a kernel that panicked is to the driver.
const FAILED: u32 = 719;

/// What a stream does.
pub(super) enum Step {
    Copy(Vec<RawCopy>),
    Launch {
        kernel: Arc<dyn HostKernel>,
        is_loaded: Arc<AtomicBool>,
        launch: Launch,
        args: Vec<Value>,
    },
    Record(Arc<Event>, u64),
    Wait(Arc<Event>, u64),
    Call(Box<dyn FnOnce() + Send>),
    /// Something that was queued well and goes wrong.
    Fail(u32),
}

impl Step {
    /// Bytes that it moves.
    fn bytes(&self) -> u64 {
        match self {
            Step::Copy(copies) => copies.iter().map(|copy| copy.bytes).sum(),
            Step::Launch { kernel, args, .. } => kernel.moves(args),
            _ => 0,
        }
    }
}

pub(super) struct Stream {
    machine: Arc<Shared>,
    device: Arc<DeviceState>,
    number: u64,
    /// It goes before others, and so waits for nothing.
    prompt: bool,
    stop: AtomicBool,
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    steps: VecDeque<Step>,
    /// One step is under way.
    busy: bool,
    /// No more come; the thread ends after the last.
    closed: bool,
    /// The thread has ended.
    over: bool,
}

/// How a stream's thread ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// After all that is queued.
    Drained,
    /// After the step that is under way; what it waits for is not waited for.
    Now,
}

impl Stream {
    /// A stream and its thread, if the host gives one.
    pub(super) fn start(
        machine: &Arc<Shared>,
        device: &Arc<DeviceState>,
        priority: Priority,
    ) -> std::io::Result<(Arc<Stream>, JoinHandle<()>)> {
        let stream = Arc::new(Stream {
            machine: Arc::clone(machine),
            device: Arc::clone(device),
            number: device.numbered.fetch_add(1, Ordering::Relaxed),
            prompt: priority == Priority::High,
            stop: AtomicBool::new(false),
            queue: Mutex::default(),
            changed: Condvar::new(),
        });
        let works = Arc::clone(&stream);
        let name = format!("emul-{}-{}", device.identity.ordinal, stream.number);
        let thread = thread::Builder::new()
            .name(name)
            .spawn(move || works.work())?;
        Ok((stream, thread))
    }

    /// Queues a step; waits while the queue is full.
    pub(super) fn push(&self, step: Step) {
        let mut queue = lock(&self.queue);
        while queue.steps.len() >= DEPTH && self.device.lost.get().is_none() {
            queue = self.wait_for_change(queue);
        }
        queue.steps.push_back(step);
        drop(queue);
        self.changed.notify_all();
    }

    pub(super) fn is_idle(&self) -> bool {
        let queue = lock(&self.queue);
        queue.steps.is_empty() && !queue.busy
    }

    /// No more steps come.
    pub(super) fn close(&self, end: End) {
        if end == End::Now {
            self.stop.store(true, Ordering::SeqCst);
        }
        lock(&self.queue).closed = true;
        self.changed.notify_all();
        self.machine.ring();
    }

    /// Waits until the thread has ended, within a bound.
    pub(super) fn is_over_within(&self, until: Instant) -> bool {
        let mut queue = lock(&self.queue);
        while !queue.over {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let woken = self.changed.wait_timeout(queue, left);
            queue = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    fn wait_for_change<'a>(
        &self,
        queue: std::sync::MutexGuard<'a, Queue>,
    ) -> std::sync::MutexGuard<'a, Queue> {
        // With a bound, since a device that is lost rings only the machine's bell.
        let woken = self.changed.wait_timeout(queue, Duration::from_millis(20));
        woken.unwrap_or_else(PoisonError::into_inner).0
    }

    /// The thread.
    fn work(&self) {
        let mut nth = 0;
        while let Some(step) = self.next() {
            if self.goes_on() {
                let span = self.begins(&step);
                self.pause(nth, &step);
                self.step(step);
                self.ends(span);
            }
            nth += 1;
            lock(&self.queue).busy = false;
            self.changed.notify_all();
        }
        self.device.streams.fetch_sub(1, Ordering::SeqCst);
        lock(&self.queue).over = true;
        self.changed.notify_all();
    }

    fn goes_on(&self) -> bool {
        self.device.lost.get().is_none() && !self.stop.load(Ordering::SeqCst)
    }

    fn next(&self) -> Option<Step> {
        let mut queue = lock(&self.queue);
        loop {
            if let Some(step) = queue.steps.pop_front() {
                queue.busy = true;
                drop(queue);
                self.changed.notify_all();
                return Some(step);
            }
            if queue.closed {
                return None;
            }
            let woken = self.changed.wait(queue);
            queue = woken.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// What the timeline is to have of a step, if anything.
    fn begins(&self, step: &Step) -> Option<Span> {
        let recorder = &self.machine.recorder;
        let work = match step {
            _ if !recorder.is_on() => None,
            Step::Copy(_) => Some(Work::Copy),
            Step::Launch { .. } => Some(Work::Launch),
            _ => None,
        }?;
        let begin = recorder.now();
        let line = Line {
            device: self.device.identity.ordinal,
            stream: self.number,
        };
        Some(Span {
            line,
            work,
            bytes: step.bytes(),
            begin,
            end: begin,
        })
    }

    fn ends(&self, span: Option<Span>) {
        if let Some(span) = span {
            let end = self.machine.recorder.now();
            self.machine.recorder.keep(Span { end, ..span });
        }
    }

    /// As long as the seed says, and the bytes take.
    fn pause(&self, nth: u64, step: &Step) {
        if self.prompt {
            return;
        }
        let config = &self.machine.config;
        let random = mix(config.seed ^ mix(self.number ^ mix(nth)));
        let most = config.delay.as_nanos() as u64;
        let mut nanos = if most == 0 { 0 } else { random % (most + 1) };
        if config.straggler > 0 && mix(random).is_multiple_of(config.straggler) {
            nanos = nanos.saturating_mul(10);
        }
        if config.rate > 0 {
            let took = u128::from(step.bytes()) * 1_000_000_000 / u128::from(config.rate);
            nanos = nanos.saturating_add(u64::try_from(took).unwrap_or(u64::MAX));
        }
        if nanos == 0 {
            return;
        }
        let until = Instant::now() + Duration::from_nanos(nanos);
        self.wait_until(Some(until), || false);
    }

    /// Waits until something is so, or the time has come, or the device is lost.
    fn wait_until(&self, until: Option<Instant>, is_so: impl Fn() -> bool) {
        let mut pulse = lock(&self.machine.pulse);
        while !is_so() && self.goes_on() {
            let bell = &self.machine.bell;
            pulse = match until {
                None => bell.wait(pulse).unwrap_or_else(PoisonError::into_inner),
                Some(until) => {
                    let left = until.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return;
                    }
                    let woken = bell.wait_timeout(pulse, left);
                    woken.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    fn step(&self, step: Step) {
        let done = match step {
            Step::Copy(copies) => self.copies(copies),
            // Code that was unloaded is not there to be run.
            Step::Launch { is_loaded, .. } if !is_loaded.load(Ordering::SeqCst) => Err(FAILED),
            Step::Launch {
                kernel,
                launch,
                args,
                ..
            } => self.launch(&*kernel, &launch, &args),
            Step::Record(event, recorded) => {
                event.fires(recorded);
                self.machine.ring();
                Ok(())
            }
            Step::Wait(event, recorded) => {
                self.wait_until(None, || event.is_done(recorded));
                Ok(())
            }
            Step::Call(call) => {
                // A panic of the caller's closure is the caller's; the stream goes on.
                let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(call));
                Ok(())
            }
            Step::Fail(code) => Err(code),
        };
        if let Err(code) = done {
            self.machine.lose(&self.device, code);
        }
    }

    /// In an order that the seed says: a batch promises none.
    fn copies(&self, mut copies: Vec<RawCopy>) -> Result<(), u32> {
        let turns = copies.len() as u64;
        if let Some(by) = mix(self.machine.config.seed ^ turns).checked_rem(turns) {
            copies.rotate_left(by as usize);
        }
        let copied = copies
            .into_iter()
            .try_for_each(|copy| self.machine.memory.copy(copy));
        copied.map_err(illegal)
    }

    fn launch(&self, kernel: &dyn HostKernel, launch: &Launch, args: &[Value]) -> Result<(), u32> {
        let reaches = lock(&self.device.reaches).clone();
        let view = View {
            memory: &self.machine.memory,
            device: self.device.identity.ordinal,
            reaches: &reaches,
        };
        let run = std::panic::AssertUnwindSafe(|| kernel.run(launch, args, &view));
        match std::panic::catch_unwind(run) {
            Ok(run) => run.map_err(illegal),
            Err(_) => Err(FAILED),
        }
    }
}

fn illegal(access: IllegalAccess) -> u32 {
    tracing::debug!(%access, "an emulated device is lost");
    ILLEGAL
}

/// A number that looks like chance and is not (the finalizer of SplitMix64).
pub(super) fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
