//! A receiver that has ended cannot be done after all.
use kvroom_actors::room::Quiescence;
use kvroom_actors::room::receiver::{Done, Draining};

fn done(room: Draining<u8>, proof: Quiescence<u8>) -> Done {
    room.finish(proof, &mut Vec::new())
}

fn main() {}
