//! A custody record that gave its leases back is used up.
use kvroom_actors::room::Quiescence;
use kvroom_actors::supervisor::custody::Custody;

struct Lease;
struct RealWitness;

fn twice(custody: Custody<Lease, RealWitness>, proof: Quiescence<RealWitness>) {
    let _leases = custody.give_back(&proof);
    let _again = custody.give_back(&proof);
}

fn main() {}
