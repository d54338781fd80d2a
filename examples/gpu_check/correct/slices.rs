//! `reslice_heads`: by shapes of any strides, and as the planner cuts a request between two ranks.

use super::{Case, Room, run};
use crate::devices::Device;
use crate::failure::{Failure, refused};
use crate::random::Random;
use kvroom_kernels::cuda::Kernel;
use kvroom_kernels::layout::cube::{CubeKind, CubeLayout, DimOrder, Dtype, Plane, Share};
use kvroom_kernels::plan::cube::{CubePlan, PageList, Part};
use kvroom_kernels::twin::{GridSlices, HeadSlices, SliceShape, reslice_heads};

/// Counts of a shape, and what all its lengths are multiples of.
struct Counts {
    layers: u64,
    rows: u64,
    planes: u64,
    heads: u64,
    run: u64,
    unit: u64,
}

/// A side with any order of its five strides and any gaps, its page table, and its bytes.
fn side(random: &mut Random, counts: &Counts) -> (SliceShape, Option<Vec<u32>>, u64) {
    let page_rows = random.among(1, 6);
    let first_row = random.below(page_rows);
    let used = (first_row + counts.rows).div_ceil(page_rows);
    let of = used + random.below(3);
    let dims = [counts.layers, of, page_rows, counts.planes, counts.heads];
    let mut strides = [0; 5];
    let mut covered = counts.run;
    for dim in random.shuffled(5) {
        let dim = dim as usize;
        strides[dim] = covered + random.pick(&[0, 0, 1, 5]) * counts.unit;
        covered = strides[dim] * dims[dim];
    }
    let [layer, page, row, plane, head] = strides;
    let shape = SliceShape {
        layer,
        page,
        row,
        plane,
        head,
        page_rows: page_rows as u32,
        first_row: first_row as u32,
    };
    let table = (random.below(4) > 0).then(|| random.pages(used as u32, of as u32));
    (shape, table, covered)
}

/// A shape of any strides.
pub(super) fn any(device: &Device, random: &mut Random, most: u64) -> Result<u64, Failure> {
    let unit = random.pick(&[1, 2, 4, 8, 16, 16]);
    let counts = Counts {
        layers: random.among(1, 3),
        rows: random.among(1, 20),
        planes: random.among(1, 2),
        heads: random.among(1, 4),
        run: unit * random.among(1, (most / 32 / unit).max(1)),
        unit,
    };
    let (src, src_table, src_bytes) = side(random, &counts);
    let (dst, dst_table, dst_bytes) = side(random, &counts);
    let shape = HeadSlices {
        layers: counts.layers as u32,
        rows: counts.rows as u32,
        planes: counts.planes as u32,
        heads: counts.heads as u32,
        run_bytes: counts.run,
        src,
        dst,
    };
    let (from, to) = (src_table.as_deref(), dst_table.as_deref());
    let job = shape.between(from, src_bytes, to, dst_bytes)?;
    let src = Room::new(random, src_bytes, unit);
    let dst = Room::new(random, dst_bytes, unit);
    let from = Room::table(random, from.unwrap_or_default());
    let to = Room::table(random, to.unwrap_or_default());
    let mut after = dst.before.clone();
    reslice_heads(&job, src.own(), dst.own_of(&mut after))?;
    let case = Case {
        kernel: Kernel::ResliceHeads,
        rooms: &[&src, &dst, &from, &to],
        after: &[
            src.before.clone(),
            after,
            from.before.clone(),
            to.before.clone(),
        ],
        args: |at: &[u64]| {
            let args = job.args(at[0], at[2], at[1], at[3]);
            Ok(vec![
                args.map_err(|error| refused(&error))?.bytes().to_vec(),
            ])
        },
        what: format!("{shape:?}, tables {src_table:?} {dst_table:?}"),
    };
    run(device, random, case)
}

const ORDERS: [DimOrder; 6] = [
    DimOrder::NHD,
    DimOrder::HND,
    DimOrder::SPLIT_NHD,
    DimOrder::PLANES_NHD,
    DimOrder::PAGES_NHD,
    DimOrder::PAGES_HND,
];

/// One rank of some, of a model with so many heads.
fn rank(random: &mut Random, heads: Share, layers: u32, page_tokens: u32, bits: u16) -> CubeLayout {
    let plane = Plane {
        heads,
        channels: 64,
        dtype: Dtype::new("any", bits),
    };
    CubeLayout {
        name: "kv".into(),
        kind: CubeKind::Kv,
        layers: Share::whole(layers),
        planes: vec![plane; 2],
        page_tokens,
        granule: 1,
        pages: 0,
        page_gap: random.pick(&[0, 0, 64]),
        order: random.pick(&ORDERS),
    }
}

/// Two ranks of one model that have heads in common, with the pages of a request on both.
pub(super) fn planned(device: &Device, random: &mut Random, _: u64) -> Result<u64, Failure> {
    const HEADS: u32 = 8;
    let (src_ranks, dst_ranks) = (random.pick(&[1, 2, 4, 8]), random.pick(&[1, 2, 4, 8]));
    let head = random.below(u64::from(HEADS)) as u32;
    let share = |ranks: u32| {
        Share::part(
            HEADS,
            head / (HEADS / ranks) * (HEADS / ranks),
            HEADS / ranks,
        )
    };
    let (layers, bits) = (random.among(1, 3) as u32, random.pick(&[8, 16]));
    let small = random.pick(&[4_u32, 8, 16]);
    let (one, other) = random.pick(&[(1, 1), (1, 2), (1, 4), (2, 1), (4, 1)]);
    let mut src = rank(random, share(src_ranks), layers, small * one, bits);
    let mut dst = rank(random, share(dst_ranks), layers, small * other, bits);
    let start = random.below(40);
    let tokens = start..start + random.among(1, 60);
    let mut list = |layout: &mut CubeLayout| {
        let count = layout.pages_of(tokens.clone()) as u32;
        layout.pages = count + random.below(3) as u32;
        random.pages(count, layout.pages)
    };
    let (from, to) = (list(&mut src), list(&mut dst));
    let part = Part::common(&src, &dst);
    let (src_list, dst_list) = (PageList::whole(&from[..]), PageList::whole(&to[..]));
    let plan = CubePlan::new(&src, &dst, src_list, dst_list, tokens.clone(), &part)?;
    let bytes = |layout: &CubeLayout| layout.bytes().unwrap_or(0);
    let (src_bytes, dst_bytes) = (bytes(&src), bytes(&dst));

    let src_room = Room::new(random, src_bytes, 16);
    let dst_room = Room::new(random, dst_bytes, 16);
    let (src_table, dst_table) = (Room::table(random, &from), Room::table(random, &to));
    // By the plan's pieces, which share nothing with its grids but the plan.
    let mut after = dst_room.before.clone();
    let own = dst_room.own_of(&mut after);
    for piece in plan.runs() {
        let (at, to, bytes) = (piece.src as usize, piece.dst as usize, piece.bytes as usize);
        own[to..to + bytes].copy_from_slice(&src_room.own()[at..at + bytes]);
    }
    let grids = plan.grids();
    let slices = grids
        .iter()
        .map(GridSlices::try_from)
        .collect::<Result<Vec<_>, _>>()?;
    let jobs = slices
        .iter()
        .map(|grid| grid.between(&from, src_bytes, &to, dst_bytes));
    let jobs = jobs.collect::<Result<Vec<_>, _>>()?;
    let case = Case {
        kernel: Kernel::ResliceHeads,
        rooms: &[&src_room, &dst_room, &src_table, &dst_table],
        after: &[
            src_room.before.clone(),
            after,
            src_table.before.clone(),
            dst_table.before.clone(),
        ],
        args: |at: &[u64]| {
            let args = slices.iter().zip(&jobs).map(|(grid, job)| {
                let table = |list: u64, first: usize| list + first as u64 * 4;
                let args = job.args(
                    at[0] + grid.src.base,
                    table(at[2], grid.src.table.start),
                    at[1] + grid.dst.base,
                    table(at[3], grid.dst.table.start),
                );
                Ok(args.map_err(|error| refused(&error))?.bytes().to_vec())
            });
            args.collect()
        },
        what: format!("{src:?} to {dst:?}, tokens {tokens:?}, pages {from:?} {to:?}"),
    };
    run(device, random, case)
}
