//! The rooms of a node of the storm: what it receives, what it sends, and which ends are honest.

use super::canary::{Of, Use, Wire};
use super::node::{Storm, kind, lock};
use super::rng::Rng;
use super::seat::{MOST, OUTCOME};
use crate::common::TOKENS;
use crate::common::process::say;
use kvroom::{Chunk, Code, EarlyClaim, Outcome, Peer, RoomId, SendRoom};
use std::collections::HashSet;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Rooms from one peer at once. More than its credit, so that some wait for that.
const AT_ONCE: usize = 4;
/// Rooms with this bit are not ended early.
pub(crate) const FRESH: u64 = 1 << 50;

/// The bits of a room's id that say which life of which node receives it.
pub(crate) const LIFE: u64 = FRESH - (1 << 32);

/// So much later than its deadline may the end of a room come: its process may be stopped at that moment
/// for two seconds, and be slow.
const LATE: Duration = Duration::from_secs(2 + 4);

/// Ends that these faults can have. No other code is an honest end here.
const MAY_BE: [Code; 13] = [
    Code::Requested,
    Code::HandleDropped,
    Code::PeerLost,
    Code::PeerRestarted,
    Code::SessionLost,
    Code::DeadlineExceeded,
    Code::Stalled,
    Code::EarlyClaimExpired,
    Code::CopyFailed,
    // A receiver that was stopped between closing its gate and saying why.
    Code::CopyRefused,
    Code::RouteFenced,
    Code::Rejected,
    Code::LimitReached,
];

impl Storm {
    pub(crate) async fn receives(self: Arc<Self>) {
        loop {
            let peers = self.node.peers().await;
            for peer in peers {
                let busy = *lock(&self.from).entry(peer.name().to_owned()).or_default();
                if busy < AT_ONCE && peer.is_up().is_ok() && !self.calm.load(Ordering::SeqCst) {
                    let id = self.next_id();
                    self.receive_apart(peer, id, 0);
                }
            }
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
    }

    /// Of a life of a node, no room of which has had it before.
    pub(crate) fn next_id(&self) -> u64 {
        let mut count = lock(&self.count);
        *count += 1;
        self.seat.index << 44 | self.seat.life << 32 | *count
    }

    fn receive_apart(self: &Arc<Self>, peer: Peer, id: u64, attempt: u32) {
        let storm = Arc::clone(self);
        *lock(&self.from).entry(peer.name().to_owned()).or_default() += 1;
        self.rooms.fetch_add(1, Ordering::SeqCst);
        tokio::spawn(async move {
            let outcome = storm.receive(&peer, id, attempt).await;
            if let Some(left) = lock(&storm.from).get_mut(peer.name()) {
                *left -= 1;
            }
            storm.rooms.fetch_sub(1, Ordering::SeqCst);
            storm.count_end("r", outcome);
        });
    }

    /// A whole room from that peer; nothing if no page is free.
    pub(crate) async fn receive(
        self: &Arc<Self>,
        peer: &Peer,
        id: u64,
        attempt: u32,
    ) -> Option<Outcome> {
        let mut rng = Rng::of(self.seat.seed, &[1, id, attempt.into()]);
        let fresh = id & FRESH != 0;
        let of = Of {
            id,
            attempt,
            place: 0,
        };
        let n = 1 + rng.below(MOST) as usize;
        let lease = self
            .canary
            .take(Use::Destination, n, of, &Wire::from(peer))?;
        let room = self.node.receive(RoomId(id)).attempt(attempt).from(peer);
        let room = room.checksum(rng.percent(20)).into(lease).start();
        let room = match room.await {
            Ok(room) => room,
            Err(why) => {
                self.add(format!("not started: {:?}", kind(&why.to_string())));
                for lease in why.leases {
                    self.canary.back(lease, false);
                }
                return None;
            }
        };
        let begun = Instant::now();
        // Some leave at once, some when it takes too long: then somebody is in the middle of it.
        let patience = match rng.below(100) {
            _ if fresh => None,
            0..20 => Some(rng.below(12)),
            20..75 => Some(60 + rng.below(250)),
            _ => None,
        };
        if let Some(patience) = patience.map(Duration::from_millis)
            && tokio::time::timeout(patience, room.outcome())
                .await
                .is_err()
        {
            room.abort("the user left");
        }
        let outcome = self.in_time(begun, id, attempt, room.outcome()).await;
        if outcome == Outcome::Done {
            say(format_args!("end r {id}.{attempt}"));
        }
        let again = outcome != Outcome::Done && attempt < 2 && rng.percent(50);
        if again && !fresh && !self.calm.load(Ordering::SeqCst) && peer.is_up().is_ok() {
            // At once, whatever becomes of the memory of this one.
            self.receive_apart(peer.clone(), id, attempt + 1);
        }
        let back = room.released().await;
        self.look_at_end(&back.outcome, &outcome, id, attempt);
        if back.proofs.is_empty() || back.leases.len() != 1 {
            self.canary.note(format!(
                "room {id}.{attempt} came back with {} leases on {:?}",
                back.leases.len(),
                back.proofs
            ));
        }
        for lease in back.leases {
            self.canary.back(lease, outcome == Outcome::Done);
        }
        Some(outcome)
    }

    pub(crate) async fn sends(self: Arc<Self>) {
        let mut begun = HashSet::new();
        loop {
            for claim in self.node.early_claims().await {
                let key = (claim.key.id.0, claim.key.attempt);
                if begun.insert(key) {
                    self.rooms.fetch_add(1, Ordering::SeqCst);
                    let storm = Arc::clone(&self);
                    tokio::spawn(async move {
                        let outcome = storm.send(&claim).await;
                        storm.rooms.fetch_sub(1, Ordering::SeqCst);
                        storm.count_end("s", outcome);
                    });
                }
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// The room that this claim is for.
    async fn send(self: &Arc<Self>, claim: &EarlyClaim) -> Option<Outcome> {
        let (id, attempt) = (claim.key.id.0, claim.key.attempt);
        let mut rng = Rng::of(self.seat.seed, &[2, id, attempt.into()]);
        let room = self.node.send(RoomId(id)).attempt(attempt).start();
        let room = match room.await {
            Ok(room) => room,
            Err(why) => {
                self.add(format!("not started: {:?}", kind(&why.to_string())));
                return None;
            }
        };
        let begun = Instant::now();
        let early = (id & FRESH == 0).then(|| rng.below(100));
        let (mut place, total) = (0, claim.pages);
        while place < total {
            let slow = early.is_some_and(|r| (20..30).contains(&r));
            if slow {
                tokio::time::sleep(Duration::from_millis(rng.below(60))).await;
            }
            if early.is_some_and(|r| r < 10) && rng.percent(40) {
                room.abort("preempted");
            }
            if early.is_some_and(|r| (10..14).contains(&r)) && rng.percent(40) {
                // Its chunks come back by themselves.
                self.add("dropped");
                return None;
            }
            // Some are sent at once by the shard, and some by a lane.
            let n = (1 + rng.below(4)).min(total - place);
            if !self.push(&room, id, attempt, place, n).await {
                break;
            }
            place += n;
        }
        let _ = room.finish(total * TOKENS, None);
        let outcome = self.in_time(begun, id, attempt, room.outcome()).await;
        if outcome == Outcome::Done {
            say(format_args!("end s {id}.{attempt}"));
        }
        let back = room.released().await;
        self.look_at_end(&back.outcome, &outcome, id, attempt);
        for lease in back.leases {
            self.canary.source_back(lease);
        }
        Some(outcome)
    }

    /// False if the room is over.
    async fn push(
        self: &Arc<Self>,
        room: &SendRoom,
        id: u64,
        attempt: u32,
        place: u64,
        n: u64,
    ) -> bool {
        let Ok(slot) = room.reserve().await else {
            return false;
        };
        let of = Of { id, attempt, place };
        let lease = loop {
            match self
                .canary
                .take(Use::Source, n as usize, of, &Wire::default())
            {
                Some(lease) => break lease,
                None => tokio::time::sleep(Duration::from_millis(2)).await,
            }
            if room.try_outcome().is_some() {
                return false;
            }
        };
        let tokens = place * TOKENS..(place + n) * TOKENS;
        match slot.push(Chunk::tokens(tokens).pages(lease.into_read())) {
            Ok(chunk) => {
                let storm = Arc::clone(self);
                self.rooms.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(async move {
                    match chunk.released().await {
                        Some(lease) => storm.canary.source_back(lease),
                        None => storm
                            .canary
                            .note(format!("a chunk of {id}.{attempt} never came back")),
                    }
                    storm.rooms.fetch_sub(1, Ordering::SeqCst);
                });
                true
            }
            Err(refused) => {
                self.canary.source_back(refused.chunk.into_lease());
                false
            }
        }
    }

    /// The end of a room that began then: its deadline brings it at the latest.
    async fn in_time(
        &self,
        begun: Instant,
        id: u64,
        attempt: u32,
        outcome: impl Future<Output = Outcome>,
    ) -> Outcome {
        let mut outcome = pin!(outcome);
        let late = begun + OUTCOME + LATE;
        if let Ok(outcome) = tokio::time::timeout_at(late.into(), &mut outcome).await {
            return outcome;
        }
        self.canary.note(format!(
            "room {id}.{attempt} had no outcome {:?} after its start; its deadline is {OUTCOME:?}",
            begun.elapsed()
        ));
        self.tell();
        outcome.await
    }

    fn look_at_end(&self, back: &Outcome, said: &Outcome, id: u64, attempt: u32) {
        if back != said {
            self.canary.note(format!(
                "room {id}.{attempt} ended twice: {said}, then {back}"
            ));
        }
        if let Outcome::Aborted(why) = said
            && !MAY_BE.contains(&why.code)
        {
            self.canary.note(format!(
                "room {id}.{attempt} ended for what nobody did: {why}"
            ));
        }
    }

    fn count_end(&self, role: &str, outcome: Option<Outcome>) {
        match outcome {
            Some(Outcome::Done) => self.add(format!("{role} Done")),
            Some(Outcome::Aborted(why)) => self.add(format!("{role} {:?}", why.code)),
            None => {}
        }
    }
}
