//! Plain pages behind a lock per cell: the memory of the `shared-dict` engine, and of the
//! oracle's tests. A copy locks one source and one destination cell, in that order.

use crate::oracle::PageStore;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// `layers * pages` cells of `page_bytes` bytes.
pub(crate) struct Pages {
    pages: u32,
    cells: Vec<Mutex<Box<[u8]>>>,
}

impl Pages {
    /// Zeroed pages.
    pub(crate) fn new(layers: u32, pages: u32, page_bytes: usize) -> Self {
        let count = layers as usize * pages as usize;
        let cell = || Mutex::new(vec![0u8; page_bytes].into_boxed_slice());
        Pages {
            pages,
            cells: (0..count).map(|_| cell()).collect(),
        }
    }

    /// Copies one cell into another store's cell.
    pub(crate) fn copy_to(&self, layer: u32, from: u32, to: &Pages, to_page: u32) {
        if let (Some(source), Some(mut destination)) =
            (self.cell(layer, from), to.cell(layer, to_page))
        {
            destination.copy_from_slice(&source);
        }
    }

    fn cell(&self, layer: u32, page: u32) -> Option<MutexGuard<'_, Box<[u8]>>> {
        let index = layer as usize * self.pages as usize + page as usize;
        Some(
            self.cells
                .get(index)?
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
        )
    }
}

impl PageStore for Pages {
    fn read(&self, layer: u32, page: u32, into: &mut [u8]) {
        if let Some(cell) = self.cell(layer, page) {
            into.copy_from_slice(&cell);
        }
    }

    fn write(&self, layer: u32, page: u32, bytes: &[u8]) {
        if let Some(mut cell) = self.cell(layer, page) {
            cell.copy_from_slice(bytes);
        }
    }
}
