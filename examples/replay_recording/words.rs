//! Replays and timelines in words.

use kvroom::Role;
use kvroom::record::{Told, What};
use kvroom::recording::Recording;
use kvroom::recording::merge::{Clocks, Moment};
use kvroom::recording::replay::Replayed;
use std::fmt::Write as _;
use std::time::Duration;

fn role(role: Role) -> &'static str {
    match role {
        Role::Sender => "send",
        Role::Receiver => "receive",
    }
}

pub(crate) fn of_header(recording: &Recording) -> String {
    let header = &recording.header;
    let lost = match header.lost {
        0 => String::new(),
        lost => format!(", {lost} older ones were overwritten"),
    };
    format!(
        "{} (incarnation {}), written for {:?}: {} entries{lost}",
        header.node,
        header.incarnation,
        header.why,
        recording.entries.len()
    )
}

pub(crate) fn of_clocks(clocks: &Clocks, first: &Recording, second: &Recording) -> String {
    let bound = |bound: Option<i64>| bound.map_or("unknown".to_owned(), |us| format!("{us} µs"));
    let mut text = format!(
        "clock of {}: {} µs are added to meet that of {} (at least {}, at most {}; {} messages are in both)",
        second.header.node,
        clocks.offset_us,
        first.header.node,
        bound(clocks.at_least_us),
        bound(clocks.at_most_us),
        clocks.matched,
    );
    if clocks.reversed > 0 {
        let _ = write!(
            text,
            "\nwarning: {} messages came before they were sent, whichever offset is taken",
            clocks.reversed
        );
    }
    text
}

pub(crate) fn of_moment(moment: &Moment<'_>, node: &str) -> String {
    let at = moment.at.as_secs_f64() * 1e3;
    let peer = moment.entry.peer.as_deref().unwrap_or("?");
    let what = match &moment.entry.what {
        What::Room(step) => {
            let leg = step
                .told
                .leg()
                .map_or(String::new(), |leg| format!(" leg {}", leg.0));
            let more = match &step.told {
                Told::Progress {
                    posted, written, ..
                } => format!(" {written}/{posted} bytes"),
                Told::JobOver { job, end, .. } => format!(" job {job} {end:?}"),
                Told::Timer(timer) => format!(" {timer:?}"),
                _ => String::new(),
            };
            let (side, event) = (role(step.role), step.event());
            let to = match step.from == step.to {
                true => format!("stays {}", step.to),
                false => format!("{} → {}", step.from, step.to),
            };
            let reason = step
                .reason
                .as_ref()
                .map_or(String::new(), |r| format!(": {r}"));
            format!("room {} {side}: {event}{leg}{more}, {to}{reason}", step.key)
        }
        What::Sent(word) => {
            let claim = word.claim.map_or(String::new(), |c| format!(" {c}"));
            format!("──▶ {} to {peer}{claim}", word.message)
        }
        What::Received(word) => {
            let claim = word.claim.map_or(String::new(), |c| format!(" {c}"));
            format!("◀── {} from {peer}{claim}", word.message)
        }
        What::Leg {
            key, leg, claim, ..
        } => {
            format!("room {key} send: leg {} is {claim} of {peer}", leg.0)
        }
        What::Gate {
            key,
            leg,
            claim,
            is,
            ..
        } => format!(
            "room {key} receive: gate of {claim} (leg {}) is {is:?}",
            leg.0
        ),
        What::Job {
            key,
            leg,
            job,
            road,
            bytes,
            ..
        } => format!(
            "room {key} send: job {job} of leg {}, {bytes} bytes, by {road:?}",
            leg.0
        ),
        What::Lease { key, proofs, .. } => {
            let proofs: Vec<String> = proofs.iter().map(|p| p.to_string()).collect();
            format!("room {key}: its memory goes back, by {}", proofs.join(", "))
        }
        What::Retry {
            key,
            role: side,
            of,
            ..
        } => format!("room {key} {}: a new try of attempt {of}", role(*side)),
        What::Refused { key, role: side } => format!("room {key} {}: start refused", role(*side)),
        What::Peer { is, why, .. } => format!("peer {peer} is {is:?} {why}"),
        What::Note(note) => note.to_string(),
    };
    format!("{at:>12.3} ms  {node:<12} {what}")
}

pub(crate) fn of_life(life: &Replayed, node: &str, now: Duration, steps: bool) -> String {
    let mut text = format!("{node}: room {} {}", life.key, role(life.role));
    let end = match (life.is_stuck(), life.returned) {
        (true, _) => format!("had not ended: it was {}", life.state),
        (false, true) => format!("ended {}", life.state),
        (false, false) => format!("ended {}, and its memory was not back", life.state),
    };
    let _ = writeln!(text, " {end}");
    if let Some((code, why)) = &life.reason {
        let _ = writeln!(text, "    aborted for {code:?}: {why}");
    }
    if !life.whole {
        let _ = writeln!(
            text,
            "    its start is not in the recording: it is not replayed"
        );
    }
    if steps {
        for step in &life.steps {
            let leg = step.leg.map_or(String::new(), |leg| format!(" leg {leg}"));
            let machine = match step.machine {
                Some(state) if state == step.recorded.1 => String::new(),
                Some(state) => format!(", THE MACHINE IS {state}"),
                None => ", not replayed".to_owned(),
            };
            let _ = writeln!(
                text,
                "    {:>12.3} ms  {}{leg}: {} → {}{machine}",
                step.at.as_secs_f64() * 1e3,
                step.event,
                step.recorded.0,
                step.recorded.1
            );
            for effect in &step.effects {
                let _ = writeln!(text, "                      · {effect}");
            }
        }
    }
    for difference in &life.differences {
        let _ = writeln!(
            text,
            "    DIFFERS at entry {}: {}",
            difference.seq, difference.why
        );
    }
    for missing in &life.missing {
        let leg = missing
            .leg
            .map_or(String::new(), |leg| format!(" of leg {leg}"));
        let for_how_long = now.saturating_sub(missing.since);
        let _ = writeln!(
            text,
            "    missing: {}{leg}, for {for_how_long:?} (since {:?}): {}",
            missing.event, missing.since, missing.from
        );
    }
    for held in &life.held {
        let _ = writeln!(text, "    held: {held}");
    }
    text
}
