//! `reslice_heads`: strided runs between two shapes of page.
//!
//! ```text
//!   logical   [layer][row][plane][head] of runs of run_bytes, the same on both sides
//!   a side    flat = first_row + row;  page = table[flat / page_rows], or flat / page_rows
//!             layer · layer + page · page + flat % page_rows · row + plane · plane + head · head
//! ```
//!
//! What the words stand for is the planner's choice; the sum is all there is:
//!
//! | Copy | row | plane | head | run |
//! |---|---|---|---|---|
//! | NHD to NHD, a slice of the heads | a token | K, V | (1) | the heads of the slice |
//! | NHD to HND | a token | K, V | a head | one head of one token |
//! | HND to HND, pages of 16 onto pages of 64 | 16 tokens | K, V | a head | one head of 16 tokens |
//! | MLA latents, pages of another size | the smaller page | (1) | (1) | all of it |

use super::bounds::{Dim, aligned, apart, counts, part, part_mut, reach, within};
use super::{JobError, Memory};
use crate::cuda::{Kernel, SliceSide, SlicesArgs};

/// One side of a reslice: bytes between neighbours of each kind, and the shape of its pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SliceShape {
    /// From a layer to the next.
    pub layer: u64,
    /// From a page to the next.
    pub page: u64,
    /// From a row to the next of the same page.
    pub row: u64,
    /// From a plane to the next.
    pub plane: u64,
    /// From a head to the next.
    pub head: u64,
    /// Rows of a page; at least 1.
    pub page_rows: u32,
    /// Row of the first page at which the copy begins; may be behind that page's end.
    pub first_row: u32,
}

/// The shape of a reslice. A count or length of 0 copies nothing.
///
/// Both sides begin at the first run of page 0 in the first layer: who takes heads 4 to 7 of layers
/// 8 to 15 names the place of head 4 in layer 8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HeadSlices {
    /// Layers.
    pub layers: u32,
    /// Rows of all pages together.
    pub rows: u32,
    /// Planes of a row: K and V, or 1.
    pub planes: u32,
    /// Heads of a plane.
    pub heads: u32,
    /// Bytes that lie together on both sides.
    pub run_bytes: u64,
    /// Where runs are read.
    pub src: SliceShape,
    /// Where they are written.
    pub dst: SliceShape,
}

/// A reslice, checked.
#[derive(Clone, Copy, Debug)]
pub struct Reslice<'a> {
    shape: HeadSlices,
    src_table: Option<&'a [u32]>,
    dst_table: Option<&'a [u32]>,
}

impl HeadSlices {
    /// The job to copy from memory of `src_bytes` into memory of `dst_bytes`; a side without a
    /// table is dense: its page n is page n.
    ///
    /// # Errors
    /// [`JobError`] says what would be touched that must not be, or what is too large.
    pub fn between<'a>(
        self,
        src_table: Option<&'a [u32]>,
        src_bytes: u64,
        dst_table: Option<&'a [u32]>,
        dst_bytes: u64,
    ) -> Result<Reslice<'a>, JobError> {
        for (memory, side) in [
            (Memory::Source, &self.src),
            (Memory::Destination, &self.dst),
        ] {
            if side.page_rows == 0 {
                return Err(JobError::NoRows { memory });
            }
            let end = u64::from(side.first_row) + u64::from(self.rows);
            counts(&[
                ("the last row", end),
                ("the rows of a page", u64::from(side.page_rows)),
            ])?;
        }
        let [planes, heads, rows] = [self.planes, self.heads, self.segment_rows()].map(u64::from);
        let bytes = [planes, heads, rows]
            .into_iter()
            .fold(self.run_bytes, u64::saturating_mul);
        counts(&[
            ("the number of layers", u64::from(self.layers)),
            ("the number of planes", planes),
            ("the number of heads", heads),
            ("the bytes of a run", self.run_bytes),
            ("the bytes copied between two pages", bytes),
        ])?;
        if !self.is_empty() {
            self.side(Memory::Source, &self.src, src_table, src_bytes)?;
            let dims = self.side(Memory::Destination, &self.dst, dst_table, dst_bytes)?;
            apart(Memory::Destination, dims, self.run_bytes)?;
        }
        Ok(Reslice {
            shape: self,
            src_table,
            dst_table,
        })
    }

    fn is_empty(&self) -> bool {
        [self.layers, self.rows, self.planes, self.heads].contains(&0) || self.run_bytes == 0
    }

    /// Checks that a side has what it needs; all dimensions of it.
    fn side(
        &self,
        memory: Memory,
        side: &SliceShape,
        table: Option<&[u32]>,
        bytes: u64,
    ) -> Result<[Dim; 5], JobError> {
        let per_page = u64::from(side.page_rows);
        let begin = u64::from(side.first_row);
        let end = begin + u64::from(self.rows) - 1;
        let (first_page, last_page) = (begin / per_page, end / per_page);
        if let Some(table) = table
            && table.len() as u64 <= last_page
        {
            return Err(JobError::Table {
                memory,
                entries: table.len(),
                needed: last_page + 1,
            });
        }
        let dim = |stride, count| Dim { stride, count };
        let flat = [
            dim(side.layer, u64::from(self.layers)),
            dim(side.plane, u64::from(self.planes)),
            dim(side.head, u64::from(self.heads)),
        ];
        let (mut pages, mut rows) = (1, 1);
        // Without a table the last two pages reach farthest.
        let from = match table {
            Some(_) => first_page,
            None => first_page.max(last_page.saturating_sub(1)),
        };
        for nth in from..=last_page {
            let page = table.map_or(nth, |table| u64::from(table[nth as usize]));
            // Only the last page may be used in part at its end.
            let used = if nth == last_page {
                end % per_page + 1
            } else {
                per_page
            };
            (pages, rows) = (pages.max(page + 1), rows.max(used));
            let here = [dim(side.page, page + 1), dim(side.row, used)];
            let needed = reach(&here, reach(&flat, self.run_bytes));
            within(memory, bytes, needed)?;
        }
        let [layers, planes, heads] = flat;
        Ok([
            layers,
            dim(side.page, pages),
            dim(side.row, rows),
            planes,
            heads,
        ])
    }

    /// Rows from the first on that lie in one page on either side, and again, and again.
    fn segment_rows(&self) -> u32 {
        let (src, dst) = (&self.src, &self.dst);
        [src.first_row, dst.page_rows, dst.first_row]
            .into_iter()
            .fold(src.page_rows, common_divisor)
            .min(self.rows)
            .max(1)
    }

    /// The widest access that divides these addresses and every stride and length that matters.
    fn word_bytes(&self, src: u64, dst: u64) -> u32 {
        let used = |stride: u64, count: u32| if count > 1 { stride } else { 0 };
        let all = [&self.src, &self.dst]
            .into_iter()
            .flat_map(|side| {
                [
                    used(side.layer, self.layers),
                    side.page,
                    used(side.row, side.page_rows),
                    used(side.plane, self.planes),
                    used(side.head, self.heads),
                ]
            })
            .fold(src | dst | self.run_bytes, |all, stride| all | stride);
        1 << all.trailing_zeros().min(4)
    }
}

fn common_divisor(mut a: u32, mut b: u32) -> u32 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

impl SliceShape {
    fn args(&self, base: u64, table: u64) -> SliceSide {
        SliceSide {
            base,
            table,
            layer: self.layer,
            page: self.page,
            row: self.row,
            plane: self.plane,
            head: self.head,
            page_rows: self.page_rows,
            first_row: self.first_row,
        }
    }

    fn place(&self, table: Option<&[u32]>, layer: u32, row: u32, plane: u32, head: u32) -> u64 {
        let flat = self.first_row + row;
        let nth = flat / self.page_rows;
        let page = table.map_or(nth, |table| table[nth as usize]);
        let steps = [
            (layer, self.layer),
            (page, self.page),
            (flat % self.page_rows, self.row),
            (plane, self.plane),
            (head, self.head),
        ];
        steps.iter().map(|(n, stride)| u64::from(*n) * stride).sum()
    }
}

impl From<&SliceSide> for SliceShape {
    fn from(side: &SliceSide) -> SliceShape {
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
}

impl From<&SlicesArgs> for HeadSlices {
    fn from(args: &SlicesArgs) -> HeadSlices {
        HeadSlices {
            layers: args.layers,
            rows: args.rows,
            planes: args.planes,
            heads: args.heads,
            run_bytes: args.run_bytes,
            src: (&args.src).into(),
            dst: (&args.dst).into(),
        }
    }
}

impl<'a> Reslice<'a> {
    /// The first byte of each run, at the source and at the destination; ends at the first error.
    pub(super) fn each<E>(&self, mut see: impl FnMut(u64, u64) -> Result<(), E>) -> Result<(), E> {
        let shape = &self.shape;
        if shape.is_empty() {
            return Ok(());
        }
        for layer in 0..shape.layers {
            for row in 0..shape.rows {
                for plane in 0..shape.planes {
                    for head in 0..shape.heads {
                        let from = shape.src.place(self.src_table, layer, row, plane, head);
                        let to = shape.dst.place(self.dst_table, layer, row, plane, head);
                        see(from, to)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// The kernel that does it.
    pub const KERNEL: Kernel = Kernel::ResliceHeads;

    /// The page tables of source and destination, to be brought to the device as they are; none
    /// where pages lie in their order.
    #[must_use]
    pub fn tables(&self) -> [Option<&'a [u32]>; 2] {
        [self.src_table, self.dst_table]
    }

    /// Arguments of the kernel, once it is known where the four are on the device; the place of a
    /// table that the job does not have is not looked at. Accesses are of 16 bytes if that divides
    /// both addresses and all strides and lengths.
    ///
    /// # Errors
    /// [`JobError::Unaligned`] if a table is at no multiple of 4.
    pub fn args(
        &self,
        src: u64,
        src_table: u64,
        dst: u64,
        dst_table: u64,
    ) -> Result<SlicesArgs, JobError> {
        let shape = &self.shape;
        let src_table = if self.src_table.is_some() {
            src_table
        } else {
            0
        };
        let dst_table = if self.dst_table.is_some() {
            dst_table
        } else {
            0
        };
        aligned(Memory::Table, src_table, 4)?;
        aligned(Memory::Table, dst_table, 4)?;
        Ok(SlicesArgs {
            src: shape.src.args(src, src_table),
            dst: shape.dst.args(dst, dst_table),
            run_bytes: shape.run_bytes,
            layers: shape.layers,
            rows: shape.rows,
            planes: shape.planes,
            heads: shape.heads,
            segment_rows: shape.segment_rows(),
            word_bytes: shape.word_bytes(src, dst),
        })
    }
}

/// The twin of the kernel `reslice_heads`.
///
/// # Errors
/// [`JobError::Outside`] if a slice is shorter than the job was checked for; runs before that one
/// have been copied.
pub fn reslice_heads(job: &Reslice<'_>, src: &[u8], dst: &mut [u8]) -> Result<(), JobError> {
    let bytes = job.shape.run_bytes;
    job.each(|from, to| {
        let run = part(Memory::Source, src, from, bytes)?;
        part_mut(Memory::Destination, dst, to, bytes)?.copy_from_slice(run);
        Ok(())
    })
}
