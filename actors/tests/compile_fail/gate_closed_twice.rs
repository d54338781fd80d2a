//! A gate is closed once.
use kvroom_actors::memory::OpenGate;

fn twice(gate: OpenGate) {
    let _first = gate.close();
    let _second = gate.close();
}

fn main() {}
