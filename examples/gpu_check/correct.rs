//! Every kernel on random shapes and places, against its host twin, to the last byte of every memory.
//!
//! ```text
//!   a memory   │ guard │ odd │ what the job was checked for │ guard │   noise before, all of it compared after
//! ```

mod cells;
mod slices;
mod sums;

use crate::devices::{Device, Devices};
use crate::failure::Failure;
use crate::memory::{LONG, download, land, same, upload};
use crate::options::{Kind, Options, Part};
use crate::random::Random;
use crate::steps::Steps;
use crate::table::{Row, Verdict};
use kvroom_actors::copy::device::{DeviceError, DeviceMemory, Launch};
use kvroom_kernels::cuda::Kernel;
use std::sync::Arc;
use std::time::Duration;

/// Bytes before and behind what a job may touch.
const GUARD: u64 = 64;

/// What all shapes of a kernel have gone through: for the table.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    shapes: u32,
    bytes: u64,
}

type Check = fn(&Device, &mut Random, u64) -> Result<u64, Failure>;

const CHECKS: [(&str, Check); 5] = [
    ("gather_pages = twin", cells::gather),
    ("scatter_pages = twin", cells::scatter),
    ("reslice_heads = twin", slices::any),
    ("reslice_heads = plan", slices::planned),
    ("checksum_pages = twin", sums::any),
];

pub(crate) fn steps(steps: &mut Steps, devices: &Arc<Devices>, options: &Options) {
    // A share of what is left, so that a slow device still gets measured.
    let bound = match options.part {
        Part::Correct => Duration::from_secs(3600),
        _ => LONG,
    };
    let cell = if options.is_small() {
        8 << 10
    } else {
        64 << 10
    };
    for (nth, (name, check)) in CHECKS.into_iter().enumerate() {
        let (devices, options) = (Arc::clone(devices), options.clone());
        steps.run(name, bound, move || {
            let mut random = Random::new(options.seed ^ (nth as u64) << 32);
            let mut seen = Seen::default();
            for _ in 0..options.shapes {
                seen.bytes += check(devices.first(), &mut random, cell)?;
                seen.shapes += 1;
            }
            let mib = seen.bytes as f64 / f64::from(1 << 20);
            let how = match options.device {
                Kind::Cuda => "",
                Kind::Emulated => " (the twin itself runs here)",
            };
            let said = format!("{} shapes, {mib:.1} MiB compared{how}", seen.shapes);
            Ok(vec![Row::new(name, said, "every byte", Verdict::Ok)])
        });
    }
}

/// A memory of a case: what it has before, and where in it the job's begins.
struct Room {
    before: Vec<u8>,
    at: u64,
    bytes: u64,
}

impl Room {
    /// So many bytes for a job, at an address that is a multiple of `align` and else any.
    fn new(random: &mut Random, bytes: u64, align: u64) -> Room {
        let odd = random.below(16 / align.min(16)) * align;
        let at = GUARD + random.pick(&[0, odd]);
        Room {
            before: random.bytes(at + bytes + GUARD),
            at,
            bytes,
        }
    }

    /// What the job was checked for.
    fn own(&self) -> &[u8] {
        &self.before[self.at as usize..(self.at + self.bytes) as usize]
    }

    fn own_of<'a>(&self, all: &'a mut [u8]) -> &'a mut [u8] {
        &mut all[self.at as usize..(self.at + self.bytes) as usize]
    }

    /// A page table.
    fn table(random: &mut Random, table: &[u32]) -> Room {
        let mut room = Room::new(random, table.len() as u64 * 4, 4);
        let bytes: Vec<u8> = table.iter().flat_map(|page| page.to_le_bytes()).collect();
        let at = room.at as usize;
        room.before[at..at + bytes.len()].copy_from_slice(&bytes);
        room
    }
}

/// One launch: its kernel, its memories and what must be in them after it, and its arguments once it is
/// known where the memories are.
struct Case<'a, A> {
    kernel: Kernel,
    /// In the order of `after`; whether each is written.
    rooms: &'a [&'a Room],
    after: &'a [Vec<u8>],
    /// All arguments, from the addresses of the rooms' own bytes.
    args: A,
    what: String,
}

/// Runs it and compares; how many bytes that were.
fn run<A>(device: &Device, random: &mut Random, case: Case<'_, A>) -> Result<u64, Failure>
where
    A: Fn(&[u64]) -> Result<Vec<Vec<u8>>, DeviceError>,
{
    let memories = case.rooms.iter().map(|room| upload(device, &room.before));
    let memories = memories.collect::<Result<Vec<DeviceMemory>, Failure>>()?;
    let whole = device.launch();
    let launch = Launch::line(
        random.pick(&[1, 3, whole.grid.0]),
        random.pick(&[32, 96, whole.block.0]),
    );
    let places: Vec<u64> = case.rooms.iter().map(|room| room.at).collect();
    let (kernel, args) = (case.kernel, case.args);
    let flight = device.stream()?.queue(memories, |memories, q| {
        let addresses = memories.iter().zip(&places).map(|(memory, at)| {
            let all = memory.range(0..memory.bytes())?;
            Ok(all.address() + at)
        });
        let addresses = addresses.collect::<Result<Vec<u64>, DeviceError>>()?;
        for args in args(&addresses)? {
            device.start(q, kernel, &launch, &args)?;
        }
        Ok(())
    })?;
    let mut bytes = 0;
    for (nth, memory) in land(flight)?.into_iter().enumerate() {
        let seen = download(device, &Arc::new(memory))?;
        let what = format!(
            "{} on memory {nth}, {launch:?}, {}",
            kernel.entry(),
            case.what
        );
        same(&what, &seen, &case.after[nth])?;
        bytes += seen.len() as u64;
    }
    Ok(bytes)
}
