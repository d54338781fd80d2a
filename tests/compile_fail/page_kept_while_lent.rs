//! A slice of a page ends before its lease is lent.
use kvroom::{Node, RoomId, WriteLease};

fn keep(node: &Node, mut lease: WriteLease) {
    let page = lease.page_mut(0, 0);
    let _room = node.receive(RoomId(1)).into(lease);
    page.fill(0);
}

fn main() {}
