//! Every violation, planted by hand in a store that does what it is told, must be found; a clean
//! run must find nothing.

use super::*;
use crate::memory::{Source, SourcePages};
use crate::pages::Pages;
use std::sync::atomic::{AtomicU32, Ordering};

const SHAPE: Shape = Shape {
    layers: 2,
    page_bytes: 64,
    page_tokens: 16,
    destination_pages: 4,
    source_pages: 4,
};

struct Bench {
    destination: Pages,
    source: Arc<Pages>,
    oracle: Oracle,
    sources: SourcePages,
}

fn stamps() -> Arc<Stamps> {
    Arc::new(Stamps::new([1; 16].into_iter(), SHAPE.source_pages))
}

impl Bench {
    fn new() -> Self {
        let destination = Pages::new(SHAPE.layers, SHAPE.destination_pages, SHAPE.page_bytes);
        let source = Pages::new(SHAPE.layers, SHAPE.source_pages, SHAPE.page_bytes);
        let source = Arc::new(source);
        let oracle = Oracle::new(SHAPE, stamps(), &destination);
        let sources = SourcePages::new(SHAPE, stamps(), source.clone());
        Bench {
            destination,
            source,
            oracle,
            sources,
        }
    }

    fn take(&self, claim: Claim, from: u32, to: u32) {
        self.oracle
            .destination_taken(claim, &[to], &self.destination);
        self.sources.lend(claim, 0, &[from]);
        self.oracle.placed(claim, 0, &[from]);
    }

    fn source_back(&self, page: u32) {
        self.sources.back(&[page]);
    }

    fn copy(&self, from: u32, to: u32) {
        for layer in 0..SHAPE.layers {
            self.copy_cell(layer, from, to);
        }
    }

    fn copy_cell(&self, layer: u32, from: u32, to: u32) {
        let mut cell = vec![0; SHAPE.page_bytes];
        self.source.read(layer, from, &mut cell);
        self.destination.write(layer, to, &cell);
    }

    fn found(&self) -> Findings {
        self.oracle
            .scan(0, SHAPE.destination_pages, &self.destination);
        self.oracle.findings()
    }
}

#[test]
fn a_clean_life_of_pages_finds_nothing_and_leaves_nothing_out() {
    let b = Bench::new();
    for claim in 1..4 {
        b.take(claim, 0, 1);
        assert_eq!(b.found(), Findings::default());
        b.copy_cell(0, 0, 1);
        assert_eq!(b.found(), Findings::default(), "half of it is there");
        b.copy_cell(1, 0, 1);
        b.source_back(0);
        b.oracle.destination_back(claim, &[1], true, &b.destination);
    }
    assert_eq!(b.found(), Findings::default());
    assert!(b.oracle.out().is_empty() && b.sources.out().is_empty());
}

#[test]
fn a_write_after_the_destination_went_back_is_late() {
    let b = Bench::new();
    b.take(1, 0, 1);
    b.oracle.destination_back(1, &[1], false, &b.destination);
    b.copy_cell(1, 0, 1);
    let found = b.found();
    assert_eq!((found.late_bytes, found.torn_reads), (64, 0));
    assert_eq!(b.found(), found, "looking twice does not count twice");
}

#[test]
fn a_late_write_is_found_when_the_page_changes_hands_before_the_next_scan() {
    let b = Bench::new();
    b.take(1, 0, 1);
    b.oracle.destination_back(1, &[1], false, &b.destination);
    b.copy_cell(0, 0, 1);
    b.oracle.destination_taken(2, &[1], &b.destination);
    assert_eq!(b.oracle.findings().late_bytes, 64);
}

#[test]
fn a_late_write_into_the_page_of_a_running_room_is_late() {
    let b = Bench::new();
    b.take(1, 0, 1);
    b.oracle.destination_back(1, &[1], false, &b.destination);
    b.take(2, 2, 1);
    b.copy_cell(0, 0, 1);
    b.copy_cell(1, 2, 1);
    let found = b.found();
    assert_eq!((found.late_bytes, found.torn_reads), (64, 0));
}

#[test]
fn reading_a_spoiled_source_into_ones_own_page_is_torn_and_not_late() {
    let b = Bench::new();
    b.take(1, 0, 1);
    b.copy_cell(0, 0, 1);
    b.source_back(0);
    b.copy_cell(1, 0, 1);
    let found = b.found();
    assert_eq!((found.late_bytes, found.torn_reads), (0, 1));
}

#[test]
fn reading_a_source_that_serves_the_next_room_already_is_torn() {
    let b = Bench::new();
    b.take(1, 0, 1);
    b.source_back(0);
    b.take(2, 0, 2);
    b.copy(0, 1);
    let found = b.found();
    assert_eq!((found.late_bytes, found.torn_reads), (0, 2));
}

#[test]
fn a_read_after_release_written_after_release_is_both() {
    let b = Bench::new();
    b.take(1, 0, 1);
    b.source_back(0);
    b.oracle.destination_back(1, &[1], false, &b.destination);
    b.copy_cell(0, 0, 1);
    let found = b.found();
    assert_eq!((found.late_bytes, found.torn_reads), (64, 1));
}

#[test]
fn the_next_rooms_own_bytes_in_a_reused_source_and_destination_are_fine() {
    let b = Bench::new();
    b.take(1, 0, 1);
    b.source_back(0);
    b.oracle.destination_back(1, &[1], false, &b.destination);
    b.take(2, 0, 1);
    b.copy(0, 1);
    b.oracle.destination_back(2, &[1], true, &b.destination);
    assert_eq!(b.found(), Findings::default());
}

#[test]
fn done_with_a_hole_is_missing_bytes() {
    let b = Bench::new();
    b.take(1, 0, 1);
    b.copy_cell(0, 0, 1);
    b.oracle.destination_back(1, &[1], true, &b.destination);
    assert_eq!(b.oracle.findings().missing_bytes, 64);
}

#[test]
fn a_single_strange_byte_is_found() {
    let b = Bench::new();
    let mut cell = vec![0; SHAPE.page_bytes];
    b.destination.read(0, 3, &mut cell);
    cell[17] ^= 1;
    b.destination.write(0, 3, &cell);
    assert_eq!(b.found().late_bytes, 8, "counted by the word");
}

/// Writes `first` of the source's bytes of word 2 over the poison, or the other way round.
fn cut_word(b: &Bench, bytes: usize, turned: bool) {
    let (mut cell, mut source) = (vec![0; SHAPE.page_bytes], vec![0; SHAPE.page_bytes]);
    b.destination.read(0, 1, &mut cell);
    b.source.read(0, 0, &mut source);
    let range = if turned {
        16 + bytes..24
    } else {
        16..16 + bytes
    };
    cell[range.clone()].copy_from_slice(&source[range]);
    b.destination.write(0, 1, &cell);
}

#[test]
fn a_word_that_the_stream_ended_in_is_the_owners_and_missing_if_it_is_done() {
    for bytes in 1..8 {
        let b = Bench::new();
        b.take(1, 0, 1);
        cut_word(&b, bytes, false);
        assert_eq!(b.found(), Findings::default(), "{bytes} bytes");
        b.copy_cell(1, 0, 1);
        b.oracle.destination_back(1, &[1], true, &b.destination);
        let found = b.oracle.findings();
        assert_eq!((found.late_bytes, found.missing_bytes), (0, 64));
    }
}

#[test]
fn zeros_are_the_owners_if_its_sender_was_aborted_and_else_are_late() {
    let zero = |b: &Bench| {
        let mut cell = vec![0; SHAPE.page_bytes];
        b.source.read(0, 0, &mut cell);
        cell[20..].fill(0);
        b.destination.write(0, 1, &cell);
    };
    let b = Bench::new();
    b.take(1, 0, 1);
    zero(&b);
    assert_eq!(b.found().late_bytes, 48);
    b.oracle.voided(1);
    assert_eq!(b.found(), Findings::default());
    b.oracle.destination_back(1, &[1], false, &b.destination);
    zero(&b);
    assert_eq!(b.found().late_bytes, 64, "its lease is back");
    b.oracle.destination_taken(2, &[1], &b.destination);
    zero(&b);
    assert_eq!(b.found().late_bytes, 128, "another room's page");
}

#[test]
fn a_word_that_ends_with_the_owners_bytes_and_does_not_begin_with_them_is_late() {
    let b = Bench::new();
    b.take(1, 0, 1);
    cut_word(&b, 3, true);
    assert_eq!(b.found().late_bytes, 8);
}

#[test]
fn a_word_that_a_stream_ended_in_after_the_page_went_back_is_late() {
    let b = Bench::new();
    b.take(1, 0, 1);
    b.oracle.destination_back(1, &[1], false, &b.destination);
    cut_word(&b, 4, false);
    assert_eq!(b.found().late_bytes, 8);
}

#[test]
fn a_lease_that_never_came_back_is_out() {
    let b = Bench::new();
    b.take(9, 0, 1);
    b.oracle.destination_back(9, &[1], false, &b.destination);
    assert_eq!(b.sources.out().get(&9), Some(&1));
    assert_eq!(b.oracle.out().get(&9), None);
}

#[test]
fn a_page_given_back_by_who_does_not_own_it_changes_nothing() {
    let b = Bench::new();
    b.take(1, 0, 1);
    b.oracle.destination_back(2, &[1], false, &b.destination);
    assert_eq!(b.oracle.out().get(&1), Some(&1));
}

/// Shows a word in the middle of a change, once.
struct Blurred {
    pages: Pages,
    blurs: AtomicU32,
}

impl PageStore for Blurred {
    fn read(&self, layer: u32, page: u32, into: &mut [u8]) {
        self.pages.read(layer, page, into);
        let left = self.blurs.load(Ordering::Relaxed);
        if layer == 0 && page == 1 && left > 0 {
            self.blurs.store(left - 1, Ordering::Relaxed);
            into[12] ^= 0xff;
        }
    }

    fn write(&self, layer: u32, page: u32, bytes: &[u8]) {
        self.pages.write(layer, page, bytes);
    }
}

#[test]
fn a_word_that_is_read_in_the_middle_of_a_change_is_read_again_before_it_counts() {
    let pages = || Pages::new(SHAPE.layers, SHAPE.destination_pages, SHAPE.page_bytes);
    for (blurs, late_bytes) in [(1, 0), (2, 8)] {
        let blurred = Blurred {
            pages: pages(),
            blurs: AtomicU32::new(0),
        };
        let oracle = Oracle::new(SHAPE, stamps(), &blurred);
        blurred.blurs.store(blurs, Ordering::Relaxed);
        oracle.scan(1, 1, &blurred);
        assert_eq!(
            oracle.findings().late_bytes,
            late_bytes,
            "blurred {blurs} times"
        );
    }
}
