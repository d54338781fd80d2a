//! Work takes memory only from what it owns: this memory could be freed while the device copies.

use kvroom_actors::copy::device::{DeviceMemory, InFlight, Pinned, QueueError, Stream};

fn queue(
    stream: &Stream,
    own: Pinned,
    borrowed: &DeviceMemory,
) -> Result<InFlight<Pinned>, QueueError<Pinned>> {
    stream.queue(own, |own, q| {
        let to = borrowed.range(0..8)?;
        q.copy(to, own.source(0..8)?)
    })
}

fn main() {}
