//! Launches by the bytes of their arguments do what the twins do.

use super::*;
use crate::cuda::Kernel;
use crate::twin::testing::{Host, noise, words};
use proptest::prelude::*;

const POOL: u64 = 0x10_0007;
const STAGING: u64 = 0x20_0003;
const TABLE: u64 = 0x30_0000;
const SUM: u64 = 0x40_0000;

fn host(pool: &[u8], staging: &[u8], table: &[u32]) -> Host {
    Host::new([
        (POOL, pool.to_vec()),
        (STAGING, staging.to_vec()),
        (TABLE, words(table)),
        (SUM, 5_u64.to_le_bytes().to_vec()),
    ])
}

fn cells() -> impl Strategy<Value = (PageCopy, Vec<u32>)> {
    let table = proptest::collection::vec(0u32..12, 0..8);
    let gaps = (0u64..5, 0u64..5, 0u64..5);
    (0u32..4, 0u64..40, gaps, table).prop_map(|(layers, cell_bytes, gaps, mut table)| {
        table.sort_unstable();
        table.dedup();
        table.reverse();
        let page = cell_bytes + gaps.0;
        let dense = cell_bytes + gaps.1;
        let shape = PageCopy {
            layers,
            cell_bytes,
            pool: Strides {
                layer: page * 12 + gaps.2,
                page,
            },
            staging: Strides {
                layer: dense * 8,
                page: dense,
            },
        };
        (shape, table)
    })
}

proptest! {
    #[test]
    fn a_launch_does_to_cells_what_its_twin_does((shape, table) in cells()) {
        let (pool, staging) = (noise(1, 3000), noise(2, 3000));
        let gather = shape.gather(&table, 3000, 3000).unwrap();
        let mut memory = host(&pool, &staging, &table);
        let args = gather.args(POOL, STAGING, TABLE).unwrap().bytes();
        prop_assert_eq!(launched(Kernel::GatherPages, &args, &mut memory), Ok(()));
        let mut wanted = staging.clone();
        gather_pages(&gather, &pool, &mut wanted).unwrap();
        prop_assert_eq!((memory.bytes(0), memory.bytes(1)), (pool.clone(), wanted));

        let scatter = shape.scatter(&table, 3000, 3000).unwrap();
        let mut memory = host(&pool, &staging, &table);
        let args = scatter.args(POOL, STAGING, TABLE).unwrap().bytes();
        prop_assert_eq!(launched(Kernel::ScatterPages, &args, &mut memory), Ok(()));
        let mut wanted = pool;
        scatter_pages(&scatter, &staging, &mut wanted).unwrap();
        prop_assert_eq!((memory.bytes(0), memory.bytes(1)), (wanted, staging));
    }

    #[test]
    fn a_launch_adds_to_the_word_what_its_twin_sums(
        (shape, table) in cells(),
        names in (any::<u32>(), 0u32..9, 0u32..9),
        with_table in any::<bool>(),
    ) {
        let pool = noise(3, 3000);
        let sum = PageSum {
            layers: shape.layers,
            pages: table.len() as u32,
            cell_bytes: shape.cell_bytes,
            strides: shape.pool,
            pool: names.0,
            first_layer: names.1,
            first_page: names.2,
        };
        let job = sum.over(with_table.then_some(&table[..]), 3000).unwrap();
        let mut memory = host(&pool, &[], &table);
        let args = job.args(POOL, TABLE, SUM).unwrap().bytes();
        prop_assert_eq!(launched(Kernel::ChecksumPages, &args, &mut memory), Ok(()));
        let wanted = checksum_pages(&job, &pool).unwrap().value().wrapping_add(5);
        prop_assert_eq!(memory.bytes(3), wanted.to_le_bytes().to_vec());
    }
}

#[test]
fn a_launch_that_leaves_its_memory_is_refused_where_it_does() {
    let shape = PageCopy {
        layers: 1,
        cell_bytes: 4,
        pool: Strides { layer: 0, page: 4 },
        staging: Strides { layer: 0, page: 4 },
    };
    let table = [0, 2, 1];
    let job = shape.gather(&table, 12, 12).unwrap();
    let args = job.args(POOL, STAGING, TABLE).unwrap();
    let run = |pool: usize, staging: usize, table: &[u32]| {
        let mut memory = host(&vec![0; pool], &vec![0; staging], table);
        launched(Kernel::GatherPages, &args.bytes(), &mut memory)
    };
    assert_eq!(run(12, 12, &table), Ok(()));
    assert_eq!(run(11, 12, &table), Err(LaunchError::Access(POOL + 11)));
    assert_eq!(run(12, 11, &table), Err(LaunchError::Access(STAGING + 8)));
    assert_eq!(run(12, 12, &[0, 2]), Err(LaunchError::Access(TABLE + 11)));
}

#[test]
fn arguments_that_no_job_gives_are_refused() {
    let shape = HeadSlices {
        layers: 1,
        rows: 4,
        planes: 1,
        heads: 2,
        run_bytes: 4,
        src: SliceShape {
            layer: 0,
            page: 32,
            row: 8,
            plane: 0,
            head: 4,
            page_rows: 4,
            first_row: 0,
        },
        dst: SliceShape {
            layer: 0,
            page: 32,
            row: 4,
            plane: 0,
            head: 16,
            page_rows: 4,
            first_row: 0,
        },
    };
    let job = shape.between(None, 32, None, 32).unwrap();
    let good = job.args(POOL, 0, STAGING, 0).unwrap();
    let mut memory = host(&numbered(32), &[0; 32], &[]);
    let mut run = |args: &[u8]| launched(Kernel::ResliceHeads, args, &mut memory);
    assert_eq!(run(&good.bytes()), Ok(()));
    let mut wide = good;
    wide.word_bytes = 8;
    assert_eq!(run(&wide.bytes()), Err(LaunchError::Arguments));
    let mut over = good;
    over.dst.head = 2;
    let overlap = LaunchError::Job(JobError::Overlap {
        memory: Memory::Destination,
    });
    assert_eq!(run(&over.bytes()), Err(overlap));
    let (bytes, needed) = (159, 160);
    let short = LaunchError::Length { bytes, needed };
    assert_eq!(run(&good.bytes()[1..]), Err(short));
    // What was refused changed nothing.
    let mut wanted = [0; 32];
    reslice_heads(&job, &numbered(32), &mut wanted).unwrap();
    assert_eq!(memory.bytes(1), wanted);
}
