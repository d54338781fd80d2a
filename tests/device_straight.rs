//! Pages that go straight from a device to a device, over a session of one host: emulated devices in one
//! process, which export to themselves. Between two processes: `device_processes`.
#![allow(clippy::unwrap_used)]

mod common;

use common::devices::*;
use common::*;
use kvroom::device::emulated::{Config, Fault, Injected, Machine};
use kvroom::device::{Device, DeviceOptions};

fn straight() -> DeviceOptions {
    DeviceOptions {
        // A page in a layer is the least that is sent.
        slot_bytes: 256 << 10,
        between_processes: true,
        ..small()
    }
}

async fn moves(devices: &Devices, from: At, to: At) {
    let pair = Pair::tcp(devices, from, to).await;
    for id in 1..5 {
        pair.moves(id, id == 2).await;
    }
    pair.end().await;
}

#[tokio::test]
async fn pages_go_from_device_to_device_without_a_byte_in_pinned_memory_or_in_a_socket() {
    for to in [0, 1] {
        let devices = Devices::new(with(2), &straight());
        let pair = Pair::tcp(&devices, At::Device(0), At::Device(to)).await;
        // Pages that are filled by hand take pinned memory, too.
        drop(stamped(&pair.to, &[0], 9, 0));
        let (from, to) = (&devices.all[0], &devices.all[to as usize]);
        let pinned = || to.context().stats().pinned_bytes;
        let before = pinned();
        for id in 1..5 {
            pair.moves(id, id == 2).await;
        }
        assert!(from.stats().handed > 0 && to.stats().taken > 0);
        assert_eq!((from.stats().sent, to.stats().received), (0, 0));
        if !from.same(to) {
            assert_eq!(pinned(), before, "no ring for bytes that come");
        }
        pair.end().await;
    }
}

#[tokio::test]
async fn mixed_pools_and_what_cannot_be_opened_or_exported_go_as_bytes() {
    let off = DeviceOptions {
        between_processes: false,
        ..straight()
    };
    let sides = |config: Config, options: [&DeviceOptions; 2]| {
        let machine = Machine::new(Config {
            streams: 16,
            ..config
        });
        let device = |n: u32| {
            let context = machine.context(n).unwrap();
            Device::start(context, options[n as usize].clone()).unwrap()
        };
        Devices {
            all: (0..2).map(device).collect(),
            machine,
        }
    };
    let apart = Config {
        peers: false,
        ..with(2)
    };
    let on = straight();
    let (zero, one) = (At::Device(0), At::Device(1));
    let cases = [
        (sides(with(2), [&off, &on]), None, zero, one),
        (sides(with(2), [&on, &off]), None, zero, one),
        (sides(apart, [&on, &on]), None, zero, one),
        (
            sides(with(2), [&on, &on]),
            Some("cuIpcGetMemHandle"),
            zero,
            one,
        ),
        (
            sides(with(2), [&on, &on]),
            Some("cuIpcOpenMemHandle"),
            zero,
            one,
        ),
        (sides(with(2), [&on, &on]), None, zero, At::Host),
        (sides(with(2), [&on, &on]), None, At::Host, one),
    ];
    for (case, (devices, fails, from, to)) in cases.into_iter().enumerate() {
        for device in 0..2 {
            for nth in 0..4 {
                let Some(call) = fails else { continue };
                let what = Injected::Returns(801);
                let call = Some(call);
                let fault = Fault { call, nth, what };
                devices.machine.inject(device, fault).unwrap();
            }
        }
        moves(&devices, from, to).await;
        let (from, to) = (devices.all[0].stats(), devices.all[1].stats());
        assert_eq!((from.handed, to.taken), (0, 0), "case {case}");
        assert!(from.sent + to.received > 0, "case {case}");
    }
}

#[tokio::test]
async fn what_was_opened_is_closed_with_its_session_and_what_was_exported_stays() {
    let devices = Devices::new(with(2), &straight());
    moves(&devices, At::Device(0), At::Device(1)).await;
    let opened = || devices.all[1].context().stats().opened_bytes;
    until("the rings are closed", || opened() == 0).await;
    assert_eq!(devices.all[1].context().stats().exported_bytes, 0);
    let exported = devices.all[0].context().stats().exported_bytes;
    // Whole blocks: the driver shares no less, and there is nothing else of this process in them.
    assert_eq!(exported, 2 << 20);
    let machine = devices.machine.clone();
    drop(devices);
    // Of all that was there, one block: another process could have it open.
    until("the rest is freed", || machine.blocks() == 1).await;
}
