//! A launch without a GPU: what a kernel does by the bytes of its arguments, over memory by address.
//!
//! ```text
//!   arguments (bytes) ─▶ shape ─┐
//!   page tables (read) ─────────┴─▶ checked job: are these the arguments that it gives?
//!                                     └─▶ each cell, each run: read here, written there
//! ```
//!
//! For devices that are emulated. The job behind a launch has been checked for lengths that the arguments
//! do not name, so here every access is the device's to allow or not. What the device's own kernel does
//! besides (how work is cut among threads, how wide an access is) does not show.

use super::{HeadSlices, JobError, PageCopy, Strides, crc};
use crate::cuda::{Kernel, PagesArgs, SlicesArgs, SumArgs};
use std::fmt;

/// Memory as a kernel sees it.
pub trait Addressed {
    /// An access that is not allowed.
    type Error;

    /// Reads as many bytes as there is room for.
    ///
    /// # Errors
    /// Not all of them are there.
    fn read(&self, at: u64, into: &mut [u8]) -> Result<(), Self::Error>;

    /// Writes all of the bytes.
    ///
    /// # Errors
    /// There is no place for all of them, and none was written.
    fn write(&mut self, at: u64, from: &[u8]) -> Result<(), Self::Error>;
}

/// Why a launch failed. Whoever made the arguments must correct them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaunchError<E> {
    /// Arguments of another length.
    Length {
        /// Their bytes.
        bytes: usize,
        /// The bytes that the kernel takes.
        needed: usize,
    },
    /// No job gives these arguments: its shape is refused.
    Job(JobError),
    /// No job gives these arguments: those of the same shape are others.
    Arguments,
    /// An access that the memory refused.
    Access(E),
}

impl<E: fmt::Display> fmt::Display for LaunchError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LaunchError::Length { bytes, needed } => {
                write!(
                    f,
                    "arguments of {bytes} bytes for a kernel that takes {needed}"
                )
            }
            LaunchError::Job(error) => error.fmt(f),
            LaunchError::Arguments => f.write_str("arguments that no checked job gives"),
            LaunchError::Access(error) => error.fmt(f),
        }
    }
}

impl<E: fmt::Debug + fmt::Display> std::error::Error for LaunchError<E> {}

impl<E> From<JobError> for LaunchError<E> {
    fn from(error: JobError) -> Self {
        LaunchError::Job(error)
    }
}

type Launched<M> = Result<(), LaunchError<<M as Addressed>::Error>>;

/// Memory that ends nowhere: one byte less than what no memory has.
const ENDLESS: u64 = u64::MAX - 1;

/// Does what the kernel does when it is launched with these arguments.
///
/// # Errors
/// [`LaunchError`]; accesses before the one that was refused have happened.
pub fn launched<M: Addressed>(kernel: Kernel, args: &[u8], memory: &mut M) -> Launched<M> {
    match kernel {
        Kernel::GatherPages => gather(&PagesArgs::from_bytes(sized(args)?), memory),
        Kernel::ScatterPages => scatter(&PagesArgs::from_bytes(sized(args)?), memory),
        Kernel::ResliceHeads => reslice(&SlicesArgs::from_bytes(sized(args)?), memory),
        Kernel::ChecksumPages => sum(&SumArgs::from_bytes(sized(args)?), memory),
    }
}

fn sized<const N: usize, E>(args: &[u8]) -> Result<&[u8; N], LaunchError<E>> {
    let (bytes, needed) = (args.len(), N);
    let refused = LaunchError::Length { bytes, needed };
    args.try_into().map_err(|_| refused)
}

fn gather<M: Addressed>(args: &PagesArgs, memory: &mut M) -> Launched<M> {
    let table = table(memory, args.table, args.pages.into())?;
    let job = PageCopy::from(args).gather(&table, ENDLESS, ENDLESS)?;
    is(*args, job.args(args.pool, args.staging, args.table)?)?;
    let mut cell = Vec::new();
    job.places().try_for_each(|(paged, dense)| {
        let (from, to) = (at(args.pool, paged), at(args.staging, dense));
        copy(memory, from, to, args.cell_bytes, &mut cell)
    })
}

fn scatter<M: Addressed>(args: &PagesArgs, memory: &mut M) -> Launched<M> {
    let table = table(memory, args.table, args.pages.into())?;
    let job = PageCopy::from(args).scatter(&table, ENDLESS, ENDLESS)?;
    is(*args, job.args(args.pool, args.staging, args.table)?)?;
    let mut cell = Vec::new();
    job.places().try_for_each(|(paged, dense)| {
        let (from, to) = (at(args.staging, dense), at(args.pool, paged));
        copy(memory, from, to, args.cell_bytes, &mut cell)
    })
}

fn reslice<M: Addressed>(args: &SlicesArgs, memory: &mut M) -> Launched<M> {
    let entries = |at: u64, first: u32, per_page: u32| {
        let end = u64::from(first) + u64::from(args.rows);
        let pages = end.div_ceil(u64::from(per_page.max(1)));
        (at != 0).then(|| table(memory, at, pages)).transpose()
    };
    let (src, dst) = (&args.src, &args.dst);
    let from = entries(src.table, src.first_row, src.page_rows)?;
    let to = entries(dst.table, dst.first_row, dst.page_rows)?;
    let shape = HeadSlices::from(args);
    let job = shape.between(from.as_deref(), ENDLESS, to.as_deref(), ENDLESS)?;
    is(*args, job.args(src.base, src.table, dst.base, dst.table)?)?;
    let mut run = Vec::new();
    job.each(|paged, dense| {
        let (from, to) = (at(src.base, paged), at(dst.base, dense));
        copy(memory, from, to, args.run_bytes, &mut run)
    })
}

/// By what the arguments say, as the kernel: they do not name the pool.
fn sum<M: Addressed>(args: &SumArgs, memory: &mut M) -> Launched<M> {
    let pages = (args.table != 0).then(|| table(memory, args.table, args.pages.into()));
    let pages = pages.transpose()?;
    let strides = Strides {
        layer: args.layer,
        page: args.page,
    };
    let mut sum = 0_u64;
    let mut cell = Vec::new();
    for layer in 0..args.layers {
        for nth in 0..args.pages {
            let page = pages.as_ref().map_or(nth, |table| table[nth as usize]);
            let offset = u64::from(layer).wrapping_mul(strides.layer);
            let offset = offset.wrapping_add(u64::from(page).wrapping_mul(strides.page));
            read(memory, at(args.pool, offset), args.cell_bytes, &mut cell)?;
            // A register that begins with zeros; the name stands in front.
            let register = !crc32c::crc32c_append(!0, &cell);
            let of_page = crc::times(args.first_page.wrapping_add(nth), args.page_factor);
            let of_layer = crc::times(args.first_layer.wrapping_add(layer), args.layer_factor);
            let checksum = register ^ of_page ^ of_layer ^ args.seed;
            sum = sum.wrapping_add(checksum.into());
        }
    }
    let mut word = [0; 8];
    memory
        .read(args.sum, &mut word)
        .map_err(LaunchError::Access)?;
    let word = u64::from_le_bytes(word).wrapping_add(sum).to_le_bytes();
    memory.write(args.sum, &word).map_err(LaunchError::Access)
}

fn at(base: u64, offset: u64) -> u64 {
    base.wrapping_add(offset)
}

/// The arguments are those that the checked job gives.
fn is<A: PartialEq, E>(args: A, given: A) -> Result<(), LaunchError<E>> {
    match args == given {
        true => Ok(()),
        false => Err(LaunchError::Arguments),
    }
}

fn table<M: Addressed>(
    memory: &M,
    at: u64,
    entries: u64,
) -> Result<Vec<u32>, LaunchError<M::Error>> {
    let mut bytes = Vec::new();
    read(memory, at, entries.saturating_mul(4), &mut bytes)?;
    let (words, _) = bytes.as_chunks();
    Ok(words.iter().map(|word| u32::from_le_bytes(*word)).collect())
}

fn read<M: Addressed>(
    memory: &M,
    at: u64,
    bytes: u64,
    into: &mut Vec<u8>,
) -> Result<(), LaunchError<M::Error>> {
    if let Some(last) = bytes.checked_sub(1) {
        // Before there is room for all of them, which may be more than any memory has.
        let last = at.wrapping_add(last);
        memory.read(last, &mut [0]).map_err(LaunchError::Access)?;
    }
    into.resize(usize::try_from(bytes).unwrap_or(usize::MAX), 0);
    memory.read(at, into).map_err(LaunchError::Access)
}

fn copy<M: Addressed>(
    memory: &mut M,
    from: u64,
    to: u64,
    bytes: u64,
    held: &mut Vec<u8>,
) -> Result<(), LaunchError<M::Error>> {
    read(memory, from, bytes, held)?;
    memory.write(to, held).map_err(LaunchError::Access)
}
