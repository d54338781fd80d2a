use super::*;
use crate::peer::hello::{FarKey, MAX_REMOTE_KEY, MAX_WORKER, UcxOffer};
use kvroom_kernels::layout::cube::{
    CubeKind, CubeLayout, DimOrder, Dtype, Plane as CubePlane, Share, Span,
};
use kvroom_kernels::plan::cube::Part as CubePart;

#[test]
fn a_claim_that_says_what_none_may_say_is_refused_with_the_bound() {
    type Change = fn(&mut Claim);
    let cases: [(&str, Change); 9] = [
        ("claim number 0", |c| c.tag.id.number = ClaimNo(0)),
        ("claim number 281474976710656", |c| {
            c.tag.id.number = ClaimNo(1 << 48)
        }),
        ("0 receivers", |c| c.receivers = 0),
        ("257 receivers", |c| c.receivers = 257),
        ("rank 1 of 1", |c| c.rank = 1),
        ("skip 129 over", |c| c.skip = 129),
        ("no layers in 3..3", |c| {
            c.part = Part::Layers { first: 3, end: 3 }
        }),
        ("4097 pages", |c| c.sections[0].pages = vec![0; 4097]),
        ("4097 pages", |c| {
            c.sections = vec![
                Section {
                    pool: PoolId(0),
                    pages: vec![0; 4096],
                },
                Section {
                    pool: PoolId(1),
                    pages: vec![0; 1],
                },
            ];
        }),
    ];
    for (expected, change) in cases {
        let what = refused(&claim_frame(change));
        assert!(what.starts_with(expected), "{what}");
    }
}

#[test]
fn too_many_sections_are_refused_while_decoding() {
    let empty = |n: u16| Section {
        pool: PoolId(n),
        pages: Vec::new(),
    };
    let with = |n: u16| claim_frame(|c| c.sections = (0..n).map(empty).collect());
    let most = Claim::MAX_SECTIONS as u16;
    assert!(decode_frame(&bytes(&with(most))[PREFIX..], &BOUNDS).is_ok());
    let error = decode_frame(&bytes(&with(most + 1))[PREFIX..], &BOUNDS).unwrap_err();
    assert!(matches!(error, WireError::Malformed { .. }), "{error}");
    let Some(Body::Claim(claim)) = with(most + 1).body else {
        panic!()
    };
    assert!(check(&Body::Claim(claim), &BOUNDS).is_err());
}

#[test]
fn other_bodies_are_bounded_too() {
    let tag = some_claim().tag;
    let frame = |body| Frame {
        seq: 1,
        ack: 0,
        body: Some(body),
    };
    let mut reason = Reason::from(Code::Requested);
    reason.text = "x".repeat(Reason::MAX_TEXT + 1);
    assert!(refused(&frame(Body::Failed { tag, reason })).starts_with("257 bytes of text"));
    assert!(refused(&frame(Body::Credit { claims: 0 })).starts_with("no claims"));
    let mut layout = offer().pools.remove(0).1;
    layout.layers = 0;
    let added = Body::PoolAdded {
        pool: PoolId(0),
        layout: layout.clone(),
        content: None,
        far: None,
    };
    assert!(refused(&frame(added)).starts_with("pool kv without layers"));
    layout.name.clear();
    let added = Body::PoolAdded {
        pool: PoolId(0),
        layout,
        content: None,
        far: None,
    };
    assert!(refused(&frame(added)).starts_with("a pool name of 0 bytes"));
}

/// A content, and the cells that it gives.
fn content() -> (CubeLayout, PoolLayout) {
    let plane = CubePlane {
        heads: Share::part(4, 1, 2),
        channels: 2,
        dtype: Dtype::fp8_e4m3(),
    };
    let content = CubeLayout {
        name: "kv".into(),
        kind: CubeKind::Kv,
        layers: Share::whole(2),
        planes: vec![plane; 2],
        page_tokens: 4,
        granule: 1,
        pages: 3,
        page_gap: 0,
        order: DimOrder::NHD,
    };
    let cells = content.pool_layout().unwrap();
    (content, cells)
}

#[test]
fn a_content_must_be_one_that_a_pool_can_have_and_give_its_cells() {
    let added = |content: CubeLayout, layout: &PoolLayout| Frame {
        seq: 1,
        ack: 0,
        body: Some(Body::PoolAdded {
            pool: PoolId(0),
            layout: layout.clone(),
            content: Some(Box::new(content)),
            far: None,
        }),
    };
    let (right, cells) = content();
    let frame = added(right.clone(), &cells);
    assert_eq!(decode_frame(&bytes(&frame)[PREFIX..], &BOUNDS), Ok(frame));
    let with = |change: fn(&mut CubeLayout)| {
        let mut content = right.clone();
        change(&mut content);
        refused(&added(content, &cells))
    };
    assert!(with(|c| c.layers.held = 3).contains("layers says 0..3 of 2"));
    assert!(with(|c| c.pages = 4).contains("does not give its cells"));
    assert!(with(|c| c.name = "other".into()).contains("does not give its cells"));

    let mut offer = offer();
    offer.pools = vec![(PoolId(3), cells)];
    let wrong = |contents| {
        let greeting = Greeting::Offer(Offer {
            contents,
            ..offer.clone()
        });
        let error = encode_greeting(&greeting, &mut Vec::new());
        error.map_err(|error| error.to_string())
    };
    assert_eq!(wrong(vec![(PoolId(3), right.clone())]), Ok(()));
    let error = wrong(vec![(PoolId(4), right.clone())]).unwrap_err();
    assert!(
        error.contains("a content of pool 4, which is not listed"),
        "{error}"
    );
    let twice = vec![(PoolId(3), right.clone()), (PoolId(3), right.clone())];
    let error = wrong(twice).unwrap_err();
    assert!(error.contains("two contents of pool 3"), "{error}");
}

#[test]
fn a_claim_has_a_part_for_each_section_and_no_more_planes_than_a_pool_can_have() {
    let part = |planes| CubePart {
        layers: Span::new(0, 1),
        heads: vec![Span::new(0, 1); planes],
    };
    let slices = |parts| claim_frame(|c| c.part = Part::Slices(parts));
    let most = slices(vec![Some(part(CubeLayout::MAX_PLANES))]);
    assert_eq!(decode_frame(&bytes(&most)[PREFIX..], &BOUNDS), Ok(most));
    assert!(refused(&slices(vec![None, None])).starts_with("2 parts for 1 sections"));
    let frame = slices(vec![Some(part(CubeLayout::MAX_PLANES + 1))]);
    let error = decode_frame(&bytes(&frame)[PREFIX..], &BOUNDS).unwrap_err();
    let says = "length 9, expected at most 8 planes";
    assert!(error.to_string().contains(says), "{error}");
    let frame = slices(vec![None; Claim::MAX_SECTIONS + 1]);
    let error = decode_frame(&bytes(&frame)[PREFIX..], &BOUNDS).unwrap_err();
    let says = "length 65, expected at most 64 sections";
    assert!(error.to_string().contains(says), "{error}");
}

#[test]
fn what_is_offered_of_ucx_is_bounded_and_of_pools_that_are_listed() {
    let key = |n| FarKey {
        base: u64::MAX,
        key: vec![7; n],
    };
    let encoded = |change: &dyn Fn(&mut UcxOffer)| {
        let mut ucx = UcxOffer {
            version: (1, 20, 0),
            rdma: false,
            wanted: true,
            always: true,
            one_sided: true,
            worker: vec![1; MAX_WORKER],
            probe: key(MAX_REMOTE_KEY),
            pools: vec![(offer().pools[0].0, key(1))],
        };
        change(&mut ucx);
        let greeting = Greeting::Offer(Offer {
            ucx: Some(ucx),
            ..offer()
        });
        let error = encode_greeting(&greeting, &mut Vec::new());
        error.map_err(|error| error.to_string())
    };
    let refused = |change: &dyn Fn(&mut UcxOffer)| encoded(change).unwrap_err();
    assert_eq!(encoded(&|_| {}), Ok(()));
    assert!(refused(&|u| u.worker.clear()).contains("a worker's address of 0 bytes"));
    assert!(refused(&|u| u.worker.push(1)).contains("a worker's address of 8193 bytes"));
    assert!(refused(&|u| u.probe.key.clear()).contains("a remote key of 0 bytes"));
    let long = refused(&|u| u.pools[0].1.key = vec![1; MAX_REMOTE_KEY + 1]);
    assert!(long.contains("a remote key of 1025 bytes"), "{long}");
    let other = refused(&|u| u.pools[0].0 = PoolId(77));
    assert!(other.contains("of pool 77, which is not listed"), "{other}");
    let twice = refused(&|u| u.pools.push(u.pools[0].clone()));
    assert!(twice.contains("two remote keys of pool"), "{twice}");
}
