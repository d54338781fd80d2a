//! Mailboxes, and whoever waits at them: a stand-in for the channels, semaphores and parked threads of
//! the runtime, which are tokio's and actix's, for tests by loom of what is agreed upon around them.
//!
//! Every change wakes all that wait, to look again. When all that still run wait, nothing can ever
//! change any more: everybody is told, so that the test can say so. (Loom ends the process when
//! several threads are stuck.)

use loom::sync::{Arc, Condvar, Mutex};

/// All that still run wait: for each other, or for a wake-up that was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stuck;

pub(crate) struct Office<T> {
    inner: Mutex<Inner<T>>,
    changed: Condvar,
}

struct Inner<T> {
    state: T,
    running: usize,
    /// Those that have looked since the last change, and found nothing.
    waiting: usize,
    stuck: bool,
}

impl<T> Office<T> {
    /// For so many threads, each of which says when it [leaves](Office::leave).
    pub(crate) fn new(state: T, running: usize) -> Arc<Self> {
        let inner = Inner {
            state,
            running,
            waiting: 0,
            stuck: false,
        };
        Arc::new(Office {
            inner: Mutex::new(inner),
            changed: Condvar::new(),
        })
    }

    /// Waits until `step` does something.
    pub(crate) fn until<R>(&self, mut step: impl FnMut(&mut T) -> Option<R>) -> Result<R, Stuck> {
        let mut inner = self.inner.lock().unwrap();
        loop {
            if inner.stuck {
                return Err(Stuck);
            }
            if let Some(done) = step(&mut inner.state) {
                inner.waiting = 0;
                self.changed.notify_all();
                return Ok(done);
            }
            inner.waiting += 1;
            if inner.waiting == inner.running {
                inner.stuck = true;
                self.changed.notify_all();
                return Err(Stuck);
            }
            inner = self.changed.wait(inner).unwrap();
        }
    }

    /// Does something without waiting.
    pub(crate) fn now<R>(&self, step: impl FnOnce(&mut T) -> R) -> R {
        let mut inner = self.inner.lock().unwrap();
        let done = step(&mut inner.state);
        inner.waiting = 0;
        self.changed.notify_all();
        done
    }

    /// One thread less.
    pub(crate) fn leave(&self) {
        let mut inner = self.inner.lock().unwrap();
        inner.running -= 1;
        if inner.waiting == inner.running && inner.running > 0 {
            inner.stuck = true;
            self.changed.notify_all();
        }
    }

    /// Whether all that still ran waited.
    pub(crate) fn is_stuck(&self) -> bool {
        self.inner.lock().unwrap().stuck
    }
}
