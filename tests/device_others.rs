//! Rooms on devices that hold up no others: peers that do not read, events that never fire, devices that are
//! lost, calls that fail.
#![allow(clippy::unwrap_used)]

mod common;

use common::devices::*;
use common::proxy::{Act, Proxy, Way};
use common::*;
use kvroom::device::DeviceOptions;
use kvroom::device::emulated::{Config, Fault, Injected};
use kvroom::{Chunk, Deadlines, Node, Outcome, ReceiveRoom, RoomId, SendRoom};
use std::sync::Arc;
use std::time::Duration;

/// A room of these pages; the outcomes of receiver and sender.
async fn one(pair: &Pair, id: u64, pages: std::ops::Range<u32>) -> (Outcome, Outcome) {
    let n = u64::from(pages.end - pages.start);
    let pages: Vec<u32> = pages.collect();
    let lease = pair.to.lease_write(&pages).unwrap();
    let room = pair.decode.receive(RoomId(id)).from(&pair.peer).into(lease);
    let room = within(room.start()).await.unwrap();
    let sender = within(pair.prefill.send(RoomId(id)).start()).await.unwrap();
    let lease = pair.from.lease_write(&pages).unwrap().into_read();
    if let Ok(slot) = within(sender.reserve()).await {
        let _ = slot.push(Chunk::tokens(0..n * TOKENS).pages(lease));
    }
    let _ = sender.finish(n * TOKENS, None);
    (within(room.outcome()).await, within(sender.outcome()).await)
}

fn is_done(ends: (Outcome, Outcome)) {
    assert_eq!(ends, (Outcome::Done, Outcome::Done));
}

/// A room of one page whose event does not fire.
async fn held(
    devices: &Devices,
    pair: &Pair,
    id: u64,
    page: u32,
) -> (ReceiveRoom, SendRoom, Engine) {
    let lease = pair.to.lease_write(&[page]).unwrap();
    let room = pair.decode.receive(RoomId(id)).from(&pair.peer).into(lease);
    let room = room.start().await.unwrap();
    let sender = pair.prefill.send(RoomId(id)).start().await.unwrap();
    let engine = Engine::held(devices, 0);
    let lease = pair.from.lease_write(&[page]).unwrap().into_read();
    let chunk = Chunk::tokens(0..TOKENS).pages(lease);
    let chunk = chunk.ready(Arc::clone(&engine.ready));
    drop(sender.reserve().await.unwrap().push(chunk).unwrap());
    sender.finish(TOKENS, None).unwrap();
    (room, sender, engine)
}

#[tokio::test]
async fn chunks_that_wait_hold_up_no_other_room_with_as_few_slots_as_there_may_be() {
    for (over, peers) in [(Over::Local, true), (Over::Local, false), (Over::Tcp, true)] {
        let options = DeviceOptions {
            slots: 1,
            ..small()
        };
        let config = Config { peers, ..with(2) };
        let devices = Devices::new(config, &options);
        let layout = || kv(26, 4096);
        let ends = ((At::Device(0), layout()), (At::Device(1), layout()));
        let pair = Pair::over(over, &devices, ends.0, ends.1).await;
        let mut all = Vec::new();
        for id in 1..5 {
            all.push(held(&devices, &pair, id, 20 + id as u32).await);
        }
        let seen = || devices.all[0].stats();
        until("all wait", || seen().queued + seen().waiting >= 4).await;
        for id in 10..14 {
            is_done(one(&pair, id, 0..4).await);
        }
        for (room, _, engine) in &all {
            engine.goes();
            assert_eq!(within(room.outcome()).await, Outcome::Done);
        }
        drop(all);
        pair.end().await;
    }
}

#[tokio::test]
async fn rooms_to_a_lost_device_cost_no_slot_of_another_one() {
    let config = Config {
        peers: false,
        ..with(2)
    };
    let devices = Devices::new(config, &small());
    let layout = || kv(26, 4096);
    let ends = ((At::Device(0), layout()), (At::Device(1), layout()));
    let doomed = Pair::of(&devices, ends.0, ends.1).await;
    let ends = ((At::Device(0), layout()), (At::Host, layout()));
    let well = Pair::of(&devices, ends.0, ends.1).await;
    is_done(one(&doomed, 1, 0..2).await);
    devices.machine.lose(1, 700).unwrap();
    for id in 2..8u32 {
        let (here, _) = one(&doomed, u64::from(id), id * 2..id * 2 + 2).await;
        assert_ne!(here, Outcome::Done);
    }
    is_done(one(&well, 9, 0..2).await);
    // The first of them found out that the device is lost, with a piece queued towards it. Of the others nothing
    // was queued: their sources are back.
    until("what was not queued is back", || {
        doomed.from.leased_pages() <= 2
    })
    .await;
    well.end().await;
}

#[tokio::test]
async fn a_piece_whose_event_could_not_be_recorded_comes_back_while_others_go_on() {
    let config = Config {
        rate: 8 << 20,
        ..with(2)
    };
    let options = DeviceOptions {
        streams: 1,
        ..small()
    };
    let devices = Devices::new(config, &options);
    let pair = Pair::new(&devices, At::Device(0), At::Device(1)).await;
    // The first of some pieces: its room fails. Rooms behind it keep the stream busy.
    let fault = Fault {
        call: Some("cuEventRecord"),
        nth: 0,
        what: Injected::Returns(1),
    };
    let lease = pair.to.lease_write(&[20, 21, 22, 23]).unwrap();
    let room = pair.decode.receive(RoomId(1)).from(&pair.peer).into(lease);
    let room = room.start().await.unwrap();
    let sender = pair.prefill.send(RoomId(1)).start().await.unwrap();
    let lease = pair.from.lease_write(&[20, 21, 22, 23]).unwrap();
    devices.machine.inject(0, fault).unwrap();
    let pushed = push(&sender, 0..4 * TOKENS, lease.into_read()).await;
    let flood = async {
        let mut id = 10;
        loop {
            let rooms = [0, 4, 8, 12].map(|first| {
                id += 1;
                one(&pair, id, first..first + 4)
            });
            let [a, b, c, d] = rooms;
            let _ = tokio::join!(a, b, c, d);
        }
    };
    let back = async {
        assert_ne!(within(room.outcome()).await, Outcome::Done);
        assert!(within(pushed.released()).await.is_some());
    };
    tokio::select! {
        () = flood => {}
        () = back => {}
    }
    assert_eq!(devices.machine.happened(0), ["cuEventRecord"]);
}

/// What is done to the data of a slow peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slow {
    Stop,
    Throttle(u64),
}

/// Rooms to one peer while another one reads slowly, or not at all: all are done before the room of that
/// one has ended, which it does as stalled.
async fn beside(from: At, slow: Slow) {
    let options = DeviceOptions {
        slots: 4,
        slot_bytes: 256 << 10,
        ..small()
    };
    let devices = Devices::new(with(2), &options);
    let from = devices.pool(from, kv(220, PIECE));
    let to = [0, 1].map(|_| devices.pool(At::Host, kv(220, PIECE)));
    let start = async |name: &str, pool: &kvroom::Pool| {
        // So long that no connection is given up meanwhile.
        let deadlines = Deadlines {
            liveness: Duration::from_secs(60),
            ..Deadlines::default()
        };
        let node = Node::builder(name)
            .listen("tcp://127.0.0.1:0")
            .deadlines(deadlines);
        node.pool(pool.clone()).start().await.unwrap()
    };
    let prefill = start("prefill", &from).await;
    let (first, second) = (start("d0", &to[0]).await, start("d1", &to[1]).await);
    let proxy = Proxy::tcp(&prefill.addresses()[0]);
    let slow_one = first.connect(proxy.address()).await.unwrap();
    let other = second.connect(&prefill.addresses()[0]).await.unwrap();
    let pages: Vec<u32> = (20..220).collect();
    let lease = to[0].lease_write(&pages).unwrap();
    let room = first.receive(RoomId(1)).from(&slow_one).into(lease);
    let room = room.start().await.unwrap();
    let sender = prefill.send(RoomId(1)).start().await.unwrap();
    settle(&[&prefill, &first]).await;
    until("data connections are there", || proxy.open().len() >= 2).await;
    for link in proxy.open().into_iter().filter(|link| link.number() > 0) {
        match slow {
            Slow::Stop => link.now(Way::Down, Act::Stop),
            Slow::Throttle(rate) => link.throttle(Way::Down, rate),
        }
    }
    let lease = from.lease_write(&pages).unwrap().into_read();
    drop(push(&sender, 0..200 * TOKENS, lease).await);
    until("some of it is on its way", || {
        devices.all[0].stats().pieces > 0
    })
    .await;
    for id in 2..6 {
        let lease = to[1].lease_write(&[1, 2, 3, 4]).unwrap();
        let quick = second.receive(RoomId(id)).from(&other).into(lease);
        let quick = quick.start().await.unwrap();
        let source = prefill.send(RoomId(id)).start().await.unwrap();
        let lease = from.lease_write(&[1, 2, 3, 4]).unwrap().into_read();
        drop(push(&source, 0..4 * TOKENS, lease).await);
        source.finish(4 * TOKENS, None).unwrap();
        assert_eq!(within(quick.outcome()).await, Outcome::Done);
        drop(within(quick.released()).await);
        drop(within(source.released()).await);
    }
    assert!(!room.poll().ended, "{slow:?}: they waited for it");
    drop((room, sender));
}

#[tokio::test]
async fn a_peer_that_does_not_read_keeps_no_other_waiting_for_slots() {
    for slow in [Slow::Stop, Slow::Throttle(64 << 10)] {
        beside(At::Device(0), slow).await;
    }
}
