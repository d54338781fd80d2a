//! The session between two incarnations: which frames were sent, arrived, and may be forgotten.
//!
//! ```text
//!   queue, open_claim ─▶ unsent ──transmit──▶ sent ──ack──▶ gone
//!                          │  (gets its number here)  ▲
//!        withdraw_claim ◀──┘                          └─ resume sends these again, in order
//!
//!   receive ─▶ in order: Deliver · seen: Duplicate · ahead: OutOfOrder, reset the transport
//! ```
//!
//! Pure: no clock, no transport, no randomness. The owner calls [`Session::transmit`] when
//! [`Session::has_output`] says so, and after a moment of silence when [`Session::owes_ack`] does.
//!
//! Rules:
//! - reliable frames are numbered when they are first transmitted, so that a claim that is
//!   withdrawn before leaves no gap;
//! - every reliable body is delivered exactly once, in the order queued, over any number of
//!   transports, as long as the session lives;
//! - a lost transport ([`Session::reset`]) forgets nothing. Between it and [`Session::resume`]
//!   nothing is transmitted, and what still arrives from the old transport is dropped;
//! - a claim costs a credit of the peer. Bodies about a claim are never refused: their room was
//!   reserved when the claim was admitted. Housekeeping is refused at the limit;
//! - only bodies of claims between these two incarnations are let in, in the right direction.

use crate::ids::Incarnation;
use crate::peer::message::{Body, Frame, FrameRef};

mod claims;
mod credit;
mod error;
mod inbound;
mod outbound;
#[cfg(test)]
mod tests;

pub use claims::{Admit, GivenUp, UnsentClaim, WithdrawReceipt};
pub use error::{OpenRefused, Refused, ResumeRefused, Violation, WhyNotOpened, WhyRefused};
pub use inbound::Received;

use credit::Credit;
use inbound::Inbound;
use outbound::Outbound;

/// What one session may hold, and the credits it begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SessionLimits {
    /// Reliable frames that may be unsent or unacknowledged before housekeeping is refused.
    pub unacknowledged: usize,
    /// Claims whose latest progress may wait to be sent; more are dropped.
    pub progress: usize,
    /// Claims that the peer may have open towards this node, as this node's greeting said.
    pub our_window: u32,
    /// Claims that this node may have open towards the peer, as the peer's greeting said.
    pub their_window: u32,
}

/// The state of one session. See the module's text.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Session {
    me: Incarnation,
    peer: Incarnation,
    limits: SessionLimits,
    /// Whether there is a transport to send on.
    up: bool,
    outbound: Outbound,
    inbound: Inbound,
    credit: Credit,
}

impl Session {
    /// Received frames that may go unacknowledged before that alone is output.
    pub const ACK_EVERY: u32 = 32;

    /// A fresh session over a transport that has just been accepted.
    pub fn new(me: Incarnation, peer: Incarnation, limits: SessionLimits) -> Self {
        Session {
            me,
            peer,
            limits,
            up: true,
            outbound: Outbound::default(),
            inbound: Inbound::default(),
            credit: Credit::new(&limits),
        }
    }

    /// Queues a reliable body. Claims, credits and unreliable bodies have their own calls.
    ///
    /// # Errors
    /// The body comes back if it is housekeeping and the limit is reached, or if it belongs to
    /// another call. A body about a claim, `Bye`, `GaveUp` and `Superseded` are never refused for room.
    pub fn queue(&mut self, body: Body) -> Result<(), Refused<Box<Body>>> {
        let bounded = match &body {
            Body::Claim(_) => return Err(Refused::wrong_call(body, "open_claim")),
            Body::Credit { .. } => return Err(Refused::wrong_call(body, "grant")),
            Body::Progress { .. } => return Err(Refused::wrong_call(body, "progress")),
            Body::Ping { .. } => return Err(Refused::wrong_call(body, "ping")),
            Body::Pong { .. } => return Err(Refused::wrong_call(body, "receive, which answers")),
            Body::PoolAdded { .. } | Body::PoolRetired { .. } => true,
            Body::Bound { .. }
            | Body::Complete { .. }
            | Body::Accepted { .. }
            | Body::Rejected { .. }
            | Body::Failed { .. }
            | Body::Abort { .. }
            | Body::Quiesced { .. }
            | Body::Bye { .. }
            | Body::Superseded
            | Body::GaveUp { .. } => false,
        };
        if bounded && self.unacknowledged() >= self.limits.unacknowledged {
            return Err(Refused::full(body, self.limits.unacknowledged));
        }
        self.outbound.queue(body);
        Ok(())
    }

    /// Queues the last body of the session (`Bye`, `GaveUp`, `Superseded`) in place of everything that
    /// no transport has seen, so that it goes out however much was queued. Numbers are given when a
    /// frame is transmitted: the peer misses none. Nothing may be queued after it.
    pub fn last_word(&mut self, body: Body) {
        self.outbound.last_word(body);
    }

    /// Notes how far a claim's writes are: overwritten in place until sent, never sent again.
    /// Dropped if too many claims have progress waiting ([`SessionLimits::progress`]).
    pub fn progress(&mut self, tag: crate::peer::message::ClaimTag, posted: u64, written: u64) {
        self.outbound
            .set_progress(tag, posted, written, self.limits.progress);
    }

    /// Asks whether the peer is there. Only the latest unsent question is kept. The answer is
    /// delivered as [`Body::Pong`]; the peer's own questions are answered within.
    pub fn ping(&mut self, nonce: u64) {
        self.outbound.ping = Some(nonce);
    }

    /// Appends at most `max_frames` frames to `out`, each with the current acknowledgement, and
    /// the acknowledgement alone if one is owed and nothing else goes. Nothing without a transport.
    pub fn transmit(&mut self, max_frames: usize, out: &mut Vec<Frame>) {
        self.transmit_with(max_frames, |frame| out.push(frame.to_frame()));
    }

    /// As [`Session::transmit`], without copying the bodies: `each` is called once a frame, in
    /// order, and must hand it to the transport (or reset the session). Gives how many there were.
    pub fn transmit_with(
        &mut self,
        max_frames: usize,
        mut each: impl FnMut(FrameRef<'_>),
    ) -> usize {
        if !self.up || max_frames == 0 {
            return 0;
        }
        let ack = self.inbound.received;
        let mut n = 0;
        while n < max_frames
            && let Some(body) = self.outbound.next_probe()
        {
            each(FrameRef {
                seq: 0,
                ack,
                body: Some(&body),
            });
            n += 1;
        }
        let kept = self.outbound.progress_waiting().min(max_frames / 4);
        while n < max_frames - kept
            && let Some((seq, body)) = self.outbound.next_reliable(&mut self.credit)
        {
            each(FrameRef {
                seq,
                ack,
                body: Some(body),
            });
            n += 1;
        }
        while n < max_frames
            && let Some(body) = self.outbound.next_progress()
        {
            each(FrameRef {
                seq: 0,
                ack,
                body: Some(&body),
            });
            n += 1;
        }
        if n == 0 && self.inbound.owed > 0 {
            each(FrameRef {
                seq: 0,
                ack,
                body: None,
            });
            n = 1;
        }
        if n > 0 {
            self.inbound.owed = 0;
        }
        n
    }

    /// The transport is lost. Nothing is forgotten; nothing is sent until [`Session::resume`].
    pub fn reset(&mut self) {
        self.up = false;
        self.outbound.forget_probes();
        self.inbound.owed = 0;
    }

    /// A new transport of the same session is there, and the peer has received everything up to
    /// `peer_received`: that is dropped, the rest is sent again in order.
    ///
    /// # Errors
    /// The peer's number cannot be: give the session up on both sides. The session is unchanged.
    pub fn resume(&mut self, peer_received: u64) -> Result<(), ResumeRefused> {
        self.outbound.resume(peer_received)?;
        self.reset();
        self.up = true;
        Ok(())
    }

    /// Whether there is a transport to send on: not between [`Session::reset`] and
    /// [`Session::resume`].
    pub fn is_up(&self) -> bool {
        self.up
    }

    /// Highest number received in order; what this side's greeting says when it resumes.
    pub fn received(&self) -> u64 {
        self.inbound.received
    }

    /// This side's incarnation.
    pub fn me(&self) -> Incarnation {
        self.me
    }

    /// The other side's.
    pub fn peer(&self) -> Incarnation {
        self.peer
    }

    /// Whether [`Session::transmit`] should be called now.
    pub fn has_output(&self) -> bool {
        self.up
            && (self.outbound.has_output()
                || self.credit.has_output()
                || self.inbound.owed >= Self::ACK_EVERY)
    }

    /// Whether something received is unacknowledged: call [`Session::transmit`] soon.
    pub fn owes_ack(&self) -> bool {
        self.up && self.inbound.owed > 0
    }

    /// Reliable frames that the peer may not have: unsent, or sent and not acknowledged.
    pub fn unacknowledged(&self) -> usize {
        self.outbound.len()
    }
}
