use super::*;
use crate::checksum::Checksum;

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

#[test]
fn a_sum_has_an_address_that_divides_by_8() {
    let job = SUM.over(None, 99).unwrap();
    assert!(job.args(1, 1, 8).is_ok(), "it has no table");
    assert_eq!(
        job.args(1, 1, 12),
        Err(JobError::Unaligned {
            memory: Memory::Sum,
            address: 12,
            bytes: 8
        })
    );
}
