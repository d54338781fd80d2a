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
