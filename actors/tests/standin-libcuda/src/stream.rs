//! A stream: a queue, and a thread that works it off.

use crate::event::Event;
use crate::kernels;
use crate::state::{LAUNCH_FAILED, State, lock, setting, state};
use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// A function of the host, with what it is called with.
pub(crate) struct HostCall {
    pub(crate) function: unsafe extern "C" fn(*mut c_void),
    pub(crate) data: *mut c_void,
}

// SAFETY: the caller of the driver promises that the function can be called on another thread.
unsafe impl Send for HostCall {}

pub(crate) enum Step {
    /// To, from, bytes.
    Copy(Vec<(u64, u64, u64)>),
    /// Module, kernel, arguments.
    Launch(u64, String, Vec<u64>),
    Record(Arc<Event>, u64),
    Wait(Arc<Event>, u64),
    Call(HostCall),
}

pub(crate) struct Stream {
    device: usize,
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    steps: VecDeque<Step>,
    busy: bool,
    closed: bool,
}

impl Stream {
    pub(crate) fn start(device: usize) -> std::io::Result<Arc<Stream>> {
        let stream = Arc::new(Stream {
            device,
            queue: Mutex::default(),
            changed: Condvar::new(),
        });
        let works = Arc::clone(&stream);
        thread::Builder::new()
            .name("standin-stream".to_owned())
            .spawn(move || works.work(state()))?;
        Ok(stream)
    }

    pub(crate) fn push(&self, step: Step) {
        state().steps.fetch_add(1, Ordering::SeqCst);
        lock(&self.queue).steps.push_back(step);
        self.changed.notify_all();
    }

    pub(crate) fn is_idle(&self) -> bool {
        let queue = lock(&self.queue);
        queue.steps.is_empty() && !queue.busy
    }

    /// The thread ends after what is queued.
    pub(crate) fn close(&self) {
        lock(&self.queue).closed = true;
        self.changed.notify_all();
    }

    fn next(&self) -> Option<Step> {
        let mut queue = lock(&self.queue);
        loop {
            if let Some(step) = queue.steps.pop_front() {
                queue.busy = true;
                return Some(step);
            }
            if queue.closed {
                return None;
            }
            let woken = self.changed.wait(queue);
            queue = woken.unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn work(&self, state: &State) {
        let most = setting("STANDIN_DELAY_US").unwrap_or(0);
        let mut random = self as *const Stream as u64;
        while let Some(step) = self.next() {
            if most > 0 {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                thread::sleep(Duration::from_micros((random >> 33) % most));
            }
            let is_lost = || state.devices[self.device].lost().is_some();
            if !is_lost()
                && let Err(code) = self.step(state, step, &is_lost)
            {
                state.lose(self.device, code);
            }
            lock(&self.queue).busy = false;
            state.steps.fetch_sub(1, Ordering::SeqCst);
        }
    }

    fn step(&self, state: &State, step: Step, is_lost: &dyn Fn() -> bool) -> Result<(), u32> {
        match step {
            Step::Copy(copies) => {
                // The last first: a batch promises no order.
                let mut copies = copies.into_iter().rev();
                copies.try_for_each(|(to, from, bytes)| state.copy(to, from, bytes))
            }
            Step::Launch(module, name, args) => {
                // Code that was unloaded is not there to be run.
                if !lock(&state.modules).contains_key(&module) {
                    return Err(LAUNCH_FAILED);
                }
                kernels::run(state, &name, &args)
            }
            Step::Record(event, recorded) => {
                event.fires(recorded);
                state.ring();
                Ok(())
            }
            Step::Wait(event, recorded) => {
                let mut pulse = lock(&state.pulse);
                while !event.is_done(recorded) && !is_lost() {
                    // Nobody rings here for what another process does.
                    let bound = match event.is_anothers() {
                        true => Duration::from_millis(1),
                        false => Duration::from_secs(3600),
                    };
                    let woken = state.bell.wait_timeout(pulse, bound);
                    (pulse, _) = woken.unwrap_or_else(PoisonError::into_inner);
                }
                Ok(())
            }
            Step::Call(call) => {
                // SAFETY: what the caller of the driver gave for this.
                unsafe { (call.function)(call.data) };
                Ok(())
            }
        }
    }
}
