//! What goes out: frames of one turn together, as far as the transport has room.

use super::PeerActor;
use crate::peer::transport::Sent;
use crate::peer::wire;
use crate::reason::{Code, Reason};
use actix::{AsyncContext, Context, Handler, Message};

/// The end of a turn, or room in the transport.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Flush;

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

    /// Moves frames into the transport while it has room.
    pub(super) fn flush(&mut self, ctx: &mut Context<Self>) {
        let limit = self.node.limits.frame_bytes;
        let Some(link) = &mut self.link else { return };
        let (session, Some(transport)) = (&mut link.session, &mut link.transport) else {
            return;
        };
        if link.blocked.is_some() {
            return;
        }
        let mut broken = None;
        let sent = transport.send(|frames, bytes| {
            if broken.is_some() || !(session.has_output() || session.owes_ack()) {
                return false;
            }
            session.transmit_with(frames, |frame| {
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
