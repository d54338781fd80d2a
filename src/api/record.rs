//! The flight recorder: what happened lately on a node, for whoever has to find out why.
//!
//! ```
//! # use kvroom::{Node, NodeError};
//! # fn main() -> Result<(), NodeError> {
//! let node = Node::builder("decode-0").recorder(4_096).blocking_start()?;
//! let mut since = 0;
//! let records = node.recorder().read(since, 1_000);
//! for entry in &records.entries {
//!     println!("{} {:?} {:?}", entry.seq, entry.at, entry.what);
//! }
//! since = records.next; // and again, later
//! # node.blocking_shutdown();
//! # Ok(()) }
//! ```

pub use kvroom_actors::ids::{ChunkNo, ClaimNo, LegNo, LifeId};
pub use kvroom_actors::record::{
    Begun, ChunkTold, Entry, GateIs, Part, PeerIs, Proofs, Recorder, Records, Road, Step, Told,
    What, Word, message_named,
};
pub use kvroom_actors::room::event::{JobEnd, LegTerms, SectionShape, SliceShape, Timer};

use super::node::{Node, room_info};
use super::stats::RoomInfo;
use std::task::Poll;
use std::time::Duration;

/// What should have come to an end by itself, and has not.
#[derive(Clone, Debug, Default)]
pub struct Stuck {
    /// Rooms without an outcome although their deadline is over, and rooms that are quarantined.
    pub rooms: Vec<RoomInfo>,
    /// How many such rooms there are that are not listed.
    pub more: u64,
    /// Shards that did not answer, by their numbers.
    pub silent: Vec<usize>,
}

impl Node {
    /// Rooms that have no outcome `grace` after their deadline, and rooms that passed their drain
    /// deadline: 256 of each shard at most, the oldest first. Deadlines move by the time in which this
    /// process does not run. The answer is there after `within` and a tenth of a second, and never has a shard
    /// more than one of these questions to answer. To be awaited in a tokio runtime that has a clock.
    pub async fn stuck_rooms(&self, grace: Duration, within: Duration) -> Stuck {
        let until = tokio::time::Instant::now() + within.min(LONGEST);
        let shards = 0..self.runtime().inboxes().len();
        // All of them at once: none waits for another's silence.
        let asked = shards.map(|shard| self.runtime().stuck_rooms(shard, grace, until));
        let mut stuck = Stuck::default();
        let mut found = Vec::new();
        for (shard, answer) in all(asked).await.into_iter().enumerate() {
            match answer {
                Ok(rooms) => {
                    stuck.more += rooms.more;
                    found.extend(rooms.rooms);
                }
                Err(_) => stuck.silent.push(shard),
            }
        }
        let names = match found.is_empty() {
            true => Default::default(),
            // If the node's own task is stuck as well, then without the names of peers.
            false => {
                let until = until.max(tokio::time::Instant::now() + within.min(NAMES));
                let names = tokio::time::timeout_at(until, self.peer_names());
                names.await.unwrap_or_default()
            }
        };
        let rooms = found.into_iter().map(|room| room_info(room, &names));
        stuck.rooms = rooms.collect();
        stuck
    }
}

/// Awaits all of these at once; what they give, in order.
async fn all<F: Future>(these: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut these: Vec<_> = these.map(|one| (Box::pin(one), None)).collect();
    std::future::poll_fn(|context| {
        let mut waits = false;
        for (one, given) in &mut these {
            if given.is_none() {
                match one.as_mut().poll(context) {
                    Poll::Ready(is) => *given = Some(is),
                    Poll::Pending => waits = true,
                }
            }
        }
        if waits {
            Poll::Pending
        } else {
            Poll::Ready(())
        }
    })
    .await;
    these.into_iter().filter_map(|(_, given)| given).collect()
}

/// How long the node's own task may take for the names of peers, if the shards have taken all of the time.
const NAMES: Duration = Duration::from_millis(100);
/// An instant cannot hold every duration.
pub(super) const LONGEST: Duration = Duration::from_secs(86_400);
