//! Claims in a session: opened with a credit, withdrawn while unsent, admitted once.

use super::error::{OpenRefused, WhyNotOpened};
use super::{Session, outbound::Unsent};
use crate::ids::{ClaimId, ClaimNo};
use crate::peer::message::{Body, Claim};

/// Proof that a claim's frame was never handed to a transport: nobody can have read an address
/// from it. Only a session makes one, and only once a claim.
#[derive(Debug, PartialEq, Eq)]
pub struct WithdrawReceipt {
    claim: ClaimId,
}

impl WithdrawReceipt {
    /// The claim that was withdrawn.
    pub fn claim(&self) -> ClaimId {
        self.claim
    }
}

/// Whether a claim from the peer may live.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub enum Admit {
    /// Its number is higher than all before.
    Fresh,
    /// Its number was named before. If it is not in the caller's table of live claims, it is dead
    /// for ever, and `Quiesced` is the answer.
    Stale,
}

/// What a session that is given up still held.
#[derive(Debug, PartialEq, Eq)]
pub struct GivenUp {
    /// Claims that no transport has seen, each with its proof.
    pub unsent_claims: Vec<UnsentClaim>,
    /// Other bodies that no transport has seen, in order.
    pub unsent: Vec<Body>,
    /// Bodies that the peer may or may not have received, in order.
    pub unacknowledged: Vec<Body>,
}

/// A claim that no transport has seen.
#[derive(Debug, PartialEq, Eq)]
pub struct UnsentClaim {
    /// The claim.
    pub claim: Box<Claim>,
    /// The proof.
    pub receipt: WithdrawReceipt,
}

impl Session {
    /// Takes a credit of the peer and queues the claim, in one step.
    ///
    /// # Errors
    /// The claim comes back and the session is as it was: no credit (wait for
    /// [`super::Received::Credit`]), a number that does not rise, or a claim of another pair.
    pub fn open_claim(&mut self, number: ClaimNo, claim: Box<Claim>) -> Result<(), OpenRefused> {
        let id = ClaimId {
            receiver: self.me,
            sender: self.peer,
            number,
        };
        let opened = self.outbound.opened();
        let why = if claim.tag.id != id {
            WhyNotOpened::OtherName
        } else if number.0 <= opened || number > ClaimNo::MAX {
            WhyNotOpened::NotRising { number, opened }
        } else if !self.credit.take_one() {
            WhyNotOpened::NoCredit
        } else {
            self.outbound.queue_claim(number, claim);
            return Ok(());
        };
        Err(OpenRefused { claim, why })
    }

    /// Takes a claim back if its frame has never been handed to a transport. Its credit is
    /// available again; its number is spent.
    pub fn withdraw_claim(&mut self, number: ClaimNo) -> Option<WithdrawReceipt> {
        let claim = self.outbound.withdraw(number)?;
        self.credit.put_one_back();
        Some(WithdrawReceipt {
            claim: claim.tag.id,
        })
    }

    /// The rule for a claim that came in: call it once for each, in order.
    pub fn admit_claim(&mut self, number: ClaimNo) -> Admit {
        if number.0 <= self.inbound.mark && !crate::switched!(MarkIgnored) {
            return Admit::Stale;
        }
        self.inbound.mark = number.0;
        Admit::Fresh
    }

    /// An abort named this claim: if the claim itself comes after it, it is dead on arrival.
    pub fn note_abort(&mut self, number: ClaimNo) {
        crate::switched!(AbortLeavesNoMark => {
            return;
        });
        self.inbound.mark = self.inbound.mark.max(number.0);
    }

    /// The highest claim number of the peer that was named so far.
    pub fn mark(&self) -> ClaimNo {
        ClaimNo(self.inbound.mark)
    }

    /// Ends the session for good, and hands back what it held.
    pub fn give_up(self) -> GivenUp {
        let (sent, left) = self.outbound.into_parts();
        let (mut unsent_claims, mut unsent) = (Vec::new(), Vec::new());
        for Unsent { body, .. } in left {
            match body {
                Body::Claim(claim) => {
                    let receipt = WithdrawReceipt {
                        claim: claim.tag.id,
                    };
                    unsent_claims.push(UnsentClaim { claim, receipt });
                }
                body => unsent.push(body),
            }
        }
        GivenUp {
            unsent_claims,
            unsent,
            unacknowledged: sent.into(),
        }
    }
}
