//! What planning costs when head slices are copied on the host.
//! `cargo bench -p kvroom-kernels --bench reslice`
//!
//! ```text
//!   a rank of 4 ──▶ a rank of 2    pages of 16 KiB a layer there, half of each is this slice; 256 MiB in all
//!
//!   A  the planner: next_pieces, 64 at a time, and a memcpy for each
//!   B  memcpy of the very same pieces in the same order, from a list that is there (8 bytes a piece)
//!   C  memcpy of as many pieces of the same size, each at a place of its own by chance
//! ```
//!
//! One line a case: the size of a piece, GB (10^9 bytes) of payload a second of each (medians), and the ratios
//! A to B and A to C: of each round by itself, the median and what nine rounds of ten lie between. The three
//! take turns, forwards and backwards. All are the same safe `copy_from_slice`, with its bounds checks. Read
//! are 256 MiB out of 512, written 256 MiB out of 512: much more than any cache; every page is in memory before
//! the first round. At the end every byte of the destination is compared with what the twin of the kernel
//! makes of the same plan.

use kvroom_kernels::layout::cube::{CubeKind, CubeLayout, DimOrder, Dtype, Plane, Share};
use kvroom_kernels::plan::Piece;
use kvroom_kernels::plan::cube::{CubePlan, PageList, Part};
use kvroom_kernels::twin::{GridSlices, reslice_heads};
use std::hint::black_box;
use std::time::Instant;

const ROUNDS: usize = 41;
const BAR: f64 = 0.7;
const LAYERS: u32 = 16;
/// Of the destination, in one layer.
const PAGE: u64 = 16 << 10;
const MOVED: u64 = 256 << 20;
/// K and V of 4 heads of 128 channels of 2 bytes: one token of the destination.
const TOKEN: u64 = 2 * 4 * 128 * 2;
const PIECE: u64 = 128 << 10;

fn main() {
    let only = std::env::args().skip(1).find(|arg| !arg.starts_with('-'));
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    println!("{ROUNDS} rounds; load before: {} on {cores} cores", load());
    println!(
        "{:<28} {:>6} {:>8} {:>7} {:>7} {:>7}  {:<24} {:<24}",
        "case", "piece", "pieces", "A GB/s", "B GB/s", "C GB/s", "A to B", "A to C"
    );
    let mut missed = false;
    for (name, src, dst) in [
        ("NHD to NHD", DimOrder::NHD, DimOrder::NHD),
        ("HND to HND", DimOrder::HND, DimOrder::HND),
        (
            "planes apart, HND",
            split(DimOrder::HND),
            split(DimOrder::HND),
        ),
        ("HND to NHD, row by row", DimOrder::HND, DimOrder::NHD),
    ] {
        if only
            .as_ref()
            .is_none_or(|only| name.contains(only.as_str()))
        {
            missed |= case(name, src, dst) < BAR;
        }
    }
    println!("load after: {}", load());
    let word = if missed { "MISSED" } else { "reached" };
    println!("the bar, {BAR} of a memcpy of the same pieces: {word}");
}

/// The same order with planes before pages.
fn split(order: DimOrder) -> DimOrder {
    use kvroom_kernels::layout::cube::Dim;
    let mut dims: Vec<Dim> = order
        .0
        .iter()
        .copied()
        .filter(|dim| *dim != Dim::Plane)
        .collect();
    let at = dims.iter().position(|dim| *dim == Dim::Page).unwrap_or(0);
    dims.insert(at, Dim::Plane);
    let mut split = order;
    split.0.copy_from_slice(&dims);
    split
}

fn layout(order: DimOrder, heads: Share, pages: u32) -> CubeLayout {
    let plane = Plane {
        heads,
        channels: 128,
        dtype: Dtype::bf16(),
    };
    CubeLayout {
        name: "kv".into(),
        kind: CubeKind::Kv,
        layers: Share::whole(LAYERS),
        planes: vec![plane; 2],
        page_tokens: (PAGE / TOKEN) as u32,
        granule: 1,
        pages,
        page_gap: 0,
        order,
    }
}

/// One of the three, into a destination.
type Way<'a> = Box<dyn Fn(&mut [u8]) + 'a>;

/// Measures one pair of layouts; the median of A to B.
fn case(name: &str, src_order: DimOrder, dst_order: DimOrder) -> f64 {
    // A rank of 4 has half of what a rank of 2 has of each page.
    let used = (MOVED / u64::from(LAYERS) / (PAGE / 2)) as u32;
    let src = layout(src_order, Share::part(8, 2, 2), 2 * used);
    let dst = layout(dst_order, Share::part(8, 0, 4), used);
    let numbers = &mut Numbers(1);
    let mut from = numbers.shuffled(2 * used);
    from.truncate(used as usize);
    let to = numbers.shuffled(used);
    let tokens = 0..u64::from(used) * u64::from(src.page_tokens);
    let plan = unwrap(CubePlan::new(
        &src,
        &dst,
        PageList::whole(&from[..]),
        PageList::whole(&to[..]),
        tokens,
        &Part::common(&src, &dst),
    ));
    assert_eq!(plan.total_bytes(), MOVED);
    let bytes = |layout: &CubeLayout| layout.bytes().unwrap_or(0);
    let (src_bytes, dst_bytes) = (bytes(&src), bytes(&dst));
    let mut source = vec![0; src_bytes as usize];
    source.chunks_mut(8).for_each(|chunk| {
        let word = numbers.next().to_le_bytes();
        chunk.copy_from_slice(&word[..chunk.len()]);
    });
    // Written once, so that it is there.
    let mut target = vec![0x5a_u8; dst_bytes as usize];

    let pieces: Vec<Piece> = pieces(&plan);
    let size = pieces[0].bytes;
    assert!(pieces.iter().all(|piece| piece.bytes == size));
    let unit = size.min(256);
    let same: Vec<[u32; 2]> = (pieces.iter())
        .map(|piece| [(piece.src / unit) as u32, (piece.dst / unit) as u32])
        .collect();
    assert!(
        pieces
            .iter()
            .all(|p| p.src % unit == 0 && p.dst % unit == 0)
    );
    // Every place at most once on either side.
    let places = |numbers: &mut Numbers, of: u64| {
        let mut all = numbers.shuffled((of / size) as u32);
        all.truncate(pieces.len());
        all
    };
    let (reads, writes) = (places(numbers, src_bytes), places(numbers, dst_bytes));
    let chance: Vec<[u32; 2]> = (reads.iter().zip(&writes))
        .map(|(a, b)| [*a, *b].map(|at| at * (size / unit) as u32))
        .collect();

    let ways: [Way<'_>; 3] = [
        Box::new(|target| by_plan(&plan, &source, target)),
        Box::new(|target| by_list(&same, unit, size, &source, target)),
        Box::new(|target| by_list(&chance, unit, size, &source, target)),
    ];
    let mut times = [const { Vec::new() }; 3];
    for round in 0..=ROUNDS {
        let mut order = [0, 1, 2];
        if round % 2 == 1 {
            order.reverse();
        }
        for way in order {
            let begin = Instant::now();
            ways[way](&mut target);
            let took = begin.elapsed().as_secs_f64();
            black_box(&mut target);
            // The first round warms up.
            if round > 0 {
                times[way].push(took);
            }
        }
    }
    drop(ways);
    compare(&plan, [&from, &to], &source, dst_bytes);

    let ratio = |other: usize| {
        let rounds = times[other].iter().zip(&times[0]);
        Spread::of(rounds.map(|(other, planner)| other / planner).collect())
    };
    let rate = |way: usize| MOVED as f64 / Spread::of(times[way].clone()).median / 1e9;
    let (to_same, to_chance) = (ratio(1), ratio(2));
    println!(
        "{name:<28} {size:>6} {:>8} {:>7.2} {:>7.2} {:>7.2}  {:<24} {:<24}",
        pieces.len(),
        rate(0),
        rate(1),
        rate(2),
        to_same.said(),
        to_chance.said()
    );
    to_same.median
}

fn pieces(plan: &CubePlan) -> Vec<Piece> {
    let mut plan = plan.clone();
    std::iter::from_fn(move || plan.next_piece(PIECE)).collect()
}

fn copy(source: &[u8], target: &mut [u8], src: u64, dst: u64, bytes: u64) {
    let (src, dst, bytes) = (src as usize, dst as usize, bytes as usize);
    target[dst..dst + bytes].copy_from_slice(&source[src..src + bytes]);
}

fn by_plan(plan: &CubePlan, source: &[u8], target: &mut [u8]) {
    let mut plan = plan.clone();
    let none = Piece {
        src: 0,
        dst: 0,
        bytes: 0,
    };
    let mut out = [none; 64];
    loop {
        let filled = plan.next_pieces(PIECE, &mut out);
        for piece in &out[..filled] {
            copy(source, target, piece.src, piece.dst, piece.bytes);
        }
        if filled < out.len() {
            return;
        }
    }
}

fn by_list(list: &[[u32; 2]], unit: u64, size: u64, source: &[u8], target: &mut [u8]) {
    for [src, dst] in list {
        let (src, dst) = (u64::from(*src) * unit, u64::from(*dst) * unit);
        copy(source, target, src, dst, size);
    }
}

/// What the planner's pieces write is what the twin makes of its grids.
fn compare(plan: &CubePlan, [from, to]: [&[u32]; 2], source: &[u8], dst_bytes: u64) {
    let mut target = vec![0x5a; dst_bytes as usize];
    by_plan(plan, source, &mut target);
    let mut wanted = vec![0x5a; dst_bytes as usize];
    for grid in plan.grids() {
        let grid = unwrap(GridSlices::try_from(&grid));
        let job = unwrap(grid.between(from, source.len() as u64, to, dst_bytes));
        let (src, dst) = (grid.src.base as usize, grid.dst.base as usize);
        unwrap(reslice_heads(&job, &source[src..], &mut wanted[dst..]));
    }
    assert!(target == wanted, "the planner and the twin differ");
}

/// A median, and what nine of ten lie between.
struct Spread {
    low: f64,
    median: f64,
    high: f64,
}

impl Spread {
    fn of(mut all: Vec<f64>) -> Spread {
        all.sort_unstable_by(f64::total_cmp);
        let at = |part: f64| all[((all.len() - 1) as f64 * part).round() as usize];
        Spread {
            low: at(0.05),
            median: at(0.5),
            high: at(0.95),
        }
    }

    fn said(&self) -> String {
        format!("{:.2} ({:.2} to {:.2})", self.median, self.low, self.high)
    }
}

/// Numbers that look like chance and are the same in every run.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// All of `0..count`.
    fn shuffled(&mut self, count: u32) -> Vec<u32> {
        let mut all: Vec<u32> = (0..count).collect();
        for i in (1..all.len()).rev() {
            all.swap(i, (self.next() % (i as u64 + 1)) as usize);
        }
        all
    }
}

/// The load of the last minute, as the system says it.
fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or("unknown").to_owned()
}

fn unwrap<T, E: std::fmt::Display>(result: Result<T, E>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => {
            eprintln!("the bench's own layouts do not fit: {error}");
            std::process::exit(1)
        }
    }
}
