use crate::devices::Devices;
use crate::options::Options;
use crate::steps::Steps;
use std::sync::Arc;
pub(crate) fn steps(_: &mut Steps, _: &Arc<Devices>, _: &Options) {}
