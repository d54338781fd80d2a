//! What is in the other process, as this one asks for it. An end of the link is an answer too: no
//! pages are out there any more. Nobody waits for a start: many rooms are to begin together.

use super::lines::{Answer, Line, Question};
use super::link::Link;
use crate::engine::{Chunk, Feed, Ready, RoomNo};
use crate::memory::{Destination, Source};
use crate::oracle::Findings;
use crate::rooms::{DecodeHalf, Half, PrefillHalf, Status};
use crate::storms::RoomSpec;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The child's half of the engine; a handle of the link.
#[derive(Clone)]
pub(crate) struct Far(pub(crate) Arc<Link>);

impl Far {
    fn done(&self, question: Question) -> Result<(), String> {
        match self.0.ask(question)? {
            Answer::Ok => Ok(()),
            Answer::No(why) => Err(why),
            other => Err(format!("the other process answers {other:?}")),
        }
    }

    fn judge(&self, question: Question) -> BTreeMap<RoomNo, u64> {
        match self.0.ask(question) {
            Ok(Answer::Judged { out, findings }) => {
                self.0.found(findings);
                out.into_iter().collect()
            }
            _ => BTreeMap::new(),
        }
    }
}

impl Half for Far {
    fn abort(&self, room: RoomNo) {
        self.0.tell(&Line::Abort { room });
    }

    fn status(&self) -> Status {
        let why = match self.0.ask(Question::Status) {
            Ok(Answer::Status(status)) => return status,
            Ok(other) => format!("the other process answers {other:?}"),
            Err(why) => why,
        };
        Status {
            remarks: vec![why],
            ..Status::default()
        }
    }

    fn meet(&self, patience: Duration) -> Result<(), String> {
        self.done(Question::Meet {
            milliseconds: patience.as_millis() as u64,
        })
    }

    fn stop(&self) {
        if let Err(why) = self.done(Question::Stop) {
            tracing::warn!(why, "the other process was not stopped");
        }
        self.0.kill();
    }
}

impl DecodeHalf for Far {
    fn receive(&self, room: RoomNo, _: &RoomSpec, _: &[u32]) -> Result<(), String> {
        self.0.tell(&Line::Start { room });
        Ok(())
    }

    fn abort_tag(&self, tag: &str) {
        self.0.tell(&Line::AbortTag { tag: tag.into() });
    }
}

impl PrefillHalf for Far {
    fn send(&self, room: RoomNo, _: &RoomSpec) -> Result<(), String> {
        self.0.tell(&Line::Start { room });
        Ok(())
    }
}

impl Feed for Far {
    /// The prefill engine runs there.
    fn ready(&self, _: RoomNo) -> Ready {
        Ready::Ended
    }

    fn push(&self, _: RoomNo, _: Chunk) -> Result<(), String> {
        Err("the prefill engine is in the other process".into())
    }
}

impl Destination for Far {
    fn take(&self, room: RoomNo, _: u32) -> Option<Vec<u32>> {
        match self.0.ask(Question::Take { room }) {
            Ok(Answer::Taken(pages)) => pages,
            _ => None,
        }
    }

    fn back(&self, _: RoomNo, _: &[u32], _: bool) {}

    fn placed(&self, room: RoomNo, first: u32, pages: &[u32]) {
        let pages = pages.to_vec();
        self.0.tell(&Line::Placed { room, first, pages });
    }

    fn voided(&self, room: RoomNo) {
        self.0.tell(&Line::Voided { room });
    }

    fn scan(&self, _: u32, _: u32) {
        self.judge(Question::Scan);
    }

    fn findings(&self) -> Findings {
        self.judge(Question::Judge);
        self.0.findings()
    }

    fn out(&self) -> BTreeMap<RoomNo, u64> {
        self.judge(Question::Judge)
    }
}

impl Source for Far {
    fn take(&self, _: RoomNo, _: u32, _: u32) -> Option<Vec<u32>> {
        None
    }

    fn back(&self, _: &[u32]) {}

    fn out(&self) -> BTreeMap<RoomNo, u64> {
        self.judge(Question::Judge)
    }
}
