//! Pages go back once.
use kvroom_actors::memory::WriteLease;

fn twice(lease: WriteLease) {
    lease.release();
    lease.release();
}

fn main() {}
