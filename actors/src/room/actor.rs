//! The actor around one room: it alone owns the machine, and it is all that a panic can take down.

use super::event::{Effect, Event};
use super::{Room, StateName};
use crate::ids::{LifeId, RoomKey};
use crate::memory::Witness;
use crate::supervisor::actor::Shard;
use actix::{Actor, ActorContext, Addr, Context, Handler, Message};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// One life of one room.
pub(crate) struct RoomActor {
    life: LifeId,
    /// Boxed, so that the actor's task is small whichever role the room has. None after a panic.
    room: Box<Option<Room<Witness>>>,
    /// Made only if somebody listens.
    span: Option<Box<tracing::Span>>,
    /// One address, shared by the rooms of the shard: each clone of an `Addr` is two allocations.
    shard: Arc<Addr<Shard>>,
}

/// An event for a room.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Tell(pub(crate) Event<Witness>);

/// What came of it, for the supervisor.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Said {
    pub(crate) life: LifeId,
    /// None: the handler panicked and the machine is gone.
    pub(crate) told: Option<(StateName, Vec<Effect<Witness>>)>,
}

impl RoomActor {
    pub(crate) fn new(
        life: LifeId,
        key: RoomKey,
        room: Room<Witness>,
        shard: Arc<Addr<Shard>>,
    ) -> Self {
        let span = tracing::enabled!(tracing::Level::DEBUG).then(|| {
            Box::new(tracing::debug_span!("room", %key, role = %room.role(), life = life.0))
        });
        RoomActor {
            life,
            room: Box::new(Some(room)),
            span,
            shard,
        }
    }
}

impl Actor for RoomActor {
    type Context = Context<Self>;
}

impl Handler<Tell> for RoomActor {
    type Result = ();

    fn handle(&mut self, Tell(event): Tell, ctx: &mut Context<Self>) {
        let Some(room) = self.room.take() else { return };
        let (name, before) = (event.name(), room.state());
        let _inside = self.span.as_ref().map(|span| span.enter());
        tracing::trace!(event = name);
        let told = catch_unwind(AssertUnwindSafe(|| {
            let mut effects = Vec::new();
            let room = room.handle(event, &mut effects);
            (room, effects)
        }));
        // Within the shard's own thread, one message for each event it sent: bounded by it.
        match told {
            Ok((room, effects)) => {
                let state = room.state();
                *self.room = Some(room);
                if effects.is_empty() && state == before {
                    // Nothing for the supervisor to do, and nothing to show.
                    return;
                }
                self.shard.do_send(Said {
                    life: self.life,
                    told: Some((state, effects)),
                });
            }
            Err(_) => {
                tracing::error!(life = self.life.0, event = name, "a room's actor panicked");
                self.shard.do_send(Said {
                    life: self.life,
                    told: None,
                });
                ctx.stop();
            }
        }
    }
}
