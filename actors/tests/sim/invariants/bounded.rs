//! L5: mailboxes, early claims, frames and what is remembered stay within their bounds; credits are counted.

use super::Invariant;
use crate::sim::control::{INBOX, PIPE};
use crate::sim::fact::Fact;
use crate::sim::node::{EARLY, FRAMES, SPENT};

#[derive(Default)]
pub(crate) struct Bounded;

/// What a live room can have waiting for its shard: an answer of its session, a bell, its jobs, its
/// caller.
const EACH: usize = 24;
/// Links of a node, each with a reader that takes in one more frame.
const READERS: usize = 8;

impl Invariant for Bounded {
    fn name(&self) -> &'static str {
        "L5 bounded"
    }

    fn see(&mut self, _: u64, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Load { at, load } => {
                let rooms = load.lives + load.early + 8;
                for (what, is, most) in [
                    (
                        "messages in its inbox",
                        load.inbox,
                        INBOX + READERS + rooms * EACH,
                    ),
                    ("messages of peers", load.from_peers, INBOX + READERS),
                    ("early claims", load.early, EARLY * READERS),
                    ("early claims of a peer", load.early_of_one, EARLY),
                    ("frames of a session", load.frames, FRAMES),
                    ("frames in a pipe", load.pipe, PIPE + 2),
                    ("outcomes remembered", load.remembered, SPENT),
                    ("claims", load.claims, 2 * load.lives + EARLY * READERS),
                ] {
                    if is > most {
                        return Err(format!("{at:?} has {is} {what}, at most {most}: {load:?}"));
                    }
                }
                Ok(())
            }
            Fact::Miscounted { at, counted, open } => Err(format!(
                "{at:?} counts {counted} claims of its peer as open, {open} are"
            )),
            _ => Ok(()),
        }
    }
}
