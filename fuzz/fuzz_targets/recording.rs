#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kvroom_fuzz::recording(data));
