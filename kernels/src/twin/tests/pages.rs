use super::*;

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
fn a_table_has_an_address_that_divides_by_4() {
    let job = PAGES.gather(&[0], 99, 99).unwrap();
    assert!(job.args(1, 3, 8).is_ok());
    assert_eq!(
        job.args(0, 0, 6),
        Err(JobError::Unaligned {
            memory: Memory::Table,
            address: 6,
            bytes: 4
        })
    );
}
