//! Many small runs in one launch: by kvroom's kernels, where they are loaded and the runs are alike.
//!
//! ```text
//!   runs of one length ─▶ table: offset / unit of each ─▶ gather_pages   pages ─▶ slot
//!                                                         scatter_pages  slot ─▶ pages
//!                                                         reslice_heads  pages ─▶ pages (two tables)
//! ```
//!
//! The table lies behind the data in the piece's slot, which is pinned: the device reads it, and the
//! data, over the bus. Which bytes are moved was checked before, run by run; the kernels' own jobs check
//! the sum of that.

use super::hands::bug;
use crate::copy::device::{Arg, Code, Context, DeviceError, Kernel, Launch, Program, Queue};
use kvroom_kernels::cuda::{self, THREADS, blocks};
use kvroom_kernels::plan::Piece;
use kvroom_kernels::twin::{HeadSlices, JobError, PageCopy, SliceShape, Strides};

/// Fewer runs than this are as quick by the driver's own copies.
const FEW: usize = 8;

/// Longer ones, too.
const LONG: u64 = 256 << 10;

/// Shorter ones leave most of a warp idle in `gather_pages` and `scatter_pages`.
const SHORT: u64 = 512;

/// Bytes of the tables of a piece of so many runs.
pub(super) const fn table_bytes(runs: usize) -> u64 {
    16 + 2 * 4 * runs as u64
}

/// Where the tables of a piece of so many bytes begin in its slot: where numbers may.
pub(super) const fn table_at(bytes: u64) -> u64 {
    bytes.next_multiple_of(16)
}

/// The kernels, on one device.
#[derive(Clone)]
pub(super) struct Kernels {
    gather: Kernel,
    scatter: Kernel,
    reslice: Kernel,
    launch: Launch,
}

/// Runs that a kernel copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Alike {
    /// Bytes of each.
    run: u64,
    /// What offsets at the source are counted in.
    unit: u64,
}

impl Kernels {
    /// Compiles and loads them.
    ///
    /// # Errors
    /// Why there are none; copies go on without.
    pub(super) fn load(context: &Context) -> Result<Kernels, DeviceError> {
        let module = context.load(&Code::Source(Program {
            name: "kvroom's kernels".to_owned(),
            source: cuda::SOURCE.to_owned(),
            options: cuda::OPTIONS.iter().map(|o| (*o).to_owned()).collect(),
        }))?;
        let kernel = |kernel: cuda::Kernel| module.kernel(kernel.entry());
        Ok(Kernels {
            gather: kernel(cuda::Kernel::GatherPages)?,
            scatter: kernel(cuda::Kernel::ScatterPages)?,
            reslice: kernel(cuda::Kernel::ResliceHeads)?,
            launch: Launch::line(blocks(context.identity().multiprocessors), THREADS),
        })
    }

    /// Queues the copy of runs from pages into a slot. `pool` and `slot` are where those begin.
    pub(super) fn gather(
        &self,
        q: &mut Queue<'_>,
        (alike, runs): (Alike, &[Piece]),
        pool: (u64, u64),
        slot: (u64, u64),
        table: u64,
    ) -> Result<(), DeviceError> {
        let list = numbers(runs.iter().map(|run| run.src), alike.unit)?;
        if alike.run < SHORT {
            let shape = slices(runs.len(), alike.run, alike.unit, alike.run);
            let job = shape
                .between(Some(&list), pool.1, None, slot.1)
                .map_err(wrong)?;
            let args = job.args(pool.0, table, slot.0, 0).map_err(wrong)?;
            return q.launch(&self.reslice, &self.launch, &[Arg::bytes(&args.bytes())]);
        }
        let job = cells(runs.len(), alike.run, alike.unit);
        let job = job.gather(&list, pool.1, slot.1).map_err(wrong)?;
        let args = job.args(pool.0, slot.0, table).map_err(wrong)?;
        q.launch(&self.gather, &self.launch, &[Arg::bytes(&args.bytes())])
    }

    /// Queues the copy of runs from a slot into pages.
    pub(super) fn scatter(
        &self,
        q: &mut Queue<'_>,
        (alike, runs): (Alike, &[Piece]),
        slot: (u64, u64),
        pool: (u64, u64),
        table: u64,
    ) -> Result<(), DeviceError> {
        let list = numbers(runs.iter().map(|run| run.dst), alike.run)?;
        if alike.run < SHORT {
            let shape = slices(runs.len(), alike.run, alike.run, alike.run);
            let job = shape
                .between(None, slot.1, Some(&list), pool.1)
                .map_err(wrong)?;
            let args = job.args(slot.0, 0, pool.0, table).map_err(wrong)?;
            return q.launch(&self.reslice, &self.launch, &[Arg::bytes(&args.bytes())]);
        }
        let job = cells(runs.len(), alike.run, alike.run);
        let job = job.scatter(&list, pool.1, slot.1).map_err(wrong)?;
        let args = job.args(pool.0, slot.0, table).map_err(wrong)?;
        q.launch(&self.scatter, &self.launch, &[Arg::bytes(&args.bytes())])
    }

    /// Queues the copy of runs from pages to pages.
    pub(super) fn reslice(
        &self,
        q: &mut Queue<'_>,
        (alike, runs): (Alike, &[Piece]),
        from: (u64, u64),
        to: (u64, u64),
        tables: (u64, u64),
    ) -> Result<(), DeviceError> {
        let list = numbers(runs.iter().map(|run| run.src), alike.unit)?;
        let places = numbers(runs.iter().map(|run| run.dst), alike.run)?;
        let shape = slices(runs.len(), alike.run, alike.unit, alike.run);
        let job = shape
            .between(Some(&list), from.1, Some(&places), to.1)
            .map_err(wrong)?;
        let args = job.args(from.0, tables.0, to.0, tables.1).map_err(wrong)?;
        q.launch(&self.reslice, &self.launch, &[Arg::bytes(&args.bytes())])
    }
}

impl Alike {
    /// Whether these runs are a kernel's: many, short, of one length, and at the destination at
    /// multiples of that.
    pub(super) fn of(runs: &[Piece], to_pages: bool) -> Option<Alike> {
        let run = runs.first()?.bytes;
        if runs.len() < FEW || run > LONG {
            return None;
        }
        let mut unit = run;
        for piece in runs {
            if piece.bytes != run || (to_pages && piece.dst % run != 0) {
                return None;
            }
            unit = common(unit, piece.src);
        }
        let most = runs.iter().map(|r| (r.src / unit).max(r.dst / run)).max()?;
        u32::try_from(most).is_ok().then_some(Alike { run, unit })
    }

    /// The tables of these runs: offsets at the source, then those at the destination.
    pub(super) fn tables(self, runs: &[Piece]) -> Vec<u8> {
        let from = runs.iter().map(|run| (run.src / self.unit) as u32);
        let to = runs.iter().map(|run| (run.dst / self.run) as u32);
        from.chain(to).flat_map(u32::to_le_bytes).collect()
    }
}

/// The largest number that divides both.
fn common(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

fn numbers(offsets: impl Iterator<Item = u64>, unit: u64) -> Result<Vec<u32>, DeviceError> {
    let number = |offset: u64| u32::try_from(offset / unit).map_err(|_| bug("a run too far out"));
    offsets.map(number).collect()
}

/// Runs as cells of one layer.
fn cells(runs: usize, run: u64, unit: u64) -> PageCopy {
    PageCopy {
        layers: 1,
        cell_bytes: run,
        pool: Strides {
            layer: 0,
            page: unit,
        },
        staging: PageCopy::packed(run, runs as u32),
    }
}

/// Runs as rows of pages that hold one each.
fn slices(runs: usize, run: u64, from: u64, to: u64) -> HeadSlices {
    let side = |page| SliceShape {
        layer: 0,
        page,
        row: 0,
        plane: 0,
        head: 0,
        page_rows: 1,
        first_row: 0,
    };
    HeadSlices {
        layers: 1,
        rows: runs as u32,
        planes: 1,
        heads: 1,
        run_bytes: run,
        src: side(from),
        dst: side(to),
    }
}

fn wrong(error: JobError) -> DeviceError {
    bug(&error.to_string())
}
