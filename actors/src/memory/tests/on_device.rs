//! Pools on a device: what the CPU is refused, and what queued work may name.

use super::*;
use crate::copy::device::emulated::{Config, Machine};
use crate::copy::device_lane::{Device, DeviceOptions};
use crate::memory::copy::End;
use std::cell::Cell;

fn device() -> Device {
    let context = Machine::new(Config::default()).context(0).unwrap();
    let options = DeviceOptions {
        slots: 2,
        slot_bytes: 4096,
        ..DeviceOptions::default()
    };
    Device::start(context, options).unwrap()
}

fn on(device: &Device) -> Pool {
    Pool::on_device(layout(Order::LayersFirst), device).unwrap()
}

#[test]
fn the_cpu_copies_neither_from_nor_to_pages_of_a_device() {
    let device = device();
    let (host, far) = (pool(), on(&device));
    for (from, to, end) in [(&far, &host, End::Source), (&host, &far, End::Destination)] {
        let (backs, bell) = (Arc::default(), Arc::default());
        let lease = from.lease_write(&[6]).unwrap().into_read();
        let mut lent = to.lease_write(&[3]).unwrap();
        let table = GateTable::new(1);
        let gate = table.open(ClaimNo(1), target(&mut lent, &bell)).unwrap();
        let inside = table.enter(gate.slot(), ClaimNo(1)).unwrap();
        let ticket = ticket(&lease, &backs);
        let pool = "kv".to_owned();
        let refused = inside.copy_from(0, at(1, 3), &ticket, at(1, 6), 16);
        assert_eq!(refused, Err(CopyError::OnDevice { end, pool }));
        // A page that is not lent is told as such, wherever it is.
        let stray = inside.copy_from(0, at(1, 4), &ticket, at(1, 6), 16);
        let page = 4;
        let end = End::Destination;
        assert_eq!(stray, Err(CopyError::NotLent { end, page }));
    }
}

#[test]
fn queued_work_names_only_pages_that_are_lent_to_it() {
    let device = device();
    let far = on(&device);
    let (backs, bell) = (Arc::default(), Arc::default());
    let lease = far.lease_write(&[6]).unwrap().into_read();
    let ticket = ticket(&lease, &backs);
    let mut lent = far.lease_write(&[3]).unwrap();
    let table = GateTable::new(1);
    let gate = table.open(ClaimNo(1), target(&mut lent, &bell)).unwrap();
    let stay = table.stay(gate.slot(), ClaimNo(1)).unwrap();
    let cursor = Cell::new(0);
    assert!(ticket.device_source(at(1, 6), 16).is_ok());
    assert!(stay.device_target(0, at(1, 3), 16, &cursor).is_ok());
    let none = [
        ticket.device_source(at(1, 7), 16).err(),
        ticket.device_source(at(1, 6), 17).err(),
        stay.device_target(0, at(1, 2), 16, &cursor).err(),
        stay.device_target(0, at(1, 3) - 1, 16, &cursor).err(),
    ];
    let pages = none.map(|error| match error {
        Some(CopyError::NotLent { page, .. }) => page,
        other => panic!("{other:?}"),
    });
    assert_eq!(pages, [7, 7, 2, 2]);
    let outside = stay.device_target(0, at(3, 0) - 8, 16, &cursor);
    assert!(matches!(outside, Err(CopyError::OutOfPool { .. })));
    let missing = stay.device_target(1, at(1, 3), 16, &cursor).err();
    assert_eq!(missing, Some(CopyError::NoSuchSection { section: 1 }));
}

#[test]
fn a_gate_is_not_finished_while_a_device_stays_in_it_and_then_its_bell_rings() {
    let device = device();
    let far = on(&device);
    let bell = Arc::default();
    let mut lent = far.lease_write(&[3]).unwrap();
    let table = GateTable::new(1);
    let gate = table.open(ClaimNo(1), target(&mut lent, &bell)).unwrap();
    let stay = table.stay(gate.slot(), ClaimNo(1)).unwrap();
    let closing = gate.close().try_finish().unwrap_err();
    assert!(table.stay(closing.slot(), ClaimNo(1)).is_err());
    std::thread::spawn(move || drop(stay)).join().unwrap();
    assert_eq!(bell.heard(), [ClaimNo(1)]);
    assert!(closing.try_finish().is_ok());
}

#[test]
fn a_job_is_over_when_its_ticket_and_every_part_of_it_are() {
    let host = pool();
    let backs: Arc<Backs> = Arc::default();
    let lease = host.lease_read(&[1]).unwrap();
    let mut whole = ticket(&lease, &backs);
    let mut first = whole.part();
    let second = whole.part();
    whole.finish();
    first.landed(5);
    first.finish();
    assert!(backs.0.lock().unwrap().is_empty(), "a part is not over");
    drop(lease);
    assert_eq!(host.leased_pages(), 1);
    drop(second);
    let back = backs.0.lock().unwrap().pop().unwrap();
    assert!(!back.finished, "a part was given up");
    assert_eq!(back.facts.landed_bytes, 5);
    assert_eq!(host.leased_pages(), 0);
}
