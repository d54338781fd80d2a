//! Random cases: shapes, places and page tables, with odd ones and empty ones among them.

use super::arena::{ADD, Arena, Case, READ, Random, WRITE};
use kvroom_kernels::cuda::Kernel;
use kvroom_kernels::twin::{
    HeadSlices, PageCopy, PageSum, Reslice, Scatter, SliceShape, Strides, Sum, checksum_pages,
    gather_pages, reslice_heads, scatter_pages,
};

fn launch(random: &mut Random) -> (u32, u32) {
    (1 + random.below(3) as u32, random.pick(&[32, 64, 96, 256]))
}

/// Strides of `[layer][page]` or `[page][layer]` with gaps that are multiples of `word`, and the
/// bytes of all of it.
fn strides(random: &mut Random, layers: u64, pages: u64, cell: u64, word: u64) -> (Strides, u64) {
    let mut gap = || random.pick(&[0, 0, 16, 1, 3]) * word;
    let (small, large) = (gap(), gap());
    if random.chance(2) {
        let page = cell + small;
        let layer = page * pages + large;
        (Strides { layer, page }, layer * layers)
    } else {
        let layer = cell + small;
        let page = layer * layers + large;
        (Strides { layer, page }, page * pages)
    }
}

fn cell_bytes(random: &mut Random, tile: u64) -> u64 {
    match random.below(6) {
        0 => random.below(48),
        1 => 16 * random.below(8),
        2 => tile * random.below(3) + random.below(33),
        3 => random.below(3 * tile),
        4 => 4 * random.below(tile),
        _ => 16 * random.below(tile / 4),
    }
}

fn count(random: &mut Random, most: u64) -> u64 {
    if random.chance(24) {
        0
    } else {
        1 + random.below(most)
    }
}

pub(crate) fn pages(random: &mut Random, kernel: Kernel, tile: u64) -> Case {
    let scatter = kernel == Scatter::KERNEL;
    let (layers, pages) = (count(random, 4), count(random, 6));
    let bytes = cell_bytes(random, tile);
    let in_pool = pages + 1 + random.below(3);
    let word = random.pick(&[16, 16, 4, 1]);
    let (pool_strides, pool_bytes) = strides(random, layers, in_pool, bytes, word);
    let (staging_strides, staging_bytes) = strides(random, layers, pages, bytes, word);
    let (odd, odder) = (random.below(16), random.below(16));
    let off = random.pick(&[0, 0, 4, 8, odd]);
    let other = random.pick(&[off, off, 4, odder]);
    let table = random.list(pages, in_pool, scatter);

    let mut arena = Arena::new(random);
    let table_at = arena.table(random, &table);
    let pool_at = arena.region(random, pool_bytes, off);
    let staging_at = arena.region(random, staging_bytes, other);
    let (pool_mark, staging_mark) = if scatter {
        (WRITE, READ)
    } else {
        (READ, WRITE)
    };
    arena.mark(table_at, 4 * pages, READ);
    for layer in 0..layers {
        for (nth, page) in table.iter().enumerate() {
            let at = pool_at + layer * pool_strides.layer + u64::from(*page) * pool_strides.page;
            arena.mark(at, bytes, pool_mark);
            let at = layer * staging_strides.layer + nth as u64 * staging_strides.page;
            arena.mark(staging_at + at, bytes, staging_mark);
        }
    }

    let shape = PageCopy {
        layers: layers as u32,
        cell_bytes: bytes,
        pool: pool_strides,
        staging: staging_strides,
    };
    let mut expected = arena.bytes.clone();
    let pool = arena.slice(pool_at, pool_bytes);
    let staging = arena.slice(staging_at, staging_bytes);
    let mut args = if scatter {
        let job = shape.scatter(&table, pool_bytes, staging_bytes).unwrap();
        let pool = &mut expected[pool_at as usize..(pool_at + pool_bytes) as usize];
        scatter_pages(&job, staging, pool).unwrap();
        job.args(pool_at, staging_at, table_at).unwrap()
    } else {
        let job = shape.gather(&table, pool_bytes, staging_bytes).unwrap();
        let end = (staging_at + staging_bytes) as usize;
        gather_pages(&job, pool, &mut expected[staging_at as usize..end]).unwrap();
        job.args(pool_at, staging_at, table_at).unwrap()
    };
    random.far(&mut [
        &mut args.pool,
        &mut args.staging,
        &mut args.table,
        &mut args.pool_layer,
        &mut args.pool_page,
        &mut args.staging_layer,
        &mut args.staging_page,
    ]);
    let (blocks, threads) = launch(random);
    Case {
        kernel,
        blocks,
        threads,
        args: args.bytes().to_vec(),
        arena,
        expected,
        shape: format!("{args:?}, table {table:?}"),
    }
}

/// A side of a reslice: its shape, its pages, the bytes of its memory, and where the slice begins.
struct Side {
    shape: SliceShape,
    table: Option<Vec<u32>>,
    bytes: u64,
    begin: u64,
}

/// Counts of the slice, and the unit that all lengths are multiples of.
struct Slice {
    layers: u64,
    rows: u64,
    planes: u64,
    heads: u64,
    run: u64,
    word: u64,
}

fn side(random: &mut Random, of: &Slice, page_rows: u64, first_row: u64, apart: bool) -> Side {
    // More heads in a page than in the slice, and the three dimensions of a page in any order.
    let all_heads = of.heads + random.below(3);
    let skipped = random.below(all_heads - of.heads + 1);
    let mut order = [(0, page_rows), (1, of.planes), (2, all_heads)];
    for at in [2, 1] {
        order.swap(at, random.below(at as u64 + 1) as usize);
    }
    let mut within = [0; 3];
    let mut covered = of.run + random.pick(&[0, 0, 1, 3]) * of.word;
    for (which, count) in order {
        within[which] = covered;
        covered = covered * count + random.pick(&[0, 0, 1]) * of.word;
    }
    let used = (first_row + of.rows).div_ceil(page_rows).max(1);
    let all_pages = used + random.below(3);
    let (outer, bytes) = strides(random, of.layers, all_pages, covered, of.word);
    let paged = random.chance(2);
    let table = paged.then(|| random.list(used, all_pages, apart));
    let [row, plane, head] = within;
    Side {
        shape: SliceShape {
            layer: outer.layer,
            page: outer.page,
            row,
            plane,
            head,
            page_rows: page_rows as u32,
            first_row: first_row as u32,
        },
        table,
        bytes: bytes - (skipped * head).min(bytes),
        begin: skipped * head,
    }
}

impl Side {
    fn mark(&self, of: &Slice, arena: &mut Arena, base: u64, table_at: u64, mark: u8) {
        let shape = &self.shape;
        for row in 0..of.rows {
            let flat = u64::from(shape.first_row) + row;
            let nth = flat / u64::from(shape.page_rows);
            let within = flat % u64::from(shape.page_rows);
            let mut page = nth;
            if let Some(table) = &self.table {
                page = u64::from(table[nth as usize]);
                arena.mark(table_at + 4 * nth, 4, READ);
            }
            for layer in 0..of.layers {
                for plane in 0..of.planes {
                    for head in 0..of.heads {
                        let at = layer * shape.layer
                            + page * shape.page
                            + within * shape.row
                            + plane * shape.plane
                            + head * shape.head;
                        arena.mark(base + at, of.run, mark);
                    }
                }
            }
        }
    }
}

pub(crate) fn slices(random: &mut Random, unit: u64) -> Case {
    let word = random.pick(&[16, 16, 16, 8, 4, 2, 1]);
    let of = Slice {
        layers: count(random, 3),
        rows: count(random, 9),
        planes: count(random, 3),
        heads: count(random, 4),
        run: word * random.pick(&[0, 1, 3, 8, 1, 2, 8, 1 + unit / 4, unit + 3]),
        word,
    };
    let common = 1 + random.below(3);
    let mut first_row = || match random.below(3) {
        0 => 0,
        1 => common * random.below(3),
        _ => random.below(7),
    };
    let first = [first_row(), first_row()];
    let factor = |random: &mut Random| common * random.pick(&[1, 1, 2, 3, 4]);
    let (src_rows, dst_rows) = (factor(random), factor(random));
    let src = side(random, &of, src_rows, first[0], false);
    let dst = side(random, &of, dst_rows, first[1], true);
    // Sometimes an address that the rest would not need to be so odd for.
    let off = word % 16 * random.below(16 / word);
    let another = word % 16 * random.below(16 / word);
    let other = random.pick(&[another, off, off, 1]);

    let mut arena = Arena::new(random);
    let src_at = arena.region(random, src.begin + src.bytes, off) + src.begin;
    let dst_at = arena.region(random, dst.begin + dst.bytes, other) + dst.begin;
    let src_table = arena.table(random, src.table.as_deref().unwrap_or_default());
    let dst_table = arena.table(random, dst.table.as_deref().unwrap_or_default());
    src.mark(&of, &mut arena, src_at, src_table, READ);
    dst.mark(&of, &mut arena, dst_at, dst_table, WRITE);

    let shape = HeadSlices {
        layers: of.layers as u32,
        rows: of.rows as u32,
        planes: of.planes as u32,
        heads: of.heads as u32,
        run_bytes: of.run,
        src: src.shape,
        dst: dst.shape,
    };
    let job = shape
        .between(
            src.table.as_deref(),
            src.bytes,
            dst.table.as_deref(),
            dst.bytes,
        )
        .unwrap();
    let mut expected = arena.bytes.clone();
    let to = dst_at as usize..(dst_at + dst.bytes) as usize;
    reslice_heads(&job, arena.slice(src_at, src.bytes), &mut expected[to]).unwrap();
    let mut args = job.args(src_at, src_table, dst_at, dst_table).unwrap();
    for side in [&mut args.src, &mut args.dst] {
        let (base, layer, page) = (&mut side.base, &mut side.layer, &mut side.page);
        random.far(&mut [
            base,
            layer,
            page,
            &mut side.row,
            &mut side.plane,
            &mut side.head,
        ]);
        if side.table != 0 {
            random.far(&mut [&mut side.table]);
        }
    }
    let (blocks, threads) = launch(random);
    Case {
        kernel: Reslice::KERNEL,
        blocks,
        threads,
        args: args.bytes().to_vec(),
        arena,
        expected,
        shape: format!("{args:?}, tables {:?} {:?}", src.table, dst.table),
    }
}

pub(crate) fn sum(random: &mut Random) -> Case {
    let (layers, pages) = (count(random, 3), count(random, 4));
    let bytes = match random.below(5) {
        0 => random.below(20),
        1 => 16 * random.below(40),
        2 => 512 * random.below(5),
        _ => random.below(2600),
    };
    let in_pool = pages + random.below(3);
    let word = random.pick(&[16, 4, 1]);
    let (strides, all) = strides(random, layers, in_pool, bytes, word);
    let table = random
        .chance(2)
        .then(|| random.list(pages, in_pool.max(1), false));

    let odd = random.below(16);
    let off = random.pick(&[0, 0, odd]);
    let mut arena = Arena::new(random);
    let table_at = arena.table(random, table.as_deref().unwrap_or_default());
    let pool_at = arena.region(random, all, off);
    let sum_off = random.pick(&[0, 8]);
    let sum_at = arena.region(random, 8, sum_off);
    arena.mark(sum_at, 8, ADD);
    for nth in 0..pages {
        let mut page = nth;
        if let Some(table) = &table {
            page = u64::from(table[nth as usize]);
            arena.mark(table_at + 4 * nth, 4, READ);
        }
        for layer in 0..layers {
            let at = pool_at + layer * strides.layer + page * strides.page;
            arena.mark(at, bytes, READ);
        }
    }

    let name = |random: &mut Random| {
        let any = random.below(1 << 31) as u32;
        random.pick(&[0, 1, u32::MAX - 8, any])
    };
    let shape = PageSum {
        layers: layers as u32,
        pages: pages as u32,
        cell_bytes: bytes,
        strides,
        pool: name(random),
        first_layer: name(random),
        first_page: name(random),
    };
    let job = shape.over(table.as_deref(), all).unwrap();
    let sum = checksum_pages(&job, arena.slice(pool_at, all)).unwrap();
    let mut expected = arena.bytes.clone();
    let word = &mut expected[sum_at as usize..sum_at as usize + 8];
    let before = u64::from_le_bytes(word.try_into().unwrap());
    word.copy_from_slice(&before.wrapping_add(sum.value()).to_le_bytes());
    let mut args = job.args(pool_at, table_at, sum_at).unwrap();
    let (layer, page) = (&mut args.layer, &mut args.page);
    random.far(&mut [&mut args.pool, layer, page, &mut args.sum]);
    let (blocks, threads) = launch(random);
    Case {
        kernel: Sum::KERNEL,
        blocks,
        threads,
        args: args.bytes().to_vec(),
        arena,
        expected,
        shape: format!("{args:?}, table {table:?}"),
    }
}
