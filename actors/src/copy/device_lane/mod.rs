//! The copy actor of a device: one thread, at least two streams, a bounded ring of staging slots.
//!
//! ```text
//!   shard ──Job──▶ mail ──▶ Scheduler ──piece──▶ streams ──event──▶ landed: leave the gate, count
//!
//!   from   to       a piece
//!   device host     pages ─▶ slot              then, when that has landed: enter, slot ─▶ pages, leave
//!   host   device   pages ─▶ slot, enter       slot ─▶ pages, leave
//!   device device   enter                      pages ─▶ pages, leave     (or by a slot, if neither
//!                                                                         device reaches the other)
//!   device network  pages ─▶ slot              frames out of the slot
//!   network device  frame ─▶ slot, stay        slot ─▶ pages, mark, leave, acknowledge
//!   device device   pages ─▶ exported slot     frames that say where; there: far slot ─▶ pages, as from a slot
//!                                              (of another process of the host: `straight`)
//! ```
//!
//! Rules:
//! - What is queued owns a part of the job's ticket and, where a device writes, a stay in the claim's
//!   gate. Both are let go of when the event behind the work has fired: so the source is not given back
//!   while a device may read it, and a closed gate is not empty while one may write.
//! - No more is queued at a time than there are slots: that is what an abort waits for.
//! - A job whose data is not there yet (an engine's event) waits in streams of its own, so that it holds
//!   up no other.
//! - What goes over a network has slots of its own, in each direction (`net`): they are free when a peer
//!   has answered.
//! - A lost device ends its jobs with [`Code::DeviceLost`](crate::reason::Code). What was queued then has
//!   no end that anybody can prove, so its pages stay held.

mod access;
mod cut;
mod hands;
mod job;
mod kernels;
mod lane;
mod net;
mod straight;

pub(crate) use job::{DeviceJob, Route, TcpEnds};
pub(crate) use net::DeviceSink;

use super::device::{Context, DeviceError, DeviceMemory, Priority, Staging, Stream};
use super::schedule::Class;
use crate::ids::LifeId;
use access::Access;
use hands::{Hands, Streams};
use lane::{LATE, Lane};
use net::{Inbox, Landing};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, OnceLock};
use straight::{Opening, Ring};

/// How a device's copy actor works.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceOptions {
    /// Staging slots, which is also how many pieces are queued at a time; 4 to 256. As many again are for
    /// what is on its way over a network, of which one peer has half at most, and as many, if any comes, for what arrives over one.
    pub slots: usize,
    /// Bytes of one, which is the largest piece; 4 KiB to 64 MiB. What is sent over a network has whole pages
    /// of a layer: a larger page ends its room there.
    pub slot_bytes: u64,
    /// Streams for each direction; 1 to 16.
    pub streams: usize,
    /// Most jobs that wait at a time; 1 to 1,048,576.
    pub jobs: usize,
    /// Whether many small runs are copied by kernels, which are compiled when the copy actor starts.
    /// Where they cannot be had, [`Device::kernels`] says why, and the driver's own copies are used.
    pub kernels: bool,
    /// Whether pages go straight to devices of other processes of this host, and come from them, where both
    /// sides allow it and the drivers can. It takes as many slots again, of device memory, in whole blocks of
    /// 2 MiB, which are made when first needed and, since another process may have them open, not freed before
    /// this process ends. Without it, and where it cannot be, pages go by pinned memory and a socket.
    pub between_processes: bool,
}

impl Default for DeviceOptions {
    fn default() -> Self {
        DeviceOptions {
            slots: 8,
            slot_bytes: 1 << 20,
            streams: 2,
            jobs: 1 << 16,
            kernels: true,
            between_processes: true,
        }
    }
}

/// What a device's copy actor has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneStats {
    /// Pieces that landed.
    pub pieces: u64,
    /// Of them, those that a kernel copied.
    pub launched: u64,
    /// Bytes that landed.
    pub bytes: u64,
    /// Pieces that were queued when the device was lost; what they own is never freed.
    pub lost: u64,
    /// Pieces that were handed to another process of this host where they lie on the device.
    pub handed: u64,
    /// Pieces that were sent to another process as bytes, out of pinned memory.
    pub sent: u64,
    /// Frames that landed straight from the device memory of another process.
    pub taken: u64,
    /// Frames that landed from pinned memory, into which a socket was read.
    pub received: u64,
    /// Jobs that wait for an engine's event now.
    pub waiting: u64,
    /// Pieces that are queued now.
    pub queued: u64,
}

/// A device, and the thread that copies there. Clones are the same; the thread ends after the last of
/// them and of the pools on it.
#[derive(Clone)]
pub struct Device {
    shared: Arc<Shared>,
}

struct Shared {
    context: Context,
    mail: SyncSender<Mail>,
    over: Arc<AtomicBool>,
    access: Mutex<Access>,
    inbox: Inbox,
    stats: Arc<Counts>,
    kernels: Arc<OnceLock<Result<(), DeviceError>>>,
    jobs: usize,
    between_processes: bool,
}

#[derive(Default)]
struct Counts {
    pieces: AtomicU64,
    launched: AtomicU64,
    bytes: AtomicU64,
    lost: AtomicU64,
    handed: AtomicU64,
    sent: AtomicU64,
    taken: AtomicU64,
    received: AtomicU64,
    waiting: AtomicU64,
    queued: AtomicU64,
}

/// What the lane is sent.
enum Mail {
    Job(Class, Box<DeviceJob>),
    /// Jobs of this life were cancelled.
    Cancel(LifeId),
    /// A frame is in its slot.
    Land(Box<Landing>),
    /// Frames of so many bytes are to come. The driver is asked for their slots by the lane, and not by who
    /// reads a socket: it may take its time.
    Ring(Device, usize),
    /// A ring of another process is to be opened, and told of.
    Open(Box<Opening>),
    /// One is to be closed.
    Shut(DeviceMemory),
    /// Something that was queued is over.
    Wake,
}

impl Device {
    /// Starts the copy actor of a device. One for each device of a process is enough, and what several
    /// nodes use is shared fairly between their rooms.
    ///
    /// # Errors
    ///
    /// [`DeviceError`]: no streams, no pinned memory for the slots (ask for fewer), or no thread.
    pub fn start(context: Context, options: DeviceOptions) -> Result<Device, DeviceError> {
        let slots = options.slots.clamp(LATE + 2, 256);
        let slot_bytes = options.slot_bytes.clamp(4 << 10, 64 << 20);
        let streams = options.streams.clamp(1, 16);
        let ring = || {
            Staging::new(
                &context,
                slots,
                slot_bytes + kernels::table_bytes(job::RUNS),
            )
        };
        let (staging, outgoing) = (ring()?, ring()?);
        let some = |n: usize| -> Result<Vec<Stream>, DeviceError> {
            (0..n).map(|_| context.stream(Priority::Usual)).collect()
        };
        let streams = Streams {
            reads: some(streams)?,
            writes: some(streams)?,
            late: some(LATE)?,
        };
        let jobs = options.jobs.clamp(1, 1 << 20);
        let (mail, inbox) = sync_channel(jobs);
        let stats = Arc::<Counts>::default();
        let waker = Waker {
            mail: mail.clone(),
            woken: Arc::default(),
        };
        let ring = match options.between_processes {
            true => Ring::NotYet(slots, slot_bytes),
            false => Ring::Off,
        };
        let hands = Hands::new(context.clone(), (staging, outgoing, ring), streams, waker);
        let over = Arc::new(AtomicBool::new(false));
        let identity = context.identity();
        let name = format!("kvroom-{}-{}", identity.kind, identity.ordinal);
        let (counts, ends) = (Arc::clone(&stats), Arc::clone(&over));
        let (compile, kernels) = (options.kernels, Arc::<OnceLock<_>>::default());
        let said = Arc::clone(&kernels);
        let thread = std::thread::Builder::new().name(name);
        thread
            .spawn(move || {
                let mut hands = hands;
                if compile {
                    let loaded = hands.load_kernels();
                    if let Err(why) = &loaded {
                        tracing::warn!(%why, "a device copies without kernels");
                    }
                    let _ = said.set(loaded);
                }
                Lane::new(inbox, hands, jobs, counts, ends).run();
            })
            .map_err(|error| DeviceError::BadArgument {
                call: "copy actor",
                why: format!("the system gave no thread: {error}"),
            })?;
        Ok(Device {
            shared: Arc::new(Shared {
                access: Mutex::new(Access::new(context.clone())),
                inbox: Inbox::new(context.clone(), slots),
                context,
                mail,
                over,
                stats,
                kernels,
                jobs,
                between_processes: options.between_processes,
            }),
        })
    }

    /// Its context.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.shared.context
    }

    /// What it has done.
    #[must_use]
    pub fn stats(&self) -> LaneStats {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let counts = &self.shared.stats;
        LaneStats {
            pieces: of(&counts.pieces),
            launched: of(&counts.launched),
            bytes: of(&counts.bytes),
            lost: of(&counts.lost),
            handed: of(&counts.handed),
            sent: of(&counts.sent),
            taken: of(&counts.taken),
            received: of(&counts.received),
            waiting: of(&counts.waiting),
            queued: of(&counts.queued),
        }
    }

    /// Whether kernels copy many small runs: yes, why not, or none while they are compiled or if they
    /// were not asked for.
    #[must_use]
    pub fn kernels(&self) -> Option<Result<(), DeviceError>> {
        self.shared.kernels.get().cloned()
    }

    /// Whether both are handles of the same copy actor.
    #[must_use]
    pub fn same(&self, other: &Device) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Hands a job over. One that finds no place, or no lane, says so by its ticket.
    pub(crate) fn post(&self, class: Class, job: DeviceJob) {
        match self.shared.mail.try_send(Mail::Job(class, Box::new(job))) {
            Ok(()) => {}
            Err(TrySendError::Full(Mail::Job(_, job))) => {
                let jobs = self.shared.jobs;
                job.refuse(&format!(
                    "the device's queue holds {jobs} jobs, which is its limit (DeviceOptions::jobs)"
                ));
            }
            Err(TrySendError::Disconnected(Mail::Job(_, job))) => {
                job.refuse("the device's copy actor has ended");
            }
            Err(_) => {}
        }
    }

    /// Jobs of this life were cancelled. If the mail is full the lane finds it out by itself, a little
    /// later.
    pub(crate) fn cancel(&self, life: LifeId) {
        let _ = self.shared.mail.try_send(Mail::Cancel(life));
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device")
            .field("context", &self.shared.context)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        let _ = self.mail.try_send(Mail::Wake);
    }
}

/// Wakes the lane, once for everything that is over meanwhile.
#[derive(Clone)]
struct Waker {
    mail: SyncSender<Mail>,
    woken: Arc<AtomicBool>,
}

impl Waker {
    fn wake(&self) {
        // Relaxed: only to send less. A lane that has work queued looks again by itself.
        if !self.woken.swap(true, Ordering::Relaxed) {
            let _ = self.mail.try_send(Mail::Wake);
        }
    }

    /// The lane looks at everything now.
    fn hear(&self) {
        self.woken.store(false, Ordering::Relaxed);
    }
}
