//! A witness pays one debt.
use kvroom_actors::memory::Witness;

fn needs_clone<T: Clone>() {}

fn main() {
    needs_clone::<Witness>();
}
