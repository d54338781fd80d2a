use super::*;

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
    };
    assert!(refused(&frame(added)).starts_with("pool kv without layers"));
    layout.name.clear();
    let added = Body::PoolAdded {
        pool: PoolId(0),
        layout,
        content: None,
    };
    assert!(refused(&frame(added)).starts_with("a pool name of 0 bytes"));
}
