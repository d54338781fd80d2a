//! The CUDA kernels as data: their source, how it is compiled, and how each is launched.
//!
//! ```text
//!   SOURCE ──NVRTC, OPTIONS──▶ PTX or cubin, cached by the caller
//!                                  │
//!   job (twin::…) ──addresses──▶ args ──▶ launch: blocks(multiprocessors) × THREADS
//! ```
//!
//! Nothing of CUDA is needed to build this. What a kernel does is specified by its host twin
//! ([`crate::twin`]); a job of there has checked that every address lies in the memory that was
//! named, and gives the arguments.
//!
//! # Compiling
//!
//! [`SOURCE`] is one translation unit without includes. NVRTC takes [`OPTIONS`] and
//! `--gpu-architecture=compute_NN` (PTX) or `sm_NN` (cubin), where `NN` is the device's compute
//! capability; 80 is the oldest that is tested. Names are looked up by [`Kernel::entry`]
//! (`extern "C"`). There is no floating point in it, so `--fmad` and its like change nothing.
//! `__restrict__` is not used: a lane issues all loads of a batch before its first store, which is
//! all that the promise would win, and a wrong promise would be undefined behaviour.
//!
//! # Launching
//!
//! A grid of [`blocks`] blocks of [`THREADS`] threads (any multiple of 32 up to that is right), one
//! dimension, no dynamic shared memory, one parameter: the arguments by value. They are
//! `#[repr(C)]` without padding, so a pointer to the struct is what `cuLaunchKernel` wants;
//! `bytes()` is the same in little-endian. The number of blocks does not depend on the work: each warp goes on until
//! nothing is left, and a job without work returns at once.

mod args;

pub use args::{PagesArgs, SliceSide, SlicesArgs, SumArgs};

/// The source of all kernels.
pub const SOURCE: &str = concat!(
    "#line 1 \"prelude.cuh\"\n",
    include_str!("../cuda/prelude.cuh"),
    "#line 1 \"copy_cells.cuh\"\n",
    include_str!("../cuda/copy_cells.cuh"),
    "#line 1 \"gather_pages.cu\"\n",
    include_str!("../cuda/gather_pages.cu"),
    "#line 1 \"scatter_pages.cu\"\n",
    include_str!("../cuda/scatter_pages.cu"),
    "#line 1 \"reslice_heads.cu\"\n",
    include_str!("../cuda/reslice_heads.cu"),
    "#line 1 \"checksum_pages.cu\"\n",
    include_str!("../cuda/checksum_pages.cu"),
);

/// Options for NVRTC, beside the architecture.
pub const OPTIONS: &[&str] = &["--std=c++17"];

/// Threads of a block, for all kernels.
pub const THREADS: u32 = 256;

/// Blocks that a multiprocessor holds at once, for all kernels: 64 registers a thread at most.
pub const BLOCKS_PER_MULTIPROCESSOR: u32 = 4;

/// One kernel of [`SOURCE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kernel {
    /// Pages of a pool into staging; takes [`PagesArgs`].
    GatherPages,
    /// Staging into pages of a pool; takes [`PagesArgs`].
    ScatterPages,
    /// Head slices between two shapes of page; takes [`SlicesArgs`].
    ResliceHeads,
    /// The sum over the checksums of cells; takes [`SumArgs`].
    ChecksumPages,
}

impl Kernel {
    /// All kernels.
    pub const ALL: [Kernel; 4] = [
        Kernel::GatherPages,
        Kernel::ScatterPages,
        Kernel::ResliceHeads,
        Kernel::ChecksumPages,
    ];

    /// Its name in the compiled module.
    #[must_use]
    pub const fn entry(self) -> &'static str {
        match self {
            Kernel::GatherPages => "gather_pages",
            Kernel::ScatterPages => "scatter_pages",
            Kernel::ResliceHeads => "reslice_heads",
            Kernel::ChecksumPages => "checksum_pages",
        }
    }
}

/// Blocks to launch on a device with this many multiprocessors; at least 1.
///
/// As many as run at once. Fewer leave room for the engine's own kernels and are right, too.
#[must_use]
pub const fn blocks(multiprocessors: u32) -> u32 {
    match multiprocessors.saturating_mul(BLOCKS_PER_MULTIPROCESSOR) {
        0 => 1,
        blocks => blocks,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_is_in_the_source_once() {
        for kernel in Kernel::ALL {
            let head = format!("KVROOM_KERNEL {}(", kernel.entry());
            assert_eq!(SOURCE.matches(&head).count(), 1, "{head}");
        }
    }

    #[test]
    fn the_source_names_the_same_launch_as_this_module() {
        assert!(SOURCE.contains(&format!("THREADS = {THREADS},")));
        let bounds = format!("__launch_bounds__(THREADS, {BLOCKS_PER_MULTIPROCESSOR})");
        assert!(SOURCE.contains(&bounds));
    }

    #[test]
    fn a_grid_has_at_least_one_block() {
        assert_eq!(blocks(0), 1);
        assert_eq!(blocks(132), 528);
    }
}
