//! Claims for parts of cells: what of them can be served, and what the room is told.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::ids::{ClaimId, ClaimNo, Incarnation, RoomKey};
use crate::peer::message::ClaimTag;
use kvroom_kernels::layout::cube::{CubeKind, DimOrder, Dtype, Plane, Share, Span};

/// Layers 2..6 of 8 and some of 8 heads, in pages of so many tokens.
fn holding(heads: Share, page_tokens: u32, order: DimOrder) -> Arc<CubeLayout> {
    let plane = Plane {
        heads,
        channels: 4,
        dtype: Dtype::bf16(),
    };
    Arc::new(CubeLayout {
        name: "kv".into(),
        kind: CubeKind::Kv,
        layers: Share::part(8, 2, 4),
        planes: vec![plane; 2],
        page_tokens,
        granule: 1,
        pages: 8,
        page_gap: 0,
        order,
    })
}

fn part(layers: Span, heads: Span) -> CubePart {
    CubePart {
        layers,
        heads: vec![heads; 2],
    }
}

fn claim(parts: Vec<Option<CubePart>>, pages: usize) -> Claim {
    let id = ClaimId {
        receiver: Incarnation::default(),
        sender: Incarnation::default(),
        number: ClaimNo(1),
    };
    let section = Section {
        pool: PoolId(5),
        pages: (0..pages as u32).collect(),
    };
    Claim {
        tag: ClaimTag {
            id,
            room: RoomKey::new(1, 0),
        },
        receivers: 1,
        rank: 0,
        sections: vec![section; parts.len()],
        part: Part::Slices(parts),
        skip: 16,
        total: 50,
        aux: None,
        gate: 0,
        deadline_ms: 0,
        checksum: false,
        trace: None,
    }
}

/// Heads 0..4 here in pages of 16, heads 2..8 there in pages of 8; either may keep it to itself.
fn served(claim: &Claim, order: DimOrder, says: [bool; 2]) -> Result<Served, Reason> {
    let src = holding(Share::part(8, 0, 4), 16, order);
    let dst = holding(Share::part(8, 2, 6), 8, DimOrder::NHD);
    let (here, there) = (src.pool_layout().unwrap(), dst.pool_layout().unwrap());
    terms_of(
        claim,
        |pool| {
            (pool == PoolId(5)).then_some(TheirPool {
                layout: &there,
                content: says[1].then_some(&dst),
            })
        },
        |name| {
            (name == "kv").then_some(LocalPool {
                id: PoolId(9),
                layout: &here,
                content: says[0].then_some(&src),
            })
        },
    )
}

#[test]
fn a_part_that_both_hold_is_told_in_layers_and_pages_of_the_receiver() {
    let wanted = part(Span::new(3, 5), Span::new(2, 4));
    // Of two sections nothing is wanted of the first one. (Two of one pool are the room's to refuse.)
    let claim = claim(vec![None, Some(wanted.clone())], 5);
    let of = |order| served(&claim, order, [true; 2]).unwrap();
    let Served { terms, slices } = of(DimOrder::NHD);
    let [section] = &*terms.sections else {
        panic!("{terms:?}")
    };
    let slice = SliceShape {
        section: 1,
        source_layer: 1,
        pool_layers: 1,
        page_tokens: 16,
        granule: 1,
        row: false,
    };
    let shape = SectionShape {
        pool: PoolId(9),
        layer: 1,
        layer_end: 3,
        page_tokens: 8,
        // Two planes of two heads of eight bytes, for eight tokens.
        page_bytes: 2 * 2 * 8 * 8,
        pages: 5,
        slice: Some(slice),
    };
    assert_eq!(*section, shape);
    let slices = slices.unwrap();
    assert!(slices[0].is_none());
    let slice = slices[1].as_ref().unwrap();
    assert_eq!((&slice.part, &slice.tokens), (&wanted, &(16..50)));

    let each = |order| of(order).terms.sections[0].slice.unwrap().pool_layers;
    assert_eq!(each(DimOrder::SPLIT_NHD), 2);
    assert_eq!(each(DimOrder::PLANES_NHD), 0);
}

#[test]
fn what_either_side_does_not_hold_or_say_is_refused_with_the_side() {
    let (layers, heads) = (Span::new(2, 6), Span::new(2, 4));
    let refused = |part: CubePart, says| {
        let reason = served(&claim(vec![Some(part)], 5), DimOrder::NHD, says).unwrap_err();
        (reason.code, reason.text)
    };
    let both = [true; 2];
    for (part, says, code, text) in [
        (
            part(layers, Span::new(2, 5)),
            both,
            Code::LayoutMismatch,
            "wants heads 2..5 of plane 0 of pool \"kv\"; the sender holds 0..4",
        ),
        (
            part(layers, Span::new(1, 4)),
            both,
            Code::BadClaim,
            "the receiver holds 2..8",
        ),
        (
            part(Span::new(2, 7), heads),
            both,
            Code::BadClaim,
            "wants layers 2..7 of pool \"kv\"; the receiver holds 2..6",
        ),
        (
            part(Span::new(3, 3), heads),
            both,
            Code::BadClaim,
            "nothing is said by no part",
        ),
        (
            CubePart::nothing(3),
            both,
            Code::BadClaim,
            "names heads of 3 planes",
        ),
        (
            part(layers, heads),
            [false, true],
            Code::LayoutMismatch,
            "of this node does not say what its bytes mean",
        ),
        (
            part(layers, heads),
            [true, false],
            Code::BadClaim,
            "whose content was not announced",
        ),
    ] {
        let (was, said) = refused(part, says);
        assert_eq!(was, code, "{said}");
        assert!(said.contains(text), "{said}");
    }
    let mut fewer = claim(vec![None], 5);
    fewer.sections.clear();
    let reason = served(&fewer, DimOrder::NHD, both).unwrap_err();
    assert!(reason.text.contains("1 parts for 0 sections"), "{reason}");
    // One page too few for the tokens, though nothing is wanted of them.
    let reason = served(&claim(vec![None], 4), DimOrder::NHD, both).unwrap_err();
    assert_eq!(reason.code, Code::LengthMismatch, "{reason}");
}
