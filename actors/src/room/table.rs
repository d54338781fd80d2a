//! Every state of a room × every event, in one snapshot, and the diagram that follows from it.
//!
//! The diagram stands in ARCHITECTURE.md between its two markers and must be what this table gives.
//! `KVROOM_BLESS=1 cargo test -p kvroom-actors room::table` rewrites it; the snapshot is accepted
//! with `cargo insta` or `INSTA_UPDATE=always`.

use super::event::{Effect, Event, JobEnd, JobSpec, Note, Say, Timer};
use super::testing::*;
use super::{Outcome, Role, StateName};
use crate::ids::LegNo;
use crate::reason::{Code, Reason};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

/// Representative events. The first word of a label is the event's name.
fn events() -> Vec<(String, Event<W>)> {
    let mut empty = chunk(9, 0..1);
    empty.tokens.end = 0;
    let short = Event::Finish {
        total: 5,
        aux: true,
    };
    let no_aux = Event::Finish {
        total: TOTAL,
        aux: false,
    };
    let longer = Event::Complete {
        leg: LEG,
        total: TOTAL + 1,
        coverage: cells(0..4, true),
        checksum: Some(5),
    };
    let mut all: Vec<(String, Event<W>)> = [
        ("Abort", Event::Abort(why(Code::Requested))),
        ("Push new", Event::Push(chunk(9, 0..4))),
        ("Push other pages", Event::Push(chunk_at(9, 0..4, 70))),
        ("Push empty", Event::Push(empty)),
        ("Finish", finish()),
        ("Finish early", short),
        ("Finish no aux", no_aux),
        ("Bind rank 0", bind(LegNo(2), claim(1, 0, 0))),
        ("Bind wrong receivers", bind(LegNo(2), claim(3, 0, 0))),
        ("Accepted", Event::Accepted(LEG)),
        ("Accepted by the other", Event::Accepted(OTHER)),
        (
            "Rejected",
            Event::Rejected {
                leg: LEG,
                reason: Reason::from(Code::ChecksumMismatch).from_peer(),
            },
        ),
        ("PeerEnded", peer_ended(LEG)),
        ("PeerEnded unknown leg", peer_ended(LegNo(7))),
        ("PeerOut", Event::PeerOut(LEG)),
        ("LegLost", lost(LEG)),
        ("Moved", Event::Moved { leg: LEG, bytes: 3 }),
        ("JobOver landed", landed(LEG, 0)),
        ("JobOver aux landed", landed(LEG, 1)),
        ("JobOver refused", over(LEG, 0, JobEnd::Refused)),
        (
            "JobOver errored",
            over(LEG, 0, JobEnd::Errored("cut".into())),
        ),
        ("JobOver cancelled", over(LEG, 0, JobEnd::Cancelled)),
        ("ClaimOpened", Event::ClaimOpened(LEG)),
        (
            "ClaimNotOpened",
            Event::ClaimNotOpened {
                leg: LEG,
                reason: why(Code::SessionLost),
            },
        ),
        ("Bound", Event::Bound(LEG)),
        ("Bound other leg", Event::Bound(OTHER)),
        ("Progress posted", progress(LEG, 30, 10)),
        ("Progress written", progress(LEG, 30, 30)),
        ("Complete whole", complete(LEG, cells(0..4, true))),
        ("Complete short", complete(LEG, cells(0..3, true))),
        ("Complete too much", complete(LEG, cells(0..5, true))),
        ("Complete longer", longer),
        ("Summed right", Event::Summed(5)),
        ("Summed wrong", Event::Summed(6)),
    ]
    .map(|(label, event)| (label.to_owned(), event))
    .into();
    all.extend(Timer::ALL.map(|t| (format!("Timer {t:?}"), Event::Timer(t))));
    all.push(("Quiet".to_owned(), quiet()));
    all
}

struct Row {
    role: Role,
    from: &'static str,
    event: String,
    before: StateName,
    after: StateName,
    next: String,
    effects: String,
}

fn table() -> Vec<Row> {
    let mut rows = Vec::new();
    for rooms in [senders(), receivers()] {
        for (from, room) in &rooms {
            for (label, event) in events() {
                let mut out = Vec::new();
                let next = room.clone().handle(event, &mut out);
                let name = if next == *room {
                    "same".to_owned()
                } else {
                    let known = rooms.iter().find(|(_, known)| *known == next);
                    known.map_or(next.state().to_string(), |(name, _)| (*name).to_owned())
                };
                let effects: Vec<String> = out.iter().map(show).collect();
                rows.push(Row {
                    role: room.role(),
                    from,
                    event: label,
                    before: room.state(),
                    after: next.state(),
                    next: name,
                    effects: effects.join("; "),
                });
            }
        }
    }
    rows
}

/// An effect in few words.
fn show(effect: &Effect<W>) -> String {
    match effect {
        Effect::OpenClaim(leg) => format!("open claim {}", leg.0),
        Effect::WithdrawClaim(leg) => format!("withdraw claim {}", leg.0),
        Effect::CloseGate(leg) => format!("close gate {}", leg.0),
        Effect::Sum => "sum".into(),
        Effect::RefuseClaim { leg, reason } => format!("refuse claim {} {:?}", leg.0, reason.code),
        Effect::Post { leg, job, spec } => {
            let what = match spec {
                JobSpec::Pages { to, .. } => format!("pages {}..{}", to.start, to.end),
                JobSpec::Aux => "aux".into(),
            };
            format!("post job {job} {what} on {}", leg.0)
        }
        Effect::CancelJobs => "cancel jobs".into(),
        Effect::ReleaseChunk(no) => format!("release chunk {}", no.0),
        Effect::BounceChunk { chunk, reason } => {
            format!("bounce chunk {} {:?}", chunk.0, reason.code)
        }
        Effect::Say { leg, say } => format!("say {} to {}", show_say(say), leg.0),
        Effect::SetTimer(timer) => format!("set {timer:?}"),
        Effect::ClearTimer(timer) => format!("clear {timer:?}"),
        Effect::Publish(Outcome::Done) => "publish Done".into(),
        Effect::Publish(Outcome::Aborted(reason)) => {
            format!("publish Aborted {:?} {:?}", reason.side, reason.code)
        }
        Effect::Seal => "seal".into(),
        Effect::Quarantine => "quarantine".into(),
        Effect::ReturnLease(_) => "return lease".into(),
        Effect::Note(Note::Stale(_)) => "stale".into(),
        Effect::Note(Note::RepeatedChunk) => "repeated chunk".into(),
    }
}

fn show_say(say: &Say) -> String {
    match say {
        Say::Bound => "Bound".into(),
        Say::Progress { posted, written } => format!("Progress {written}/{posted}"),
        Say::Complete { coverage, .. } => format!("Complete of {} cells", coverage.cells()),
        Say::Failed(reason) => format!("Failed {:?}", reason.code),
        Say::Quiesced { landed } => format!("Quiesced with {} cells", landed.cells()),
        Say::Accepted => "Accepted".into(),
        Say::Rejected(reason) => format!("Rejected {:?}", reason.code),
        Say::Abort(reason) => format!("Abort {:?}", reason.code),
    }
}

#[test]
fn every_state_and_event_is_pinned() {
    let mut text = String::new();
    let mut section = None;
    for row in table() {
        if section != Some((row.role, row.from)) {
            section = Some((row.role, row.from));
            let _ = writeln!(text, "\n{} {}", row.role, row.from);
        }
        let line = format!("  {:<24} {:<24} {}", row.event, row.next, row.effects);
        let _ = writeln!(text, "{}", line.trim_end());
    }
    insta::with_settings!({ omit_expression => true, prepend_module_to_snapshot => false }, {
        insta::assert_snapshot!("room_table", text);
    });
}

#[test]
fn the_representatives_are_of_the_states_they_are_named_after() {
    for (name, room) in senders().into_iter().chain(receivers()) {
        let state = name.split('/').next();
        assert_eq!(state, Some(room.state().to_string().as_str()), "{name}");
    }
}

#[test]
fn the_representatives_differ() {
    for rooms in [senders(), receivers()] {
        for (i, (a, room)) in rooms.iter().enumerate() {
            for (b, other) in &rooms[..i] {
                assert_ne!(room, other, "{a} and {b}");
            }
        }
    }
}

#[test]
fn no_pair_gives_two_outcomes_or_returns_a_lease_without_proof() {
    let count = |row: &Row, what: &str| row.effects.matches(what).count();
    for row in table() {
        let pair = format!("{} {} × {}", row.role, row.from, row.event);
        let (published, returned) = (count(&row, "publish"), count(&row, "return lease"));
        let live = |state| matches!(state, StateName::Registered | StateName::Transferring);
        let ends = live(row.before) && !live(row.after);
        assert_eq!(
            published,
            usize::from(ends),
            "{pair}: an outcome as it ends"
        );
        let over = |state| matches!(state, StateName::Done | StateName::Aborted);
        let is_over = !over(row.before) && over(row.after);
        assert_eq!(
            returned,
            usize::from(is_over),
            "{pair}: a lease as it is over"
        );
        let proof = row.event == "Quiet" || row.event.starts_with("Summed");
        assert!(!is_over || proof, "{pair}: it is over without proof");
    }
}

#[test]
fn the_diagram_in_architecture_md_is_what_the_table_gives() {
    const BEGIN: &str = "<!-- room diagram: begin -->\n";
    const END: &str = "<!-- room diagram: end -->";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ARCHITECTURE.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = text.split_once(BEGIN).expect("the begin marker");
    let (old, after) = rest.split_once(END).expect("the end marker");
    let new = diagrams();
    if std::env::var_os("KVROOM_BLESS").is_some() {
        std::fs::write(&path, format!("{before}{BEGIN}{new}{END}{after}")).unwrap();
    } else {
        assert_eq!(
            old, new,
            "ARCHITECTURE.md is behind the code; run the tests once with KVROOM_BLESS=1"
        );
    }
}

/// One diagram for each role: only what changes the state, events that do the same on one arrow.
fn diagrams() -> String {
    let mut text = String::new();
    for role in [Role::Sender, Role::Receiver] {
        let mut arrows: BTreeMap<(StateName, StateName), BTreeSet<String>> = BTreeMap::new();
        for row in table() {
            if row.role == role && row.before != row.after {
                let mut words = row.event.split(' ');
                let name = words.next().unwrap_or_default();
                let label = match (name, words.next()) {
                    ("Timer", Some(timer)) => format!("Timer {timer}"),
                    _ => name.to_owned(),
                };
                arrows
                    .entry((row.before, row.after))
                    .or_default()
                    .insert(label);
            }
        }
        let _ = writeln!(text, "The {role} room:\n\n```mermaid\nstateDiagram-v2");
        let _ = writeln!(text, "    [*] --> Registered");
        for ((from, to), labels) in arrows {
            let labels: Vec<String> = labels.into_iter().collect();
            let _ = writeln!(text, "    {from} --> {to}: {}", labels.join(", "));
        }
        let _ = writeln!(text, "    Done --> [*]\n    Aborted --> [*]\n```\n");
    }
    text
}
