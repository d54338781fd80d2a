//! One number over all cells of a claim, whatever the order and the cutting of the copies.
//!
//! ```text
//!   cell:   CRC32C( pool, layer, page as little-endian u32, then the cell's bytes )
//!   claim:  wrapping 64-bit sum of its cells
//! ```
//!
//! Both sides compute it over the bytes as they are laid out at the destination; which numbers name
//! `pool` and `page` is for both sides to agree on. It finds faults, not forgers: one flipped bit is
//! always found, two whole cells that changed places are missed about once in 10,000 (a CRC is
//! linear, so where the two bit patterns do not meet, the sum is the same).
//!
//! Where senders hold other parts of the model than the receiver, two of them may write one cell, and
//! none can sum it. Such a claim is summed by rows, which are the same on all sides:
//!
//! ```text
//!   row:    CRC32C( section, layer, plane, head as little-endian u32, granule as little-endian u64,
//!                   then the row's bytes )        layer, head, granule: of the model and the request
//!   claim:  wrapping 64-bit sum of its rows, and of the cell of its aux row
//! ```

use crate::plan::cube::RowName;

/// The checksum of one cell whose bytes are at hand in one slice.
#[must_use]
pub fn cell_checksum(pool: u32, layer: u32, page: u32, bytes: &[u8]) -> u64 {
    let mut cell = CellChecksum::new(pool, layer, page);
    cell.feed(bytes);
    cell.value()
}

/// The checksum of one cell whose bytes come in several pieces, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct CellChecksum {
    crc: u32,
}

impl CellChecksum {
    /// A cell of which no byte was fed yet.
    pub fn new(pool: u32, layer: u32, page: u32) -> Self {
        let mut head = [0u8; 12];
        head[0..4].copy_from_slice(&pool.to_le_bytes());
        head[4..8].copy_from_slice(&layer.to_le_bytes());
        head[8..12].copy_from_slice(&page.to_le_bytes());
        CellChecksum {
            crc: crc32c::crc32c(&head),
        }
    }

    /// Adds the next bytes of the cell.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.crc = crc32c::crc32c_append(self.crc, bytes);
    }

    /// The cell's checksum; at most `u32::MAX`.
    #[must_use]
    pub fn value(self) -> u64 {
        u64::from(self.crc)
    }
}

/// The sum over cells. Sums of disjoint sets of cells add up to the sum of their union.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Checksum {
    sum: u64,
}

impl Checksum {
    /// The sum over no cells.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a cell that was fed to its end.
    pub fn add(&mut self, cell: CellChecksum) {
        self.sum = self.sum.wrapping_add(cell.value());
    }

    /// Adds a cell whose bytes are at hand in one slice.
    pub fn add_cell(&mut self, pool: u32, layer: u32, page: u32, bytes: &[u8]) {
        self.sum = self
            .sum
            .wrapping_add(cell_checksum(pool, layer, page, bytes));
    }

    /// Adds a row whose bytes are at hand in one slice.
    pub fn add_row(&mut self, section: u32, name: RowName, bytes: &[u8]) {
        let RowName {
            layer,
            plane,
            head,
            granule,
        } = name;
        let mut prefix = [0u8; 24];
        let indices = [section, layer, plane, head];
        for (to, index) in prefix.chunks_exact_mut(4).zip(indices) {
            to.copy_from_slice(&index.to_le_bytes());
        }
        prefix[16..].copy_from_slice(&granule.to_le_bytes());
        let crc = crc32c::crc32c_append(crc32c::crc32c(&prefix), bytes);
        self.sum = self.sum.wrapping_add(u64::from(crc));
    }

    /// Adds the sum over other cells.
    pub fn merge(&mut self, other: Checksum) {
        self.sum = self.sum.wrapping_add(other.sum);
    }

    /// The number that goes on the wire.
    #[must_use]
    pub fn value(self) -> u64 {
        self.sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sum(cells: &[(u32, u32, u32, Vec<u8>)]) -> u64 {
        let mut sum = Checksum::new();
        for (pool, layer, page, bytes) in cells {
            sum.add_cell(*pool, *layer, *page, bytes);
        }
        sum.value()
    }

    #[test]
    fn a_cell_is_the_crc32c_of_its_name_and_bytes() {
        let mut flat = vec![1, 0, 0, 0, 2, 0, 0, 0, 0x04, 0x03, 0, 0];
        flat.extend_from_slice(b"123456789");
        assert_eq!(
            cell_checksum(1, 2, 0x304, b"123456789"),
            u64::from(crc32c::crc32c(&flat))
        );
        // The check value of CRC-32C; the name's twelve bytes are taken back by construction.
        assert_eq!(crc32c::crc32c(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn the_name_of_a_cell_counts() {
        let base = cell_checksum(0, 0, 0, b"bytes");
        assert_ne!(base, cell_checksum(1, 0, 0, b"bytes"));
        assert_ne!(base, cell_checksum(0, 1, 0, b"bytes"));
        assert_ne!(base, cell_checksum(0, 0, 1, b"bytes"));
    }

    #[test]
    fn two_pages_that_changed_places_are_noticed() {
        let right = [(0, 0, 0, vec![1; 64]), (0, 0, 1, vec![2; 64])];
        let swapped = [(0, 0, 0, vec![2; 64]), (0, 0, 1, vec![1; 64])];
        assert_ne!(sum(&right), sum(&swapped));
    }

    #[test]
    fn the_sum_wraps_instead_of_overflowing() {
        let mut sum = Checksum { sum: u64::MAX };
        sum.add_cell(0, 0, 0, b"x");
        assert_eq!(sum.value(), cell_checksum(0, 0, 0, b"x") - 1);
    }

    proptest! {
        #[test]
        fn order_and_cuts_do_not_matter(
            cells in proptest::collection::vec(
                (0u32..3, 0u32..4, 0u32..8, proptest::collection::vec(any::<u8>(), 1..40)), 1..12),
            cut in any::<prop::sample::Index>(),
            turn in any::<prop::sample::Index>(),
        ) {
            let mut turned = cells.clone();
            turned.rotate_left(turn.index(cells.len()));
            turned.reverse();
            prop_assert_eq!(sum(&cells), sum(&turned));

            let (first, rest) = turned.split_at(cut.index(turned.len()));
            let mut pieces = Checksum::new();
            for part in [first, rest] {
                let mut sub = Checksum::new();
                for (pool, layer, page, bytes) in part {
                    let mut cell = CellChecksum::new(*pool, *layer, *page);
                    let (a, b) = bytes.split_at(cut.index(bytes.len()));
                    cell.feed(a);
                    cell.feed(b);
                    sub.add(cell);
                }
                pieces.merge(sub);
            }
            prop_assert_eq!(sum(&cells), pieces.value());
        }

        #[test]
        fn one_flipped_bit_is_always_noticed(
            cells in proptest::collection::vec(
                (0u32..3, 0u32..4, 0u32..8, proptest::collection::vec(any::<u8>(), 1..40)), 1..12),
            which in any::<prop::sample::Index>(),
            at in any::<prop::sample::Index>(),
            bit in 0u8..8,
        ) {
            let mut flipped = cells.clone();
            let cell = &mut flipped[which.index(cells.len())].3;
            let at = at.index(cell.len());
            cell[at] ^= 1 << bit;
            prop_assert_ne!(sum(&cells), sum(&flipped));
        }
    }
}
