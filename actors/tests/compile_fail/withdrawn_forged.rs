//! Only the session says that a claim was never sent.
use kvroom_actors::ids::ClaimNo;
use kvroom_actors::memory::Withdrawn;

fn main() {
    let _forged = Withdrawn::new(ClaimNo(1));
}
