//! Fuzz targets of memory that other processes write, or wrote; see `crate::fuzzing`.
#![allow(clippy::unwrap_used)] // As in tests: what fails here is a find.

mod companion;
mod gates;
mod ring;

pub use companion::companion;
pub use gates::gate_table;
pub use ring::ring;

use super::{HugePages, SharedMemory, SharedOptions};
use std::sync::atomic::Ordering;

/// Another mapping of `bytes` of it.
fn again(memory: &SharedMemory, bytes: usize) -> SharedMemory {
    let fd = memory.fd().try_clone_to_owned().unwrap();
    SharedMemory::receive(fd, bytes).unwrap()
}

fn memory(bytes: usize) -> SharedMemory {
    let options = SharedOptions {
        huge: HugePages::Off,
        numa_node: None,
    };
    SharedMemory::create("fuzzing", bytes, &options).unwrap()
}

/// What a peer writes, or wrote. Outside of the memory nothing.
fn put(memory: &SharedMemory, at: usize, value: u64) {
    if let Some(word) = memory.word(at) {
        word.store(value, Ordering::Relaxed);
    }
}
