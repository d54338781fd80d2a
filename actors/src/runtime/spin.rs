//! Staying awake for a moment after something happened.
//!
//! A thread that sleeps takes tens of microseconds to wake, and a small room crosses six sleeping
//! threads. One that looks at its sockets for a little longer is there when the answer comes. It
//! costs a core for that moment, so it is off unless a node is told so, and never for longer than
//! [`MOST`]; between two looks it steps aside for whoever waits for its core.
//!
//! Clocks are no activity: the heartbeat of a thread on which nothing happens lets it sleep.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// The longest that a thread stays awake for nothing; more is taken for this.
pub(crate) const MOST: Duration = Duration::from_millis(10);

thread_local! {
    static AWAKE: Awake = Awake::default();
}

#[derive(Default)]
struct Awake {
    last: Cell<Option<Instant>>,
    spinning: Cell<bool>,
    again: Arc<Notify>,
    on: Cell<bool>,
}

/// Something happened on this thread: it stays awake for as long as it was told to.
pub(crate) fn stay_awake() {
    super::drive::happened();
    AWAKE.with(|awake| {
        if awake.on.get() {
            awake.last.set(Some(Instant::now()));
            if !awake.spinning.get() {
                awake.again.notify_one();
            }
        }
    });
}

/// Keeps this thread awake for `spin`, at most [`MOST`], after each [`stay_awake`]. Never ends.
pub(crate) async fn run(spin: Duration) {
    let spin = spin.min(MOST);
    let again = AWAKE.with(|awake| {
        awake.on.set(true);
        Arc::clone(&awake.again)
    });
    loop {
        again.notified().await;
        AWAKE.with(|awake| awake.spinning.set(true));
        while AWAKE
            .with(|awake| awake.last.get())
            .is_some_and(|last| last.elapsed() < spin)
        {
            // The reactor looks at its sockets each time, without waiting.
            tokio::task::yield_now().await;
            std::thread::yield_now();
        }
        AWAKE.with(|awake| awake.spinning.set(false));
    }
}
