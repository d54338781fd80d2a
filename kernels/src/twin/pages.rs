//! `gather_pages` and `scatter_pages`: cells of a pool to and from dense staging.
//!
//! ```text
//!   pool      layer · pool.layer    + table[n] · pool.page      ┐ cell_bytes,
//!   staging   layer · staging.layer +       n  · staging.page   ┘ for every layer and n
//! ```

use super::bounds::{Dim, aligned, apart, counts, part, part_mut, reach, within};
use super::{JobError, Memory};
use crate::cuda::{Kernel, PagesArgs};

/// Bytes between neighbours, from first byte to first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Strides {
    /// From a layer to the next.
    pub layer: u64,
    /// From a page to the next of the same layer.
    pub page: u64,
}

/// The shape of a copy of cells (a cell is a page in one layer).
///
/// Both sides begin at the first layer that is copied: who copies layers 8 to 15 names the place of
/// layer 8. Cells of less than 512 bytes leave lanes idle; [`super::HeadSlices`] can copy them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PageCopy {
    /// Layers; 0 copies nothing.
    pub layers: u32,
    /// Bytes of a page in one layer; 0 copies nothing.
    pub cell_bytes: u64,
    /// Where cells lie in the pool.
    pub pool: Strides,
    /// Where they lie in the staging.
    pub staging: Strides,
}

/// Cells from a pool into staging, checked.
#[derive(Clone, Copy, Debug)]
pub struct Gather<'a>(Cells<'a>);

/// Cells from staging into a pool, checked.
#[derive(Clone, Copy, Debug)]
pub struct Scatter<'a>(Cells<'a>);

#[derive(Clone, Copy, Debug)]
struct Cells<'a> {
    shape: PageCopy,
    table: &'a [u32],
}

impl PageCopy {
    /// A tile of a kernel; no more than [`super::bounds::COUNT`] of them are in a cell.
    const TILE: u64 = 8192;

    /// Staging without gaps, as `[layer][page][bytes]`; saturates.
    #[must_use]
    pub fn packed(cell_bytes: u64, pages: u32) -> Strides {
        Strides {
            layer: cell_bytes.saturating_mul(u64::from(pages)),
            page: cell_bytes,
        }
    }

    /// The job to copy the pages of `table`, in order, from a pool of `pool_bytes` into staging of
    /// `staging_bytes`.
    ///
    /// # Errors
    /// [`JobError`] says what would be touched that must not be, or what is too large.
    pub fn gather(
        self,
        table: &[u32],
        pool_bytes: u64,
        staging_bytes: u64,
    ) -> Result<Gather<'_>, JobError> {
        let cells = Cells { shape: self, table };
        if let Some([pool, staging]) = cells.dims()? {
            within(Memory::Source, pool_bytes, reach(&pool, self.cell_bytes))?;
            let needed = reach(&staging, self.cell_bytes);
            within(Memory::Destination, staging_bytes, needed)?;
            apart(Memory::Destination, staging, self.cell_bytes)?;
        }
        Ok(Gather(cells))
    }

    /// The job to copy staging of `staging_bytes` into the pages of `table`, in order, of a pool of
    /// `pool_bytes`.
    ///
    /// # Errors
    /// [`JobError`] says what would be touched that must not be, or what is too large.
    pub fn scatter(
        self,
        table: &[u32],
        pool_bytes: u64,
        staging_bytes: u64,
    ) -> Result<Scatter<'_>, JobError> {
        let cells = Cells { shape: self, table };
        if let Some([pool, staging]) = cells.dims()? {
            let needed = reach(&staging, self.cell_bytes);
            within(Memory::Source, staging_bytes, needed)?;
            let needed = reach(&pool, self.cell_bytes);
            within(Memory::Destination, pool_bytes, needed)?;
            apart(Memory::Destination, pool, self.cell_bytes)?;
        }
        Ok(Scatter(cells))
    }
}

impl<'a> Cells<'a> {
    /// How far pool and staging reach; none if there is no work.
    fn dims(&self) -> Result<Option<[[Dim; 2]; 2]>, JobError> {
        let shape = &self.shape;
        counts(&[
            ("the number of layers", u64::from(shape.layers)),
            ("the number of pages", self.table.len() as u64),
            (
                "the tiles of a cell",
                shape.cell_bytes.div_ceil(PageCopy::TILE),
            ),
        ])?;
        let Some(last) = self.table.iter().max() else {
            return Ok(None);
        };
        if shape.layers == 0 || shape.cell_bytes == 0 {
            return Ok(None);
        }
        let dims = |strides: Strides, pages| {
            [
                Dim {
                    stride: strides.layer,
                    count: u64::from(shape.layers),
                },
                Dim {
                    stride: strides.page,
                    count: pages,
                },
            ]
        };
        Ok(Some([
            dims(shape.pool, u64::from(*last) + 1),
            dims(shape.staging, self.table.len() as u64),
        ]))
    }

    fn args(&self, pool: u64, staging: u64, table: u64) -> Result<PagesArgs, JobError> {
        aligned(Memory::Table, table, 4)?;
        Ok(PagesArgs {
            pool,
            staging,
            table,
            cell_bytes: self.shape.cell_bytes,
            pool_layer: self.shape.pool.layer,
            pool_page: self.shape.pool.page,
            staging_layer: self.shape.staging.layer,
            staging_page: self.shape.staging.page,
            layers: self.shape.layers,
            pages: self.table.len() as u32,
        })
    }

    /// First byte of each cell, in the pool and in the staging.
    fn places(&self) -> impl Iterator<Item = (u64, u64)> + 'a {
        let Cells { shape, table } = *self;
        let layers = if shape.cell_bytes == 0 || table.is_empty() {
            0
        } else {
            shape.layers
        };
        (0..u64::from(layers)).flat_map(move |layer| {
            table.iter().enumerate().map(move |(nth, page)| {
                let paged = layer * shape.pool.layer + u64::from(*page) * shape.pool.page;
                let dense = layer * shape.staging.layer + nth as u64 * shape.staging.page;
                (paged, dense)
            })
        })
    }
}

impl From<&PagesArgs> for PageCopy {
    fn from(args: &PagesArgs) -> PageCopy {
        PageCopy {
            layers: args.layers,
            cell_bytes: args.cell_bytes,
            pool: Strides {
                layer: args.pool_layer,
                page: args.pool_page,
            },
            staging: Strides {
                layer: args.staging_layer,
                page: args.staging_page,
            },
        }
    }
}

impl<'a> Gather<'a> {
    /// First byte of each cell, in the pool and in the staging.
    pub(super) fn places(&self) -> impl Iterator<Item = (u64, u64)> + 'a {
        self.0.places()
    }

    /// The kernel that does it.
    pub const KERNEL: Kernel = Kernel::GatherPages;

    /// The page table, to be brought to the device as it is.
    #[must_use]
    pub fn table(&self) -> &'a [u32] {
        self.0.table
    }

    /// Arguments of the kernel, once it is known where the three are on the device.
    ///
    /// # Errors
    /// [`JobError::Unaligned`] if `table` is no multiple of 4.
    pub fn args(&self, pool: u64, staging: u64, table: u64) -> Result<PagesArgs, JobError> {
        self.0.args(pool, staging, table)
    }
}

impl<'a> Scatter<'a> {
    /// First byte of each cell, in the pool and in the staging.
    pub(super) fn places(&self) -> impl Iterator<Item = (u64, u64)> + 'a {
        self.0.places()
    }

    /// The kernel that does it.
    pub const KERNEL: Kernel = Kernel::ScatterPages;

    /// The page table, to be brought to the device as it is.
    #[must_use]
    pub fn table(&self) -> &'a [u32] {
        self.0.table
    }

    /// Arguments of the kernel, once it is known where the three are on the device.
    ///
    /// # Errors
    /// [`JobError::Unaligned`] if `table` is no multiple of 4.
    pub fn args(&self, pool: u64, staging: u64, table: u64) -> Result<PagesArgs, JobError> {
        self.0.args(pool, staging, table)
    }
}

/// The twin of the kernel `gather_pages`.
///
/// # Errors
/// [`JobError::Outside`] if a slice is shorter than the job was checked for; cells before that one
/// have been copied.
pub fn gather_pages(job: &Gather<'_>, pool: &[u8], staging: &mut [u8]) -> Result<(), JobError> {
    let bytes = job.0.shape.cell_bytes;
    for (paged, dense) in job.0.places() {
        let cell = part(Memory::Source, pool, paged, bytes)?;
        part_mut(Memory::Destination, staging, dense, bytes)?.copy_from_slice(cell);
    }
    Ok(())
}

/// The twin of the kernel `scatter_pages`.
///
/// # Errors
/// [`JobError::Outside`] if a slice is shorter than the job was checked for; cells before that one
/// have been copied.
pub fn scatter_pages(job: &Scatter<'_>, staging: &[u8], pool: &mut [u8]) -> Result<(), JobError> {
    let bytes = job.0.shape.cell_bytes;
    for (paged, dense) in job.0.places() {
        let cell = part(Memory::Source, staging, dense, bytes)?;
        part_mut(Memory::Destination, pool, paged, bytes)?.copy_from_slice(cell);
    }
    Ok(())
}
