//! Why there is no UCX: who is at fault, and what to do.

use crate::version::{LEAST, Version};
use std::path::PathBuf;

/// Why [`Ucx::open`](crate::Ucx::open) gave no library. Nothing else is affected: what does not need UCX
/// goes on without.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The linker found none, or could not load what it found.
    #[error(
        "UCX could not be opened as {}: {why}; install it (Debian: `apt-get install libucx0`; or \
         `pip install libucx-cu12`, and give the path of its libucp.so.0 as ucx.library)",
        tried.display()
    )]
    Absent {
        /// The name or path that was asked for.
        tried: PathBuf,
        /// What the linker said.
        why: String,
    },
    /// A library, but not this one.
    #[error("{} is not UCX: it has no ucp_get_version; ucx.library is to name a libucp.so.0", library.display())]
    NotUcx {
        /// The library.
        library: PathBuf,
    },
    /// Older than any that works.
    #[error(
        "{} is UCX {found}, which is too old: {least} or later is needed; install a later one (or `pip install \
         libucx-cu12`), and give the path of its libucp.so.0 as ucx.library",
        library.display()
    )]
    TooOld {
        /// The library.
        library: PathBuf,
        /// What it says it is.
        found: Version,
        /// The oldest that works.
        least: Version,
    },
    /// Another major version, whose structures and functions need not be those that are declared.
    #[error(
        "{} is UCX {found}, and this program is for UCX {}.x; give the path of such a libucp.so.0 as ucx.library",
        library.display(),
        LEAST.major
    )]
    OtherMajor {
        /// The library.
        library: PathBuf,
        /// What it says it is.
        found: Version,
    },
    /// Not all of it is there.
    #[error(
        "{} says that it is UCX {version} and has no {symbol}; install UCX again, or give another one as ucx.library",
        library.display()
    )]
    MissingSymbol {
        /// The library.
        library: PathBuf,
        /// The first function that was looked for in vain.
        symbol: &'static str,
        /// What it says it is.
        version: Version,
    },
    /// Parts of two installations. The linker takes libraries that are loaded already by their name, so
    /// this comes of an engine in this process that has opened another UCX before.
    #[error(
        "{} has come to use {}, which is of another UCX: something in this process loaded that before; give the \
         path of the libucp.so.0 beside it as ucx.library, or open that one everywhere",
        ucp.display(),
        ucs.display()
    )]
    Mixed {
        /// Where `libucp` is.
        ucp: PathBuf,
        /// Where the functions of `libucs` are.
        ucs: PathBuf,
    },
}
