//! What a shard tells people about its rooms.

use super::actor::Shard;
use super::attached::{Attached, AttachedRole, Gate, Lent};
use super::core::Life;
use crate::ids::{LifeId, PeerRef, RoomKey};
use crate::memory::Witness;
use crate::peer::message::Trace;
use crate::room::{Outcome, Role, StateName};
use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

/// One room.
#[derive(Clone, Debug)]
pub struct RoomInfo {
    /// Its key.
    pub key: RoomKey,
    /// Its role.
    pub role: Role,
    /// Its state.
    pub state: StateName,
    /// Its outcome, if it is known: then the room drains.
    pub outcome: Option<Outcome>,
    /// The peers of its legs.
    pub peers: Vec<PeerRef>,
    /// What each of these legs is at, in a word or two.
    pub legs: Vec<&'static str>,
    /// Bytes of each of these legs.
    pub moved: Vec<LegBytes>,
    /// Its tag.
    pub tag: Option<String>,
    /// Pages it holds.
    pub pages: u64,
    /// Since its start.
    pub age: Duration,
    /// It passed its drain deadline.
    pub quarantined: bool,
    /// Why its memory is still held, if its outcome is known.
    pub held_because: Option<String>,
    /// The trace context of its request: the receiver's own, or what came with a sender's first claim
    /// that has one.
    pub trace: Option<Trace>,
    /// The attempt that it is a new try of.
    pub retry_of: Option<u32>,
}

/// Bytes of one leg of a room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LegBytes {
    /// In the jobs that were posted for it; none at a receiver, which is not told.
    pub posted: Option<u64>,
    /// Written: by the jobs that have come back, or through a receiver's gate so far.
    pub written: u64,
}

/// Rooms that should have come to an end by themselves, and have not.
#[derive(Clone, Debug, Default)]
pub struct StuckRooms {
    /// Some of them.
    pub rooms: Vec<RoomInfo>,
    /// How many there are beside them; rooms without an outcome are counted up to 2,000.
    pub more: u64,
}

impl StuckRooms {
    /// How many one shard tells about at most.
    pub const LISTED: usize = 256;
}

/// A claim that waits for a local `send`.
#[derive(Clone, Debug)]
pub struct EarlyClaim {
    /// The room that it is for.
    pub key: RoomKey,
    /// Whose claim.
    pub peer: PeerRef,
    /// Destination pages that it holds at the receiver.
    pub pages: u64,
}

/// Pages that ended rooms still hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeldPages {
    /// Rooms that are alive.
    pub live: u64,
    /// Rooms that drain.
    pub draining: u64,
    /// Pages of the rooms that drain.
    pub draining_pages: u64,
    /// Pages of rooms that passed their drain deadline.
    pub quarantined_pages: u64,
    /// Claims that wait for a `send`.
    pub early_claims: u64,
    /// Outcomes that are remembered.
    pub remembered: u64,
    /// Claims in the tables.
    pub claims: u64,
    /// Clocks that are armed.
    pub clocks: u64,
    /// Room actors that are alive.
    pub actors: u64,
}

/// Pages of rooms that passed their drain deadline.
#[derive(Clone, Debug, Default)]
pub struct Overdue {
    /// By peer; those of a room with several peers count for each.
    pub by_peer: Vec<(PeerRef, u64)>,
    /// By the name of the pool.
    pub by_pool: Vec<(String, u64)>,
    /// Peers that have so many that this shard refuses new claims to them.
    pub refused: Vec<PeerRef>,
}

impl Shard {
    /// All rooms of the shard, draining ones among them.
    pub fn rooms(&self) -> Vec<RoomInfo> {
        let lives = self.core().lives();
        lives.map(|(_, life)| self.tell(life)).collect()
    }

    /// Rooms without an outcome so long after their deadline, and rooms past their drain deadline: the
    /// oldest of each, [`StuckRooms::LISTED`] at most. Looks at those only, and not at all rooms.
    pub fn stuck_rooms(&self, grace: Duration) -> StuckRooms {
        // A room without an outcome does not drain yet: none is in both.
        let late: Vec<LifeId> = self.late_lives(grace).collect();
        let quarantined = self.quarantined_lives();
        let all = late.len() + quarantined.len();
        // Late ones first: there are few, and they are worse.
        let lives = late.into_iter().chain(quarantined);
        let rooms: Vec<RoomInfo> = (lives.take(StuckRooms::LISTED))
            .filter_map(|life| self.core().life(life))
            .map(|life| self.tell(life))
            .collect();
        let more = all.saturating_sub(StuckRooms::LISTED) as u64;
        StuckRooms { rooms, more }
    }

    /// Those of these rooms that are alive or drain.
    pub fn rooms_of(&self, keys: &[(RoomKey, Role)]) -> Vec<RoomInfo> {
        let core = self.core();
        let (mut told, mut ended) = (Vec::with_capacity(keys.len()), HashSet::new());
        for (key, role) in keys {
            match core.life_of(*key, *role) {
                Some(life) => told.push(self.tell(life)),
                None => {
                    ended.insert((*key, *role));
                }
            }
        }
        // A key is given up with the outcome, and the memory may be held for long after.
        if !ended.is_empty() {
            let drain = core.lives().filter(|(_, l)| l.outcome().is_some());
            let drain = drain.filter(|(_, l)| ended.contains(&(l.key(), l.role())));
            told.extend(drain.map(|(_, l)| self.tell(l)));
        }
        told
    }

    fn tell(&self, l: &Life<Lent, Witness, Box<Attached>>) -> RoomInfo {
        RoomInfo {
            key: l.key(),
            role: l.role(),
            state: l.state(),
            outcome: l.outcome().cloned(),
            peers: l.legs().iter().map(|leg| leg.peer).collect(),
            legs: (0..l.legs().len()).map(|leg| leg_word(l, leg)).collect(),
            moved: (0..l.legs().len()).map(|leg| leg_bytes(l, leg)).collect(),
            tag: l.tag().map(str::to_owned),
            pages: l.pages(),
            age: self.now().since(l.attached().since),
            quarantined: l.is_quarantined(),
            held_because: l.outcome().map(|_| why_held(l)),
            trace: l.attached().trace.as_deref().copied(),
            retry_of: l.attached().retry_of,
        }
    }

    /// Claims that wait, oldest first.
    pub fn early_claims(&self) -> Vec<EarlyClaim> {
        self.core()
            .early()
            .iter()
            .map(|w| EarlyClaim {
                key: w.offer.tag.room,
                peer: w.peer,
                pages: w.offer.pages,
            })
            .collect()
    }

    /// Pages of rooms that passed their drain deadline.
    pub fn overdue(&self) -> Overdue {
        let mut by_peer: BTreeMap<PeerRef, u64> = BTreeMap::new();
        let mut by_pool = Vec::new();
        let lives = self.quarantined_lives();
        for l in lives.filter_map(|life| self.core().life(life)) {
            for leg in l.legs().iter().filter(|leg| !leg.closed) {
                *by_peer.entry(leg.peer).or_default() += l.pages();
            }
            for (_, lent) in l.custody().leases() {
                let pool = &lent.lease.pool().layout().name;
                add(&mut by_pool, pool, lent.lease.pages().len() as u64);
            }
        }
        let limit = self.limits().quarantined_pages_per_peer;
        let full = by_peer.iter().filter(|(_, pages)| **pages >= limit);
        Overdue {
            refused: full.map(|(peer, _)| *peer).collect(),
            by_peer: by_peer.into_iter().collect(),
            by_pool,
        }
    }

    /// What is held.
    pub fn held(&self) -> HeldPages {
        let mut held = HeldPages {
            early_claims: self.core().early().len() as u64,
            remembered: self.core().remembered() as u64,
            claims: self.core().claims() as u64,
            clocks: self.armed_clocks() as u64,
            actors: self.actors() as u64,
            ..HeldPages::default()
        };
        let counted = self.core().lives().filter(|(_, l)| !l.attached().apart);
        for (_, l) in counted {
            if l.outcome().is_none() {
                held.live += 1;
            } else {
                held.draining += 1;
                held.draining_pages += l.pages();
                if l.is_quarantined() {
                    held.quarantined_pages += l.pages();
                }
            }
        }
        held
    }
}

/// Counted in a list: there are a handful.
fn add<K: Clone + PartialEq>(counts: &mut Vec<(K, u64)>, key: &K, pages: u64) {
    match counts.iter_mut().find(|(k, _)| k == key) {
        Some((_, count)) => *count += pages,
        None => counts.push((key.clone(), pages)),
    }
}

fn leg_word(life: &Life<Lent, Witness, Box<Attached>>, leg: usize) -> &'static str {
    let Some(record) = life.legs().get(leg) else {
        return "gone";
    };
    match &life.attached().role {
        _ if record.lost => "session lost",
        AttachedRole::Sender { .. } if record.closed => "closed",
        AttachedRole::Sender { .. } if record.ended => "ended",
        AttachedRole::Sender { .. } => "bound",
        AttachedRole::Receiver { gates, .. } => match gates.get(leg) {
            Some(Gate::Open(_)) => "gate open",
            Some(Gate::Closing(_)) => "gate closing",
            Some(Gate::Closed) => "gate closed",
            Some(Gate::None) | None => "claim not sent yet",
        },
    }
}

fn leg_bytes(life: &Life<Lent, Witness, Box<Attached>>, leg: usize) -> LegBytes {
    let moved = life.attached().moved.get(leg).copied().unwrap_or_default();
    match &life.attached().role {
        AttachedRole::Sender { .. } => LegBytes {
            posted: Some(moved.posted),
            written: moved.written,
        },
        AttachedRole::Receiver { gates, .. } => LegBytes {
            posted: None,
            written: match gates.get(leg) {
                Some(Gate::Open(gate)) => gate.landed().bytes,
                Some(Gate::Closing(gate)) => gate.landed().bytes,
                _ => moved.written,
            },
        },
    }
}

fn why_held(life: &Life<Lent, Witness, Box<Attached>>) -> String {
    let mut why: Vec<String> = Vec::new();
    for (leg, owed) in life.custody().owing() {
        why.push(match &life.attached().role {
            AttachedRole::Sender { .. } => {
                format!(
                    "leg {}: {owed} copies have not come back from their lane",
                    leg.0
                )
            }
            AttachedRole::Receiver { gates, .. } => match gates.get(usize::from(leg.0)) {
                Some(Gate::Closing(_)) => {
                    format!("leg {}: a writer is inside its closed gate", leg.0)
                }
                Some(Gate::Open(_)) => format!("leg {}: its gate is open", leg.0),
                _ => format!(
                    "leg {}: its claim has not been answered by the session",
                    leg.0
                ),
            },
        });
    }
    if why.is_empty() {
        "its proof is on the way".into()
    } else {
        why.join("; ")
    }
}
