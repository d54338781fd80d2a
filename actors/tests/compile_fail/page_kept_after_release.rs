//! A slice of a page does not outlive the lease.
use kvroom_actors::memory::WriteLease;

fn keep(lease: WriteLease) -> u8 {
    let page = lease.page(0, 0);
    lease.release();
    page[0]
}

fn main() {}
