//! The command line.

use clap::{Parser, ValueEnum};
use std::path::PathBuf;

/// What is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// A GPU, by the CUDA driver
    Cuda,
    /// Threads and host memory
    Emulated,
}

impl Kind {
    /// As it is said on the command line.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Kind::Cuda => "cuda",
            Kind::Emulated => "emulated",
        }
    }
}

/// Which steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Part {
    /// Everything
    All,
    /// The kernels against their twins
    Correct,
    /// What is measured
    Speed,
}

/// A wrong that the emulated device really does, to see that it is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Plant {
    /// Every gather also changes the byte before its staging
    WrongByte,
    /// No gather ends
    NoEnd,
}

/// Checks this machine's GPU: each kernel against its host twin, then how fast, in one table.
#[derive(Clone, Debug, Parser)]
#[command(name = "gpu_check", version, long_about = None, after_help = "\
Exit codes: 0 all that was checked is right and within its bars; 1 a wrong byte, a bar that was missed, or a \
step that failed or did not end; 2 the command line cannot be used; 3 there is no such device.")]
pub(crate) struct Options {
    /// What is checked
    #[arg(long, value_enum, default_value_t = Kind::Cuda)]
    pub(crate) device: Kind,
    /// Number of the device, as the driver counts
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) ordinal: u32,
    /// Compiled kernels, PTX or a cubin; without it they are compiled here, by NVRTC
    #[arg(long, value_name = "FILE")]
    pub(crate) code: Option<PathBuf>,
    /// Which steps
    #[arg(long, value_enum, default_value_t = Part::All)]
    pub(crate) part: Part,
    /// Random shapes of each kernel
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) shapes: u32,
    /// Seed of the shapes, the bytes and the page tables
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Small sizes, and no bars: shows that the measurements run, not how fast anything is. The emulated
    /// device has small sizes in any case
    #[arg(long)]
    pub(crate) small: bool,
    /// Seconds for everything; what has not begun by then is not run, and that is a failure
    #[arg(long, value_name = "N", default_value_t = 220, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(crate) seconds: u64,
    /// The compute-sanitizer to use; without it the one on the PATH, if there is one
    #[arg(long, value_name = "FILE")]
    pub(crate) sanitizer: Option<PathBuf>,
    /// Print the source of the kernels, for a compiler, and nothing else
    #[arg(long)]
    pub(crate) print_source: bool,
    /// Do something wrong on purpose; of the emulated device only
    #[arg(long, value_enum)]
    pub(crate) plant: Option<Plant>,
}

impl Options {
    /// What cannot go together.
    pub(crate) fn conflict(&self) -> Option<&'static str> {
        let is_real = self.device == Kind::Cuda;
        (self.plant.is_some() && is_real).then_some("--plant is for --device emulated")
    }

    /// Whether memories are small.
    pub(crate) fn is_small(&self) -> bool {
        self.small || self.device == Kind::Emulated
    }
}
