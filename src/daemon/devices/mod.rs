//! Devices: the copy actor of each, and the driver's calls that a request needs.
//!
//! ```text
//!   POST /v1/pools, …/chunks ─▶ Devices ── one turn a device ──▶ a thread ──▶ the driver
//!   pools of the configuration ─▶  │         └ too long: an error (503), the thread goes on alone
//!                                  └─▶ Device (kvroom::device): started by the first pool on it
//! ```
//!
//! Rules:
//! - Nothing of the driver is touched before a pool or a request names a device that the configuration
//!   allows.
//! - A call of the driver may never come back. So each is made on a thread of its own, one at a time a
//!   device, and nobody waits for it longer than `devices.driver_timeout`; what it gives after that is
//!   let go of by that thread.
//! - A device that was started stays for the daemon's life.

mod named;
mod problems;
mod uuid;

pub(crate) use named::Named;
pub(crate) use problems::{Unusable, lost};
pub(crate) use uuid::{Uuid, bytes_of, digits_of};

use super::config::DeviceSettings;
use super::http::Problem;
use kvroom::device::{Context, Device, DeviceError, DeviceOptions, IpcBytes, IpcMemory, Ready};
use kvroom::{Pool, PoolLayout};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::{Instant, timeout_at};

/// What is allocated here for other processes is a multiple of this: the driver shares whole blocks of it
/// with them, and there is to be nothing of anybody else in those.
const BLOCK: u64 = 2 << 20;

/// The devices that may be used. Clones are the same.
#[derive(Clone)]
pub(crate) struct Devices(Arc<All>);

struct All {
    slots: Vec<Arc<Slot>>,
    options: DeviceOptions,
    within: Duration,
    /// Whose turn it is to ask which devices there are.
    asking: Arc<Semaphore>,
}

/// One device that may be used.
struct Slot {
    ordinal: u32,
    /// Whose turn it is to call the driver for this device.
    turn: Arc<Semaphore>,
    device: OnceLock<Device>,
}

/// A device that may be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeviceSeen {
    /// Its number.
    pub(crate) ordinal: u32,
    /// Whether there was a pool on it yet.
    pub(crate) started: bool,
    /// Why it is lost.
    pub(crate) lost: Option<String>,
    /// What its copy actor has done.
    pub(crate) stats: kvroom::device::LaneStats,
}

impl Devices {
    /// Those of the configuration. None of them is started yet.
    pub(crate) fn new(settings: &DeviceSettings) -> Devices {
        let slot = |ordinal: &u32| {
            Arc::new(Slot {
                ordinal: *ordinal,
                turn: Arc::new(Semaphore::new(1)),
                device: OnceLock::new(),
            })
        };
        Devices(Arc::new(All {
            slots: settings.ordinals.iter().map(slot).collect(),
            options: DeviceOptions {
                slots: settings.slots,
                slot_bytes: settings.slot_bytes.0,
                streams: settings.streams,
                jobs: settings.jobs,
                between_processes: settings.between_processes,
                ..DeviceOptions::default()
            },
            within: settings.driver_timeout,
            asking: Arc::new(Semaphore::new(1)),
        }))
    }

    /// A pool in another process's memory.
    ///
    /// # Errors
    /// Who is at fault, and what to do.
    pub(crate) async fn import(
        &self,
        device: &Named,
        memory: IpcMemory,
        layout: PoolLayout,
    ) -> Result<Pool, Problem> {
        let until = self.until();
        let slot = self.slot(device, until).await;
        let slot = slot.map_err(Unusable::of_request)?;
        let (options, of) = (self.0.options.clone(), Arc::clone(&slot));
        let who = format!("device {}", slot.ordinal);
        self.in_turn(&slot.turn, until, who, move || {
            let device = of.started(options)?;
            let memory = device.context().import(&memory);
            let memory = memory.map_err(|error| problems::not_imported(of.ordinal, &error))?;
            Pool::in_device_memory(layout, &device, memory)
                .map_err(|error| problems::no_pool(error.to_string()))
        })
        .await
    }

    /// A pool in memory that is allocated for it, and what other processes open that by. It is not zeroed.
    ///
    /// # Errors
    /// What is wrong with the configuration, or with the device.
    pub(crate) async fn allocate(
        &self,
        device: &Named,
        layout: PoolLayout,
    ) -> Result<(Pool, IpcMemory), Unusable> {
        let until = self.until();
        let slot = self.slot(device, until).await?;
        let (options, of) = (self.0.options.clone(), Arc::clone(&slot));
        let who = format!("device {}", slot.ordinal);
        let made = self.in_turn(&slot.turn, until, who, move || {
            let device = of.started(options)?;
            let bytes = layout.bytes();
            let whole = bytes.checked_next_multiple_of(BLOCK).unwrap_or(bytes);
            let memory = device.context().device_memory(whole);
            let memory = memory.map_err(|error| problems::not_allocated(of.ordinal, &error))?;
            let exported = memory.export();
            let exported = exported.map_err(|error| problems::not_exported(of.ordinal, &error))?;
            let pool = Pool::in_device_memory(layout, &device, memory)
                .map_err(|error| problems::no_pool(error.to_string()))?;
            // What else there is of the block is nobody's.
            Ok((pool, IpcMemory { bytes, ..exported }))
        });
        Ok(made.await?)
    }

    /// An event of another process, by which it says that pages on this device are ready.
    ///
    /// # Errors
    /// Who is at fault, and what to do.
    pub(crate) async fn event(
        &self,
        device: &Device,
        bytes: IpcBytes,
    ) -> Result<Arc<Ready>, Problem> {
        let Some(slot) = self.slot_of(device) else {
            return Err(Problem::defect("a device is none of this daemon's"));
        };
        let (context, ordinal) = (device.context().clone(), slot.ordinal);
        let who = format!("device {ordinal}");
        self.in_turn(&slot.turn, self.until(), who, move || {
            let event = context.open_event(&bytes);
            event
                .map(Arc::new)
                .map_err(|error| problems::no_event(ordinal, &error))
        })
        .await
    }

    /// Lets go of something whose end may be a call of the driver: not here, and when it is its turn.
    pub(crate) fn let_go(&self, device: &Device, what: impl Send + 'static) {
        let Some(slot) = self.slot_of(device) else {
            return drop(what);
        };
        let turn = Arc::clone(&slot.turn);
        tokio::spawn(async move {
            let permit = turn.acquire_owned().await;
            // An error is that there is no thread: then it is let go of here.
            let _ = on_a_thread(permit.ok(), move || drop(what));
        });
    }

    /// All that may be used, as they are now. Asks no driver.
    pub(crate) fn seen(&self) -> Vec<DeviceSeen> {
        let seen = |slot: &Arc<Slot>| {
            let device = slot.device.get();
            let lost = device.and_then(|device| device.context().lost());
            DeviceSeen {
                ordinal: slot.ordinal,
                started: device.is_some(),
                lost: lost.map(ToString::to_string),
                stats: device.map(Device::stats).unwrap_or_default(),
            }
        };
        self.0.slots.iter().map(seen).collect()
    }

    fn slot_of(&self, device: &Device) -> Option<&Arc<Slot>> {
        let is = |slot: &&Arc<Slot>| slot.device.get().is_some_and(|of| of.same(device));
        self.0.slots.iter().find(is)
    }

    /// When what begins now has to be done.
    fn until(&self) -> Instant {
        Instant::now() + self.0.within
    }

    async fn slot(&self, named: &Named, until: Instant) -> Result<Arc<Slot>, Unusable> {
        let ordinal = match named {
            Named::Ordinal(ordinal) => *ordinal,
            Named::Uuid(uuid) => self.ordinal(*uuid, until).await?,
        };
        let mut slots = self.0.slots.iter();
        let found = slots.find(|slot| slot.ordinal == ordinal);
        found
            .cloned()
            .ok_or_else(|| Unusable::not_allowed(named, ordinal, self.allowed()))
    }

    fn allowed(&self) -> Vec<u32> {
        self.0.slots.iter().map(|slot| slot.ordinal).collect()
    }

    /// The number of a device, as this process sees it.
    async fn ordinal(&self, uuid: Uuid, until: Instant) -> Result<u32, Unusable> {
        if self.0.slots.is_empty() {
            return Err(Unusable::NoneAllowed);
        }
        let started = self.0.slots.iter().find(|slot| {
            let device = slot.device.get();
            device.is_some_and(|device| Uuid(device.context().identity().uuid) == uuid)
        });
        if let Some(slot) = started {
            return Ok(slot.ordinal);
        }
        let who = "the driver".to_owned();
        let there = self.in_turn(&self.0.asking, until, who, || {
            driver::devices().map_err(|error| problems::unavailable(None, &error))
        });
        let there = there.await?;
        let found = there.iter().find(|(_, of)| *of == uuid);
        let found = found.map(|(ordinal, _)| *ordinal);
        found.ok_or(Unusable::NoSuchUuid { uuid, there })
    }

    /// Makes a call of the driver when it is its turn, and waits for it until then.
    async fn in_turn<T: Send + 'static>(
        &self,
        turn: &Arc<Semaphore>,
        until: Instant,
        who: String,
        call: impl FnOnce() -> Result<T, Problem> + Send + 'static,
    ) -> Result<T, Problem> {
        let silent = || problems::silent(&who, self.0.within);
        let permit = timeout_at(until, Arc::clone(turn).acquire_owned()).await;
        let permit = permit.map_err(|_| silent())?;
        let (reply, answer) = oneshot::channel();
        let asked = on_a_thread(permit.ok(), move || {
            // Whoever waited may be gone: then what was made is let go of here.
            let _ = reply.send(call());
        });
        asked.map_err(|e| Problem::no_thread(&e))?;
        let answer = timeout_at(until, answer).await.map_err(|_| silent())?;
        answer.unwrap_or_else(|_| Err(Problem::defect("a call of the driver panicked")))
    }
}

impl Slot {
    /// The device, started now if it was not. Only by whoever has the turn.
    fn started(&self, options: DeviceOptions) -> Result<Device, Problem> {
        if let Some(device) = self.device.get() {
            return Ok(device.clone());
        }
        let unavailable = |error| problems::unavailable(Some(self.ordinal), &error);
        let context = driver::open(self.ordinal).map_err(unavailable)?;
        let device = Device::start(context, options).map_err(unavailable)?;
        tracing::info!(device = self.ordinal, "a device is in use from now on");
        Ok(self.device.get_or_init(|| device).clone())
    }
}

/// The thread keeps the turn until its call is over, however long that takes.
fn on_a_thread(
    permit: Option<OwnedSemaphorePermit>,
    call: impl FnOnce() + Send + 'static,
) -> std::io::Result<()> {
    let thread = std::thread::Builder::new().name("kvroom-driver".to_owned());
    let call = move || {
        call();
        drop(permit);
    };
    thread.spawn(call).map(|_| ())
}

#[cfg(feature = "cuda")]
mod driver {
    use super::{Context, DeviceError, Uuid};
    use kvroom::device::cuda;
    use std::time::Duration;

    /// The thread that asks has no bound of its own: whoever waits for it has.
    const LONG: Duration = Duration::from_secs(1 << 20);

    pub(super) fn open(ordinal: u32) -> Result<Context, DeviceError> {
        cuda::open_with(ordinal, cuda::Cache::usual())
    }

    /// The devices that this process sees and can use.
    pub(super) fn devices() -> Result<Vec<(u32, Uuid)>, DeviceError> {
        let driver = cuda::probe(LONG).driver?;
        let usable = driver.devices.into_iter().flatten();
        Ok(usable.map(|of| (of.ordinal, Uuid(of.uuid))).collect())
    }
}

#[cfg(not(feature = "cuda"))]
mod driver {
    use super::{Context, DeviceError, Uuid};

    const NONE: DeviceError = DeviceError::NoDriver {
        library: "libcuda.so.1 (this program was built without the feature `cuda`)",
    };

    pub(super) fn open(_: u32) -> Result<Context, DeviceError> {
        Err(NONE)
    }

    pub(super) fn devices() -> Result<Vec<(u32, Uuid)>, DeviceError> {
        Err(NONE)
    }
}
