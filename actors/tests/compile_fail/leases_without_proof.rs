//! Custody gives leases back for a proof, and for nothing less.
use kvroom_actors::supervisor::custody::Custody;

struct Lease;
struct RealWitness;

fn take(custody: Custody<Lease, RealWitness>) {
    let _leases = custody.give_back(&None);
}

fn main() {}
