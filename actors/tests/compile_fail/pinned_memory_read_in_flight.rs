//! The host does not look at memory that a device may be writing.

use kvroom_actors::copy::device::{Pinned, Stream};

fn look(stream: &Stream, pinned: Pinned) {
    let flight = stream.queue(pinned, |_, q| q.call(|| ()));
    let _ = pinned.read(0..8, |bytes| bytes[0]);
    drop(flight);
}

fn main() {}
