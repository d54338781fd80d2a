//! Rooms whose pages are on devices: emulated ones, whose streams are threads.
#![allow(clippy::unwrap_used)]

mod common;

use common::devices::*;
use common::*;
use kvroom::device::emulated::{Config, Fault, Injected, Own, Span};
use kvroom::device::{Device, DeviceOptions};
use kvroom::{Chunk, Code, Order, Outcome, Pool, PoolKind, PoolLayout, RoomId, StateName};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

#[tokio::test]
async fn pages_move_between_devices_and_to_and_from_the_host() {
    let devices = Devices::two();
    let ways = [
        (At::Device(0), At::Device(0)),
        (At::Device(0), At::Device(1)),
        (At::Device(0), At::Host),
        (At::Host, At::Device(1)),
    ];
    for (from, to) in ways {
        let pair = Pair::new(&devices, from, to).await;
        for id in 1..4 {
            pair.moves(id, id == 2).await;
        }
        pair.end().await;
    }
    worked_and_are_empty(devices).await;
}

#[tokio::test]
async fn pages_of_devices_move_over_a_network() {
    // A page in a layer is the least that is sent.
    let options = DeviceOptions {
        slot_bytes: 256 << 10,
        ..small()
    };
    let devices = Devices::new(with(2), &options);
    let ways = [
        (At::Device(0), At::Device(1)),
        (At::Device(0), At::Host),
        (At::Host, At::Device(1)),
    ];
    for (from, to) in ways {
        let pair = Pair::tcp(&devices, from, to).await;
        for id in 1..5 {
            pair.moves(id, id == 2).await;
        }
        pair.end().await;
    }
    worked_and_are_empty(devices).await;
}

/// Each device moved something and none was lost, and all that was on them is freed.
async fn worked_and_are_empty(devices: Devices) {
    let stats: Vec<_> = devices.all.iter().map(Device::stats).collect();
    assert!(
        stats.iter().all(|s| s.bytes > 0 && s.lost == 0),
        "{stats:?}"
    );
    drop(devices.all);
    until("what was on the devices is freed", || {
        devices.machine.blocks() == 0
    })
    .await;
}

#[tokio::test]
async fn a_pipeline_keeps_both_devices_at_work_at_once() {
    for over in [Over::Local, Over::Tcp] {
        let config = Config {
            rate: 4 << 20,
            timeline: 4096,
            peers: false,
            ..with(2)
        };
        // One peer has half of the slots: with two, both ends would take turns.
        let options = DeviceOptions {
            slots: 8,
            ..small()
        };
        let devices = Devices::new(config, &options);
        let layout = || kv(26, 48 << 10);
        let ends = ((At::Device(0), layout()), (At::Device(1), layout()));
        let pair = Pair::over(over, &devices, ends.0, ends.1).await;
        let lease = pair.to.lease_write(&Vec::from_iter(0..12)).unwrap();
        let room = pair.decode.receive(RoomId(1)).from(&pair.peer).into(lease);
        let room = room.start().await.unwrap();
        let sender = pair.prefill.send(RoomId(1)).start().await.unwrap();
        let source = stamped(&pair.from, &Vec::from_iter(0..12), 1, 0);
        let _ = devices.machine.timeline();
        drop(push(&sender, 0..12 * TOKENS, source).await);
        sender.finish(12 * TOKENS, None).unwrap();
        assert_eq!(within(room.outcome()).await, Outcome::Done);
        let spans = devices.machine.timeline().spans;
        let of = |device| {
            spans
                .iter()
                .filter(move |s| s.line.device == device && s.bytes > 0)
        };
        let (first, last): (Vec<_>, Vec<_>) = (of(0).collect(), of(1).collect());
        let beside = |span: &&&Span| {
            last.iter()
                .any(|s| s.begin < span.end && span.begin < s.end)
        };
        let both = first.iter().filter(beside).count();
        // All but the first pieces of one end, while the other end has nothing yet.
        let (all, least) = (first.len(), first.len() / 4);
        assert!(
            both > least,
            "{over:?}: {both} of {all} beside work of the other device"
        );
        is_stamped(&within(room.released()).await.leases[0], 1, 0);
        drop(sender);
        pair.end().await;
    }
}

#[tokio::test]
async fn devices_that_do_not_reach_each_other_meet_in_a_slot() {
    let config = Config {
        peers: false,
        ..with(2)
    };
    let devices = Devices::new(config, &small());
    let pair = Pair::new(&devices, At::Device(0), At::Device(1)).await;
    pair.moves(1, false).await;
    pair.moves(2, true).await;
    pair.end().await;
}

#[tokio::test]
async fn pages_of_odd_sizes_and_orders_arrive_whole() {
    let devices = Devices::two();
    let layout = |order| PoolLayout {
        name: "kv".into(),
        kind: PoolKind::Kv,
        order,
        layers: 3,
        pages: 24,
        page_bytes: 8 * 1237,
        page_tokens: TOKENS as u32,
    };
    for (from, to) in [(0, At::Device(1)), (1, At::Host)] {
        let from = (At::Device(from), layout(Order::PagesFirst));
        let pair = Pair::of(&devices, from, (to, layout(Order::LayersFirst))).await;
        pair.moves(1, true).await;
        pair.end().await;
    }
}

#[tokio::test]
async fn many_small_runs_are_copied_by_kernels_where_there_are_any() {
    // Cells of 1,800, 200 and 4,096 bytes; then pages that lie the same way on both sides, as long runs.
    let sizes = [1800, 200, 4096];
    for kernels in [Own::all(), BTreeMap::new()] {
        let there = !kernels.is_empty();
        let config = Config { kernels, ..with(2) };
        let devices = Devices::new(config, &small());
        for (bytes, to) in sizes
            .into_iter()
            .zip([At::Device(1), At::Host, At::Device(0)])
        {
            let from = |order| PoolLayout {
                order,
                ..kv(24, bytes)
            };
            let ends = (At::Device(0), from(Order::PagesFirst));
            let pair = Pair::of(&devices, ends, (to, from(Order::LayersFirst))).await;
            pair.moves(1, true).await;
            pair.end().await;
            let ends = (At::Host, from(Order::PagesFirst));
            let pair = Pair::of(&devices, ends, (At::Device(0), from(Order::LayersFirst))).await;
            pair.moves(1, true).await;
            pair.end().await;
        }
        let device = &devices.all[0];
        let said = device.kernels().expect("it has started");
        assert_eq!(said.is_ok(), there, "{said:?}");
        // Each way once at least: 12 pages of 2 layers are 24 runs.
        let launched = device.stats().launched;
        assert_eq!(launched >= 6, there, "{launched} pieces by kernels");
    }
}

#[tokio::test]
async fn the_slices_of_a_lease_on_a_device_are_refused_in_words() {
    let devices = Devices::two();
    let pool = devices.pool(At::Device(0), kv(4, 4096));
    let lease = pool.lease_write(&[1]).unwrap();
    let shown = std::panic::AssertUnwindSafe(|| lease.page(0, 0).len());
    let shown = std::panic::catch_unwind(shown);
    let text = *shown.unwrap_err().downcast::<String>().unwrap();
    names(&text, &["on a device", "load", "store"]);
}

#[tokio::test]
async fn nothing_of_a_chunk_is_read_before_its_event_has_fired() {
    for to in [At::Device(1), At::Device(0), At::Host] {
        let devices = Devices::two();
        let pair = Pair::new(&devices, At::Device(0), to).await;
        let lease = pair.to.lease_write(&[24, 25]).unwrap();
        let room = pair.decode.receive(RoomId(1)).from(&pair.peer).into(lease);
        let room = room.start().await.unwrap();
        let sender = pair.prefill.send(RoomId(1)).start().await.unwrap();
        let before = stamped(&pair.from, &[24, 25], 7, 0);
        let engine = Engine::held(&devices, 0);
        let chunk = Chunk::tokens(0..2 * TOKENS).pages(before);
        let chunk = chunk.ready(Arc::clone(&engine.ready));
        let pushed = sender.reserve().await.unwrap().push(chunk).unwrap();
        sender.finish(2 * TOKENS, None).unwrap();
        until("the job waits for its event", || {
            devices.all[0].stats().waiting == 1
        })
        .await;
        // Others pass it.
        for id in 2..6 {
            pair.moves(id, false).await;
        }
        assert_eq!(room.poll().state, StateName::Transferring);
        assert!(pushed.try_released().is_none());
        // The engine writes the pages only now.
        rewrite(&pair.from, &[24, 25], 1);
        engine.goes();
        assert_eq!(within(room.outcome()).await, Outcome::Done);
        is_stamped(&within(room.released()).await.leases[0], 1, 0);
        drop((sender, engine.stream, pushed));
        pair.end().await;
    }
}

#[tokio::test]
async fn each_layer_goes_out_as_soon_as_it_is_computed() {
    for over in [Over::Local, Over::Tcp] {
        let devices = Devices::two();
        let layout = || kv(26, 32 << 10);
        let ends = ((At::Device(0), layout()), (At::Device(1), layout()));
        let pair = Pair::over(over, &devices, ends.0, ends.1).await;
        let lease = pair.to.lease_write(&[4, 5]).unwrap();
        let room = pair.decode.receive(RoomId(1)).from(&pair.peer).into(lease);
        let room = room.start().await.unwrap();
        let sender = pair.prefill.send(RoomId(1)).start().await.unwrap();
        drop(stamped(&pair.from, &[8, 9], 7, 0));
        let mut engines = Vec::new();
        for layer in 0..LAYERS {
            let engine = Engine::held(&devices, 0);
            let lease = pair.from.lease_read(&[8, 9]).unwrap();
            let chunk = Chunk::tokens(0..2 * TOKENS).layers(layer..layer + 1);
            let chunk = chunk.pages(lease).ready(Arc::clone(&engine.ready));
            let pushed = sender.reserve().await.unwrap().push(chunk).unwrap();
            engines.push((engine, pushed));
        }
        sender.finish(2 * TOKENS, None).unwrap();
        // The last layer first: the event decides, and not the order of the chunks.
        rewrite(&pair.from, &[8, 9], 1);
        let (engine, pushed) = engines.pop().unwrap();
        engine.goes();
        assert!(within(pushed.released()).await.is_some());
        assert_eq!(room.poll().state, StateName::Transferring);
        let (first, pushed) = engines.pop().unwrap();
        assert!(pushed.try_released().is_none());
        first.goes();
        assert_eq!(within(room.outcome()).await, Outcome::Done);
        is_stamped(&within(room.released()).await.leases[0], 1, 0);
        drop((sender, first.stream, engine.stream, pushed));
        pair.end().await;
    }
}

/// Writes pages as an engine does, whoever holds leases of them.
fn rewrite(pool: &Pool, pages: &[u32], of: u64) {
    let (device, memory) = (pool.device().unwrap(), pool.device_memory().unwrap());
    for layer in 0..pool.layout().layers {
        for (i, page) in pages.iter().enumerate() {
            let bytes = cell_of(pool, of, layer, i as u64);
            let offset = pool.layout().cell_offset(layer, *page).unwrap();
            device.write(memory, offset, &bytes, Arc::new(())).unwrap();
        }
    }
}

#[tokio::test]
async fn a_chunk_that_waits_for_its_event_is_aborted_at_once_and_holds_its_pages() {
    for to in [At::Device(1), At::Host] {
        let devices = Devices::two();
        let pair = Pair::new(&devices, At::Device(0), to).await;
        let lease = pair.to.lease_write(&[1, 2]).unwrap();
        let room = pair.decode.receive(RoomId(1)).from(&pair.peer).into(lease);
        let room = room.start().await.unwrap();
        let sender = pair.prefill.send(RoomId(1)).start().await.unwrap();
        let lease = stamped(&pair.from, &[8, 9], 7, 0);
        let engine = Engine::held(&devices, 0);
        let chunk = Chunk::tokens(0..2 * TOKENS).pages(lease);
        let chunk = chunk.ready(Arc::clone(&engine.ready));
        let pushed = sender.reserve().await.unwrap().push(chunk).unwrap();
        until("a piece is queued behind the event", || {
            devices.all[0].stats().queued == 1
        })
        .await;
        sender.abort("the agent was killed");
        assert_eq!(code(&within(sender.outcome()).await), Code::Requested);
        assert_eq!(code(&within(room.outcome()).await), Code::Requested);
        if to == At::Host {
            // No gate was entered, so the destination is free; the source is not.
            drop(within(room.released()).await);
        } else {
            assert!(room.try_released().is_none());
        }
        until("the job is given up", || {
            devices.all[0].stats().waiting == 0
        })
        .await;
        assert!(pushed.try_released().is_none());
        assert_eq!(devices.all[0].stats().queued, 1);
        engine.goes();
        assert!(within(pushed.released()).await.is_some());
        if to != At::Host {
            drop(within(room.released()).await);
        }
        drop((sender, engine.stream));
        pair.end().await;
    }
}

#[tokio::test]
async fn no_more_is_queued_than_there_are_slots_and_an_abort_waits_for_no_more() {
    let config = Config {
        rate: 4 << 20,
        ..with(2)
    };
    let devices = Devices::new(config, &small());
    for to in [At::Device(1), At::Host] {
        let pair = Pair::new(&devices, At::Device(0), to).await;
        let lane = &devices.all[0];
        let lease = pair.to.lease_write(&[1, 2, 3, 4]).unwrap();
        let room = pair.decode.receive(RoomId(1)).from(&pair.peer).into(lease);
        let room = room.start().await.unwrap();
        let sender = pair.prefill.send(RoomId(1)).start().await.unwrap();
        let lease = pair.from.lease_write(&[1, 2, 3, 4]).unwrap().into_read();
        let before = lane.stats().pieces;
        drop(push(&sender, 0..4 * TOKENS, lease).await);
        let mut most = 0;
        until("a few pieces have landed", || {
            most = most.max(lane.stats().queued);
            lane.stats().pieces >= before + 3
        })
        .await;
        assert_eq!(most, 4);
        sender.abort("enough");
        let landed = lane.stats().pieces;
        assert_eq!(code(&within(room.outcome()).await), Code::Requested);
        drop(within(room.released()).await);
        drop(within(sender.released()).await);
        let after = lane.stats().pieces - landed;
        // One that was being queued while it was looked at is among them.
        assert!(after <= 5, "{after} pieces landed after the abort");
        assert!(landed + after < before + 16, "all of it had landed");
        drop(sender);
        pair.end().await;
    }
}

#[tokio::test]
async fn a_lost_device_ends_its_rooms_and_leaves_other_devices_serving() {
    let devices = Devices::two();
    let doomed = Pair::new(&devices, At::Device(0), At::Host).await;
    let other = Pair::new(&devices, At::Device(1), At::Host).await;
    let lease = doomed.to.lease_write(&[1, 2]).unwrap();
    let room = doomed.decode.receive(RoomId(1)).from(&doomed.peer);
    let room = room.into(lease).start().await.unwrap();
    let sender = doomed.prefill.send(RoomId(1)).start().await.unwrap();
    let lease = stamped(&doomed.from, &[8, 9], 7, 0);
    let fault = Fault {
        call: Some("cuMemcpyBatchAsync"),
        nth: 1,
        what: Injected::Later(700),
    };
    devices.machine.inject(0, fault).unwrap();
    let pushed = push(&sender, 0..2 * TOKENS, lease).await;
    let ended = within(sender.outcome()).await;
    assert_eq!(code(&ended), Code::DeviceLost);
    names(&text(&ended), &["device 0", "restart"]);
    let told = within(room.outcome()).await;
    assert_eq!(code(&told), Code::DeviceLost);
    // Nothing of the destination was a device's: it comes back. The source does not.
    drop(within(room.released()).await);
    assert!(pushed.try_released().is_none());
    assert_eq!(doomed.from.leased_pages(), 2);
    // The next room on that device ends at once, and its pages come back: nothing was queued.
    let again = doomed.prefill.send(RoomId(2)).start().await.unwrap();
    let lease = doomed.to.lease_write(&[3]).unwrap();
    let room = doomed.decode.receive(RoomId(2)).from(&doomed.peer);
    let room = room.into(lease).start().await.unwrap();
    let lease = doomed.from.lease_write(&[3]).unwrap().into_read();
    let pushed = push(&again, 0..TOKENS, lease).await;
    assert_eq!(code(&within(room.outcome()).await), Code::DeviceLost);
    assert!(within(pushed.released()).await.is_some());
    drop(within(room.released()).await);
    for id in 1..4 {
        other.moves(id, id == 2).await;
    }
    other.end().await;
}

#[tokio::test]
async fn a_device_that_is_lost_while_a_network_brings_pages_ends_the_room_and_no_other() {
    let devices = Devices::new(with(2), &small());
    let layout = || kv(26, 48 << 10);
    let ends = ((At::Host, layout()), (At::Device(0), layout()));
    let doomed = Pair::over(Over::Tcp, &devices, ends.0, ends.1).await;
    // Another pool of the same node, on a device that goes on; its frames share the connections.
    let named = |at| {
        let layout = PoolLayout {
            name: "other".into(),
            ..layout()
        };
        devices.pool(at, layout)
    };
    let (from, to) = (named(At::Host), named(At::Device(1)));
    doomed.prefill.add_pool(from.clone()).await.unwrap();
    doomed.decode.add_pool(to.clone()).await.unwrap();
    let fault = Fault {
        call: Some("cuMemcpyBatchAsync"),
        nth: 0,
        what: Injected::Later(700),
    };
    let lease = doomed.to.lease_write(&[1, 2]).unwrap();
    let room = doomed.decode.receive(RoomId(1)).from(&doomed.peer);
    let room = room.into(lease).start().await.unwrap();
    let sender = doomed.prefill.send(RoomId(1)).start().await.unwrap();
    let lease = stamped(&doomed.from, &[8, 9], 7, 0);
    devices.machine.inject(0, fault).unwrap();
    let pushed = push(&sender, 0..2 * TOKENS, lease).await;
    let ended = within(room.outcome()).await;
    assert_eq!(code(&ended), Code::DeviceLost);
    names(&text(&ended), &["device 0"]);
    let told = within(sender.outcome()).await;
    assert_eq!(code(&told), Code::DeviceLost);
    // The source was the host's, and nothing of it is read any more. What the device may write is held.
    assert!(within(pushed.released()).await.is_some());
    assert!(room.try_released().is_none());
    assert_eq!(doomed.to.leased_pages(), 2);
    for id in 2..6 {
        let lease = to.lease_write(&[1, 2]).unwrap();
        let room = doomed.decode.receive(RoomId(id)).from(&doomed.peer);
        let room = room.into(lease).start().await.unwrap();
        let sender = doomed.prefill.send(RoomId(id)).start().await.unwrap();
        let lease = stamped(&from, &[8, 9], id, 0);
        drop(push(&sender, 0..2 * TOKENS, lease).await);
        sender.finish(2 * TOKENS, None).unwrap();
        assert_eq!(within(room.outcome()).await, Outcome::Done);
        is_stamped(&within(room.released()).await.leases[0], id, 0);
    }
}

#[tokio::test]
async fn an_event_for_pages_of_the_host_is_refused() {
    let devices = Devices::two();
    let pair = Pair::new(&devices, At::Host, At::Device(0)).await;
    let sender = pair.prefill.send(RoomId(1)).start().await.unwrap();
    let engine = Engine::held(&devices, 0);
    engine.goes();
    let lease = stamped(&pair.from, &[8], 7, 0);
    let chunk = Chunk::tokens(0..TOKENS).pages(lease);
    let chunk = chunk.ready(Arc::clone(&engine.ready));
    let refused = sender.reserve().await.unwrap().push(chunk).unwrap_err();
    names(&refused.reason, &["host memory", "event"]);
    drop((refused, sender, engine.stream));
    pair.end().await;
}

/// Whoever gets pages back writes them at once; nothing of the aborted room may come after that.
#[tokio::test]
async fn no_byte_changes_after_an_aborted_room_has_given_its_pages_back() {
    let ways = [
        (Over::Local, At::Device(0), At::Device(1), false),
        (Over::Local, At::Device(0), At::Host, false),
        (Over::Local, At::Device(0), At::Device(0), false),
        (Over::Tcp, At::Device(0), At::Device(1), false),
        (Over::Tcp, At::Host, At::Device(1), false),
        (Over::Tcp, At::Device(0), At::Device(1), true),
    ];
    for (seed, (over, from, to, straight)) in (1..).zip(ways) {
        let config = Config {
            seed,
            delay: Duration::from_micros(300),
            straggler: 5,
            ..with(2)
        };
        let options = DeviceOptions {
            between_processes: straight,
            ..small()
        };
        let devices = Devices::new(config, &options);
        let layout = || kv(26, 48 << 10);
        let pair = Pair::over(over, &devices, (from, layout()), (to, layout())).await;
        for id in 1..30u64 {
            let lease = pair.to.lease_write(&[1, 2, 3, 4]).unwrap();
            let room = pair.decode.receive(RoomId(id)).from(&pair.peer).into(lease);
            let room = room.start().await.unwrap();
            let sender = pair.prefill.send(RoomId(id)).start().await.unwrap();
            let before: u64 = devices.all.iter().map(|d| d.stats().pieces).sum();
            let lease = stamped(&pair.from, &[5, 6, 7, 8], id, 0);
            let pushed = push(&sender, 0..4 * TOKENS, lease).await;
            let moved = || {
                devices
                    .all
                    .iter()
                    .map(|d| d.stats().pieces + d.stats().queued)
            };
            until("some of it is under way, or has landed", || {
                moved().sum::<u64>() >= before + id % 2
            })
            .await;
            match id % 2 {
                0 => room.abort("enough"),
                _ => sender.abort("enough"),
            }
            let mut back = within(room.released()).await.leases.remove(0);
            stamp(&mut back, 1000 + id, 0);
            // The source is written again, too, as soon as it is back: what was read of it is of `id`.
            let source = within(pushed.released()).await.unwrap();
            let mut source = source.into_write().unwrap();
            stamp(&mut source, 5000, 0);
            is_stamped(&back, 1000 + id, 0);
            drop((source, back, sender));
        }
        pair.moves(77, true).await;
        pair.end().await;
        assert_eq!(devices.all[1].stats().taken > 0, straight);
    }
}
