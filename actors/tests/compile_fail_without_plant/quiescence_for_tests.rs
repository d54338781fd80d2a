//! The stand-in that tests of the machine use is in no build that people run.
use kvroom_actors::room::Quiescence;

fn main() {
    let _forged: Quiescence<u8> = Quiescence::for_tests(Vec::new());
}
