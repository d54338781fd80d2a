//! What goes out: reliable bodies in order, and the latest of what is not sent again.

use super::credit::Credit;
use super::error::{ResumeRefused, Violation};
use crate::ids::ClaimNo;
use crate::peer::message::{Body, Claim, ClaimTag};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

/// A queue that is not kept longer than it is needed: capacity below this is not given back.
const KEEP: usize = 32;

/// A reliable body that no transport has seen.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Unsent {
    /// The highest claim number opened when this was queued. It rises along the queue, so a claim
    /// is found by halving; a storm withdraws thousands.
    upto: u64,
    pub(super) body: Body,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Outbound {
    /// Everything up to this number has been received by the peer.
    acked: u64,
    /// Transmitted at least once; the first has the number `acked + 1`.
    sent: VecDeque<Body>,
    /// How many of `sent` went over the present transport.
    over_this: usize,
    unsent: VecDeque<Unsent>,
    /// The highest claim number opened.
    opened: u64,
    progress: BTreeMap<ClaimTag, (u64, u64)>,
    /// Whose progress went last: the others come first.
    last_progress: Option<ClaimTag>,
    pub(super) ping: Option<u64>,
    pub(super) pong: Option<u64>,
}

impl Outbound {
    pub(super) fn queue(&mut self, body: Body) {
        if let Body::Complete { tag, .. } | Body::Failed { tag, .. } | Body::Quiesced { tag, .. } =
            &body
        {
            self.progress.remove(tag);
        }
        crate::switched!(AbortOvertakesClaim => {
            if matches!(body, Body::Abort { .. }) {
                self.unsent.push_front(Unsent { upto: 0, body });
                return;
            }
        });
        self.unsent.push_back(Unsent {
            upto: self.opened,
            body,
        });
    }

    pub(super) fn last_word(&mut self, body: Body) {
        self.unsent.clear();
        self.progress.clear();
        self.forget_probes();
        self.queue(body);
    }

    pub(super) fn opened(&self) -> u64 {
        self.opened
    }

    pub(super) fn queue_claim(&mut self, number: ClaimNo, claim: Box<Claim>) {
        self.opened = number.0;
        self.queue(Body::Claim(claim));
    }

    /// Takes a claim out of the queue, if no transport has seen it.
    pub(super) fn withdraw(&mut self, number: ClaimNo) -> Option<Box<Claim>> {
        let at = self.unsent.partition_point(|u| u.upto < number.0);
        match self.unsent.get(at)? {
            Unsent {
                body: Body::Claim(claim),
                ..
            } if claim.tag.id.number == number => {}
            _ => return None,
        }
        match self.unsent.remove(at)?.body {
            Body::Claim(claim) => Some(claim),
            _ => None,
        }
    }

    pub(super) fn set_progress(&mut self, tag: ClaimTag, posted: u64, written: u64, most: usize) {
        if self.progress.len() < most || self.progress.contains_key(&tag) {
            self.progress.insert(tag, (posted, written));
        }
    }

    pub(super) fn progress_waiting(&self) -> usize {
        self.progress.len()
    }

    /// Takes turns: the next claim after the one that went last.
    pub(super) fn next_progress(&mut self) -> Option<Body> {
        let after = match self.last_progress {
            Some(last) => self
                .progress
                .range((Bound::Excluded(last), Bound::Unbounded))
                .next(),
            None => None,
        };
        let (tag, _) = after.or_else(|| self.progress.iter().next())?;
        let tag = *tag;
        let (posted, written) = self.progress.remove(&tag)?;
        self.last_progress = if self.progress.is_empty() {
            None
        } else {
            Some(tag)
        };
        Some(Body::Progress {
            tag,
            posted,
            written,
        })
    }

    pub(super) fn next_probe(&mut self) -> Option<Body> {
        if let Some(nonce) = self.pong.take() {
            return Some(Body::Pong { nonce });
        }
        self.ping.take().map(|nonce| Body::Ping { nonce })
    }

    pub(super) fn forget_probes(&mut self) {
        self.ping = None;
        self.pong = None;
    }

    /// The next frame to go: first what must be sent again, then credits, then what is new.
    pub(super) fn next_reliable(&mut self, credit: &mut Credit) -> Option<(u64, &Body)> {
        if self.over_this == self.sent.len() {
            let body = match credit.take_grant() {
                Some(claims) => Body::Credit { claims },
                None => self.unsent.pop_front()?.body,
            };
            trim(&mut self.unsent);
            self.sent.push_back(body);
        }
        let at = self.over_this;
        self.over_this += 1;
        Some((self.acked + 1 + at as u64, self.sent.get(at)?))
    }

    /// The peer has everything up to `ack`.
    pub(super) fn acknowledge(&mut self, ack: u64) -> Result<(), Violation> {
        // Within a session a frame that was sent again counts as sent: the peer has it from before.
        let sent = self.highest_sent();
        if ack > sent {
            return Err(Violation::AckOfUnsent { ack, sent });
        }
        self.drop_up_to(ack);
        Ok(())
    }

    pub(super) fn resume(&mut self, peer_received: u64) -> Result<(), ResumeRefused> {
        let (acked, sent) = (self.acked, self.highest_sent());
        if peer_received < acked {
            return Err(ResumeRefused::Forgotten {
                peer_received,
                acked,
            });
        }
        if peer_received > sent {
            return Err(ResumeRefused::NeverSent {
                peer_received,
                sent,
            });
        }
        self.drop_up_to(peer_received);
        self.over_this = if crate::switched!(NotSentAgain) {
            self.sent.len()
        } else {
            0
        };
        Ok(())
    }

    pub(super) fn has_output(&self) -> bool {
        self.over_this < self.sent.len()
            || !self.unsent.is_empty()
            || !self.progress.is_empty()
            || self.ping.is_some()
            || self.pong.is_some()
    }

    pub(super) fn len(&self) -> usize {
        self.sent.len() + self.unsent.len()
    }

    /// Everything that is left: what a transport may have delivered, and what none has seen.
    pub(super) fn into_parts(self) -> (VecDeque<Body>, VecDeque<Unsent>) {
        (self.sent, self.unsent)
    }

    fn highest_sent(&self) -> u64 {
        self.acked + self.sent.len() as u64
    }

    /// `upto` is at most the highest number sent.
    fn drop_up_to(&mut self, upto: u64) {
        let n = upto.saturating_sub(self.acked) as usize; // at most sent.len()
        self.sent.drain(..n);
        self.over_this = self.over_this.saturating_sub(n);
        self.acked += n as u64;
        if n > 0 {
            trim(&mut self.sent);
        }
    }
}

/// Gives memory back after a burst; at most one move of each element for each halving.
fn trim<T>(queue: &mut VecDeque<T>) {
    if queue.capacity() > KEEP && queue.len() < queue.capacity() / 4 {
        queue.shrink_to((queue.len() * 2).max(KEEP / 2));
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::LIMITS;
    use super::*;

    #[test]
    fn what_a_burst_took_is_given_back_when_it_is_over() {
        let (mut out, mut credit) = (Outbound::default(), Credit::new(&LIMITS));
        for _ in 0..10_000 {
            out.queue(Body::Bye { drained: false });
        }
        while out.next_reliable(&mut credit).is_some() {}
        assert!(out.unsent.capacity() <= KEEP, "nothing waits any more");
        out.acknowledge(10_000).unwrap();
        assert!(out.sent.capacity() <= KEEP, "the peer has everything");
    }
}
