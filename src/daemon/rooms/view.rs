//! What is told about rooms, as JSON.

use super::request::RoleName;
use crate::daemon::http::Id;
use kvroom::{Code, Outcome, Proof, Reason, Role, Side, StateName};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A room.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct Room {
    /// The room.
    #[schema(value_type = String)]
    pub(crate) id: Id,
    /// Which try of it.
    pub(crate) attempt: u32,
    /// The attempt that failed, of which this is a new try; null if it is none.
    pub(crate) retry_of: Option<u32>,
    /// Its role here.
    pub(crate) role: RoleName,
    /// Its state.
    pub(crate) state: RoomState,
    /// How it ended; null while it is not known.
    pub(crate) outcome: Option<End>,
    /// Its memory is proven quiet and back in its pools.
    pub(crate) released: bool,
    /// What that rests on, one for each leg that was ever opened: `NeverSubmitted`, `Completed`,
    /// `PeerDrained`, `GateClosed`, `PathFenced`, `SourceFenced`, `WriterDead`.
    pub(crate) proofs: Vec<String>,
    /// What had landed when the gates closed; null before, and for a room that sends.
    pub(crate) landed: Option<LandedBytes>,
    /// Names of the peers of its legs.
    pub(crate) peers: Vec<String>,
    /// Its legs, while it holds memory.
    pub(crate) legs: Vec<Leg>,
    /// Its tag.
    pub(crate) tag: Option<String>,
    /// Pages that it was given: destination pages, or those of its chunks so far.
    pub(crate) pages: u64,
    /// Pages that it holds now, by pool, while its memory is not released.
    pub(crate) pool_pages: Vec<PoolPages>,
    /// Milliseconds since its start, to now or to the moment when its memory was back.
    pub(crate) age_ms: u64,
    /// It passed its drain deadline, and its memory is still not proven quiet.
    pub(crate) quarantined: bool,
    /// Why its memory is still held, if its outcome is known.
    pub(crate) held_because: Option<String>,
    /// Chunks, of a room that sends.
    pub(crate) chunks: Option<Chunks>,
    /// The trace context that it was started with; of a room that sends and was started without one,
    /// while it holds memory, the ids that came with a claim for it.
    pub(crate) traceparent: Option<String>,
    /// Its slot on the status page; null without a page, or if all slots were taken.
    pub(crate) status_slot: Option<u32>,
}

/// A room's state. `done` is known before its memory is back, `aborted` after: a room that was aborted
/// and still holds memory is `draining`.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RoomState {
    /// Waits for its other side, or for bytes.
    Registered,
    /// Bytes move.
    Transferring,
    /// Its outcome is known; it waits until its memory is proven quiet.
    Draining,
    /// Everything was written.
    Done,
    /// It ended otherwise.
    Aborted,
}

/// How a room ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(tag = "end", rename_all = "snake_case")]
pub(crate) enum End {
    /// Everything was written.
    Done {},
    /// Otherwise, for this reason.
    Aborted(Why),
}

/// Why a room ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct Why {
    /// The kind, stable, for programs: for example `Requested`.
    pub(crate) code: String,
    /// Where it happened: `local` or `peer`.
    pub(crate) side: SideName,
    /// For people.
    pub(crate) detail: String,
}

/// Where something happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SideName {
    /// Here.
    Local,
    /// On the other node.
    Peer,
}

/// What had landed at a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct LandedBytes {
    /// Pieces.
    pub(crate) pieces: u64,
    /// Bytes in them.
    pub(crate) bytes: u64,
    /// Bytes that the room wanted in all.
    pub(crate) wanted: u64,
}

/// One leg of a room.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct Leg {
    /// The peer's name.
    pub(crate) peer: String,
    /// In words: `bound`, `ended`, `closed`, `claim not sent yet`, `gate open`, `gate closing`,
    /// `gate closed`, `session lost`.
    pub(crate) state: String,
    /// Bytes of the copies that were posted for it; null at a receiver, which is not told.
    pub(crate) posted_bytes: Option<u64>,
    /// Bytes that were written: by the copies that have come back, or into a receiver's pages so far.
    pub(crate) written_bytes: u64,
}

/// Pages of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct PoolPages {
    /// The pool's name.
    pub(crate) pool: String,
    /// Indices.
    pub(crate) pages: Vec<u32>,
}

/// Chunks of a room that sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct Chunks {
    /// Taken.
    pub(crate) pushed: u32,
    /// Landed on every leg: their source pages are back.
    pub(crate) landed: u32,
}

/// A chunk that was taken.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct ChunkTaken {
    /// The chunk.
    pub(crate) chunk: ChunkView,
}

/// A chunk.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct ChunkView {
    /// Its tokens.
    pub(crate) tokens: [u64; 2],
    /// Its layers.
    pub(crate) layers: [u32; 2],
    /// The pool's name.
    pub(crate) pool: String,
    /// How many pages.
    pub(crate) pages: u32,
}

/// Rooms, newest first.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct RoomList {
    /// The rooms.
    pub(crate) rooms: Vec<Room>,
    /// Give it as `after` to see the next ones; null at the end.
    pub(crate) next: Option<String>,
}

/// How many rooms were told to end.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct AbortedCount {
    /// Rooms of the shards that have answered, with claims that waited for one.
    pub(crate) aborted: u64,
    /// Every shard has answered. If not, the rooms of the others are not counted, and end when it goes on.
    pub(crate) complete: bool,
    /// The shards that have not answered: `shard 2`.
    pub(crate) silent: Vec<String>,
}

/// Answers of a batch.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct BatchResults {
    /// In the order of the operations.
    pub(crate) results: Vec<BatchResult>,
}

/// The answer to one operation.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct BatchResult {
    /// The status that it would have had by itself.
    pub(crate) status: u16,
    /// Its body: what it would have been by itself, a problem document included.
    #[schema(value_type = Object)]
    pub(crate) body: serde_json::Value,
}

/// Claims that wait for a local room that sends, oldest first.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct EarlyClaimList {
    /// The claims; at most 1000.
    pub(crate) early_claims: Vec<EarlyClaimView>,
    /// How many there are in all.
    pub(crate) count: u64,
}

/// A claim that waits.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct EarlyClaimView {
    /// The room that it is for.
    #[schema(value_type = String)]
    pub(crate) room: Id,
    /// Its attempt.
    pub(crate) attempt: u32,
    /// Name of the decode node.
    pub(crate) peer: String,
    /// Destination pages that it holds there.
    pub(crate) pages: u64,
}

impl std::convert::From<&Outcome> for End {
    fn from(outcome: &Outcome) -> End {
        match outcome {
            Outcome::Done => End::Done {},
            Outcome::Aborted(reason) => End::Aborted(reason.into()),
        }
    }
}

impl std::convert::From<&Reason> for Why {
    fn from(reason: &Reason) -> Why {
        Why {
            code: code_name(reason.code),
            side: match reason.side {
                Side::Local => SideName::Local,
                Side::Peer => SideName::Peer,
            },
            detail: reason.text.clone(),
        }
    }
}

impl std::convert::From<StateName> for RoomState {
    fn from(state: StateName) -> RoomState {
        match state {
            StateName::Registered => RoomState::Registered,
            StateName::Transferring => RoomState::Transferring,
            StateName::Draining => RoomState::Draining,
            StateName::Done => RoomState::Done,
            StateName::Aborted => RoomState::Aborted,
        }
    }
}

impl std::convert::From<Role> for RoleName {
    fn from(role: Role) -> RoleName {
        match role {
            Role::Receiver => RoleName::Receive,
            Role::Sender => RoleName::Send,
        }
    }
}

/// A code as it is written everywhere.
pub(crate) fn code_name(code: Code) -> String {
    format!("{code:?}")
}

/// Proofs by their names.
pub(crate) fn proof_names(proofs: &[Proof]) -> Vec<String> {
    proofs.iter().map(Proof::to_string).collect()
}
