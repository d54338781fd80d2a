use super::*;
use crate::cuda::SlicesArgs;

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
