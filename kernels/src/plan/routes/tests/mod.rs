//! Routes by themselves (`choices`), and with plans on numbered cubes (`golden`, `reports`).

mod choices;
mod golden;
mod reports;

use super::*;
use crate::plan::testing::Numbers;
use crate::plan::testing::models::{Cutting, Model, ranks};
use crate::plan::testing::world::World;
use std::ops::Range;

/// A request between two cuttings of a model.
fn world(model: Model, from: Cutting, to: Cutting, tokens: Range<u64>, seed: u64) -> World {
    let mut numbers = Numbers(seed);
    World {
        senders: ranks(model, from, &tokens, &mut numbers),
        receivers: ranks(model, to, &tokens, &mut numbers),
        tokens,
        turn: seed,
        seed,
    }
}
