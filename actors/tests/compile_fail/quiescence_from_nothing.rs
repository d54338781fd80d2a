//! Only the custody record makes a proof.
use kvroom_actors::room::Quiescence;

fn main() {
    let _made: Quiescence<u8> = Quiescence::from_custody(Vec::new());
}
