//! A sender that no leg was ever bound to cannot be done.
use kvroom_actors::room::Quiescence;
use kvroom_actors::room::sender::{Done, Registered};

fn done(room: Registered, proof: Quiescence<u8>) -> Done {
    room.finish(proof, &mut Vec::new())
}

fn main() {}
