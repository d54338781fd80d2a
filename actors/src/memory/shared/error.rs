//! Why there is no shared memory.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// An error of the system, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        io::Error::from_raw_os_error(self.0).fmt(f)
    }
}

impl From<io::Error> for Errno {
    fn from(error: io::Error) -> Self {
        // An error without a number is one that the standard library made of a short read.
        Errno(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

/// Why there is no shared memory. `what` is the path of a file, or the name of a memfd.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SharedError {
    /// The system or the filesystem has not as much.
    #[error("there is no room for {bytes} bytes of {what}: {why}; free some, or ask for less")]
    NoRoom {
        /// What was to hold them.
        what: String,
        /// How many were asked for.
        bytes: u64,
        /// The system's answer, or how much there is.
        why: String,
    },
    /// It is smaller than what is to be in it.
    #[error("{what} has {found} bytes and {needed} are needed")]
    TooSmall {
        /// Which memory.
        what: String,
        /// Bytes needed.
        needed: u64,
        /// Bytes that it has.
        found: u64,
    },
    /// Whoever gave it could take it away under us.
    #[error(
        "{what} is not sealed against shrinking: whoever shares memory must seal it before others map it"
    )]
    NotSealed {
        /// Which memory.
        what: String,
    },
    /// The path names something else than a file.
    #[error("{} is {found} and not a file", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
        /// What is there.
        found: &'static str,
    },
    /// This machine has no such node.
    #[error("this machine has no NUMA node {0} with memory")]
    NoSuchNode(u32),
    /// The system refused a call.
    #[error("{call} of {what} failed: {errno}")]
    System {
        /// Which memory.
        what: String,
        /// The call.
        call: &'static str,
        /// The system's answer.
        errno: Errno,
    },
    /// A runtime has the memory already, by this name or another one: as a pool, or for something else.
    #[error(
        "{} is in use by {}, perhaps by another name or descriptor: stop it, or drop its pool, before another attaches",
        path.display(), who(*pid)
    )]
    Attached {
        /// The file.
        path: PathBuf,
        /// Who has it; 0 if it cannot be named from here.
        pid: u32,
    },
    /// The file beside a pool's file, which tells of its previous life, cannot be used.
    #[error("{}: {why}", path.display())]
    Companion {
        /// The companion file.
        path: PathBuf,
        /// What is wrong, and what to do.
        why: String,
    },
}

fn who(pid: u32) -> String {
    match pid {
        0 => "a process that cannot be named from here".into(),
        pid if pid == std::process::id() => format!("process {pid}, which is this one"),
        pid => format!("process {pid}, which is alive"),
    }
}

impl SharedError {
    /// The failure of a call. No memory and no room are told apart from the rest.
    pub(super) fn of(what: &str, bytes: u64, call: &'static str, error: io::Error) -> SharedError {
        let errno = Errno::from(error);
        match errno.0 {
            libc::ENOSPC | libc::ENOMEM | libc::EDQUOT | libc::EFBIG => SharedError::NoRoom {
                what: what.to_owned(),
                bytes,
                why: errno.to_string(),
            },
            _ => SharedError::System {
                what: what.to_owned(),
                call,
                errno,
            },
        }
    }
}
