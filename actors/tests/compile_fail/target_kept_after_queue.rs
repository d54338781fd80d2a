//! A range lives as long as what the work owns, and no longer.

use kvroom_actors::copy::device::{DeviceMemory, Stream, Target};

fn keep(stream: &Stream, memory: DeviceMemory) {
    let mut kept: Option<Target<'_>> = None;
    let flight = stream.queue(memory, |memory, q| {
        kept = Some(memory.range(0..8)?);
        q.call(|| ())
    });
    drop((flight, kept));
}

fn main() {}
