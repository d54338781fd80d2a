use super::*;
use kvroom_kernels::layout::{Order, PoolKind};

fn life(n: u64) -> Incarnation {
    Incarnation {
        started_ns: n,
        nonce: n,
    }
}

fn layout(name: &str) -> PoolLayout {
    PoolLayout {
        name: name.into(),
        kind: PoolKind::Kv,
        order: Order::LayersFirst,
        layers: 32,
        pages: 100,
        page_bytes: 4096,
        page_tokens: 16,
    }
}

struct Node {
    hello: Hello,
    offer: Offer,
}

fn nonce(n: u64) -> Nonce {
    let mut nonce = [9; 32];
    nonce[..8].copy_from_slice(&n.to_le_bytes());
    nonce
}

fn node(name: &str, n: u64) -> Node {
    Node {
        hello: Hello {
            protocols: Protocols::MINE,
            node: name.into(),
            incarnation: life(n),
            nonce: nonce(100 + n),
            capabilities: Capabilities::QUIESCENCE.and(Capabilities::CHECKSUM),
            keyed: false,
        },
        offer: Offer {
            pools: vec![(PoolId(0), layout("kv"))],
            contents: Vec::new(),
            credit: 8,
            resume: None,
            received: 0,
            token: 1,
            host: None,
            ucx: None,
        },
    }
}

fn accept(mine: &Node, theirs: &Node, known: Option<Incarnation>) -> Result<Accepted, Refusal> {
    let (me, them) = (&mine.hello, &theirs.hello);
    super::accept((me, &mine.offer), (them, &theirs.offer), known)
}

fn resuming(name: &str, n: u64, resume: Option<SessionId>, received: u64) -> Node {
    let Node { hello, offer } = node(name, n);
    let offer = Offer {
        resume,
        received,
        ..offer
    };
    Node { hello, offer }
}

#[test]
fn strangers_begin_a_fresh_session_and_name_it_alike() {
    let (a, b) = (node("a", 1), node("b", 2));
    let here = accept(&a, &b, None).unwrap();
    assert_eq!(
        here.start,
        Start::Fresh {
            before: Before::Unknown
        }
    );
    assert_eq!(
        here.session,
        SessionId {
            lower: 101,
            higher: 102
        }
    );
    assert_eq!(accept(&b, &a, None).unwrap(), here);
}

#[test]
fn the_same_session_of_the_same_incarnations_is_resumed() {
    let session = SessionId {
        lower: 7,
        higher: 8,
    };
    let a = resuming("a", 1, Some(session), 3);
    let b = resuming("b", 2, Some(session), 5);
    let here = accept(&a, &b, Some(life(2))).unwrap();
    assert_eq!(
        (here.session, here.start),
        (session, Start::Resume { received: 5 })
    );
    let there = accept(&b, &a, Some(life(1))).unwrap();
    assert_eq!(
        (there.session, there.start),
        (session, Start::Resume { received: 3 })
    );
}

#[test]
fn a_session_that_one_side_gave_up_is_lost_on_both() {
    let session = SessionId {
        lower: 7,
        higher: 8,
    };
    let a = resuming("a", 1, Some(session), 3);
    for theirs in [
        None,
        Some(SessionId {
            lower: 7,
            higher: 9,
        }),
    ] {
        let b = resuming("b", 2, theirs, 0);
        let here = accept(&a, &b, Some(life(2))).unwrap();
        let there = accept(&b, &a, Some(life(1))).unwrap();
        assert_eq!(
            here.start,
            Start::Fresh {
                before: Before::LostSession
            }
        );
        assert_eq!(here, there);
        assert_ne!(here.session, session);
    }
}

#[test]
fn a_restarted_peer_begins_afresh_whatever_it_claims_to_resume() {
    let session = Some(SessionId {
        lower: 7,
        higher: 8,
    });
    let a = resuming("a", 1, session, 0);
    let b = resuming("b", 3, session, 0);
    let here = accept(&a, &b, Some(life(2))).unwrap();
    assert_eq!(
        here.start,
        Start::Fresh {
            before: Before::OlderIncarnation
        }
    );
}

#[test]
fn an_older_life_is_superseded() {
    let refusal = accept(&node("a", 1), &node("b", 2), Some(life(3))).unwrap_err();
    let theirs = life(2);
    assert_eq!(
        refusal,
        Refusal::Superseded {
            node: "b".into(),
            known: life(3),
            theirs
        }
    );
    assert_eq!(refusal.fault(), Fault::Peer);
}

#[test]
fn the_newest_common_protocol_is_spoken_and_none_is_refused() {
    let speaks = |oldest, newest| {
        let mut node = node("n", u64::from(100 * oldest + newest));
        node.hello.protocols = Protocols { oldest, newest };
        node
    };
    let spoken = |a: &Node, b: &Node| greet(&a.hello, &b.hello);
    assert_eq!(spoken(&speaks(2, 5), &speaks(3, 4)), Ok(4));
    assert_eq!(spoken(&speaks(3, 4), &speaks(2, 5)), Ok(4));
    assert_eq!(spoken(&speaks(1, 3), &speaks(3, 9)), Ok(3));
    for (a, b) in [(speaks(1, 2), speaks(3, 4)), (speaks(3, 4), speaks(1, 2))] {
        let refusal = spoken(&a, &b).unwrap_err();
        assert_eq!(refusal.fault(), Fault::Configuration);
        let text = refusal.to_string();
        for speaks in [a.hello.protocols, b.hello.protocols] {
            assert!(text.contains(&speaks.to_string()), "{text}");
        }
        assert_eq!(accept(&a, &b, None), Err(refusal));
    }
}

#[test]
fn one_key_alone_is_refused_with_the_side_that_lacks_it() {
    let (mut a, b) = (node("a", 1), node("b", 2));
    a.hello.keyed = true;
    let there = accept(&a, &b, None).unwrap_err();
    let here = accept(&b, &a, None).unwrap_err();
    assert!(
        there.to_string().starts_with("\"b\" has no cluster key"),
        "{there}"
    );
    assert!(
        here.to_string().starts_with("this node has no cluster key"),
        "{here}"
    );
    assert_eq!(here.fault(), Fault::Configuration);
}

#[test]
fn a_node_does_not_talk_to_itself() {
    let a = node("a", 1);
    assert_eq!(
        accept(&a, &a, None),
        Err(Refusal::SelfConnection { node: "a".into() })
    );
}

#[test]
fn quiescence_is_demanded_of_both() {
    let without = |mut n: Node| {
        n.hello.capabilities = Capabilities::CHECKSUM;
        n
    };
    let (a, b) = (node("a", 1), node("b", 2));
    let refusal = accept(&a, &without(node("b", 2)), None).unwrap_err();
    assert_eq!(refusal, Refusal::PeerLacksQuiescence { node: "b".into() });
    let refusal = accept(&without(a), &b, None).unwrap_err();
    assert_eq!(
        (refusal.fault(), refusal),
        (Fault::Local, Refusal::LacksQuiescence)
    );
}

#[test]
fn capabilities_are_what_both_have_and_unknown_ones_do_not_matter() {
    let (mut a, mut b) = (node("a", 1), node("b", 2));
    a.hello.capabilities = Capabilities::QUIESCENCE;
    b.hello.capabilities = Capabilities(u32::MAX);
    assert_eq!(
        accept(&a, &b, None).unwrap().capabilities,
        Capabilities::QUIESCENCE
    );
}

#[test]
fn pools_of_one_name_that_do_not_fit_are_refused_with_every_difference() {
    let mut b = node("b", 2);
    b.offer.pools[0].1.layers = 40;
    b.offer.pools[0].1.page_bytes = 8192;
    let refusal = accept(&node("a", 1), &b, None).unwrap_err();
    let what = "layers 32 here, 40 there; page_bytes 4096 here, 8192 there".to_string();
    assert_eq!(
        refusal,
        Refusal::Layout {
            node: "b".into(),
            pool: "kv".into(),
            what
        }
    );
}

#[test]
fn pools_may_differ_in_size_and_order_and_be_on_one_side_only() {
    let mut b = node("b", 2);
    b.offer.pools[0].1.pages = 7;
    b.offer.pools[0].1.order = Order::PagesFirst;
    b.offer.pools.push((PoolId(1), layout("index-k")));
    assert!(accept(&node("a", 1), &b, None).is_ok());
}

#[test]
fn tokens_of_an_aux_page_do_not_matter() {
    let mut a = node("a", 1);
    a.offer.pools[0].1.kind = PoolKind::Aux;
    let mut b = node("b", 2);
    b.offer.pools = a.offer.pools.clone();
    b.offer.pools[0].1.page_tokens = 99;
    assert!(accept(&a, &b, None).is_ok());
}

/// Heads `first..first + held` of 8, in pages of so many tokens; the cells follow from it.
fn holding(node: &mut Node, first: u32, held: u32, page_tokens: u32) {
    use kvroom_kernels::layout::cube::{CubeKind, DimOrder, Dtype, Plane, Share};
    let plane = Plane {
        heads: Share::part(8, first, held),
        channels: 64,
        dtype: Dtype::bf16(),
    };
    let content = CubeLayout {
        name: "kv".into(),
        kind: CubeKind::Kv,
        layers: Share::whole(32),
        planes: vec![plane; 2],
        page_tokens,
        granule: 1,
        pages: 100,
        page_gap: 0,
        order: DimOrder::NHD,
    };
    node.offer.pools = vec![(PoolId(0), content.pool_layout().unwrap())];
    node.offer.contents = vec![(PoolId(0), content)];
}

#[test]
fn pools_that_both_say_what_they_hold_fit_by_that_and_not_by_their_cells() {
    let (mut a, mut b) = (node("a", 1), node("b", 2));
    holding(&mut a, 0, 2, 16);
    holding(&mut b, 0, 8, 32);
    assert!(accept(&a, &b, None).is_ok());
    assert!(accept(&b, &a, None).is_ok());
    // If one side says nothing, cells are what there is to compare.
    a.offer.contents.clear();
    let refusal = accept(&a, &b, None).unwrap_err().to_string();
    assert!(refusal.contains("page_bytes"), "{refusal}");
    // Pages of which none divides the other.
    let (mut a, mut b) = (node("a", 1), node("b", 2));
    holding(&mut a, 0, 8, 16);
    holding(&mut b, 0, 8, 24);
    let refusal = accept(&a, &b, None).unwrap_err().to_string();
    let says = "page_tokens (one must divide the other) 16 here, 24 there";
    assert!(refusal.contains(says), "{refusal}");
}

fn with_ucx(n: u64, version: (u32, u32, u32), rdma: bool, always: bool) -> Offer {
    let key = FarKey {
        base: 4096,
        key: vec![1],
    };
    Offer {
        ucx: Some(UcxOffer {
            version,
            rdma,
            wanted: always,
            always,
            one_sided: false,
            worker: vec![2],
            probe: key.clone(),
            pools: vec![(PoolId(0), key)],
        }),
        ..node("x", n).offer
    }
}

#[test]
fn ucx_is_used_where_both_have_rdma_or_one_asks_for_it_and_both_sides_conclude_the_same() {
    let of = |rdma, always| with_ucx(1, (1, 20, 0), rdma, always);
    let both = |a: &Offer, b: &Offer| {
        assert_eq!(use_ucx(a, b), use_ucx(b, a));
        use_ucx(a, b)
    };
    let tried = |always, mode| UcxVerdict::Try { always, mode };
    let (puts, messages) = (UcxMode::OneSided, UcxMode::Messages);
    assert_eq!(both(&of(true, false), &of(true, false)), tried(false, puts));
    assert_eq!(both(&of(true, false), &of(false, false)), UcxVerdict::No);
    assert_eq!(
        both(&of(false, true), &of(false, false)),
        tried(true, messages)
    );
    // One that is wanted only is tried in the same way, and not insisted on.
    let mut wants = of(false, false);
    wants.ucx.as_mut().unwrap().wanted = true;
    assert_eq!(both(&wants, &of(false, false)), tried(false, messages));
    assert_eq!(both(&wants, &of(false, true)), tried(true, messages));
    // Puts without RDMA are for who asks for them on both sides.
    let asks = |mut offer: Offer| {
        offer.ucx.as_mut().unwrap().one_sided = true;
        offer
    };
    let (a, b) = (asks(of(false, true)), of(false, true));
    assert_eq!(both(&a, &b), tried(true, messages));
    assert_eq!(both(&a, &asks(b)), tried(true, puts));
    assert_eq!(both(&of(false, true), &node("y", 2).offer), UcxVerdict::No);
    // Shared memory is nearer, unless UCX was asked for.
    let near = |mut offer: Offer| {
        offer.host = Some(Host {
            boot: [3; 16],
            socket: None,
            shared: SharedPools::All,
        });
        offer
    };
    let (a, b) = (near(of(true, false)), near(of(true, false)));
    assert_eq!(both(&a, &b), UcxVerdict::No);
    assert_eq!(both(&near(of(false, true)), &b), tried(true, messages));
}

#[test]
fn versions_of_ucx_whose_wire_does_not_mix_are_told_apart() {
    let mixes = |a, b| {
        assert_eq!(ucx_mixes(a, b), ucx_mixes(b, a));
        ucx_mixes(a, b)
    };
    assert!(mixes((1, 13, 0), (1, 13, 1)));
    assert!(!mixes((1, 20, 0), (1, 22, 1)));
    assert!(!mixes((1, 13, 1), (1, 20, 0)));
    assert!(!mixes((1, 18, 0), (1, 22, 0)));
    assert!(!mixes((1, 22, 0), (1, 23, 0)));
    assert!(!mixes((1, 20, 0), (2, 20, 0)));
    let (a, b) = (
        with_ucx(1, (1, 13, 1), false, true),
        with_ucx(2, (1, 20, 0), false, false),
    );
    assert_eq!(use_ucx(&a, &b), UcxVerdict::Versions { always: true });
}
