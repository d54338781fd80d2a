//! A pool of the runtime as the oracle sees it.

use crate::options::FabricKind;
use crate::oracle::{PageStore, Shape};
use kvroom::{Order, Pool, PoolKind, PoolLayout};

/// See the module.
pub(crate) struct PoolStore {
    pub(super) pool: Pool,
}

impl PoolStore {
    /// A pool of `pages` pages, for rooms over this fabric.
    pub(crate) fn new(fabric: FabricKind, shape: Shape, pages: u32) -> Result<PoolStore, String> {
        let layout = PoolLayout {
            name: "kv".into(),
            kind: PoolKind::Kv,
            order: Order::LayersFirst,
            layers: shape.layers,
            pages,
            page_bytes: shape.page_bytes as u64,
            page_tokens: shape.page_tokens,
        };
        let pool = match fabric {
            FabricKind::Shm => Pool::shared(layout),
            FabricKind::Local | FabricKind::Tcp => Pool::owned(layout),
        };
        let pool = pool.map_err(|error| error.to_string())?;
        Ok(PoolStore { pool })
    }
}

impl PageStore for PoolStore {
    fn read(&self, layer: u32, page: u32, into: &mut [u8]) {
        if let Err(error) = self.pool.observe(layer, page, into) {
            tracing::error!(layer, page, %error, "the oracle cannot read a page");
        }
    }

    fn write(&self, layer: u32, page: u32, bytes: &[u8]) {
        match self.pool.lease_write(&[page]) {
            Ok(mut lease) => lease.page_mut(layer, 0).copy_from_slice(bytes),
            Err(error) => tracing::error!(layer, page, %error, "the oracle cannot write a page"),
        }
    }

    fn is_free(&self, page: u32) -> bool {
        self.pool.lease_write(&[page]).is_ok()
    }
}
