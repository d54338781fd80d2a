//! A room is over once.
use kvroom_actors::room::sender::Draining;
use kvroom_actors::room::{Effect, Quiescence};

fn twice(room: Draining, a: Quiescence<u8>, b: Quiescence<u8>, out: &mut Vec<Effect<u8>>) {
    let _first = room.quiet(a, out);
    let _second = room.quiet(b, out);
}

fn main() {}
