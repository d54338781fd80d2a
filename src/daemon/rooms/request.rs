//! What can be asked about rooms, as JSON.

use crate::daemon::http::Id;
use serde::Deserialize;
use utoipa::ToSchema;

/// Most bytes of a tag.
pub(crate) const MAX_TAG: usize = 256;
/// Most operations of a batch.
pub(crate) const MAX_BATCH: usize = 1_000;
/// Longest deadline of a room in milliseconds: a day.
pub(crate) const MAX_DEADLINE_MS: u64 = 86_400_000;

/// A room to be started.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize, ToSchema)]
#[serde(tag = "role", rename_all = "snake_case")]
pub(crate) enum StartRoom {
    /// A decode room: bytes arrive in its pages.
    Receive(StartReceive),
    /// A prefill room: chunks of source pages are pushed into it.
    Send(StartSend),
}

/// A decode room to be started.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct StartReceive {
    /// The room: the engines' bootstrap room.
    pub(crate) id: Id,
    /// Which try this is. A key (id and attempt) is used once.
    #[serde(default)]
    pub(crate) attempt: u32,
    /// The attempt of this room that failed, if this is a new try of it. It is shown and counted, and what is to
    /// be told to a peer without a session waits for the next session.
    #[serde(default)]
    pub(crate) retry_of: Option<u32>,
    /// The peers that send, by name; with the layers that each covers if there is more than one.
    #[schema(min_items = 1)]
    pub(crate) from: Vec<From>,
    /// Destination pages, one entry a pool: one page for every page of tokens `skip` to `total`.
    #[serde(default)]
    pub(crate) pages: Vec<Pages>,
    /// Where the aux row goes.
    #[serde(default)]
    pub(crate) aux: Option<Row>,
    /// First token wanted, at a page boundary: what lies before it is here already.
    #[serde(default)]
    pub(crate) skip: u64,
    /// Length of the request in tokens; if not said, all pages of the first entry are full.
    #[serde(default)]
    pub(crate) total: Option<u64>,
    /// How many receivers the room has in all.
    #[serde(default = "one")]
    #[schema(minimum = 1, default = 1)]
    pub(crate) receivers: u16,
    /// Which of them this is, from 0.
    #[serde(default)]
    pub(crate) rank: u16,
    /// A tag to find and abort rooms by, for example an agent's session.
    #[serde(default)]
    #[schema(max_length = 256, min_length = 1)]
    pub(crate) tag: Option<String>,
    /// Whether both sides sum up all bytes and compare.
    #[serde(default)]
    pub(crate) checksum: bool,
    /// Milliseconds from now to the outcome; the node's default if not said.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 86_400_000)]
    pub(crate) deadline_ms: Option<u64>,
    /// How urgent it is.
    #[serde(default)]
    pub(crate) class: Urgency,
    /// W3C trace context, carried to the senders.
    #[serde(default)]
    #[schema(pattern = "^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$")]
    pub(crate) traceparent: Option<String>,
}

/// A prefill room to be started.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct StartSend {
    /// The room: the engines' bootstrap room.
    pub(crate) id: Id,
    /// Which try this is. A key (id and attempt) is used once.
    #[serde(default)]
    pub(crate) attempt: u32,
    /// The attempt of this room that failed, if this is a new try of it. It is shown and counted.
    #[serde(default)]
    pub(crate) retry_of: Option<u32>,
    /// How many receivers there will be. The room is over when all have it.
    #[serde(default = "one")]
    #[schema(minimum = 1, default = 1)]
    pub(crate) receivers: u16,
    /// A tag to find and abort rooms by, for example an agent's session.
    #[serde(default)]
    #[schema(max_length = 256, min_length = 1)]
    pub(crate) tag: Option<String>,
    /// Milliseconds from now to the outcome; the node's default if not said.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 86_400_000)]
    pub(crate) deadline_ms: Option<u64>,
    /// How urgent its copies are.
    #[serde(default)]
    pub(crate) class: Urgency,
    /// W3C trace context, shown with the room.
    #[serde(default)]
    #[schema(pattern = "^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$")]
    pub(crate) traceparent: Option<String>,
}

/// A peer that sends.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize, ToSchema)]
#[serde(untagged, expecting = "a peer's name, or an object of peer and layers")]
pub(crate) enum From {
    /// It covers everything.
    Whole(String),
    /// It covers some layers.
    Layers(FromLayers),
}

impl From {
    /// The peer's name.
    pub(crate) fn peer(&self) -> &str {
        match self {
            From::Whole(name) => name,
            From::Layers(part) => &part.peer,
        }
    }
}

/// A peer that sends some layers (a pipeline stage).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct FromLayers {
    /// Its name.
    pub(crate) peer: String,
    /// First layer, and the first that it does not cover.
    pub(crate) layers: [u32; 2],
}

/// Pages of a pool, in the order of the request.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Pages {
    /// The pool's name.
    pub(crate) pool: String,
    /// Indices of pages.
    pub(crate) pages: Vec<u32>,
}

/// One row of a pool of aux rows.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Row {
    /// The pool's name.
    pub(crate) pool: String,
    /// Index of the row.
    pub(crate) page: u32,
}

/// How urgent a room is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Urgency {
    /// Somebody waits for it.
    Interactive,
    /// As soon as there is time.
    #[default]
    Bulk,
}

/// A chunk: source pages at a place in the request.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PushChunk {
    /// The room's attempt; the newest if not said.
    #[serde(default)]
    pub(crate) attempt: Option<u32>,
    /// First token, and the first that does not belong to it. At page boundaries, but for the end of
    /// the request.
    pub(crate) tokens: [u64; 2],
    /// First layer, and the first that is not ready; all if not said.
    #[serde(default)]
    pub(crate) layers: Option<[u32; 2]>,
    /// The pool's name.
    pub(crate) pool: String,
    /// One page for every page of tokens, in order.
    #[schema(min_items = 1)]
    pub(crate) pages: Vec<u32>,
    /// Of pages on a device: CUDA's IPC handle of the event (`cuIpcGetEventHandle`, 64 bytes) after which
    /// their bytes are there, as hexadecimal digits. Recorded before this request; nothing is read before
    /// it has fired.
    #[serde(default)]
    #[schema(min_length = 128, max_length = 128, pattern = "^[0-9a-fA-F]{128}$")]
    pub(crate) ready: Option<String>,
}

/// No chunk follows.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct FinishRoom {
    /// The room's attempt; the newest if not said.
    #[serde(default)]
    pub(crate) attempt: Option<u32>,
    /// Length of the request in tokens.
    pub(crate) total: u64,
    /// The aux row's source; needed if the receiver asked for one.
    #[serde(default)]
    pub(crate) aux: Option<Row>,
}

/// Which rooms to abort: exactly one of the first four.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct AbortMany {
    /// Every room with this tag.
    #[serde(default)]
    pub(crate) tag: Option<String>,
    /// Every room with a leg to the peer of this name.
    #[serde(default)]
    pub(crate) peer: Option<String>,
    /// Every attempt of this room, in both roles.
    #[serde(default)]
    pub(crate) room: Option<Id>,
    /// Every room of the node.
    #[serde(default)]
    pub(crate) all: Option<bool>,
    /// Why, for the rooms' outcomes; cut at 256 bytes.
    #[serde(default)]
    pub(crate) reason: Option<String>,
}

/// Operations, done in order.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Batch {
    /// At most 1000.
    #[schema(max_items = 1000)]
    pub(crate) operations: Vec<Operation>,
}

/// One operation of a batch.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(tag = "op", rename_all = "snake_case")]
pub(crate) enum Operation {
    /// As `POST /v1/rooms`.
    Start(StartRoom),
    /// As `POST /v1/rooms/{id}/chunks`.
    Chunk(ChunkOperation),
    /// As `POST /v1/rooms/{id}/finish`.
    Finish(FinishOperation),
    /// As `DELETE /v1/rooms/{id}`.
    Abort(AbortOperation),
    /// As `GET /v1/rooms/{id}`.
    Get(GetOperation),
}

/// A chunk for a room.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ChunkOperation {
    /// The room.
    pub(crate) id: Id,
    /// Its attempt; the newest if not said.
    #[serde(default)]
    pub(crate) attempt: Option<u32>,
    /// First token, and the first that does not belong to it.
    pub(crate) tokens: [u64; 2],
    /// First layer, and the first that is not ready; all if not said.
    #[serde(default)]
    pub(crate) layers: Option<[u32; 2]>,
    /// The pool's name.
    pub(crate) pool: String,
    /// One page for every page of tokens, in order.
    #[schema(min_items = 1)]
    pub(crate) pages: Vec<u32>,
    /// The event after which their bytes are there, as in `POST /v1/rooms/{id}/chunks`.
    #[serde(default)]
    #[schema(min_length = 128, max_length = 128, pattern = "^[0-9a-fA-F]{128}$")]
    pub(crate) ready: Option<String>,
}

/// The end of a room's chunks.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct FinishOperation {
    /// The room.
    pub(crate) id: Id,
    /// Its attempt; the newest if not said.
    #[serde(default)]
    pub(crate) attempt: Option<u32>,
    /// Length of the request in tokens.
    pub(crate) total: u64,
    /// The aux row's source.
    #[serde(default)]
    pub(crate) aux: Option<Row>,
}

/// A room to be aborted.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct AbortOperation {
    /// The room.
    pub(crate) id: Id,
    /// Its attempt; the newest if not said.
    #[serde(default)]
    pub(crate) attempt: Option<u32>,
    /// Its role, if the node has the key in both.
    #[serde(default)]
    pub(crate) role: Option<RoleName>,
    /// Why.
    #[serde(default)]
    pub(crate) reason: Option<String>,
}

/// A room to be shown.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct GetOperation {
    /// The room.
    pub(crate) id: Id,
    /// Its attempt; the newest if not said.
    #[serde(default)]
    pub(crate) attempt: Option<u32>,
    /// Its role, if the node has the key in both.
    #[serde(default)]
    pub(crate) role: Option<RoleName>,
}

/// A role.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    Deserialize,
    serde::Serialize,
    ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RoleName {
    /// Decode: bytes arrive.
    Receive,
    /// Prefill: bytes leave.
    Send,
}

fn one() -> u16 {
    1
}
