//! The seam between a storm and the thing it falls on.
//!
//! ```text
//!   driver ── receive / send / push / abort ──▶ Engine
//!   World  ◀── ended / back / landed ────────── Engine's own threads (trait Listener)
//! ```
//!
//! An engine says that pages are back through [`Listener`], and from that moment on they are not
//! its own: the oracle overwrites them before the call returns.
//!
//! An engine may have one of its sides in another process: then the world hears of it from there,
//! and the prefill engine (or the oracle and its scanner) of that side runs there.

use crate::storms::{RoomSpec, Side};
use kvroom::recording::Recording;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// A room of a run: its place in the script. One life of one room.
pub(crate) type RoomNo = usize;

/// How a room ended on one side.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum End {
    /// All of it is there.
    Done,
    /// Not; with the engine's words.
    Aborted(String),
}

/// Told by an engine what happened, on whichever thread it happened.
pub(crate) trait Listener: Send + Sync {
    /// Bytes of a room were handed over by prefill.
    fn pushed(&self, room: RoomNo, bytes: u64);
    /// Bytes of a room landed.
    fn landed(&self, room: RoomNo, bytes: u64);
    /// A side's outcome is known to its caller.
    fn ended(&self, room: RoomNo, side: Side, end: End, at: Instant);
    /// The receiver's pages came back. `landed`: bytes that the engine says had landed; `None` if
    /// it cannot say.
    fn destination_back(&self, room: RoomNo, pages: &[u32], landed: Option<u64>, at: Instant);
    /// Some of the sender's pages came back.
    fn source_back(&self, room: RoomNo, pages: &[u32], at: Instant);
}

/// Whether a sender can take another chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ready {
    /// Now.
    Yes,
    /// Later: decode has not claimed, or back-pressure.
    NotYet,
    /// Never: the room has ended.
    Ended,
}

/// A chunk for [`Feed::push`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    /// First page, counted from the first page that is moved (behind the skipped prefix).
    pub(crate) first: u32,
    /// Source pages, in order.
    pub(crate) pages: Vec<u32>,
    /// Nothing comes after it.
    pub(crate) last: bool,
}

/// Memory that an engine holds back with a reason.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Held {
    /// Pages now, both sides.
    pub(crate) quarantined_pages: u64,
    /// The most there were.
    pub(crate) quarantine_peak_pages: u64,
    /// Rooms whose memory is held with a reason; the rest of what is out is leaked.
    pub(crate) rooms: Vec<RoomNo>,
}

/// What the node here saw of its sessions with the other one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sessions {
    /// How often a session that had lost its connection went on.
    pub(crate) resumed: u64,
    /// How often one was over.
    pub(crate) lost: u64,
}

/// Where a prefill engine puts what it has computed.
pub(crate) trait Feed: Send + Sync {
    /// Whether [`push`](Feed::push) would take a chunk.
    fn ready(&self, room: RoomNo) -> Ready;
    /// Hands over a chunk; an error says that it was not taken.
    fn push(&self, room: RoomNo, chunk: Chunk) -> Result<(), String>;
}

const ONE_PROCESS: &str = "there is no other process";

/// What a storm falls on.
pub(crate) trait Engine: Feed {
    /// The side that another process plays.
    fn far(&self) -> Option<Side> {
        None
    }
    /// Waits until both sides can talk to each other.
    fn meet(&self, _patience: Duration) -> Result<(), String> {
        Ok(())
    }
    /// Kills the other process and starts it again under the same name and address. `killed` is
    /// called in between, when nothing of it can be heard any more. Gives how many lanes of it were
    /// inside a gate, as far as that can be arranged.
    fn kill_peer(&self, _killed: &dyn Fn()) -> Result<usize, String> {
        Err(ONE_PROCESS.into())
    }
    /// Stops the other process and returns, as [`kill_peer`](Engine::kill_peer); `time` later it goes
    /// on.
    fn stop_peer(&self, _time: Duration) -> Result<usize, String> {
        Err(ONE_PROCESS.into())
    }
    /// Waits until the other process goes on.
    fn await_peer(&self) -> Result<(), String> {
        Err(ONE_PROCESS.into())
    }
    /// What became of sessions.
    fn sessions(&self) -> Sessions {
        Sessions::default()
    }
    /// Starts the receiver. An error is a refusal: the pages are not taken.
    fn receive(&self, room: RoomNo, spec: &RoomSpec, pages: &[u32]) -> Result<(), String>;
    /// Starts the sender.
    fn send(&self, room: RoomNo, spec: &RoomSpec) -> Result<(), String>;
    /// Aborts one side of a room. Never blocks.
    fn abort(&self, room: RoomNo, side: Side);
    /// Aborts all receivers with this tag. Never blocks for long.
    fn abort_tag(&self, tag: &str);
    /// What the health check says: an HTTP status.
    fn health(&self) -> u16;
    /// What is held back now.
    fn held(&self) -> Held;
    /// Pages that the engine's own tables say are lent out now, both sides; `None` if it has none.
    fn lent_pages(&self) -> Option<u64>;
    /// What its nodes of this process recorded.
    fn recordings(&self) -> Vec<Recording> {
        Vec::new()
    }
    /// Facts for the human report, such as a worker that died and why.
    fn remarks(&self) -> Vec<String>;
    /// Ends all threads. What they still hold is not waited for.
    fn stop(&self);
}
