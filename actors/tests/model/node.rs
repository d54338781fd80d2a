//! One node: a shard core, the rooms that run beside it, their mailboxes and armed clocks.

use kvroom_actors::ids::LifeId;
use kvroom_actors::peer::message::ClaimTag;
use kvroom_actors::room::{Event, Room, Timer};
use kvroom_actors::supervisor::core::{CoreLimits, ShardCore};
use kvroom_actors::supervisor::io::{Input, Output};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What is lent: a number that is never used twice in a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Lease(pub u32);

/// Stands in for the runtime's witnesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Witness {
    /// A job's ticket.
    Ticket,
    /// A gate, closed and empty.
    GateClosed,
    /// The session's receipt that a claim was never sent.
    NeverSubmitted,
    /// The life that the claim was sent to answered that it is out.
    PeerDrained,
    /// It said that all is written and flushed.
    Completed,
    /// The path was destroyed.
    PathFenced,
    /// The process that was inside is dead.
    WriterDead,
}

pub(crate) type Core = ShardCore<Lease, Witness, ()>;
pub(crate) type In = Input<Lease, Witness, ()>;
pub(crate) type Out = Output<Lease, Witness, ()>;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Node {
    pub(crate) core: Core,
    pub(crate) inbox: VecDeque<In>,
    pub(crate) rooms: BTreeMap<LifeId, Room<Witness>>,
    /// The shard's one FIFO to its rooms.
    pub(crate) mail: VecDeque<(LifeId, Event<Witness>)>,
    pub(crate) clocks: BTreeSet<(LifeId, Timer)>,
    pub(crate) early_clocks: BTreeSet<ClaimTag>,
}

impl Node {
    pub(crate) fn new() -> Self {
        Node {
            core: Core::new(CoreLimits {
                early_claims_per_peer: 8,
                quarantined_pages_per_peer: 1 << 20,
                spent_keys: 16,
            }),
            inbox: VecDeque::new(),
            rooms: BTreeMap::new(),
            mail: VecDeque::new(),
            clocks: BTreeSet::new(),
            early_clocks: BTreeSet::new(),
        }
    }

    /// The core handles its next input. Gives back what concerns the rest of the world.
    pub(crate) fn step_core(&mut self) -> Vec<Out> {
        let Some(input) = self.inbox.pop_front() else {
            return Vec::new();
        };
        let mut out = Vec::new();
        self.core.handle(input, &mut out);
        out.retain(|output| !self.keep(output));
        out
    }

    /// What the node does by itself.
    fn keep(&mut self, output: &Out) -> bool {
        match output {
            Output::Spawn { life, room } => {
                self.rooms.insert(*life, room.clone());
            }
            Output::ToRoom { life, event } => self.mail.push_back((*life, event.clone())),
            Output::SetTimer { life, timer } => {
                self.clocks.insert((*life, *timer));
            }
            Output::ClearTimer { life, timer } => {
                self.clocks.remove(&(*life, *timer));
            }
            Output::SetEarlyTimer { tag, .. } => {
                self.early_clocks.insert(*tag);
            }
            Output::ClearEarlyTimer { tag, .. } => {
                self.early_clocks.remove(tag);
            }
            Output::Return { life, .. } => {
                self.rooms.remove(life);
                self.clocks.retain(|(l, _)| l != life);
                return false;
            }
            _ => return false,
        }
        true
    }

    /// The next room in the FIFO handles its event. Mail for a room that is gone is dropped.
    pub(crate) fn step_room(&mut self) {
        let Some((life, event)) = self.mail.pop_front() else {
            return;
        };
        let Some(room) = self.rooms.remove(&life) else {
            return;
        };
        let mut effects = Vec::new();
        let room = room.handle(event, &mut effects);
        self.inbox.push_back(Input::RoomSaid {
            life,
            state: room.state(),
            effects,
        });
        self.rooms.insert(life, room);
    }

    /// A room's actor dies with its state and its mailbox.
    pub(crate) fn panic(&mut self, life: LifeId) {
        self.rooms.remove(&life);
        self.mail.retain(|(l, _)| *l != life);
        self.inbox.push_back(Input::RoomPanicked { life });
    }
}
