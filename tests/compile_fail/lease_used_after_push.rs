//! A lease that was pushed cannot be given back by its caller, or turned into one for writing.
use kvroom::{Chunk, ReadLease, SendRoom};

async fn push(room: &SendRoom, lease: ReadLease) {
    let Ok(slot) = room.reserve().await else { return };
    let _pushed = slot.push(Chunk::tokens(0..16).pages(lease));
    let _mine = lease.into_write();
}

fn main() {}
