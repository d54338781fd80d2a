//! Only a gate that is closed and empty says so.
use kvroom_actors::ids::ClaimNo;
use kvroom_actors::memory::{GateClosed, Landed};

fn forge(number: ClaimNo, landed: Landed) -> GateClosed {
    GateClosed { number, landed }
}

fn main() {}
