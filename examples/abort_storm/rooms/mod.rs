//! This project under the storm: two nodes, in one process or two.
//!
//! ```text
//!   driver thread ── start, abort ──▶ decode node   ── outcome, leases ──▶ a task per room ──▶ World
//!   prefill thread ── push, finish ─▶ prefill node  ── outcome, leases ──▶ a task per room
//!                                                    ── chunk's lease ───▶ and per chunk
//! ```
//!
//! Each side is a half of the engine: here ([`decode`], [`prefill`]), or in another process (then
//! `other::far` has what asks it).

mod base;
mod decode;
mod pool;
mod prefill;

pub(crate) use base::{Base, Place, Wiring};
#[cfg(test)]
pub(crate) use base::{SHORT_LIVENESS, SHORT_RESUME};
pub(crate) use decode::DecodeNode;
pub(crate) use pool::PoolStore;
pub(crate) use prefill::PrefillNode;

use crate::engine::{Chunk, Engine, Feed, Held, Listener, Ready, RoomNo, Sessions};
use crate::options::FabricKind;
use crate::oracle::Shape;
use crate::other::lines::{Answer, Question};
use crate::other::link::Link;
use crate::storms::{RoomSpec, Side};
use kvroom::recording::Recording;
use kvroom::{Incarnation, LocalHub};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Runtime;

/// How long nodes that start may take to meet.
pub(crate) const MEET: Duration = Duration::from_secs(10);

/// What one half says of itself.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Status {
    /// Memory that its node holds back.
    pub(crate) held: Held,
    /// Pages that its pool says are lent out.
    pub(crate) lent: u64,
    /// It answers.
    pub(crate) healthy: bool,
    /// Facts for people.
    pub(crate) remarks: Vec<String>,
}

/// One side of the engine, here or in another process.
pub(crate) trait Half: Send + Sync {
    /// Aborts its side of a room. Never blocks.
    fn abort(&self, no: RoomNo);
    /// What it says of itself.
    fn status(&self) -> Status;
    /// Waits until its node has a session with the other one.
    fn meet(&self, patience: Duration) -> Result<(), String>;
    /// From now on the other node is this life of it.
    fn expect(&self, _other: Incarnation) {}
    /// Has a lane of its node enter a gate and stay there for a moment; gives how many are inside.
    fn brace(&self) -> usize {
        0
    }
    /// What its node saw of its sessions.
    fn sessions(&self) -> Sessions {
        Sessions::default()
    }
    /// What its node recorded, if that is in this process.
    fn recording(&self) -> Option<Recording> {
        None
    }
    /// Stops its node.
    fn stop(&self);
}

/// The receiving half.
pub(crate) trait DecodeHalf: Half {
    /// See [`Engine::receive`].
    fn receive(&self, no: RoomNo, spec: &RoomSpec, pages: &[u32]) -> Result<(), String>;
    /// See [`Engine::abort_tag`].
    fn abort_tag(&self, tag: &str);
}

/// The sending half.
pub(crate) trait PrefillHalf: Half + Feed {
    /// See [`Engine::send`].
    fn send(&self, no: RoomNo, spec: &RoomSpec) -> Result<(), String>;
}

/// Both halves, and the other process if there is one.
pub(crate) struct Rooms {
    decode: Box<dyn DecodeHalf>,
    prefill: Box<dyn PrefillHalf>,
    far: Option<(Side, Arc<Link>)>,
    fabric: FabricKind,
}

impl Rooms {
    /// Starts both nodes in this process and joins them.
    pub(crate) fn in_one_process(
        wiring: &Wiring,
        shape: Shape,
        source: Arc<PoolStore>,
        destination: Arc<PoolStore>,
        listener: &Arc<dyn Listener>,
    ) -> Result<Rooms, String> {
        let runtime = runtime()?;
        let hub = LocalHub::new();
        let place = || match wiring.fabric {
            FabricKind::Local => Place::Hub(hub.clone()),
            FabricKind::Tcp | FabricKind::Shm | FabricKind::Ucx => {
                Place::Listen("tcp://127.0.0.1:0".into())
            }
        };
        let start = |side, store| {
            let runtime = Arc::clone(&runtime);
            Base::start(wiring, side, place(), runtime, shape, store, listener)
        };
        let prefill = start(Side::Prefill, source)?;
        let decode = start(Side::Decode, destination)?;
        let address = match wiring.fabric {
            FabricKind::Local => format!("local://{}", name(Side::Prefill)),
            FabricKind::Tcp | FabricKind::Shm | FabricKind::Ucx => prefill.address()?,
        };
        decode.connect(&address)?;
        let rooms = Rooms {
            decode: Box::new(DecodeNode::new(decode)),
            prefill: Box::new(PrefillNode::new(prefill)),
            far: None,
            fabric: wiring.fabric,
        };
        rooms.meet(MEET)?;
        Ok(rooms)
    }

    /// Both halves, `far` of them in the process behind `link`.
    pub(crate) fn in_two(
        fabric: FabricKind,
        decode: Box<dyn DecodeHalf>,
        prefill: Box<dyn PrefillHalf>,
        far: Side,
        link: Arc<Link>,
    ) -> Rooms {
        Rooms {
            decode,
            prefill,
            far: Some((far, link)),
            fabric,
        }
    }

    fn half(&self, side: Side) -> &dyn Half {
        match side {
            Side::Decode => &*self.decode,
            Side::Prefill => &*self.prefill,
        }
    }

    fn halves(&self) -> [&dyn Half; 2] {
        [self.half(Side::Prefill), self.half(Side::Decode)]
    }

    fn statuses(&self) -> [Status; 2] {
        self.halves().map(Half::status)
    }

    /// Over shared memory the other process's lanes are in this one's gates, if it plays prefill: has
    /// it hold them there, so that it is struck when that hurts most.
    fn brace(&self, far: Side, link: &Link) -> Result<usize, String> {
        if self.fabric != FabricKind::Shm || far != Side::Prefill {
            return Ok(0);
        }
        match link.ask(Question::Brace)? {
            Answer::Inside(lanes) => Ok(lanes),
            other => Err(format!("the other process answers {other:?}")),
        }
    }

    fn link(&self) -> Result<&(Side, Arc<Link>), String> {
        self.far
            .as_ref()
            .ok_or_else(|| "there is no other process".into())
    }
}

impl Feed for Rooms {
    fn ready(&self, no: RoomNo) -> Ready {
        self.prefill.ready(no)
    }

    fn push(&self, no: RoomNo, chunk: Chunk) -> Result<(), String> {
        self.prefill.push(no, chunk)
    }
}

impl Engine for Rooms {
    fn far(&self) -> Option<Side> {
        self.far.as_ref().map(|(side, _)| *side)
    }

    fn meet(&self, patience: Duration) -> Result<(), String> {
        // The near one first: it connects, and knows which life of the other it waits for.
        let near = self.far().map_or(Side::Decode, Side::other);
        self.half(near).meet(patience)?;
        self.half(near.other()).meet(patience)
    }

    fn kill_peer(&self, killed: &dyn Fn()) -> Result<usize, String> {
        let (far, link) = self.link()?;
        let inside = self.brace(*far, link)?;
        link.kill();
        killed();
        let incarnation = link.start_again()?;
        self.half(far.other()).expect(incarnation);
        Ok(inside)
    }

    fn stop_peer(&self, time: Duration) -> Result<usize, String> {
        let (far, link) = self.link()?;
        let inside = self.brace(*far, link)?;
        link.pause(time).map(|()| inside)
    }

    fn await_peer(&self) -> Result<(), String> {
        self.link()?.1.await_pause()
    }

    fn sessions(&self) -> Sessions {
        // One node's view: the other's would count the same twice.
        let near = self.far().map_or(Side::Decode, Side::other);
        self.half(near).sessions()
    }

    fn receive(&self, no: RoomNo, spec: &RoomSpec, pages: &[u32]) -> Result<(), String> {
        self.decode.receive(no, spec, pages)
    }

    fn send(&self, no: RoomNo, spec: &RoomSpec) -> Result<(), String> {
        self.prefill.send(no, spec)
    }

    fn abort(&self, no: RoomNo, side: Side) {
        self.half(side).abort(no);
    }

    fn abort_tag(&self, tag: &str) {
        self.decode.abort_tag(tag);
    }

    fn health(&self) -> u16 {
        match self.statuses().iter().all(|status| status.healthy) {
            true => 200,
            false => 503,
        }
    }

    fn held(&self) -> Held {
        let mut held = Held::default();
        for status in self.statuses() {
            held.quarantined_pages += status.held.quarantined_pages;
            held.quarantine_peak_pages += status.held.quarantine_peak_pages;
            held.rooms.extend(status.held.rooms);
        }
        held
    }

    fn lent_pages(&self) -> Option<u64> {
        Some(self.statuses().iter().map(|status| status.lent).sum())
    }

    fn recordings(&self) -> Vec<Recording> {
        self.halves()
            .iter()
            .filter_map(|half| half.recording())
            .collect()
    }

    fn remarks(&self) -> Vec<String> {
        self.statuses()
            .into_iter()
            .flat_map(|status| status.remarks)
            .collect()
    }

    fn stop(&self) {
        // The far one first: it is told through the process that this one ends.
        let far = self.far().unwrap_or(Side::Prefill);
        self.half(far).stop();
        self.half(far.other()).stop();
    }
}

/// What the node of a side is called.
pub(crate) fn name(side: Side) -> &'static str {
    match side {
        Side::Decode => "decode-0",
        Side::Prefill => "prefill-0",
    }
}

/// The host's own runtime: waits for outcomes and leases.
pub(crate) fn runtime() -> Result<Arc<Runtime>, String> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_time()
        .build()
        .map(Arc::new)
        .map_err(|error| error.to_string())
}
