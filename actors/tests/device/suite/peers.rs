//! Two devices.

use crate::rig::{Plug, Rig, bytes_of, device, land, look, noise, pending, stream};
use kvroom_actors::copy::device::{Arg, Launch};

pub(crate) fn bytes_go_from_one_device_to_another(rig: &dyn Rig) {
    let (here, there) = (rig.context(0), rig.context(1));
    assert_ne!(here.identity().uuid, there.identity().uuid);
    assert_ne!(here.identity().ordinal, there.identity().ordinal);
    assert!(here.can_reach(&there).unwrap());
    here.reach(&there).unwrap();
    // The engine may have done it already.
    here.reach(&there).unwrap();
    let bytes = noise(5, 1000);
    let holds = (device(&here, &bytes), device(&there, &[0; 1000]));
    let flight = stream(&here).queue(holds, |(from, to), q| {
        q.copy(to.range(0..1000)?, from.range(0..1000)?)
    });
    let (_, to) = land(flight.unwrap());
    assert_eq!(look(&there, to).1, bytes);
}

pub(crate) fn a_kernel_reaches_another_devices_memory_once_that_was_allowed(rig: &dyn Rig) {
    let (here, there) = (rig.context(0), rig.context(1));
    here.reach(&there).unwrap();
    let add = here
        .load(&rig.code())
        .unwrap()
        .kernel("add_to_bytes")
        .unwrap();
    let flight = stream(&here).queue(device(&there, &[1; 8]), |memory, q| {
        let args = [Arg::target(memory.range(0..8)?), Arg::u64(8), Arg::u32(1)];
        q.launch(&add, &Launch::line(1, 8), &args)
    });
    assert_eq!(look(&there, land(flight.unwrap())).1, [2; 8]);
}

pub(crate) fn work_of_two_devices_is_one_piece_with_two_proofs(rig: &dyn Rig) {
    let (here, there) = (rig.context(0), rig.context(1));
    let (one, two) = (stream(&here), stream(&there));
    let plug = Plug::new(&one);
    let holds = (
        device(&here, &[9; 16]),
        device(&there, &[0; 16]),
        there.pinned(16).unwrap(),
    );
    let flight = one.queue(holds, |(from, to, out), q| {
        let to = to.range(0..16)?;
        q.copy(to, from.range(0..16)?)?;
        q.on(&two)?;
        q.copy(out.target(0..16)?, to)
    });
    let flight = pending(flight.unwrap());
    drop(plug);
    let (.., out) = land(flight);
    assert_eq!(bytes_of(&out), [9; 16]);
    here.reap();
    let counts =
        |c: &kvroom_actors::copy::device::Context| (c.stats().in_flight, c.stats().unfreed);
    assert_eq!((counts(&here), counts(&there)), ((0, 0), (0, 0)));
}
