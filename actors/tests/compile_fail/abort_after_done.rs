//! What is done cannot be drained.
use kvroom_actors::reason::Code;
use kvroom_actors::room::Effect;
use kvroom_actors::room::sender::{Done, Draining};

fn drain(room: Done, out: &mut Vec<Effect<u8>>) -> Draining {
    room.drain(Code::Requested.into(), None, out)
}

fn main() {}
