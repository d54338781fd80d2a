//! Steps the pure machines through a recording: whether they go where the node's rooms went, and what a
//! room that did not end was waiting for.
//!
//! ```text
//!   entries of a life ─▶ Event ─▶ Room::handle ─▶ state: as recorded? effects, for people
//!                    └─▶ facts of its legs ─▶ what is missing, since when; what holds its memory
//! ```
//!
//! Payloads are not in a recording. In place of cells there are as many cells, in place of a chunk's
//! pages others with the same ends: a machine that goes another way for that is a [`Difference`].

mod facts;
mod stand_in;

use super::Recording;
use crate::record::{Entry, LifeId, Told, What};
use crate::{Code, Outcome, RoomKey, StateName};
use facts::Facts;
use kvroom_actors::room::event::Effect;
use kvroom_actors::room::{Role, Room};
use stand_in::{NoSuchEvent, W};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// One life of one room, replayed.
#[derive(Clone, Debug)]
pub struct Replayed {
    /// The room.
    pub key: RoomKey,
    /// Its life on the node.
    pub life: LifeId,
    /// Its role.
    pub role: Role,
    /// Its tries at everything it was told, in order.
    pub steps: Vec<Stepped>,
    /// Where the recording and the machine differ; the machine is not asked behind the first one.
    pub differences: Vec<Difference>,
    /// Whether its start is in the recording. If not, nothing was asked of the machine.
    pub whole: bool,
    /// Its state at the end of the recording, as recorded.
    pub state: StateName,
    /// Code and text of the reason that it was aborted for, if that is recorded.
    pub reason: Option<(Code, String)>,
    /// What it waits for at the end of the recording; empty for a room that is over.
    pub missing: Vec<Missing>,
    /// What holds its memory at the end of the recording.
    pub held: Vec<String>,
    /// Its leases went back.
    pub returned: bool,
}

/// One thing that a room was told.
#[derive(Clone, Debug)]
pub struct Stepped {
    /// The entry's number.
    pub seq: u64,
    /// Since the node's start.
    pub at: Duration,
    /// The event.
    pub event: &'static str,
    /// The leg that it is about.
    pub leg: Option<u16>,
    /// Recorded: before and after.
    pub recorded: (StateName, StateName),
    /// The machine's state after it, if it was asked.
    pub machine: Option<StateName>,
    /// What the machine wanted done.
    pub effects: Vec<String>,
}

/// Where a replay is not as the recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// At this entry.
    pub seq: u64,
    /// How.
    pub why: String,
}

/// What a room waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// The event that did not come.
    pub event: &'static str,
    /// Of which leg.
    pub leg: Option<u16>,
    /// Since when, on the node's clock.
    pub since: Duration,
    /// Who should have brought it, in words.
    pub from: String,
}

impl Replayed {
    /// Whether the room had not ended, or its memory had not come back, when the recording was made.
    pub fn is_stuck(&self) -> bool {
        !matches!(self.state, StateName::Done | StateName::Aborted)
    }
}

/// Replays every life of a recording, in the order of their first entries.
pub fn replay(recording: &Recording) -> Vec<Replayed> {
    let mut lives: BTreeMap<LifeId, (u64, Vec<&Entry>)> = BTreeMap::new();
    for entry in &recording.entries {
        if let Some(life) = life_of(&entry.what) {
            let (_, entries) = lives.entry(life).or_insert((entry.seq, Vec::new()));
            entries.push(entry);
        }
    }
    let mut lives: Vec<_> = lives.into_iter().collect();
    lives.sort_by_key(|(_, (first, _))| *first);
    lives
        .into_iter()
        .filter_map(|(life, (_, entries))| one(life, &entries))
        .collect()
}

/// The life that an entry is about.
pub fn life_of(what: &What) -> Option<LifeId> {
    match what {
        What::Room(step) => Some(step.life),
        What::Leg { life, .. }
        | What::Gate { life, .. }
        | What::Job { life, .. }
        | What::Lease { life, .. }
        | What::Retry { life, .. } => Some(*life),
        What::Sent(_)
        | What::Received(_)
        | What::Refused { .. }
        | What::Peer { .. }
        | What::Note(_) => None,
    }
}

fn one(life: LifeId, entries: &[&Entry]) -> Option<Replayed> {
    let steps = entries.iter().filter_map(|entry| match &entry.what {
        What::Room(step) => Some((*entry, step)),
        _ => None,
    });
    let steps: Vec<_> = steps.collect();
    let (_, first) = steps.first()?;
    let mut machine = stand_in::start(&steps);
    let mut replayed = Replayed {
        key: first.key,
        life,
        role: first.role,
        steps: Vec::with_capacity(steps.len()),
        differences: Vec::new(),
        whole: machine.is_some(),
        state: first.from,
        reason: None,
        missing: Vec::new(),
        held: Vec::new(),
        returned: false,
    };
    let mut facts = Facts::new(first.role);
    let mut steps = steps.into_iter();
    for entry in entries {
        facts.note(entry);
        if let What::Room(_) = &entry.what
            && let Some((entry, step)) = steps.next()
        {
            let mut stepped = Stepped {
                seq: entry.seq,
                at: entry.at,
                event: step.event(),
                leg: step.told.leg().map(|leg| leg.0),
                recorded: (step.from, step.to),
                machine: None,
                effects: Vec::new(),
            };
            if step.from != replayed.state {
                let why = format!("it was left {} and is found {}", replayed.state, step.from);
                replayed.differs(entry, why);
                machine = None;
            }
            if let Some(reason) = &step.reason {
                replayed.reason = Some((reason.code, reason.text.clone()));
            }
            if let Some(room) = machine.take() {
                match tell(room, &step.told, &mut stepped) {
                    Ok((room, published)) => {
                        let recorded = step.reason.as_ref().map(|reason| reason.code);
                        let went = room.state();
                        if went != step.to {
                            let why = format!("recorded {}, the machine is {went}", step.to);
                            replayed.differs(entry, why);
                        } else if published != recorded {
                            let why = format!(
                                "recorded reason {recorded:?}, the machine's is {published:?}"
                            );
                            replayed.differs(entry, why);
                        } else {
                            machine = Some(room);
                        }
                    }
                    // From here on the room has no machine, here as there.
                    Err(None) => {}
                    Err(Some(why)) => replayed.differs(entry, why),
                }
            }
            replayed.state = step.to;
            replayed.steps.push(stepped);
        }
    }
    replayed.returned = facts.returned();
    if !replayed.returned {
        replayed.held = facts.held();
    }
    if replayed.is_stuck() {
        replayed.missing = facts.missing(replayed.state);
    }
    Some(replayed)
}

impl Replayed {
    fn differs(&mut self, entry: &Entry, why: String) {
        let seq = entry.seq;
        self.differences.push(Difference { seq, why });
    }
}

/// The room after it was told, and the code that it published an abort with. No room and no word for a
/// room whose actor panicked.
#[allow(clippy::type_complexity)]
fn tell(
    room: Room<W>,
    told: &Told,
    stepped: &mut Stepped,
) -> Result<(Room<W>, Option<Code>), Option<String>> {
    let event = match stand_in::event(told) {
        Ok(event) => event,
        Err(NoSuchEvent::Begun) => {
            stepped.machine = Some(room.state());
            return Ok((room, None));
        }
        Err(NoSuchEvent::Panicked) => return Err(None),
        Err(NoSuchEvent::TooLarge(why)) => return Err(Some(why)),
    };
    // What is in a file may be anything.
    let handled = catch_unwind(AssertUnwindSafe(|| {
        let mut effects = Vec::new();
        let room = room.handle(event, &mut effects);
        (room, effects)
    }));
    let (room, effects) = handled.map_err(|_| Some("the machine panicked".to_owned()))?;
    let published = effects.iter().find_map(|effect| match effect {
        Effect::Publish(Outcome::Aborted(reason)) => Some(reason.code),
        _ => None,
    });
    stepped.machine = Some(room.state());
    stepped.effects = effects.iter().map(stand_in::effect).collect();
    Ok((room, published))
}
