//! Wrong things on purpose, so that an oracle can be shown to notice them. Not part of any build of
//! the library or the program.
#![allow(unsafe_code)] // Touches pages that nobody leased to it.

use super::pool::Pool;

/// Writes into a page without any lease or gate, as a lane that forgot both would. Out-of-range
/// cells are ignored.
///
/// The bytes are stored one by one with volatile stores, so that only the pages are wrong and not
/// the program: what it breaks is the contract, at the memory that devices share anyway.
pub fn write_late(pool: &Pool, layer: u32, page: u32, bytes: &[u8]) {
    let Some((start, len)) = pool.memory().cell(layer, page) else {
        return;
    };
    for (i, byte) in bytes.iter().take(len).enumerate() {
        // SAFETY: `i` is less than the length of the cell, which lies within the memory.
        let to = unsafe { start.add(i) };
        // SAFETY: writable as long as the pool lives. Racing with the page's owner is the point.
        unsafe { to.write_volatile(*byte) };
    }
}
