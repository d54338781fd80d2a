//! What happens before what.

use crate::rig::{Plug, Rig, bytes_of, device, land, look, noise, pending, pinned, stream, until};
use kvroom_actors::copy::device::{Copy, Priority, Staging};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

pub(crate) fn work_of_one_stream_happens_in_its_order(rig: &dyn Rig) {
    let context = rig.context(0);
    let line = stream(&context);
    let holds = (
        device(&context, &[0; 64]),
        pinned(&context, &noise(1, 64)),
        pinned(&context, &noise(2, 64)),
        context.pinned(64).unwrap(),
    );
    // Each overwrites what the one before wrote; the last one wins.
    let flight = line.queue(holds, |(memory, one, two, out), q| {
        let all = memory.range(0..64)?;
        for _ in 0..20 {
            q.copy(all, one.source(0..64)?)?;
            q.copy(all, two.source(0..64)?)?;
        }
        q.copy(out.target(0..64)?, all)
    });
    let (.., two, out) = land(flight.unwrap());
    assert_eq!(bytes_of(&out), bytes_of(&two));
}

pub(crate) fn streams_overtake_each_other_where_no_event_is_between_them(rig: &dyn Rig) {
    let context = rig.context(0);
    let (held, free) = (stream(&context), context.stream(Priority::High).unwrap());
    let plug = Plug::new(&held);
    let copy = |from: u64| {
        let holds = (
            pinned(&context, &noise(from, 32)),
            context.pinned(32).unwrap(),
        );
        move |line: &kvroom_actors::copy::device::Stream| {
            line.queue(holds, |(from, to), q| {
                q.copy(to.target(0..32)?, from.source(0..32)?)
            })
            .unwrap()
        }
    };
    let first = copy(1)(&held);
    let second = copy(2)(&free);
    land(second);
    let first = pending(first);
    assert!(!held.is_idle().unwrap());
    drop(plug);
    let (from, to) = land(first);
    assert_eq!(bytes_of(&from), bytes_of(&to));
}

pub(crate) fn a_stream_waits_for_an_event_and_the_host_does_not(rig: &dyn Rig) {
    let context = rig.context(0);
    let (engine, own) = (stream(&context), stream(&context));
    let plug = Plug::new(&engine);
    let ready = Arc::new(context.ready_event(false).unwrap());
    // The engine computes, and says so by an event.
    let source = Arc::new(device(&context, &[1; 16]));
    let computes = engine.queue(
        (Arc::clone(&source), pinned(&context, &[7; 16])),
        |(to, from), q| q.copy(to.range(0..16)?, from.source(0..16)?),
    );
    engine.record(&ready).unwrap();
    let waits = own.queue(
        (Arc::clone(&source), context.pinned(16).unwrap()),
        |(from, to), q| {
            q.after(&ready)?;
            q.copy(to.target(0..16)?, from.range(0..16)?)
        },
    );
    let waits = pending(waits.unwrap());
    assert!(!ready.has_fired().unwrap());
    // The event may go as soon as the work is queued.
    drop(plug);
    let (_, to) = land(waits);
    assert_eq!(bytes_of(&to), [7; 16]);
    assert!(ready.has_fired().unwrap());
    land(computes.unwrap());
}

pub(crate) fn work_waits_for_other_work_of_another_stream(rig: &dyn Rig) {
    let context = rig.context(0);
    let (one, two) = (stream(&context), stream(&context));
    let plug = Plug::new(&one);
    let waits = two.queue((), |(), q| q.after_work(plug.flight()));
    let waits = pending(waits.unwrap());
    drop(plug);
    land(waits);
}

pub(crate) fn an_event_that_was_never_recorded_has_fired_and_one_recorded_again_has_not(
    rig: &dyn Rig,
) {
    let context = rig.context(0);
    let (one, two) = (stream(&context), stream(&context));
    let ready = context.ready_event(false).unwrap();
    assert!(ready.has_fired().unwrap());
    // Nothing holds this up.
    land(two.queue((), |(), q| q.after(&ready)).unwrap());
    one.record(&ready).unwrap();
    until(|| ready.has_fired().unwrap());
    let plug = Plug::new(&one);
    // This waits for the record of before, not for the next.
    let before = two.queue((), |(), q| q.after(&ready)).unwrap();
    one.record(&ready).unwrap();
    assert!(!ready.has_fired().unwrap());
    land(before);
    let after = pending(two.queue((), |(), q| q.after(&ready)).unwrap());
    drop(plug);
    land(after);
}

pub(crate) fn a_batch_copies_every_piece_and_nothing_around_it(rig: &dyn Rig) {
    let context = rig.context(0);
    let (pieces, piece) = (150u64, 24u64);
    let source = noise(3, (pieces * piece) as usize);
    let from = pinned(&context, &source);
    let to = device(&context, &vec![0xEE; (pieces * piece * 2) as usize]);
    let flight = stream(&context).queue((from, to), |(from, to), q| {
        // Every second place, in another order.
        let copies: Result<Vec<_>, _> = (0..pieces)
            .map(|nth| {
                let place = (nth * 7 % pieces) * 2 * piece;
                Ok(Copy {
                    to: to.range(place..place + piece)?,
                    from: from.source(nth * piece..(nth + 1) * piece)?,
                })
            })
            .collect();
        q.copies(&copies?)?;
        // One without bytes is none.
        q.copy(to.range(0..0)?, from.source(0..0)?)
    });
    let (_, to) = land(flight.unwrap());
    let (_, got) = look(&context, to);
    for nth in 0..pieces {
        let place = ((nth * 7 % pieces) * 2 * piece) as usize;
        let (piece, from) = (piece as usize, (nth * piece) as usize);
        assert_eq!(got[place..place + piece], source[from..from + piece]);
        assert!(
            got[place + piece..place + 2 * piece]
                .iter()
                .all(|b| *b == 0xEE)
        );
    }
}

pub(crate) fn a_call_of_the_host_comes_after_what_was_queued_before_it(rig: &dyn Rig) {
    let context = rig.context(0);
    let line = stream(&context);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let plug = Plug::new(&line);
    let flights: Vec<_> = (0..5)
        .map(|nth| {
            let seen = Arc::clone(&seen);
            let flight = line.queue((), |(), q| {
                q.call(move || seen.lock().unwrap().push(nth))?;
                // One that panics is the caller's affair, and the stream's of nobody.
                q.call(|| std::panic::resume_unwind(Box::new("on purpose")))
            });
            flight.unwrap()
        })
        .collect();
    assert!(seen.lock().unwrap().is_empty());
    drop(plug);
    flights.into_iter().for_each(land);
    assert_eq!(*seen.lock().unwrap(), [0, 1, 2, 3, 4]);
}

pub(crate) fn slots_of_a_small_ring_carry_every_byte_through_two_streams(rig: &dyn Rig) {
    const PIECES: u64 = 60;
    const PIECE: u64 = 512;
    let context = rig.context(0);
    let (gather, scatter) = (stream(&context), stream(&context));
    let source = noise(9, (PIECES * PIECE) as usize);
    let from = Arc::new(device(&context, &source));
    let to = Arc::new(device(&context, &vec![0; source.len()]));
    let ring = Staging::new(&context, 3, PIECE).unwrap();
    let landed = Arc::new(AtomicU32::new(0));
    let mut flights = std::collections::VecDeque::new();
    for nth in 0..PIECES {
        let slot = loop {
            match ring.take() {
                Some(slot) => break slot,
                None => drop(land(flights.pop_front().unwrap())),
            }
        };
        let range = nth * PIECE..(nth + 1) * PIECE;
        let holds = (slot, Arc::clone(&from), Arc::clone(&to));
        let counts = Arc::clone(&landed);
        let flight = gather.queue(holds, |(slot, from, to), q| {
            let slot = slot.target(0..PIECE)?;
            q.copy(slot, from.range(range.clone())?)?;
            q.on(&scatter)?;
            q.copy(to.range(range.clone())?, slot)?;
            q.call(move || {
                counts.fetch_add(1, Ordering::SeqCst);
            })
        });
        flights.push_back(flight.unwrap());
        assert!(flights.len() <= 3);
    }
    flights.into_iter().for_each(|flight| drop(land(flight)));
    assert_eq!(landed.load(Ordering::SeqCst), PIECES as u32);
    assert_eq!(ring.free(), 3);
    let to = Arc::try_unwrap(to).unwrap();
    assert_eq!(look(&context, to).1, source);
    assert_eq!(context.stats().in_flight, 0);
}
