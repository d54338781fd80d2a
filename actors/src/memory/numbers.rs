//! The numbers of a node's claims, which also no former life of its pools has used.
//!
//! ```text
//!   next ──▶ 1, 2, 3, …          reserved: every pool that outlives the process has this number written
//!              └ at `reserved`: another block is written to all of them first
//! ```
//!
//! Rules: a number is below what every such pool says is used, before anybody hears of it. So no writer
//! of a former life has a stamp that a gate of this one accepts.

use super::pool::Pool;
use super::shared::Attachment;
use crate::ids::ClaimNo;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Numbers that are reserved at a time. What a life does not use of it is lost; there are 2^48.
const BLOCK: u64 = 1 << 20;

pub(crate) struct ClaimNumbers {
    next: AtomicU64,
    reserved: AtomicU64,
    pools: Mutex<Vec<Weak<Attachment>>>,
}

impl ClaimNumbers {
    /// The numbers of a node with these pools.
    pub(crate) fn new<'p>(pools: impl IntoIterator<Item = &'p Pool>) -> Self {
        let numbers = ClaimNumbers {
            next: AtomicU64::new(1),
            reserved: AtomicU64::new(u64::MAX),
            pools: Mutex::default(),
        };
        for pool in pools {
            numbers.add_pool(pool);
        }
        numbers
    }

    /// A number that was never used, and rises.
    pub(crate) fn take(&self) -> ClaimNo {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        // Acquire: pairs with the store after a block was written.
        if number >= self.reserved.load(Ordering::Acquire) {
            self.reserve_beyond(number);
        }
        ClaimNo(number)
    }

    /// The numbers of a pool's former lives are not used from now on. To be called before a page of it
    /// is lent.
    pub(crate) fn add_pool(&self, pool: &Pool) {
        let Some(attachment) = pool.attachment() else {
            return;
        };
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        pools.push(Arc::downgrade(attachment));
        let first = attachment.first_claim();
        let next = self.next.fetch_max(first, Ordering::AcqRel).max(first);
        // Whoever takes one meanwhile finds a bound that holds for the pools there were, and the new
        // one lends nothing yet.
        self.write(&mut pools, next);
    }

    fn reserve_beyond(&self, number: u64) {
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        if number >= self.reserved.load(Ordering::Acquire) {
            self.write(&mut pools, number);
        }
    }

    fn write(&self, pools: &mut Vec<Weak<Attachment>>, from: u64) {
        let below = from.saturating_add(BLOCK);
        pools.retain(|pool| pool.upgrade().map(|p| p.reserve_claims(below)).is_some());
        self.reserved.store(below, Ordering::Release);
    }
}

impl fmt::Debug for ClaimNumbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClaimNumbers")
            .field("next", &self.next)
            .finish_non_exhaustive()
    }
}
