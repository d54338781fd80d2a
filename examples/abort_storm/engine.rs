//! The seam between a storm and the thing it falls on.
//!
//! ```text
//!   driver ── receive / send / push / abort ──▶ Engine
//!   World  ◀── ended / back / landed ────────── Engine's own threads (trait Listener)
//! ```
//!
//! An engine says that pages are back through [`Listener`], and from that moment on they are not
//! its own: the oracle overwrites them before the call returns.

use crate::oracle::PageStore;
use crate::storms::{RoomSpec, Side};
use std::time::Instant;

/// A room of a run: its place in the script. One life of one room.
pub(crate) type RoomNo = usize;

/// How a room ended on one side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// All of it is there.
    Done,
    /// Not; with the engine's words.
    Aborted(String),
}

/// Told by an engine what happened, on whichever thread it happened.
pub(crate) trait Listener: Send + Sync {
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

/// A chunk for [`Engine::push`].
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
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Held {
    /// Pages now, both sides.
    pub(crate) quarantined_pages: u64,
    /// The most there were.
    pub(crate) quarantine_peak_pages: u64,
    /// Rooms whose memory is held with a reason; the rest of what is out is leaked.
    pub(crate) rooms: Vec<RoomNo>,
}

/// What a storm falls on.
pub(crate) trait Engine: Send + Sync {
    /// Where the receiver's pages are.
    fn destination(&self) -> &dyn PageStore;
    /// Starts the receiver. An error is a refusal: the pages are not taken.
    fn receive(&self, room: RoomNo, spec: &RoomSpec, pages: &[u32]) -> Result<(), String>;
    /// Starts the sender.
    fn send(&self, room: RoomNo, spec: &RoomSpec) -> Result<(), String>;
    /// Whether [`push`](Engine::push) would take a chunk.
    fn ready(&self, room: RoomNo) -> Ready;
    /// Hands over a chunk; an error says that it was not taken.
    fn push(&self, room: RoomNo, chunk: Chunk) -> Result<(), String>;
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
    /// Facts for the human report, such as a worker that died and why.
    fn remarks(&self) -> Vec<String>;
    /// Ends all threads. What they still hold is not waited for.
    fn stop(&self);
}
