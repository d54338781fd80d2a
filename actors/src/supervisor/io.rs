//! What a shard's core is told and what it wants done, as data.

use super::custody::Held;
use super::early::Offer;
use super::spent::Spent;
use crate::ids::{ChunkNo, ClaimNo, LegNo, LifeId, PeerRef, RoomId, RoomKey};
use crate::peer::message::{Body, ClaimTag};
use crate::reason::Reason;
use crate::room::event::{Chunk, Effect, Event, JobEnd, JobSpec, LegTerms, Timer};
use crate::room::{Outcome, Quiescence, Role, Room, StateName, receiver};
use std::sync::Arc;

/// Which rooms an abort is for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Which {
    /// Every room.
    All,
    /// Every attempt of a room, in both roles.
    Room(RoomId),
    /// Every room started with this tag (an agent's session).
    Tag(Arc<str>),
    /// Every room but those with this tag.
    AllBut(Arc<str>),
    /// Every room with a leg to this peer.
    Peer(PeerRef),
    /// These lives: the shell looked for something that a core does not know.
    Lives(Listed<LifeId>),
}

/// A list that is asked for each of many whether it is in it: sorted, so that asking is a few comparisons
/// however long it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Listed<T>(Arc<[T]>);

impl<T: Ord> Listed<T> {
    /// Whether it is in the list.
    pub fn has(&self, one: &T) -> bool {
        self.0.binary_search(one).is_ok()
    }
}

impl<T: Ord> FromIterator<T> for Listed<T> {
    fn from_iter<I: IntoIterator<Item = T>>(list: I) -> Self {
        let mut list: Vec<T> = list.into_iter().collect();
        // Mostly sorted as it comes, which takes one pass.
        list.sort();
        Listed(list.into())
    }
}

/// A room to be started, whichever its role.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Start<L, A> {
    /// The life it gets; never used before on this node.
    pub life: LifeId,
    /// Its key.
    pub key: RoomKey,
    /// Its tag.
    pub tag: Option<Arc<str>>,
    /// Pages that it holds, for limits and people.
    pub pages: u64,
    /// What the runtime keeps with it.
    pub attached: A,
    /// By role.
    pub role: StartRole<L>,
}

/// What differs by role.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum StartRole<L> {
    /// A prefill room.
    Sender {
        /// How many receivers there will be.
        receivers: u16,
    },
    /// A decode room.
    Receiver {
        /// Terms of the room.
        terms: receiver::Terms,
        /// The expected sender of each leg.
        peers: Vec<PeerRef>,
        /// Destination pages.
        leases: Vec<(Held, L)>,
    },
}

/// Why a room was not started.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum StartRefused {
    /// The key is in use.
    #[error("room {0} exists and is alive: use the next attempt, or wait for its outcome")]
    RoomExists(RoomKey),
    /// The key was used.
    #[error("the key of room {key} is spent, its room ended {outcome}: use the next attempt")]
    KeySpent {
        /// Which key.
        key: RoomKey,
        /// How it ended.
        outcome: Spent,
    },
    /// A limit was reached.
    #[error("limit {limit} = {value} is reached: {advice}")]
    LimitReached {
        /// The field of `Limits`.
        limit: &'static str,
        /// Its value.
        value: u64,
        /// What to do.
        advice: &'static str,
    },
    /// The node is going down.
    #[error("the node is shutting down and starts no rooms")]
    ShuttingDown,
}

/// What happens to a shard.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Input<L, W, A> {
    /// The caller starts a room.
    Start(Box<Start<L, A>>),
    /// The caller pushes a chunk.
    Push {
        /// To which life.
        life: LifeId,
        /// The chunk.
        chunk: Chunk,
        /// Its source pages.
        lease: L,
    },
    /// The caller says that there is no more.
    Finish {
        /// To which life.
        life: LifeId,
        /// Length of the request.
        total: u64,
        /// The aux row.
        aux: Option<L>,
    },
    /// The caller (or the drop of its handle) ends a room.
    Abort {
        /// Which life.
        life: LifeId,
        /// Why.
        reason: Reason,
    },
    /// The caller ends many rooms.
    AbortWhere {
        /// Which.
        which: Which,
        /// Why.
        reason: Reason,
    },
    /// The receiver-side sum over a life's destination cells is known.
    Summed {
        /// Which life.
        life: LifeId,
        /// The sum.
        sum: u64,
    },
    /// A claim arrived from a peer and passed the session's rules.
    Claim {
        /// From whom.
        peer: PeerRef,
        /// What it offers.
        offer: Offer,
        /// What it asks for, or why it cannot be served.
        terms: Result<Arc<LegTerms>, Reason>,
    },
    /// Any other message of a peer about a claim.
    Message {
        /// From whom.
        peer: PeerRef,
        /// What.
        body: Body,
    },
    /// The session gave a claim its number, opened its gate and queued it.
    ClaimOpened {
        /// Of which life.
        life: LifeId,
        /// On which leg.
        leg: LegNo,
        /// Its name.
        tag: ClaimTag,
    },
    /// The session did not and will not open it.
    ClaimNotOpened {
        /// Of which life.
        life: LifeId,
        /// On which leg.
        leg: LegNo,
        /// Why.
        reason: Reason,
        /// The receipt.
        witness: W,
    },
    /// A gate is closed and empty.
    GateClosed {
        /// Of which life.
        life: LifeId,
        /// On which leg.
        leg: LegNo,
        /// The proof.
        witness: W,
    },
    /// Bytes of a running job landed.
    Moved {
        /// Of which life.
        life: LifeId,
        /// On which leg.
        leg: LegNo,
        /// How many more.
        bytes: u64,
    },
    /// A job's ticket came back.
    JobOver {
        /// Of which life.
        life: LifeId,
        /// On which leg.
        leg: LegNo,
        /// Which job.
        job: u32,
        /// The lease it carried.
        carried: Held,
        /// Bytes landed that no `Moved` told of.
        rest: u64,
        /// How it ended.
        end: JobEnd,
        /// The proof that it will not touch memory again.
        witness: W,
    },
    /// A room's actor handled an event.
    RoomSaid {
        /// Which life.
        life: LifeId,
        /// Its state now.
        state: StateName,
        /// What it wants done.
        effects: Vec<Effect<W>>,
    },
    /// A room's actor panicked. Its state is gone; custody is not.
    RoomPanicked {
        /// Which life.
        life: LifeId,
    },
    /// A room's clock ran out.
    Timer {
        /// Which life.
        life: LifeId,
        /// Which clock.
        timer: Timer,
    },
    /// A waiting claim's clock ran out.
    EarlyTimer {
        /// Whose claim.
        peer: PeerRef,
        /// Its name.
        tag: ClaimTag,
    },
    /// The session with a peer was given up, or the peer is gone.
    PeerLost {
        /// Which peer.
        peer: PeerRef,
        /// Why.
        reason: Reason,
    },
    /// A new session with the same incarnation of a peer is up.
    PeerBack {
        /// Which peer.
        peer: PeerRef,
    },
    /// No new rooms; the ones there end.
    Shutdown,
    /// Tells one room to panic. Only in builds for tests.
    #[cfg(any(test, feature = "plant"))]
    Explode {
        /// Which life.
        life: LifeId,
    },
}

/// What a shard wants done, in order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Output<L, W, A> {
    /// The room was admitted: tell the caller, and run this machine as an actor.
    Spawn {
        /// Its life.
        life: LifeId,
        /// The machine.
        room: Room<W>,
    },
    /// Tell the caller no, and give everything back.
    StartRefused {
        /// Why.
        why: StartRefused,
        /// What the runtime attached.
        attached: A,
        /// The leases.
        leases: Vec<(Held, L)>,
    },
    /// Give an event to a room's actor.
    ToRoom {
        /// Which life.
        life: LifeId,
        /// What.
        event: Event<W>,
    },
    /// Have the session number this claim, open its gate and queue it.
    OpenClaim {
        /// For which life.
        life: LifeId,
        /// On which leg.
        leg: LegNo,
        /// To whom.
        peer: PeerRef,
    },
    /// Take it back if it has no number yet.
    WithdrawClaim {
        /// Of which life.
        life: LifeId,
        /// On which leg.
        leg: LegNo,
        /// To whom.
        peer: PeerRef,
    },
    /// Close the gate of this leg; `GateClosed` is due when it is empty.
    CloseGate {
        /// Of which life.
        life: LifeId,
        /// On which leg.
        leg: LegNo,
    },
    /// Send this.
    ToPeer {
        /// To whom.
        peer: PeerRef,
        /// What.
        body: Body,
    },
    /// One claim of this peer ended: its credit may go back.
    ClaimEnded {
        /// Whose.
        peer: PeerRef,
        /// Which: a credit goes back in the session that the claim came in, and in no other.
        number: ClaimNo,
    },
    /// Post a copy.
    Post {
        /// For which life.
        life: LifeId,
        /// On which leg.
        leg: LegNo,
        /// Its number.
        job: u32,
        /// What.
        spec: JobSpec,
    },
    /// Stop the life's jobs at their next piece.
    CancelJobs {
        /// Which life.
        life: LifeId,
    },
    /// Sum the destination's cells.
    Sum {
        /// Of which life.
        life: LifeId,
    },
    /// A chunk's lease goes back to the caller: it has landed everywhere.
    ReleaseChunk {
        /// Of which life.
        life: LifeId,
        /// Which chunk.
        chunk: ChunkNo,
        /// The lease.
        lease: L,
    },
    /// A chunk's (or aux row's) lease goes back to the caller: it was not taken.
    Bounce {
        /// The lease.
        lease: L,
        /// Why.
        reason: Reason,
    },
    /// Arm a room's clock.
    SetTimer {
        /// Of which life.
        life: LifeId,
        /// Which.
        timer: Timer,
    },
    /// Disarm it.
    ClearTimer {
        /// Of which life.
        life: LifeId,
        /// Which.
        timer: Timer,
    },
    /// Arm the clock of a waiting claim.
    SetEarlyTimer {
        /// Whose claim.
        peer: PeerRef,
        /// Its name.
        tag: ClaimTag,
        /// The receiver waits no longer than this, in milliseconds.
        within_ms: u32,
    },
    /// The claim waits no more.
    ClearEarlyTimer {
        /// Whose claim.
        peer: PeerRef,
        /// Its name.
        tag: ClaimTag,
    },
    /// Deliver the outcome. Once in a life.
    Publish {
        /// Which life.
        life: LifeId,
        /// What.
        outcome: Outcome,
    },
    /// The life is over: deliver the leases, drop its actor and everything kept for it.
    Return {
        /// Which life.
        life: LifeId,
        /// Its leases.
        leases: Vec<(Held, L)>,
        /// The proof.
        proof: Quiescence<W>,
        /// How it ended; published before.
        outcome: Option<Outcome>,
        /// What the runtime attached.
        attached: A,
    },
    /// Count it.
    Count(Counter),
    /// Shutdown was asked for, and nothing is held any more.
    Empty,
}

/// Things worth counting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Counter {
    /// A message named a claim that is not live here.
    StaleMessage,
    /// A room met an event that means nothing in its state.
    StaleEvent,
    /// A chunk was pushed twice with the same pages.
    RepeatedChunk,
    /// A claim was refused.
    ClaimRefused,
    /// A room passed its drain deadline.
    Quarantined,
    /// A room's actor panicked.
    Panicked,
    /// A witness came that nobody owed.
    StrayWitness,
}

/// Where a claim number lives: numbers of both directions of a session overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClaimKey {
    /// The other node.
    pub peer: PeerRef,
    /// What this node is in the claim.
    pub role: Role,
    /// Its number.
    pub number: ClaimNo,
}

#[cfg(test)]
mod tests {
    use super::Listed;
    use std::cell::Cell;
    use std::cmp::Ordering;

    /// Counts how often it is compared.
    #[derive(Clone, Debug)]
    struct Counted<'a>(u32, &'a Cell<usize>);

    impl Ord for Counted<'_> {
        fn cmp(&self, other: &Self) -> Ordering {
            self.1.set(self.1.get() + 1);
            self.0.cmp(&other.0)
        }
    }

    impl PartialOrd for Counted<'_> {
        fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
            Some(self.cmp(other))
        }
    }

    impl PartialEq for Counted<'_> {
        fn eq(&self, other: &Self) -> bool {
            self.cmp(other) == Ordering::Equal
        }
    }

    impl Eq for Counted<'_> {}

    #[test]
    fn asking_a_list_of_all_lives_for_each_of_them_takes_a_few_comparisons_each() {
        let (many, compared) = (50_000, Cell::new(0));
        // Each second one is in it, the last ones first.
        let list = (0..many).rev().filter(|n| n % 2 == 0);
        let list: Listed<Counted<'_>> = list.map(|n| Counted(n, &compared)).collect();
        compared.set(0);
        for n in 0..many {
            assert_eq!(list.has(&Counted(n, &compared)), n % 2 == 0, "{n}");
        }
        let each = compared.get() / many as usize;
        assert!(each <= 17, "{each} comparisons for one of {many}");
    }
}
