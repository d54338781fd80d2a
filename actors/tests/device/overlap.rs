//! kvroom's own kernels on emulated devices: pages of one device go to another through a ring of slots,
//! and both are at work at once.
//!
//! ```text
//!   device 0   gather 0   gather 1   gather 2 …          a slot each
//!   device 1              scatter 0  scatter 1 …
//! ```
//!
//! Nothing here is decided by how long something takes: where two have to be at work at once, each
//! waits for the other to begin before it ends.

use crate::rig::{LONG, device, land, look, noise, stream};
use kvroom_actors::copy::device::emulated::{
    Config, HostKernel, IllegalAccess, Line, Machine, Own, Span, Timeline, Value, View, Work,
};
use kvroom_actors::copy::device::{
    Arg, Code, Context, InFlight, Kernel, Launch, Polled, Slot, Staging,
};
use kvroom_kernels::cuda;
use kvroom_kernels::twin::{PageCopy, Strides};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

const PIECES: usize = 12;
/// Pages of a piece, and of either pool.
const PAGES: usize = 3;
const ALL: usize = PIECES * PAGES + 4;
const CELL: u64 = 512;
const LAYERS: u32 = 2;
const SLOT: u64 = CELL * LAYERS as u64 * PAGES as u64;

/// The pages of all pieces: every page of a pool once, but for some, by steps that are no order.
fn table(step: usize) -> Vec<u32> {
    (0..PIECES * PAGES)
        .map(|nth| (nth * step % ALL) as u32)
        .collect()
}

fn shape() -> PageCopy {
    PageCopy {
        layers: LAYERS,
        cell_bytes: CELL,
        pool: Strides {
            layer: CELL * ALL as u64,
            page: CELL,
        },
        staging: PageCopy::packed(CELL, PAGES as u32),
    }
}

const POOL: u64 = CELL * ALL as u64 * LAYERS as u64;

fn kernel(context: &Context, kernel: cuda::Kernel) -> Kernel {
    let module = context.load(&Code::Ptx(Vec::new())).unwrap();
    module.kernel(kernel.entry()).unwrap()
}

/// Brings all pieces from a pool of device 0 to one of device 1; what the streams did.
fn pipe(machine: &Machine, slots: usize) -> Timeline {
    let (here, there) = (machine.context(0).unwrap(), machine.context(1).unwrap());
    let (from_pages, to_pages) = (table(7), table(11));
    let bytes = |table: &[u32]| -> Vec<u8> { table.iter().flat_map(|n| n.to_le_bytes()).collect() };
    let pages = Arc::new(noise(1, POOL as usize));
    let from = Arc::new((device(&here, &pages), device(&here, &bytes(&from_pages))));
    let before = noise(2, POOL as usize);
    let to = Arc::new((device(&there, &before), device(&there, &bytes(&to_pages))));
    let ring = Staging::new(&here, slots, SLOT).unwrap();
    let gather = kernel(&here, cuda::Kernel::GatherPages);
    let scatter = kernel(&there, cuda::Kernel::ScatterPages);
    let (first, second) = (stream(&here), stream(&there));
    let _ = machine.timeline();

    type Holds = (Slot, Arc<Pool>, Arc<Pool>);
    type Pool = (
        kvroom_actors::copy::device::DeviceMemory,
        kvroom_actors::copy::device::DeviceMemory,
    );
    let mut flights: VecDeque<InFlight<Holds>> = VecDeque::new();
    for piece in 0..PIECES {
        let slot = loop {
            match ring.take() {
                Some(slot) => break slot,
                None => drop(land(flights.pop_front().unwrap())),
            }
        };
        let pages = piece * PAGES..(piece + 1) * PAGES;
        let entries = pages.start as u64 * 4..pages.end as u64 * 4;
        let holds = (slot, Arc::clone(&from), Arc::clone(&to));
        let flight = first.queue(holds, |(slot, from, to), q| {
            let slot = slot.target(0..SLOT)?;
            let job = shape()
                .gather(&from_pages[pages.clone()], POOL, SLOT)
                .unwrap();
            let args = job.args(
                from.0.range(0..POOL)?.address(),
                slot.address(),
                from.1.range(entries.clone())?.address(),
            );
            let args = Arg::bytes(&args.unwrap().bytes());
            q.launch(&gather, &Launch::line(1, cuda::THREADS), &[args])?;
            q.on(&second)?;
            let job = shape().scatter(&to_pages[pages], POOL, SLOT).unwrap();
            let args = job.args(
                to.0.range(0..POOL)?.address(),
                slot.address(),
                to.1.range(entries)?.address(),
            );
            let args = Arg::bytes(&args.unwrap().bytes());
            q.launch(&scatter, &Launch::line(1, cuda::THREADS), &[args])
        });
        flights.push_back(flight.unwrap());
        assert!(flights.len() <= slots);
    }
    flights.into_iter().for_each(|flight| drop(land(flight)));
    let timeline = machine.timeline();

    let mut wanted = before;
    for (from, to) in from_pages.iter().zip(&to_pages) {
        for layer in 0..LAYERS as usize {
            let at = |page: &u32| (layer * ALL + *page as usize) * CELL as usize;
            let (from, to) = (at(from), at(to));
            wanted[to..to + CELL as usize].copy_from_slice(&pages[from..from + CELL as usize]);
        }
    }
    let to = Arc::try_unwrap(to).unwrap();
    assert!(look(&there, to.0).1 == wanted, "every byte, and no other");
    assert_eq!(ring.free(), slots);
    timeline
}

/// The streams of `pipe`, which are the second ones of their devices to be made after those of `device`:
/// those that did launches.
fn launches(timeline: &Timeline, device: u32) -> (Line, Vec<Span>) {
    let spans: Vec<Span> = (timeline.spans.iter())
        .filter(|span| span.line.device == device && span.work == Work::Launch)
        .copied()
        .collect();
    let line = spans[0].line;
    assert!(spans.iter().all(|span| span.line == line));
    (line, spans)
}

fn machine(kernels: BTreeMap<String, Arc<dyn HostKernel>>, rate: u64) -> Machine {
    Machine::new(Config {
        devices: 2,
        timeline: 4 * PIECES,
        kernels,
        rate,
        ..Config::default()
    })
}

/// How many gathers and scatters have begun.
#[derive(Default)]
struct Begun {
    counts: Mutex<[usize; 2]>,
    changed: Condvar,
}

impl Begun {
    /// Counts one of a kind; which it is.
    fn begin(&self, kind: usize) -> usize {
        let counts = &mut *self.counts.lock().unwrap();
        counts[kind] += 1;
        self.changed.notify_all();
        counts[kind] - 1
    }

    /// Waits until so many of a kind have begun; false if that takes too long.
    fn wait(&self, kind: usize, count: usize) -> bool {
        let counts = self.counts.lock().unwrap();
        let (_held, waited) = self
            .changed
            .wait_timeout_while(counts, LONG, |counts| counts[kind] < count)
            .unwrap();
        !waited.timed_out()
    }
}

/// Each gather but the first ends after the scatter before it has begun, and each scatter but the last
/// after the next gather has.
fn kernels_that_meet() -> BTreeMap<String, Arc<dyn HostKernel>> {
    let begun = Arc::new(Begun::default());
    let of = |own: cuda::Kernel, kind: usize| {
        let begun = Arc::clone(&begun);
        let run = move |launch: &Launch, args: &[Value], memory: &View<'_>| {
            let nth = begun.begin(kind);
            let wanted = [nth, (nth + 2).min(PIECES)][kind];
            if !begun.wait(1 - kind, wanted) {
                return Err(IllegalAccess { at: 0, bytes: 0 });
            }
            Own(own).run(launch, args, memory)
        };
        let run: Arc<dyn HostKernel> = Arc::new(run);
        (own.entry().to_owned(), run)
    };
    [
        of(cuda::Kernel::GatherPages, 0),
        of(cuda::Kernel::ScatterPages, 1),
    ]
    .into()
}

#[test]
fn with_two_slots_the_next_gather_and_the_scatter_before_it_are_at_work_at_once() {
    let machine = machine(kernels_that_meet(), 0);
    let timeline = pipe(&machine, 2);
    assert_eq!(timeline.dropped, 0);
    let ((one, gathers), (other, scatters)) = (launches(&timeline, 0), launches(&timeline, 1));
    assert_eq!((gathers.len(), scatters.len()), (PIECES, PIECES));
    for nth in 0..PIECES - 1 {
        let (next, before) = (gathers[nth + 1], scatters[nth]);
        let meet = next.begin.max(before.begin) <= next.end.min(before.end);
        assert!(
            meet,
            "gather {} and scatter {nth}: {next:?} {before:?}",
            nth + 1
        );
    }
    for nth in 0..PIECES {
        assert!(
            gathers[nth].end <= scatters[nth].begin,
            "a slot is filled first"
        );
    }
    assert!(timeline.both(one, other) > Duration::ZERO);
}

#[test]
fn with_one_slot_the_two_devices_take_turns() {
    let timeline = pipe(&machine(Own::all(), 0), 1);
    let ((one, _), (other, _)) = (launches(&timeline, 0), launches(&timeline, 1));
    assert_eq!(timeline.both(one, other), Duration::ZERO);
}

#[test]
fn a_kernel_takes_at_least_as_long_as_its_bytes_at_the_rate() {
    let rate = SLOT * 1000;
    let timeline = pipe(&machine(Own::all(), rate), 2);
    for device in 0..2 {
        for span in launches(&timeline, device).1 {
            assert_eq!(span.bytes, SLOT);
            assert!(
                span.end - span.begin >= Duration::from_millis(1),
                "{span:?}"
            );
        }
    }
}

#[test]
fn an_own_kernel_that_leaves_its_memory_loses_the_device() {
    let machine = machine(Own::all(), 0);
    let context = machine.context(0).unwrap();
    let gather = kernel(&context, cuda::Kernel::GatherPages);
    let entries = [0_u32, 1].map(u32::to_le_bytes).concat();
    let holds = (device(&context, &[1; 64]), device(&context, &entries));
    let flight = stream(&context).queue(holds, |(memory, table), q| {
        let shape = PageCopy {
            layers: 1,
            cell_bytes: 32,
            pool: Strides { layer: 0, page: 32 },
            staging: Strides { layer: 0, page: 32 },
        };
        // It is checked for lengths that are not those of the memory.
        let job = shape.gather(&[0, 1], 64, 64).unwrap();
        let at = memory.range(0..64)?.address();
        let args = job.args(at, at + 8, table.range(0..8)?.address()).unwrap();
        let args = Arg::bytes(&args.bytes());
        q.launch(&gather, &Launch::line(1, cuda::THREADS), &[args])
    });
    let Polled::Lost(lost) = flight.unwrap().wait(LONG) else {
        panic!("it is not lost");
    };
    assert_eq!(lost.sticky().unwrap().code, 700);
}
