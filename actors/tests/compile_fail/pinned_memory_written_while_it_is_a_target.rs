//! What work writes, the host does not: not even while it queues.

use kvroom_actors::copy::device::{InFlight, Pinned, QueueError, Stream};

fn both(stream: &Stream, pinned: Pinned) -> Result<InFlight<Pinned>, QueueError<Pinned>> {
    stream.queue(pinned, |pinned, q| {
        let to = pinned.target(0..8)?;
        pinned.write(0..8, |bytes| bytes.fill(0))?;
        q.copy(to, to)
    })
}

fn main() {}
