#![no_main]

use kvroom_fuzz::counted::within;

// A list may be given 1 MiB ahead of its bytes, a text as much as its frame's size class; a decoded
// value is a few times as large as its bytes, and the target has it three times.
libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    within((4 << 20) + 64 * data.len(), || {
        kvroom_actors::fuzzing::greeting(data)
    });
});
