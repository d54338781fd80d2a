//! Code on a device.

use crate::rig::{Plug, Rig, device, land, look, stream, until};
use kvroom_actors::copy::device::{Arg, DeviceError, Held, Launch};

pub(crate) fn a_kernel_changes_what_it_is_given(rig: &dyn Rig) {
    let context = rig.context(0);
    let module = context.load(&rig.code()).unwrap();
    let add = module.kernel("add_to_bytes").unwrap();
    let reverse = module.kernel("reverse_bytes").unwrap();
    let bytes: Vec<u8> = (0..100).collect();
    let holds = (device(&context, &bytes), device(&context, &[0; 100]));
    let flight = stream(&context).queue(holds, |(from, to), q| {
        let middle = from.range(10..20)?;
        let args = [Arg::target(middle), Arg::u64(10), Arg::u32(3)];
        q.launch(&add, &Launch::line(4, 128), &args)?;
        let args = [
            Arg::target(to.range(0..100)?),
            Arg::source(from.range(0..100)?.into()),
            Arg::u64(100),
        ];
        q.launch(&reverse, &Launch::line(1, 32), &args)
    });
    let (_, to) = land(flight.unwrap());
    let mut want = bytes;
    want[10..20].iter_mut().for_each(|byte| *byte += 3);
    want.reverse();
    assert_eq!(look(&context, to).1, want);
}

pub(crate) fn a_structure_goes_to_a_kernel_by_value(rig: &dyn Rig) {
    let context = rig.context(0);
    let kernel = context
        .load(&rig.code())
        .unwrap()
        .kernel("add_by_structure")
        .unwrap();
    assert!(context.identity().multiprocessors > 0);
    let flight = stream(&context).queue(device(&context, &[1; 32]), |memory, q| {
        let at = memory.range(8..24)?.address();
        let words = [at, 16, 5];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        q.launch(&kernel, &Launch::line(1, 32), &[Arg::bytes(&bytes)])
    });
    let mut want = [1; 32];
    want[8..24].fill(6);
    assert_eq!(look(&context, land(flight.unwrap())).1, want);
}

pub(crate) fn a_kernel_that_is_not_in_the_code_is_named(rig: &dyn Rig) {
    let context = rig.context(0);
    let module = context.load(&rig.code()).unwrap();
    for name in ["no_such_kernel", "a\0b"] {
        let error = module.kernel(name).unwrap_err();
        let name = name.to_owned();
        assert_eq!(error, DeviceError::NoSuchKernel { name });
    }
}

pub(crate) fn a_kernel_of_another_context_is_refused(rig: &dyn Rig) {
    let (here, there) = (rig.context(0), rig.context(1));
    let module = there.load(&rig.code()).unwrap();
    let kernel = module.kernel("poke").unwrap();
    let refused = stream(&here).queue((), |(), q| {
        q.launch(&kernel, &Launch::line(1, 1), &[Arg::u64(0)])
    });
    let refused = refused.unwrap_err();
    assert!(matches!(refused.error, DeviceError::BadArgument { .. }));
    assert!(matches!(refused.holds, Held::Back(())));
}

pub(crate) fn code_stays_loaded_while_its_kernel_is_queued(rig: &dyn Rig) {
    let context = rig.context(0);
    let line = stream(&context);
    let plug = Plug::new(&line);
    let memory = device(&context, &[1; 8]);
    let flight = {
        let module = context.load(&rig.code()).unwrap();
        let add = module.kernel("add_to_bytes").unwrap();
        line.queue(memory, |memory, q| {
            let args = [Arg::target(memory.range(0..8)?), Arg::u64(8), Arg::u32(1)];
            q.launch(&add, &Launch::line(1, 8), &args)
        })
        .unwrap()
    };
    drop(plug);
    let (memory, bytes) = look(&context, land(flight));
    assert_eq!(bytes, [2; 8]);
    drop(memory);
    until(|| context.reap() == 0);
    assert_eq!(context.stats().unfreed, 0);
}
