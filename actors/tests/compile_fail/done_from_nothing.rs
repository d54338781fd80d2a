//! `Done` comes out of a room and from nowhere else.
use kvroom_actors::room::{receiver, sender};

fn main() {
    let _sender = sender::Done(());
    let _receiver = receiver::Done(());
}
