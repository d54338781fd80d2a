//! Reaching a limit is back-pressure, or an error that names it; nothing is lost.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use kvroom::actors::copy::plant::Brake;
use kvroom::{
    Code, Deadlines, Limits, LocalHub, Node, NodeError, Outcome, Pool, PoolError, ReserveError,
    RoomId, StartErrorKind, Which,
};
use std::time::Duration;

async fn limited(limits: Limits) -> Duo {
    Duo::with(Setup {
        limits,
        ..Setup::default()
    })
    .await
}

#[tokio::test]
async fn a_full_window_makes_reserve_wait_and_names_its_limit() {
    let duo = limited(Limits {
        chunks_in_flight: 2,
        ..Limits::default()
    })
    .await;
    let sender = duo.send(1, 0).await;
    for i in 0..2u32 {
        let at = u64::from(i) * TOKENS;
        push(
            &sender,
            at..at + TOKENS,
            duo.prefill.stamped(&[i], 1, i.into()),
        )
        .await;
    }
    let error = sender.try_reserve().unwrap_err();
    assert!(matches!(error, ReserveError::Full { value: 2, .. }));
    names(
        &error,
        &["chunks_in_flight = 2", "wait until a chunk has landed"],
    );
    let mut third = Box::pin(sender.reserve());
    assert!(poll_once(&mut third).await.is_none());
    // The first two land as soon as there is somewhere to land.
    let receiver = duo.receive(1, 0, &[0, 1]).await;
    drop(within(third).await.unwrap());
    sender.finish(2 * TOKENS, None).unwrap();
    assert_eq!(within(receiver.outcome()).await, Outcome::Done);
    drop((sender, receiver));
    duo.end().await;
}

#[tokio::test]
async fn full_lanes_make_reserve_wait_and_name_their_limit() {
    let duo = limited(Limits {
        jobs_per_lane: 1,
        ..Limits::default()
    })
    .await;
    let (first, second) = (duo.send(1, 0).await, duo.send(2, 0).await);
    let chunk = push(&first, 0..TOKENS, duo.prefill.stamped(&[0], 1, 0)).await;
    let error = second.try_reserve().unwrap_err();
    names(&error, &["jobs_per_lane = 1"]);
    first.abort("out of the way");
    assert!(within(chunk.released()).await.is_some());
    drop(within(second.reserve()).await.unwrap());
    drop(second.try_reserve().unwrap());
    drop((first, second));
    duo.end().await;
}

#[tokio::test]
async fn a_room_with_more_receivers_than_the_lanes_have_room_for_is_refused() {
    let duo = limited(Limits {
        jobs_per_lane: 2,
        ..Limits::default()
    })
    .await;
    let room = duo.prefill.node.send(RoomId(1)).receivers(3);
    let error = room.start().await.unwrap_err();
    names(&error, &["jobs_per_lane = 2", "3 receivers"]);
    duo.end().await;
}

#[tokio::test]
async fn reserve_wakes_when_its_room_ends() {
    let duo = limited(Limits {
        chunks_in_flight: 1,
        ..Limits::default()
    })
    .await;
    let sender = duo.send(1, 0).await;
    push(&sender, 0..TOKENS, duo.prefill.stamped(&[0], 1, 0)).await;
    let (error, ()) = tokio::join!(within(sender.reserve()), async {
        duo.prefill.node.abort_where(Which::All, "no more").await;
    });
    let error = error.unwrap_err();
    assert_eq!(error.reason.code, Code::Requested);
    names(&error, &["1#0", "is over", "no more"]);
    let error = sender.try_reserve().unwrap_err();
    names(&error, &["1#0", "is over"]);
    drop(sender);
    duo.end().await;
}

#[tokio::test]
async fn a_room_of_too_many_receivers_senders_or_pages_names_the_limit() {
    let duo = limited(Limits {
        receivers: 2,
        senders: 1,
        pages_per_claim: 4,
        ..Limits::default()
    })
    .await;
    for receivers in [0, 3] {
        let room = duo.prefill.node.send(RoomId(1)).receivers(receivers);
        let error = room.start().await.unwrap_err();
        names(&error, &[&format!("receivers({receivers})"), "1 to 2"]);
    }
    let room = || {
        let lease = duo.decode.pool.lease_write(&[0]).unwrap();
        duo.decode
            .node
            .receive(RoomId(1))
            .from(&duo.peer)
            .into(lease)
    };
    let error = room().receivers(3).start().await.unwrap_err();
    names(&error, &["receivers(3)", "1 to 2"]);
    drop(error);
    let error = room().receivers(2).rank(2).start().await.unwrap_err();
    names(&error, &["rank(2)", "receivers(2)", "count from 0"]);
    drop(error);
    let error = room().from(&duo.peer).start().await.unwrap_err();
    names(&error, &["senders = 1", "2 senders"]);
    drop(error);
    let lease = duo.decode.pool.lease_write(&[0, 1, 2, 3, 4]).unwrap();
    let room = duo.decode.node.receive(RoomId(1)).from(&duo.peer);
    let error = room.into(lease).start().await.unwrap_err();
    assert!(matches!(error.kind, StartErrorKind::LimitReached { .. }));
    names(&error, &["pages_per_claim = 4", "5 pages"]);
    assert_eq!(error.leases[0].pages().len(), 5);
    drop(error);
    duo.end().await;
}

#[tokio::test]
async fn early_claims_are_listed_oldest_first_and_a_full_list_refuses_the_newest() {
    let duo = limited(Limits {
        early_claims_per_peer: 3,
        ..Limits::default()
    })
    .await;
    let mut rooms = Vec::new();
    for (i, id) in [30u64, 10, 20].into_iter().enumerate() {
        rooms.push(duo.receive(id, 0, &[i as u32]).await);
        let n = i as u64 + 1;
        until_stats("it waits", &duo.prefill.node, |s| s.early_claims == n).await;
    }
    let claims = duo.prefill.node.early_claims().await;
    let ids: Vec<u64> = claims.iter().map(|c| c.key.id.0).collect();
    assert_eq!(ids, [30, 10, 20]);
    assert!(claims.iter().all(|c| c.peer == "d" && c.pages == 1));

    let one_more = duo.receive(5, 0, &[9]).await;
    let outcome = within(one_more.outcome()).await;
    assert_eq!(code(&outcome), Code::TooManyEarlyClaims);
    names(&text(&outcome), &["early_claims_per_peer = 3"]);
    assert_eq!(within(one_more.released()).await.leases.len(), 1);
    drop((rooms, one_more));
    duo.end().await;
}

#[tokio::test]
async fn an_early_claim_that_nobody_sends_for_expires_with_its_reason() {
    let duo = Duo::with(Setup {
        deadlines: Deadlines {
            early_claim: Duration::from_millis(20),
            ..Deadlines::default()
        },
        ..Setup::default()
    })
    .await;
    let room = duo.receive(1, 0, &[0]).await;
    let outcome = within(room.outcome()).await;
    assert_eq!(code(&outcome), Code::EarlyClaimExpired);
    names(&text(&outcome), &["no send", "in time"]);
    drop(room);
    duo.end().await;
}

#[tokio::test]
async fn claims_beyond_the_peers_credit_wait_and_are_served_in_order() {
    let duo = limited(Limits {
        claims_per_peer: 2,
        ..Limits::default()
    })
    .await;
    let mut rooms = Vec::new();
    for id in 0..8u64 {
        rooms.push(duo.receive(id, 0, &[id as u32]).await);
    }
    until_stats("two have arrived", &duo.prefill.node, |s| {
        s.early_claims == 2
    })
    .await;
    // One that waits is aborted: it never leaves the node.
    rooms[7].abort("not any more");
    assert_eq!(within(rooms[7].released()).await.leases.len(), 1);
    for (id, room) in (0..).zip(&rooms).take(7) {
        let sender = duo.send(id, 0).await;
        let page = id as u32;
        push(&sender, 0..TOKENS, duo.prefill.stamped(&[page], id, 0)).await;
        sender.finish(TOKENS, None).unwrap();
        assert_eq!(within(room.outcome()).await, Outcome::Done);
        verify(&within(room.released()).await.leases[0], id, 0);
        assert_eq!(within(sender.outcome()).await, Outcome::Done);
    }
    drop(rooms);
    duo.end().await;
}

#[tokio::test]
async fn a_claim_without_a_free_gate_names_the_limit_and_gives_its_lease_back() {
    let duo = limited(Limits {
        gates: 1,
        ..Limits::default()
    })
    .await;
    let first = duo.receive(1, 0, &[0]).await;
    let second = duo.receive(2, 0, &[1]).await;
    let outcome = within(second.outcome()).await;
    assert_eq!(code(&outcome), Code::LimitReached);
    names(&text(&outcome), &["Limits::gates"]);
    assert_eq!(within(second.released()).await.leases.len(), 1);
    assert_eq!(first.try_outcome(), None);
    first.abort("free the gate");
    drop(within(first.released()).await);
    duo.moves(3, 0, &[0], &[0]).await;
    drop((first, second));
    duo.end().await;
}

#[tokio::test]
async fn a_claim_that_fits_no_frame_ends_its_own_room_and_no_other() {
    let duo = Duo::with(Setup {
        layout: kv(512, 64),
        limits: Limits {
            frame_bytes: 1_024,
            ..Limits::default()
        },
        ..Setup::default()
    })
    .await;
    let other = duo.receive(1, 0, &[0]).await;
    let pages: Vec<u32> = (1..400).collect();
    let long = duo.receive(2, 0, &pages).await;
    let outcome = within(long.outcome()).await;
    assert_eq!(code(&outcome), Code::LimitReached);
    names(&text(&outcome), &["399 pages", "frame_bytes = 1024"]);
    assert_eq!(within(long.released()).await.leases[0].pages(), pages);
    settle(&[&duo.decode.node, &duo.prefill.node]).await;
    assert_eq!(other.try_outcome(), None);
    duo.moves(3, 0, &[1], &[1]).await;
    drop((other, long));
    duo.end().await;
}

#[tokio::test]
async fn a_peer_with_too_many_quarantined_pages_is_refused_until_it_answers() {
    let duo = Duo::with(Setup {
        layout: kv(16, PIECE),
        lanes: 2,
        limits: Limits {
            quarantined_pages_per_peer: 2,
            ..Limits::default()
        },
        deadlines: Deadlines {
            drain: Duration::from_millis(5),
            ..Deadlines::default()
        },
        ..Setup::default()
    })
    .await;
    let receiver = duo.receive(1, 0, &[0, 1]).await;
    let sender = duo.send(1, 0).await;
    duo.brake.hold_after(0);
    push(&sender, 0..2 * TOKENS, duo.prefill.stamped(&[0, 1], 1, 0)).await;
    until("a piece is under way", || duo.brake.held() == 1).await;
    receiver.abort("gone");
    let d = &duo.decode.node;
    until_stats("it is quarantined", d, |s| s.quarantined_pages == 2).await;
    let lease = duo.decode.pool.lease_write(&[4]).unwrap();
    let room = duo.decode.node.receive(RoomId(2)).from(&duo.peer);
    let error = room.into(lease).start().await.unwrap_err();
    names(
        &error,
        &["quarantined_pages_per_peer = 2", "use another one"],
    );
    assert_eq!(error.leases[0].pages(), [4]);
    drop(error);
    duo.brake.release();
    drop(within(receiver.released()).await);
    duo.moves(3, 0, &[3], &[4]).await;
    drop(sender);
    duo.end().await;
}

#[tokio::test]
async fn spent_keys_are_remembered_up_to_the_limit() {
    let duo = limited(Limits {
        spent_keys: 2,
        ..Limits::default()
    })
    .await;
    for id in 0..3 {
        duo.moves(id, 0, &[0], &[0]).await;
    }
    // The oldest is forgotten; the last two are not.
    duo.moves(0, 0, &[0], &[0]).await;
    let error = duo.prefill.node.send(RoomId(2)).start().await.unwrap_err();
    names(&error, &["2#0", "spent"]);
    assert_eq!(duo.decode.node.stats().await.remembered_keys, 2);
    duo.end().await;
}

#[tokio::test]
async fn a_node_that_cannot_be_meant_is_refused_by_name() {
    let hub = LocalHub::new();
    let start = async |builder: kvroom::NodeBuilder| builder.start().await.map(|_| ()).unwrap_err();
    let error = start(Node::builder("")).await;
    assert!(matches!(error, NodeError::BadName { .. }));
    names(&error, &["1 to 64 bytes", "has 0"]);
    names(&start(Node::builder(&"x".repeat(65))).await, &["has 65"]);
    names(&start(Node::builder("n").lanes(0)).await, &["lanes is 0"]);
    names(&start(Node::builder("n").shards(0)).await, &["shards is 0"]);
    let none = Limits {
        rooms: 0,
        ..Limits::default()
    };
    names(
        &start(Node::builder("n").limits(none)).await,
        &["Limits::rooms is 0"],
    );
    let pool = || Pool::owned(kv(1, 64)).unwrap();
    let twins = Node::builder("n").pool(pool()).pool(pool());
    names(&start(twins).await, &["two pools", "\"kv\""]);
    let first = Node::builder("n").hub(&hub).start().await.unwrap();
    let error = start(Node::builder("n").hub(&hub)).await;
    names(&error, &["\"n\"", "already"]);
    first.shutdown().await;
    // A name is free again when its node has stopped.
    let again = Node::builder("n").hub(&hub).start().await.unwrap();
    assert!(again.shutdown().await.drained);

    let mut none = kv(1, 64);
    none.pages = 0;
    let error = Pool::owned(none).unwrap_err();
    assert!(matches!(error, PoolError::BadLayout { .. }));
    names(&error, &["\"kv\"", "at least 1 page"]);
    let mut huge = kv(u32::MAX, u64::MAX);
    huge.layers = u32::MAX;
    names(&Pool::owned(huge).unwrap_err(), &["address space"]);
}

#[tokio::test]
async fn aborts_by_room_peer_tag_and_all_end_those_rooms_and_no_others() {
    let duo = Duo::new().await;
    let other = Side::start(&duo.hub, "p2", &Setup::default(), &Brake::default()).await;
    let peer2 = duo.decode.node.connect("local://p2").await.unwrap();
    let node = &duo.decode.node;
    let start = async |id: u64, peer: &kvroom::Peer, tag: &str| {
        let lease = duo.decode.pool.lease_write(&[id as u32]).unwrap();
        let room = node.receive(RoomId(id)).from(peer).into(lease).tag(tag);
        room.start().await.unwrap()
    };
    let rooms = [
        start(0, &duo.peer, "agent-1").await,
        start(1, &duo.peer, "agent-1").await,
        start(2, &duo.peer, "agent-2").await,
        start(3, &peer2, "agent-2").await,
        start(4, &peer2, "agent-3").await,
    ];
    let ended = || -> Vec<u64> {
        let over = rooms.iter().filter(|r| r.try_outcome().is_some());
        over.map(|r| r.key().id.0).collect()
    };
    let abort = async |which: Which, told: usize, expect: &[u64]| {
        assert_eq!(node.abort_where(which, "by list").await, told);
        for id in expect {
            let outcome = within(rooms[*id as usize].outcome()).await;
            assert_eq!(code(&outcome), Code::Requested);
        }
        settle(&[node]).await;
        assert_eq!(ended(), expect);
    };
    let infos = node.rooms().await;
    assert_eq!(infos.len(), 5);
    let info = infos.iter().find(|i| i.key.id.0 == 3).unwrap();
    assert_eq!(
        (info.peers.as_slice(), info.pages),
        (&["p2".to_owned()][..], 1)
    );
    assert_eq!(info.tag.as_deref(), Some("agent-2"));
    assert!(info.outcome.is_none() && info.held_because.is_none() && !info.quarantined);

    abort(Which::Room(RoomId(1)), 1, &[1]).await;
    abort(Which::Tag("agent-1".into()), 1, &[0, 1]).await;
    abort(Which::Peer(peer2.clone()), 2, &[0, 1, 3, 4]).await;
    abort(Which::Room(RoomId(77)), 0, &[0, 1, 3, 4]).await;
    abort(Which::All, 1, &[0, 1, 2, 3, 4]).await;
    drop(rooms);
    other.quiet().await;
    duo.end().await;
}

#[tokio::test]
async fn a_batch_over_the_limit_of_rooms_is_started_as_far_as_there_is_room_and_does_not_wait() {
    let limits = kvroom::Limits {
        rooms: 3,
        ..kvroom::Limits::default()
    };
    let node = kvroom::Node::builder("batch")
        .limits(limits)
        .start()
        .await
        .unwrap();
    let batch = (0..5).map(|id| node.send(kvroom::RoomId(id))).collect();
    let started = node.start_sends(batch).await;
    assert_eq!(started.iter().filter(|room| room.is_ok()).count(), 3);
    for refused in started.iter().skip(3) {
        let text = refused.as_ref().unwrap_err().to_string();
        assert!(text.contains("rooms = 3"), "{text}");
    }
    drop(started);
    node.shutdown().await;
}

#[tokio::test]
async fn the_largest_limits_and_deadlines_are_taken_as_none() {
    let node = kvroom::Node::builder("large")
        .limits(kvroom::Limits {
            chunks_in_flight: usize::MAX,
            ..kvroom::Limits::default()
        })
        .deadlines(kvroom::Deadlines {
            shutdown: std::time::Duration::MAX,
            ..kvroom::Deadlines::default()
        })
        .start()
        .await
        .unwrap();
    let room = node.send(kvroom::RoomId(1)).start().await.unwrap();
    drop(room.reserve().await.unwrap());
    assert!(node.shutdown().await.drained);
}

#[tokio::test]
async fn an_empty_range_of_layers_is_refused_here_and_costs_no_session() {
    let hub = kvroom::LocalHub::new();
    let prefill = kvroom::Node::builder("p").hub(&hub).start().await.unwrap();
    let decode = kvroom::Node::builder("d").hub(&hub).start().await.unwrap();
    let peer = decode.connect("local://p").await.unwrap();
    let room = decode.receive(kvroom::RoomId(1));
    #[allow(clippy::reversed_empty_ranges)]
    let error = room.from_layers(&peer, 9..1).start().await.unwrap_err();
    assert!(error.to_string().contains("9..1"), "{error}");
    assert_eq!(peer.is_up(), Ok(()));
    decode.shutdown().await;
    prefill.shutdown().await;
}
