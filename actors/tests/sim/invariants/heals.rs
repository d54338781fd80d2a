//! L4: when the faults have ended, fresh rooms are done in time, and in the end nothing is held.

use super::Invariant;
use crate::sim::fact::Fact;

#[derive(Default)]
pub(crate) struct Heals;

impl Invariant for Heals {
    fn name(&self) -> &'static str {
        "L4 heals"
    }

    fn see(&mut self, _: u64, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Left0ver { at, what } if !what.is_empty() => {
                Err(format!("in the end {at:?} still holds: {what}"))
            }
            Fact::Probe { room, done: false } => Err(format!(
                "after the storm fresh room {room} is not Done in time"
            )),
            _ => Ok(()),
        }
    }
}
