//! What a node tells about itself, as JSON.

use super::protocol::MAX_LIST;
use kvroom::{EarlyClaim, NodeStats, Outcome, Peer, PeerState, Role, RoomInfo};
use serde_json::{Value, json};

/// Counters and gauges, under the names of the library's fields.
pub(crate) fn stats(s: &NodeStats) -> Value {
    json!({
        "rooms_live": s.rooms_live,
        "rooms_draining": s.rooms_draining,
        "draining_pages": s.draining_pages,
        "quarantined_pages": s.quarantined_pages,
        "early_claims": s.early_claims,
        "claims": s.claims,
        "remembered_keys": s.remembered_keys,
        "actors": s.actors,
        "clocks": s.clocks,
        "started": s.started,
        "done": s.done,
        "aborted": s.aborted,
        "bytes_copied": s.bytes_copied,
        "refused_jobs": s.refused_jobs,
        "stale_messages": s.stale_messages,
        "stale_events": s.stale_events,
        "repeated_chunks": s.repeated_chunks,
        "claims_refused": s.claims_refused,
        "rooms_quarantined": s.rooms_quarantined,
        "panicked": s.panicked,
        "stray_witnesses": s.stray_witnesses,
        "overwritten_words": s.overwritten_words,
        "sessions_opened": s.sessions_opened,
        "sessions_resumed": s.sessions_resumed,
        "transports_lost": s.transports_lost,
        "greetings_refused": s.greetings_refused,
        "greetings_put_out": s.greetings_put_out,
    })
}

/// Peers in their newest lives.
pub(super) fn peers(peers: &[Peer]) -> Value {
    let one = |peer: &Peer| {
        let (state, why) = match peer.state() {
            PeerState::Up => ("up", None),
            PeerState::Resuming(why) => ("resuming", Some(why)),
            PeerState::Down(why) => ("down", Some(why)),
        };
        json!({
            "name": peer.name(),
            "incarnation": peer.incarnation().to_string(),
            "state": state,
            "why": why,
        })
    };
    json!({ "peers": peers.iter().map(one).collect::<Vec<_>>() })
}

/// Rooms that are alive or drain.
pub(super) fn rooms(rooms: &[RoomInfo]) -> Value {
    let one = |room: &RoomInfo| {
        let outcome = room.outcome.as_ref().map(|outcome| match outcome {
            Outcome::Done => "Done".to_owned(),
            Outcome::Aborted(reason) => format!("Aborted: {reason}"),
        });
        json!({
            "room": room.key.id.0,
            "attempt": room.key.attempt,
            "role": match room.role {
                Role::Sender => "send",
                Role::Receiver => "receive",
            },
            "state": format!("{:?}", room.state),
            "outcome": outcome,
            "peers": room.peers,
            "tag": room.tag,
            "pages": room.pages,
            "age_ms": room.age.as_millis() as u64,
            "quarantined": room.quarantined,
            "held_because": room.held_because,
        })
    };
    json!({
        "count": rooms.len(),
        "rooms": rooms.iter().take(MAX_LIST).map(one).collect::<Vec<_>>(),
    })
}

/// Claims that wait for a local `send`.
pub(super) fn claims(claims: &[EarlyClaim]) -> Value {
    let one = |claim: &EarlyClaim| {
        json!({
            "room": claim.key.id.0,
            "attempt": claim.key.attempt,
            "peer": claim.peer,
            "pages": claim.pages,
        })
    };
    json!({
        "count": claims.len(),
        "early_claims": claims.iter().take(MAX_LIST).map(one).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_counter_of_the_library_is_told_under_its_name() {
        let all = NodeStats::default();
        let told = stats(&all);
        let shown = format!("{all:?}");
        let told = told.as_object().unwrap();
        assert_eq!(shown.matches(": ").count(), told.len(), "{shown}");
        for name in told.keys() {
            assert!(shown.contains(&format!("{name}: ")), "{name}");
        }
    }
}
