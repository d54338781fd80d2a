//! Entries to lines.

use super::line::{
    EndWord, HeaderLine, Id, IncarnationLine, Line, ReasonLine, SectionLine, SliceLine, TermsLine,
    TimerWord,
};
use super::{Header, Recording, VERSION};
use crate::record::{Begun, Entry, GateIs, Part, PeerIs, Road, Step, Told, What, Word};
use crate::{Reason, RoomKey};
use kvroom_actors::ids::{Incarnation, PeerRef};
use kvroom_actors::room::event::{JobEnd, LegTerms, Timer};
use std::io::{self, Write};
use std::time::Duration;

/// The first line of a recording, without an end of line.
pub fn header_line(header: &Header) -> String {
    text(&HeaderLine {
        kvroom_recording: VERSION,
        node: header.node.clone(),
        incarnation: incarnation(header.incarnation),
        started_us: micros(header.started),
        lost: header.lost,
        older: header.older,
        why: header.why.clone(),
    })
}

/// One entry as JSON, without an end of line.
pub fn json_line(entry: &Entry) -> String {
    text(&line(entry))
}

/// A whole recording.
///
/// # Errors
/// Those of the writer.
pub fn write(recording: &Recording, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "{}", header_line(&recording.header))?;
    for entry in &recording.entries {
        writeln!(out, "{}", json_line(entry))?;
    }
    out.flush()
}

/// These types have texts for keys and no maps: they can be written.
fn text(line: &impl serde::Serialize) -> String {
    serde_json::to_string(line).unwrap_or_default()
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn incarnation(of: Incarnation) -> IncarnationLine {
    IncarnationLine {
        started_ns: Id(of.started_ns),
        nonce: Id(of.nonce),
    }
}

fn reason(reason: &Reason) -> ReasonLine {
    ReasonLine {
        code: reason.code,
        side: reason.side,
        detail: reason.text.clone(),
    }
}

impl Line {
    fn set_key(&mut self, key: RoomKey) {
        self.room = Some(Id(key.id.0));
        self.attempt = Some(key.attempt);
    }

    fn set_peer(&mut self, peer: PeerRef) {
        self.peer_no = Some(peer.0);
    }
}

fn line(entry: &Entry) -> Line {
    let mut line = Line {
        seq: entry.seq,
        at_us: micros(entry.at),
        part: match entry.part {
            Part::Shard(n) => format!("shard {n}"),
            Part::Lane(n) => format!("lane {n}"),
            Part::Node => "node".into(),
        },
        peer: entry.peer.as_deref().map(str::to_owned),
        ..Line::default()
    };
    line.what = what(&entry.what, &mut line).into();
    line
}

fn what(what: &What, line: &mut Line) -> &'static str {
    match what {
        What::Room(of) => {
            step(of, line);
            "room"
        }
        What::Sent(of) => {
            word(of, line);
            "sent"
        }
        What::Received(of) => {
            word(of, line);
            "received"
        }
        What::Leg {
            key,
            life,
            leg,
            peer,
            claim,
        } => {
            line.set_key(*key);
            line.set_peer(*peer);
            line.life = Some(life.0);
            line.leg = Some(leg.0);
            line.claim = Some(Id(claim.0));
            "leg"
        }
        What::Gate {
            key,
            life,
            leg,
            claim,
            is,
        } => {
            line.set_key(*key);
            line.life = Some(life.0);
            line.leg = Some(leg.0);
            line.claim = Some(Id(claim.0));
            let is = match is {
                GateIs::Open => "open",
                GateIs::Occupied => "occupied",
                GateIs::Closed => "closed",
                GateIs::WriterDead => "writer-dead",
                GateIs::Drained => "drained",
                GateIs::Fenced => "fenced",
            };
            line.is = Some(is.into());
            "gate"
        }
        What::Job {
            key,
            life,
            leg,
            job,
            road,
            bytes,
        } => {
            line.set_key(*key);
            line.life = Some(life.0);
            line.leg = Some(leg.0);
            line.job = Some(*job);
            line.bytes = Some(*bytes);
            line.road = Some(match road {
                Road::Here => "here".into(),
                Road::Lane(n) => format!("lane {n}"),
                Road::Tcp => "tcp".into(),
                Road::Ucx => "ucx".into(),
                Road::Nowhere => "nowhere".into(),
                Road::Device(n) => format!("device {n}"),
            });
            "job"
        }
        What::Lease { key, life, proofs } => {
            line.set_key(*key);
            line.life = Some(life.0);
            line.proofs = Some(proofs.iter().map(|proof| proof.to_string()).collect());
            "lease"
        }
        What::Retry {
            key,
            life,
            role,
            of,
        } => {
            line.set_key(*key);
            line.life = Some(life.0);
            line.role = Some((*role).into());
            line.of = Some(*of);
            "retry"
        }
        What::Refused { key, role } => {
            line.set_key(*key);
            line.role = Some((*role).into());
            "refused"
        }
        What::Peer {
            peer,
            incarnation: of,
            is,
            why,
        } => {
            line.set_peer(*peer);
            line.incarnation = Some(incarnation(*of));
            let is = match is {
                PeerIs::Up => "up",
                PeerIs::Resuming => "resuming",
                PeerIs::Down => "down",
            };
            line.is = Some(is.into());
            line.why = (!why.is_empty()).then(|| why.to_string());
            "peer"
        }
        What::Note(note) => {
            line.note = Some(note.to_string());
            "note"
        }
    }
}

fn word(word: &Word, line: &mut Line) {
    line.set_peer(word.peer);
    line.message = Some(word.message.into());
    line.claim = word.claim.map(|claim| Id(claim.0));
    line.frame = Some(word.frame);
    if let Some(room) = word.room {
        line.set_key(room);
    }
}

fn step(step: &Step, line: &mut Line) {
    line.set_key(step.key);
    line.life = Some(step.life.0);
    line.role = Some(step.role.into());
    line.from = Some(step.from.into());
    line.to = Some(step.to.into());
    line.event = Some(step.event().into());
    line.reason = step.reason.as_deref().map(reason);
    line.leg = step.told.leg().map(|leg| leg.0);
    told(&step.told, line);
}

fn told(told: &Told, line: &mut Line) {
    match told {
        Told::Start(Begun::Sender {
            receivers,
            deadline,
        }) => {
            line.receivers = Some(*receivers);
            line.deadline_us = deadline.map(micros);
        }
        Told::Start(Begun::Receiver {
            legs,
            peer,
            cells,
            total,
            checksum,
            pages,
            deadline,
        }) => {
            line.set_peer(*peer);
            line.legs = Some(*legs);
            line.cells = Some(*cells);
            line.total = Some(*total);
            line.checksum = Some(*checksum);
            line.pages = Some(*pages);
            line.deadline_us = deadline.map(micros);
        }
        Told::Leg { peer, cells, .. } => {
            line.set_peer(*peer);
            line.cells = Some(*cells);
        }
        Told::Abort(because)
        | Told::ClaimNotOpened {
            reason: because, ..
        }
        | Told::Rejected {
            reason: because, ..
        }
        | Told::PeerEnded {
            reason: because, ..
        }
        | Told::LegLost {
            reason: because, ..
        } => line.because = Some(reason(because)),
        Told::Push(chunk) => {
            line.chunk = Some(chunk.no);
            line.pool = Some(chunk.pool);
            line.tokens = Some(chunk.tokens.into());
            line.layers = Some(chunk.layers.into());
            line.pages = Some(chunk.pages.into());
            line.first = Some(chunk.first);
            line.last = Some(chunk.last);
            line.page_tokens = Some(chunk.page_tokens);
            line.pool_layers = Some(chunk.pool_layers);
        }
        Told::Finish { total, aux } => {
            line.total = Some(*total);
            line.aux = Some(*aux);
        }
        Told::Bind { terms, .. } => line.terms = Some(self::terms(terms)),
        Told::Progress {
            posted, written, ..
        } => {
            line.posted = Some(*posted);
            line.written = Some(*written);
        }
        Told::Complete {
            total,
            cells,
            checksum,
            ..
        } => {
            line.total = Some(*total);
            line.cells = Some(*cells);
            line.sum = checksum.map(Id);
        }
        Told::Moved { bytes, .. } => line.bytes = Some(*bytes),
        Told::JobOver { job, rest, end, .. } => {
            line.job = Some(*job);
            line.rest = Some(*rest);
            line.end = Some(match end {
                JobEnd::Landed { checksum } => {
                    line.sum = Some(Id(*checksum));
                    EndWord::Landed
                }
                JobEnd::Refused => EndWord::Refused,
                JobEnd::Errored(error) => {
                    line.error = Some(error.clone());
                    EndWord::Errored
                }
                JobEnd::Cancelled => EndWord::Cancelled,
            });
        }
        Told::Summed(sum) => line.sum = Some(Id(*sum)),
        Told::Timer(timer) => {
            line.timer = Some(match timer {
                Timer::Outcome => TimerWord::Outcome,
                Timer::Stall => TimerWord::Stall,
                Timer::Drain => TimerWord::Drain,
                Timer::Explain => TimerWord::Explain,
            });
        }
        Told::ClaimOpened(_)
        | Told::Bound(_)
        | Told::Accepted(_)
        | Told::PeerOut(_)
        | Told::Quiet
        | Told::Panicked => {}
    }
}

fn terms(terms: &LegTerms) -> TermsLine {
    let sections = terms.sections.iter().map(|s| SectionLine {
        pool: s.pool.0,
        layer: s.layer,
        layer_end: s.layer_end,
        page_tokens: s.page_tokens,
        page_bytes: s.page_bytes,
        pages: s.pages,
        slice: s.slice.map(|s| SliceLine {
            section: s.section,
            source_layer: s.source_layer,
            pool_layers: s.pool_layers,
            page_tokens: s.page_tokens,
            granule: s.granule,
            row: s.row,
        }),
    });
    TermsLine {
        receivers: terms.receivers,
        rank: terms.rank,
        skip: terms.skip,
        total: terms.total,
        aux: terms.aux,
        checksum: terms.checksum,
        sections: sections.collect(),
    }
}
