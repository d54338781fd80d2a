use super::*;
use crate::checksum::Checksum;
use crate::cuda::SlicesArgs;

fn numbered(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| at as u8).collect()
}

const PAGES: PageCopy = PageCopy {
    layers: 2,
    cell_bytes: 2,
    // [page][layer] with 3 bytes a cell, and [layer][page] without gaps.
    pool: Strides { layer: 3, page: 6 },
    staging: Strides { layer: 6, page: 2 },
};

#[test]
fn gather_takes_cells_in_the_order_of_the_table() {
    let job = PAGES.gather(&[2, 0, 2], 18, 12).unwrap();
    let mut staging = [0xee; 12];
    gather_pages(&job, &numbered(18), &mut staging).unwrap();
    assert_eq!(staging, [12, 13, 0, 1, 12, 13, 15, 16, 3, 4, 15, 16]);
}

#[test]
fn scatter_puts_cells_where_the_table_says_and_leaves_the_rest() {
    let job = PAGES.scatter(&[1, 0], 18, 12).unwrap();
    let mut pool = [0xee; 18];
    scatter_pages(&job, &numbered(12), &mut pool).unwrap();
    let e = 0xee;
    assert_eq!(pool, [2, 3, e, 8, 9, e, 0, 1, e, 6, 7, e, e, e, e, e, e, e]);
}

#[test]
fn packed_staging_has_no_gaps() {
    let staging = PageCopy::packed(2, 3);
    assert_eq!(staging, PAGES.staging);
}

#[test]
fn bytes_beyond_the_end_are_refused_with_how_many_there_must_be() {
    let refused = |result: Result<Gather<'_>, JobError>| result.unwrap_err();
    assert_eq!(
        refused(PAGES.gather(&[2], 16, 12)),
        JobError::Outside {
            memory: Memory::Source,
            bytes: 16,
            needed: 17
        }
    );
    assert!(PAGES.gather(&[2], 17, 8).is_ok());
    assert_eq!(
        refused(PAGES.gather(&[2, 0], 17, 9)),
        JobError::Outside {
            memory: Memory::Destination,
            bytes: 9,
            needed: 10
        }
    );
    assert_eq!(
        PAGES.scatter(&[3], 22, 12).unwrap_err(),
        JobError::Outside {
            memory: Memory::Destination,
            bytes: 22,
            needed: 23
        }
    );
}

#[test]
fn a_reach_of_more_than_64_bits_is_refused() {
    let huge = PageCopy {
        pool: Strides {
            layer: u64::MAX,
            page: u64::MAX,
        },
        ..PAGES
    };
    assert_eq!(
        huge.gather(&[7], u64::MAX, 12).unwrap_err(),
        JobError::Outside {
            memory: Memory::Source,
            bytes: u64::MAX,
            needed: u64::MAX
        }
    );
}

#[test]
fn cells_that_are_written_must_not_overlap() {
    let over = PageCopy {
        staging: Strides { layer: 6, page: 1 },
        ..PAGES
    };
    assert_eq!(
        over.gather(&[0, 1], 99, 99).unwrap_err(),
        JobError::Overlap {
            memory: Memory::Destination
        }
    );
    // To read them twice is no harm, nor is a stride that is never used.
    assert!(over.scatter(&[0, 1], 99, 99).is_ok());
    assert!(over.gather(&[5], 99, 99).is_ok());
    // The layers lie in one another: the second one begins in the first one's last cell.
    let nested = PageCopy {
        staging: Strides { layer: 3, page: 2 },
        ..PAGES
    };
    assert!(nested.gather(&[0], 99, 99).is_ok());
    assert!(nested.gather(&[0, 1], 99, 99).is_err());
}

#[test]
fn copies_of_nothing_need_no_memory() {
    assert!(PAGES.gather(&[], 0, 0).is_ok());
    let no_layer = PageCopy { layers: 0, ..PAGES };
    assert!(no_layer.scatter(&[9], 0, 0).is_ok());
    let no_byte = PageCopy {
        cell_bytes: 0,
        ..PAGES
    };
    let job = no_byte.gather(&[9], 0, 0).unwrap();
    gather_pages(&job, &[], &mut []).unwrap();
}

#[test]
fn a_slice_that_is_shorter_than_was_checked_is_an_error() {
    let job = PAGES.gather(&[2, 0, 2], 18, 12).unwrap();
    let mut staging = [0; 12];
    assert_eq!(
        gather_pages(&job, &numbered(12), &mut staging),
        Err(JobError::Outside {
            memory: Memory::Source,
            bytes: 12,
            needed: 14
        })
    );
}

#[test]
fn a_table_has_an_address_that_divides_by_4_and_a_sum_one_by_8() {
    let job = PAGES.gather(&[0], 99, 99).unwrap();
    assert!(job.args(1, 3, 8).is_ok());
    let unaligned = |memory, address, bytes| JobError::Unaligned {
        memory,
        address,
        bytes,
    };
    assert_eq!(job.args(0, 0, 6), Err(unaligned(Memory::Table, 6, 4)));
    let sum = SUM.over(None, 99).unwrap();
    assert!(sum.args(1, 1, 8).is_ok(), "it has no table");
    assert_eq!(sum.args(1, 1, 12), Err(unaligned(Memory::Sum, 12, 8)));
}

/// One page of 4 tokens, 2 planes (K, V), 4 heads of 1 byte, as NHD; heads 2 and 3 of it.
const SLICES: HeadSlices = HeadSlices {
    layers: 1,
    rows: 4,
    planes: 2,
    heads: 2,
    run_bytes: 1,
    src: SliceShape {
        layer: 0,
        page: 32,
        row: 4,
        plane: 16,
        head: 1,
        page_rows: 4,
        first_row: 0,
    },
    // HND, with pages of 2 tokens.
    dst: SliceShape {
        layer: 0,
        page: 8,
        row: 1,
        plane: 4,
        head: 2,
        page_rows: 2,
        first_row: 0,
    },
};

#[test]
fn a_slice_of_heads_is_turned_from_nhd_into_hnd_with_smaller_pages() {
    let job = SLICES.between(None, 30, Some(&[2, 0]), 24).unwrap();
    let mut dst = [0xee; 24];
    reslice_heads(&job, &numbered(32)[2..], &mut dst).unwrap();
    // Tokens 0 and 1 in page 2, tokens 2 and 3 in page 0: K of head 2, K of head 3, V of both.
    assert_eq!(dst[16..24], [2, 6, 3, 7, 18, 22, 19, 23]);
    assert_eq!(dst[0..8], [10, 14, 11, 15, 26, 30, 27, 31]);
    assert_eq!(dst[8..16], [0xee; 8]);
}

#[test]
fn a_copy_may_begin_within_a_page_on_one_side() {
    let mut late = SLICES;
    late.rows = 2;
    late.dst.first_row = 1;
    let job = late.between(None, 30, Some(&[0, 1]), 16).unwrap();
    let mut dst = [0; 16];
    reslice_heads(&job, &numbered(32)[2..], &mut dst).unwrap();
    assert_eq!(dst, [0, 2, 0, 3, 0, 18, 0, 19, 6, 0, 7, 0, 22, 0, 23, 0]);
}

#[test]
fn a_reslice_outside_of_either_side_is_refused() {
    let outside = |memory, bytes, needed| JobError::Outside {
        memory,
        bytes,
        needed,
    };
    assert_eq!(
        SLICES.between(None, 29, None, 16).unwrap_err(),
        outside(Memory::Source, 29, 30)
    );
    assert_eq!(
        SLICES.between(None, 30, Some(&[2, 0]), 23).unwrap_err(),
        outside(Memory::Destination, 23, 24)
    );
    assert_eq!(
        SLICES.between(None, 30, Some(&[2]), 24).unwrap_err(),
        JobError::Table {
            memory: Memory::Destination,
            entries: 1,
            needed: 2
        }
    );
}

#[test]
fn the_last_page_needs_only_the_rows_that_are_used() {
    let mut short = SLICES;
    short.rows = 3;
    // Row 2 of 4: its V of head 3 is byte 16 + 8 + 1, counted from head 2.
    assert!(short.between(None, 26, None, 16).is_ok());
    assert!(short.between(None, 25, None, 16).is_err());
}

#[test]
fn runs_that_are_written_must_not_overlap_and_pages_must_have_rows() {
    let mut over = SLICES;
    over.dst.head = 1;
    assert_eq!(
        over.between(None, 30, None, 99).unwrap_err(),
        JobError::Overlap {
            memory: Memory::Destination
        }
    );
    let mut flat = SLICES;
    flat.src.page_rows = 0;
    assert_eq!(
        flat.between(None, 30, None, 16).unwrap_err(),
        JobError::NoRows {
            memory: Memory::Source
        }
    );
}

#[test]
fn what_a_kernel_cannot_count_is_refused() {
    let mut many = SLICES;
    many.dst.first_row = u32::MAX;
    let too_large = |result: Result<Reslice<'_>, JobError>| match result.unwrap_err() {
        JobError::TooLarge { what, value, .. } => (what, value),
        other => panic!("{other}"),
    };
    assert_eq!(
        too_large(many.between(None, 30, None, 16)),
        ("the last row", u64::from(u32::MAX) + 4)
    );
    let mut wide = SLICES;
    wide.run_bytes = 1 << 31;
    assert_eq!(
        too_large(wide.between(None, 30, None, 16)),
        ("the bytes of a run", 1 << 31)
    );
    wide.run_bytes = 1 << 29;
    assert_eq!(
        too_large(wide.between(None, 30, None, 16)),
        ("the bytes copied between two pages", 1 << 32)
    );
}

#[test]
fn accesses_are_as_wide_as_every_used_stride_allows() {
    let args = |shape: &HeadSlices, src, dst| -> SlicesArgs {
        let job = shape.between(None, 1 << 20, None, 1 << 20).unwrap();
        job.args(src, 0, dst, 0).unwrap()
    };
    let mut wide = SLICES;
    wide.run_bytes = 48;
    for side in [&mut wide.src, &mut wide.dst] {
        (side.head, side.plane, side.row, side.page) = (64, 128, 256, 4096);
        // There is one layer only.
        side.layer = 1;
    }
    assert_eq!(args(&wide, 4096, 32).word_bytes, 16);
    assert_eq!(args(&wide, 4096, 8).word_bytes, 8);
    assert_eq!(args(&wide, 4095, 32).word_bytes, 1);
    wide.src.plane += 4;
    assert_eq!(args(&wide, 4096, 32).word_bytes, 4);
    wide.run_bytes = 46;
    assert_eq!(args(&wide, 4096, 32).word_bytes, 2);
}

#[test]
fn a_segment_is_the_rows_that_lie_in_one_page_on_both_sides_again_and_again() {
    let segment = |src: (u32, u32), dst: (u32, u32), rows| {
        let mut shape = SLICES;
        (shape.src.page_rows, shape.src.first_row) = src;
        (shape.dst.page_rows, shape.dst.first_row) = dst;
        shape.rows = rows;
        let job = shape.between(None, 1 << 20, None, 1 << 20).unwrap();
        job.args(0, 0, 0, 0).unwrap().segment_rows
    };
    assert_eq!(segment((4, 0), (2, 0), 9), 2);
    assert_eq!(segment((4, 0), (2, 1), 9), 1);
    assert_eq!(segment((4, 2), (2, 0), 9), 2);
    assert_eq!(segment((3, 0), (2, 0), 9), 1);
    assert_eq!(segment((4, 4), (2, 2), 1), 1);
}

const SUM: PageSum = PageSum {
    layers: 2,
    pages: 2,
    cell_bytes: 2,
    strides: Strides { layer: 3, page: 6 },
    pool: 9,
    first_layer: 4,
    first_page: 70,
};

#[test]
fn a_sum_names_pages_by_their_place_and_reads_them_by_the_table() {
    let mut expected = Checksum::new();
    expected.add_cell(9, 4, 70, &[6, 7]);
    expected.add_cell(9, 4, 71, &[0, 1]);
    expected.add_cell(9, 5, 70, &[9, 10]);
    expected.add_cell(9, 5, 71, &[3, 4]);
    let job = SUM.over(Some(&[1, 0]), 12).unwrap();
    assert_eq!(checksum_pages(&job, &numbered(12)), Ok(expected));
}

#[test]
fn a_sum_outside_of_its_memory_or_table_is_refused() {
    assert!(SUM.over(None, 11).is_ok());
    assert!(SUM.over(None, 10).is_err());
    assert!(SUM.over(Some(&[0, 2]), 11).is_err());
    assert_eq!(
        SUM.over(Some(&[0]), 99).unwrap_err(),
        JobError::Table {
            memory: Memory::Source,
            entries: 1,
            needed: 2
        }
    );
}

#[test]
fn names_of_cells_end_at_the_largest_number() {
    let mut last = SUM;
    last.first_page = u32::MAX - 1;
    let job = last.over(None, 99).unwrap();
    let mut expected = Checksum::new();
    for (layer, at) in [(4, 0u8), (5, 3)] {
        expected.add_cell(9, layer, u32::MAX - 1, &[at, at + 1]);
        expected.add_cell(9, layer, u32::MAX, &[at + 6, at + 7]);
    }
    assert_eq!(checksum_pages(&job, &numbered(99)), Ok(expected));
    last.first_page = u32::MAX;
    assert!(last.over(None, 99).is_err());
}
