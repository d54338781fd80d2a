//! Credits: how many claims each side may still open towards the other.
//!
//! ```text
//!   what the peer may have open towards this node, whose sum is always the window:
//!
//!     held by the peer ──Claim──▶ open ──claim_ended──▶ ended ──batch──▶ granted
//!           ▲                                                               │
//!           └────────────────────────── Credit ─────────────────────────────┘
//! ```
//!
//! Ended claims are returned in batches, a quarter of the window or when the peer has none left, so
//! that a storm of small rooms does not double the number of frames.

use super::error::Violation;
use super::{Session, SessionLimits};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Credit {
    /// Claims that this side may still open.
    available: u32,
    /// What the peer may open and was told of.
    held: u32,
    /// What the peer has open here.
    open: u32,
    /// Ended here, and not yet on the way back.
    ended: u32,
    /// On the way back, in the next `Credit` that is transmitted.
    granted: u32,
}

impl Credit {
    pub(super) fn new(limits: &SessionLimits) -> Self {
        Credit {
            available: limits.their_window,
            held: limits.our_window,
            open: 0,
            ended: 0,
            granted: 0,
        }
    }

    pub(super) fn take_one(&mut self) -> bool {
        let one = self.available > 0;
        self.available -= u32::from(one);
        one || crate::switched!(ClaimWithoutCredit)
    }

    pub(super) fn put_one_back(&mut self) {
        self.available = self.available.saturating_add(1); // the peer can give up to u32::MAX
    }

    pub(super) fn receive(&mut self, claims: u32) -> Result<(), Violation> {
        let sum = self.available.checked_add(claims);
        self.available = sum.ok_or(Violation::CreditOverflow { claims })?;
        Ok(())
    }

    pub(super) fn peer_opened(&mut self) -> Result<(), Violation> {
        if self.held == 0 {
            return Err(Violation::NoCredit {
                window: self.window(),
            });
        }
        self.held -= 1;
        self.open += 1;
        self.return_ended();
        Ok(())
    }

    /// What goes into a `Credit` that is transmitted now; from here on the peer may use it.
    pub(super) fn take_grant(&mut self) -> Option<u32> {
        let claims = std::mem::take(&mut self.granted);
        self.held += claims;
        (claims > 0).then_some(claims)
    }

    pub(super) fn has_output(&self) -> bool {
        self.granted > 0
    }

    fn return_ended(&mut self) {
        let batch = u64::from(self.ended) * 4 >= u64::from(self.window());
        if self.ended > 0 && (batch || self.held == 0) {
            self.granted += std::mem::take(&mut self.ended);
        }
    }

    fn window(&self) -> u32 {
        self.held + self.open + self.ended + self.granted
    }
}

impl Session {
    /// How many claims may be opened towards the peer now.
    pub fn credit_available(&self) -> u32 {
        crate::switched!(ClaimWithoutCredit => {
            return u32::MAX;
        });
        self.credit.available
    }

    /// How many claims the peer may have open towards this node in all.
    pub fn window(&self) -> u32 {
        self.credit.window()
    }

    /// How many claims the peer has open towards this node.
    pub fn peer_claims(&self) -> u32 {
        self.credit.open
    }

    /// Widens the peer's window by `claims`, as far as a window goes (`u32::MAX`). Takes effect
    /// with the next transmission.
    pub fn grant(&mut self, claims: u32) {
        self.credit.granted += claims.min(u32::MAX - self.credit.window());
    }

    /// One claim of the peer has ended here for good, or was refused: its credit goes back, in
    /// batches. Once for each claim delivered; without an open claim it does nothing.
    pub fn claim_ended(&mut self) {
        if self.credit.open > 0 {
            self.credit.open -= 1;
            self.credit.ended += 1;
            self.credit.return_ended();
        }
    }
}
