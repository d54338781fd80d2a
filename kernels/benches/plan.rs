//! What a million descriptors cost to plan. `cargo bench -p kvroom-kernels --bench plan`
//!
//! One line a case: descriptors, the median of the runs in milliseconds and in nanoseconds for each
//! descriptor, the spread (least and most), and the cost against a walk that only adds up what the
//! page lists say: the least that planning can cost on this machine at this moment.

use kvroom_kernels::layout::cube::{CubeKind, CubeLayout, DimOrder, Dtype, Plane, Share};
use kvroom_kernels::layout::{Order, PoolKind, PoolLayout};
use kvroom_kernels::plan::cube::{CubePlan, PageList, Part};
use kvroom_kernels::plan::{Piece, Plan};
use std::hint::black_box;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Words of the command line: only cases with these in their names.
static ONLY: OnceLock<String> = OnceLock::new();
const RUNS: usize = 25;
const PIECE: u64 = 128 << 10;

fn main() {
    let only = std::env::args().skip(1).find(|arg| !arg.starts_with('-'));
    ONLY.get_or_init(|| only.unwrap_or_default());
    println!(
        "{:<44} {:>9} {:>9} {:>8} {:>19} {:>7}",
        "case", "count", "median ms", "ns each", "least .. most ms", "x floor"
    );
    let pages = shuffled(15_625);
    let floor = report("floor: page lists only, 64 layers", None, || {
        let mut sum = 0_u64;
        for layer in 0..64_u64 {
            for (a, b) in pages.iter().zip(pages.iter().rev()) {
                let (src, dst) = (u64::from(*a) * 32_768, u64::from(*b) * 32_768);
                sum = sum.wrapping_add(black_box(src ^ dst ^ layer ^ 7));
            }
        }
        black_box(sum);
        64 * pages.len() as u64
    });
    let floor = Some(floor);

    let cells = Arc::new(PoolLayout {
        name: "kv".into(),
        kind: PoolKind::Kv,
        order: Order::LayersFirst,
        layers: 64,
        pages: 15_625,
        page_bytes: 32_768,
        page_tokens: 16,
    });
    let list: Arc<[u32]> = pages.as_slice().into();
    report("cells: equal pools, layers first", floor, || {
        let (a, b, n) = (list.clone(), list.clone(), list.len());
        let mut plan = unwrap(Plan::new(&cells, &cells, 0..64, a, 0..n, b, 0..n));
        count(|| plan.next_piece(PIECE).map(|p| p.src ^ p.dst ^ p.bytes))
    });

    // 8 heads of 128 channels in 16 bits: a page of K and V has 64 KiB, a rank of two has half.
    let whole = layout(DimOrder::NHD, Share::whole(8), 16, 64, 15_625);
    cube("equal layouts, layers first", floor, &whole, &whole, &pages);
    let packed = CubeLayout {
        planes: vec![plane(Share::whole(8), 128); 1],
        ..layout(DimOrder::SPLIT_NHD, Share::whole(8), 16, 64, 15_625)
    };
    cube("equal layouts, one plane", floor, &packed, &packed, &pages);
    let by_page = layout(DimOrder::PAGES_NHD, Share::whole(8), 16, 4, 1_000_000);
    many("the same, 64 at once", floor, &packed, &packed, &pages);
    cube(
        "equal layouts, pages first, one a page",
        floor,
        &by_page,
        &by_page,
        &shuffled(1_000_000),
    );
    let apart = layout(DimOrder::PAGES_NHD, Share::whole(8), 16, 64, 15_625);
    cube(
        "layers first onto pages first",
        floor,
        &whole,
        &apart,
        &pages,
    );

    let half = |order| layout(order, Share::part(8, 4, 4), 16, 64, 15_625);
    let few = shuffled(490);
    cube(
        "head slices, HND to HND",
        floor,
        &half(DimOrder::HND),
        &layout(DimOrder::HND, Share::whole(8), 16, 64, 15_625),
        &shuffled(7_813),
    );
    cube(
        "head slices, NHD to NHD",
        floor,
        &half(DimOrder::NHD),
        &whole,
        &few,
    );
    let quarter = layout(DimOrder::HND, Share::part(8, 2, 2), 16, 64, 15_625);
    cube(
        "head slices, HND to NHD, row by row",
        floor,
        &quarter,
        &whole,
        &shuffled(245),
    );
    strided("the same, strided", floor, &quarter, &whole, &shuffled(490));

    let large = layout(DimOrder::NHD, Share::whole(8), 64, 64, 4_000);
    cube(
        "pages of 16 tokens onto 64",
        floor,
        &whole,
        &large,
        &shuffled(7_812),
    );
    cube(
        "pages of 64 tokens onto 16",
        floor,
        &large,
        &whole,
        &shuffled(1_953),
    );
    let keys = vec![
        Plane {
            dtype: Dtype::fp8_e4m3(),
            ..plane(Share::whole(1), 128)
        },
        Plane {
            dtype: Dtype::new("f32", 32),
            ..plane(Share::whole(1), 1)
        },
    ];
    let index = CubeLayout {
        kind: CubeKind::IndexK,
        planes: keys,
        ..layout(DimOrder::NHD, Share::whole(1), 64, 64, 15_625)
    };
    let turned = CubeLayout {
        order: DimOrder::SPLIT_NHD,
        ..index.clone()
    };
    cube(
        "index keys and scales, onto planes apart",
        floor,
        &index,
        &turned,
        &shuffled(7_812),
    );
}

fn plane(heads: Share, channels: u32) -> Plane {
    Plane {
        heads,
        channels,
        dtype: Dtype::bf16(),
    }
}

fn layout(order: DimOrder, heads: Share, page_tokens: u32, layers: u32, pages: u32) -> CubeLayout {
    CubeLayout {
        name: "kv".into(),
        kind: CubeKind::Kv,
        layers: Share::whole(layers),
        planes: vec![plane(heads, 128); 2],
        page_tokens,
        granule: 1,
        pages,
        page_gap: 0,
        order,
    }
}

/// All of `0..count` so that hardly any two neighbours follow each other.
fn shuffled(count: u32) -> Vec<u32> {
    let mut all: Vec<u32> = (0..count).collect();
    let mut state = 1_u64;
    for i in (1..all.len()).rev() {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        all.swap(i, (state >> 33) as usize % (i + 1));
    }
    all
}

/// Plans the tokens of `pages` source pages, whole ones, and takes all pieces.
fn cube(name: &str, floor: Option<f64>, src: &CubeLayout, dst: &CubeLayout, pages: &[u32]) {
    let plan = plan(src, dst, pages);
    report(name, floor, || {
        let mut plan = plan();
        count(|| plan.next_piece(PIECE).map(|p| p.src ^ p.dst ^ p.bytes))
    });
}

fn many(name: &str, floor: Option<f64>, src: &CubeLayout, dst: &CubeLayout, pages: &[u32]) {
    let plan = plan(src, dst, pages);
    let mut out = [Piece {
        src: 0,
        dst: 0,
        bytes: 0,
    }; 64];
    report(name, floor, || {
        let mut plan = plan();
        let mut count = 0;
        loop {
            let filled = plan.next_pieces(PIECE, &mut out);
            black_box(&mut out);
            count += filled as u64;
            if filled < out.len() {
                return count;
            }
        }
    });
}

fn strided(name: &str, floor: Option<f64>, src: &CubeLayout, dst: &CubeLayout, pages: &[u32]) {
    let plan = plan(src, dst, pages);
    report(name, floor, || {
        let mut plan = plan();
        count(|| plan.next_strided(PIECE).map(|s| s.src ^ s.dst ^ s.count))
    });
}

fn plan(src: &CubeLayout, dst: &CubeLayout, pages: &[u32]) -> impl Fn() -> CubePlan + use<> {
    let (src, dst) = (src.clone(), dst.clone());
    let tokens = 0..pages.len() as u64 * u64::from(src.page_tokens);
    let from: Arc<[u32]> = pages.into();
    let count = u32::try_from(dst.pages_of(tokens.clone())).unwrap_or(u32::MAX);
    let to: Arc<[u32]> = shuffled(count).into();
    let part = Part::common(&src, &dst);
    move || {
        let (from, to) = (PageList::whole(from.clone()), PageList::whole(to.clone()));
        unwrap(CubePlan::new(&src, &dst, from, to, tokens.clone(), &part))
    }
}

fn count(mut next: impl FnMut() -> Option<u64>) -> u64 {
    let mut count = 0;
    while let Some(number) = next() {
        black_box(number);
        count += 1;
    }
    count
}

/// Runs `body`, which says how many descriptors it made; answers the nanoseconds for each.
fn report(name: &str, floor: Option<f64>, mut body: impl FnMut() -> u64) -> f64 {
    let wanted = ONLY.get().is_none_or(|only| name.contains(only.as_str()));
    if floor.is_some() && !wanted {
        return 0.0;
    }
    let mut times: Vec<Duration> = Vec::with_capacity(RUNS);
    let mut made = body();
    for _ in 0..RUNS {
        let start = Instant::now();
        made = body();
        times.push(start.elapsed());
    }
    times.sort_unstable();
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let (least, median, most) = (times[0], times[RUNS / 2], times[RUNS - 1]);
    let each = ms(median) * 1e6 / made as f64;
    let ratio = floor.map_or(1.0, |floor| each / floor);
    println!(
        "{name:<44} {made:>9} {:>9.2} {each:>8.2} {:>8.2} .. {:>7.2} {ratio:>7.1}",
        ms(median),
        ms(least),
        ms(most)
    );
    each
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
