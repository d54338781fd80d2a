//! The same calls in an order that is right compile: the others fail for what they say they do.
use kvroom::{Chunk, Node, Peer, ReadLease, Released, RoomId, SendRoom, WriteLease};

fn lend(node: &Node, peer: &Peer, mut lease: WriteLease) {
    lease.page_mut(0, 0).fill(0);
    let _room = node.receive(RoomId(1)).from(peer).into(lease);
}

async fn push(room: &SendRoom, lease: ReadLease) -> Option<WriteLease> {
    let slot = room.reserve().await.ok()?;
    let pushed = slot.push(Chunk::tokens(0..16).pages(lease)).ok()?;
    pushed.released().await?.into_write().ok()
}

fn once(mut back: Released<WriteLease>) {
    if let Some(lease) = back.leases.pop() {
        lease.release();
    }
}

fn main() {
    let _ = (lend, push, once);
}
