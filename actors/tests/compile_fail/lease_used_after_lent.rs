//! A lease that custody holds cannot be read or written by who lent it.
use kvroom_actors::memory::{Lease, Witness, WriteLease};
use kvroom_actors::supervisor::custody::{Custody, Held};

fn lend(mut lease: WriteLease, custody: &mut Custody<Lease, Witness>) {
    custody.hold(Held::Section(0), Lease::Write(lease));
    lease.page_mut(0, 0)[0] = 1;
}

fn main() {}
