//! What there is of CUDA on this machine, as data for people.

use super::super::backend::Identity;
use super::super::error::DeviceError;
use super::api::{self, Api};
use super::identity::{count, identify};
use super::nvrtc;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// The driver and its devices, or why there are none.
    pub driver: Result<Driver, DeviceError>,
    /// The version of the compiler for kernels (major, minor), or why there is none.
    pub compiler: Result<(u32, u32), DeviceError>,
}

/// A driver that works.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Driver {
    /// Its version, as in 12080 for 12.8.
    pub version: u32,
    /// How many copies it takes with one call.
    pub copies: Copies,
    /// Each device that this process sees, or why it cannot be used.
    pub devices: Vec<Result<Identity, DeviceError>>,
}

/// How copies are given to a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copies {
    /// Many with one call, as since 12.8.
    Batch,
    /// Many with one call, as since 13.0.
    BatchV2,
    /// One with each call: the driver is older.
    OneByOne,
}

/// Looks at the driver and its devices. No context is made. A driver that does not answer within
/// `bound` is said to be silent, and the thread that asks it is left behind.
#[must_use]
pub fn probe(bound: Duration) -> Probe {
    let (tell, told) = mpsc::channel();
    let asks = thread::Builder::new()
        .name("cuda-probe".to_owned())
        .spawn(move || {
            let compiler = nvrtc::version();
            // Nobody listens any more if it took too long.
            let _ = tell.send(Probe {
                driver: look(),
                compiler,
            });
        });
    let silent = DeviceError::Silent(bound);
    let found = asks.ok().and_then(|_| told.recv_timeout(bound).ok());
    found.unwrap_or(Probe {
        driver: Err(silent.clone()),
        compiler: Err(silent),
    })
}

fn look() -> Result<Driver, DeviceError> {
    let api: &Api = api::driver()?;
    let devices = (0..count(api)?).map(|ordinal| identify(api, ordinal).map(|(_, id)| id));
    Ok(Driver {
        version: api.version,
        copies: match api.copies {
            api::Copies::Batch(_) => Copies::Batch,
            api::Copies::BatchV2(_) => Copies::BatchV2,
            api::Copies::OneByOne => Copies::OneByOne,
        },
        devices: devices.collect(),
    })
}
