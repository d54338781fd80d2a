//! A proof cannot be put together from its parts.
use kvroom_actors::room::Quiescence;

fn main() {
    let _forged: Quiescence<u8> = Quiescence {
        witnesses: Vec::new(),
    };
}
