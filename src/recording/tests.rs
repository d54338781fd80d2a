#![allow(clippy::unwrap_used)] // Tests and their helpers.

use super::{Header, MAX_LINE, Recording, RecordingError, header_line, json_line, read, write};
use crate::record::{
    Begun, ChunkTold, Entry, GateIs, JobEnd, LegTerms, Part, PeerIs, Road, SectionShape,
    SliceShape, Step, Timer, Told, What, Word, message_named,
};
use crate::{Code, PeerRef, Proof, Reason, RoomKey, StateName};
use kvroom_actors::ids::{ClaimNo, Incarnation, LegNo, LifeId, PoolId};
use kvroom_actors::room::Role;
use proptest::prelude::*;
use std::sync::Arc;
use std::time::Duration;

const LEG: LegNo = LegNo(3);
const KEY: RoomKey = RoomKey {
    id: crate::RoomId(u64::MAX),
    attempt: 7,
};

fn reason() -> Reason {
    Reason::new(Code::Stalled, "nothing \"landed\"\n").from_peer()
}

fn terms() -> LegTerms {
    let section = SectionShape {
        pool: PoolId(1),
        layer: 2,
        layer_end: 9,
        page_tokens: 16,
        page_bytes: 1 << 40,
        pages: 77,
        slice: None,
    };
    let sliced = SectionShape {
        pool: PoolId(2),
        slice: Some(SliceShape {
            section: 3,
            source_layer: 4,
            pool_layers: 2,
            page_tokens: 32,
            granule: 1,
            row: false,
        }),
        ..section
    };
    LegTerms {
        receivers: 2,
        rank: 1,
        skip: 16,
        total: 99,
        sections: Box::new([section, sliced]),
        aux: true,
        checksum: false,
    }
}

/// One of each event.
fn told() -> Vec<Told> {
    let leg = LEG;
    let deadline = Some(Duration::from_micros(1_500_000));
    let chunk = ChunkTold {
        no: 4,
        pool: 1,
        tokens: (16, 48),
        layers: (0, 9),
        pages: 2,
        first: 5,
        last: 8,
        page_tokens: 16,
        pool_layers: 9,
    };
    let over = |end| Told::JobOver {
        leg,
        job: 5,
        rest: 6,
        end,
    };
    vec![
        Told::Start(Begun::Sender {
            receivers: 2,
            deadline,
        }),
        Told::Start(Begun::Receiver {
            legs: 2,
            peer: PeerRef(1),
            cells: 12,
            total: 99,
            checksum: true,
            pages: 6,
            deadline: None,
        }),
        Told::Leg {
            leg,
            peer: PeerRef(2),
            cells: 7,
        },
        Told::Abort(reason()),
        Told::Push(chunk),
        Told::Finish {
            total: 99,
            aux: true,
        },
        Told::Bind {
            leg,
            terms: Arc::new(terms()),
        },
        Told::ClaimOpened(leg),
        Told::ClaimNotOpened {
            leg,
            reason: reason(),
        },
        Told::Bound(leg),
        Told::Progress {
            leg,
            posted: u64::MAX,
            written: 1,
        },
        Told::Complete {
            leg,
            total: 99,
            cells: 12,
            checksum: Some(u64::MAX),
        },
        Told::Complete {
            leg,
            total: 99,
            cells: 12,
            checksum: None,
        },
        Told::Accepted(leg),
        Told::Rejected {
            leg,
            reason: reason(),
        },
        Told::PeerEnded {
            leg,
            reason: reason(),
        },
        Told::PeerOut(leg),
        Told::LegLost {
            leg,
            reason: reason(),
        },
        Told::Moved { leg, bytes: 9 },
        over(JobEnd::Landed { checksum: 3 }),
        over(JobEnd::Refused),
        over(JobEnd::Errored("broken".into())),
        over(JobEnd::Cancelled),
        Told::Summed(17),
        Told::Timer(Timer::Outcome),
        Told::Timer(Timer::Stall),
        Told::Timer(Timer::Drain),
        Told::Timer(Timer::Explain),
        Told::Quiet,
        Told::Panicked,
    ]
}

/// One of each kind.
fn all() -> Vec<What> {
    let (key, life, leg, claim) = (KEY, LifeId(9), LEG, ClaimNo(11));
    let peer = PeerRef(4);
    let word = |message| Word {
        peer,
        message: message_named(message).unwrap(),
        claim: Some(claim),
        room: Some(key),
        frame: 8,
    };
    let gate = |is| What::Gate {
        key,
        life,
        leg,
        claim,
        is,
    };
    let job = |road| What::Job {
        key,
        life,
        leg,
        job: 3,
        road,
        bytes: 5,
    };
    let lease = |proofs: &[Proof]| What::Lease {
        key,
        life,
        proofs: proofs.iter().copied().collect(),
    };
    let now = |is, why: &str| What::Peer {
        peer,
        incarnation: Incarnation {
            started_ns: u64::MAX,
            nonce: 3,
        },
        is,
        why: why.into(),
    };
    let mut all: Vec<What> = told()
        .into_iter()
        .zip([None, Some(Box::new(reason()))].into_iter().cycle())
        .map(|(told, reason)| {
            What::Room(Step {
                key,
                life,
                role: Role::Sender,
                from: StateName::Registered,
                to: StateName::Draining,
                told,
                reason,
            })
        })
        .collect();
    all.extend([
        What::Sent(word("Claim")),
        What::Received(Word {
            claim: None,
            room: None,
            frame: 0,
            ..word("Credit")
        }),
        What::Leg {
            key,
            life,
            leg,
            peer,
            claim,
        },
        gate(GateIs::Open),
        gate(GateIs::Occupied),
        gate(GateIs::Closed),
        gate(GateIs::WriterDead),
        gate(GateIs::Drained),
        gate(GateIs::Fenced),
        job(Road::Here),
        job(Road::Lane(2)),
        job(Road::Tcp),
        job(Road::Ucx),
        job(Road::Nowhere),
        job(Road::Device(1)),
        lease(&[]),
        lease(&[Proof::GateClosed, Proof::WriterDead]),
        What::Refused {
            key,
            role: Role::Receiver,
        },
        What::Retry {
            key,
            life,
            role: Role::Sender,
            of: 1,
        },
        now(PeerIs::Up, ""),
        now(PeerIs::Resuming, "lost"),
        now(PeerIs::Down, "gone"),
        What::Note("a note".into()),
    ]);
    all
}

pub(super) fn recording() -> Recording {
    let entries = all().into_iter().enumerate().map(|(i, what)| Entry {
        seq: i as u64 * 2,
        at: Duration::from_micros(i as u64 * 3),
        part: [Part::Shard(1), Part::Lane(2), Part::Node][i % 3],
        peer: what.peer().map(|_| "prefill-0".into()),
        what,
    });
    Recording {
        header: Header {
            node: "decode-0".into(),
            incarnation: Incarnation {
                started_ns: 5,
                nonce: u64::MAX,
            },
            started: Duration::from_micros(1_700_000_000_000_001),
            lost: 12,
            older: 7,
            why: "signal".into(),
        },
        entries: entries.collect(),
    }
}

fn text(recording: &Recording) -> String {
    let mut out = Vec::new();
    write(recording, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

fn error(text: &str) -> String {
    match read("r.jsonl", text.as_bytes()) {
        Ok(recording) => panic!("{} entries were read", recording.entries.len()),
        Err(error) => error.to_string(),
    }
}

#[test]
fn what_is_written_is_read_as_it_was() {
    let recording = recording();
    let text = text(&recording);
    assert_eq!(read("r", text.as_bytes()).unwrap(), recording);
    assert_eq!(text.lines().count(), recording.entries.len() + 1);
}

#[test]
fn a_line_has_the_fields_that_the_documentation_names() {
    let docs = include_str!("../../docs/recording.md");
    let mut lines: Vec<String> = recording().entries.iter().map(json_line).collect();
    lines.push(header_line(&recording().header));
    for line in lines {
        let fields: serde_json::Map<String, serde_json::Value> =
            serde_json::from_str(&line).unwrap();
        for field in fields.keys() {
            assert!(docs.contains(&format!("`{field}`")), "{field} of {line}");
        }
    }
}

#[test]
fn a_damaged_file_gives_an_error_that_names_the_line() {
    let whole = text(&recording());
    let mut lines: Vec<&str> = whole.lines().collect();
    let cut = &lines[2][..lines[2].len() / 2].to_owned();
    lines[2] = cut;
    let said = error(&lines.join("\n"));
    assert!(said.starts_with("recording r.jsonl, line 3: "), "{said}");
    for (from, to, expected) in [
        (
            "\"event\":\"Quiet\"",
            "\"event\":\"Loud\"",
            "no event \"Loud\"",
        ),
        (
            "\"seq\":4,",
            "\"seq\":1,",
            "line 4: seq 1 comes after seq 2",
        ),
        (
            "\"part\":\"node\"",
            "\"part\":\"attic\"",
            "`part` is \"attic\"",
        ),
        ("\"what\":\"lease\"", "\"what\":\"loan\"", "\"loan\""),
        (
            "\"message\":\"Claim\"",
            "\"message\":\"Hi\"",
            "no message \"Hi\"",
        ),
        ("\"is\":\"open\"", "\"is\":\"ajar\"", "no gate is \"ajar\""),
        (
            "\"posted\":18446744073709551615,",
            "",
            "`posted` is missing",
        ),
        (
            "\"room\":\"18446744073709551615\"",
            "\"room\":\"x\"",
            "64 bits",
        ),
        (
            "\"kvroom_recording\":1",
            "\"kvroom_recording\":2",
            "line 1: it is a recording of version 2",
        ),
        (
            "{\"kvroom_recording\"",
            "{\"other\"",
            "line 1: it is not the header",
        ),
    ] {
        assert!(whole.contains(from), "{from}");
        let said = error(&whole.replacen(from, to, 1));
        assert!(said.contains(expected), "{said} should have {expected}");
    }
    assert!(error("\n\n").contains("r.jsonl is empty"));
}

#[test]
fn an_endless_line_is_refused_without_being_kept() {
    let endless = std::io::BufReader::new(std::io::repeat(b'['));
    let error = read("r", endless).unwrap_err().to_string();
    assert!(
        error.contains(&format!("line 1: it is longer than {MAX_LINE}")),
        "{error}"
    );
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let error = super::read_file(std::path::Path::new("/nowhere/r.jsonl")).unwrap_err();
    assert!(matches!(error, RecordingError::Io { .. }));
    assert!(error.to_string().contains("/nowhere/r.jsonl"));
}

proptest! {
    #[test]
    fn no_damage_makes_the_reader_panic(at in 0usize..9_000, with in any::<u8>(), cut in any::<bool>()) {
        let mut bytes = text(&recording()).into_bytes();
        let at = at % bytes.len();
        if cut { bytes.truncate(at) } else { bytes[at] = with }
        match read("r", &*bytes) {
            Ok(_) | Err(RecordingError::Empty { .. }) => {}
            Err(error) => prop_assert!(error.to_string().contains(", line "), "{error}"),
        }
    }
}
