//! The yardstick: one thread that copies the same pages between two plain buffers.

use super::workload::Workload;
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Two buffers in the layout of the workload's pools, and the request's slots on both sides.
pub(crate) struct Yardstick {
    source: Vec<u8>,
    destination: Vec<u8>,
    /// Byte offsets of (source, destination), layer by layer in request order.
    offsets: Vec<(usize, usize)>,
    page_bytes: usize,
}

impl Yardstick {
    /// Allocates and touches every page of both buffers.
    pub(crate) fn new(w: &Workload) -> Yardstick {
        let bytes = w.pool_bytes() as usize;
        let page_bytes = w.page_bytes as usize;
        let (from, to) = (w.source_slots(), w.destination_slots());
        let at = |layer: u32, slot: u32| {
            (layer as usize * w.pool_pages as usize + slot as usize) * page_bytes
        };
        let offsets = (0..w.layers)
            .flat_map(|l| {
                from.iter()
                    .zip(&to)
                    .map(move |(&s, &d)| (at(l, s), at(l, d)))
            })
            .collect();
        // Filled with something else than zero: a zeroed vector has no memory behind it yet.
        Yardstick {
            source: vec![0x5a; bytes],
            destination: vec![1; bytes],
            offsets,
            page_bytes,
        }
    }

    /// Copies the request once and says how long it took.
    pub(crate) fn run(&mut self) -> Duration {
        let started = Instant::now();
        for &(from, to) in &self.offsets {
            let page = &self.source[from..from + self.page_bytes];
            self.destination[to..to + self.page_bytes].copy_from_slice(page);
        }
        black_box(&mut self.destination);
        started.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exactly_the_destination_slots_are_written_in_every_layer() {
        let w = super::super::workload::find("a_32x64x16K").unwrap();
        let w = Workload {
            layers: 3,
            page_bytes: 64,
            ..w
        };
        let mut yardstick = Yardstick::new(&w);
        yardstick.run();
        let slots = w.destination_slots();
        for (i, page) in yardstick.destination.chunks(64).enumerate() {
            let slot = i as u32 % w.pool_pages;
            let expect = if slots.contains(&slot) { 0x5a } else { 1 };
            assert!(page.iter().all(|&b| b == expect), "page {i}");
        }
    }
}
