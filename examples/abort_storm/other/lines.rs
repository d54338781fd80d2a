//! What parent and child say to each other: one JSON value a line.

use crate::engine::{End, RoomNo};
use crate::oracle::Findings;
use crate::rooms::Status;
use kvroom::Incarnation;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// From parent to child.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Line {
    /// Something that is answered.
    Ask { number: u64, question: Question },
    /// Start the child's side of a room: its receiver, with the pages that were taken, or its sender,
    /// and compute it. If that is refused, it has ended so.
    Start { room: RoomNo },
    /// Abort the child's side of a room.
    Abort { room: RoomNo },
    /// Abort all receivers with this tag.
    AbortTag { tag: String },
    /// The parent's sender of a room was aborted.
    Voided { room: RoomNo },
    /// The parent's source pages for the room's pages from `first` on.
    Placed {
        room: RoomNo,
        first: u32,
        pages: Vec<u32>,
    },
}

/// What a parent waits for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Question {
    /// Take pages for a room.
    Take { room: RoomNo },
    /// Meet the parent's node.
    Meet { milliseconds: u64 },
    /// Let a lane of the node enter a gate and stay there for a moment.
    Brace,
    /// What the node says of itself.
    Status,
    /// What is out, and what was found.
    Judge,
    /// Look at all pages, then the same.
    Scan,
    /// Stop the node. The child ends after its answer.
    Stop,
}

/// An answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    /// It was done.
    Ok,
    /// It was refused, or failed.
    No(String),
    /// Pages that were taken; `None` if not so many are free.
    Taken(Option<Vec<u32>>),
    /// So many lanes stand inside a gate.
    Inside(usize),
    /// See [`Status`].
    Status(Status),
    /// Pages that are out, by room, and what was found on the child's pages.
    Judged {
        out: Vec<(RoomNo, u64)>,
        findings: Findings,
    },
}

/// From child to parent.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Report {
    /// The first line: its node listens.
    Ready {
        address: String,
        incarnation: Incarnation,
    },
    /// The answer to a question.
    Answer { number: u64, answer: Answer },
    /// Bytes of a room landed.
    Landed { room: RoomNo, bytes: u64 },
    /// The child's side of a room ended.
    Ended { room: RoomNo, end: End, at: Stamped },
    /// Pages of the child's side came back.
    Back {
        room: RoomNo,
        pages: Vec<u32>,
        landed: Option<u64>,
        at: Stamped,
    },
    /// Source pages were taken for the room's pages from `first` on, and are handed over next.
    Placed {
        room: RoomNo,
        first: u32,
        pages: Vec<u32>,
    },
}

/// A moment, by the clock that both processes have. In microseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stamped(u64);

impl From<Instant> for Stamped {
    fn from(at: Instant) -> Self {
        let then = SystemTime::now() - at.elapsed();
        let since = then.duration_since(UNIX_EPOCH).unwrap_or_default();
        Stamped(since.as_micros() as u64)
    }
}

impl From<Stamped> for Instant {
    fn from(at: Stamped) -> Self {
        let then = UNIX_EPOCH + Duration::from_micros(at.0);
        let ago = SystemTime::now().duration_since(then).unwrap_or_default();
        let now = Instant::now();
        now.checked_sub(ago).unwrap_or(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_survives_the_way_to_the_other_process() {
        let at = Instant::now();
        let line = serde_json::to_string(&Stamped::from(at)).unwrap();
        let back: Instant = serde_json::from_str::<Stamped>(&line).unwrap().into();
        let off = back.max(at) - back.min(at);
        assert!(off < Duration::from_millis(5), "{off:?}");
    }

    #[test]
    fn a_line_is_one_line() {
        let line = Line::AbortTag {
            tag: "session\n1".into(),
        };
        let text = serde_json::to_string(&line).unwrap();
        assert!(!text.contains('\n'), "{text}");
        let Line::AbortTag { tag } = serde_json::from_str(&text).unwrap() else {
            panic!("{text}");
        };
        assert_eq!(tag, "session\n1");
    }
}
