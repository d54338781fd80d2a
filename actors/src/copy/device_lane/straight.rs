//! Straight to a device of another process of the host: rings that are exported, and rings that are opened.
//!
//! ```text
//!   sender      pages ─▶ slot of the ring ──landed──▶ Staged { where it is } ─▶ handed frames
//!   receiver    Ask ─▶ mail ─▶ lane: open the handle ─▶ Opened ── slot ─▶ lane: ring ─▶ pages, as from a slot
//! ```
//!
//! The protocol, and why it is safe, is in [`crate::fabric::tcp::handed`]. Here is what it needs of a device:
//! a ring is made by the lane, and opened and closed by it, since a driver may take its time over that.

use super::Mail;
use super::net::{Landing, Whence};
use crate::copy::device::{
    Context, DeviceError, DeviceMemory, ExportedRing, ExportedSlot, IpcMemory, Kind,
};
use crate::copy::device_lane::Device;
use crate::fabric::tcp::frame::RingName;
use crate::fabric::tcp::staged::{Delivery, FarRing, StagedSlot, TellOpened};
use crate::memory::{Pool, TargetSection};
use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError};

/// The ring of a lane, made when a peer is first found that might open it.
pub(super) enum Ring {
    Off,
    /// So many slots of so many bytes.
    NotYet(usize, u64),
    Made(ExportedRing, RingName),
    /// There is none; that was logged.
    Never,
}

impl Ring {
    /// Its name, if there is one or one can be made.
    pub(super) fn name(&mut self, context: &Context) -> Option<&RingName> {
        if let Ring::NotYet(slots, slot_bytes) = *self {
            *self = match ExportedRing::new(context, slots, slot_bytes) {
                Ok(ring) => {
                    let name = named(context, ring.name());
                    Ring::Made(ring, name)
                }
                Err(why) => {
                    tracing::warn!(
                        %why,
                        "a device exports no memory: pages for other processes of the host go over sockets"
                    );
                    Ring::Never
                }
            };
        }
        match self {
            Ring::Made(_, name) => Some(name),
            _ => None,
        }
    }

    /// A slot, with the number of the ring.
    pub(super) fn take(&self) -> Option<(u32, ExportedSlot)> {
        match self {
            Ring::Made(ring, name) => ring.take().map(|slot| (name.number, slot)),
            _ => None,
        }
    }

    pub(super) fn has_slot(&self) -> bool {
        matches!(self, Ring::Made(ring, _) if ring.free() > 0)
    }
}

fn named(context: &Context, memory: &IpcMemory) -> RingName {
    /// Rings of this process so far.
    static RINGS: AtomicU32 = AtomicU32::new(0);
    let identity = context.identity();
    RingName {
        number: RINGS.fetch_add(1, Ordering::Relaxed),
        kind: code(identity.kind),
        uuid: identity.uuid,
        // Offsets of slots count from where the handle's allocation begins.
        bytes: memory.offset + memory.bytes,
        handle: memory.handle,
    }
}

fn code(kind: Kind) -> u8 {
    match kind {
        Kind::Cuda => 1,
        Kind::Emulated => 2,
    }
}

/// A ring to be opened by the lane.
pub(super) struct Opening {
    memory: IpcMemory,
    mail: SyncSender<Mail>,
    tell: TellOpened,
}

impl Opening {
    /// On the lane's thread.
    pub(super) fn opens(self, context: &Context) {
        let opened = context.import(&self.memory).map(|memory| {
            Arc::new(Opened {
                memory: Some(memory),
                mail: self.mail,
            }) as Arc<dyn FarRing>
        });
        (self.tell)(opened.map_err(|why| why.to_string()));
    }
}

/// A ring of another process that is open. The lane closes it, when nothing uses it any more.
pub(super) struct Opened {
    /// None only within `Drop`.
    memory: Option<DeviceMemory>,
    mail: SyncSender<Mail>,
}

impl Opened {
    pub(super) fn memory(&self) -> Option<&DeviceMemory> {
        self.memory.as_ref()
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            // With a lane that is full of mail, or has ended, it is closed here.
            let _ = self.mail.try_send(Mail::Shut(memory));
        }
    }
}

impl FarRing for Opened {
    fn bytes(&self) -> u64 {
        self.memory.as_ref().map_or(0, DeviceMemory::bytes)
    }

    fn serves(&self, section: &TargetSection) -> bool {
        let context = section.device().map(Device::context);
        let memory = self.memory.as_ref();
        context.is_some_and(|context| memory.is_some_and(|memory| memory.is_of(context)))
    }

    fn slot(self: Arc<Self>, range: Range<u64>) -> Box<dyn StagedSlot> {
        Box::new(Far { ring: self, range })
    }
}

/// A slot in a ring of another process.
struct Far {
    ring: Arc<Opened>,
    range: Range<u64>,
}

impl StagedSlot for Far {
    fn write(&mut self, _: Range<u64>, _: &mut dyn FnMut(&mut [u8])) -> bool {
        // It is full as it comes, and the CPU does not reach it.
        false
    }

    fn deliver(self: Box<Self>, to: Delivery) {
        let section = to.stay().target().section(to.section());
        let Some(device) = section.and_then(TargetSection::device).cloned() else {
            return to.broke(false, "its pages are on no device; this is a bug of kvroom");
        };
        device.land(Landing {
            delivery: to,
            ranges: Vec::new(),
            cursor: Cell::new(0),
            from: Whence::Far(self.ring, self.range),
        });
    }
}

impl Device {
    /// Whether it hands pages to processes of this host, and takes them ([`DeviceOptions::between_processes`]).
    ///
    /// [`DeviceOptions::between_processes`]: super::DeviceOptions::between_processes
    pub(crate) fn is_between_processes(&self) -> bool {
        self.shared.between_processes
    }

    /// Has the lane open a ring of another process.
    pub(super) fn opens(&self, ring: &RingName, tell: TellOpened) {
        let here = self.context().identity();
        if !self.is_between_processes() {
            return tell(Err(
                "the receiver's device takes none (DeviceOptions::between_processes)".into(),
            ));
        }
        if ring.kind != code(here.kind) {
            let kind = here.kind;
            return tell(Err(format!(
                "the receiver's device is {kind}, the sender's is not"
            )));
        }
        let opening = Opening {
            memory: IpcMemory {
                handle: ring.handle,
                offset: 0,
                bytes: ring.bytes,
            },
            mail: self.shared.mail.clone(),
            tell,
        };
        match self.shared.mail.try_send(Mail::Open(Box::new(opening))) {
            Ok(()) => {}
            Err(TrySendError::Full(Mail::Open(opening))) => {
                let full = DeviceError::Limit {
                    what: "jobs that wait for a device (DeviceOptions::jobs)",
                    limit: self.shared.jobs,
                };
                (opening.tell)(Err(full.to_string()));
            }
            Err(TrySendError::Disconnected(Mail::Open(opening))) => {
                (opening.tell)(Err("the device's copy actor has ended".into()));
            }
            Err(_) => {}
        }
    }
}

/// Opens a ring for the pages of a pool.
pub(super) fn opens(pool: &Pool, ring: &RingName, tell: TellOpened) {
    match pool.device() {
        Some(device) => device.opens(ring, tell),
        None => tell(Err("the receiver's pool is not on a device".into())),
    }
}
