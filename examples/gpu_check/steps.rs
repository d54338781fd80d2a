//! Steps with a bound each, and one for all of them.

use crate::failure::Failure;
use crate::table::Row;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

/// The steps so far.
pub(crate) struct Steps {
    until: Instant,
    rows: Vec<Row>,
    /// A step that did not end may still use the device, so none comes after it.
    is_stuck: bool,
}

impl Steps {
    pub(crate) fn new(budget: Duration) -> Steps {
        Steps {
            until: Instant::now() + budget,
            rows: Vec::new(),
            is_stuck: false,
        }
    }

    /// Runs a step that makes some rows, within a bound.
    pub(crate) fn run(
        &mut self,
        name: &str,
        bound: Duration,
        step: impl FnOnce() -> Result<Vec<Row>, Failure> + Send + 'static,
    ) {
        let left = self.until.saturating_duration_since(Instant::now());
        if self.is_stuck || left.is_zero() {
            let why = match self.is_stuck {
                true => "not run: a step before it did not end",
                false => "not run: there was no time left",
            };
            self.rows.push(Row::failed(name, why.to_owned()));
            return;
        }
        match within(bound.min(left), step) {
            Ok(Ok(rows)) => self.rows.extend(rows),
            Ok(Err(failure)) => {
                self.is_stuck = matches!(failure, Failure::Late(_));
                self.rows.push(Row::failed(name, failure.to_string()));
            }
            Err(why) => {
                self.is_stuck = true;
                self.rows.push(Row::failed(name, why));
            }
        }
    }

    /// A row that no step makes.
    pub(crate) fn push(&mut self, row: Row) {
        self.rows.push(row);
    }

    pub(crate) fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    pub(crate) fn rows(self) -> Vec<Row> {
        self.rows
    }
}

/// Runs it on a thread of its own; else why there is no answer. A thread that does not answer is left.
pub(crate) fn within<T: Send + 'static>(
    bound: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, String> {
    let (tell, told) = mpsc::channel();
    let started = thread::Builder::new()
        .name("gpu-check".to_owned())
        .spawn(move || {
            // Nobody listens any more if it took too long.
            let _ = tell.send(work());
        });
    started.map_err(|error| format!("no thread: {error}"))?;
    told.recv_timeout(bound).map_err(|error| match error {
        RecvTimeoutError::Timeout => format!("it did not end within {bound:.1?}"),
        RecvTimeoutError::Disconnected => "it panicked; see above".to_owned(),
    })
}
