//! A state that was left cannot be used again.
use kvroom_actors::reason::Code;
use kvroom_actors::room::Effect;
use kvroom_actors::room::sender::Registered;

fn both(room: Registered, out: &mut Vec<Effect<u8>>) {
    let _transferring = room.begin();
    let _draining = room.drain(Code::Requested.into(), None, out);
}

fn main() {}
