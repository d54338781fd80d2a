//! A line of a recording as JSON has it: one flat object, and which fields it has is up to `what`.

use crate::{Code, Side, StateName};
use kvroom_actors::room::Role;
use serde::de::{Deserializer, Error as _, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use std::fmt;

/// The first line.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct HeaderLine {
    pub(super) kvroom_recording: u32,
    pub(super) node: String,
    pub(super) incarnation: IncarnationLine,
    pub(super) started_us: u64,
    #[serde(default)]
    pub(super) lost: u64,
    #[serde(default)]
    pub(super) older: u64,
    #[serde(default)]
    pub(super) why: String,
}

/// Any other line.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Line {
    pub(super) seq: u64,
    pub(super) at_us: u64,
    pub(super) part: String,
    pub(super) what: String,
    /// Name of the peer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) peer: Option<String>,
    /// Its number on this node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) peer_no: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) room: Option<Id>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) attempt: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) life: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) role: Option<RoleWord>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) from: Option<StateWord>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) to: Option<StateWord>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) event: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) leg: Option<u16>,
    /// Why the room ended: its outcome was published here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<ReasonLine>,
    /// The reason that the event carries.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) because: Option<ReasonLine>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) message: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) claim: Option<Id>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) frame: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) is: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) why: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) incarnation: Option<IncarnationLine>,
    /// The attempt that a room is a new try of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) of: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) job: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) road: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) chunk: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) proofs: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) note: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) receivers: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) deadline_us: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) legs: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cells: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) total: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) pages: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) checksum: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) aux: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) pool: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tokens: Option<[u64; 2]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) layers: Option<[u32; 2]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) first: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) last: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) page_tokens: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) pool_layers: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) terms: Option<TermsLine>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) posted: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) written: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) sum: Option<Id>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) rest: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) end: Option<EndWord>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) timer: Option<TimerWord>,
}

/// A 64-bit number that is a name. Written as a text, for readers whose numbers have 53 bits; read as
/// either.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Id(pub(super) u64);

impl Serialize for Id {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Id {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Id, D::Error> {
        deserializer.deserialize_any(IdVisitor)
    }
}

struct IdVisitor;

impl Visitor<'_> for IdVisitor {
    type Value = Id;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a whole number of 64 bits, as a number or a text")
    }

    fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<Id, E> {
        Ok(Id(number))
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Id, E> {
        let wrong = || E::invalid_value(serde::de::Unexpected::Str(text), &self);
        text.parse().map(Id).map_err(|_| wrong())
    }
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct IncarnationLine {
    pub(super) started_ns: Id,
    pub(super) nonce: Id,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ReasonLine {
    pub(super) code: Code,
    #[serde(with = "side")]
    pub(super) side: Side,
    pub(super) detail: String,
}

mod side {
    use super::*;

    pub(super) fn serialize<S: Serializer>(side: &Side, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(match side {
            Side::Local => "local",
            Side::Peer => "peer",
        })
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Side, D::Error> {
        match String::deserialize(from)?.as_str() {
            "local" => Ok(Side::Local),
            "peer" => Ok(Side::Peer),
            other => Err(D::Error::unknown_variant(other, &["local", "peer"])),
        }
    }
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum RoleWord {
    Send,
    Receive,
}

impl From<Role> for RoleWord {
    fn from(role: Role) -> Self {
        match role {
            Role::Sender => RoleWord::Send,
            Role::Receiver => RoleWord::Receive,
        }
    }
}

impl From<RoleWord> for Role {
    fn from(word: RoleWord) -> Self {
        match word {
            RoleWord::Send => Role::Sender,
            RoleWord::Receive => Role::Receiver,
        }
    }
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum StateWord {
    Registered,
    Transferring,
    Draining,
    Done,
    Aborted,
}

impl From<StateName> for StateWord {
    fn from(state: StateName) -> Self {
        match state {
            StateName::Registered => StateWord::Registered,
            StateName::Transferring => StateWord::Transferring,
            StateName::Draining => StateWord::Draining,
            StateName::Done => StateWord::Done,
            StateName::Aborted => StateWord::Aborted,
        }
    }
}

impl From<StateWord> for StateName {
    fn from(word: StateWord) -> Self {
        match word {
            StateWord::Registered => StateName::Registered,
            StateWord::Transferring => StateName::Transferring,
            StateWord::Draining => StateName::Draining,
            StateWord::Done => StateName::Done,
            StateWord::Aborted => StateName::Aborted,
        }
    }
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum TimerWord {
    Outcome,
    Stall,
    Drain,
    Explain,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum EndWord {
    Landed,
    Refused,
    Errored,
    Cancelled,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct TermsLine {
    pub(super) receivers: u16,
    pub(super) rank: u16,
    pub(super) skip: u64,
    pub(super) total: u64,
    pub(super) aux: bool,
    pub(super) checksum: bool,
    pub(super) sections: Vec<SectionLine>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SectionLine {
    pub(super) pool: u16,
    pub(super) layer: u32,
    pub(super) layer_end: u32,
    pub(super) page_tokens: u32,
    pub(super) page_bytes: u64,
    pub(super) pages: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) slice: Option<SliceLine>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SliceLine {
    pub(super) section: u16,
    pub(super) source_layer: u32,
    pub(super) pool_layers: u32,
    pub(super) page_tokens: u32,
    pub(super) granule: u32,
    pub(super) row: bool,
}
