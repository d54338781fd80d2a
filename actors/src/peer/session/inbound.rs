//! What comes in: each reliable frame once, in order, and about claims of this session only.

use super::error::Violation;
use super::{Credit, Outbound, Session};
use crate::peer::message::{Body, ClaimTag, Frame};

/// What a frame meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received {
    /// A body for the owner of the session: reliable and in order, or `Progress`, or `Pong`.
    Deliver(Body),
    /// So many more claims may be opened towards the peer; already counted.
    Credit(u32),
    /// It was received before.
    Duplicate,
    /// It is ahead of what is missing, and was dropped: reset the transport and resume.
    OutOfOrder {
        /// The number that should have come.
        expected: u64,
    },
    /// An acknowledgement, a ping (its answer is output now), or a frame of a lost transport.
    Nothing,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Inbound {
    /// Highest number received in order.
    pub(super) received: u64,
    /// Frames received since the last acknowledgement went out.
    pub(super) owed: u32,
    /// Highest number of the peer's claims named so far.
    pub(super) mark: u64,
}

impl Session {
    /// Takes one frame of the present transport.
    ///
    /// # Errors
    /// The peer broke the protocol: close the transport and give the session up.
    pub fn receive(&mut self, frame: Frame) -> Result<Received, Violation> {
        if !self.up {
            return Ok(Received::Nothing);
        }
        let Frame { seq, ack, body } = frame;
        self.outbound.acknowledge(ack)?;
        let Some(body) = body else {
            return if seq == 0 {
                Ok(Received::Nothing)
            } else {
                Err(Violation::BadNumber {
                    name: "acknowledgement",
                    seq,
                })
            };
        };
        let unreliable = matches!(
            body,
            Body::Progress { .. } | Body::Ping { .. } | Body::Pong { .. }
        );
        if unreliable != (seq == 0) {
            return Err(Violation::BadNumber {
                name: body.name(),
                seq,
            });
        }
        self.check_claim(&body)?;
        if unreliable {
            return Ok(unnumbered(&mut self.outbound, body));
        }
        let expected = self.inbound.received + 1;
        if seq > expected {
            return Ok(Received::OutOfOrder { expected });
        }
        if seq < expected {
            self.inbound.owed = self.inbound.owed.saturating_add(1);
            crate::switched!(DuplicateDelivered => {
                return Ok(Received::Deliver(body));
            });
            return Ok(Received::Duplicate);
        }
        let received = numbered(&mut self.credit, body)?;
        self.inbound.received = seq;
        self.inbound.owed = self.inbound.owed.saturating_add(1);
        Ok(received)
    }

    /// A body about a claim must be about one of these two incarnations, and come from the side
    /// that may say it.
    fn check_claim(&self, body: &Body) -> Result<(), Violation> {
        let from_receiver = |tag: &ClaimTag| (tag.id.receiver, tag.id.sender);
        let from_sender = |tag: &ClaimTag| (tag.id.sender, tag.id.receiver);
        let pair = match body {
            Body::Claim(claim) => from_receiver(&claim.tag),
            Body::Accepted { tag } | Body::Rejected { tag, .. } | Body::Abort { tag, .. } => {
                from_receiver(tag)
            }
            Body::Bound { tag }
            | Body::Progress { tag, .. }
            | Body::Complete { tag, .. }
            | Body::Failed { tag, .. }
            | Body::Quiesced { tag, .. } => from_sender(tag),
            Body::Credit { .. }
            | Body::PoolAdded { .. }
            | Body::PoolRetired { .. }
            | Body::Ping { .. }
            | Body::Pong { .. }
            | Body::Bye { .. }
            | Body::Superseded
            | Body::GaveUp { .. } => return Ok(()),
        };
        if pair == (self.peer, self.me) {
            Ok(())
        } else {
            Err(Violation::ForeignClaim { name: body.name() })
        }
    }
}

fn unnumbered(outbound: &mut Outbound, body: Body) -> Received {
    if let Body::Ping { nonce } = body {
        outbound.pong = Some(nonce);
        return Received::Nothing;
    }
    Received::Deliver(body)
}

fn numbered(credit: &mut Credit, body: Body) -> Result<Received, Violation> {
    match body {
        Body::Credit { claims } => {
            credit.receive(claims)?;
            Ok(Received::Credit(claims))
        }
        Body::Claim(_) => {
            credit.peer_opened()?;
            Ok(Received::Deliver(body))
        }
        body => Ok(Received::Deliver(body)),
    }
}
