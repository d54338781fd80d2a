#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kvroom_actors::fuzzing::address(data));
