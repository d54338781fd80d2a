//! A planner's grid as a job of `reslice_heads`.
//!
//! ```text
//!   Grid: counts of 64 bits, bases in the pool, ranges of two page lists      (plan::cube)
//!     └─▶ GridSlices: counts of 32 bits, a shape, and where on either side it begins
//!           └─ between(lists, pool sizes) ─▶ Reslice: checked from there to the pools' ends
//! ```
//!
//! A plan's grids are its bytes, each once, so their jobs may be launched in any order, or at once.

use super::{HeadSlices, JobError, Memory, Reslice, SliceShape};
use crate::plan::cube::{Grid, GridSide};
use std::ops::Range;

/// Where one side of a grid begins, and which pages it takes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GridPlace {
    /// Bytes of the pool before the job's memory: it is from here to the pool's end.
    pub base: u64,
    /// Entries of the plan's page list that are the job's page table.
    pub table: Range<usize>,
}

impl GridPlace {
    /// The job's page table, of the list that the plan was made from; none if it is shorter.
    #[must_use]
    pub fn table_of<'a>(&self, list: &'a [u32]) -> Option<&'a [u32]> {
        list.get(self.table.clone())
    }
}

/// A grid as the kernel takes it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GridSlices {
    /// What is copied, from the two places on.
    pub shape: HeadSlices,
    /// Where it is read.
    pub src: GridPlace,
    /// Where it is written.
    pub dst: GridPlace,
}

/// A grid that the kernel cannot do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GridError {
    /// A count has more than 32 bits.
    #[error("a grid of {value} {what}; the kernel counts to {limit}: plan fewer of them at a time")]
    Count {
        /// Of what.
        what: &'static str,
        /// How many.
        value: u64,
        /// The most that it may be.
        limit: u64,
    },
    /// The page list is not the one that the plan was made from.
    #[error(
        "the {memory}'s page list has {entries} entries and the grid takes {start}..{stop} of it; \
         give the list that the plan was made from"
    )]
    List {
        /// Whose list.
        memory: Memory,
        /// Its entries.
        entries: usize,
        /// First entry of the grid.
        start: usize,
        /// One past its last.
        stop: usize,
    },
    /// The pool ends before the grid begins.
    #[error(
        "the {memory} has {bytes} bytes and the grid begins at {base}; give the pool's own size"
    )]
    Pool {
        /// Which pool.
        memory: Memory,
        /// Its bytes.
        bytes: u64,
        /// Where the grid begins.
        base: u64,
    },
    /// The shape is refused; lengths in it count from where the grid begins.
    #[error(transparent)]
    Job(#[from] JobError),
}

impl TryFrom<&Grid> for GridSlices {
    type Error = GridError;

    fn try_from(grid: &Grid) -> Result<GridSlices, GridError> {
        let count = |what, value: u64| {
            let limit = u64::from(u32::MAX);
            u32::try_from(value).map_err(|_| GridError::Count { what, value, limit })
        };
        Ok(GridSlices {
            shape: HeadSlices {
                layers: count("layers", grid.layers)?,
                rows: count("rows", grid.rows)?,
                planes: count("planes", grid.planes)?,
                heads: count("heads", grid.heads)?,
                run_bytes: grid.run_bytes,
                src: shape(&grid.src),
                dst: shape(&grid.dst),
            },
            src: place(&grid.src),
            dst: place(&grid.dst),
        })
    }
}

impl GridSlices {
    /// The job between two pools of so many bytes, whose pages `src_list` and `dst_list` name: the
    /// lists that the plan was made from. Its memory on either side begins at the place's `base`.
    ///
    /// # Errors
    /// [`GridError`] says which list or pool is too short, or why the kernel cannot do it.
    pub fn between<'a>(
        &self,
        src_list: &'a [u32],
        src_pool: u64,
        dst_list: &'a [u32],
        dst_pool: u64,
    ) -> Result<Reslice<'a>, GridError> {
        let (src_table, src_bytes) = side(Memory::Source, &self.src, src_list, src_pool)?;
        let (dst_table, dst_bytes) = side(Memory::Destination, &self.dst, dst_list, dst_pool)?;
        let (src, dst) = (Some(src_table), Some(dst_table));
        Ok(self.shape.between(src, src_bytes, dst, dst_bytes)?)
    }
}

/// A side's page table, and its bytes from where it begins.
fn side<'a>(
    memory: Memory,
    place: &GridPlace,
    list: &'a [u32],
    pool: u64,
) -> Result<(&'a [u32], u64), GridError> {
    let table = place.table_of(list).ok_or(GridError::List {
        memory,
        entries: list.len(),
        start: place.table.start,
        stop: place.table.end,
    })?;
    let bytes = pool.checked_sub(place.base).ok_or(GridError::Pool {
        memory,
        bytes: pool,
        base: place.base,
    })?;
    Ok((table, bytes))
}

fn shape(side: &GridSide) -> SliceShape {
    SliceShape {
        layer: side.layer,
        page: side.page,
        row: side.row,
        plane: side.plane,
        head: side.head,
        page_rows: side.page_rows,
        first_row: side.first_row,
    }
}

fn place(side: &GridSide) -> GridPlace {
    GridPlace {
        base: side.base,
        table: side.table.clone(),
    }
}
