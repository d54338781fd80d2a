//! Pools that other processes of this host may map.
//!
//! ```text
//!   Pool::shared ──▶ sealed memfd ──descriptor──▶ peers map it
//! ```
//!
//! Rules:
//! - Whoever gets the descriptor may write all of the pool: give it to peers that are trusted with it.
//! - All of the memory is allocated when the pool is made; an owned pool's is when it is touched.
//! - It is not mapped in a child of fork: there leases are refused.

use super::pool::{Pool, PoolError, bytes_of};
use super::shared::{Backing, SharedMemory, SharedOptions};
use kvroom_kernels::layout::PoolLayout;
use std::sync::Arc;

impl Pool {
    /// A pool of zeroed memory that nodes on the same host may map, in huge pages if the system gives
    /// them. All of it is allocated now.
    ///
    /// ```
    /// # use kvroom_actors::memory::{Backing, Pool};
    /// # use kvroom_kernels::layout::{Order, PoolKind, PoolLayout};
    /// let pool = Pool::shared(PoolLayout {
    ///     name: "kv".into(), kind: PoolKind::Kv, order: Order::LayersFirst,
    ///     layers: 2, pages: 8, page_bytes: 4096, page_tokens: 16,
    /// })?;
    /// assert!(matches!(pool.backing(), Backing::Memfd { .. }));
    /// pool.lease_write(&[3])?.page_mut(0, 0).fill(7);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`PoolError::BadLayout`]; [`PoolError::Shared`], with the size if there is not as much memory.
    pub fn shared(layout: PoolLayout) -> Result<Pool, PoolError> {
        Pool::shared_with(layout, &SharedOptions::default())
    }

    /// As [`Pool::shared`], made in a certain way.
    ///
    /// # Errors
    ///
    /// As there, and if there is no such NUMA node.
    pub fn shared_with(layout: PoolLayout, options: &SharedOptions) -> Result<Pool, PoolError> {
        let bytes = bytes_of(&layout)?;
        match SharedMemory::create(&layout.name, bytes, options) {
            Ok(memory) => {
                let huge = memory.is_huge();
                Pool::in_shared(layout, memory, Backing::Memfd { huge })
            }
            Err(why) => Err(PoolError::Shared {
                pool: layout.name,
                why,
            }),
        }
    }

    /// What the pool's memory is.
    pub fn backing(&self) -> Backing {
        self.memory().backing()
    }

    /// What peers on this host map, if they may.
    pub(crate) fn shared_memory(&self) -> Option<&Arc<SharedMemory>> {
        self.memory().shared()
    }
}
