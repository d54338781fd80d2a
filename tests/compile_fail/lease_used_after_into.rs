//! A lease that a decode room has cannot be written by its caller.
use kvroom::{Node, Peer, RoomId, WriteLease};

fn lend(node: &Node, peer: &Peer, mut lease: WriteLease) {
    let _room = node.receive(RoomId(1)).from(peer).into(lease);
    lease.page_mut(0, 0).fill(0);
}

fn main() {}
