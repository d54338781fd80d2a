//! Rooms over pools of the device, aborted in the middle of their pipelines.
//!
//! To be filled in when pools can be on a device: start rooms whose lanes gather, stage and scatter,
//! abort each at a random step, write a canary of (room, claim) into every page that came back, and look
//! whether a byte of it changed. One row, [`Verdict::Failed`] on any late byte.

use crate::devices::Devices;
use crate::options::Options;
use crate::steps::Steps;
use crate::table::{Row, Verdict};
use std::sync::Arc;

const NAME: &str = "rooms: aborts in mid-pipeline, canary oracle";

pub(crate) fn steps(steps: &mut Steps, _devices: &Arc<Devices>, _options: &Options) {
    let said = "no room uses a device yet".to_owned();
    steps.push(Row::new(NAME, said, "", Verdict::NotBuilt));
}
