//! Models, cut over ranks as engines do it.

use super::Numbers;
use crate::layout::cube::{CubeKind, CubeLayout, DimOrder, Dtype, Plane, Share};
use std::ops::Range;

/// How one side runs the model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cutting {
    pub(crate) tp: u32,
    pub(crate) pp: u32,
    pub(crate) page_tokens: u32,
    pub(crate) order: DimOrder,
}

/// What is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Model {
    /// Grouped heads in 16 bits.
    Plain { heads: u32 },
    /// Packed 4 bits, and scales beside.
    Scaled { heads: u32 },
    /// A latent, and index keys with their scales in the same page.
    Mla,
    /// Keys and values, and for other layers a convolution state `[x | B | C]` and an SSM state.
    Hybrid { heads: u32 },
}

/// Layers of every model here.
pub(crate) const LAYERS: u32 = 3;
/// Heads of `x` and of the SSM state; groups of `B` and `C`.
pub(crate) const STATE_HEADS: u32 = 8;
pub(crate) const STATE_GROUPS: u32 = 2;

pub(crate) fn plane(heads: Share, channels: u32, dtype: Dtype) -> Plane {
    Plane {
        heads,
        channels,
        dtype,
    }
}

/// A pool without gaps and granules.
pub(crate) fn pool(name: &str, kind: CubeKind, layers: Share, planes: Vec<Plane>) -> CubeLayout {
    CubeLayout {
        name: name.into(),
        kind,
        layers,
        planes,
        page_tokens: 4,
        granule: 1,
        pages: 8,
        page_gap: 0,
        order: DimOrder::NHD,
    }
}

/// The ranks of one side: all of stage 0, then all of stage 1. Every rank of the last stage has an
/// aux row. Numbers of pages, all enough for `tokens`, and gaps differ from rank to rank.
pub(crate) fn ranks(
    model: Model,
    cutting: Cutting,
    tokens: &Range<u64>,
    numbers: &mut Numbers,
) -> Vec<Vec<CubeLayout>> {
    let mut ranks = Vec::new();
    for stage in 0..cutting.pp {
        for rank in 0..cutting.tp {
            let mut pools = rank_of(model, cutting, stage, rank);
            for pool in &mut pools {
                pool.pages = pool.pages_of(tokens.clone()) as u32 + numbers.among(1, 2);
                pool.page_gap = u64::from(numbers.among(0, 1)) * 3;
            }
            ranks.push(pools);
        }
    }
    ranks
}

fn rank_of(model: Model, cutting: Cutting, stage: u32, rank: u32) -> Vec<CubeLayout> {
    // The last stage has what is left.
    let stage_layers = |total: u32| {
        let each = total / cutting.pp;
        let last = stage + 1 == cutting.pp;
        let held = if last { total - stage * each } else { each };
        Share::part(total, stage * each, held)
    };
    let layers = stage_layers(LAYERS);
    let heads = |total| Share::of_rank(total, rank, cutting.tp).unwrap();
    let both = |heads, channels, dtype: Dtype| vec![plane(heads, channels, dtype); 2];
    let mut pools = match model {
        Model::Plain { heads: h } => {
            let planes = both(heads(h), 2, Dtype::bf16());
            vec![pool("kv", CubeKind::Kv, layers, planes)]
        }
        Model::Scaled { heads: h } => {
            let of = "kv".to_owned();
            let data = both(heads(h), 4, Dtype::fp4_e2m1());
            let scales = both(heads(h), 1, Dtype::fp8_e4m3());
            vec![
                pool("kv-scales", CubeKind::Scale { of }, layers, scales),
                pool("kv", CubeKind::Kv, layers, data),
            ]
        }
        Model::Mla => {
            let latent = vec![plane(Share::whole(1), 3, Dtype::bf16())];
            let keys = plane(Share::whole(1), 4, Dtype::fp8_e4m3());
            let scales = plane(Share::whole(1), 1, Dtype::new("f32", 32));
            vec![
                pool("latent", CubeKind::Latent, layers, latent),
                pool("index", CubeKind::IndexK, layers, vec![keys, scales]),
            ]
        }
        Model::Hybrid { heads: h } => {
            let planes = both(heads(h), 2, Dtype::fp8_e4m3());
            // Three positions of x, B and C; every part is cut by itself.
            let (x, group) = (heads(STATE_HEADS), heads(STATE_GROUPS));
            let byte = Dtype::fp8_e4m3;
            let conv = vec![
                plane(x, 3, byte()),
                plane(group, 2, byte()),
                plane(group, 2, byte()),
            ];
            let ssm = vec![plane(x, 5, Dtype::bf16())];
            let state_layers = stage_layers(LAYERS + 1);
            let mut conv = pool("conv", CubeKind::State, state_layers, conv);
            conv.page_tokens = 3;
            let mut ssm = pool("ssm", CubeKind::State, state_layers, ssm);
            ssm.page_tokens = 1;
            vec![pool("kv", CubeKind::Kv, layers, planes), conv, ssm]
        }
    };
    for pool in pools.iter_mut().filter(|p| !p.kind.is_row()) {
        pool.page_tokens = cutting.page_tokens;
        pool.order = cutting.order;
    }
    if stage + 1 == cutting.pp {
        let row = vec![plane(Share::whole(1), 7, Dtype::new("bytes", 8))];
        let mut aux = pool("aux", CubeKind::Aux, Share::whole(1), row);
        aux.page_tokens = 1;
        pools.push(aux);
    }
    pools
}
