//! The emulated device: its hand in the suite, and what only it can show.

use crate::rig::{Plug, Rig, bytes_of, device, land, look, noise, pinned, stream};
use kvroom_actors::copy::device::emulated::{
    Config, Fault, HostKernel, IllegalAccess, Injected, Machine, Value, View,
};
use kvroom_actors::copy::device::{
    Arg, Code, Context, DeviceError, Kind, Launch, Polled, Priority,
};
use std::collections::BTreeMap;
use std::fs;
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub(crate) struct Emulated {
    machine: Mutex<Machine>,
    config: Config,
}

fn kernels() -> BTreeMap<String, Arc<dyn HostKernel>> {
    type Run = fn(&Launch, &[Value], &View<'_>) -> Result<(), IllegalAccess>;
    let add: Run = |_, args, memory| {
        let (at, bytes) = (Value::address(args, 0)?, Value::address(args, 1)?);
        let by = Value::number(args, 2)? as u8;
        memory.change(at, bytes, &mut |all| {
            all.iter_mut()
                .for_each(|byte| *byte = byte.wrapping_add(by));
        })
    };
    let reverse: Run = |_, args, memory| {
        let bytes = Value::address(args, 2)?;
        let mut all = memory.read(Value::address(args, 1)?, bytes)?;
        all.reverse();
        memory.change(Value::address(args, 0)?, bytes, &mut |to| {
            to.copy_from_slice(&all)
        })
    };
    let structure: Run = |launch, args, memory| {
        let bytes = Value::bytes(args, 0, 24)?;
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        let value = Value::U32(word(16) as u32);
        let args = [Value::U64(word(0)), Value::U64(word(8)), value];
        kernels()["add_to_bytes"].run(launch, &args, memory)
    };
    let poke: Run =
        |_, args, memory| memory.change(Value::address(args, 0)?, 1, &mut |byte| byte[0] = 1);
    let panics: Run = |_, _, _| std::panic::resume_unwind(Box::new("on purpose"));
    [
        ("add_to_bytes", add),
        ("reverse_bytes", reverse),
        ("poke", poke),
        ("add_by_structure", structure),
        ("panics", panics),
    ]
    .into_iter()
    .map(|(name, run)| (name.to_owned(), Arc::new(run) as Arc<dyn HostKernel>))
    .collect()
}

/// A machine whose streams dawdle and overtake each other.
fn config(seed: u64) -> Config {
    Config {
        seed,
        devices: 2,
        delay: Duration::from_micros(50),
        straggler: 7,
        kernels: kernels(),
        ..Config::default()
    }
}

fn code() -> Code {
    Code::Ptx(Vec::new())
}

impl Emulated {
    pub(crate) fn new() -> Self {
        let config = config(42);
        Emulated {
            machine: Mutex::new(Machine::new(config.clone())),
            config,
        }
    }

    fn machine(&self) -> Machine {
        self.machine.lock().unwrap().clone()
    }
}

impl Rig for Emulated {
    fn try_context(&self, device: u32) -> Result<Context, DeviceError> {
        self.machine().context(device)
    }

    fn code(&self) -> Code {
        code()
    }

    fn fail(&self, nth: u64, code: u32) {
        let what = Injected::Returns(code);
        let call = None;
        self.machine().inject(0, Fault { call, nth, what }).unwrap();
    }

    fn fail_call(&self, call: &'static str, nth: u64, code: u32) {
        let what = Injected::Returns(code);
        let call = Some(call);
        self.machine().inject(0, Fault { call, nth, what }).unwrap();
    }

    fn has_failed(&self) -> bool {
        !self.machine().take_faults(0).is_empty()
    }

    fn lose(&self, device: u32, code: u32) {
        self.machine().lose(device, code).unwrap();
    }

    fn blocks(&self) -> u64 {
        self.machine().blocks() as u64
    }

    fn renew(&self) {
        *self.machine.lock().unwrap() = Machine::new(self.config.clone());
    }
}

#[test]
fn it_says_that_it_is_emulated() {
    let context = Emulated::new().context(1);
    assert_eq!(context.identity().kind, Kind::Emulated);
    assert_eq!(context.identity().kind.word(), "emulated");
    assert_eq!(context.identity().ordinal, 1);
}

#[test]
fn streams_are_threads_of_which_there_are_only_so_many() {
    let machine = Machine::new(Config {
        streams: 3,
        ..config(1)
    });
    let (one, two) = (machine.context(0).unwrap(), machine.context(0).unwrap());
    let streams = [stream(&one), stream(&two), stream(&one)];
    // The limit is the device's, as the driver's would be.
    let (what, limit) = ("streams", 3);
    let refused = two.stream(Priority::Usual).unwrap_err();
    assert_eq!(refused, DeviceError::Limit { what, limit });
    assert!(machine.context(1).unwrap().stream(Priority::Usual).is_ok());
    drop(streams);
    crate::rig::until(|| two.stream(Priority::Usual).is_ok());
}

/// Threads of emulated devices with this number.
fn threads(ordinal: u32) -> usize {
    let name = format!("emul-{ordinal}-");
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|comm| comm.starts_with(&name)).count()
}

#[test]
fn no_thread_is_left_when_the_last_of_a_context_is_gone() {
    // A number that no other test has, since they run in one process.
    let last = 77;
    let machine = Machine::new(Config {
        devices: last + 1,
        ..config(1)
    });
    let context = machine.context(last).unwrap();
    let streams: Vec<_> = (0..4).map(|_| stream(&context)).collect();
    // A thread names itself, and the kernel forgets it a moment after it was joined.
    crate::rig::until(|| threads(last) == 4);
    drop((streams, context));
    crate::rig::until(|| threads(last) == 0);
}

#[test]
fn a_batch_without_a_rate_and_one_with_a_rate_copy_the_same() {
    for rate in [0, 50_000_000] {
        let machine = Machine::new(Config { rate, ..config(5) });
        let context = machine.context(0).unwrap();
        let bytes = noise(8, 4096);
        assert_eq!(look(&context, device(&context, &bytes)).1, bytes);
    }
}

#[test]
fn a_stream_may_be_dropped_before_its_work_and_the_work_still_ends() {
    let machine = Machine::new(config(1));
    let context = machine.context(0).unwrap();
    let line = stream(&context);
    let (hold, held) = std::sync::mpsc::channel::<()>();
    let other = stream(&context);
    let ready = context.ready_event(false).unwrap();
    let hangs = line.queue((), |(), q| {
        q.call(move || {
            let _ = held.recv();
        })
    });
    line.record(&ready).unwrap();
    land(other.queue((), |(), q| q.call(|| ())).unwrap());
    // What the driver still has of it: nothing that anybody owns.
    drop(hangs.unwrap());
    let began = std::time::Instant::now();
    let closed = context.clone().close(Duration::from_millis(20));
    assert_eq!(closed.parked, 1);
    drop((line, other, ready));
    drop(hold);
    assert_eq!(context.close(crate::rig::LONG).parked, 0);
    assert!(began.elapsed() < crate::rig::LONG);
}

#[test]
fn a_kernel_that_panics_loses_the_device_and_nothing_else() {
    let machine = Machine::new(config(1));
    let context = machine.context(0).unwrap();
    let panics = context.load(&code()).unwrap().kernel("panics").unwrap();
    let flight = stream(&context).queue((), |(), q| q.launch(&panics, &Launch::line(1, 1), &[]));
    let Polled::Lost(lost) = flight.unwrap().wait(crate::rig::LONG) else {
        panic!("it went well");
    };
    assert_eq!(lost.sticky().unwrap().code, 719);
    assert!(machine.context(1).unwrap().device_memory(1).is_ok());
}

#[test]
fn arguments_that_a_kernel_does_not_take_are_an_illegal_access() {
    let machine = Machine::new(config(1));
    let context = machine.context(0).unwrap();
    let add = context
        .load(&code())
        .unwrap()
        .kernel("add_to_bytes")
        .unwrap();
    let flight = stream(&context).queue((), |(), q| {
        q.launch(&add, &Launch::line(1, 1), &[Arg::u32(1)])
    });
    assert!(matches!(
        flight.unwrap().wait(crate::rig::LONG),
        Polled::Lost(_)
    ));
}

#[test]
fn memory_of_a_device_that_may_not_be_reached_is_an_illegal_access_of_a_kernel() {
    let machine = Machine::new(config(1));
    let (here, there) = (machine.context(0).unwrap(), machine.context(1).unwrap());
    let add = here.load(&code()).unwrap().kernel("add_to_bytes").unwrap();
    let flight = stream(&here).queue(device(&there, &[1; 8]), |memory, q| {
        let args = [Arg::target(memory.range(0..8)?), Arg::u64(8), Arg::u32(1)];
        q.launch(&add, &Launch::line(1, 1), &args)
    });
    assert!(matches!(
        flight.unwrap().wait(crate::rig::LONG),
        Polled::Lost(_)
    ));
    let apart = Machine::new(Config {
        peers: false,
        ..config(1)
    });
    let (here, there) = (apart.context(0).unwrap(), apart.context(1).unwrap());
    assert!(!here.can_reach(&there).unwrap());
    let refused = here.reach(&there).unwrap_err();
    assert!(matches!(refused, DeviceError::NotSupported { .. }));
    // Nor is there a way to a device of another machine.
    assert!(!here.can_reach(&machine.context(1).unwrap()).unwrap());
}

#[test]
fn what_was_queued_well_can_go_wrong_later() {
    let machine = Machine::new(config(1));
    let context = machine.context(0).unwrap();
    let holds = (pinned(&context, &[1; 4]), context.pinned(4).unwrap());
    let fault = Fault {
        call: Some("cuMemcpyBatchAsync"),
        nth: 1,
        what: Injected::Later(716),
    };
    machine.inject(0, fault).unwrap();
    let line = stream(&context);
    let plug = Plug::new(&line);
    let flight = line.queue(holds, |(from, to), q| {
        // It is borrowed for all of the work, so it can be asked for only once.
        let to = to.target(0..4)?;
        q.copy(to, from.source(0..4)?)?;
        q.copy(to, from.source(0..4)?)
    });
    let flight = flight.unwrap();
    assert_eq!(machine.happened(0), ["cuMemcpyBatchAsync"]);
    drop(plug);
    let Polled::Lost(lost) = flight.wait(crate::rig::LONG) else {
        panic!("it went well");
    };
    assert_eq!(lost.sticky().unwrap().code, 716);
}

#[test]
fn memory_and_events_go_to_another_context_by_their_handles() {
    let machine = Machine::new(config(3));
    let (engine, own) = (machine.context(0).unwrap(), machine.context(0).unwrap());
    let memory = device(&engine, &[6; 32]);
    let ready = engine.ready_event(true).unwrap();
    let line = stream(&engine);
    let plug = Plug::new(&line);
    line.record(&ready).unwrap();
    let mut handle = memory.export().unwrap();
    let there = own.import(&handle).unwrap();
    let same = own.open_event(&ready.export().unwrap()).unwrap();
    assert_eq!(own.stats().opened_bytes, 32);
    let flight = stream(&own).queue((there, own.pinned(32).unwrap()), |(from, to), q| {
        q.after(&same)?;
        q.copy(to.target(0..32)?, from.range(0..32)?)
    });
    let flight = crate::rig::pending(flight.unwrap());
    drop(plug);
    let (there, to) = land(flight);
    assert_eq!(bytes_of(&to), [6; 32]);
    drop(there);
    assert_eq!(own.stats().opened_bytes, 0);
    handle.offset = 30;
    handle.bytes = 3;
    let refused = own.import(&handle).unwrap_err();
    assert!(matches!(
        refused,
        DeviceError::OutOfRange {
            offset: 30,
            bytes: 3,
            of: 32
        }
    ));
    assert_eq!(own.stats().opened_bytes, 0);
    handle.handle = [7; 64];
    assert!(own.import(&handle).is_err());
}

#[test]
fn a_small_pipeline_is_right_whatever_the_seed() {
    for seed in 0..30 {
        let rig = Emulated {
            machine: Mutex::new(Machine::new(config(seed))),
            config: config(seed),
        };
        crate::suite::order::slots_of_a_small_ring_carry_every_byte_through_two_streams(&rig);
    }
}
