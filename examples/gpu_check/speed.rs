//! Gather, scatter and reslice against the driver's own large copy on the same device, in turns.
//!
//! ```text
//!   pages    2 × moved, noise, half of its pages are taken, shuffled ──gather──▶ dense, moved bytes
//!   other    2 × moved, half of its pages, shuffled                ◀──scatter── dense
//!   other    pages of a rank of 2                                  ◀──reslice── pages of a rank of 4
//!   copied   moved bytes                                           ◀── one copy ── the first half of pages
//! ```
//!
//! A sample is as many launches as take some milliseconds, queued at once, or as many copies. A ratio is the
//! time of the copies over that of the launches, for as many bytes. After the last round every byte of
//! what was written is compared.

use crate::devices::{Device, Devices};
use crate::failure::{Failure, refused};
use crate::memory::{download, land, overwrite, same, upload_table};
use crate::options::{Kind, Options};
use crate::random::Random;
use crate::samples::{Ratios, in_turns, rate};
use crate::steps::Steps;
use crate::table::Row;
use kvroom_actors::copy::device::{DeviceError, DeviceMemory, Queue, Stream};
use kvroom_kernels::cuda::Kernel;
use kvroom_kernels::layout::cube::{CubeKind, CubeLayout, DimOrder, Dtype, Plane, Share};
use kvroom_kernels::plan::cube::{CubePlan, PageList, Part};
use kvroom_kernels::twin::{
    GridSlices, PageCopy, Strides, gather_pages, reslice_heads, scatter_pages,
};
use std::sync::Arc;
use std::time::{Duration, Instant};

const BOUND: Duration = Duration::from_secs(40);
/// A sample takes at least so long, if it is not small.
const SAMPLE: Duration = Duration::from_millis(4);
/// Bytes of a slice or a cell in one layer, in KiB, and what gather and scatter must reach with them.
const SIZES: [(u64, f64); 3] = [(4, 0.7), (16, 0.85), (64, 0.85)];
/// What is in pages that no kernel may touch.
const UNTOUCHED: u8 = 0x5a;

/// How much is moved, and how often.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    /// Bytes of one launch.
    pub(crate) moved: u64,
    pub(crate) layers: u64,
    pub(crate) rounds: usize,
    /// Whether there are bars.
    pub(crate) is_judged: bool,
}

impl Scale {
    pub(crate) fn of(devices: &Devices, options: &Options) -> Scale {
        if options.is_small() {
            return Scale {
                moved: 1 << 20,
                layers: 2,
                rounds: 3,
                is_judged: false,
            };
        }
        // Six times as much is allocated; caches have some 50 MiB.
        let memory = devices.first().context.identity().memory_bytes;
        Scale {
            moved: (memory / 16).clamp(64 << 20, 1 << 30) >> 20 << 20,
            layers: 8,
            rounds: 21,
            is_judged: options.device == Kind::Cuda,
        }
    }
}

pub(crate) fn steps(steps: &mut Steps, devices: &Arc<Devices>, options: &Options) {
    let scale = Scale::of(devices, options);
    for (kib, bar) in SIZES {
        let (devices, seed) = (Arc::clone(devices), options.seed);
        steps.run(&format!("speed, {kib} KiB"), BOUND, move || {
            let ground = Ground::new(devices.first(), scale, seed)?;
            let cell = kib << 10;
            Ok(vec![
                row(
                    &format!("gather, cells of {kib} KiB"),
                    scale,
                    Some(bar),
                    ground.gather(cell),
                )?,
                row(
                    &format!("scatter, cells of {kib} KiB"),
                    scale,
                    Some(bar),
                    ground.scatter(cell),
                )?,
                row(
                    &format!("reslice 4 to 2, {kib} KiB a page"),
                    scale,
                    None,
                    ground.reslice(cell),
                )?,
            ])
        });
    }
}

/// A row of what was measured; the failure itself if nothing may come after it.
fn row(
    name: &str,
    scale: Scale,
    bar: Option<f64>,
    seen: Result<Ratios, Failure>,
) -> Result<Row, Failure> {
    let seen = match seen {
        Ok(seen) => seen,
        Err(late @ Failure::Late(_)) => return Err(late),
        Err(failure) => return Ok(Row::failed(name, failure.to_string())),
    };
    let (copy, kernel) = (
        rate(scale.moved, seen.first),
        rate(scale.moved, seen.second),
    );
    let said = format!("{} of the driver's copy; {kernel} to {copy}", seen.said());
    let (said, bar) = match scale.is_judged {
        true => (said, bar),
        false => (format!("{said} (small, says nothing)"), None),
    };
    Ok(Row::judged(name, said, seen.median(), bar))
}

/// The memories, and what is in `pages`.
struct Ground<'a> {
    device: &'a Device,
    stream: Stream,
    scale: Scale,
    seed: u64,
    noise: Vec<u8>,
    pages: Arc<DeviceMemory>,
    dense: Arc<DeviceMemory>,
    other: Arc<DeviceMemory>,
    copied: Arc<DeviceMemory>,
}

/// What a launch is given: source, destination, and up to two page tables.
struct Holds {
    from: Arc<DeviceMemory>,
    to: Arc<DeviceMemory>,
    tables: Vec<DeviceMemory>,
}

impl<'a> Ground<'a> {
    fn new(device: &'a Device, scale: Scale, seed: u64) -> Result<Ground<'a>, Failure> {
        let memory = |bytes| Ok::<_, Failure>(Arc::new(device.context.device_memory(bytes)?));
        let moved = scale.moved;
        let noise = Random::new(seed).bytes(2 * moved);
        let pages = memory(2 * moved)?;
        overwrite(device, &pages, |at, to| {
            to.copy_from_slice(&noise[at as usize..at as usize + to.len()]);
        })?;
        Ok(Ground {
            device,
            stream: device.stream()?,
            scale,
            seed,
            noise,
            pages,
            dense: memory(moved)?,
            other: memory(2 * moved)?,
            copied: memory(moved)?,
        })
    }

    /// The shape of cells, half of the pages, and how many there are.
    fn cells(&self, cell: u64) -> (PageCopy, Vec<u32>, u64) {
        let used = self.scale.moved / (self.scale.layers * cell);
        let shape = PageCopy {
            layers: self.scale.layers as u32,
            cell_bytes: cell,
            pool: Strides {
                layer: 2 * used * cell,
                page: cell,
            },
            staging: PageCopy::packed(cell, used as u32),
        };
        let table = Random::new(self.seed ^ cell).pages(used as u32, 2 * used as u32);
        (shape, table, 2 * self.scale.moved)
    }

    fn gather(&self, cell: u64) -> Result<Ratios, Failure> {
        let (shape, table, pool) = self.cells(cell);
        let job = shape.gather(&table, pool, self.scale.moved)?;
        let holds = Holds {
            from: Arc::clone(&self.pages),
            to: Arc::clone(&self.dense),
            tables: vec![upload_table(self.device, &table)?],
        };
        let seen = self.measure(holds, |from, to, tables, start| {
            let args = job.args(from, to, tables[0]);
            start(
                Kernel::GatherPages,
                &args.map_err(|error| refused(&error))?.bytes(),
            )
        })?;
        let mut wanted = vec![0; self.scale.moved as usize];
        gather_pages(&job, &self.noise, &mut wanted)?;
        same("gathered", &download(self.device, &self.dense)?, &wanted)?;
        Ok(seen)
    }

    fn scatter(&self, cell: u64) -> Result<Ratios, Failure> {
        let (shape, table, pool) = self.cells(cell);
        let job = shape.scatter(&table, pool, self.scale.moved)?;
        overwrite(self.device, &self.dense, |at, to| {
            to.copy_from_slice(&self.noise[at as usize..at as usize + to.len()]);
        })?;
        overwrite(self.device, &self.other, |_, to| to.fill(UNTOUCHED))?;
        let holds = Holds {
            from: Arc::clone(&self.dense),
            to: Arc::clone(&self.other),
            tables: vec![upload_table(self.device, &table)?],
        };
        let seen = self.measure(holds, |from, to, tables, start| {
            let args = job.args(to, from, tables[0]);
            start(
                Kernel::ScatterPages,
                &args.map_err(|error| refused(&error))?.bytes(),
            )
        })?;
        let mut wanted = vec![UNTOUCHED; pool as usize];
        scatter_pages(&job, &self.noise[..self.scale.moved as usize], &mut wanted)?;
        same("scattered", &download(self.device, &self.other)?, &wanted)?;
        Ok(seen)
    }

    /// A rank of 4 has 2 of 8 heads, a rank of 2 has 4: a slice of `slice` bytes of each page and layer.
    fn reslice(&self, slice: u64) -> Result<Ratios, Failure> {
        let (src, dst) = ranks(slice, self.scale);
        let random = &mut Random::new(self.seed ^ slice ^ 1);
        let used = dst.pages;
        let (from, to) = (random.pages(used, src.pages), random.shuffled(used));
        let tokens = 0..u64::from(used) * u64::from(src.page_tokens);
        let lists = (PageList::whole(&from[..]), PageList::whole(&to[..]));
        let part = Part::common(&src, &dst);
        let plan = CubePlan::new(&src, &dst, lists.0, lists.1, tokens, &part)?;
        if plan.total_bytes() != self.scale.moved {
            return Err(Failure::Shape(format!("{} bytes", plan.total_bytes())));
        }
        let grids = plan.grids();
        let slices = grids
            .iter()
            .map(GridSlices::try_from)
            .collect::<Result<Vec<_>, _>>()?;
        let pool = 2 * self.scale.moved;
        let jobs = slices
            .iter()
            .map(|grid| grid.between(&from, pool, &to, pool));
        let jobs = jobs.collect::<Result<Vec<_>, _>>()?;
        overwrite(self.device, &self.other, |_, to| to.fill(UNTOUCHED))?;
        let holds = Holds {
            from: Arc::clone(&self.pages),
            to: Arc::clone(&self.other),
            tables: vec![
                upload_table(self.device, &from)?,
                upload_table(self.device, &to)?,
            ],
        };
        let seen = self.measure(holds, |from, to, tables, start| {
            slices.iter().zip(&jobs).try_for_each(|(grid, job)| {
                let table = |list: u64, first: usize| list + first as u64 * 4;
                let args = job.args(
                    from + grid.src.base,
                    table(tables[0], grid.src.table.start),
                    to + grid.dst.base,
                    table(tables[1], grid.dst.table.start),
                );
                start(
                    Kernel::ResliceHeads,
                    &args.map_err(|error| refused(&error))?.bytes(),
                )
            })
        })?;
        let mut wanted = vec![UNTOUCHED; pool as usize];
        for (grid, job) in slices.iter().zip(&jobs) {
            let (src, dst) = (grid.src.base as usize, grid.dst.base as usize);
            reslice_heads(job, &self.noise[src..], &mut wanted[dst..])?;
        }
        same("resliced", &download(self.device, &self.other)?, &wanted)?;
        Ok(seen)
    }

    /// The driver's copy and a launch, in turns. `launch` gets the addresses of source, destination and
    /// tables, and starts kernels.
    fn measure(
        &self,
        holds: Holds,
        launch: impl Fn(u64, u64, &[u64], &mut Start<'_>) -> Result<(), DeviceError>,
    ) -> Result<Ratios, Failure> {
        let copies = Arc::new(Holds {
            from: Arc::clone(&self.pages),
            to: Arc::clone(&self.copied),
            tables: Vec::new(),
        });
        let moved = self.scale.moved;
        let copy = |times| {
            sample(&self.stream, &copies, times, &|holds, q| {
                q.copy(holds.to.range(0..moved)?, holds.from.range(0..moved)?)
            })
        };
        let holds = Arc::new(holds);
        let whole = self.device.launch();
        let kernel = |times| {
            sample(&self.stream, &holds, times, &|holds, q| {
                let address = |memory: &DeviceMemory| {
                    Ok::<_, DeviceError>(memory.range(0..memory.bytes())?.address())
                };
                let tables = holds.tables.iter().map(address);
                let tables = tables.collect::<Result<Vec<u64>, _>>()?;
                let (from, to) = (address(&holds.from)?, address(&holds.to)?);
                launch(from, to, &tables, &mut |kernel, args| {
                    self.device.start(q, kernel, &whole, args)
                })
            })
        };
        let mut times = 1;
        while self.scale.is_judged && times < 64 && copy(times)? < SAMPLE {
            times *= 2;
        }
        let mut ratios = in_turns(self.scale.rounds, || copy(times), || kernel(times))?;
        ratios.first /= times;
        ratios.second /= times;
        Ok(ratios)
    }
}

/// Starts one kernel with the bytes of its arguments.
type Start<'a> = dyn FnMut(Kernel, &[u8]) -> Result<(), DeviceError> + 'a;

/// What is queued for a sample, so many times.
type Op<'a> = dyn for<'q> Fn(&'q Holds, &mut Queue<'q>) -> Result<(), DeviceError> + 'a;

/// From before the first is queued until the last has been seen to be over.
fn sample(
    stream: &Stream,
    holds: &Arc<Holds>,
    times: u32,
    op: &Op<'_>,
) -> Result<Duration, Failure> {
    let begin = Instant::now();
    let flight = stream.queue(Arc::clone(holds), |holds, q| {
        let holds: &Holds = holds;
        (0..times).try_for_each(|_| op(holds, q))
    })?;
    land(flight)?;
    Ok(begin.elapsed())
}

/// Rank 1 of 4 and rank 0 of 2, in pools of 2 × moved bytes, with pages whose slice has `slice` bytes.
fn ranks(slice: u64, scale: Scale) -> (CubeLayout, CubeLayout) {
    // K and V of 2 heads of 128 channels of 2 bytes.
    const TOKEN: u64 = 2 * 2 * 128 * 2;
    let used = (scale.moved / (scale.layers * slice)) as u32;
    let side = |heads: Share, pages: u32| {
        let plane = Plane {
            heads,
            channels: 128,
            dtype: Dtype::bf16(),
        };
        CubeLayout {
            name: "kv".into(),
            kind: CubeKind::Kv,
            layers: Share::whole(scale.layers as u32),
            planes: vec![plane; 2],
            page_tokens: (slice / TOKEN) as u32,
            granule: 1,
            pages,
            page_gap: 0,
            order: DimOrder::NHD,
        }
    };
    let src = side(Share::part(8, 2, 2), 2 * used);
    (src, side(Share::part(8, 0, 4), used))
}
