//! A proof over the runtime's witnesses cannot be copied.
use kvroom_actors::memory::Witness;
use kvroom_actors::room::Quiescence;

fn copy(proof: Quiescence<Witness>) -> [Quiescence<Witness>; 2] {
    [proof, proof]
}

fn main() {}
