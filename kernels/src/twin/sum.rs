//! `checksum_pages`: the sum of [`crate::checksum`] over cells of a pool, or of dense staging.
//!
//! ```text
//!   cell (layer, n)   at layer · strides.layer + page · strides.page, where page = table[n], or n
//!   its name          pool, first_layer + layer, first_page + n
//! ```
//!
//! The kernel adds to a word that the caller has set (to 0, or to the sum of other cells).

use super::bounds::{Dim, aligned, counts, part, reach, within};
use super::{JobError, Memory, Strides, crc};
use crate::checksum::Checksum;
use crate::cuda::{Kernel, SumArgs};

/// The cells of a sum, and their names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PageSum {
    /// Layers; 0 sums nothing.
    pub layers: u32,
    /// Pages; 0 sums nothing.
    pub pages: u32,
    /// Bytes of a page in one layer; cells without bytes have checksums, too.
    pub cell_bytes: u64,
    /// Where cells lie.
    pub strides: Strides,
    /// Name of the pool (its section).
    pub pool: u32,
    /// Name of the first layer; the others follow.
    pub first_layer: u32,
    /// Name of the first page; the others follow, whatever the table says.
    pub first_page: u32,
}

/// A sum over cells, checked.
#[derive(Clone, Copy, Debug)]
pub struct Sum<'a> {
    shape: PageSum,
    table: Option<&'a [u32]>,
}

impl PageSum {
    /// The job to sum cells in memory of `bytes`; without a table, page n is page n.
    ///
    /// # Errors
    /// [`JobError`] says what would be read that must not be, or what is too large.
    pub fn over(self, table: Option<&[u32]>, bytes: u64) -> Result<Sum<'_>, JobError> {
        counts(&[
            ("the number of layers", u64::from(self.layers)),
            ("the number of pages", u64::from(self.pages)),
        ])?;
        let (layers, pages) = (u64::from(self.layers), u64::from(self.pages));
        // Names are numbers of 32 bits.
        counts_to(
            "the last layer's name",
            u64::from(self.first_layer) + layers,
        )?;
        counts_to("the last page's name", u64::from(self.first_page) + pages)?;
        if let Some(table) = table
            && table.len() as u64 != pages
        {
            return Err(JobError::Table {
                memory: Memory::Source,
                entries: table.len(),
                needed: pages,
            });
        }
        if layers > 0 && pages > 0 {
            let last = table.and_then(|table| table.iter().max().copied());
            let count = last.map_or(pages, |last| u64::from(last) + 1);
            let layers = Dim {
                stride: self.strides.layer,
                count: layers,
            };
            let pages = Dim {
                stride: self.strides.page,
                count,
            };
            within(
                Memory::Source,
                bytes,
                reach(&[layers, pages], self.cell_bytes),
            )?;
        }
        Ok(Sum { shape: self, table })
    }
}

/// Names run up to `u32::MAX`.
fn counts_to(what: &'static str, end: u64) -> Result<(), JobError> {
    let limit = u64::from(u32::MAX);
    match end.checked_sub(1) {
        Some(value) if value > limit => Err(JobError::TooLarge { what, value, limit }),
        _ => Ok(()),
    }
}

impl<'a> Sum<'a> {
    /// The kernel that does it.
    pub const KERNEL: Kernel = Kernel::ChecksumPages;

    /// The page table, to be brought to the device as it is; none if pages lie in their order.
    #[must_use]
    pub fn table(&self) -> Option<&'a [u32]> {
        self.table
    }

    /// Arguments of the kernel, once it is known where the three are on the device; `table` is not
    /// looked at if the job has none.
    ///
    /// # Errors
    /// [`JobError::Unaligned`] if `table` is no multiple of 4 or `sum` none of 8.
    pub fn args(&self, pool: u64, table: u64, sum: u64) -> Result<SumArgs, JobError> {
        aligned(Memory::Sum, sum, 8)?;
        let table = if self.table.is_some() { table } else { 0 };
        aligned(Memory::Table, table, 4)?;
        let shape = &self.shape;
        let fed = |before: u64| crc::bytes(shape.cell_bytes.saturating_add(before));
        Ok(SumArgs {
            pool,
            table,
            sum,
            cell_bytes: shape.cell_bytes,
            layer: shape.strides.layer,
            page: shape.strides.page,
            layers: shape.layers,
            pages: shape.pages,
            first_layer: shape.first_layer,
            first_page: shape.first_page,
            // A register begins and ends with all bits turned; of the name's twelve bytes the
            // pool's come first.
            seed: !crc::times(!shape.pool, fed(12)),
            layer_factor: fed(8),
            page_factor: fed(4),
            reserved: 0,
        })
    }
}

/// The twin of the kernel `checksum_pages`.
///
/// # Errors
/// [`JobError::Outside`] if the slice is shorter than the job was checked for.
pub fn checksum_pages(job: &Sum<'_>, pool: &[u8]) -> Result<Checksum, JobError> {
    let shape = &job.shape;
    let mut sum = Checksum::new();
    if shape.pages == 0 {
        return Ok(sum);
    }
    for layer in 0..shape.layers {
        for nth in 0..shape.pages {
            let page = job.table.map_or(nth, |table| table[nth as usize]);
            let at = u64::from(layer) * shape.strides.layer + u64::from(page) * shape.strides.page;
            let cell = part(Memory::Source, pool, at, shape.cell_bytes)?;
            let (layer, page) = (shape.first_layer + layer, shape.first_page + nth);
            sum.add_cell(shape.pool, layer, page, cell);
        }
    }
    Ok(sum)
}
