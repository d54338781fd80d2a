//! Arithmetic on strides: how far a job reaches, and whether its pieces overlap.

use super::{JobError, Memory};

/// The most that a count may be, so that a kernel can add two of them in 32 bits.
pub(super) const COUNT: u64 = i32::MAX as u64;

/// Some number of equal pieces, each `stride` bytes after the one before.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dim {
    pub(super) stride: u64,
    pub(super) count: u64,
}

/// Checks that no count is more than [`COUNT`].
pub(super) fn counts(counts: &[(&'static str, u64)]) -> Result<(), JobError> {
    match counts.iter().find(|(_, value)| *value > COUNT) {
        None => Ok(()),
        Some((what, value)) => Err(JobError::TooLarge {
            what,
            value: *value,
            limit: COUNT,
        }),
    }
}

/// Bytes from the first byte of the first piece to behind the last byte of the last one; `u64::MAX`
/// if it is more than that. All counts are at least 1.
pub(super) fn reach(dims: &[Dim], piece: u64) -> u64 {
    dims.iter().fold(piece, |sum, dim| {
        sum.saturating_add(dim.stride.saturating_mul(dim.count - 1))
    })
}

/// Checks that pieces of `piece` bytes do not overlap: sorted by stride, each dimension has to step
/// over all that the smaller ones cover. Layouts that interleave in another way are refused, too.
pub(super) fn apart<const N: usize>(
    memory: Memory,
    mut dims: [Dim; N],
    piece: u64,
) -> Result<(), JobError> {
    dims.sort_unstable_by_key(|dim| dim.stride);
    let mut covered = piece;
    for dim in dims.into_iter().filter(|dim| dim.count > 1) {
        if dim.stride < covered {
            return Err(JobError::Overlap { memory });
        }
        covered = reach(&[dim], covered);
    }
    Ok(())
}

/// Checks that a memory has the bytes that are needed. No memory has the `u64::MAX` of a reach that
/// cannot be said.
pub(super) fn within(memory: Memory, bytes: u64, needed: u64) -> Result<(), JobError> {
    if needed <= bytes && needed < u64::MAX {
        return Ok(());
    }
    Err(JobError::Outside {
        memory,
        bytes,
        needed,
    })
}

/// Checks that an address divides by the size of an access.
pub(super) fn aligned(memory: Memory, address: u64, bytes: u64) -> Result<(), JobError> {
    if address.is_multiple_of(bytes) {
        return Ok(());
    }
    Err(JobError::Unaligned {
        memory,
        address,
        bytes,
    })
}

/// A part of a slice; the error of a slice that is shorter than the job was checked for.
pub(super) fn part(memory: Memory, all: &[u8], at: u64, bytes: u64) -> Result<&[u8], JobError> {
    let end = at.saturating_add(bytes);
    usize::try_from(at)
        .ok()
        .zip(usize::try_from(end).ok())
        .and_then(|(at, end)| all.get(at..end))
        .ok_or(JobError::Outside {
            memory,
            bytes: all.len() as u64,
            needed: end,
        })
}

/// The same of a slice that is written.
pub(super) fn part_mut(
    memory: Memory,
    all: &mut [u8],
    at: u64,
    bytes: u64,
) -> Result<&mut [u8], JobError> {
    let len = all.len() as u64;
    let end = at.saturating_add(bytes);
    usize::try_from(at)
        .ok()
        .zip(usize::try_from(end).ok())
        .and_then(|(at, end)| all.get_mut(at..end))
        .ok_or(JobError::Outside {
            memory,
            bytes: len,
            needed: end,
        })
}
