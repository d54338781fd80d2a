//! Lines to entries.

use super::line::{
    EndWord, HeaderLine, Id, IncarnationLine, Line, ReasonLine, TermsLine, TimerWord,
};
use super::{Header, MAX_ENTRIES, MAX_LINE, Recording, RecordingError, VERSION};
use crate::record::{
    Begun, ChunkTold, Entry, GateIs, Part, PeerIs, Proofs, Road, Step, Told, What, Word,
    message_named,
};
use crate::{PeerRef, Reason, RoomKey};
use kvroom_actors::ids::{ClaimNo, Incarnation, LegNo, LifeId, PoolId};
use kvroom_actors::peer::message::Claim;
use kvroom_actors::room::event::{JobEnd, LegTerms, SectionShape, SliceShape, Timer};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Reads a recording from a file.
///
/// # Errors
/// See [`RecordingError`]: the file, the line and what is wrong with it.
pub fn read_file(path: &Path) -> Result<Recording, RecordingError> {
    let name = path.display().to_string();
    match std::fs::File::open(path) {
        Ok(file) => read(&name, BufReader::new(file)),
        Err(source) => Err(RecordingError::Io { file: name, source }),
    }
}

/// Reads a recording; `name` is what errors call it.
///
/// # Errors
/// See [`RecordingError`].
pub fn read(name: &str, mut from: impl BufRead) -> Result<Recording, RecordingError> {
    let mut number = 0;
    let mut bytes = Vec::new();
    let mut header = None;
    let mut entries: Vec<Entry> = Vec::new();
    loop {
        bytes.clear();
        let wrong = |why: String, line: usize| RecordingError::Line {
            file: name.to_owned(),
            line,
            why,
        };
        let more = (&mut from).take_line(&mut bytes);
        if !more.map_err(|source| RecordingError::Io {
            file: name.to_owned(),
            source,
        })? {
            break;
        }
        number += 1;
        if bytes.len() > MAX_LINE {
            return Err(wrong(format!("it is longer than {MAX_LINE} bytes"), number));
        }
        let text = std::str::from_utf8(&bytes).map_err(|e| wrong(e.to_string(), number))?;
        let text = text.trim();
        if text.is_empty() {
            continue;
        }
        if header.is_none() {
            header = Some(self::header(text).map_err(|why| wrong(why, number))?);
            continue;
        }
        let entry = entry(text).map_err(|why| wrong(why, number))?;
        if let Some(last) = entries.last()
            && last.seq >= entry.seq
        {
            let why = format!("seq {} comes after seq {}", entry.seq, last.seq);
            return Err(wrong(why, number));
        }
        if entries.len() == MAX_ENTRIES {
            let why = format!("it has more than {MAX_ENTRIES} entries");
            return Err(wrong(why, number));
        }
        entries.push(entry);
    }
    let header = header.ok_or_else(|| RecordingError::Empty {
        file: name.to_owned(),
    })?;
    Ok(Recording { header, entries })
}

trait TakeLine {
    /// Reads a line, or somewhat more than the longest one may have. False at the end.
    fn take_line(self, into: &mut Vec<u8>) -> std::io::Result<bool>;
}

impl<R: BufRead> TakeLine for &mut R {
    fn take_line(self, into: &mut Vec<u8>) -> std::io::Result<bool> {
        use std::io::Read as _;
        let most = MAX_LINE as u64 + 2;
        Ok(self.take(most).read_until(b'\n', into)? > 0)
    }
}

fn header(text: &str) -> Result<Header, String> {
    let line: HeaderLine = serde_json::from_str(text)
        .map_err(|e| format!("it is not the header of a recording: {e}"))?;
    if line.kvroom_recording != VERSION {
        let version = line.kvroom_recording;
        return Err(format!(
            "it is a recording of version {version}, this program reads version {VERSION}"
        ));
    }
    Ok(Header {
        node: line.node,
        incarnation: incarnation(line.incarnation),
        started: Duration::from_micros(line.started_us),
        lost: line.lost,
        older: line.older,
        why: line.why,
    })
}

fn entry(text: &str) -> Result<Entry, String> {
    let line: Line = serde_json::from_str(text).map_err(|e| e.to_string())?;
    Ok(Entry {
        seq: line.seq,
        at: Duration::from_micros(line.at_us),
        part: part(&line.part)?,
        peer: line.peer.as_deref().map(Into::into),
        what: line.entry()?,
    })
}

fn part(text: &str) -> Result<Part, String> {
    let known = match text.split_once(' ') {
        Some(("shard", n)) => n.parse().ok().map(Part::Shard),
        Some(("lane", n)) => n.parse().ok().map(Part::Lane),
        None if text == "node" => Some(Part::Node),
        _ => None,
    };
    known.ok_or_else(|| format!("`part` is {text:?}, expected `shard N`, `lane N` or `node`"))
}

fn incarnation(line: IncarnationLine) -> Incarnation {
    Incarnation {
        started_ns: line.started_ns.0,
        nonce: line.nonce.0,
    }
}

fn need<T>(field: Option<T>, name: &str) -> Result<T, String> {
    field.ok_or_else(|| format!("field `{name}` is missing"))
}

fn reason(line: ReasonLine) -> Reason {
    let reason = Reason::new(line.code, line.detail);
    Reason {
        side: line.side,
        ..reason
    }
}

impl Line {
    fn key(&self) -> Result<RoomKey, String> {
        let Id(id) = need(self.room, "room")?;
        Ok(RoomKey::new(id, need(self.attempt, "attempt")?))
    }

    fn life(&self) -> Result<LifeId, String> {
        need(self.life, "life").map(LifeId)
    }

    fn leg(&self) -> Result<LegNo, String> {
        need(self.leg, "leg").map(LegNo)
    }

    fn peer_no(&self) -> Result<PeerRef, String> {
        need(self.peer_no, "peer_no").map(PeerRef)
    }

    fn claim(&self) -> Result<ClaimNo, String> {
        need(self.claim, "claim").map(|Id(claim)| ClaimNo(claim))
    }

    fn because(&mut self) -> Result<Reason, String> {
        need(self.because.take(), "because").map(reason)
    }

    fn word(&self) -> Result<Word, String> {
        let name = need(self.message.as_deref(), "message")?;
        let message = message_named(name);
        let room = match self.room {
            Some(_) => Some(self.key()?),
            None => None,
        };
        Ok(Word {
            peer: self.peer_no()?,
            message: message.ok_or_else(|| format!("there is no message {name:?}"))?,
            claim: self.claim.map(|Id(claim)| ClaimNo(claim)),
            room,
            frame: need(self.frame, "frame")?,
        })
    }

    fn entry(mut self) -> Result<What, String> {
        let what = std::mem::take(&mut self.what);
        Ok(match what.as_str() {
            "room" => What::Room(self.step()?),
            "sent" => What::Sent(self.word()?),
            "received" => What::Received(self.word()?),
            "leg" => What::Leg {
                key: self.key()?,
                life: self.life()?,
                leg: self.leg()?,
                peer: self.peer_no()?,
                claim: self.claim()?,
            },
            "gate" => What::Gate {
                key: self.key()?,
                life: self.life()?,
                leg: self.leg()?,
                claim: self.claim()?,
                is: match need(self.is.as_deref(), "is")? {
                    "open" => GateIs::Open,
                    "occupied" => GateIs::Occupied,
                    "closed" => GateIs::Closed,
                    "writer-dead" => GateIs::WriterDead,
                    "drained" => GateIs::Drained,
                    "fenced" => GateIs::Fenced,
                    other => return Err(format!("no gate is {other:?}")),
                },
            },
            "job" => What::Job {
                key: self.key()?,
                life: self.life()?,
                leg: self.leg()?,
                job: need(self.job, "job")?,
                road: road(need(self.road.as_deref(), "road")?)?,
                bytes: need(self.bytes, "bytes")?,
            },
            "lease" => What::Lease {
                key: self.key()?,
                life: self.life()?,
                proofs: self.proofs()?,
            },
            "retry" => What::Retry {
                key: self.key()?,
                life: self.life()?,
                role: need(self.role, "role")?.into(),
                of: need(self.of, "of")?,
            },
            "refused" => What::Refused {
                key: self.key()?,
                role: need(self.role, "role")?.into(),
            },
            "peer" => What::Peer {
                peer: self.peer_no()?,
                incarnation: incarnation(need(self.incarnation, "incarnation")?),
                is: match need(self.is.as_deref(), "is")? {
                    "up" => PeerIs::Up,
                    "resuming" => PeerIs::Resuming,
                    "down" => PeerIs::Down,
                    other => return Err(format!("no peer is {other:?}")),
                },
                why: self.why.unwrap_or_default().into(),
            },
            "note" => What::Note(need(self.note, "note")?.into()),
            "" => return Err("field `what` is missing".into()),
            other => return Err(format!("`what` is {other:?}, which is nothing known")),
        })
    }

    fn proofs(&self) -> Result<Proofs, String> {
        let names = self.proofs.iter().flatten();
        let proofs = names
            .map(|name| Proofs::named(name).ok_or_else(|| format!("there is no proof {name:?}")));
        proofs.collect()
    }

    fn step(mut self) -> Result<Step, String> {
        Ok(Step {
            key: self.key()?,
            life: self.life()?,
            role: need(self.role, "role")?.into(),
            from: need(self.from, "from")?.into(),
            to: need(self.to, "to")?.into(),
            reason: self.reason.take().map(|line| Box::new(reason(line))),
            told: self.told()?,
        })
    }

    fn told(mut self) -> Result<Told, String> {
        let event = need(self.event.take(), "event")?;
        let deadline = self.deadline_us.map(Duration::from_micros);
        Ok(match event.as_str() {
            "Start" if self.receivers.is_some() => Told::Start(Begun::Sender {
                receivers: need(self.receivers, "receivers")?,
                deadline,
            }),
            "Start" => Told::Start(Begun::Receiver {
                legs: need(self.legs, "legs")?,
                peer: self.peer_no()?,
                cells: need(self.cells, "cells")?,
                total: need(self.total, "total")?,
                checksum: need(self.checksum, "checksum")?,
                pages: need(self.pages, "pages")?,
                deadline,
            }),
            "Leg" => Told::Leg {
                leg: self.leg()?,
                peer: self.peer_no()?,
                cells: need(self.cells, "cells")?,
            },
            "Abort" => Told::Abort(self.because()?),
            "Push" => Told::Push(self.chunk()?),
            "Finish" => Told::Finish {
                total: need(self.total, "total")?,
                aux: need(self.aux, "aux")?,
            },
            "Bind" => Told::Bind {
                leg: self.leg()?,
                terms: Arc::new(terms(need(self.terms, "terms")?)?),
            },
            "ClaimOpened" => Told::ClaimOpened(self.leg()?),
            "ClaimNotOpened" => Told::ClaimNotOpened {
                leg: self.leg()?,
                reason: self.because()?,
            },
            "Bound" => Told::Bound(self.leg()?),
            "Progress" => Told::Progress {
                leg: self.leg()?,
                posted: need(self.posted, "posted")?,
                written: need(self.written, "written")?,
            },
            "Complete" => Told::Complete {
                leg: self.leg()?,
                total: need(self.total, "total")?,
                cells: need(self.cells, "cells")?,
                checksum: self.sum.map(|Id(sum)| sum),
            },
            "Accepted" => Told::Accepted(self.leg()?),
            "Rejected" => Told::Rejected {
                leg: self.leg()?,
                reason: self.because()?,
            },
            "PeerEnded" => Told::PeerEnded {
                leg: self.leg()?,
                reason: self.because()?,
            },
            "PeerOut" => Told::PeerOut(self.leg()?),
            "LegLost" => Told::LegLost {
                leg: self.leg()?,
                reason: self.because()?,
            },
            "Moved" => Told::Moved {
                leg: self.leg()?,
                bytes: need(self.bytes, "bytes")?,
            },
            "JobOver" => Told::JobOver {
                leg: self.leg()?,
                job: need(self.job, "job")?,
                rest: need(self.rest, "rest")?,
                end: match need(self.end, "end")? {
                    EndWord::Landed => JobEnd::Landed {
                        checksum: need(self.sum, "sum")?.0,
                    },
                    EndWord::Refused => JobEnd::Refused,
                    EndWord::Errored => JobEnd::Errored(need(self.error, "error")?),
                    EndWord::Cancelled => JobEnd::Cancelled,
                },
            },
            "Summed" => Told::Summed(need(self.sum, "sum")?.0),
            "Timer" => Told::Timer(match need(self.timer, "timer")? {
                TimerWord::Outcome => Timer::Outcome,
                TimerWord::Stall => Timer::Stall,
                TimerWord::Drain => Timer::Drain,
                TimerWord::Explain => Timer::Explain,
            }),
            "Quiet" => Told::Quiet,
            "Panicked" => Told::Panicked,
            other => return Err(format!("there is no event {other:?}")),
        })
    }

    fn chunk(&self) -> Result<ChunkTold, String> {
        let pages = need(self.pages, "pages")?;
        Ok(ChunkTold {
            no: need(self.chunk, "chunk")?,
            pool: need(self.pool, "pool")?,
            tokens: need(self.tokens, "tokens")?.into(),
            layers: need(self.layers, "layers")?.into(),
            pages: u32::try_from(pages).map_err(|_| format!("no chunk has {pages} pages"))?,
            first: need(self.first, "first")?,
            last: need(self.last, "last")?,
            page_tokens: need(self.page_tokens, "page_tokens")?,
            pool_layers: need(self.pool_layers, "pool_layers")?,
        })
    }
}

fn road(text: &str) -> Result<Road, String> {
    match text.split_once(' ') {
        Some(("lane", n)) => n.parse().ok().map(Road::Lane),
        Some(("device", n)) => n.parse().ok().map(Road::Device),
        None if text == "here" => Some(Road::Here),
        None if text == "tcp" => Some(Road::Tcp),
        None if text == "ucx" => Some(Road::Ucx),
        None if text == "nowhere" => Some(Road::Nowhere),
        _ => None,
    }
    .ok_or_else(|| format!("no job goes {text:?}"))
}

fn terms(line: TermsLine) -> Result<LegTerms, String> {
    if line.sections.len() > Claim::MAX_SECTIONS {
        let most = Claim::MAX_SECTIONS;
        return Err(format!("a claim has {most} sections at most"));
    }
    let sections = line.sections.into_iter().map(|s| SectionShape {
        pool: PoolId(s.pool),
        layer: s.layer,
        layer_end: s.layer_end,
        page_tokens: s.page_tokens,
        page_bytes: s.page_bytes,
        pages: s.pages,
        slice: s.slice.map(|s| SliceShape {
            section: s.section,
            source_layer: s.source_layer,
            pool_layers: s.pool_layers,
            page_tokens: s.page_tokens,
            granule: s.granule,
            row: s.row,
        }),
    });
    Ok(LegTerms {
        receivers: line.receivers,
        rank: line.rank,
        skip: line.skip,
        total: line.total,
        sections: sections.collect(),
        aux: line.aux,
        checksum: line.checksum,
    })
}
