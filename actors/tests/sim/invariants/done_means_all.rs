//! S3: a receiver is `Done` only if every cell that it wanted was written, and holds this request's bytes.
//! A sender is `Done` only if every receiver of it is.

use super::Invariant;
use crate::sim::fact::{Fact, Life};
use kvroom_actors::ids::{LifeId, RoomKey};
use kvroom_actors::peer::message::ClaimTag;
use kvroom_actors::room::{Outcome, Role};
use kvroom_kernels::coverage::Rect;
use std::collections::{BTreeMap, BTreeSet};

type Cell = (u16, u32, u32);

#[derive(Default)]
pub(crate) struct DoneMeansAll {
    wants: BTreeMap<(Life, LifeId), (RoomKey, BTreeSet<Cell>)>,
    /// And how many receivers its request has.
    senders: BTreeMap<(Life, LifeId), (RoomKey, usize)>,
    claims: BTreeMap<(Life, LifeId), ClaimTag>,
    written: BTreeMap<ClaimTag, BTreeSet<Cell>>,
    done: BTreeMap<RoomKey, usize>,
}

impl Invariant for DoneMeansAll {
    fn name(&self) -> &'static str {
        "S3 done means all"
    }

    fn see(&mut self, _: u64, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Started {
                at,
                life,
                key,
                role: Role::Receiver,
                wants,
                layers,
                ..
            } => {
                let mut cells = BTreeSet::new();
                for (_, section, places) in wants {
                    let layers = if *section == Rect::AUX { 1 } else { *layers };
                    for layer in 0..layers {
                        cells.extend((0..*places).map(|place| (*section, layer, place)));
                    }
                }
                self.wants.insert((*at, *life), (*key, cells));
            }
            Fact::Started {
                at,
                life,
                key,
                receivers,
                ..
            } => {
                self.senders.insert((*at, *life), (*key, *receivers));
            }
            Fact::Opened {
                at, life, claim, ..
            } => {
                self.claims.insert((*at, *life), *claim);
            }
            Fact::Wrote {
                claim,
                section,
                layer,
                place,
                ..
            } => {
                let cell = (*section, *layer, *place);
                self.written.entry(*claim).or_default().insert(cell);
            }
            Fact::Published {
                at,
                life,
                outcome: Outcome::Done,
                ..
            } => return self.done((*at, *life)),
            Fact::Looked {
                wrong: Some(wrong), ..
            } => {
                return Err(format!("Done, and the bytes are others: {wrong}"));
            }
            _ => {}
        }
        Ok(())
    }
}

impl DoneMeansAll {
    fn done(&mut self, room: (Life, LifeId)) -> Result<(), String> {
        if let Some((key, wants)) = self.wants.get(&room) {
            let claim = self.claims.get(&room);
            let written = claim.and_then(|claim| self.written.get(claim));
            let missing = wants
                .iter()
                .find(|cell| !written.is_some_and(|w| w.contains(cell)));
            if let Some(cell) = missing {
                return Err(format!("{room:?} ({key}) is Done without {cell:?}"));
            }
            *self.done.entry(*key).or_default() += 1;
        } else if let Some((key, receivers)) = self.senders.get(&room) {
            let done = self.done.get(key).copied().unwrap_or(0);
            if done != *receivers {
                return Err(format!(
                    "sender {room:?} ({key}) to {receivers} receivers is Done, and {done} of them are"
                ));
            }
        }
        Ok(())
    }
}
