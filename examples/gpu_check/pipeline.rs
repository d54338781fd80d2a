//! Pages of one pool to another through a ring of slots: gather on one stream, scatter on another.
//!
//! ```text
//!   pool ──gather──▶ slot ──scatter──▶ pool        a piece at a time, as many at once as there are slots
//! ```
//!
//! Three of them: on one GPU with slots of its own memory, against the driver's large copy; from one device
//! to another (or to itself, where there is one) through slots of host memory, against the slower of its
//! two stages alone; and the same between two emulated devices whose streams have a rate, with a timeline
//! that says whether both were at work at once.

use crate::devices::{Device, Devices, code};
use crate::failure::{Failure, refused};
use crate::memory::{download, land, overwrite, same, upload, upload_table};
use crate::options::{Kind, Options};
use crate::random::Random;
use crate::samples::{Ratios, in_turns, rate};
use crate::speed::Scale;
use crate::steps::Steps;
use crate::table::{Row, Verdict};
use kvroom_actors::copy::device::emulated::{Config, Line, Machine, Own, Timeline, Work};
use kvroom_actors::copy::device::{
    DeviceError, DeviceMemory, InFlight, Slot, Staging, Stream, Target,
};
use kvroom_kernels::cuda::Kernel;
use kvroom_kernels::twin::{PageCopy, Strides, gather_pages, scatter_pages};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

const BOUND: Duration = Duration::from_secs(30);
const SLOTS: usize = 4;
/// The part of the slower stage's speed that a pipeline must keep.
const BAR: f64 = 0.9;

pub(crate) fn steps(steps: &mut Steps, devices: &Arc<Devices>, options: &Options) {
    if options.device == Kind::Emulated {
        let options = options.clone();
        return steps.run("pipeline, emulated", BOUND, move || emulated(&options));
    }
    let scale = Scale::of(devices, options);
    let (devices, seed) = (Arc::clone(devices), options.seed);
    let on_one = Arc::clone(&devices);
    steps.run("pipeline, slots on the device", BOUND, move || {
        let name = "pipeline, slots on the device";
        let shape = Shape::large(scale);
        let pipe = Pipe::new(on_one.first(), on_one.first(), shape, Slots::Device, seed)?;
        let seen = pipe.against_a_copy(scale.rounds)?;
        pipe.compare()?;
        let said = format!(
            "{} of the driver's copy; {} (every byte is moved twice)",
            seen.said(),
            rate(shape.bytes(), seen.second)
        );
        Ok(vec![Row::new(name, said, "", Verdict::NoBar)])
    });
    steps.run("pipeline, slots in host memory", BOUND, move || {
        let (first, last) = (devices.first(), devices.last());
        let numbers = [first, last].map(|device| device.context.identity().ordinal);
        let name = format!(
            "pipeline, host slots, device {} to {}",
            numbers[0], numbers[1]
        );
        let shape = Shape::large(scale);
        let pipe = Pipe::new(first, last, shape, Slots::Host, seed)?;
        let seen = pipe.against_the_slower(scale.rounds)?;
        pipe.compare()?;
        let said = format!(
            "{} of the slower stage alone; {}",
            seen.said(),
            rate(shape.bytes(), seen.second)
        );
        Ok(vec![Row::new(&name, said, "", Verdict::NoBar)])
    });
}

/// Two emulated devices, each stream of so many bytes a second.
fn emulated(options: &Options) -> Result<Vec<Row>, Failure> {
    let (shape, rounds) = match options.small {
        true => (Shape::emulated(6), 2),
        false => (Shape::emulated(32), 11),
    };
    let machine = Machine::new(Config {
        seed: options.seed,
        devices: 2,
        rate: 50 << 20,
        timeline: 8 * shape.pieces as usize,
        kernels: Own::all(),
        ..Config::default()
    });
    let device = |ordinal| {
        let code = code(None).map_err(Failure::Shape)?;
        Ok::<_, Failure>(Device::new(machine.context(ordinal)?, &code)?)
    };
    let (src, dst) = (device(0)?, device(1)?);
    let pipe = Pipe::new(&src, &dst, shape, Slots::Host, options.seed)?;
    let seen = pipe.against_the_slower(rounds)?;
    let _ = machine.timeline();
    pipe.run(Stages::Both)?;
    let timeline = machine.timeline();
    pipe.compare()?;
    let (both, either) = overlap(&timeline)
        .ok_or_else(|| Failure::Shape("the timeline has no launches of both devices".to_owned()))?;
    let part = both.as_secs_f64() / either.as_secs_f64() * 100.0;
    let busy = format!(
        "both at work for {part:.0} % of the time that either was ({both:.1?} of {either:.1?})"
    );
    let overlaps = match both.is_zero() {
        true => Verdict::Missed,
        false => Verdict::Ok,
    };
    let said = format!("{}; {} pieces, {SLOTS} slots", seen.said(), shape.pieces);
    let bar = (!options.small).then_some(BAR);
    let alone = "pipeline, emulated: of the slower stage alone";
    Ok(vec![
        Row::new(
            "pipeline, emulated: both directions",
            busy,
            "at once",
            overlaps,
        ),
        Row::judged(alone, said, seen.median(), bar),
    ])
}

/// How long both devices were at work at once, and how long at least one was.
fn overlap(timeline: &Timeline) -> Option<(Duration, Duration)> {
    let line = |device: u32| -> Option<Line> {
        let mut spans = timeline.spans.iter();
        let found = spans.find(|span| span.line.device == device && span.work == Work::Launch);
        found.map(|span| span.line)
    };
    let (one, other) = (line(0)?, line(1)?);
    let both = timeline.both(one, other);
    Some((both, timeline.busy(one) + timeline.busy(other) - both))
}

/// Pages, and how they are cut into pieces.
#[derive(Clone, Copy, Debug)]
struct Shape {
    layers: u64,
    cell: u64,
    /// Pages of a piece.
    pages: u64,
    pieces: u64,
}

impl Shape {
    fn large(scale: Scale) -> Shape {
        let (layers, cell) = (scale.layers, 16 << 10);
        let piece = (scale.moved / 64).max(layers * cell);
        Shape {
            layers,
            cell,
            pages: piece / (layers * cell),
            pieces: scale.moved / piece,
        }
    }

    /// Pieces of 256 KiB.
    fn emulated(pieces: u64) -> Shape {
        Shape {
            layers: 2,
            cell: 16 << 10,
            pages: 8,
            pieces,
        }
    }

    fn slot(&self) -> u64 {
        self.layers * self.cell * self.pages
    }

    fn bytes(&self) -> u64 {
        self.slot() * self.pieces
    }

    /// Of a pool with twice as many pages.
    fn pool(&self) -> u64 {
        2 * self.bytes()
    }

    fn copy(&self) -> PageCopy {
        PageCopy {
            layers: self.layers as u32,
            cell_bytes: self.cell,
            pool: Strides {
                layer: self.pool() / self.layers,
                page: self.cell,
            },
            staging: PageCopy::packed(self.cell, self.pages as u32),
        }
    }
}

/// Where slots are.
#[derive(Clone, Copy, Debug)]
enum Slots {
    Device,
    Host,
}

/// One slot.
enum Place {
    Device(DeviceMemory),
    Host(Slot),
}

impl Place {
    fn target(&mut self, bytes: u64) -> Result<Target<'_>, DeviceError> {
        match self {
            Place::Device(memory) => memory.range(0..bytes),
            Place::Host(slot) => slot.target(0..bytes),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stages {
    Gather,
    Scatter,
    Both,
}

/// One end.
struct End<'a> {
    device: &'a Device,
    stream: Stream,
    pool: Arc<DeviceMemory>,
    /// The pages of all pieces, here and there.
    pages: Vec<u32>,
    table: Arc<DeviceMemory>,
}

impl<'a> End<'a> {
    fn new(device: &'a Device, shape: Shape, seed: u64, bytes: &[u8]) -> Result<End<'a>, Failure> {
        let used = shape.pages * shape.pieces;
        let pages = Random::new(seed).pages(used as u32, 2 * used as u32);
        Ok(End {
            device,
            stream: device.stream()?,
            pool: Arc::new(upload(device, bytes)?),
            table: Arc::new(upload_table(device, &pages)?),
            pages,
        })
    }
}

struct Pipe<'a> {
    shape: Shape,
    src: End<'a>,
    dst: End<'a>,
    slots: Slots,
    noise: Vec<u8>,
}

/// What a piece owns while it is under way.
type Holds = (Place, [Arc<DeviceMemory>; 2], [Arc<DeviceMemory>; 2]);

impl<'a> Pipe<'a> {
    fn new(
        src: &'a Device,
        dst: &'a Device,
        shape: Shape,
        slots: Slots,
        seed: u64,
    ) -> Result<Pipe<'a>, Failure> {
        let noise = Random::new(seed).bytes(shape.pool());
        Ok(Pipe {
            shape,
            src: End::new(src, shape, seed ^ 1, &noise)?,
            dst: End::new(dst, shape, seed ^ 2, &vec![0; shape.pool() as usize])?,
            slots,
            noise,
        })
    }

    /// All pieces once, or only one of the stages of each; how long that took.
    fn run(&self, stages: Stages) -> Result<Duration, Failure> {
        let context = &self.src.device.context;
        let slot = self.shape.slot();
        let staging = Staging::new(
            context,
            SLOTS,
            match self.slots {
                Slots::Device => 1,
                Slots::Host => slot,
            },
        )?;
        let mut free = VecDeque::new();
        for _ in 0..SLOTS {
            free.push_back(match (self.slots, staging.take()) {
                (Slots::Host, Some(slot)) => Place::Host(slot),
                _ => Place::Device(context.device_memory(slot)?),
            });
        }
        let mut flights: VecDeque<InFlight<Holds>> = VecDeque::new();
        let begin = Instant::now();
        for piece in 0..self.shape.pieces {
            let place = match (free.pop_front(), flights.pop_front()) {
                (Some(place), earlier) => {
                    flights.extend(earlier);
                    place
                }
                (None, Some(flight)) => land(flight)?.0,
                (None, None) => return Err(Failure::Shape("a ring without slots".to_owned())),
            };
            flights.push_back(self.queue(place, piece, stages)?);
        }
        for flight in flights {
            land(flight)?;
        }
        Ok(begin.elapsed())
    }

    fn queue(&self, place: Place, piece: u64, stages: Stages) -> Result<InFlight<Holds>, Failure> {
        let Pipe {
            shape, src, dst, ..
        } = self;
        let (pool, slot) = (shape.pool(), shape.slot());
        let copy = shape.copy();
        let pages = (piece * shape.pages) as usize..((piece + 1) * shape.pages) as usize;
        let entries = pages.start as u64 * 4..pages.end as u64 * 4;
        let gather = copy.gather(&src.pages[pages.clone()], pool, slot)?;
        let scatter = copy.scatter(&dst.pages[pages], pool, slot)?;
        let of = |end: &End<'_>| [Arc::clone(&end.pool), Arc::clone(&end.table)];
        let holds = (place, of(src), of(dst));
        let first = match stages {
            Stages::Scatter => &dst.stream,
            Stages::Gather | Stages::Both => &src.stream,
        };
        Ok(first.queue(holds, |(place, from, to), q| {
            let slot = place.target(slot)?.address();
            if stages != Stages::Scatter {
                let table = from[1].range(entries.clone())?.address();
                let args = gather.args(from[0].range(0..pool)?.address(), slot, table);
                let args = args.map_err(|error| refused(&error))?.bytes();
                src.device
                    .start(q, Kernel::GatherPages, &src.device.launch(), &args)?;
            }
            if stages == Stages::Both {
                q.on(&dst.stream)?;
            }
            if stages != Stages::Gather {
                let table = to[1].range(entries)?.address();
                let args = scatter.args(to[0].range(0..pool)?.address(), slot, table);
                let args = args.map_err(|error| refused(&error))?.bytes();
                dst.device
                    .start(q, Kernel::ScatterPages, &dst.device.launch(), &args)?;
            }
            Ok(())
        })?)
    }

    /// Time of the slower stage alone over time of both.
    fn against_the_slower(&self, rounds: usize) -> Result<Ratios, Failure> {
        let slower = || Ok(self.run(Stages::Gather)?.max(self.run(Stages::Scatter)?));
        in_turns(rounds, slower, || self.run(Stages::Both))
    }

    /// Time of the driver's copy of as many bytes over time of both.
    fn against_a_copy(&self, rounds: usize) -> Result<Ratios, Failure> {
        let bytes = self.shape.bytes();
        let copied = Arc::new(self.src.device.context.device_memory(bytes)?);
        let copy = || {
            let holds = (Arc::clone(&self.src.pool), Arc::clone(&copied));
            let begin = Instant::now();
            let flight = self.src.stream.queue(holds, |(from, to), q| {
                q.copy(to.range(0..bytes)?, from.range(0..bytes)?)
            })?;
            land(flight)?;
            Ok(begin.elapsed())
        };
        in_turns(rounds, copy, || self.run(Stages::Both))
    }

    /// Runs it once more over pages without anything, and compares every byte of the pool it ends in.
    fn compare(&self) -> Result<(), Failure> {
        let (shape, pool, slot) = (self.shape, self.shape.pool(), self.shape.slot());
        overwrite(self.dst.device, &self.dst.pool, |_, to| to.fill(0))?;
        self.run(Stages::Both)?;
        let (mut wanted, mut staged) = (vec![0; pool as usize], vec![0; slot as usize]);
        let pieces = self.src.pages.chunks(shape.pages as usize);
        for (from, to) in pieces.zip(self.dst.pages.chunks(shape.pages as usize)) {
            gather_pages(
                &shape.copy().gather(from, pool, slot)?,
                &self.noise,
                &mut staged,
            )?;
            scatter_pages(&shape.copy().scatter(to, pool, slot)?, &staged, &mut wanted)?;
        }
        let seen = download(self.dst.device, &self.dst.pool)?;
        same("what the pipeline brought", &seen, &wanted)
    }
}
