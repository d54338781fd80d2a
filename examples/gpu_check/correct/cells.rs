//! `gather_pages` and `scatter_pages`.

use super::{Case, Room, run};
use crate::devices::Device;
use crate::failure::{Failure, refused};
use crate::random::Random;
use kvroom_kernels::cuda::Kernel;
use kvroom_kernels::twin::{PageCopy, Strides, gather_pages, scatter_pages};

/// A shape, its page table, and the bytes of its pool and its staging.
struct Cells {
    shape: PageCopy,
    table: Vec<u32>,
    pool: u64,
    staging: u64,
}

impl Cells {
    fn new(random: &mut Random, most: u64) -> Cells {
        let (layers, pages) = (random.among(1, 4), random.among(1, 12));
        let cell_bytes = match random.below(4) {
            0 => random.among(1, 64),
            1 => random.among(1, most),
            2 => 16 * random.among(1, most / 16),
            _ => random.pick(&[most / 16, most / 4, most]),
        };
        let of = pages + random.below(4);
        let (pool_strides, pool) = strides(random, layers, of, cell_bytes);
        let (staging_strides, staging) = match random.below(2) {
            0 => {
                let packed = PageCopy::packed(cell_bytes, pages as u32);
                (packed, packed.layer * layers)
            }
            _ => strides(random, layers, pages, cell_bytes),
        };
        Cells {
            shape: PageCopy {
                layers: layers as u32,
                cell_bytes,
                pool: pool_strides,
                staging: staging_strides,
            },
            table: random.pages(pages as u32, of as u32),
            pool,
            staging,
        }
    }

    fn said(&self) -> String {
        format!("{:?}, table {:?}", self.shape, self.table)
    }
}

/// `[layer][page]` or `[page][layer]` with any gaps, and the bytes of all of it.
fn strides(random: &mut Random, layers: u64, pages: u64, cell: u64) -> (Strides, u64) {
    let mut gap = || random.pick(&[0, 0, 1, 3, 16, 512]);
    let (small, large) = (gap(), gap());
    if random.below(2) == 0 {
        let page = cell + small;
        let layer = page * pages + large;
        (Strides { layer, page }, layer * layers)
    } else {
        let layer = cell + small;
        let page = layer * layers + large;
        (Strides { layer, page }, page * pages)
    }
}

pub(super) fn gather(device: &Device, random: &mut Random, most: u64) -> Result<u64, Failure> {
    let cells = Cells::new(random, most);
    let job = cells
        .shape
        .gather(&cells.table, cells.pool, cells.staging)?;
    let pool = Room::new(random, cells.pool, 1);
    let staging = Room::new(random, cells.staging, 1);
    let table = Room::table(random, &cells.table);
    let mut after = staging.before.clone();
    gather_pages(&job, pool.own(), staging.own_of(&mut after))?;
    let case = Case {
        kernel: Kernel::GatherPages,
        rooms: &[&pool, &staging, &table],
        after: &[pool.before.clone(), after, table.before.clone()],
        args: |at: &[u64]| {
            let args = job.args(at[0], at[1], at[2]);
            Ok(vec![
                args.map_err(|error| refused(&error))?.bytes().to_vec(),
            ])
        },
        what: cells.said(),
    };
    run(device, random, case)
}

pub(super) fn scatter(device: &Device, random: &mut Random, most: u64) -> Result<u64, Failure> {
    let cells = Cells::new(random, most);
    let job = cells
        .shape
        .scatter(&cells.table, cells.pool, cells.staging)?;
    let pool = Room::new(random, cells.pool, 1);
    let staging = Room::new(random, cells.staging, 1);
    let table = Room::table(random, &cells.table);
    let mut after = pool.before.clone();
    scatter_pages(&job, staging.own(), pool.own_of(&mut after))?;
    let case = Case {
        kernel: Kernel::ScatterPages,
        rooms: &[&pool, &staging, &table],
        after: &[after, staging.before.clone(), table.before.clone()],
        args: |at: &[u64]| {
            let args = job.args(at[0], at[1], at[2]);
            Ok(vec![
                args.map_err(|error| refused(&error))?.bytes().to_vec(),
            ])
        },
        what: cells.said(),
    };
    run(device, random, case)
}
