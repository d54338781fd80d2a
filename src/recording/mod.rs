//! Recordings: entries of the flight recorder as text, one JSON object a line. The format is described
//! in `docs/recording.md`.
//!
//! ```text
//!   {"kvroom_recording":1,"node":"decode-0","incarnation":{…},"started_us":…,"lost":0,"older":0,"why":"signal"}
//!   {"seq":17,"at_us":1203,"part":"shard 0","what":"room","room":"42","attempt":0,"role":"receive",…}
//! ```
//!
//! Rules: what is read may come from anybody. A line is bounded before it is kept, their number too, and
//! an error names the line and what is wrong with it.

mod decode;
mod encode;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod line;
pub mod load;
pub mod merge;
#[cfg(test)]
mod tests;

pub mod replay;

pub use decode::{read, read_file};
pub use encode::{header_line, json_line, write};

use crate::Node;
use crate::record::Entry;
use kvroom_actors::ids::Incarnation;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The version that is written, and the only one that is read. It is raised when the meaning of a field
/// changes; fields that are not known are passed over.
pub const VERSION: u32 = 1;

/// Longest line in bytes.
pub const MAX_LINE: usize = 64 << 10;

/// Most entries in a recording: a gigabyte or so in memory.
pub const MAX_ENTRIES: usize = 4_000_000;

/// Whose recording it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The node's name.
    pub node: String,
    /// Which life of it.
    pub incarnation: Incarnation,
    /// The wall clock at the node's start, since the Unix epoch: an entry's `at` counts from here.
    pub started: Duration,
    /// Entries in front of the first one that were overwritten before they were read.
    pub lost: u64,
    /// Entries that were there, older than all of these, and left out: a recording of the newest ones.
    pub older: u64,
    /// Why it was written: `http`, `stuck`, `panic`, `signal`, or what the host says.
    pub why: String,
}

/// A recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recording {
    /// Whose.
    pub header: Header,
    /// In the order of their numbers.
    pub entries: Vec<Entry>,
}

impl Header {
    /// For a recording of this node.
    pub fn of(node: &Node, lost: u64, why: &str) -> Header {
        let incarnation = node.incarnation();
        // Now less what the node's clock says: a wall clock that was set since is the one that counts.
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let started = now.unwrap_or_default().saturating_sub(node.uptime());
        Header {
            node: node.name().to_owned(),
            incarnation,
            started: Duration::from_micros(u64::try_from(started.as_micros()).unwrap_or(u64::MAX)),
            lost,
            older: 0,
            why: why.to_owned(),
        }
    }
}

impl Recording {
    /// All that the recorder of a node has now.
    pub fn of(node: &Node, why: &str) -> Recording {
        let records = node.recorder().read_all();
        Recording {
            header: Header::of(node, records.lost, why),
            entries: records.entries,
        }
    }
}

/// Why a recording cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum RecordingError {
    /// The file cannot be read.
    #[error("recording {file}: {source}")]
    Io {
        /// Which.
        file: String,
        /// Why.
        source: std::io::Error,
    },
    /// A line is not as it must be.
    #[error("recording {file}, line {line}: {why}")]
    Line {
        /// Of which file.
        file: String,
        /// Counted from 1.
        line: usize,
        /// What is wrong.
        why: String,
    },
    /// It has no line at all.
    #[error("recording {file} is empty: it has no header")]
    Empty {
        /// Which.
        file: String,
    },
}
