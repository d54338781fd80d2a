//! One witness is not a complete proof.
use kvroom_actors::room::Effect;
use kvroom_actors::room::receiver::{Aborted, Draining};

struct RealWitness;

fn end(
    room: Draining<RealWitness>,
    witness: RealWitness,
    out: &mut Vec<Effect<RealWitness>>,
) -> Aborted {
    room.quiet(witness, out)
}

fn main() {}
