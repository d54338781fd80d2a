//! Nodes come, meet, part and go.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use kvroom::actors::copy::plant::Brake;
use kvroom::actors::runtime::shared::NodeShared;
use kvroom::actors::supervisor::actor::Inbound;
use kvroom::{
    Code, ConnectError, LeaseError, LocalHub, Node, Outcome, Pool, PoolChangeError, RoomId,
    Side as Where, StartErrorKind, StateName,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

#[tokio::test]
async fn an_address_that_leads_nowhere_is_named_with_what_there_is() {
    let duo = Duo::new().await;
    let d = &duo.decode.node;
    let error = d.connect("local://x").await.unwrap_err();
    assert!(matches!(error, ConnectError::Unknown { .. }));
    names(&error, &["\"x\"", "d, p"]);
    for address in ["", "p", "local://", "http://10.0.0.1:7400", "LOCAL://p"] {
        let error = d.connect(address).await.unwrap_err();
        assert!(matches!(error, ConnectError::BadAddress(_)), "{error:?}");
        names(&error, &[address, "local://NAME"]);
    }
    let error = d.connect("local://d").await.unwrap_err();
    names(&error, &["\"d\"", "this node"]);
    let alone = Node::builder("alone").start().await.unwrap();
    let error = alone.connect("local://p").await.unwrap_err();
    assert_eq!(error, ConnectError::NoHub);
    names(&error, &["hub(&hub)"]);
    alone.shutdown().await;
    let error = alone.connect("local://p").await.unwrap_err();
    assert_eq!(error, ConnectError::Stopped);
    duo.end().await;
}

#[tokio::test]
async fn layouts_that_do_not_fit_are_refused_with_every_difference_and_nobody_is_hurt() {
    let duo = Duo::new().await;
    let mut layout = kv(16, 8192);
    layout.layers = 3;
    let setup = Setup {
        layout,
        ..Setup::default()
    };
    let odd = Side::start(&duo.hub, "odd", &setup, &Brake::default()).await;
    let error = odd.node.connect("local://p").await.unwrap_err();
    assert!(matches!(error, ConnectError::Refused { .. }));
    names(&error, &["\"p\"", "kv", "8192", "4096", "layers", "3", "2"]);
    let error = duo.prefill.node.connect("local://odd").await.unwrap_err();
    names(&error, &["\"odd\"", "kv", "layers"]);
    assert!(duo.peer.is_up().is_ok());
    duo.moves(1, 0, &[0], &[0]).await;
    odd.quiet().await;
    assert!(odd.node.shutdown().await.drained);
    duo.end().await;
}

#[tokio::test]
async fn connecting_again_gives_the_session_that_is_there() {
    let duo = Duo::new().await;
    let receiver = duo.receive(1, 0, &[0]).await;
    let again = duo.decode.node.connect("local://p").await.unwrap();
    assert_eq!(again.id(), duo.peer.id());
    let back = duo.prefill.node.connect("local://d").await.unwrap();
    assert_eq!(
        (back.name(), back.incarnation()),
        ("d", duo.decode.node.incarnation())
    );
    let peers = duo.decode.node.peers().await;
    assert_eq!(peers.len(), 1);
    assert_eq!(peers[0].incarnation(), duo.prefill.node.incarnation());
    settle(&[&duo.decode.node, &duo.prefill.node]).await;
    assert_eq!(receiver.try_outcome(), None);
    drop(receiver);
    duo.end().await;
}

#[tokio::test]
async fn disconnect_ends_the_rooms_of_both_sides_once_and_new_ones_work_at_once() {
    let duo = Duo::of_pieces().await;
    for round in 0..20u64 {
        let id = 10 * round;
        let waiting = duo.receive(id, 0, &[0]).await;
        let receiver = duo.receive(id + 1, 0, &[1]).await;
        let sender = duo.send(id + 1, 0).await;
        duo.brake.hold_after(1);
        let chunk = push(&sender, 0..TOKENS, duo.prefill.stamped(&[1], 1, 0)).await;
        until("a piece is under way", || duo.brake.held() == 1).await;
        if round % 2 == 0 {
            duo.decode.node.disconnect(&duo.peer).await;
            names(
                &duo.peer.is_up().unwrap_err(),
                &["SessionLost", "on purpose"],
            );
        } else {
            let d = duo.prefill.node.peers().await.remove(0);
            duo.prefill.node.disconnect(&d).await;
            names(&d.is_up().unwrap_err(), &["SessionLost"]);
        }
        for outcome in [
            within(waiting.outcome()).await,
            within(receiver.outcome()).await,
            within(sender.outcome()).await,
        ] {
            assert_eq!(code(&outcome), Code::SessionLost, "{outcome}");
        }
        // The outcome is not the memory.
        assert!(chunk.try_released().is_none());
        assert!(receiver.try_released().is_none());
        let peer = within(duo.decode.node.connect("local://p")).await.unwrap();
        assert_eq!(peer.id(), duo.peer.id());
        assert!(duo.peer.is_up().is_ok());
        duo.brake.release();
        assert!(within(chunk.released()).await.is_some());
        assert_eq!(within(receiver.released()).await.leases.len(), 1);
        drop((waiting, receiver, sender));
        duo.moves(id + 2, 0, &[2, 3], &[2, 3]).await;
    }
    let (p, d) = (
        duo.prefill.node.stats().await,
        duo.decode.node.stats().await,
    );
    assert_eq!((p.aborted, p.done), (20, 20));
    assert_eq!((d.aborted, d.done), (40, 20));
    duo.end().await;
}

#[tokio::test]
async fn a_room_towards_a_peer_without_a_session_is_told_what_to_do() {
    let duo = Duo::new().await;
    duo.decode.node.disconnect(&duo.peer).await;
    let room = duo.receive(1, 0, &[0]).await;
    let outcome = within(room.outcome()).await;
    assert_eq!(code(&outcome), Code::PeerLost);
    names(&text(&outcome), &["no session", "\"p\"", "connect again"]);
    assert_eq!(within(room.released()).await.leases.len(), 1);
    drop(room);
    duo.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nodes_that_connect_to_each_other_at_once_end_up_with_one_session() {
    for round in 0..30 {
        let (hub, setup, brake) = (LocalHub::new(), Setup::default(), Brake::default());
        let a = Side::start(&hub, "a", &setup, &brake).await;
        let b = Side::start(&hub, "b", &setup, &brake).await;
        let tasks: Vec<_> = [(&a.node, "local://b"), (&b.node, "local://a")]
            .into_iter()
            .cycle()
            .take(6)
            .map(|(node, to)| {
                let node = node.clone();
                tokio::spawn(async move { node.connect(to).await })
            })
            .collect();
        let mut peers = Vec::new();
        for task in tasks {
            peers.push(within(task).await.unwrap().unwrap());
        }
        // Nodes that play both roles, over that one session.
        let mut rooms = Vec::new();
        for (at, (from, to)) in [(&a, &b), (&b, &a)].into_iter().enumerate() {
            let id = RoomId(round);
            // The peer of a decode node `to` is the one it connected to.
            let peer = &peers[1 - at];
            let lease = to.pool.lease_write(&[at as u32]).unwrap();
            let room = to.node.receive(id).from(peer).into(lease);
            let receiver = within(room.start()).await.unwrap();
            let sender = within(from.node.send(id).start()).await.unwrap();
            push(&sender, 0..TOKENS, from.stamped(&[8], 3, 0)).await;
            sender.finish(TOKENS, None).unwrap();
            rooms.push((receiver, sender));
        }
        for (receiver, sender) in &rooms {
            assert_eq!(
                within(receiver.outcome()).await,
                Outcome::Done,
                "round {round}"
            );
            assert_eq!(within(sender.outcome()).await, Outcome::Done);
            verify(&within(receiver.released()).await.leases[0], 3, 0);
        }
        assert!(peers.iter().all(|p| p.is_up().is_ok()));
        drop(rooms);
        for side in [&a, &b] {
            side.quiet().await;
            assert_eq!(side.node.peers().await.len(), 1);
        }
        tokio::join!(a.node.shutdown(), b.node.shutdown());
    }
}

#[tokio::test]
async fn a_node_may_play_both_roles_with_the_same_room_id() {
    let duo = Duo::new().await;
    let back = duo.prefill.node.connect("local://d").await.unwrap();
    let (there, here) = (duo.receive(1, 0, &[0]).await, duo.send(1, 0).await);
    let lease = duo.prefill.pool.lease_write(&[5]).unwrap();
    let room = duo.prefill.node.receive(RoomId(1)).from(&back).into(lease);
    let (r2, s2) = (
        room.start().await.unwrap(),
        duo.decode.node.send(RoomId(1)).start().await.unwrap(),
    );
    push(&here, 0..TOKENS, duo.prefill.stamped(&[1], 1, 0)).await;
    push(&s2, 0..TOKENS, duo.decode.stamped(&[6], 2, 0)).await;
    here.finish(TOKENS, None).unwrap();
    s2.finish(TOKENS, None).unwrap();
    assert_eq!(within(there.outcome()).await, Outcome::Done);
    assert_eq!(within(r2.outcome()).await, Outcome::Done);
    verify(&within(there.released()).await.leases[0], 1, 0);
    verify(&within(r2.released()).await.leases[0], 2, 0);
    drop((here, s2));
    duo.end().await;
}

#[tokio::test]
async fn several_shards_serve_the_same_peers() {
    let duo = Duo::with(Setup {
        shards: 3,
        lanes: 2,
        ..Setup::default()
    })
    .await;
    for id in 0..40 {
        duo.moves(id, 0, &[0, 3], &[1, 2]).await;
    }
    assert_eq!(duo.decode.node.stats().await.done, 40);
    duo.end().await;
}

#[tokio::test]
async fn shutdown_ends_rooms_in_flight_and_waits_until_they_have_drained() {
    let duo = Duo::of_pieces().await;
    let receiver = duo.receive(1, 0, &[0]).await;
    let waiting = duo.receive(2, 0, &[1]).await;
    let sender = duo.send(1, 0).await;
    duo.brake.hold_after(1);
    let chunk = push(&sender, 0..TOKENS, duo.prefill.stamped(&[0], 1, 0)).await;
    until("a piece is under way", || duo.brake.held() == 1).await;
    let node = duo.prefill.node.clone();
    let stopping = tokio::spawn(async move { node.shutdown().await });
    let outcome = within(sender.outcome()).await;
    assert_eq!(code(&outcome), Code::NodeShutdown);
    assert_eq!(code(&within(receiver.outcome()).await), Code::NodeShutdown);
    assert!(!stopping.is_finished());
    assert!(chunk.try_released().is_none());
    duo.brake.release();
    let report = within(stopping).await.unwrap();
    assert!(report.drained && report.leaked.is_empty());
    assert!(within(chunk.released()).await.is_some());
    assert_eq!(within(receiver.released()).await.leases.len(), 1);
    // A node that goes says goodbye.
    assert!(matches!(
        code(&within(waiting.outcome()).await),
        Code::PeerLost | Code::NodeShutdown
    ));
    until("it is seen", || duo.peer.is_up().is_err()).await;
    drop((waiting, sender, receiver));
    duo.decode.quiet().await;
    // And again.
    assert!(within(duo.prefill.node.shutdown()).await.drained);
    assert!(within(duo.decode.node.shutdown()).await.drained);
}

#[tokio::test]
async fn two_shutdowns_of_one_node_at_once_give_the_same_report() {
    let duo = Duo::of_pieces().await;
    let receiver = duo.receive(1, 0, &[0]).await;
    let sender = duo.send(1, 0).await;
    duo.brake.hold_after(0);
    push(&sender, 0..TOKENS, duo.prefill.stamped(&[0], 1, 0)).await;
    until("a piece is under way", || duo.brake.held() == 1).await;
    let node = &duo.prefill.node;
    let both = async { tokio::join!(node.shutdown(), node.shutdown(), node.shutdown()) };
    let (all, ()) = tokio::join!(within(both), async {
        within(sender.outcome()).await;
        duo.brake.release();
    });
    for report in [all.0, all.1, all.2] {
        assert!(report.drained, "{report:?}");
    }
    drop((receiver, sender));
    duo.decode.quiet().await;
}

#[tokio::test]
async fn two_nodes_may_shut_down_at_once_in_the_middle_of_transfers() {
    let duo = Duo::of_pieces().await;
    let mut rooms = Vec::new();
    for id in 0..4u64 {
        let receiver = duo.receive(id, 0, &[id as u32]).await;
        let sender = duo.send(id, 0).await;
        let page = id as u32;
        push(&sender, 0..TOKENS, duo.prefill.stamped(&[page], 1, 0)).await;
        rooms.push((receiver, sender));
    }
    let (p, d) =
        within(async { tokio::join!(duo.prefill.node.shutdown(), duo.decode.node.shutdown()) })
            .await;
    assert!(p.drained && d.drained, "{p:?} {d:?}");
    for (receiver, sender) in &rooms {
        within(receiver.outcome()).await;
        within(sender.outcome()).await;
        assert_eq!(within(receiver.released()).await.leases.len(), 1);
    }
    drop(rooms);
    all_free(&duo.prefill.pool).await;
    all_free(&duo.decode.pool).await;
}

#[tokio::test]
async fn what_cannot_be_proven_quiet_by_the_deadline_is_listed_and_kept() {
    let duo = Duo::with(Setup {
        layout: kv(16, PIECE),
        deadlines: kvroom::Deadlines {
            shutdown: std::time::Duration::from_millis(50),
            ..kvroom::Deadlines::default()
        },
        ..Setup::default()
    })
    .await;
    let receiver = duo.receive(1, 0, &[0]).await;
    let sender = duo.send(1, 0).await;
    duo.brake.hold_after(0);
    let chunk = push(&sender, 0..TOKENS, duo.prefill.stamped(&[0], 1, 0)).await;
    until("a piece is under way", || duo.brake.held() == 1).await;
    let report = within(duo.decode.node.shutdown()).await;
    assert!(!report.drained);
    assert_eq!(report.leaked.len(), 1);
    let room = &report.leaked[0];
    assert_eq!((room.key.id, room.pages), (RoomId(1), 1));
    assert_eq!(room.peers, ["p"]);
    names(room.held_because.as_ref().unwrap(), &["a writer is inside"]);
    assert_eq!(duo.decode.pool.leased_pages(), 1);
    duo.brake.release();
    // The writer finds its memory where it was; the sender's side goes on as ever.
    assert!(within(chunk.released()).await.is_some());
    within(sender.outcome()).await;
    drop(within(sender.released()).await);
    duo.prefill.quiet().await;
    drop((receiver, sender));
}

#[tokio::test]
async fn a_chunk_of_a_node_that_stopped_with_its_room_held_is_told_that_it_will_not_come() {
    let duo = Duo::with(Setup {
        layout: kv(16, PIECE),
        deadlines: kvroom::Deadlines {
            shutdown: std::time::Duration::from_millis(50),
            ..kvroom::Deadlines::default()
        },
        ..Setup::default()
    })
    .await;
    let receiver = duo.receive(1, 0, &[0, 1]).await;
    let sender = duo.send(1, 0).await;
    duo.brake.hold_after(0);
    let chunk = push(&sender, 0..TOKENS, duo.prefill.stamped(&[0], 1, 0)).await;
    until("a piece is under way", || duo.brake.held() == 1).await;
    let report = within(duo.prefill.node.shutdown()).await;
    assert!(!report.drained);
    names(
        report.leaked[0].held_because.as_ref().unwrap(),
        &["copies have not come back"],
    );
    assert!(within(chunk.released()).await.is_none());
    assert_eq!(duo.prefill.pool.leased_pages(), 1);
    duo.brake.release();
    drop(within(receiver.released()).await);
    duo.decode.quiet().await;
    drop(sender);
}

fn in_no_time() -> kvroom::Deadlines {
    kvroom::Deadlines {
        shutdown: std::time::Duration::from_millis(50),
        ..kvroom::Deadlines::default()
    }
}

#[tokio::test]
async fn whoever_waits_for_memory_that_was_leaked_hears_that_it_will_not_come() {
    let duo = Duo::with(Setup {
        layout: kv(16, PIECE),
        deadlines: in_no_time(),
        ..Setup::default()
    })
    .await;
    let receiver = duo.receive(1, 0, &[0]).await;
    let sender = duo.send(1, 0).await;
    duo.brake.hold_after(0);
    let chunk = push(&sender, 0..TOKENS, duo.prefill.stamped(&[0], 1, 0)).await;
    until("a piece is under way", || duo.brake.held() == 1).await;
    let (report, back) = tokio::join!(
        within(duo.decode.node.shutdown()),
        within(receiver.released())
    );
    assert!(!report.drained);
    assert_eq!(code(&back.outcome), Code::NodeShutdown);
    assert!(back.leases.is_empty() && back.proofs.is_empty(), "{back:?}");
    let status = receiver.poll();
    assert!(status.leaked && !status.released, "{status:?}");
    // Nothing was given back.
    assert_eq!(duo.decode.pool.leased_pages(), 1);
    duo.brake.release();
    assert!(within(chunk.released()).await.is_some());
    assert_eq!(duo.decode.pool.leased_pages(), 1);
    drop(within(sender.released()).await);
    duo.prefill.quiet().await;
}

#[tokio::test]
async fn a_shard_that_is_silent_at_shutdown_is_not_called_drained_and_its_rooms_are_told() {
    let duo = Duo::with(Setup {
        deadlines: in_no_time(),
        ..Setup::default()
    })
    .await;
    let receiver = duo.receive(1, 0, &[0]).await;
    let silence = Silence::of(&duo.decode.node).await;
    let report = within(duo.decode.node.shutdown()).await;
    assert!(!report.drained, "{report:?}");
    assert_eq!(receiver.try_outcome(), None);
    drop(silence);
    assert_eq!(code(&within(receiver.outcome()).await), Code::NodeShutdown);
    // By proof, if the shard came to it; else with nothing. Nobody waits for ever.
    drop(within(receiver.released()).await);
    duo.prefill.node.shutdown().await;
}

#[tokio::test]
async fn rooms_of_a_shard_that_died_are_told_and_the_node_is_not_called_drained() {
    let duo = Duo::new().await;
    let receiver = duo.receive(1, 0, &[0]).await;
    let ask = Inbound::Ask(Box::new(|_, _| panic!("told to die")));
    let inbox = duo.decode.node.runtime().inbox(RoomId(1));
    inbox.put(ask).unwrap();
    let outcome = within(receiver.outcome()).await;
    assert_eq!(code(&outcome), Code::NodeShutdown);
    assert!(within(receiver.released()).await.proofs.is_empty());
    let lease = duo.decode.pool.lease_write(&[4]).unwrap();
    let room = duo.decode.node.receive(RoomId(2)).from(&duo.peer);
    let error = within(room.into(lease).start()).await.unwrap_err();
    assert_eq!(error.kind, StartErrorKind::NodeStopped);
    assert!(!within(duo.decode.node.shutdown()).await.drained);
    duo.prefill.node.shutdown().await;
}

#[tokio::test]
async fn a_session_given_up_while_it_was_being_made_is_not_called_up() {
    for round in 0..5 {
        let duo = Duo::with(Setup {
            shards: 2,
            ..Setup::default()
        })
        .await;
        duo.decode.node.disconnect(&duo.peer).await;
        // The session lives on the first shard's thread; every shard has to know of it.
        let other = (0..)
            .map(RoomId)
            .find(|id| NodeShared::shard_of(*id, 2) == 1);
        let silence = Silence::of_shard(&duo.decode.node, other.unwrap()).await;
        let node = duo.decode.node.clone();
        let connecting = tokio::spawn(async move { node.connect("local://p").await });
        let there = || async { duo.prefill.node.peers().await[0].is_up().is_ok() };
        while !within(there()).await {
            tokio::task::yield_now().await;
        }
        for _ in 0..20 {
            within(duo.decode.node.peers()).await;
            tokio::task::yield_now().await;
        }
        within(duo.decode.node.disconnect(&duo.peer)).await;
        drop(silence);
        // It may hear that this session was given up; what it must not is hang, or lie from then on.
        let _told = within(connecting).await.unwrap();
        within(duo.decode.node.connect("local://p")).await.unwrap();
        duo.moves(round, 0, &[0], &[0]).await;
        duo.end().await;
    }
}

#[tokio::test]
async fn a_peer_that_another_node_connected_to_is_no_sender_here() {
    let duo = Duo::new().await;
    // Each node numbers its peers: this one has the number of "p" at "d".
    let theirs = duo.prefill.node.connect("local://d").await.unwrap();
    assert_eq!(theirs.id(), duo.peer.id());
    let lease = duo.decode.pool.lease_write(&[4]).unwrap();
    let room = duo.decode.node.receive(RoomId(1)).from(&theirs);
    let error = room.into(lease).start().await.unwrap_err();
    names(&error, &["\"d\"", "another node", "connect()"]);
    assert_eq!(error.leases[0].pages(), [4]);
    let receiver = duo.receive(2, 0, &[0]).await;
    let which = kvroom::Which::Peer(theirs.clone());
    assert_eq!(duo.decode.node.abort_where(which, "x").await, 0);
    duo.decode.node.disconnect(&theirs).await;
    settle(&[&duo.decode.node]).await;
    assert_eq!(receiver.try_outcome(), None);
    assert!(duo.peer.is_up().is_ok());
    drop((error, receiver));
    duo.end().await;
}

#[tokio::test]
async fn a_stopped_node_starts_no_rooms_and_gives_the_lease_back() {
    let duo = Duo::new().await;
    let old = duo.send(1, 0).await;
    let slot = within(old.reserve()).await.unwrap();
    assert!(duo.prefill.node.shutdown().await.drained);
    let chunk = duo.prefill.stamped(&[0], 1, 0);
    let chunk = kvroom::Chunk::tokens(0..TOKENS).pages(chunk);
    let error = slot.push(chunk).unwrap_err();
    assert_eq!(error.reason.code, Code::NodeShutdown);
    assert_eq!(error.chunk.into_lease().pages(), [0]);
    let error = within(old.reserve()).await.unwrap_err();
    names(&error, &["NodeShutdown"]);
    old.abort("too late, and harmless");
    let error = duo.prefill.node.send(RoomId(2)).start().await.unwrap_err();
    assert_eq!(error.kind, StartErrorKind::NodeStopped);
    names(&error, &["stopped"]);

    assert!(duo.decode.node.shutdown().await.drained);
    let lease = duo.decode.pool.lease_write(&[4, 5]).unwrap();
    let room = duo.decode.node.receive(RoomId(3)).from(&duo.peer);
    let error = room.into(lease).start().await.unwrap_err();
    assert_eq!(error.kind, StartErrorKind::NodeStopped);
    assert_eq!(error.leases[0].pages(), [4, 5]);
    let stopped = PoolChangeError::Stopped;
    let pool = Pool::owned(kv(1, 64)).unwrap();
    assert_eq!(duo.decode.node.add_pool(pool).await.unwrap_err(), stopped);
    assert_eq!(
        duo.decode.node.retire_pool("kv").await.unwrap_err(),
        stopped
    );
    assert!(duo.decode.node.rooms().await.is_empty());
    assert!(duo.decode.node.early_claims().await.is_empty());
    assert_eq!(
        duo.decode.node.abort_where(kvroom::Which::All, "x").await,
        0
    );
    drop(old);
}

#[tokio::test]
async fn a_node_dropped_with_rooms_in_flight_does_not_block_and_frees_nothing_early() {
    let Duo {
        prefill,
        decode,
        peer,
        brake,
        hub,
        ..
    } = Duo::of_pieces().await;
    let lease = decode.pool.lease_write(&[0]).unwrap();
    let room = decode.node.receive(RoomId(1)).from(&peer).into(lease);
    let receiver = room.start().await.unwrap();
    let sender = prefill.node.send(RoomId(1)).start().await.unwrap();
    brake.hold_after(0);
    let chunk = push(&sender, 0..TOKENS, prefill.stamped(&[0], 1, 0)).await;
    until("a piece is under way", || brake.held() == 1).await;
    // Rooms keep their node.
    drop((prefill.node, decode.node));
    tokio::task::yield_now().await;
    assert_eq!(sender.try_outcome(), None);
    drop((sender, receiver));
    // Nobody has a handle now; the copy is still inside.
    until("both nodes have left the hub", || hub.names().is_empty()).await;
    assert_eq!(
        (prefill.pool.leased_pages(), decode.pool.leased_pages()),
        (1, 1)
    );
    assert!(chunk.try_released().is_none());
    brake.release();
    assert!(within(chunk.released()).await.is_some());
    all_free(&decode.pool).await;
    all_free(&prefill.pool).await;
}

#[tokio::test]
async fn a_node_that_comes_back_under_its_name_is_a_new_life_and_serves_at_once() {
    let duo = Duo::new().await;
    let old = duo.receive(1, 0, &[0]).await;
    assert!(duo.prefill.node.shutdown().await.drained);
    let outcome = within(old.outcome()).await;
    assert!(matches!(
        code(&outcome),
        Code::NodeShutdown | Code::PeerLost
    ));
    let prefill = Side::start(&duo.hub, "p", &Setup::default(), &duo.brake).await;
    assert!(prefill.node.incarnation() > duo.prefill.node.incarnation());
    let peer = duo.decode.node.connect("local://p").await.unwrap();
    assert_ne!(peer.id(), duo.peer.id());
    let lease = duo.decode.pool.lease_write(&[1]).unwrap();
    let room = duo.decode.node.receive(RoomId(2)).from(&peer).into(lease);
    let receiver = room.start().await.unwrap();
    let sender = prefill.node.send(RoomId(2)).start().await.unwrap();
    push(&sender, 0..TOKENS, prefill.stamped(&[0], 1, 0)).await;
    sender.finish(TOKENS, None).unwrap();
    assert_eq!(within(receiver.outcome()).await, Outcome::Done);
    // The old life is no address any more.
    let dead = duo.receive(3, 0, &[2]).await;
    assert_eq!(code(&within(dead.outcome()).await), Code::PeerLost);
    drop((old, receiver, sender, dead));
    prefill.quiet().await;
    duo.decode.quiet().await;
}

#[tokio::test]
async fn connect_gives_the_new_life_of_a_node_though_the_old_ones_goodbye_was_not_read() {
    let duo = Duo::new().await;
    let silence = Silence::of(&duo.decode.node).await;
    assert!(within(duo.prefill.node.shutdown()).await.drained);
    let prefill = Side::start(&duo.hub, "p", &Setup::default(), &duo.brake).await;
    let node = duo.decode.node.clone();
    let connecting = tokio::spawn(async move { node.connect("local://p").await });
    for _ in 0..20 {
        within(duo.decode.node.peers()).await;
        tokio::task::yield_now().await;
    }
    drop(silence);
    let peer = within(connecting).await.unwrap().unwrap();
    assert_eq!(peer.incarnation(), prefill.node.incarnation());
    assert!(peer.is_up().is_ok());
    prefill.node.shutdown().await;
    duo.decode.node.shutdown().await;
}

/// Set when the pool that holds it is gone.
struct Gone(Arc<AtomicBool>);

impl Drop for Gone {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn pools_come_and_go_while_the_node_runs() {
    let duo = Duo::new().await;
    let (gone, came_back) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicUsize::new(0)),
    );
    let named = |name: &str| {
        let mut layout = kv(8, 4096);
        layout.name = name.into();
        Pool::owned(layout).unwrap()
    };
    let guard = Gone(Arc::clone(&gone));
    let count = Arc::clone(&came_back);
    let extra = named("extra").with_release_callback(move |released| {
        let _ = &guard;
        count.fetch_add(released.pages.len(), Ordering::SeqCst);
    });
    let extra = extra.unwrap();
    let source = named("extra");
    // A pool that the other side does not have is of no use.
    duo.decode.node.add_pool(extra.clone()).await.unwrap();
    let room = async |id: u64, pages: &[u32]| {
        let lease = extra.lease_write(pages).unwrap();
        let room = duo.decode.node.receive(RoomId(id)).from(&duo.peer);
        room.into(lease).start().await
    };
    let alone = room(1, &[0]).await.unwrap();
    let outcome = within(alone.outcome()).await;
    assert_eq!(code(&outcome), Code::LayoutMismatch);
    names(&text(&outcome), &["no pool \"extra\""]);
    drop(within(alone.released()).await);

    duo.prefill.node.add_pool(source.clone()).await.unwrap();
    let error = duo.prefill.node.add_pool(named("extra")).await.unwrap_err();
    assert_eq!(error, PoolChangeError::NameTaken("extra".into()));
    names(&error, &["\"extra\"", "retire it first"]);
    let receiver = room(2, &[1, 2]).await.unwrap();
    let sender = duo.send(2, 0).await;
    let mut lease = source.lease_write(&[3, 4]).unwrap();
    fill(&mut lease, 5, 0);
    push(&sender, 0..2 * TOKENS, lease.into_read()).await;
    sender.finish(2 * TOKENS, None).unwrap();
    assert_eq!(within(receiver.outcome()).await, Outcome::Done);
    verify(&within(receiver.released()).await.leases[0], 5, 0);

    // A lease from before and a room in flight outlive the retirement.
    let before = extra.lease_write(&[7]).unwrap();
    let in_flight = room(3, &[5]).await.unwrap();
    until_stats("it waits", &duo.prefill.node, |s| s.early_claims == 1).await;
    let retired = duo.decode.node.retire_pool("extra").await.unwrap();
    assert!(retired.is_retired() && retired.same_pool(&extra));
    drop(retired);
    assert!(matches!(
        extra.lease_write(&[6]),
        Err(LeaseError::Retired { .. })
    ));
    names(
        &extra.lease_read(&[6]).unwrap_err(),
        &["\"extra\"", "retired"],
    );
    let late = duo.decode.node.receive(RoomId(4)).from(&duo.peer);
    let error = late.into(before).start().await.unwrap_err();
    names(&error, &["\"extra\"", "retired"]);
    let before = error.leases;
    assert_eq!(before[0].pages(), [7]);
    let error = duo.decode.node.retire_pool("extra").await.unwrap_err();
    names(&error, &["no pool \"extra\""]);

    let sender3 = duo.send(3, 0).await;
    let mut lease = source.lease_write(&[0]).unwrap();
    fill(&mut lease, 6, 0);
    push(&sender3, 0..TOKENS, lease.into_read()).await;
    sender3.finish(TOKENS, None).unwrap();
    assert_eq!(within(in_flight.outcome()).await, Outcome::Done);
    let last = within(in_flight.released()).await;
    verify(&last.leases[0], 6, 0);
    drop((alone, receiver, in_flight, sender, sender3, extra));
    assert_quiet(&duo.decode.node).await;

    // Memory goes with the last lease, and the pool is told of it first.
    let count = came_back.load(Ordering::SeqCst);
    drop(before);
    assert_eq!(came_back.load(Ordering::SeqCst), count + 1);
    assert!(!gone.load(Ordering::SeqCst));
    drop(last);
    until("the memory is gone", || gone.load(Ordering::SeqCst)).await;
    assert_eq!(came_back.load(Ordering::SeqCst), count + 2);
    duo.end().await;
}

#[tokio::test]
async fn a_claim_on_a_pool_that_prefill_retired_is_refused_and_says_so() {
    let duo = Duo::new().await;
    duo.prefill.node.retire_pool("kv").await.unwrap();
    let receiver = duo.receive(1, 0, &[0]).await;
    let outcome = within(receiver.outcome()).await;
    match &outcome {
        Outcome::Aborted(reason) => assert_eq!(reason.side, Where::Peer),
        Outcome::Done => panic!("done"),
    }
    names(&text(&outcome), &["no pool \"kv\""]);
    assert_eq!(within(receiver.released()).await.leases.len(), 1);
    let sender = duo.send(2, 0).await;
    assert_eq!(sender.poll().state, StateName::Registered);
    drop((receiver, sender));
    duo.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_added_while_two_nodes_connect_is_known_to_both() {
    for round in 0..20 {
        let (hub, setup, brake) = (LocalHub::new(), Setup::default(), Brake::default());
        let a = Side::start(&hub, "a", &setup, &brake).await;
        let b = Side::start(&hub, "b", &setup, &brake).await;
        let mut layout = kv(4, 64);
        layout.name = "extra".into();
        let (x, y) = (
            Pool::owned(layout.clone()).unwrap(),
            Pool::owned(layout).unwrap(),
        );
        let (peer, added, also) = tokio::join!(
            b.node.connect("local://a"),
            a.node.add_pool(x.clone()),
            b.node.add_pool(y.clone()),
        );
        added.unwrap();
        also.unwrap();
        let peer = peer.unwrap();
        let lease = y.lease_write(&[0]).unwrap();
        let room = b.node.receive(RoomId(1)).from(&peer).into(lease);
        let receiver = room.start().await.unwrap();
        let sender = a.node.send(RoomId(1)).start().await.unwrap();
        push(&sender, 0..TOKENS, x.lease_read(&[1]).unwrap()).await;
        sender.finish(TOKENS, None).unwrap();
        let outcome = within(receiver.outcome()).await;
        assert_eq!(outcome, Outcome::Done, "round {round}");
        drop((receiver, sender));
        for side in [&a, &b] {
            side.quiet().await;
            side.node.shutdown().await;
        }
    }
}
