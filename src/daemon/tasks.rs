//! The daemon's own tasks, and whether each of them still runs.
//!
//! ```text
//!   Tasks::spawn("rooms keeper", …) ─▶ the task, with a Guard ── dropped: it has ended, or panicked ──▶ atomics
//!                                        └ Turns::begin ─▶ Turn ── dropped: it waits for work again ─────▶ │
//!                                                                       health reads them ◀──────────────┘
//! ```
//!
//! Rules: every task that has to run for as long as the daemon does is started here, so that none of
//! them can end without a word. Reading waits for nobody. That all of them end when the daemon was told
//! to stop is known to who reads.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// All of them. Clones are the same.
#[derive(Clone)]
pub(crate) struct Tasks(Arc<All>);

struct All {
    since: Instant,
    /// As many as the configuration has: they are never taken out.
    list: watch::Sender<Vec<Arc<Task>>>,
}

/// What the end of a task means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Without {
    /// Nothing can be done here any more, and nothing is lost by a restart that is not lost already.
    NotAlive,
    /// The node goes on; something about it is not known or not done.
    NotReady,
}

struct Task {
    name: String,
    without: Without,
    /// 0 while it runs; twice the milliseconds at which it ended, plus one if by a panic.
    end: AtomicU64,
    /// 0 while it is well; the milliseconds since when it is not, then 16 bits of the system's error.
    trouble: AtomicU64,
    /// 0 while it waits for work; the milliseconds at which it took some up that is not done yet.
    turn: AtomicU64,
}

/// It has done what it was for.
const DONE: u64 = u64::MAX;

/// A task, when it was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TaskSeen {
    /// Its name.
    pub(crate) name: String,
    /// What its end means.
    pub(crate) without: Without,
    /// For how long it has not run any more, and whether it panicked.
    pub(crate) over: Option<(Duration, bool)>,
    /// For how long the system has refused what it has to do, and the last error.
    pub(crate) failing: Option<(Duration, i32)>,
    /// For how long it has been at one piece of work.
    pub(crate) in_turn: Option<Duration>,
}

impl Tasks {
    /// None yet.
    pub(crate) fn new() -> Tasks {
        Tasks(Arc::new(All {
            since: Instant::now(),
            list: watch::Sender::new(Vec::new()),
        }))
    }

    /// Starts a task that must not end.
    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        name: &str,
        without: Without,
        task: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        let guard = self.enter(name, without);
        tokio::spawn(async move {
            let _guard = guard;
            task.await
        })
    }

    /// As [`Tasks::spawn`], for a task that says when it takes up work, and when that is done.
    pub(crate) fn spawn_in_turns<F: Future<Output = ()> + Send + 'static>(
        &self,
        name: &str,
        without: Without,
        task: impl FnOnce(Turns) -> F,
    ) {
        let guard = self.enter(name, without);
        let task = task(Turns {
            since: guard.since,
            task: Arc::clone(&guard.task),
        });
        tokio::spawn(async move {
            let _guard = guard;
            task.await;
        });
    }

    /// Starts a task that may end, and must not panic.
    pub(crate) fn spawn_until_done(
        &self,
        name: &str,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        let guard = self.enter(name, Without::NotReady);
        tokio::spawn(async move {
            task.await;
            guard.task.end.store(DONE, Ordering::Relaxed);
        });
    }

    /// What a task has to own, and to drop at its end.
    pub(crate) fn enter(&self, name: &str, without: Without) -> Guard {
        let task = Arc::new(Task {
            name: name.to_owned(),
            without,
            end: AtomicU64::new(0),
            trouble: AtomicU64::new(0),
            turn: AtomicU64::new(0),
        });
        self.0.list.send_modify(|all| all.push(Arc::clone(&task)));
        Guard {
            since: self.0.since,
            task,
        }
    }

    /// All but those that have done what they were for.
    pub(crate) fn look(&self) -> Vec<TaskSeen> {
        let now = millis(self.0.since);
        let ago = |then: u64| Duration::from_millis(now.saturating_sub(then));
        let all = self.0.list.borrow();
        let there = all.iter().filter_map(|task| {
            // Who sees the end sees what came before it: that it was told to.
            let end = task.end.load(Ordering::Acquire);
            let trouble = task.trouble.load(Ordering::Relaxed);
            let turn = task.turn.load(Ordering::Relaxed);
            (end != DONE).then(|| TaskSeen {
                name: task.name.clone(),
                without: task.without,
                over: (end != 0).then(|| (ago(end >> 1), end & 1 == 1)),
                failing: (trouble != 0).then(|| (ago(trouble >> 16), (trouble & 0xffff) as i32)),
                in_turn: (turn != 0 && end == 0).then(|| ago(turn)),
            })
        });
        there.collect()
    }
}

/// With which a task says that it is at work.
pub(crate) struct Turns {
    since: Instant,
    task: Arc<Task>,
}

impl Turns {
    /// It is, from now on until what is returned is dropped.
    pub(crate) fn begin(&self) -> Turn<'_> {
        let now = millis(self.since).max(1);
        self.task.turn.store(now, Ordering::Relaxed);
        Turn(&self.task)
    }
}

/// Work that is being done.
pub(crate) struct Turn<'a>(&'a Task);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.turn.store(0, Ordering::Relaxed);
    }
}

/// Marks its task as over when it is dropped.
pub(crate) struct Guard {
    since: Instant,
    task: Arc<Task>,
}

impl Guard {
    /// The system refuses what the task has to do. True if it did not before.
    pub(crate) fn fails(&self, error: &std::io::Error) -> bool {
        let errno = error.raw_os_error().and_then(|e| u64::try_from(e).ok());
        let errno = errno.unwrap_or_default() & 0xffff;
        let since = match self.task.trouble.load(Ordering::Relaxed) >> 16 {
            0 => millis(self.since).max(1),
            since => since,
        };
        let before = self
            .task
            .trouble
            .swap(since << 16 | errno, Ordering::Relaxed);
        before == 0
    }

    /// It does what it has to do. True if it did not before.
    pub(crate) fn succeeds(&self) -> bool {
        self.task.trouble.swap(0, Ordering::Relaxed) != 0
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let panicked = std::thread::panicking();
        let end = millis(self.since).max(1) << 1 | u64::from(panicked);
        let (order, failed) = (Ordering::Release, Ordering::Relaxed);
        let ended = self.task.end.compare_exchange(0, end, order, failed);
        if ended.is_ok() && panicked {
            tracing::error!("the task {:?} of the daemon has panicked", self.task.name);
        }
    }
}

fn millis(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX >> 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn over(tasks: &Tasks) -> Vec<(String, bool)> {
        let all = tasks.look().into_iter();
        all.filter_map(|t| Some((t.name, t.over?.1))).collect()
    }

    #[tokio::test]
    async fn a_task_that_ends_panics_or_is_put_out_is_over_and_one_that_runs_or_is_done_is_not() {
        let tasks = Tasks::new();
        let runs = tasks.spawn("runs", Without::NotReady, std::future::pending::<()>());
        let put_out = tasks.spawn("put out", Without::NotReady, std::future::pending::<()>());
        let ends = tasks.spawn("ends", Without::NotAlive, async { 7 });
        let panics = tasks.spawn("panics", Without::NotAlive, async { panic!("planted") });
        tasks.spawn_until_done("done", async {});
        tasks.spawn_until_done("not done", async { panic!("planted") });
        assert_eq!(over(&tasks), []);
        put_out.abort();
        assert!(put_out.await.is_err() && panics.await.is_err());
        assert_eq!(ends.await.unwrap(), 7);
        while over(&tasks).len() < 4 || tasks.look().len() > 5 {
            tokio::task::yield_now().await;
        }
        let name = |name: &str, panicked| (name.to_owned(), panicked);
        assert_eq!(
            over(&tasks),
            [
                name("put out", false),
                name("ends", false),
                name("panics", true),
                name("not done", true)
            ]
        );
        runs.abort();
    }

    #[tokio::test]
    async fn a_task_that_is_at_work_is_known_to_be_and_since_when_until_it_is_done() {
        let tasks = Tasks::new();
        let (go, mut gone) = tokio::sync::mpsc::channel(1);
        tasks.spawn_in_turns("keeper", Without::NotAlive, |turns| async move {
            while gone.recv().await.is_some() {
                let _turn = turns.begin();
                // Until the next one comes.
                gone.recv().await;
            }
        });
        let at_work = || tasks.look()[0].in_turn;
        let until = async |is: &dyn Fn() -> bool| {
            let start = Instant::now();
            while !is() {
                assert!(start.elapsed() < Duration::from_secs(10), "{:?}", at_work());
                tokio::task::yield_now().await;
            }
        };
        for _ in 0..2 {
            assert_eq!(at_work(), None);
            go.send(()).await.unwrap();
            until(&|| at_work().is_some()).await;
            let before = at_work().unwrap();
            until(&|| at_work().unwrap() > before).await;
            go.send(()).await.unwrap();
            until(&|| at_work().is_none()).await;
        }
        drop(go);
        until(&|| !over(&tasks).is_empty()).await;
        assert_eq!(at_work(), None);
    }

    #[test]
    fn what_the_system_refuses_is_known_since_it_began_and_until_it_ends() {
        let tasks = Tasks::new();
        let guard = tasks.enter("listener", Without::NotAlive);
        let failing = || tasks.look()[0].failing.map(|(_, errno)| errno);
        assert_eq!((guard.succeeds(), failing()), (false, None));
        assert!(guard.fails(&std::io::Error::from_raw_os_error(24)));
        let since = guard.task.trouble.load(Ordering::Relaxed) >> 16;
        std::thread::sleep(Duration::from_millis(3));
        assert!(!guard.fails(&std::io::Error::from_raw_os_error(23)));
        assert_eq!(failing(), Some(23));
        assert_eq!(guard.task.trouble.load(Ordering::Relaxed) >> 16, since);
        assert_eq!((guard.succeeds(), failing()), (true, None));
        drop(guard);
        assert_eq!(over(&tasks), [("listener".to_owned(), false)]);
    }
}
