//! A pool of the runtime as the oracle sees it.

use super::base::Wiring;
use crate::options::{DeviceKind, FabricKind};
use crate::oracle::{PageStore, Shape};
use crate::storms::Side;
use kvroom::device::emulated::{Config, Machine, Own};
use kvroom::device::{Device, DeviceOptions};
use kvroom::{Order, Pool, PoolKind, PoolLayout};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// See the module.
pub(crate) struct PoolStore {
    pub(super) pool: Pool,
}

impl PoolStore {
    /// The pool of a side.
    pub(crate) fn new(wiring: &Wiring, side: Side, shape: Shape) -> Result<PoolStore, String> {
        let layout = PoolLayout {
            name: "kv".into(),
            kind: PoolKind::Kv,
            order: Order::LayersFirst,
            layers: shape.layers,
            pages: match side {
                Side::Decode => shape.destination_pages,
                Side::Prefill => shape.source_pages,
            },
            page_bytes: shape.page_bytes as u64,
            page_tokens: shape.page_tokens,
        };
        let pool = match (wiring.device, wiring.fabric) {
            (DeviceKind::Emulated, _) => Pool::on_device(layout, &emulated(side)?),
            (DeviceKind::None, FabricKind::Shm) => Pool::shared(layout),
            (DeviceKind::None, FabricKind::Local | FabricKind::Tcp | FabricKind::Ucx) => {
                Pool::owned(layout)
            }
        };
        let pool = pool.map_err(|error| error.to_string())?;
        Ok(PoolStore { pool })
    }
}

/// The device of a side: both are in one machine, and reach each other if they are in one process. What
/// is queued waits for up to a fifth of a millisecond, and now and then ten times as long, so that
/// streams overtake each other.
fn emulated(side: Side) -> Result<Device, String> {
    static MACHINE: Mutex<Option<Machine>> = Mutex::new(None);
    let mut machine = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    let machine = machine.get_or_insert_with(|| {
        Machine::new(Config {
            devices: 2,
            streams: 16,
            delay: Duration::from_micros(200),
            straggler: 16,
            device_bytes: 8 << 30,
            kernels: Own::all(),
            ..Config::default()
        })
    });
    let ordinal = match side {
        Side::Prefill => 0,
        Side::Decode => 1,
    };
    let context = machine.context(ordinal).map_err(|e| e.to_string())?;
    Device::start(context, DeviceOptions::default()).map_err(|e| e.to_string())
}

impl PageStore for PoolStore {
    fn read(&self, layer: u32, page: u32, into: &mut [u8]) {
        if let Err(error) = self.pool.observe(layer, page, into) {
            tracing::error!(layer, page, %error, "the oracle cannot read a page");
        }
    }

    fn write(&self, layer: u32, page: u32, bytes: &[u8]) {
        let wrote = match self.pool.lease_write(&[page]) {
            Ok(mut lease) => lease.store(layer, 0, bytes).map_err(|e| e.to_string()),
            Err(error) => Err(error.to_string()),
        };
        if let Err(error) = wrote {
            tracing::error!(layer, page, %error, "the oracle cannot write a page");
        }
    }

    fn is_free(&self, page: u32) -> bool {
        self.pool.lease_write(&[page]).is_ok()
    }
}
