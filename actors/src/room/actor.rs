//! The actor around one room: it alone owns the machine, and it is all that a panic can take down.

use super::event::{Effect, Event};
use super::{Role, Room, StateName};
use crate::ids::{LifeId, RoomKey};
use crate::memory::Witness;
use crate::peer::message::Trace;
use crate::reason::Reason;
use crate::record::Scribe;
use crate::room::Outcome;
use crate::supervisor::actor::Shard;
use actix::{Actor, ActorContext, Addr, Context, Handler, Message};
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

/// One life of one room.
pub(crate) struct RoomActor {
    life: LifeId,
    key: RoomKey,
    role: Role,
    /// Boxed, so that the actor's task is small whichever role the room has. None after a panic.
    room: Box<Option<Room<Witness>>>,
    /// Made only if somebody listens.
    span: Option<Box<tracing::Span>>,
    ear: Rc<Ear>,
}

/// Events for a room: one at least.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Tell {
    pub(crate) first: Event<Witness>,
    pub(crate) rest: Vec<Event<Witness>>,
}

/// The room's request is of this trace.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Traced(pub(crate) Trace);

/// Rooms have said something.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Listen;

/// Where the rooms of a shard speak: one message for all that is said before the shard listens.
/// Bounded by it, since a room answers each event once.
pub(crate) struct Ear {
    shard: Addr<Shard>,
    said: RefCell<Vec<Said>>,
    scribe: Scribe,
}

impl Ear {
    pub(crate) fn new(shard: Addr<Shard>, scribe: Scribe) -> Rc<Ear> {
        Rc::new(Ear {
            shard,
            said: RefCell::default(),
            scribe,
        })
    }

    fn say(&self, said: Said) {
        let mut all = self.said.borrow_mut();
        all.push(said);
        if all.len() == 1 {
            // Within the shard's own thread.
            self.shard.do_send(Listen);
        }
    }

    /// All that was said, in order, in exchange for an empty list.
    pub(crate) fn hear(&self, empty: Vec<Said>) -> Vec<Said> {
        self.said.replace(empty)
    }
}

/// What came of an event, for the supervisor.
pub(crate) struct Said {
    pub(crate) life: LifeId,
    /// None: the handler panicked and the machine is gone.
    pub(crate) told: Option<(StateName, Vec<Effect<Witness>>)>,
}

impl RoomActor {
    pub(crate) fn new(
        life: LifeId,
        key: RoomKey,
        trace: Option<Trace>,
        room: Room<Witness>,
        ear: Rc<Ear>,
    ) -> Self {
        let span = tracing::enabled!(tracing::Level::DEBUG).then(|| {
            let trace = trace.map(tracing::field::display);
            let role = room.role();
            Box::new(tracing::debug_span!("room", %key, %role, life = life.0, trace))
        });
        RoomActor {
            life,
            key,
            role: room.role(),
            room: Box::new(Some(room)),
            span,
            ear,
        }
    }
}

impl Actor for RoomActor {
    type Context = Context<Self>;
}

impl Handler<Tell> for RoomActor {
    type Result = ();

    fn handle(&mut self, tell: Tell, ctx: &mut Context<Self>) {
        self.told(tell.first, ctx);
        for event in tell.rest {
            self.told(event, ctx);
        }
    }
}

impl Handler<Traced> for RoomActor {
    type Result = ();

    fn handle(&mut self, Traced(trace): Traced, _: &mut Context<Self>) {
        if let Some(span) = &self.span {
            span.record("trace", tracing::field::display(trace));
        }
    }
}

impl RoomActor {
    fn told(&mut self, event: Event<Witness>, ctx: &mut Context<Self>) {
        let Some(room) = self.room.take() else { return };
        let (name, before) = (event.name(), room.state());
        let _inside = self.span.as_ref().map(|span| span.enter());
        tracing::trace!(event = name);
        let heard = self.ear.scribe.hear(&event);
        let told = catch_unwind(AssertUnwindSafe(|| {
            let mut effects = Vec::new();
            let room = room.handle(event, &mut effects);
            (room, effects)
        }));
        let life = self.life;
        match told {
            Ok((room, effects)) => {
                let state = room.state();
                *self.room = Some(room);
                if let Some(heard) = heard {
                    let reason = effects.iter().find_map(ended);
                    let is = (self.role, before, state);
                    self.ear.scribe.heard((self.key, life), is, heard, reason);
                }
                // Else there is nothing for the supervisor to do, and nothing to show.
                if !effects.is_empty() || state != before {
                    let told = Some((state, effects));
                    self.ear.say(Said { life, told });
                }
            }
            Err(_) => {
                tracing::error!(life = life.0, event = name, "a room's actor panicked");
                self.ear.scribe.panicked(self.key, life, self.role, before);
                self.ear.say(Said { life, told: None });
                ctx.stop();
            }
        }
    }
}

/// Why the room ends, if this effect says that it was aborted.
fn ended<W>(effect: &Effect<W>) -> Option<&Reason> {
    match effect {
        Effect::Publish(Outcome::Aborted(reason)) => Some(reason),
        _ => None,
    }
}
