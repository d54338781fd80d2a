//! A device that is not there: threads are its streams, host memory is its memory.
//!
//! ```text
//!   Machine ── memory: one address space; what is in no block is an illegal access
//!      │    └─ events, handles between processes
//!      └─ device 0, 1, … ── faults (which call fails), sticky error
//!                └─ stream = a queue + a thread: delay, then copy, launch, record, wait, call
//!   Own (a HostKernel) ── kvroom's kernels, by their twins        Timeline ── what ran when
//! ```
//!
//! It behaves as the driver does where that matters to who uses it: order within a stream and none
//! between streams, events that are recorded again, errors that come late and stay. Delays and faults
//! follow from the seed, the stream's number and the place in its queue; which thread runs first is up
//! to the host.

mod backend;
mod device;
mod faults;
mod kernels;
mod memory;
mod own;
mod stream;
mod timeline;

pub use faults::{Fault, Injected};
pub use kernels::{HostKernel, IllegalAccess, Value, View};
pub use own::Own;
pub use timeline::{Line, Span, Timeline, Work};

use super::backend::{Identity, Kind, Result};
use super::context::{Context, lock};
use super::error::DeviceError;
use device::Device;
use faults::Faults;
use memory::Memory;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::Duration;
use timeline::Recorder;

/// How an emulated machine is made.
#[derive(Clone)]
pub struct Config {
    /// Where delays come from.
    pub seed: u64,
    /// How many devices.
    pub devices: u32,
    /// Most streams, and so threads, of one device at a time.
    pub streams: usize,
    /// Memory of one device.
    pub device_bytes: u64,
    /// Pinned memory of all.
    pub pinned_bytes: u64,
    /// The longest that a stream waits before an operation; it waits for none to this. Streams of high
    /// priority wait for nothing.
    pub delay: Duration,
    /// One operation of this many waits ten times as long, so that streams overtake each other; 0 for
    /// none.
    pub straggler: u64,
    /// Bytes a second of one stream, copied or moved by kernels that say so; 0 for as many as the host
    /// can.
    pub rate: u64,
    /// Copies and launches that [`Machine::timeline`] keeps; 0 for none.
    pub timeline: usize,
    /// Whether devices reach each other's memory.
    pub peers: bool,
    /// What can be launched, by name: kvroom's kernels are [`Own::all`].
    pub kernels: BTreeMap<String, Arc<dyn HostKernel>>,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            seed: 1,
            devices: 1,
            streams: 8,
            device_bytes: 1 << 30,
            pinned_bytes: 1 << 30,
            delay: Duration::ZERO,
            straggler: 0,
            rate: 0,
            timeline: 0,
            peers: true,
            kernels: BTreeMap::new(),
        }
    }
}

/// Emulated devices in one address space.
#[derive(Clone)]
pub struct Machine {
    shared: Arc<Shared>,
}

/// What the devices of a machine share.
pub(super) struct Shared {
    pub(super) config: Config,
    pub(super) memory: Memory,
    devices: Vec<Arc<DeviceState>>,
    /// Something that a stream may wait for has changed.
    pub(super) pulse: Mutex<()>,
    pub(super) bell: Condvar,
    pub(super) events: Mutex<BTreeMap<u64, Arc<Event>>>,
    pub(super) recorder: Recorder,
    /// In its handles, so that no other machine, of this process or another, takes them for its own.
    pub(super) nonce: u64,
    next: AtomicU64,
}

/// What the contexts of a device share, as everybody in a process shares the primary context.
pub(super) struct DeviceState {
    pub(super) identity: Identity,
    pub(super) lost: OnceLock<u32>,
    pub(super) faults: Faults,
    pub(super) streams: AtomicUsize,
    /// Streams that there ever were.
    pub(super) numbered: AtomicU64,
    /// Devices whose memory kernels of this one may reach.
    pub(super) reaches: Mutex<Vec<u32>>,
}

/// An event. Each record of it is by itself: who waits for one is not let go by a later one that is
/// done sooner, in another stream.
#[derive(Default)]
pub(super) struct Event {
    pub(super) recorded: AtomicU64,
    done: Mutex<Done>,
}

/// Which records are done: all up to one, and some above it.
#[derive(Default)]
struct Done {
    upto: u64,
    above: BTreeSet<u64>,
}

impl Event {
    pub(super) fn is_done(&self, recorded: u64) -> bool {
        let done = lock(&self.done);
        recorded <= done.upto || done.above.contains(&recorded)
    }

    pub(super) fn fires(&self, recorded: u64) {
        let done = &mut *lock(&self.done);
        done.above.insert(recorded);
        while done.above.remove(&(done.upto + 1)) {
            done.upto += 1;
        }
    }
}

impl Machine {
    /// A machine. No thread runs before there is a stream.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let device = |ordinal: u32| {
            let mut uuid = [0; 16];
            uuid[..8].copy_from_slice(&config.seed.to_le_bytes());
            uuid[12..].copy_from_slice(&ordinal.to_le_bytes());
            Arc::new(DeviceState {
                identity: Identity {
                    kind: Kind::Emulated,
                    ordinal,
                    uuid,
                    name: format!("emulated device {ordinal}"),
                    capability: (0, 0),
                    memory_bytes: config.device_bytes,
                    multiprocessors: 1,
                    driver: 0,
                },
                lost: OnceLock::new(),
                faults: Faults::default(),
                streams: AtomicUsize::new(0),
                numbered: AtomicU64::new(0),
                reaches: Mutex::new(Vec::new()),
            })
        };
        let shared = Shared {
            devices: (0..config.devices.max(1)).map(device).collect(),
            memory: Memory::default(),
            pulse: Mutex::new(()),
            bell: Condvar::new(),
            events: Mutex::new(BTreeMap::new()),
            recorder: Recorder::new(config.timeline),
            nonce: nonce(),
            next: AtomicU64::new(1),
            config,
        };
        Machine {
            shared: Arc::new(shared),
        }
    }

    /// A context of a device. Several of one device are one to the driver: they are lost together.
    ///
    /// # Errors
    ///
    /// [`DeviceError::NoSuchDevice`].
    pub fn context(&self, ordinal: u32) -> Result<Context> {
        let state = self.device(ordinal)?;
        let device = Device::new(Arc::clone(&self.shared), state);
        Ok(Context::new(Box::new(device)))
    }

    /// Makes a call of the device fail, from now on counted.
    ///
    /// # Errors
    ///
    /// [`DeviceError::NoSuchDevice`].
    pub fn inject(&self, ordinal: u32, fault: Fault) -> Result<()> {
        self.device(ordinal)?.faults.add(fault);
        Ok(())
    }

    /// Which injected faults have happened, by the call that failed; none for a device that is not
    /// there.
    #[must_use]
    pub fn happened(&self, ordinal: u32) -> Vec<&'static str> {
        self.device(ordinal)
            .map_or_else(|_| Vec::new(), |device| device.faults.happened())
    }

    /// The same; and nothing is to fail any more.
    #[must_use]
    pub fn take_faults(&self, ordinal: u32) -> Vec<&'static str> {
        self.device(ordinal)
            .map_or_else(|_| Vec::new(), |device| device.faults.take())
    }

    /// What a fault of anybody else in the process does: the device is lost with this code.
    ///
    /// # Errors
    ///
    /// [`DeviceError::NoSuchDevice`].
    pub fn lose(&self, ordinal: u32, code: u32) -> Result<()> {
        let device = self.device(ordinal)?;
        self.shared.lose(&device, code);
        Ok(())
    }

    /// What the streams have done since the last time this was asked.
    #[must_use]
    pub fn timeline(&self) -> Timeline {
        self.shared.recorder.take()
    }

    /// Blocks of memory that are allocated now.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.shared.memory.blocks()
    }

    fn device(&self, ordinal: u32) -> Result<Arc<DeviceState>> {
        let devices = &self.shared.devices;
        let device = devices.get(ordinal as usize).map(Arc::clone);
        device.ok_or(DeviceError::NoSuchDevice {
            ordinal,
            count: devices.len() as u32,
        })
    }
}

/// Nothing else has it.
fn nonce() -> u64 {
    static MACHINES: AtomicU64 = AtomicU64::new(0);
    let mut random = [0; 8];
    match getrandom::fill(&mut random) {
        Ok(()) => u64::from_le_bytes(random),
        Err(_) => u64::from(std::process::id()) << 32 | MACHINES.fetch_add(1, Ordering::Relaxed),
    }
}

impl Shared {
    /// A number that no other handle has.
    pub(super) fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Wakes all who wait for an event.
    pub(super) fn ring(&self) {
        drop(lock(&self.pulse));
        self.bell.notify_all();
    }

    pub(super) fn lose(&self, device: &DeviceState, code: u32) {
        let _ = device.lost.set(code);
        self.ring();
    }
}

impl fmt::Debug for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Machine")
            .field("devices", &self.shared.devices.len())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("seed", &self.seed)
            .field("devices", &self.devices)
            .field("streams", &self.streams)
            .finish_non_exhaustive()
    }
}
