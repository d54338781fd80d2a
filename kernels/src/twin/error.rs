//! Why a job cannot be done.

use std::fmt;

/// Memory that a job reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Memory {
    /// The pool, or the source of a reslice.
    Source,
    /// The staging, or the destination of a reslice.
    Destination,
    /// A page table.
    Table,
    /// The word that a sum is added to.
    Sum,
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Memory::Source => "source",
            Memory::Destination => "destination",
            Memory::Table => "page table",
            Memory::Sum => "sum",
        })
    }
}

/// A job that would touch what it must not, or that a kernel cannot count. Nothing was touched;
/// whoever described the job must correct it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JobError {
    /// Bytes beyond the end would be touched.
    #[error("the {memory} has {bytes} bytes; the job needs {needed}")]
    Outside {
        /// Which memory.
        memory: Memory,
        /// Its length.
        bytes: u64,
        /// The length that the job needs; `u64::MAX` if it is more than that.
        needed: u64,
    },
    /// The page table has too few entries.
    #[error("the page table of the {memory} has {entries} entries; the job needs {needed}")]
    Table {
        /// Which memory the table is of.
        memory: Memory,
        /// Its entries.
        entries: usize,
        /// The entries that the job needs.
        needed: u64,
    },
    /// Two cells or runs that are written share bytes.
    #[error("the strides of the {memory} let two pieces that are written overlap")]
    Overlap {
        /// Which memory.
        memory: Memory,
    },
    /// A page without rows.
    #[error("a page of the {memory} has no rows; it must have at least 1")]
    NoRows {
        /// Which memory.
        memory: Memory,
    },
    /// A count is more than a kernel can count to.
    #[error("{what} is {value}; a kernel counts to {limit}: cut the job")]
    TooLarge {
        /// Which count.
        what: &'static str,
        /// What it is; `u64::MAX` if it is more than that.
        value: u64,
        /// The most that it may be.
        limit: u64,
    },
    /// An address that the kernel reads or writes in one access does not divide by its size.
    #[error("the {memory} is at {address:#x}, which is no multiple of {bytes}")]
    Unaligned {
        /// Which memory.
        memory: Memory,
        /// Where it is.
        address: u64,
        /// What the address must be a multiple of.
        bytes: u64,
    },
}
