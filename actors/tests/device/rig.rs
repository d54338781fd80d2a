//! What a test needs of an implementation, and small helpers over the public surface.

use kvroom_actors::copy::device::{
    Code, Context, DeviceError, DeviceMemory, InFlight, Pinned, Polled, Priority, Stream,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

/// Long enough for anything that ends at all.
pub(crate) const LONG: Duration = Duration::from_secs(20);

/// An implementation with two devices, and a hand in its works.
pub(crate) trait Rig {
    /// A new context of device 0 or 1.
    fn try_context(&self, device: u32) -> Result<Context, DeviceError>;
    /// Code with `add_to_bytes(target, bytes, value)`, `reverse_bytes(target, source, bytes)` and
    /// `poke(address)`, `add_by_structure({target, bytes, value, nothing})`.
    fn code(&self) -> Code;
    /// Makes the `nth` call from now fail, whichever it is (of device 0, where they can be told apart).
    fn fail(&self, nth: u64, code: u32);
    /// The same, of calls of one name.
    fn fail_call(&self, call: &'static str, nth: u64, code: u32);
    /// Forgets what was to fail; whether it has.
    fn has_failed(&self) -> bool;
    /// Loses a device as somebody else's work would.
    fn lose(&self, device: u32, code: u32);
    /// Allocations that the driver has.
    fn blocks(&self) -> u64;
    /// Devices that work, whatever was lost before, and nothing allocated.
    fn renew(&self);

    /// A new context of a device that is there.
    fn context(&self, device: u32) -> Context {
        self.try_context(device).unwrap()
    }
}

/// Holds a stream up until it is dropped.
pub(crate) struct Plug {
    _release: Sender<()>,
    flight: Option<InFlight<()>>,
}

impl Plug {
    pub(crate) fn new(stream: &Stream) -> Plug {
        let (release, released) = channel::<()>();
        let flight = stream.queue((), |(), q| {
            q.call(move || {
                let _ = released.recv();
            })
        });
        Plug {
            _release: release,
            flight: Some(flight.unwrap()),
        }
    }

    /// What ends when the plug is pulled.
    pub(crate) fn flight(&self) -> &InFlight<()> {
        self.flight.as_ref().unwrap()
    }
}

/// Says whether it was dropped.
pub(crate) struct Witness(pub(crate) Arc<AtomicBool>);

impl Witness {
    pub(crate) fn new() -> (Witness, Arc<AtomicBool>) {
        let dropped = Arc::new(AtomicBool::new(false));
        (Witness(Arc::clone(&dropped)), dropped)
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

pub(crate) fn stream(context: &Context) -> Stream {
    context.stream(Priority::Usual).unwrap()
}

/// Waits for what must end.
pub(crate) fn land<T: Send + 'static>(flight: InFlight<T>) -> T {
    match flight.wait(LONG) {
        Polled::Landed(holds) => holds,
        Polled::Pending(_) => panic!("it is not over after {LONG:?}"),
        Polled::Lost(lost) => panic!("{}", lost.why()),
    }
}

/// What must not be over.
pub(crate) fn pending<T: Send + 'static>(flight: InFlight<T>) -> InFlight<T> {
    match flight.poll() {
        Polled::Pending(flight) => flight,
        Polled::Landed(_) => panic!("it is over"),
        Polled::Lost(lost) => panic!("{}", lost.why()),
    }
}

pub(crate) fn pinned(context: &Context, bytes: &[u8]) -> Pinned {
    let mut pinned = context.pinned(bytes.len() as u64).unwrap();
    let all = 0..pinned.bytes();
    pinned.write(all, |to| to.copy_from_slice(bytes)).unwrap();
    pinned
}

pub(crate) fn bytes_of(pinned: &Pinned) -> Vec<u8> {
    pinned.read(0..pinned.bytes(), <[u8]>::to_vec).unwrap()
}

/// Device memory with these bytes.
pub(crate) fn device(context: &Context, bytes: &[u8]) -> DeviceMemory {
    let memory = context.device_memory(bytes.len() as u64).unwrap();
    let holds = (memory, pinned(context, bytes));
    let flight = stream(context).queue(holds, |(memory, from), q| {
        let all = 0..memory.bytes();
        q.copy(memory.range(all.clone())?, from.source(all)?)
    });
    land(flight.unwrap()).0
}

/// The bytes of device memory, once everything before is over.
pub(crate) fn look(context: &Context, memory: DeviceMemory) -> (DeviceMemory, Vec<u8>) {
    let to = context.pinned(memory.bytes()).unwrap();
    let flight = stream(context).queue((memory, to), |(memory, to), q| {
        let all = 0..memory.bytes();
        q.copy(to.target(all.clone())?, memory.range(all)?)
    });
    let (memory, to) = land(flight.unwrap());
    let bytes = bytes_of(&to);
    (memory, bytes)
}

/// Bytes that look like chance.
pub(crate) fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..bytes).map(|_| next()).collect()
}

/// Looks until something is so.
pub(crate) fn until(is_so: impl Fn() -> bool) {
    let end = std::time::Instant::now() + LONG;
    while !is_so() {
        assert!(
            std::time::Instant::now() < end,
            "it is not so after {LONG:?}"
        );
        std::thread::sleep(Duration::from_micros(100));
    }
}
