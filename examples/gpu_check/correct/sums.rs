//! `checksum_pages`.

use super::{Case, Room, run};
use crate::devices::Device;
use crate::failure::{Failure, refused};
use crate::random::Random;
use kvroom_kernels::cuda::Kernel;
use kvroom_kernels::twin::{PageSum, Strides, checksum_pages};

pub(super) fn any(device: &Device, random: &mut Random, most: u64) -> Result<u64, Failure> {
    let (layers, pages) = (random.among(1, 4), random.among(1, 12));
    let cell_bytes = match random.below(3) {
        0 => random.below(64),
        1 => random.among(1, most),
        _ => 16 * random.among(1, most / 16),
    };
    let of = pages + random.below(4);
    let page = cell_bytes + random.pick(&[0, 0, 1, 16]);
    let layer = page * of + random.pick(&[0, 3, 16]);
    let shape = PageSum {
        layers: layers as u32,
        pages: pages as u32,
        cell_bytes,
        strides: Strides { layer, page },
        pool: random.next() as u32,
        first_layer: random.below(1 << 20) as u32,
        first_page: random.below(1 << 31) as u32,
    };
    let table = (random.below(3) > 0).then(|| random.pages(pages as u32, of as u32));
    let job = shape.over(table.as_deref(), layer * layers)?;
    let pool = Room::new(random, layer * layers, 1);
    let entries = Room::table(random, table.as_deref().unwrap_or_default());
    // Of a word that has a sum already.
    let word = Room::new(random, 8, 8);
    let sum = checksum_pages(&job, pool.own())?.value();
    let mut after = word.before.clone();
    let before: u64 = word
        .own()
        .iter()
        .rev()
        .fold(0, |sum, byte| sum << 8 | u64::from(*byte));
    let added = before.wrapping_add(sum).to_le_bytes();
    word.own_of(&mut after).copy_from_slice(&added);
    let case = Case {
        kernel: Kernel::ChecksumPages,
        rooms: &[&pool, &entries, &word],
        after: &[pool.before.clone(), entries.before.clone(), after],
        args: |at: &[u64]| {
            let args = job.args(at[0], at[1], at[2]);
            Ok(vec![
                args.map_err(|error| refused(&error))?.bytes().to_vec(),
            ])
        },
        what: format!("{shape:?}, table {table:?}"),
    };
    run(device, random, case)
}
