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

fn hello(node: &str, n: u64) -> Hello {
    Hello {
        protocol: PROTOCOL,
        node: node.into(),
        incarnation: life(n),
        nonce: 100 + n,
        capabilities: Capabilities::QUIESCENCE.and(Capabilities::CHECKSUM),
        pools: vec![(PoolId(0), layout("kv"))],
        credit: 8,
        resume: None,
        received: 0,
    }
}

#[test]
fn strangers_begin_a_fresh_session_and_name_it_alike() {
    let (a, b) = (hello("a", 1), hello("b", 2));
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
    let a = Hello {
        resume: Some(session),
        received: 3,
        ..hello("a", 1)
    };
    let b = Hello {
        resume: Some(session),
        received: 5,
        ..hello("b", 2)
    };
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
    let a = Hello {
        resume: Some(session),
        received: 3,
        ..hello("a", 1)
    };
    for theirs in [
        None,
        Some(SessionId {
            lower: 7,
            higher: 9,
        }),
    ] {
        let b = Hello {
            resume: theirs,
            ..hello("b", 2)
        };
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
    let a = Hello {
        resume: session,
        ..hello("a", 1)
    };
    let b = Hello {
        resume: session,
        ..hello("b", 3)
    };
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
    let refusal = accept(&hello("a", 1), &hello("b", 2), Some(life(3))).unwrap_err();
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
fn another_protocol_is_refused() {
    let b = Hello {
        protocol: PROTOCOL + 1,
        ..hello("b", 2)
    };
    let refusal = accept(&hello("a", 1), &b, None).unwrap_err();
    assert_eq!(refusal.fault(), Fault::Configuration);
    assert!(
        refusal
            .to_string()
            .contains(&format!("protocol {}", PROTOCOL + 1))
    );
}

#[test]
fn a_node_does_not_talk_to_itself() {
    let a = hello("a", 1);
    assert_eq!(
        accept(&a, &a, None),
        Err(Refusal::SelfConnection { node: "a".into() })
    );
}

#[test]
fn quiescence_is_demanded_of_both() {
    let without = |h| Hello {
        capabilities: Capabilities::CHECKSUM,
        ..h
    };
    let (a, b) = (hello("a", 1), hello("b", 2));
    let refusal = accept(&a, &without(b.clone()), None).unwrap_err();
    assert_eq!(refusal, Refusal::PeerLacksQuiescence { node: "b".into() });
    let refusal = accept(&without(a), &b, None).unwrap_err();
    assert_eq!(
        (refusal.fault(), refusal),
        (Fault::Local, Refusal::LacksQuiescence)
    );
}

#[test]
fn capabilities_are_what_both_have_and_unknown_ones_do_not_matter() {
    let b = Hello {
        capabilities: Capabilities(u32::MAX),
        ..hello("b", 2)
    };
    let a = Hello {
        capabilities: Capabilities::QUIESCENCE,
        ..hello("a", 1)
    };
    assert_eq!(
        accept(&a, &b, None).unwrap().capabilities,
        Capabilities::QUIESCENCE
    );
}

#[test]
fn pools_of_one_name_that_do_not_fit_are_refused_with_every_difference() {
    let mut b = hello("b", 2);
    b.pools[0].1.layers = 40;
    b.pools[0].1.page_bytes = 8192;
    let refusal = accept(&hello("a", 1), &b, None).unwrap_err();
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
    let mut b = hello("b", 2);
    b.pools[0].1.pages = 7;
    b.pools[0].1.order = Order::PagesFirst;
    b.pools.push((PoolId(1), layout("index-k")));
    assert!(accept(&hello("a", 1), &b, None).is_ok());
}

#[test]
fn tokens_of_an_aux_page_do_not_matter() {
    let mut a = hello("a", 1);
    a.pools[0].1.kind = PoolKind::Aux;
    let mut b = Hello {
        pools: a.pools.clone(),
        ..hello("b", 2)
    };
    b.pools[0].1.page_tokens = 99;
    assert!(accept(&a, &b, None).is_ok());
}
