#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kvroom_fuzz::linker_cache(data));
