//! Code for a device, and how it is started.

use super::backend::{Handle, Kind, RawArg};
use super::context::Inner;
use super::memory::{Source, Target};
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

/// Code for a device. What it does with the addresses it is given is its own promise: whoever makes
/// one of these vouches that its kernels stay within the ranges of their arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Code {
    /// PTX, compiled by the driver.
    Ptx(Vec<u8>),
    /// A cubin for exactly this architecture.
    Cubin(Vec<u8>),
    /// CUDA C++, compiled when it is loaded.
    Source(Program),
}

/// Source of kernels. Their names are to be `extern "C"`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// What it is called in errors.
    pub name: String,
    /// CUDA C++.
    pub source: String,
    /// Options of the compiler, without the architecture.
    pub options: Vec<String>,
}

/// The shape of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Blocks.
    pub grid: (u32, u32, u32),
    /// Threads of a block.
    pub block: (u32, u32, u32),
    /// Dynamic shared memory of a block, in bytes.
    pub shared_bytes: u32,
}

impl Launch {
    /// So many blocks of so many threads, in one dimension.
    #[must_use]
    pub fn line(blocks: u32, threads: u32) -> Self {
        Launch {
            grid: (blocks, 1, 1),
            block: (threads, 1, 1),
            shared_bytes: 0,
        }
    }
}

/// One argument of a kernel.
#[derive(Clone, Debug)]
pub struct Arg<'q> {
    pub(super) raw: RawArg,
    /// Whose memory it is.
    pub(super) kind: Option<Kind>,
    lives: PhantomData<fn(&'q ()) -> &'q ()>,
}

impl<'q> Arg<'q> {
    /// Memory that the kernel only reads.
    #[must_use]
    pub fn source(source: Source<'q>) -> Self {
        Self::of(RawArg::Address(source.address()), Some(source.kind()))
    }

    /// Memory that the kernel writes.
    #[must_use]
    pub fn target(target: Target<'q>) -> Self {
        Self::of(RawArg::Address(target.address()), Some(target.kind()))
    }

    /// A number of 32 bits.
    #[must_use]
    pub fn u32(value: u32) -> Self {
        Self::of(RawArg::U32(value), None)
    }

    /// A number of 64 bits.
    #[must_use]
    pub fn u64(value: u64) -> Self {
        Self::of(RawArg::U64(value), None)
    }

    /// A structure that the kernel takes by value, as its bytes. Addresses in it are those of ranges
    /// that this closure has ([`Target::address`]), and of no others.
    #[must_use]
    pub fn bytes(bytes: &[u8]) -> Self {
        Self::of(RawArg::Bytes(bytes.into()), None)
    }

    fn of(raw: RawArg, kind: Option<Kind>) -> Self {
        Arg {
            raw,
            kind,
            lives: PhantomData,
        }
    }
}

/// Code that is on a device. It stays there as long as one of its kernels does.
#[derive(Clone)]
pub struct Module {
    loaded: Arc<Loaded>,
}

struct Loaded {
    context: Arc<Inner>,
    module: Handle,
}

impl Drop for Loaded {
    fn drop(&mut self) {
        let freed = self.context.backend.unload(self.module);
        self.context.freed(freed);
    }
}

impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Module").finish_non_exhaustive()
    }
}

impl Module {
    pub(super) fn new(context: Arc<Inner>, module: Handle) -> Self {
        Module {
            loaded: Arc::new(Loaded { context, module }),
        }
    }

    /// One of its kernels.
    ///
    /// # Errors
    ///
    /// [`NoSuchKernel`](super::DeviceError::NoSuchKernel), or what the driver says.
    pub fn kernel(&self, name: &str) -> super::backend::Result<Kernel> {
        let Loaded { context, module } = &*self.loaded;
        let handle = context.note(context.backend.kernel(*module, name))?;
        Ok(Kernel {
            handle,
            module: self.clone(),
        })
    }
}

/// A kernel that can be launched.
#[derive(Clone, Debug)]
pub struct Kernel {
    pub(super) handle: Handle,
    module: Module,
}

impl Kernel {
    /// Whether it was loaded into this context.
    pub(super) fn is_of(&self, context: &Arc<Inner>) -> bool {
        Arc::ptr_eq(&self.module.loaded.context, context)
    }
}
