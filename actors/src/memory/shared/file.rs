//! Files that a caller has, and the files beside them.
//!
//! Rules: a path is opened once and never followed over a symbolic link; what is there is looked at
//! through the descriptor; it is large enough and all of it is allocated before it is mapped. So
//! nothing that is found at registration ends in a SIGBUS, whatever the path names.

use super::error::SharedError;
use super::memory::enough_memory;
use super::sys::{self, Filesystem};
use super::{FileOptions, HugePages, SharedMemory, SharedOptions};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Opens a caller's file that is to hold `bytes` bytes, and maps so many of it.
pub(crate) fn open_pool(
    path: &Path,
    bytes: usize,
    options: &FileOptions,
) -> Result<SharedMemory, SharedError> {
    let file = open(path, options.create)?;
    let what = path.display().to_string();
    let found = length(&file, &what)?;
    if found < bytes as u64 && !(options.create && found == 0) {
        return Err(SharedError::TooSmall {
            what,
            needed: bytes as u64,
            found,
        });
    }
    allocate(&file, &what, bytes as u64)?;
    let shared = SharedOptions {
        huge: options.huge,
        numa_node: options.numa_node,
    };
    let mut memory = SharedMemory::of_file(file.into(), bytes, &what, &shared)?;
    if options.huge != HugePages::Off {
        memory.gather(options.huge);
    }
    Ok(memory)
}

/// Opens a file to read and write, and makes it, of this user alone, if that is wanted.
pub(super) fn open(path: &Path, create: bool) -> Result<File, SharedError> {
    let opened = OpenOptions::new()
        .read(true)
        .write(true)
        .create(create)
        .mode(0o600)
        // Not blocking, should it be a pipe or a device.
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path);
    let file = match opened {
        Ok(file) => file,
        Err(e) => return Err(not_opened(path, e)),
    };
    let what = path.display().to_string();
    let kind = file
        .metadata()
        .map_err(|e| SharedError::of(&what, 0, "fstat", e))?
        .file_type();
    if kind.is_file() {
        return Ok(file);
    }
    let found = match () {
        () if kind.is_dir() => "a directory",
        () if kind.is_fifo() => "a pipe",
        () if kind.is_char_device() || kind.is_block_device() => "a device",
        () => "something else",
    };
    Err(SharedError::NotAFile {
        path: path.to_owned(),
        found,
    })
}

/// Makes a file that was not there before, of this user alone, with `bytes` zeroed bytes.
pub(super) fn create_new(path: &Path, bytes: u64) -> Result<File, SharedError> {
    let what = path.display().to_string();
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .map_err(|e| SharedError::of(&what, bytes, "open", e))?;
    match allocate(&file, &what, bytes) {
        Ok(()) => Ok(file),
        Err(why) => {
            let _ = std::fs::remove_file(path);
            Err(why)
        }
    }
}

/// Gives an open file one more name.
pub(super) fn link(fd: BorrowedFd<'_>, path: &Path) -> Result<(), SharedError> {
    let what = path.display().to_string();
    sys::link(fd, path).map_err(|e| SharedError::of(&what, 0, "linkat", e))
}

/// Has the first `bytes` bytes be there; grows the file if it is shorter.
pub(super) fn allocate(file: &File, what: &str, bytes: u64) -> Result<(), SharedError> {
    let there = file
        .metadata()
        .map_or(0, |m| m.blocks().saturating_mul(512));
    if sys::filesystem(file.as_fd()).is_ok_and(|f| f == Filesystem::Tmpfs) {
        enough_memory(what, bytes.saturating_sub(there))?;
    }
    sys::posix_allocate(file.as_fd(), 0, bytes)
        .map_err(|e| SharedError::of(what, bytes, "posix_fallocate", e))
}

pub(super) fn length(file: &File, what: &str) -> Result<u64, SharedError> {
    match file.metadata() {
        Ok(m) => Ok(m.len()),
        Err(e) => Err(SharedError::of(what, 0, "fstat", e)),
    }
}

fn not_opened(path: &Path, error: io::Error) -> SharedError {
    let found = match error.raw_os_error() {
        Some(libc::ELOOP) => "a symbolic link",
        Some(libc::EISDIR) => "a directory",
        Some(libc::ENXIO) => "a socket or a device",
        _ => return SharedError::of(&path.display().to_string(), 0, "open", error),
    };
    SharedError::NotAFile {
        path: path.to_owned(),
        found,
    }
}
