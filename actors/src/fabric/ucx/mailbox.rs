//! What the thread of UCX is asked to do, by whoever has a handle.
//!
//! ```text
//!   any thread ── put ──▶ Mailbox ── take ──▶ the thread
//!                  └─ rings its doorbell, if it sleeps
//! ```
//!
//! Rules: nobody waits here. New work is refused at a bound; what ends something is not, since it is
//! bounded by what was begun.

use super::UcxJob;
use super::error::UcxError;
use crate::ids::{LifeId, PeerRef};
use crate::memory::{Bell, FarPath, GateTable, Pool};
use crate::peer::hello::{FarKey, UcxMode, UcxOffer};
use crate::runtime::meter::Meter;
use crate::runtime::pulse::Beat;
use crate::runtime::stats::Stats;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use tokio::sync::oneshot::Sender;
use tokio::sync::watch;

/// Names an end of this process.
pub(super) type EndNo = u64;

/// What an end is, for its handle.
#[derive(Debug)]
pub(super) struct Born {
    pub(super) number: EndNo,
    pub(super) address: Vec<u8>,
    pub(super) probe: FarKey,
    pub(super) path: Arc<FarPath>,
    pub(super) border: Arc<OnceLock<Border>>,
}

/// What this node knows of a peer whose messages it writes into its pages.
pub(super) struct Border {
    pub(super) peer: PeerRef,
    pub(super) gates: Arc<GateTable>,
    pub(super) stats: Arc<Stats>,
    pub(super) meter: Arc<Meter>,
    /// Told why, when the route is over by itself.
    pub(super) over: super::TellOver,
}

impl std::fmt::Debug for Border {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Border")
            .field("peer", &self.peer)
            .finish_non_exhaustive()
    }
}

/// How a request is answered.
pub(super) type Reply<T> = Sender<Result<T, UcxError>>;

/// See the module.
pub(super) enum Command {
    End(Reply<Born>),
    Register(Pool, Reply<FarKey>),
    Connect(EndNo, Box<UcxOffer>, UcxMode, Reply<()>),
    Post(EndNo, Box<UcxJob>),
    /// A session begins over it, and is to be told if it is over.
    Began(EndNo, Arc<OnceLock<Border>>),
    Cancel(EndNo, LifeId),
    Close(EndNo),
    /// Whether it is there.
    Ask,
    /// The last handle of all is gone.
    Quit,
    /// Lets a test do something to the thread's state.
    #[cfg(test)]
    Test(super::tests::Poke),
}

/// See the module.
#[derive(Debug)]
pub(super) struct Mailbox {
    inner: Mutex<Inner>,
    bell: Bell,
    beat: Arc<Beat>,
    /// Whether the thread calls UCX no more.
    ended: watch::Sender<bool>,
}

struct Inner {
    commands: VecDeque<Command>,
    /// Whether the thread sleeps, or is about to.
    asleep: bool,
    /// Why nobody comes to read.
    over: Option<String>,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inner")
            .field("commands", &self.commands.len())
            .field("asleep", &self.asleep)
            .field("over", &self.over)
            .finish()
    }
}

/// Most commands that wait, of those that begin something.
pub(super) const MOST_COMMANDS: usize = 1 << 16;

/// What was not taken, and why.
pub(super) struct NotTaken {
    pub(super) command: Command,
    pub(super) why: UcxError,
}

impl Mailbox {
    pub(super) fn new(beat: &Arc<Beat>) -> io::Result<Mailbox> {
        Ok(Mailbox {
            inner: Mutex::new(Inner {
                commands: VecDeque::new(),
                asleep: false,
                over: None,
            }),
            bell: Bell::new()?,
            beat: Arc::clone(beat),
            ended: watch::Sender::new(false),
        })
    }

    /// The thread's sign of life.
    pub(super) fn beat(&self) -> &Beat {
        &self.beat
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands a command to the thread.
    pub(super) fn put(&self, command: Command) -> Result<(), NotTaken> {
        let mut inner = self.lock();
        if let Some(why) = &inner.over {
            let why = UcxError::Ended(why.clone());
            return Err(NotTaken { command, why });
        }
        let begins = !matches!(
            command,
            Command::Began(..)
                | Command::Cancel(..)
                | Command::Close(_)
                | Command::Ask
                | Command::Quit
        );
        if begins && inner.commands.len() >= MOST_COMMANDS {
            let why = UcxError::Limit {
                what: "its thread does not keep up",
                limit: "MOST_COMMANDS",
                value: MOST_COMMANDS,
            };
            return Err(NotTaken { command, why });
        }
        inner.commands.push_back(command);
        self.beat.post();
        let wake = std::mem::take(&mut inner.asleep);
        drop(inner);
        if wake {
            self.bell.ring();
        }
        Ok(())
    }

    /// Waits until the thread calls UCX no more.
    pub(super) async fn wait_ended(&self) {
        // The sender is here.
        let _ = self.ended.subscribe().wait_for(|ended| *ended).await;
    }

    /// All that has come.
    pub(super) fn take(&self, into: &mut VecDeque<Command>) {
        let mut inner = self.lock();
        inner.asleep = false;
        std::mem::swap(&mut inner.commands, into);
        self.beat.take(into.len());
    }

    /// Whether the thread may sleep: nothing has come, and whatever comes from now on rings.
    pub(super) fn sleep(&self) -> bool {
        let mut inner = self.lock();
        inner.asleep = inner.commands.is_empty();
        inner.asleep
    }

    /// Makes the doorbell silent again.
    pub(super) fn silence(&self) {
        self.bell.silence();
    }

    pub(super) fn bell(&self) -> RawFd {
        self.bell.as_fd().as_raw_fd()
    }

    /// Nobody reads any more. What waits is dropped: none of it was begun.
    pub(super) fn close(&self, why: &str) {
        let mut inner = self.lock();
        inner.over.get_or_insert_with(|| why.to_owned());
        let waiting = std::mem::take(&mut inner.commands);
        drop(inner);
        drop(waiting);
        self.beat.gone();
        self.ended.send_replace(true);
    }
}
