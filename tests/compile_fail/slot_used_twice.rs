//! A slot takes one chunk.
use kvroom::{Chunk, Slot};

fn two(slot: Slot<'_>, a: Chunk, b: Chunk) {
    let _first = slot.push(a);
    let _second = slot.push(b);
}

fn main() {}
