//! Claims that came before the local `send`: bounded per peer, oldest first.

use crate::ids::{ClaimNo, PeerRef, RoomKey};
use crate::peer::message::ClaimTag;
use crate::room::event::LegTerms;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What a claim offers, as the sending side keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Offer {
    /// The claim's name.
    pub tag: ClaimTag,
    /// The gate's slot at the receiver.
    pub gate: u32,
    /// Destination pages in it, for people.
    pub pages: u64,
    /// Whether it wants a checksum.
    pub checksum: bool,
    /// How long the receiver waits for its outcome, in milliseconds from the claim's receipt.
    pub deadline_ms: u32,
}

/// A claim that waits.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Waiting {
    /// Whose it is.
    pub peer: PeerRef,
    /// What it offers.
    pub offer: Offer,
    /// What it asks for.
    pub terms: Arc<LegTerms>,
}

/// All claims that wait on this shard.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Early {
    next: u64,
    queue: BTreeMap<u64, Waiting>,
    by_key: BTreeMap<RoomKey, Vec<u64>>,
    per_peer: BTreeMap<PeerRef, usize>,
}

impl Early {
    /// Lets a claim wait; hands it back if its peer has `limit` waiting.
    pub fn wait(&mut self, waiting: Waiting, limit: usize) -> Result<(), Waiting> {
        if self.per_peer.get(&waiting.peer).copied().unwrap_or(0) >= limit {
            return Err(waiting);
        }
        *self.per_peer.entry(waiting.peer).or_insert(0) += 1;
        self.by_key
            .entry(waiting.offer.tag.room)
            .or_default()
            .push(self.next);
        self.queue.insert(self.next, waiting);
        self.next += 1;
        Ok(())
    }

    /// Whether this claim waits.
    pub fn has(&self, peer: PeerRef, no: ClaimNo) -> bool {
        let is = |w: &Waiting| w.peer == peer && w.offer.tag.id.number == no;
        self.queue.values().any(is)
    }

    /// Takes out all claims for a room, in the order they came.
    pub fn take_room(&mut self, key: RoomKey) -> Vec<Waiting> {
        crate::switched!(UnequalAttemptsBind => {
            let other = self.by_key.keys().find(|other| other.id == key.id && **other != key);
            if let Some(other) = other.copied() {
                return self.take_room(other);
            }
        });
        let places = self.by_key.remove(&key).unwrap_or_default();
        places
            .into_iter()
            .filter_map(|at| self.remove(at))
            .collect()
    }

    /// Takes out one claim.
    pub fn take_claim(&mut self, peer: PeerRef, room: RoomKey, no: ClaimNo) -> Option<Waiting> {
        let places = self.by_key.get(&room)?;
        let at = *places.iter().find(|at| {
            self.queue
                .get(at)
                .is_some_and(|w| w.peer == peer && w.offer.tag.id.number == no)
        })?;
        self.unlist(room, at);
        self.remove(at)
    }

    /// Takes out all claims of a peer.
    pub fn take_peer(&mut self, peer: PeerRef) -> Vec<Waiting> {
        let places: Vec<u64> = self
            .queue
            .iter()
            .filter(|(_, w)| w.peer == peer)
            .map(|(at, _)| *at)
            .collect();
        places
            .into_iter()
            .filter_map(|at| {
                let w = self.remove(at)?;
                self.unlist(w.offer.tag.room, at);
                Some(w)
            })
            .collect()
    }

    /// All waiting claims, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &Waiting> {
        self.queue.values()
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    fn unlist(&mut self, room: RoomKey, at: u64) {
        if let Some(places) = self.by_key.get_mut(&room) {
            places.retain(|p| *p != at);
            if places.is_empty() {
                self.by_key.remove(&room);
            }
        }
    }

    fn remove(&mut self, at: u64) -> Option<Waiting> {
        let waiting = self.queue.remove(&at)?;
        if let Some(count) = self.per_peer.get_mut(&waiting.peer) {
            *count -= 1;
            if *count == 0 {
                self.per_peer.remove(&waiting.peer);
            }
        }
        Some(waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{ClaimId, Incarnation};
    use crate::room::testing::claim;

    const ROOM: RoomKey = RoomKey {
        id: crate::ids::RoomId(7),
        attempt: 0,
    };
    const ONE: PeerRef = PeerRef(1);
    const OTHER: PeerRef = PeerRef(2);

    fn waiting(peer: PeerRef, no: u64) -> Waiting {
        let id = ClaimId {
            receiver: Incarnation::default(),
            sender: Incarnation::default(),
            number: ClaimNo(no),
        };
        let offer = Offer {
            tag: ClaimTag { id, room: ROOM },
            gate: 0,
            pages: 1,
            checksum: false,
            deadline_ms: 1_000,
        };
        let terms = Arc::new(claim(2, 0, 0));
        Waiting { peer, offer, terms }
    }

    fn three() -> Early {
        let mut early = Early::default();
        for (peer, no) in [(ONE, 4), (OTHER, 4), (ONE, 5)] {
            early.wait(waiting(peer, no), 2).unwrap();
        }
        early
    }

    fn names(early: impl IntoIterator<Item = Waiting>) -> Vec<(PeerRef, u64)> {
        let all = early.into_iter();
        all.map(|w| (w.peer, w.offer.tag.id.number.0)).collect()
    }

    #[test]
    fn a_claim_is_known_by_its_peer_and_its_number_together() {
        let mut early = three();
        assert_eq!((early.len(), Early::default().len()), (3, 0));
        assert!(!early.is_empty() && Early::default().is_empty());
        assert!(early.has(ONE, ClaimNo(5)) && !early.has(OTHER, ClaimNo(5)));
        assert!(!early.has(ONE, ClaimNo(6)));
        let taken = early.take_claim(OTHER, ROOM, ClaimNo(4));
        assert_eq!(names(taken), [(OTHER, 4)]);
        let taken = early.take_claim(ONE, ROOM, ClaimNo(5));
        assert_eq!(names(taken), [(ONE, 5)]);
        assert_eq!(early.take_claim(ONE, ROOM, ClaimNo(5)), None);
        assert_eq!(names(early.take_room(ROOM)), [(ONE, 4)]);
        assert!(early.is_empty());
    }

    #[test]
    fn a_peer_has_room_again_when_its_claims_are_taken_and_nothing_of_them_is_left() {
        let mut early = three();
        assert_eq!(names(early.wait(waiting(ONE, 6), 2).err()), [(ONE, 6)]);
        assert_eq!(names(early.take_peer(ONE)), [(ONE, 4), (ONE, 5)]);
        early.wait(waiting(ONE, 6), 2).unwrap();
        assert_eq!(names(early.take_room(ROOM)), [(OTHER, 4), (ONE, 6)]);
        early.wait(waiting(ONE, 7), 1).unwrap();
        assert!(early.take_claim(ONE, ROOM, ClaimNo(7)).is_some());
        let fresh = Early {
            next: early.next,
            ..Early::default()
        };
        assert_eq!(early, fresh, "something is kept for claims that are gone");
    }
}
