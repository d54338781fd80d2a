//! What fails, who is told, and what is left.

use crate::rig::{
    LONG, Plug, Rig, Witness, bytes_of, device, land, noise, pending, pinned, stream, until,
};
use kvroom_actors::copy::device::{
    Arg, Context, Copy, Culprit, DeviceError, Held, InFlight, Launch, Polled, Priority, QueueError,
    Staging,
};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A code of the driver after which a context goes on, and one after which it does not.
const PASSING: u32 = 304;
const STAYING: u32 = 700;

/// What work owned, once nothing of it can be in the queue any more.
fn settle<T: Send + 'static>(queued: Result<InFlight<T>, QueueError<T>>) -> Result<T, DeviceError> {
    let (flight, error) = match queued {
        Ok(flight) => (flight, None),
        Err(QueueError { error, holds }) => match holds {
            Held::Back(_) => return Err(error),
            Held::InFlight(flight) => (flight, Some(error)),
        },
    };
    match flight.wait(LONG) {
        Polled::Landed(holds) => error.map_or(Ok(holds), Err),
        Polled::Pending(_) => panic!("it is not over after {LONG:?}"),
        Polled::Lost(lost) => Err(lost.why().clone()),
    }
}

/// Every kind of call, and the bytes that come out.
fn script(rig: &dyn Rig, ordinal: u32, seen: &mut Option<Context>) -> Result<Vec<u8>, DeviceError> {
    let context = &*seen.insert(rig.try_context(ordinal)?);
    let (one, two) = (
        context.stream(Priority::High)?,
        context.stream(Priority::Usual)?,
    );
    let ready = context.ready_event(false)?;
    let ring = Staging::new(context, 2, 256)?;
    let memory = Arc::new(context.device_memory(256)?);
    let module = context.load(&rig.code())?;
    let add = module.kernel("add_to_bytes")?;
    let bytes = noise(11, 256);
    let mut slot = ring.take().unwrap();
    slot.write(0..256, |to| to.copy_from_slice(&bytes))?;
    one.record(&ready)?;
    let (slot, _) = settle(one.queue((slot, Arc::clone(&memory)), |(slot, memory), q| {
        q.after(&ready)?;
        let slot = slot.target(0..256)?;
        let parts = (0..4).map(|nth| {
            let range = nth * 64..(nth + 1) * 64;
            Ok(Copy {
                to: memory.range(range.clone())?,
                from: slot.part(range)?.into(),
            })
        });
        q.copies(&parts.collect::<Result<Vec<_>, DeviceError>>()?)?;
        let all = memory.range(0..256)?;
        let args = [Arg::target(all), Arg::u64(256), Arg::u32(1)];
        q.launch(&add, &Launch::line(1, 256), &args)?;
        q.on(&two)?;
        q.copy(slot, all)?;
        q.call(|| ())?;
        q.on(&one)?;
        q.call(|| ())
    }))?;
    one.is_idle()?;
    slot.read(0..256, <[u8]>::to_vec)
}

fn want() -> Vec<u8> {
    noise(11, 256)
        .iter()
        .map(|byte| byte.wrapping_add(1))
        .collect()
}

pub(crate) fn a_failure_at_any_call_hands_everything_back(rig: &dyn Rig) {
    for nth in 0.. {
        rig.renew();
        let before = rig.blocks();
        rig.fail(nth, PASSING);
        let mut context = None;
        let result = script(rig, 0, &mut context);
        let mut unfreed = 0;
        if let Some(context) = context {
            until(|| context.reap() == 0);
            let stats = context.stats();
            let held = [stats.in_flight, stats.parked, stats.leaked];
            assert_eq!(held, [0; 3], "call {nth}");
            let allocated = [stats.device_bytes, stats.pinned_bytes];
            assert_eq!(allocated, [0; 2], "call {nth}");
            assert_eq!(context.lost(), None, "call {nth}");
            unfreed = stats.unfreed;
        }
        let failed = rig.has_failed();
        match result {
            Ok(bytes) => assert_eq!(bytes, want(), "call {nth}"),
            Err(error) => {
                assert!(failed, "call {nth}: {error}");
                assert!(!error.is_sticky(), "call {nth}: {error}");
                assert!(error.to_string().contains("304"), "call {nth}: {error}");
            }
        }
        // Only what the driver did not take back is still there.
        assert!(unfreed <= 1, "call {nth}");
        assert!(rig.blocks() - before <= unfreed, "call {nth}");
        // The next one finds everything in order.
        let next = script(rig, 0, &mut None);
        assert_eq!(next.unwrap(), want(), "after call {nth}");
        if !failed {
            assert!(nth > 25, "only {nth} calls");
            return;
        }
    }
}

pub(crate) fn a_failure_that_stays_at_any_call_ends_this_device_and_no_other(rig: &dyn Rig) {
    for nth in 0.. {
        rig.renew();
        rig.fail(nth, STAYING);
        let mut context = None;
        let result = script(rig, 0, &mut context);
        let failed = rig.has_failed();
        if let Err(error) = &result {
            let told = matches!(error, DeviceError::Lost(sticky) if sticky.device == 0);
            assert!(told, "call {nth}: {error}");
        }
        if failed && let Some(context) = context {
            // Whatever is asked of it, at the latest now.
            let error = context.device_memory(8).unwrap_err();
            assert!(error.is_sticky(), "call {nth}: {error}");
            let sticky = context.lost().unwrap();
            assert_eq!((sticky.code, sticky.device), (STAYING, 0), "call {nth}");
            let later = [
                context.pinned(8).map(drop),
                context.stream(Priority::Usual).map(drop),
                context.load(&rig.code()).map(drop),
                context.ready_event(false).map(drop),
            ];
            for later in later {
                assert_eq!(later.unwrap_err(), DeviceError::Lost(sticky.clone()));
            }
        }
        let other = script(rig, 1, &mut None);
        assert_eq!(other.unwrap(), want(), "beside call {nth}");
        if !failed {
            assert_eq!(result.unwrap(), want());
            assert!(nth > 25, "only {nth} calls");
            return;
        }
    }
}

pub(crate) fn streams_that_could_not_be_chained_are_both_waited_for(rig: &dyn Rig) {
    let context = rig.context(0);
    let (one, two) = (stream(&context), stream(&context));
    let plug = Plug::new(&one);
    let (witness, dropped) = Witness::new();
    let holds = (
        pinned(&context, &[1; 8]),
        context.device_memory(8).unwrap(),
        witness,
    );
    rig.fail_call("cuStreamWaitEvent", 0, PASSING);
    let flight = one.queue(holds, |(from, to, _), q| {
        q.copy(to.range(0..8)?, from.source(0..8)?)?;
        // Whoever does not care about the error gets no order, and still both proofs.
        assert!(q.on(&two).is_err());
        q.call(|| ())
    });
    let flight = flight.unwrap();
    until(|| two.is_idle().unwrap());
    let flight = pending(flight);
    assert!(!dropped.load(Ordering::SeqCst));
    drop(plug);
    land(flight);
}

pub(crate) fn work_whose_event_could_not_be_recorded_is_over_when_its_stream_is_idle(
    rig: &dyn Rig,
) {
    let context = rig.context(0);
    let line = stream(&context);
    let plug = Plug::new(&line);
    rig.fail_call("cuEventRecord", 0, PASSING);
    let refused = line.queue(context.pinned(8).unwrap(), |_, q| q.call(|| ()));
    let refused = refused.unwrap_err();
    assert!(!refused.error.is_sticky());
    let Held::InFlight(flight) = refused.holds else {
        panic!("it was queued");
    };
    let flight = pending(flight);
    assert_eq!(context.stats().pinned_bytes, 8);
    drop(plug);
    drop(land(flight));
    assert_eq!(context.stats().pinned_bytes, 0);
}

pub(crate) fn an_illegal_access_comes_late_and_is_told_to_everybody_who_shares_the_context(
    rig: &dyn Rig,
) {
    let (context, engine, other) = (rig.context(0), rig.context(0), rig.context(1));
    let line = stream(&context);
    let poke = context.load(&rig.code()).unwrap().kernel("poke").unwrap();
    let plug = Plug::new(&line);
    let flight = line.queue((), |(), q| {
        q.launch(&poke, &Launch::line(1, 1), &[Arg::u64(64)])
    });
    // Nothing is wrong yet.
    let flight = flight.unwrap();
    assert_eq!(context.lost(), None);
    drop(plug);
    let Polled::Lost(lost) = flight.wait(LONG) else {
        panic!("it went well");
    };
    let sticky = lost.sticky().unwrap().clone();
    assert_eq!((sticky.code, sticky.device), (STAYING, 0));
    assert_eq!(lost.why().culprit(), Culprit::SharedContext);
    assert!(lost.why().to_string().contains("shared with the engine"));
    // The engine's next call says the same.
    assert!(engine.device_memory(8).unwrap_err().is_sticky());
    let refused = line.queue(1, |_, q| q.call(|| ())).unwrap_err();
    assert_eq!(refused.error, DeviceError::Lost(sticky));
    assert!(matches!(refused.holds, Held::Back(1)));
    let (memory, pinned) = (device(&other, &[3; 4]), other.pinned(4).unwrap());
    let flight = stream(&other).queue((memory, pinned), |(from, to), q| {
        q.copy(to.target(0..4)?, from.range(0..4)?)
    });
    assert_eq!(bytes_of(&land(flight.unwrap()).1), [3; 4]);
}

pub(crate) fn what_a_lost_device_may_still_use_is_never_freed(rig: &dyn Rig) {
    let context = rig.context(0);
    let line = stream(&context);
    let plug = Plug::new(&line);
    let (witness, dropped) = Witness::new();
    let (parked, also_dropped) = Witness::new();
    let holds = (
        pinned(&context, &[1; 8]),
        context.device_memory(8).unwrap(),
        witness,
    );
    let blocks = rig.blocks();
    let flight = line.queue(holds, |(from, to, _), q| {
        q.copy(to.range(0..8)?, from.source(0..8)?)
    });
    let flight = flight.unwrap();
    drop(line.queue(parked, |_, q| q.call(|| ())).unwrap());
    rig.lose(0, 719);
    let Polled::Lost(lost) = flight.wait(LONG) else {
        panic!("the device is lost");
    };
    assert_eq!(lost.sticky().unwrap().code, 719);
    assert_eq!(lost.holds().0.bytes(), 8);
    drop(lost);
    drop(plug);
    assert_eq!(context.reap(), 2);
    assert!(!dropped.load(Ordering::SeqCst));
    assert!(!also_dropped.load(Ordering::SeqCst));
    assert_eq!(rig.blocks(), blocks);
    let stats = context.stats();
    assert_eq!((stats.leaked, stats.parked, stats.in_flight), (1, 2, 0));
    let closed = context.close(LONG);
    assert_eq!((closed.parked, closed.lost), (2, 2));
}

pub(crate) fn a_device_that_the_engine_lost_is_noticed_by_the_next_look(rig: &dyn Rig) {
    let context = rig.context(0);
    let line = stream(&context);
    let plug = Plug::new(&line);
    let flight = line.queue((), |(), q| q.call(|| ())).unwrap();
    rig.lose(0, 214);
    let Polled::Lost(lost) = flight.poll() else {
        panic!("the device is lost");
    };
    assert_eq!(lost.sticky().unwrap().name, "CUDA_ERROR_ECC_UNCORRECTABLE");
    assert_eq!(context.lost().unwrap().code, 214);
    drop(plug);
}

pub(crate) fn too_much_memory_is_refused_with_how_much_was_asked_for(rig: &dyn Rig) {
    let context = rig.context(0);
    let huge = 1 << 50;
    for (kind, error) in [
        ("device", context.device_memory(huge).map(drop).unwrap_err()),
        ("pinned", context.pinned(huge).map(drop).unwrap_err()),
        (
            "pinned",
            Staging::new(&context, 3, huge).map(drop).unwrap_err(),
        ),
    ] {
        let device = 0;
        let bytes = huge;
        assert_eq!(
            error,
            DeviceError::OutOfMemory {
                device,
                kind,
                bytes
            }
        );
        assert_eq!(error.culprit(), Culprit::Operator);
    }
    // A ring of which only a part fits leaves nothing.
    rig.fail(2, 2);
    assert!(Staging::new(&context, 3, 64).is_err());
    assert!(rig.has_failed());
    assert_eq!(context.stats().pinned_bytes, 0);
    assert_eq!(context.device_memory(8).unwrap().bytes(), 8);
}

pub(crate) fn a_device_that_is_not_there_is_refused_with_how_many_there_are(rig: &dyn Rig) {
    let error = rig.try_context(2).unwrap_err();
    let (ordinal, count) = (2, 2);
    assert_eq!(error, DeviceError::NoSuchDevice { ordinal, count });
}
