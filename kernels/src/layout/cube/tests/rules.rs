//! Which layouts, and which sets of them, are refused, and by what name.

use super::*;

fn with(change: impl Fn(&mut CubeLayout)) -> CubeLayout {
    let mut layout = kv();
    change(&mut layout);
    layout
}

#[test]
fn a_field_out_of_its_bounds_is_named() {
    assert_eq!(kv().validate(), Ok(()));
    let bounds = [
        ("page_tokens", with(|l| l.page_tokens = 0)),
        ("granule", with(|l| l.granule = 0)),
        ("pages", with(|l| l.pages = 0)),
        ("page_tokens", with(|l| l.granule = 3)),
        ("planes[1].channels", with(|l| l.planes[1].channels = 0)),
        ("planes[0].dtype.bits", with(|l| l.planes[0].dtype.bits = 0)),
        (
            "planes[0].dtype.bits",
            with(|l| l.planes[0].dtype.bits = 129),
        ),
        (
            "the length of planes[0].dtype.name",
            with(|l| l.planes[0].dtype.name.clear()),
        ),
        (
            "the length of planes[1].dtype.name",
            with(|l| l.planes[1].dtype.name = "x".repeat(33)),
        ),
    ];
    for (name, layout) in bounds {
        match layout.validate() {
            Err(CubeError::Bounds { field, .. }) => assert_eq!(field, name),
            other => panic!("{name}: {other:?}"),
        }
    }
    let shares = [
        ("layers", with(|l| l.layers = Share::part(4, 3, 2))),
        ("layers", with(|l| l.layers = Share::part(4, 3, 0))),
        (
            "layers",
            with(|l| l.layers = Share::part(4, u32::MAX, u32::MAX)),
        ),
        (
            "planes[1].heads",
            with(|l| l.planes[1].heads = Share::part(8, 8, 1)),
        ),
        (
            "planes[0].heads",
            with(|l| l.planes[0].heads = Share::whole(0)),
        ),
    ];
    for (name, layout) in shares {
        match layout.validate() {
            Err(CubeError::Share { field, .. }) => assert_eq!(field, name),
            other => panic!("{name}: {other:?}"),
        }
    }
}

#[test]
fn names_planes_orders_and_rows_are_bounded() {
    let error = |change: &dyn Fn(&mut CubeLayout)| with(change).validate().unwrap_err();
    assert_eq!(error(&|l| l.name.clear()), CubeError::Name { bytes: 0 });
    assert_eq!(
        error(&|l| l.name = "x".repeat(65)),
        CubeError::Name { bytes: 65 }
    );
    let none = error(&|l| l.planes.clear());
    assert_eq!(
        none,
        CubeError::Planes {
            pool: "kv".into(),
            planes: 0
        }
    );
    let nine = error(&|l| l.planes = vec![l.planes[0].clone(); 9]);
    assert_eq!(
        nine,
        CubeError::Planes {
            pool: "kv".into(),
            planes: 9
        }
    );
    let twice = DimOrder([Dim::Page, Dim::Layer, Dim::Layer, Dim::Head, Dim::Token]);
    let token_first = DimOrder([Dim::Token, Dim::Page, Dim::Layer, Dim::Plane, Dim::Head]);
    for order in [twice, token_first] {
        let wanted = CubeError::Order {
            pool: "kv".into(),
            order,
        };
        assert_eq!(error(&move |l| l.order = order), wanted);
    }
    let odd = error(&|l| {
        l.planes[1] = plane(Share::part(8, 2, 2), 3, Dtype::fp4_e2m1());
    });
    assert!(matches!(
        odd,
        CubeError::Row {
            plane: 1,
            channels: 3,
            bits: 4,
            ..
        }
    ));
}

#[test]
fn planes_with_different_heads_need_heads_after_planes() {
    let uneven = |order| {
        with(|l| {
            l.order = order;
            l.planes[1].heads = Share::part(8, 2, 1);
        })
    };
    assert_eq!(uneven(DimOrder::NHD).validate(), Ok(()));
    let heads_first = DimOrder([Dim::Layer, Dim::Page, Dim::Token, Dim::Head, Dim::Plane]);
    let error = uneven(heads_first).validate().unwrap_err();
    assert!(
        matches!(error, CubeError::HeadsDiffer { plane: 1, .. }),
        "{error}"
    );
    assert!(
        error
            .to_string()
            .contains("heads 2..3 of 8, plane 0 2..4 of 8"),
        "{error}"
    );
}

#[test]
fn each_kind_has_its_rule() {
    let rule = |change: &dyn Fn(&mut CubeLayout)| match with(change).validate() {
        Err(CubeError::Rule { rule, .. }) => rule,
        other => panic!("{other:?}"),
    };
    assert!(rule(&|l| l.kind = CubeKind::Latent).contains("latent has one head"));
    assert!(rule(&|l| l.kind = CubeKind::IndexK).contains("index keys"));
    assert!(rule(&|l| l.kind = CubeKind::Aux).contains("one head"));
    let one = |l: &mut CubeLayout| l.planes = vec![plane(Share::whole(1), 8, Dtype::bf16())];
    assert!(
        rule(&|l| {
            one(l);
            l.kind = CubeKind::Aux;
        })
        .contains("one layer")
    );
    assert!(rule(&|l| l.kind = CubeKind::Scale { of: "kv".into() }).contains("their own data"));
    let latent = with(|l| {
        one(l);
        l.kind = CubeKind::Latent;
    });
    assert_eq!(latent.validate(), Ok(()));
}

#[test]
fn a_pool_that_cannot_be_addressed_is_refused() {
    for layout in [
        with(|l| l.pages = u32::MAX).with_tokens(u32::MAX),
        with(|l| l.page_gap = u64::MAX),
        with(|l| l.page_gap = 1 << 60),
    ] {
        let wanted = CubeError::TooLarge { pool: "kv".into() };
        assert_eq!(layout.validate(), Err(wanted));
    }
}

impl CubeLayout {
    fn with_tokens(mut self, tokens: u32) -> CubeLayout {
        self.page_tokens = tokens;
        self
    }
}

#[test]
fn scales_stand_beside_data_with_the_same_layers_and_heads() {
    assert_eq!(validate_set(&[scales(), kv()]), Ok(()));
    let of = "kv".to_owned();
    let pool = "kv-scales".to_owned();
    assert_eq!(
        validate_set(&[scales()]),
        Err(CubeError::ScaleOfNothing {
            pool: pool.clone(),
            of: of.clone()
        })
    );
    assert_eq!(
        validate_set(&[kv(), kv()]),
        Err(CubeError::Twice { pool: of.clone() })
    );
    let differs = |change: &dyn Fn(&mut CubeLayout)| {
        let mut other = scales();
        change(&mut other);
        match validate_set(&[kv(), other]) {
            Err(CubeError::ScaleDiffers { field, .. }) => field,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(differs(&|l| l.layers.first = 0), "layers");
    assert_eq!(differs(&|l| l.planes.truncate(1)), "the number of planes");
    assert_eq!(differs(&|l| l.planes[1].heads.first = 0), "planes[1].heads");
    // One scale for all heads of a token.
    let mut headless = scales();
    headless.planes = vec![plane(Share::whole(1), 1, Dtype::fp8_e4m3()); 2];
    assert_eq!(validate_set(&[headless, kv()]), Ok(()));
    // Scales of scales.
    let mut second = scales();
    second.name = "more".into();
    second.kind = CubeKind::Scale { of: pool.clone() };
    assert_eq!(
        validate_set(&[kv(), scales(), second]),
        Err(CubeError::ScaleOfNothing {
            pool: "more".into(),
            of: pool
        })
    );
}
