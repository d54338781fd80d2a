//! Nodes of one host find out by themselves that they can share memory, and say so when they cannot.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use kvroom::device::emulated::{Config, Machine};
use kvroom::device::{Device, DeviceOptions};
use kvroom::{
    Chunk, Code, Fabric, Limits, Net, Node, Outcome, Peer, Pool, PoolLayout, RoomId, StateName,
};

const TCP: &str = "tcp://127.0.0.1:0";

/// The pools of a node, as a test needs them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Shared,
    Private,
}

fn pool(name: &str, kind: Kind) -> Pool {
    let layout = PoolLayout {
        name: name.into(),
        ..kv(16, 4096)
    };
    match kind {
        Kind::Shared => Pool::shared(layout).unwrap(),
        Kind::Private => Pool::owned(layout).unwrap(),
    }
}

async fn node(name: &str, at: &str, pool: Option<&Pool>, shm: bool) -> Side {
    let mut builder = Node::builder(name).listen(at).shm(shm);
    if let Some(pool) = pool {
        builder = builder.pool(pool.clone());
    }
    let node = builder.start().await.unwrap();
    let address = node.addresses()[0].clone();
    let none = || Pool::owned(kv(1, 4096)).unwrap();
    Side {
        node,
        pool: pool.cloned().unwrap_or_else(none),
        address,
    }
}

fn unix() -> String {
    format!("unix://{}", socket_path().display())
}

/// The peer as both sides know it.
async fn both(from: &Side, to: &Side) -> (Peer, Peer) {
    let there = within(from.node.connect(&to.address)).await.unwrap();
    let here = within(to.node.peer(from.node.name())).await.unwrap();
    until("both are up", || here.is_up().is_ok()).await;
    (there, here)
}

/// A room between two pools.
async fn moves(from: (&Side, &Pool), to: (&Side, &Pool), peer: &Peer, id: u64) {
    let lease = to.1.lease_write(&[4, 5, 6]).unwrap();
    let room = to.0.node.receive(RoomId(id)).from(peer).into(lease);
    let receiver = within(room.checksum(id.is_multiple_of(2)).start()).await;
    let receiver = receiver.unwrap();
    let sender = within(from.0.node.send(RoomId(id)).start()).await.unwrap();
    let mut lease = from.1.lease_write(&[1, 2, 3]).unwrap();
    fill(&mut lease, id, 0);
    push(&sender, 0..3 * TOKENS, lease.into_read()).await;
    sender.finish(3 * TOKENS, None).unwrap();
    assert_eq!(within(receiver.outcome()).await, Outcome::Done);
    verify(&within(receiver.released()).await.leases[0], id, 0);
    assert_eq!(within(sender.outcome()).await, Outcome::Done);
    drop(within(sender.released()).await);
}

/// A room that cannot be, for this reason; both sides get their memory back.
async fn is_refused(from: (&Side, &Pool), to: (&Side, &Pool), peer: &Peer, id: u64) -> String {
    let lease = to.1.lease_write(&[4, 5, 6]).unwrap();
    let room = to.0.node.receive(RoomId(id)).from(peer).into(lease);
    let receiver = within(room.start()).await.unwrap();
    let sender = within(from.0.node.send(RoomId(id)).start()).await.unwrap();
    let outcome = within(receiver.outcome()).await;
    assert_eq!(code(&outcome), Code::LayoutMismatch, "{outcome}");
    assert_eq!(within(receiver.released()).await.leases.len(), 1);
    sender.abort("its receiver is gone");
    within(sender.outcome()).await;
    drop(within(sender.released()).await);
    text(&outcome)
}

async fn end(sides: &[&Side]) {
    for side in sides {
        assert_quiet(&side.node).await;
        let report = within(side.node.shutdown()).await;
        assert!(report.drained, "{report:?}");
    }
}

#[tokio::test]
async fn a_node_of_this_host_is_joined_by_shared_memory_whatever_it_is_called() {
    for (i, at) in [TCP, "tcp://[::1]:0", &unix()].into_iter().enumerate() {
        let (theirs, ours) = (pool("kv", Kind::Shared), pool("kv", Kind::Shared));
        let p = node("p", at, Some(&theirs), true).await;
        let d = node("d", TCP, Some(&ours), true).await;
        let (there, here) = both(&d, &p).await;
        assert_eq!(there.fabric(), Some(Fabric::Shm), "{at}");
        assert_eq!(here.fabric(), Some(Fabric::Shm), "{at}");
        let id = 10 * i as u64;
        moves((&p, &theirs), (&d, &ours), &there, id).await;
        moves((&d, &ours), (&p, &theirs), &here, id + 1).await;
        // Known by the address that it was asked for.
        let again = within(d.node.connect(&p.address)).await.unwrap();
        assert_eq!(again.incarnation(), there.incarnation());
        let stats = d.node.stats().await;
        assert_eq!((stats.sessions_opened, stats.greetings_refused), (1, 0));
        end(&[&d, &p]).await;
    }
}

#[tokio::test]
async fn two_nodes_that_connect_to_each_other_at_once_have_one_session_over_shared_memory() {
    for _ in 0..10 {
        let (theirs, ours) = (pool("kv", Kind::Shared), pool("kv", Kind::Shared));
        let p = node("p", TCP, Some(&theirs), true).await;
        let d = node("d", TCP, Some(&ours), true).await;
        let (one, two) = tokio::join!(d.node.connect(&p.address), p.node.connect(&d.address));
        let (there, here) = (one.unwrap(), two.unwrap());
        assert_eq!(there.fabric(), Some(Fabric::Shm));
        assert_eq!(here.fabric(), Some(Fabric::Shm));
        moves((&p, &theirs), (&d, &ours), &there, 1).await;
        moves((&d, &ours), (&p, &theirs), &here, 2).await;
        assert_eq!(d.node.stats().await.sessions_opened, 1);
        end(&[&d, &p]).await;
    }
}

#[tokio::test]
async fn whoever_does_not_want_to_share_memory_is_joined_by_sockets() {
    for at in [TCP, &unix()] {
        for (of_p, of_d) in [(false, true), (true, false), (false, false)] {
            let (theirs, ours) = (pool("kv", Kind::Shared), pool("kv", Kind::Shared));
            let p = node("p", at, Some(&theirs), of_p).await;
            let d = node("d", TCP, Some(&ours), of_d).await;
            let (there, here) = both(&d, &p).await;
            assert_eq!(there.fabric(), Some(Fabric::Tcp), "{at} {of_p} {of_d}");
            assert_eq!(here.fabric(), Some(Fabric::Tcp), "{at} {of_p} {of_d}");
            moves((&p, &theirs), (&d, &ours), &there, 1).await;
            moves((&d, &ours), (&p, &theirs), &here, 2).await;
            end(&[&d, &p]).await;
            let _ = std::fs::remove_file(at.trim_start_matches("unix://"));
        }
    }
}

#[tokio::test]
async fn nodes_without_shared_pools_are_joined_by_sockets() {
    for at in [TCP, &unix()] {
        for pools in [true, false] {
            let (theirs, ours) = (pool("kv", Kind::Private), pool("kv", Kind::Private));
            let p = node("p", at, pools.then_some(&theirs), true).await;
            let d = node("d", TCP, pools.then_some(&ours), true).await;
            let (there, here) = both(&d, &p).await;
            assert_eq!(there.fabric(), Some(Fabric::Tcp), "{at}");
            assert_eq!(here.fabric(), Some(Fabric::Tcp), "{at}");
            if pools {
                moves((&p, &theirs), (&d, &ours), &there, 1).await;
            }
            end(&[&d, &p]).await;
            let _ = std::fs::remove_file(at.trim_start_matches("unix://"));
        }
    }
}

#[tokio::test]
async fn a_private_source_is_sent_into_a_shared_pool_and_a_private_destination_is_refused() {
    for (of_p, of_d) in [(Kind::Private, Kind::Shared), (Kind::Shared, Kind::Private)] {
        let (theirs, ours) = (pool("kv", of_p), pool("kv", of_d));
        let p = node("p", TCP, Some(&theirs), true).await;
        let d = node("d", TCP, Some(&ours), true).await;
        let (there, here) = both(&d, &p).await;
        assert_eq!(there.fabric(), Some(Fabric::Shm));
        assert_eq!(here.fabric(), Some(Fabric::Shm));
        let (to_d, to_p) = (
            ((&p, &theirs), (&d, &ours), &there),
            ((&d, &ours), (&p, &theirs), &here),
        );
        let (good, bad) = match of_d {
            Kind::Shared => (to_d, to_p),
            Kind::Private => (to_p, to_d),
        };
        moves(good.0, good.1, good.2, 1).await;
        let why = is_refused(bad.0, bad.1, bad.2, 2).await;
        names(&why, &["\"kv\"", "private memory", "Pool::shared"]);
        // It costs that room only.
        moves(good.0, good.1, good.2, 3).await;
        end(&[&d, &p]).await;
    }
}

#[tokio::test]
async fn pools_that_come_and_go_in_a_session_are_written_to_at_once() {
    let (theirs, ours) = (pool("kv", Kind::Shared), pool("kv", Kind::Shared));
    let p = node("p", TCP, Some(&theirs), true).await;
    let d = node("d", TCP, Some(&ours), true).await;
    let (there, _) = both(&d, &p).await;
    for round in 0..20_u64 {
        let (from, to) = (pool("more", Kind::Shared), pool("more", Kind::Shared));
        within(p.node.add_pool(from.clone())).await.unwrap();
        within(d.node.add_pool(to.clone())).await.unwrap();
        let id = 10 * round;
        moves((&p, &from), (&d, &to), &there, id).await;
        moves((&p, &theirs), (&d, &ours), &there, id + 1).await;
        within(d.node.retire_pool("more")).await.unwrap();
        within(p.node.retire_pool("more")).await.unwrap();
        // Nothing of it is wanted any more; what is left goes on.
        moves((&p, &theirs), (&d, &ours), &there, id + 2).await;
    }
    end(&[&d, &p]).await;
}

#[tokio::test]
async fn many_pools_that_come_at_once_are_each_the_right_one() {
    let (theirs, ours) = (pool("kv", Kind::Shared), pool("kv", Kind::Shared));
    let p = node("p", TCP, Some(&theirs), true).await;
    let d = node("d", TCP, Some(&ours), true).await;
    let (there, _) = both(&d, &p).await;
    let names: Vec<String> = (0..30).map(|i| format!("pool-{i}")).collect();
    let mut pairs = Vec::new();
    for name in &names {
        let (from, to) = (pool(name, Kind::Shared), pool(name, Kind::Shared));
        within(p.node.add_pool(from.clone())).await.unwrap();
        within(d.node.add_pool(to.clone())).await.unwrap();
        pairs.push((from, to));
    }
    for (i, (from, to)) in pairs.iter().enumerate() {
        moves((&p, from), (&d, to), &there, i as u64).await;
    }
    end(&[&d, &p]).await;
}

#[tokio::test]
async fn a_private_pool_that_comes_in_a_session_is_refused_and_harms_no_other() {
    let (theirs, ours) = (pool("kv", Kind::Shared), pool("kv", Kind::Shared));
    let p = node("p", TCP, Some(&theirs), true).await;
    let d = node("d", TCP, Some(&ours), true).await;
    let (there, _) = both(&d, &p).await;
    let (from, to) = (pool("more", Kind::Shared), pool("more", Kind::Private));
    within(p.node.add_pool(from.clone())).await.unwrap();
    within(d.node.add_pool(to.clone())).await.unwrap();
    let why = is_refused((&p, &from), (&d, &to), &there, 1).await;
    names(&why, &["\"more\"", "private memory", "Pool::shared"]);
    moves((&p, &theirs), (&d, &ours), &there, 2).await;
    // One that is shared follows the private one.
    let (from, to) = (pool("last", Kind::Shared), pool("last", Kind::Shared));
    within(d.node.add_pool(to.clone())).await.unwrap();
    within(p.node.add_pool(from.clone())).await.unwrap();
    moves((&p, &from), (&d, &to), &there, 4).await;
    end(&[&d, &p]).await;
}

/// A pool on an emulated device.
fn on_device(name: &str) -> Pool {
    let config = Config {
        streams: 16,
        ..Config::default()
    };
    let context = Machine::new(config).context(0).unwrap();
    let device = Device::start(context, DeviceOptions::default()).unwrap();
    let layout = PoolLayout {
        name: name.into(),
        ..kv(16, 4096)
    };
    Pool::on_device(layout, &device).unwrap()
}

#[tokio::test]
async fn a_node_that_has_a_pool_on_a_device_when_it_meets_another_is_joined_by_sockets() {
    for at in [TCP, &unix()] {
        for dialer_has_it in [true, false] {
            let (theirs, ours) = (pool("kv", Kind::Shared), pool("kv", Kind::Shared));
            let p = node("p", at, Some(&theirs), true).await;
            let d = node("d", TCP, Some(&ours), true).await;
            let side = if dialer_has_it { &d } else { &p };
            within(side.node.add_pool(on_device("more"))).await.unwrap();
            let (there, here) = both(&d, &p).await;
            assert_eq!(there.fabric(), Some(Fabric::Tcp), "{at} {dialer_has_it}");
            assert_eq!(here.fabric(), Some(Fabric::Tcp), "{at} {dialer_has_it}");
            moves((&p, &theirs), (&d, &ours), &there, 1).await;
            moves((&d, &ours), (&p, &theirs), &here, 2).await;
            end(&[&d, &p]).await;
            let _ = std::fs::remove_file(at.trim_start_matches("unix://"));
        }
    }
}

#[tokio::test]
async fn a_pool_on_a_device_that_comes_in_a_session_over_shared_memory_is_refused_until_the_next() {
    let (theirs, ours) = (pool("kv", Kind::Shared), pool("kv", Kind::Shared));
    let p = node("p", TCP, Some(&theirs), true).await;
    let d = node("d", TCP, Some(&ours), true).await;
    let (there, _) = both(&d, &p).await;
    assert_eq!(there.fabric(), Some(Fabric::Shm));
    let (from, to) = (pool("more", Kind::Shared), on_device("more"));
    within(p.node.add_pool(from.clone())).await.unwrap();
    within(d.node.add_pool(to.clone())).await.unwrap();
    let why = is_refused((&p, &from), (&d, &to), &there, 1).await;
    names(&why, &["\"more\"", "on a device", "connect again"]);
    assert!(!why.contains("private memory"), "{why}");
    // It costs that room only.
    moves((&p, &theirs), (&d, &ours), &there, 2).await;
    within(d.node.disconnect(&there)).await;
    let (there, here) = both(&d, &p).await;
    assert_eq!(there.fabric(), Some(Fabric::Tcp));
    assert_eq!(here.fabric(), Some(Fabric::Tcp));
    moves((&p, &theirs), (&d, &ours), &there, 3).await;
    end(&[&d, &p]).await;
}

#[tokio::test]
async fn three_nodes_of_one_host_send_to_each_other_all_at_once() {
    let mut sides = Vec::new();
    for name in ["a", "b", "c"] {
        let layout = kv(64, 4096);
        let pool = Pool::shared(layout).unwrap();
        sides.push(node(name, TCP, Some(&pool), true).await);
    }
    let mut flows = Vec::new();
    for (i, from) in sides.iter().enumerate() {
        for (j, to) in sides.iter().enumerate() {
            if i == j {
                continue;
            }
            let peer = within(to.node.connect(&from.address)).await.unwrap();
            assert_eq!(peer.fabric(), Some(Fabric::Shm));
            // Of each pool, pages for each way.
            let place = 4 * (3 * i + j) as u32;
            flows.push(async move {
                for round in 0..20_u64 {
                    let id = 1_000 * round + 10 * i as u64 + j as u64;
                    let pages: Vec<u32> = (place..place + 4).collect();
                    let lease = to.pool.lease_write(&pages).unwrap();
                    let room = to.node.receive(RoomId(id)).from(&peer).into(lease);
                    let receiver = within(room.checksum(true).start()).await.unwrap();
                    let sender = within(from.node.send(RoomId(id)).start()).await.unwrap();
                    let source: Vec<u32> = (0..4).map(|page| 40 + 8 * j as u32 + page).collect();
                    let mut lease = from.pool.lease_write(&source).unwrap();
                    fill(&mut lease, id, 0);
                    push(&sender, 0..4 * TOKENS, lease.into_read()).await;
                    sender.finish(4 * TOKENS, None).unwrap();
                    assert_eq!(within(receiver.outcome()).await, Outcome::Done);
                    verify(&within(receiver.released()).await.leases[0], id, 0);
                    drop(within(sender.released()).await);
                }
            });
        }
    }
    futures_all(flows).await;
    end(&sides.iter().collect::<Vec<_>>()).await;
}

/// Polls all of them until all are over.
async fn futures_all(flows: Vec<impl Future<Output = ()>>) {
    let mut flows: Vec<_> = flows.into_iter().map(|f| Some(Box::pin(f))).collect();
    std::future::poll_fn(|cx| {
        for flow in &mut flows {
            if flow
                .as_mut()
                .is_some_and(|f| f.as_mut().poll(cx).is_ready())
            {
                *flow = None;
            }
        }
        match flows.iter().all(Option::is_none) {
            true => std::task::Poll::Ready(()),
            false => std::task::Poll::Pending,
        }
    })
    .await;
}

#[tokio::test]
async fn as_many_claims_as_are_allowed_have_a_gate_each_and_the_next_one_waits() {
    let setup = Setup {
        layout: kv(64, 4096),
        limits: Limits {
            claims_per_peer: 5,
            ..Limits::default()
        },
        ..Setup::over(Over::Shm)
    };
    let duo = Duo::with(setup).await;
    for round in 0..50_u64 {
        let mut rooms = Vec::new();
        for i in 0..5_u32 {
            rooms.push(duo.receive(100 * round + u64::from(i), 0, &[4 * i]).await);
        }
        // The next one is taken, and its claim waits for a gate.
        let id = 100 * round + 50;
        let sixth = duo.receive(id, 0, &[60]).await;
        let sender = duo.send(id, 0).await;
        push(&sender, 0..TOKENS, duo.prefill.stamped(&[60], id, 0)).await;
        sender.finish(TOKENS, None).unwrap();
        settle(&[&duo.decode.node, &duo.prefill.node]).await;
        assert_eq!(sixth.try_outcome(), None);
        // Gates are given back by aborts, round after round.
        for room in rooms {
            room.abort("round over");
            drop(within(room.released()).await);
        }
        assert_eq!(within(sixth.outcome()).await, Outcome::Done);
        verify(&within(sixth.released()).await.leases[0], id, 0);
        drop(within(sender.released()).await);
    }
    duo.moves(1, 7, &[1, 2], &[3, 4]).await;
    duo.end().await;
}

#[tokio::test]
async fn a_disconnect_over_shared_memory_ends_the_rooms_and_the_next_session_is_a_fresh_one() {
    let duo = Duo::over(Over::Shm).await;
    let mut peer = duo.peer.clone();
    for id in 0..10 {
        let lease = duo.decode.pool.lease_write(&[4, 5]).unwrap();
        let room = duo.decode.node.receive(RoomId(id)).from(&peer);
        let room = within(room.into(lease).start()).await.unwrap();
        let sender = duo.send(id, 0).await;
        push(&sender, 0..TOKENS, duo.prefill.stamped(&[3], 1, 0)).await;
        until("it is bound", || {
            sender.poll().state != StateName::Registered
        })
        .await;
        within(duo.decode.node.disconnect(&peer)).await;
        code(&within(room.outcome()).await);
        code(&within(sender.outcome()).await);
        drop((
            within(room.released()).await,
            within(sender.released()).await,
        ));
        peer = within(duo.decode.node.connect(&duo.prefill.address))
            .await
            .unwrap();
        assert_eq!(peer.fabric(), Some(Fabric::Shm));
    }
    let lease = duo.decode.pool.lease_write(&[4]).unwrap();
    let room = duo.decode.node.receive(RoomId(100)).from(&peer);
    let room = within(room.into(lease).start()).await.unwrap();
    let sender = duo.send(100, 0).await;
    let slot = within(sender.reserve()).await.unwrap();
    let lease = duo.prefill.stamped(&[3], 100, 0);
    slot.push(Chunk::tokens(0..TOKENS).pages(lease)).unwrap();
    sender.finish(TOKENS, None).unwrap();
    assert_eq!(within(room.outcome()).await, Outcome::Done);
    verify(&within(room.released()).await.leases[0], 100, 0);
    drop((within(sender.released()).await, room, sender));
    duo.end().await;
}

#[tokio::test]
async fn nodes_with_one_key_share_memory_and_one_without_it_gets_nothing() {
    let key = |b: &str| Some(kvroom::ClusterKey::new(b).unwrap());
    let net = |key| Net {
        key,
        listen: vec![TCP.into()],
        ..Net::default()
    };
    let start = async |name: &str, key| {
        let pool = pool("kv", Kind::Shared);
        let node = Node::builder(name).net(net(key)).pool(pool.clone());
        let node = node.start().await.unwrap();
        let address = node.addresses()[0].clone();
        Side {
            node,
            pool,
            address,
        }
    };
    let p = start("p", key("0123456789abcdef0123456789abcdef")).await;
    let d = start("d", key("0123456789abcdef0123456789abcdef")).await;
    let s = start("s", key("fedcba9876543210fedcba9876543210")).await;
    assert!(within(s.node.connect(&p.address)).await.is_err());
    let (there, _) = both(&d, &p).await;
    assert_eq!(there.fabric(), Some(Fabric::Shm));
    moves((&p, &p.pool), (&d, &d.pool), &there, 1).await;
    end(&[&d, &p, &s]).await;
}
