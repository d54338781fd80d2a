//! Memory that several processes map: a sealed memfd, or a file.
//!
//! ```text
//!   create   memfd ─▶ size ─▶ map ─▶ NUMA node ─▶ huge pages ─▶ allocate ─▶ seal
//!   receive  another's memfd: sealed against shrinking? large enough? ─▶ map
//! ```
//!
//! Rules:
//! - All of it is allocated before anybody uses it: too little memory is an error here and now, and
//!   no SIGBUS later. A memfd cannot shrink afterwards, whoever has its descriptor.
//! - A file cannot be sealed. Who makes one a pool answers for nobody truncating it.
//! - What is made here is held by this process: no other, nor this one, makes a pool of it by another name.
//! - It is unmapped when the last owner is gone, and never in a child of fork, where it is not mapped.

use super::error::SharedError;
use super::file;
use super::former;
use super::hold::{HeldBy, Hold};
use super::map::{HUGE_PAGE, Mapping};
use super::past::{self, Beside};
use super::sys::{self, Filesystem};
use super::{HugePages, SharedOptions};
use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What is allocated by one call, so that a signal does not make the call begin again for ever.
const STEP: u64 = 64 << 20;
/// How long [`HugePages::Auto`] may take to gather huge pages.
const GATHER: Duration = Duration::from_secs(1);
/// The longest part of a name that the system takes.
const NAME: usize = 200;

/// Memory that other processes may map too.
pub(crate) struct SharedMemory {
    mapping: Mapping,
    fd: OwnedFd,
    len: usize,
    huge: bool,
    /// Where it is recorded, if it outlives this process.
    beside: Beside,
    /// What keeps everybody else from making a pool of it.
    hold: Mutex<Option<Hold>>,
}

impl SharedMemory {
    /// `bytes` zeroed bytes in a memfd named `kvroom:NAME`, all allocated, of a size that nobody can
    /// change any more.
    ///
    /// # Errors
    ///
    /// [`SharedError::NoRoom`] with the size if there is not as much; [`SharedError::NoSuchNode`].
    pub(crate) fn create(
        name: &str,
        bytes: usize,
        options: &SharedOptions,
    ) -> Result<SharedMemory, SharedError> {
        let what = format!("kvroom:{name}");
        check_node(options.numa_node)?;
        enough_memory(&what, bytes as u64)?;
        if options.huge != HugePages::Off
            && let Some(memory) = SharedMemory::reserved(&what, bytes, options)
        {
            return Ok(memory);
        }
        let fd =
            memfd(&what, 0).map_err(|e| SharedError::of(&what, bytes as u64, "memfd_create", e))?;
        let mut memory = SharedMemory::place(fd, bytes, bytes, options.numa_node)
            .map_err(|(call, e)| SharedError::of(&what, bytes as u64, call, e))?;
        memory.gather(options.huge);
        memory
            .allocate_and_seal(bytes)
            .map_err(|(call, e)| SharedError::of(&what, bytes as u64, call, e))?;
        memory.hold_new();
        Ok(memory)
    }

    /// Another's memfd.
    ///
    /// # Errors
    ///
    /// [`SharedError::NotSealed`] if it could shrink, [`SharedError::TooSmall`].
    pub(crate) fn receive(fd: OwnedFd, bytes: usize) -> Result<SharedMemory, SharedError> {
        // Fails for anything that is no memory, such as a file of a filesystem that may stall.
        let sealed = sys::seals(fd.as_fd()).is_ok_and(|seals| seals & sys::SEAL_SHRINK != 0);
        if !sealed {
            return Err(SharedError::NotSealed {
                what: name_of(fd.as_fd()),
            });
        }
        SharedMemory::received(fd, bytes)
    }

    /// Another's file. It cannot be sealed: it must not be truncated while this is mapped.
    ///
    /// # Errors
    ///
    /// [`SharedError::TooSmall`]; [`SharedError::NotAFile`].
    pub(crate) fn receive_file(fd: OwnedFd, bytes: usize) -> Result<SharedMemory, SharedError> {
        let fd = File::from(fd);
        let kind = fd.metadata().map(|m| m.file_type());
        if !kind.is_ok_and(|kind| kind.is_file()) {
            return Err(SharedError::NotAFile {
                path: name_of(fd.as_fd()).into(),
                found: "something else",
            });
        }
        SharedMemory::received(fd.into(), bytes)
    }

    /// Maps a file of this process, which has that many bytes.
    pub(super) fn of_file(
        file: OwnedFd,
        bytes: usize,
        what: &str,
        options: &SharedOptions,
    ) -> Result<SharedMemory, SharedError> {
        check_node(options.numa_node)?;
        SharedMemory::place(file, bytes, bytes, options.numa_node)
            .map_err(|(call, e)| SharedError::of(what, bytes as u64, call, e))
    }

    /// A sealed memfd of which nothing is allocated, as an engine may have made it.
    #[cfg(test)]
    pub(crate) fn sparse(name: &str, bytes: u64) -> OwnedFd {
        let file = File::from(memfd(name, 0).unwrap());
        file.set_len(bytes).unwrap();
        sys::seal(file.as_fd()).unwrap();
        file.into()
    }

    /// Has this process be the only one that makes something of this memory, until it is released or
    /// goes. `path` is for the error.
    ///
    /// # Errors
    ///
    /// [`SharedError::Attached`] with the process that has it, by whatever name: this one, too.
    pub(crate) fn hold(&self, path: &Path) -> Result<(), SharedError> {
        let what = || path.display().to_string();
        match Hold::take(self.fd()).map_err(|e| SharedError::of(&what(), 0, "lock", e))? {
            Ok(hold) => {
                *self.held() = Some(hold);
                Ok(())
            }
            Err(HeldBy(pid)) => Err(SharedError::Attached {
                path: path.to_owned(),
                pid,
            }),
        }
    }

    /// Which memory this is, by whatever name.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn identity(&self, path: &Path) -> Result<u64, SharedError> {
        let what = || path.display().to_string();
        former::identity(self.fd()).map_err(|e| SharedError::of(&what(), 0, "fstat", e))
    }

    /// Lets others make a pool of it, though it is mapped here still.
    pub(crate) fn release(&self) {
        // In a child of fork the lock is the parent's.
        if self.is_mapped()
            && let Some(hold) = self.held().take()
        {
            hold.release();
        }
    }

    fn held(&self) -> MutexGuard<'_, Option<Hold>> {
        self.hold.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As [`SharedMemory::hold`], of memory that nobody else can have yet. Where the system has no such
    /// locks it is not held, and nobody can make a pool of it either: that needs the lock.
    pub(super) fn hold_new(&self) {
        if let Ok(Ok(hold)) = Hold::take(self.fd()) {
            *self.held() = Some(hold);
        }
    }

    /// Has all of it be there, should its maker have left holes. What it holds stays.
    ///
    /// # Errors
    ///
    /// [`SharedError::NoRoom`] with the size if there is not as much.
    pub(crate) fn allocate(&self, what: &str) -> Result<(), SharedError> {
        let fd = self.fd().try_clone_to_owned();
        let file = File::from(fd.map_err(|e| SharedError::of(what, 0, "dup", e))?);
        file::allocate(&file, what, self.len as u64)
    }

    /// Where it is recorded as a gate table.
    pub(super) fn beside(&self) -> &Beside {
        &self.beside
    }

    /// What is sent to another process, so that it maps the same memory.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Where it begins here: at a page, and at a huge page if it is as large as one.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.mapping.start()
    }

    /// Whether it is there: not in a child of fork of the process that mapped it.
    pub(crate) fn is_mapped(&self) -> bool {
        self.mapping.is_here()
    }

    /// How many bytes may be used.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Has the system put it into huge pages, as far as it does.
    pub(super) fn gather(&mut self, huge: HugePages) {
        self.huge = match huge {
            HugePages::Auto => self.gather_huge(GATHER),
            HugePages::Always => self.gather_huge(Duration::MAX),
            HugePages::Off => false,
        };
    }

    /// Whether at least half of it was in huge pages when it was made.
    pub(crate) fn is_huge(&self) -> bool {
        self.huge
    }

    /// The word at `offset`; `None` outside, or if that is no multiple of 8.
    pub(crate) fn word(&self, offset: usize) -> Option<&AtomicU64> {
        if offset.checked_add(size_of::<u64>())? > self.len {
            return None;
        }
        self.mapping.word(offset)
    }

    fn received(fd: OwnedFd, bytes: usize) -> Result<SharedMemory, SharedError> {
        let file = File::from(fd);
        let what = name_of(file.as_fd());
        let system = |call| {
            let what = what.clone();
            move |e| SharedError::of(&what, bytes as u64, call, e)
        };
        let found = file.metadata().map_err(system("fstat"))?.len();
        if bytes == 0 || found < bytes as u64 {
            return Err(SharedError::TooSmall {
                what,
                needed: bytes.max(1) as u64,
                found,
            });
        }
        let filesystem = sys::filesystem(file.as_fd()).map_err(system("fstatfs"))?;
        let (map, huge) = match filesystem {
            // Mapped in whole pages of its own, of which the file has a whole number.
            Filesystem::Huge(page) => (bytes.next_multiple_of(page as usize), true),
            _ => (bytes, false),
        };
        let mut memory = SharedMemory::place(file.into(), bytes, map, None)
            .map_err(|(call, e)| SharedError::of(&what, bytes as u64, call, e))?;
        memory.huge = huge;
        let _ = memory.advise_huge();
        Ok(memory)
    }

    /// Of pages that the machine's keeper reserved, if the size fits and enough are free.
    fn reserved(what: &str, bytes: usize, options: &SharedOptions) -> Option<SharedMemory> {
        let info = fs::read_to_string("/proc/meminfo").ok()?;
        let page = usize::try_from(field(&info, "Hugepagesize:")?).ok()?;
        let free = field_of(&info, "HugePages_Free:")?;
        if page == 0 || !bytes.is_multiple_of(page) || ((bytes / page) as u64) > free {
            return None;
        }
        let fd = memfd(what, sys::HUGETLB).ok()?;
        let mut memory = SharedMemory::place(fd, bytes, bytes, options.numa_node).ok()?;
        memory.allocate_and_seal(bytes).ok()?;
        memory.hold_new();
        memory.huge = true;
        Some(memory)
    }

    /// Sizes the file if it is empty, and maps it.
    fn place(
        fd: OwnedFd,
        bytes: usize,
        map: usize,
        node: Option<u32>,
    ) -> Result<SharedMemory, (&'static str, io::Error)> {
        let file = File::from(fd);
        if file.metadata().map_err(|e| ("fstat", e))?.len() == 0 {
            file.set_len(bytes as u64).map_err(|e| ("ftruncate", e))?;
        }
        let mapping = Mapping::of(file.as_fd(), map).map_err(|e| ("mmap", e))?;
        if let Some(node) = node {
            mapping.prefer_node(node).map_err(|e| ("mbind", e))?;
        }
        Ok(SharedMemory {
            mapping,
            fd: file.into(),
            len: bytes,
            huge: false,
            beside: Beside::default(),
            hold: Mutex::default(),
        })
    }

    fn allocate_and_seal(&self, bytes: usize) -> Result<(), (&'static str, io::Error)> {
        let end = bytes as u64;
        let mut at = 0;
        while at < end {
            let step = STEP.min(end - at);
            sys::allocate(self.fd(), at, step).map_err(|e| ("fallocate", e))?;
            at += step;
        }
        sys::seal(self.fd()).map_err(|e| ("fcntl(F_ADD_SEALS)", e))
    }

    fn advise_huge(&self) -> io::Result<()> {
        self.mapping
            .advise(0, self.mapping.len(), libc::MADV_HUGEPAGE)
    }

    /// Has the system make huge pages of it, for as long as it may take; whether half of it is.
    ///
    /// Many systems give shared memory none by themselves (`shmem_enabled`), and do when asked so.
    /// One costs milliseconds where memory is in pieces.
    fn gather_huge(&self, at_most: Duration) -> bool {
        if self.mapping.len() < HUGE_PAGE || self.advise_huge().is_err() {
            return false;
        }
        let begun = Instant::now();
        let mut at = 0;
        while at + HUGE_PAGE <= self.mapping.len() && begun.elapsed() < at_most {
            // Something must be there to be gathered; the rest of it need not be copied then.
            let gathered = sys::allocate(self.fd(), at as u64, 1)
                .and_then(|()| self.mapping.advise(at, HUGE_PAGE, libc::MADV_COLLAPSE));
            if gathered.is_err() {
                break;
            }
            at += HUGE_PAGE;
        }
        at >= self.mapping.len() / 2
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        self.release();
        if self.is_mapped() {
            let recorded = self.beside.take();
            if !recorded.is_empty() {
                past::leave(recorded, self);
            }
        }
    }
}

impl std::fmt::Debug for SharedMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedMemory")
            .field("bytes", &self.len)
            .field("huge", &self.huge)
            .finish_non_exhaustive()
    }
}

/// A memfd that nobody can make executable, where the kernel has that.
fn memfd(what: &str, flags: libc::c_uint) -> io::Result<OwnedFd> {
    let name: Vec<u8> = what.bytes().filter(|b| *b != 0).take(NAME).collect();
    let name = CString::new(name).unwrap_or_default();
    match sys::memfd(&name, flags | sys::NOEXEC_SEAL) {
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => sys::memfd(&name, flags),
        other => other,
    }
}

/// Whether the machine has so much memory that is not in use. Without asking, the system would give
/// what it has not, and end some process for it.
pub(super) fn enough_memory(what: &str, bytes: u64) -> Result<(), SharedError> {
    let Ok(info) = fs::read_to_string("/proc/meminfo") else {
        return Ok(());
    };
    let Some(available) = field(&info, "MemAvailable:") else {
        return Ok(());
    };
    let available = available.saturating_add(field(&info, "SwapFree:").unwrap_or(0));
    if bytes <= available {
        return Ok(());
    }
    Err(SharedError::NoRoom {
        what: what.to_owned(),
        bytes,
        why: format!("{available} bytes are available"),
    })
}

fn check_node(node: Option<u32>) -> Result<(), SharedError> {
    match node {
        Some(node) if !has_memory(node) => Err(SharedError::NoSuchNode(node)),
        _ => Ok(()),
    }
}

fn has_memory(node: u32) -> bool {
    let path = format!("/sys/devices/system/node/node{node}/meminfo");
    let info = fs::read_to_string(path).unwrap_or_default();
    // Lines begin with the node's name here.
    let total = info.lines().find_map(|l| l.split_once("MemTotal:"));
    total.is_some_and(|(_, rest)| !rest.trim_start().starts_with("0 "))
}

/// A field of `/proc/meminfo` that is in kB, in bytes.
fn field(info: &str, name: &str) -> Option<u64> {
    field_of(info, name)?.checked_mul(1024)
}

fn field_of(info: &str, name: &str) -> Option<u64> {
    let line = info.lines().find_map(|l| l.strip_prefix(name))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

/// What a descriptor is of, for errors.
pub(crate) fn name_of(fd: BorrowedFd<'_>) -> String {
    use std::os::fd::AsRawFd;
    fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).map_or_else(
        |_| "the memory".into(),
        |p| p.to_string_lossy().into_owned(),
    )
}
