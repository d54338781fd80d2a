//! A plan's grids as jobs of the kernel: they move what the plan's pieces do, and nothing else.

use super::property::Case;
use super::*;
use crate::cuda::Kernel;
use crate::plan::testing::Numbers;
use crate::twin::testing::{Host, noise, words};
use crate::twin::{GridError, GridSlices, JobError, Memory, launched, reslice_heads};
use proptest::prelude::*;

const SRC: u64 = 0x1000_0000;
const DST: u64 = 0x2000_0000;
const FROM: u64 = 0x3000_0000;
const TO: u64 = 0x4000_0000;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn jobs_of_a_plans_grids_move_what_its_pieces_do_and_nothing_else(seed in any::<u64>()) {
        let case = Case::new(seed);
        let (src_bytes, dst_bytes) = case.pool_bytes();
        let src = noise(seed, src_bytes);
        let before = noise(!seed, dst_bytes);
        let mut wanted = before.clone();
        for Piece { src: from, dst: to, bytes } in case.naive() {
            let (from, to, bytes) = (from as usize, to as usize, bytes as usize);
            wanted[to..to + bytes].copy_from_slice(&src[from..from + bytes]);
        }
        let mut by_twin = before.clone();
        let mut host = Host::new([
            (SRC, src.clone()),
            (DST, before),
            (FROM, words(&case.from.list)),
            (TO, words(&case.to.list)),
        ]);
        // In another order than they come in.
        for grid in case.plan().grids().iter().rev() {
            let slices = GridSlices::try_from(grid).unwrap();
            let (from, to) = (&case.from.list, &case.to.list);
            let job = slices.between(from, src_bytes, to, dst_bytes);
            let job = job.map_err(|error| TestCaseError::fail(format!("{error}: {grid:?}")))?;
            let [src_base, dst_base] = [slices.src.base, slices.dst.base].map(|at| at as usize);
            reslice_heads(&job, &src[src_base..], &mut by_twin[dst_base..]).unwrap();
            let table = |list: u64, first: usize| list + first as u64 * 4;
            let args = job.args(
                SRC + slices.src.base,
                table(FROM, slices.src.table.start),
                DST + slices.dst.base,
                table(TO, slices.dst.table.start),
            );
            launched(Kernel::ResliceHeads, &args.unwrap().bytes(), &mut host).unwrap();
        }
        prop_assert_eq!(&by_twin, &wanted, "{:?}", case);
        prop_assert_eq!(host.bytes(1), wanted, "{:?}", case);
        prop_assert_eq!(host.bytes(0), src, "{:?}", case);
    }

    #[test]
    fn pools_and_lists_that_are_shorter_than_a_grid_needs_are_refused(seed in any::<u64>()) {
        let case = Case::new(seed);
        let (src_bytes, dst_bytes) = case.pool_bytes();
        let (from, to) = (&case.from.list, &case.to.list);
        let n = &mut Numbers(seed);
        for grid in case.plan().grids() {
            let slices = GridSlices::try_from(&grid).unwrap();
            let ends = grid.ends(&case.from, &case.to);
            let src_end = ends.iter().map(|end| end.0).max().unwrap();
            let dst_end = ends.iter().map(|end| end.1).max().unwrap();
            let src_short = u64::from(n.among(1, src_end as u32));
            let refused = slices.between(from, src_end - src_short, to, dst_bytes).unwrap_err();
            let is_source = matches!(
                refused,
                GridError::Pool { memory: Memory::Source, .. }
                    | GridError::Job(JobError::Outside { memory: Memory::Source, .. })
            );
            prop_assert!(is_source, "{}", refused);
            let dst_short = u64::from(n.among(1, dst_end as u32));
            let refused = slices.between(from, src_bytes, to, dst_end - dst_short).unwrap_err();
            let is_destination = matches!(
                refused,
                GridError::Pool { memory: Memory::Destination, .. }
                    | GridError::Job(JobError::Outside { memory: Memory::Destination, .. })
            );
            prop_assert!(is_destination, "{}", refused);
            let fewer = &from[..slices.src.table.end - 1];
            let refused = slices.between(fewer, src_bytes, to, dst_bytes).unwrap_err();
            let wanted = GridError::List {
                memory: Memory::Source,
                entries: fewer.len(),
                start: slices.src.table.start,
                stop: slices.src.table.end,
            };
            prop_assert_eq!(refused, wanted);
        }
    }
}

impl Grid {
    /// Behind the last byte of each run: at the source, at the destination.
    fn ends(&self, from: &PageList, to: &PageList) -> Vec<(u64, u64)> {
        let mut all = Vec::new();
        let place = |side: &GridSide, list: &PageList, at: [u64; 4]| {
            let [layer, row, plane, head] = at;
            let flat = u64::from(side.first_row) + row;
            let page_rows = u64::from(side.page_rows);
            let page = list.list[side.table.start + (flat / page_rows) as usize];
            let inner = flat % page_rows * side.row + plane * side.plane + head * side.head;
            side.base + layer * side.layer + u64::from(page) * side.page + inner + self.run_bytes
        };
        for layer in 0..self.layers {
            for row in 0..self.rows {
                for plane in 0..self.planes {
                    for head in 0..self.heads {
                        let at = [layer, row, plane, head];
                        all.push((place(&self.src, from, at), place(&self.dst, to, at)));
                    }
                }
            }
        }
        all
    }
}

#[test]
fn a_count_that_the_kernel_does_not_have_is_refused_with_what_is_counted() {
    let src = kv(DimOrder::NHD, Share::part(4, 2, 2));
    let dst = kv(DimOrder::NHD, Share::whole(4));
    let mut grid = plan(&src, &dst, &[1, 2, 3], &[4, 5, 6], 0..10).grids()[0].clone();
    grid.rows = 1 << 33;
    let refused = GridSlices::try_from(&grid).unwrap_err();
    let wanted = GridError::Count {
        what: "rows",
        value: 1 << 33,
        limit: u64::from(u32::MAX),
    };
    assert_eq!(refused, wanted);
    assert!(refused.to_string().contains("8589934592 rows"), "{refused}");
    // What has 32 bits and is still too much is the job's to refuse.
    grid.rows = 1 << 31;
    let slices = GridSlices::try_from(&grid).unwrap();
    let refused = slices.between(&[1, 2, 3], 1 << 20, &[4, 5, 6], 1 << 20);
    assert!(matches!(
        refused.unwrap_err(),
        GridError::Job(JobError::TooLarge {
            what: "the last row",
            ..
        })
    ));
}
