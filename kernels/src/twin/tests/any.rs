//! Shapes of any numbers: each is refused, or can be run on memory of the lengths it was checked for.

use super::*;
use proptest::prelude::*;

/// Small numbers, so that jobs are possible, and the largest ones, so that sums overflow.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![8 => 0u64..40, 1 => Just(u64::MAX), 1 => any::<u64>()]
}

fn small() -> impl Strategy<Value = u32> {
    prop_oneof![12 => 0u32..5, 1 => Just(u32::MAX), 1 => any::<u32>()]
}

fn side() -> impl Strategy<Value = SliceShape> {
    let strides = (number(), number(), number(), number(), number());
    (strides, small(), small()).prop_map(|(strides, page_rows, first_row)| {
        let (layer, page, row, plane, head) = strides;
        SliceShape {
            layer,
            page,
            row,
            plane,
            head,
            page_rows,
            first_row,
        }
    })
}

fn table() -> impl Strategy<Value = Vec<u32>> {
    proptest::collection::vec(small(), 0..6)
}

/// Runs a job on memory of these lengths, unless that is more than a test should have.
fn run(lengths: [u64; 2], job: impl FnOnce(&[u8], &mut [u8]) -> Result<(), JobError>) {
    if lengths.iter().all(|length| *length <= 4096) {
        let [src, dst] = lengths.map(|length| vec![0; length as usize]);
        let mut dst = dst;
        assert_eq!(job(&src, &mut dst), Ok(()));
    }
}

proptest! {
    #[test]
    fn any_shape_of_a_page_copy_is_refused_or_can_be_run(
        layers in small(),
        cell_bytes in number(),
        strides in (number(), number(), number(), number()),
        table in table(),
        lengths in (number(), number()),
    ) {
        let shape = PageCopy {
            layers,
            cell_bytes,
            pool: Strides { layer: strides.0, page: strides.1 },
            staging: Strides { layer: strides.2, page: strides.3 },
        };
        let (one, other) = (lengths.0.saturating_mul(9), lengths.1.saturating_mul(9));
        if let Ok(job) = shape.gather(&table, one, other) {
            prop_assert!(job.args(0, 0, 0).is_ok());
            run([one, other], |pool, staging| gather_pages(&job, pool, staging));
        }
        if let Ok(job) = shape.scatter(&table, one, other) {
            prop_assert!(job.args(0, 0, 0).is_ok());
            run([other, one], |staging, pool| scatter_pages(&job, staging, pool));
        }
    }

    #[test]
    fn any_shape_of_a_reslice_is_refused_or_can_be_run(
        counts in (small(), small(), small(), small()),
        run_bytes in number(),
        src in side(),
        dst in side(),
        src_table in proptest::option::of(table()),
        dst_table in proptest::option::of(table()),
        lengths in (number(), number()),
    ) {
        let (layers, rows, planes, heads) = counts;
        let shape = HeadSlices { layers, rows, planes, heads, run_bytes, src, dst };
        let (one, other) = (lengths.0.saturating_mul(9), lengths.1.saturating_mul(9));
        let (from, to) = (src_table.as_deref(), dst_table.as_deref());
        if let Ok(job) = shape.between(from, one, to, other) {
            prop_assert!(job.args(0, 0, 0, 0).is_ok());
            run([one, other], |src, dst| reslice_heads(&job, src, dst));
        }
    }

    #[test]
    fn any_shape_of_a_sum_is_refused_or_can_be_run(
        layers in small(),
        pages in small(),
        cell_bytes in number(),
        strides in (number(), number()),
        table in proptest::option::of(table()),
        names in (small(), small(), small()),
        length in number(),
    ) {
        let shape = PageSum {
            layers,
            pages,
            cell_bytes,
            strides: Strides { layer: strides.0, page: strides.1 },
            pool: names.0,
            first_layer: names.1,
            first_page: names.2,
        };
        let length = length.saturating_mul(9);
        if let Ok(job) = shape.over(table.as_deref(), length) {
            prop_assert!(job.args(0, 0, 0).is_ok());
            if u64::from(layers) * u64::from(pages) <= 4096 {
                run([length, 0], |pool, _| checksum_pages(&job, pool).map(|_| ()));
            }
        }
    }
}
