//! What is given back, and when.

use crate::rig::{LONG, Plug, Rig, Witness, device, land, look, pending, pinned, stream, until};
use kvroom_actors::copy::device::{Closed, DeviceError, Held, Staging};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

pub(crate) fn what_work_owns_comes_back_when_its_event_has_fired_and_not_before(rig: &dyn Rig) {
    let context = rig.context(0);
    let line = stream(&context);
    let plug = Plug::new(&line);
    let (witness, dropped) = Witness::new();
    let holds = (
        pinned(&context, &[1; 8]),
        context.device_memory(8).unwrap(),
        witness,
    );
    let flight = line.queue(holds, |(from, to, _), q| {
        q.copy(to.range(0..8)?, from.source(0..8)?)
    });
    let mut flight = flight.unwrap();
    assert_eq!(context.stats().in_flight, 2);
    for _ in 0..100 {
        flight = pending(flight);
    }
    drop(plug);
    let (.., witness) = land(flight);
    assert!(!dropped.load(Ordering::SeqCst));
    drop(witness);
    assert!(dropped.load(Ordering::SeqCst));
    context.reap();
    assert_eq!(context.stats().in_flight, 0);
}

pub(crate) fn work_that_is_let_go_of_keeps_its_things_until_it_is_over(rig: &dyn Rig) {
    let context = rig.context(0);
    let line = stream(&context);
    let plug = Plug::new(&line);
    let (witness, dropped) = Witness::new();
    let holds = (
        pinned(&context, &[1; 8]),
        context.device_memory(8).unwrap(),
        witness,
    );
    let blocks = rig.blocks();
    let flight = line.queue(holds, |(from, to, _), q| {
        q.copy(to.range(0..8)?, from.source(0..8)?)
    });
    drop(flight.unwrap());
    assert_eq!(context.stats().parked, 1);
    for _ in 0..100 {
        assert_eq!(context.reap(), 1);
    }
    assert!(!dropped.load(Ordering::SeqCst));
    assert_eq!(rig.blocks(), blocks);
    drop(plug);
    until(|| context.reap() == 0);
    assert!(dropped.load(Ordering::SeqCst));
    assert_eq!(rig.blocks(), blocks - 2);
    let stats = context.stats();
    assert_eq!((stats.leaked, stats.unfreed, stats.parked), (0, 0, 0));
}

pub(crate) fn a_closure_that_panics_frees_nothing_that_it_queued(rig: &dyn Rig) {
    let context = rig.context(0);
    let line = stream(&context);
    let plug = Plug::new(&line);
    let (witness, dropped) = Witness::new();
    let holds = (
        pinned(&context, &[1; 8]),
        context.device_memory(8).unwrap(),
        witness,
    );
    let panics = catch_unwind(AssertUnwindSafe(|| {
        let _ = line.queue(holds, |(from, to, _), q| {
            q.copy(to.range(0..8)?, from.source(0..8)?)?;
            std::panic::resume_unwind(Box::new("on purpose"))
        });
    }));
    assert_eq!(
        *panics.unwrap_err().downcast::<&str>().unwrap(),
        "on purpose"
    );
    assert_eq!(context.reap(), 1);
    assert!(!dropped.load(Ordering::SeqCst));
    drop(plug);
    until(|| context.reap() == 0);
    assert!(dropped.load(Ordering::SeqCst));
}

pub(crate) fn a_closure_that_queues_nothing_gives_everything_back_at_once(rig: &dyn Rig) {
    let context = rig.context(0);
    let line = stream(&context);
    let holds = (pinned(&context, &[1; 8]), context.device_memory(4).unwrap());
    let refused = line.queue(holds, |(from, to), q| {
        q.copy(to.range(0..8)?, from.source(0..8)?)
    });
    let refused = refused.unwrap_err();
    assert!(matches!(
        refused.error,
        DeviceError::OutOfRange {
            bytes: 8,
            of: 4,
            ..
        }
    ));
    let Held::Back(holds) = refused.holds else {
        panic!("nothing was queued");
    };
    let refused = line.queue(holds, |(from, to), q| {
        q.copy(to.range(0..4)?, from.source(0..8)?)
    });
    let refused = refused.unwrap_err();
    assert!(matches!(
        refused.error,
        DeviceError::OutOfRange {
            bytes: 8,
            of: 4,
            ..
        }
    ));
    assert!(matches!(refused.holds, Held::Back(_)));
    // A range whose end is before its start, or beyond all numbers, is none.
    let memory = context.device_memory(4).unwrap();
    #[allow(clippy::reversed_empty_ranges)]
    let backwards = memory.range(3..1);
    assert!(backwards.is_err());
    assert!(memory.range(u64::MAX - 1..u64::MAX).is_err());
    assert!(memory.range(4..4).is_ok());
}

pub(crate) fn a_context_with_work_in_flight_ends_within_its_bound(rig: &dyn Rig) {
    let context = rig.context(0);
    let line = stream(&context);
    let plug = Plug::new(&line);
    let (witness, dropped) = Witness::new();
    drop(line.queue(witness, |_, q| q.call(|| ())).unwrap());
    let began = Instant::now();
    let closed = context.clone().close(Duration::from_millis(30));
    assert_eq!(closed, Closed { parked: 1, lost: 0 });
    assert!(began.elapsed() < LONG);
    assert!(!dropped.load(Ordering::SeqCst));
    drop(plug);
    assert_eq!(context.close(LONG), Closed::default());
    assert!(dropped.load(Ordering::SeqCst));
}

pub(crate) fn a_slot_comes_back_to_its_ring_and_there_are_no_more(rig: &dyn Rig) {
    let context = rig.context(0);
    let line = stream(&context);
    let ring = Staging::new(&context, 2, 64).unwrap();
    assert_eq!(context.stats().pinned_bytes, 128);
    let plug = Plug::new(&line);
    let slot = ring.take().unwrap();
    let flight = line.queue(slot, |_, q| q.call(|| ())).unwrap();
    let other = ring.take().unwrap();
    assert!(ring.take().is_none());
    drop(other);
    assert_eq!((ring.free(), ring.slots()), (1, 2));
    drop(plug);
    drop(land(flight));
    assert_eq!(ring.free(), 2);
    drop(ring);
    assert_eq!(context.stats().pinned_bytes, 0);
}

pub(crate) fn memory_is_given_back_to_the_driver_when_its_owner_is_dropped(rig: &dyn Rig) {
    let before = rig.blocks();
    let context = rig.context(0);
    let (memory, bytes) = look(&context, device(&context, &[5; 100]));
    assert_eq!(bytes, [5; 100]);
    let stats = context.stats();
    assert_eq!((stats.device_bytes, stats.pinned_bytes), (100, 0));
    assert_eq!(rig.blocks(), before + 1);
    drop(memory);
    let stats = context.stats();
    assert_eq!((stats.device_bytes, stats.unfreed), (0, 0));
    assert_eq!(rig.blocks(), before);
}
