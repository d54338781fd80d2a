//! One proof ends one room.
use kvroom_actors::room::sender::Draining;
use kvroom_actors::room::{Effect, Quiescence};

fn two(a: Draining, b: Draining, proof: Quiescence<u8>, out: &mut Vec<Effect<u8>>) {
    let _first = a.quiet(proof, out);
    let _second = b.quiet(proof, out);
}

fn main() {}
