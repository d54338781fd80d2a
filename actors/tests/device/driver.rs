//! What only the CUDA backend can show: drivers that differ, start badly, or are not there.

use crate::emulated::Emulated;
use crate::rig::{Plug, Rig, device, land, look, noise, pinned, stream};
use crate::standin::{FOLDER, Standin, child, in_child, in_child_with, without};
use kvroom_actors::copy::device::cuda::{Copies, open, probe};
use kvroom_actors::copy::device::{Arg, Copy, Culprit, DeviceError, Held, IpcMemory, Kind, Launch};
use std::env;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Copies 40 pieces at once, and says how they went to the driver.
fn copies(rig: &Standin) -> (u64, u64) {
    let context = rig.context(0);
    let before = rig.stats();
    let source = noise(4, 640);
    let from = pinned(&context, &source);
    let to = context.pinned(640).unwrap();
    let flight = stream(&context).queue((from, to), |(from, to), q| {
        let to = to.target(0..640)?;
        let pieces = (0..40).map(|nth| {
            let range = nth * 16..(nth + 1) * 16;
            Ok(Copy {
                to: to.part(range.clone())?,
                from: from.source(range)?,
            })
        });
        q.copies(&pieces.collect::<Result<Vec<_>, DeviceError>>()?)
    });
    let (_, to) = land(flight.unwrap());
    assert_eq!(crate::rig::bytes_of(&to), source);
    let after = rig.stats();
    (
        after.batches - before.batches,
        after.singles - before.singles,
    )
}

#[test]
fn what_another_kind_of_device_has_made_is_refused_before_the_driver_sees_it() {
    let test = "driver::what_another_kind_of_device_has_made_is_refused_before_the_driver_sees_it";
    in_child(test, &[], |rig| {
        let other = Emulated::new();
        for (here, there) in [
            (rig.context(0), other.context(0)),
            (other.context(0), rig.context(0)),
        ] {
            let (line, others) = (stream(&here), stream(&there));
            let ready = there.ready_event(false).unwrap();
            let poke = here.load(&rig.code()).unwrap().kernel("poke").unwrap();
            let plug = Plug::new(&others);
            let holds = (here.pinned(8).unwrap(), there.pinned(8).unwrap());
            let mut refused = Vec::new();
            let flight = line.queue(holds, |(own, other), q| {
                let (own, other) = (own.target(0..8)?, other.target(0..8)?);
                refused.push(q.copy(own, other));
                refused.push(q.copy(other, own));
                refused.push(q.launch(&poke, &Launch::line(1, 1), &[Arg::target(other)]));
                refused.push(q.after(&ready));
                refused.push(q.after_work(plug.flight()));
                refused.push(q.on(&others));
                Ok(())
            });
            land(flight.unwrap());
            refused.push(line.record(&ready));
            assert_eq!(refused.len(), 7);
            for error in refused {
                let error = error.unwrap_err();
                assert!(matches!(error, DeviceError::BadArgument { .. }), "{error}");
            }
            assert!(!here.can_reach(&there).unwrap());
            assert_eq!(here.lost(), None);
        }
    });
}

#[test]
fn many_copies_go_with_one_call_where_the_driver_has_it() {
    let test = "driver::many_copies_go_with_one_call_where_the_driver_has_it";
    in_child(test, &[], |rig| {
        assert_eq!(copies(rig), (1, 0));
        let found = probe(crate::rig::LONG).driver.unwrap();
        assert_eq!(found.copies, Copies::Batch);
    });
}

#[test]
fn many_copies_go_with_the_call_of_later_drivers() {
    let test = "driver::many_copies_go_with_the_call_of_later_drivers";
    let fill = |folder: &Path| without(folder, &["cuMemcpyBatchAsync"]);
    in_child_with(test, &[], &fill, |rig| {
        assert_eq!(copies(rig), (1, 0));
        let found = probe(crate::rig::LONG).driver.unwrap();
        assert_eq!(found.copies, Copies::BatchV2);
    });
}

#[test]
fn copies_go_one_by_one_to_an_older_driver() {
    let test = "driver::copies_go_one_by_one_to_an_older_driver";
    let fill = |folder: &Path| {
        without(folder, &["cuMemcpyBatchAsync", "cuMemcpyBatchAsync_v2"]);
    };
    in_child_with(test, &[("STANDIN_VERSION", "12020")], &fill, |rig| {
        assert_eq!(copies(rig), (0, 40));
        let found = probe(crate::rig::LONG).driver.unwrap();
        assert_eq!((found.copies, found.version), (Copies::OneByOne, 12020));
    });
}

#[test]
fn a_device_that_takes_no_batches_gets_its_copies_one_by_one() {
    let test = "driver::a_device_that_takes_no_batches_gets_its_copies_one_by_one";
    in_child(test, &[], |rig| {
        rig.fail_call("cuMemcpyBatchAsync", 0, 801);
        assert_eq!(copies(rig), (0, 40));
    });
}

#[test]
fn copies_of_which_only_some_were_queued_keep_their_memory_until_those_are_over() {
    let test =
        "driver::copies_of_which_only_some_were_queued_keep_their_memory_until_those_are_over";
    let fill = |folder: &Path| {
        without(folder, &["cuMemcpyBatchAsync", "cuMemcpyBatchAsync_v2"]);
    };
    in_child_with(test, &[], &fill, |rig| {
        let context = rig.context(0);
        let line = stream(&context);
        let plug = Plug::new(&line);
        rig.fail_call("cuMemcpyAsync", 2, 1);
        let refused = line.queue(context.device_memory(64).unwrap(), |memory, q| {
            let copy = |nth: u64| {
                Ok(Copy {
                    to: memory.range(nth * 8..nth * 8 + 8)?,
                    from: memory.range(32..40)?.into(),
                })
            };
            q.copies(&(0..4).map(copy).collect::<Result<Vec<_>, DeviceError>>()?)
        });
        let refused = refused.unwrap_err();
        assert!(matches!(refused.error, DeviceError::BadArgument { .. }));
        let Held::InFlight(flight) = refused.holds else {
            panic!("two of four were queued");
        };
        let flight = crate::rig::pending(flight);
        assert_eq!(rig.blocks(), 1);
        drop(plug);
        drop(land(flight));
        assert_eq!(rig.blocks(), 0);
    });
}

#[test]
fn a_driver_that_lacks_a_function_is_an_error_that_names_it() {
    let test = "driver::a_driver_that_lacks_a_function_is_an_error_that_names_it";
    let fill = |folder: &Path| without(folder, &["cuIpcOpenMemHandle_v2"]);
    in_child_with(test, &[], &fill, |rig| {
        let error = rig.try_context(0).unwrap_err();
        let (library, symbol) = ("libcuda.so.1", "cuIpcOpenMemHandle_v2");
        assert_eq!(error, DeviceError::MissingSymbol { library, symbol });
        assert_eq!(error.culprit(), Culprit::Machine);
        assert_eq!(probe(crate::rig::LONG).driver.unwrap_err(), error);
    });
}

#[test]
fn without_a_driver_there_is_an_error_and_no_panic() {
    let test = "driver::without_a_driver_there_is_an_error_and_no_panic";
    in_child_with(test, &[], &|_| (), |rig| {
        if !rig.library.is_null() {
            eprintln!("SKIPPED: this machine has a driver");
            return;
        }
        for _ in 0..2 {
            let error = open(0).unwrap_err();
            assert!(matches!(error, DeviceError::NoDriver { .. }), "{error}");
            assert_eq!(error.culprit(), Culprit::Machine);
        }
        let found = probe(crate::rig::LONG);
        assert!(matches!(found.driver, Err(DeviceError::NoDriver { .. })));
    });
}

#[test]
fn a_driver_that_does_not_start_is_an_error_with_its_reason_and_may_start_later() {
    let test =
        "driver::a_driver_that_does_not_start_is_an_error_with_its_reason_and_may_start_later";
    in_child(test, &[], |rig| {
        rig.fail_call("cuInit", 0, 803);
        let error = rig.try_context(0).unwrap_err();
        assert!(matches!(
            error,
            DeviceError::Broken {
                call: "cuInit",
                code: 803,
                ..
            }
        ));
        assert!(
            error
                .to_string()
                .contains("CUDA_ERROR_SYSTEM_DRIVER_MISMATCH")
        );
        assert!(rig.try_context(0).is_ok());
    });
}

#[test]
fn a_driver_that_hangs_is_said_to_be_silent() {
    let test = "driver::a_driver_that_hangs_is_said_to_be_silent";
    in_child(test, &[("STANDIN_HANGS", "1")], |_| {
        let bound = Duration::from_millis(100);
        let found = probe(bound);
        assert_eq!(found.driver, Err(DeviceError::Silent(bound)));
    });
}

#[test]
fn a_probe_says_which_devices_there_are() {
    let test = "driver::a_probe_says_which_devices_there_are";
    in_child(test, &[("STANDIN_DEVICES", "3")], |rig| {
        let found = probe(crate::rig::LONG);
        assert_eq!(found.compiler, Ok((12, 8)));
        let driver = found.driver.unwrap();
        assert_eq!(driver.version, 12080);
        let names: Vec<_> = driver.devices.iter().map(|d| d.as_ref().unwrap()).collect();
        assert_eq!(names.len(), 3);
        assert_eq!(names[2].name, "stand-in device 2");
        assert_eq!((names[2].ordinal, names[2].capability), (2, (9, 0)));
        assert_eq!(names[2].kind, Kind::Cuda);
        // No context was made.
        assert_eq!(rig.stats().retained, 0);
        assert_eq!(rig.context(2).identity(), names[2]);
    });
}

#[test]
fn the_primary_context_is_retained_and_released_and_a_thread_keeps_its_own() {
    let test = "driver::the_primary_context_is_retained_and_released_and_a_thread_keeps_its_own";
    in_child(test, &[], |rig| {
        let context = rig.context(0);
        let second = context.clone();
        assert_eq!(rig.stats().retained, 1);
        let memory = device(&context, &[1; 8]);
        drop((context, second));
        // What was made from it keeps it.
        assert_eq!((rig.stats().retained, rig.stats().depth), (1, 0));
        drop(memory);
        let stats = rig.stats();
        assert_eq!((stats.retained, stats.blocks, stats.depth), (0, 0, 0));
        assert_eq!((stats.streams, stats.events, stats.modules), (0, 0, 0));
    });
}

#[test]
fn every_test_of_order_holds_while_streams_dawdle() {
    let test = "driver::every_test_of_order_holds_while_streams_dawdle";
    in_child(test, &[("STANDIN_DELAY_US", "300")], |rig| {
        use crate::suite::order;
        order::work_of_one_stream_happens_in_its_order(rig);
        order::a_stream_waits_for_an_event_and_the_host_does_not(rig);
        order::a_batch_copies_every_piece_and_nothing_around_it(rig);
        order::slots_of_a_small_ring_carry_every_byte_through_two_streams(rig);
    });
}

#[test]
fn memory_of_another_process_is_read_and_written_by_its_handle() {
    const HANDLE: &str = "KVROOM_DEVICE_HANDLE";
    let test = "driver::memory_of_another_process_is_read_and_written_by_its_handle";
    in_child(test, &[], |rig| {
        let context = rig.context(0);
        let Ok(handle) = env::var(HANDLE) else {
            // The engine, which has memory and lets the other one in.
            let memory = device(&context, &noise(6, 4096));
            let exported = memory.export().unwrap();
            let own = context.import(&exported).unwrap_err();
            assert!(matches!(own, DeviceError::BadArgument { .. }), "{own}");
            let folder = PathBuf::from(env::var_os(FOLDER).unwrap());
            let handle: String = exported.handle.iter().map(|b| format!("{b:02x}")).collect();
            let other = child(test, &folder).env(HANDLE, handle).output().unwrap();
            let said = String::from_utf8_lossy(&other.stdout);
            assert!(
                other.status.success() && said.contains("1 passed"),
                "{said}"
            );
            let mut want = noise(6, 4096);
            want[100..108].fill(7);
            assert_eq!(look(&context, memory).1, want);
            return;
        };
        let mut bytes = [0; 64];
        for (byte, text) in bytes.iter_mut().zip(handle.as_bytes().chunks(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(text).unwrap(), 16).unwrap();
        }
        let mut memory = IpcMemory {
            handle: bytes,
            offset: 100,
            bytes: 3997,
        };
        let outside = context.import(&memory).unwrap_err();
        assert!(
            matches!(outside, DeviceError::OutOfRange { of: 4096, .. }),
            "{outside}"
        );
        memory.bytes = 16;
        let memory = context.import(&memory).unwrap();
        let (memory, seen) = look(&context, memory);
        assert_eq!(seen, noise(6, 4096)[100..116]);
        let holds = (memory, pinned(&context, &[7; 8]));
        let flight = stream(&context).queue(holds, |(to, from), q| {
            q.copy(to.range(0..8)?, from.source(0..8)?)
        });
        drop(land(flight.unwrap()));
        assert_eq!((rig.blocks(), context.stats().opened_bytes), (0, 0));
    });
}

#[test]
fn what_the_driver_cannot_do_is_said_to_be_not_supported() {
    let test = "driver::what_the_driver_cannot_do_is_said_to_be_not_supported";
    in_child(test, &[], |rig| {
        let ready = rig.context(0).ready_event(true).unwrap();
        rig.fail_call("cuIpcGetEventHandle", 0, 801);
        let error = ready.export().unwrap_err();
        assert!(
            matches!(error, DeviceError::NotSupported { code: 801, .. }),
            "{error}"
        );
        assert_eq!(error.culprit(), Culprit::Machine);
    });
}
