//! Keys are used once.

use super::*;
use crate::supervisor::io::StartRefused;
use crate::supervisor::spent::Spent;

fn refusal(out: &[Out]) -> Option<(StartRefused, usize)> {
    out.iter().find_map(|o| match o {
        Output::StartRefused { why, leases, .. } => Some((why.clone(), leases.len())),
        _ => None,
    })
}

#[test]
fn a_second_room_with_the_key_of_a_live_one_is_refused_with_its_lease() {
    let mut s = Shard::new();
    s.receive(1, key(0), &[P], false);
    let out = s.receive(2, key(0), &[P], false);
    assert_eq!(refusal(&out), Some((StartRefused::RoomExists(key(0)), 1)));
    assert!(s.core.life(LifeId(1)).is_some() && s.core.life(LifeId(2)).is_none());
}

#[test]
fn one_node_may_send_and_receive_with_the_same_key() {
    let mut s = Shard::new();
    s.receive(1, key(0), &[P], false);
    assert_eq!(refusal(&s.send(2, key(0), 1)), None);
}

#[test]
fn a_used_key_is_refused_with_its_outcome() {
    let mut s = Shard::new();
    s.send(1, key(0), 1);
    s.abort(1);
    let out = s.send(2, key(0), 1);
    let outcome = Spent::Aborted(Code::Requested);
    let why = StartRefused::KeySpent {
        key: key(0),
        outcome,
    };
    assert_eq!(refusal(&out), Some((why, 0)));
}

#[test]
fn the_next_attempt_starts_while_the_first_is_draining() {
    let mut s = Shard::new();
    s.receive(1, key(0), &[P], false);
    s.open(1, LEG, tag(P, 1, key(0)));
    let out = s.abort(1);
    assert_eq!((outcomes(&out).len(), returned(&out)), (1, None));
    assert_eq!(refusal(&s.receive(2, key(1), &[P], false)), None);
    assert_eq!(s.core.lives().count(), 2);
}

#[test]
fn the_oldest_outcomes_are_forgotten_at_the_limit() {
    let mut s = Shard::with(|l| l.spent_keys = 2);
    for attempt in 0..5 {
        s.send(u64::from(attempt), key(attempt), 1);
        s.abort(u64::from(attempt));
    }
    assert_eq!((s.core.remembered(), s.core.lives().count()), (2, 0));
}

#[test]
fn a_million_rooms_leave_nothing_but_what_is_remembered() {
    let mut s = Shard::new();
    for attempt in 0..10_000 {
        s.send(u64::from(attempt), key(attempt), 1);
        s.receive(20_000 + u64::from(attempt), key(attempt), &[P], false);
    }
    let reason = Reason::from(Code::Requested);
    let which = crate::supervisor::io::Which::All;
    assert_eq!(s.core.matching(&which), 20_000);
    let out = s.tell(Input::AbortWhere { which, reason });
    assert_eq!(outcomes(&out).len(), 20_000);
    // The receivers' claims were never numbered: the session says so.
    for attempt in 0..10_000 {
        s.tell(Input::ClaimNotOpened {
            life: LifeId(20_000 + attempt),
            leg: LEG,
            reason: Code::Requested.into(),
            witness: 3,
        });
    }
    assert!(s.core.is_empty() && s.core.claims() == 0 && s.rooms.is_empty());
    assert_eq!(s.core.remembered(), 8);
}
