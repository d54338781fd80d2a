//! What may differ between two sides, and what is said if something else does.

use super::*;

fn text(src: &CubeLayout, dst: &CubeLayout) -> String {
    super::super::explain(src, dst).unwrap_err().to_string()
}

#[test]
fn what_planning_is_for_may_differ() {
    let mut other = kv();
    other.order = DimOrder::PAGES_HND;
    other.pages = 77;
    other.page_gap = 64;
    other.page_tokens = 64;
    other.layers = Share::whole(4);
    other.planes[0].heads = Share::part(8, 7, 1);
    assert_eq!(super::super::explain(&kv(), &other), Ok(()));
    assert_eq!(super::super::explain(&other, &kv()), Ok(()));
}

#[test]
fn everything_else_that_differs_is_said_with_both_values() {
    let mut other = kv();
    other.name = "k".into();
    other.kind = CubeKind::Scale { of: "d".into() };
    other.layers.total = 61;
    other.granule = 4;
    other.page_tokens = 24;
    other.planes[1].heads.total = 16;
    other.planes[1].channels = 64;
    other.planes[1].dtype = Dtype::fp8_e4m3();
    let all = text(&kv(), &other);
    for part in [
        "name of \"kv\" is \"kv\" at the source and \"k\" at the destination",
        "kind of \"kv\" is Kv at the source and scales of \"d\" at",
        "layers.total of \"kv\" is 4 at the source and 61 at",
        "granule of \"kv\" is 1 at the source and 4 at",
        "page_tokens (one must divide the other) of \"kv\" is 16 at the source and 24 at",
        "planes[1].heads.total of \"kv\" is 8 at the source and 16 at",
        "planes[1].channels of \"kv\" is 128 at the source and 64 at",
        "planes[1].dtype.name of \"kv\" is \"bf16\" at the source and \"fp8_e4m3\" at",
        "planes[1].dtype.bits of \"kv\" is 16 at the source and 8 at",
    ] {
        assert!(all.contains(part), "{part} missing in: {all}");
    }
    assert!(
        !all.contains("planes[0]") && !all.contains("order"),
        "{all}"
    );
    let mut fewer = kv();
    fewer.planes.truncate(1);
    assert!(text(&kv(), &fewer).contains("the number of planes of \"kv\" is 2"));
}

#[test]
fn types_of_equal_width_are_not_the_same_type() {
    let mut other = kv();
    other.planes[0].dtype = Dtype::new("fp16", 16);
    let all = text(&kv(), &other);
    assert!(
        all.contains("planes[0].dtype.name") && !all.contains("bits"),
        "{all}"
    );
}

#[test]
fn rows_must_have_the_same_positions() {
    let state = |page_tokens| CubeLayout {
        kind: CubeKind::State,
        page_tokens,
        ..kv()
    };
    assert!(text(&state(4), &state(8)).contains("page_tokens of \"kv\" is 4"));
    assert_eq!(super::super::explain(&state(4), &state(4)), Ok(()));
}

#[test]
fn a_pool_that_one_side_lacks_is_a_difference() {
    let mut state = kv();
    state.name = "ssm".into();
    state.kind = CubeKind::State;
    let all = [kv(), scales(), state];
    assert_eq!(explain_sets(&all, &all), Ok(()));
    let said = explain_sets(&all, &all[..1]).unwrap_err().to_string();
    for part in [
        "the pool of \"kv-scales\" is there (scales of \"kv\") at the source and missing at",
        "the pool of \"ssm\" is there (State) at the source and missing at the destination",
    ] {
        assert!(said.contains(part), "{part} missing in: {said}");
    }
    let said = explain_sets(&all[..2], &all).unwrap_err().to_string();
    assert!(
        said.contains("is missing at the source and there (State)"),
        "{said}"
    );
}

#[test]
fn a_mismatch_names_no_more_than_people_read() {
    let many: Vec<CubeLayout> = (0..1000)
        .map(|i| CubeLayout {
            name: format!("pool {i}"),
            ..kv()
        })
        .collect();
    let said = explain_sets(&many, []).unwrap_err();
    assert_eq!(said.differences.len(), CubeMismatch::MAX);
    let mut wide = kv();
    wide.planes = vec![plane(Share::whole(1), 1, Dtype::bf16()); 1000];
    let mut other = wide.clone();
    for plane in &mut other.planes {
        plane.channels = 2;
    }
    let said = super::super::explain(&wide, &other).unwrap_err();
    assert_eq!(said.differences.len(), CubeMismatch::MAX);
}

#[test]
fn ranks_of_one_side_may_hold_different_pools_but_must_agree_on_each() {
    let mut second = kv();
    second.layers = Share::part(4, 3, 1);
    let ranks = [kv(), second.clone()];
    assert_eq!(explain_sets(&ranks, [&kv()]), Ok(()));
    second.planes[0].channels = 64;
    let said = explain_sets(&[kv(), second], [&kv()]).unwrap_err();
    assert_eq!(said.differences.len(), 1);
    assert_eq!(said.differences[0].field, "planes[0].channels");
}
