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
pub use kvroom_actors::room::event::{JobEnd, LegTerms, SectionShape, Timer};

use super::node::{Node, ask_with, room_info};
use super::stats::RoomInfo;
use std::time::Duration;

/// What should have come to an end by itself, and has not.
#[derive(Clone, Debug, Default)]
pub struct Stuck {
    /// Rooms without an outcome although their deadline is over, and rooms that are quarantined.
    pub rooms: Vec<RoomInfo>,
    /// Shards that did not answer, by their numbers.
    pub silent: Vec<usize>,
}

impl Node {
    /// Rooms that have no outcome `grace` after their deadline, and rooms that passed their drain
    /// deadline. Each shard is given `within` to answer.
    pub async fn stuck_rooms(&self, grace: Duration, within: Duration) -> Stuck {
        let asked: Vec<_> = (self.runtime().inboxes().iter())
            .map(|inbox| ask_with(inbox, move |shard, _| shard.stuck_rooms(grace)))
            .collect();
        let until = tokio::time::Instant::now() + within.min(LONGEST);
        let (mut found, mut silent) = (Vec::new(), Vec::new());
        for (shard, answer) in asked.into_iter().enumerate() {
            // One that has stopped has no rooms.
            let Some(answer) = answer else { continue };
            match tokio::time::timeout_at(until, answer).await {
                Ok(rooms) => found.extend(rooms.unwrap_or_default()),
                Err(_) => silent.push(shard),
            }
        }
        let names = match found.is_empty() {
            true => Default::default(),
            false => self.peer_names().await,
        };
        let rooms = found.into_iter().map(|room| room_info(room, &names));
        Stuck {
            rooms: rooms.collect(),
            silent,
        }
    }
}

/// An instant cannot hold every duration.
const LONGEST: Duration = Duration::from_secs(86_400);
