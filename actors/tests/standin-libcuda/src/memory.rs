//! Memory of the devices and pinned memory: pages of this process, which others can map.

use crate::event::{Event, SHARED};
use crate::state::{
    ILLEGAL_ADDRESS, INVALID_CONTEXT, INVALID_HANDLE, INVALID_VALUE, NO_MEMORY, State, lock,
};
use std::fs::{File, OpenOptions};
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr;
use std::sync::Arc;

const HANDLE: u32 = 0x6B76_6D65;
const EVENT: u32 = 0x6B76_6576;

/// One allocation, mapped until the last copy from or to it is over.
pub(crate) struct Mapping {
    pub(crate) at: u64,
    pub(crate) bytes: u64,
    file: File,
    /// Of another process.
    pub(crate) opened: bool,
}

impl Mapping {
    /// Zeroed memory that other processes can map.
    pub(crate) fn new(bytes: u64) -> Result<Self, u32> {
        // SAFETY: a name that ends with a zero byte.
        let fd = unsafe { libc::memfd_create(c"standin".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(NO_MEMORY);
        }
        // SAFETY: it has just been made, and nobody else has it.
        let file = unsafe { File::from_raw_fd(fd) };
        file.set_len(bytes).map_err(|_| NO_MEMORY)?;
        Mapping::of(file, bytes, false)
    }

    /// What another process needs to map it.
    fn handle(&self, kind: u32) -> [u8; 64] {
        let mut handle = [0; 64];
        handle[..4].copy_from_slice(&kind.to_le_bytes());
        handle[4..8].copy_from_slice(&std::process::id().to_le_bytes());
        handle[8..12].copy_from_slice(&self.file.as_raw_fd().to_le_bytes());
        handle[16..24].copy_from_slice(&self.bytes.to_le_bytes());
        handle
    }

    /// Maps what another process has exported.
    fn open(handle: &[u8; 64], kind: u32) -> Result<Self, u32> {
        let word = |at: usize| {
            let mut bytes = [0; 4];
            bytes.copy_from_slice(&handle[at..at + 4]);
            u32::from_le_bytes(bytes)
        };
        if word(0) != kind {
            return Err(INVALID_VALUE);
        }
        if word(4) == std::process::id() {
            return Err(INVALID_CONTEXT);
        }
        let path = format!("/proc/{}/fd/{}", word(4), word(8));
        let file = OpenOptions::new().read(true).write(true).open(path);
        let file = file.map_err(|_| INVALID_VALUE)?;
        let bytes = u64::from(word(16)) | u64::from(word(20)) << 32;
        if file.metadata().map_err(|_| INVALID_VALUE)?.len() != bytes {
            return Err(INVALID_VALUE);
        }
        Mapping::of(file, bytes, true)
    }

    fn of(file: File, bytes: u64, opened: bool) -> Result<Self, u32> {
        let length = usize::try_from(bytes).map_err(|_| NO_MEMORY)?;
        // SAFETY: a new mapping of a file that is open; nothing is there before.
        let at = unsafe {
            libc::mmap(
                ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if at == libc::MAP_FAILED {
            return Err(NO_MEMORY);
        }
        Ok(Mapping {
            at: at as u64,
            bytes,
            file,
            opened,
        })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `of` with this length, once; nobody has its address any more.
        unsafe { libc::munmap(self.at as *mut _, self.bytes as usize) };
    }
}

impl State {
    pub(crate) fn allocate(&self, bytes: u64) -> Result<u64, u32> {
        // More than any test has: refused before the kernel gives pages that are never there.
        if bytes == 0 || bytes > 1 << 40 {
            return Err(if bytes == 0 { INVALID_VALUE } else { NO_MEMORY });
        }
        let mapping = Mapping::new(bytes)?;
        let at = mapping.at;
        // What is in it is not zero, as on a device.
        // SAFETY: mapped just now with so many bytes, and nobody else has the address.
        unsafe { ptr::write_bytes(at as *mut u8, 0xA5, bytes as usize) };
        lock(&self.memory).insert(at, Arc::new(mapping));
        Ok(at)
    }

    pub(crate) fn free(&self, at: u64, opened: bool) -> Result<(), u32> {
        let mut memory = lock(&self.memory);
        match memory.get(&at) {
            Some(mapping) if mapping.opened == opened => {
                memory.remove(&at);
                Ok(())
            }
            _ => Err(INVALID_VALUE),
        }
    }

    /// The mapping that a range is in.
    pub(crate) fn find(&self, at: u64, bytes: u64) -> Result<Arc<Mapping>, u32> {
        let memory = lock(&self.memory);
        let (base, mapping) = memory.range(..=at).next_back().ok_or(ILLEGAL_ADDRESS)?;
        let end = (at - base).checked_add(bytes).ok_or(ILLEGAL_ADDRESS)?;
        match end <= mapping.bytes {
            true => Ok(Arc::clone(mapping)),
            false => Err(ILLEGAL_ADDRESS),
        }
    }

    /// Copies bytes between two ranges that are there.
    pub(crate) fn copy(&self, to: u64, from: u64, bytes: u64) -> Result<(), u32> {
        let _target = self.find(to, bytes)?;
        let _source = self.find(from, bytes)?;
        // SAFETY: both ranges are within mappings that are held until the end of this. That nobody
        // has a slice of them is the promise of who queued the copy, as with the driver.
        unsafe { ptr::copy(from as *const u8, to as *mut u8, bytes as usize) };
        Ok(())
    }

    /// What another process needs to map the allocation that `at` is in.
    pub(crate) fn handle(&self, at: u64) -> Result<[u8; 64], u32> {
        let mapping = self.find(at, 1).map_err(|_| INVALID_VALUE)?;
        Ok(mapping.handle(HANDLE))
    }

    /// Maps what another process has exported.
    pub(crate) fn open(&self, handle: &[u8; 64]) -> Result<u64, u32> {
        let mapping = Mapping::open(handle, HANDLE)?;
        let at = mapping.at;
        lock(&self.memory).insert(at, Arc::new(mapping));
        Ok(at)
    }
}

/// What another process needs to wait for an event.
pub(crate) fn event_handle(event: &Event) -> Result<[u8; 64], u32> {
    match event.mapping() {
        Some(mapping) if !mapping.opened => Ok(mapping.handle(EVENT)),
        _ => Err(INVALID_HANDLE),
    }
}

/// An event that another process has exported.
pub(crate) fn open_event(handle: &[u8; 64]) -> Result<Event, u32> {
    let mapping = Mapping::open(handle, EVENT)?;
    match mapping.bytes == SHARED {
        true => Ok(Event::shared(mapping)),
        false => Err(INVALID_VALUE),
    }
}
