//! What goes out: frames of one turn together, as far as the transport has room.

use super::PeerActor;
use crate::peer::transport::Sent;
use crate::peer::wire;
use crate::reason::{Code, Reason};
use crate::runtime::later::later;
use actix::{AsyncContext, Context, Handler, Message};
use std::time::Duration;

/// The end of a turn, or room in the transport.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Flush;

/// What was received is acknowledged, if nothing took that along.
#[derive(Message)]
#[rtype(result = "()")]
struct Acknowledge;

/// How long an acknowledgement waits for a frame to go with. Nothing waits for it but memory, and a
/// frame of its own wakes the other side for nothing.
const ACK_LATER: Duration = Duration::from_millis(10);

/// The present transport, if it is this one, has room again.
#[derive(Message)]
#[rtype(result = "()")]
struct Room {
    transport: u64,
}

impl PeerActor {
    /// Flushes once this turn's messages have been handled, so that their frames go together.
    pub(super) fn wants_flush(&mut self, ctx: &mut Context<Self>) {
        let Some(link) = &self.link else { return };
        if !self.flushing && link.blocked.is_none() && link.session.has_output() {
            self.flushing = true;
            ctx.notify(Flush);
        }
    }

    /// Acknowledges in a while, if nothing goes out by then.
    pub(super) fn wants_ack(&mut self, ctx: &mut Context<Self>) {
        let owes = self.link.as_ref().is_some_and(|l| l.session.owes_ack());
        if owes && !self.acknowledging {
            self.acknowledging = true;
            later(ctx, Acknowledge, ACK_LATER);
        }
    }

    /// Moves frames into the transport while it has room.
    pub(super) fn flush(&mut self, ctx: &mut Context<Self>) {
        let limit = self.node.limits.frame_bytes;
        self.scribe.turn();
        let Some(link) = &mut self.link else { return };
        let (session, Some(transport)) = (&mut link.session, &mut link.transport) else {
            return;
        };
        if link.blocked.is_some() {
            return;
        }
        let mut broken = None;
        let (scribe, peer) = (&self.scribe, self.me);
        let sent = transport.send(|frames, bytes| {
            if broken.is_some() || !(session.has_output() || session.owes_ack()) {
                return false;
            }
            session.transmit_with(frames, |frame| {
                scribe.sent(peer, frame);
                if let Err(error) = wire::encode_frame_ref(frame, bytes, limit) {
                    broken = Some(error);
                }
            });
            broken.is_none() && session.has_output()
        });
        if let Some(error) = broken {
            let text = format!("a frame cannot be sent: {error}");
            return self.end_of(Reason::new(Code::LimitReached, text));
        }
        match sent {
            Sent::All => {}
            Sent::Blocked => {
                let (room, me, transport) = (transport.room(), ctx.address(), self.transports);
                link.blocked = Some(actix::spawn(async move {
                    // Only waits; a transport that is gone is told of by its reader.
                    room.await;
                    me.do_send(Room { transport });
                }));
            }
            Sent::Lost(error) => self.transport_lost(&error.to_string(), ctx),
        }
    }
}

impl Handler<Flush> for PeerActor {
    type Result = ();

    fn handle(&mut self, _: Flush, ctx: &mut Context<Self>) {
        self.flushing = false;
        self.flush(ctx);
    }
}

impl Handler<Acknowledge> for PeerActor {
    type Result = ();

    fn handle(&mut self, _: Acknowledge, ctx: &mut Context<Self>) {
        self.acknowledging = false;
        if self.link.as_ref().is_some_and(|l| l.session.owes_ack()) {
            self.flush(ctx);
        }
    }
}

impl Handler<Room> for PeerActor {
    type Result = ();

    fn handle(&mut self, room: Room, ctx: &mut Context<Self>) {
        if room.transport == self.transports {
            if let Some(link) = &mut self.link {
                link.blocked = None;
            }
            self.flush(ctx);
        }
    }
}
