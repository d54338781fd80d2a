//! What came back from a room is given back to its pool once.
use kvroom::{Released, WriteLease};

fn twice(mut back: Released<WriteLease>) {
    let Some(lease) = back.leases.pop() else { return };
    lease.release();
    lease.release();
}

fn main() {}
