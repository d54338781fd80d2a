//! The pools of the configuration, made before the node is started.
//!
//! ```text
//!   [[pool]] ─┬─ backing = "file"  ─▶ attached, as one over HTTP is ─┐
//!             ├─ device = …        ─▶ Devices::allocate, exported    ├─▶ Configured ─▶ the node, the keeper
//!             └─ in memory (Config::node_builder) ───────────────────┘
//! ```
//!
//! Rules: one that cannot be made is the end of the start, with its name, the cause and what to do. Memory
//! of a device is never given back on that way: a call of a driver that hangs could hold up the end, and
//! the end of the process gives it back.

use super::memory::Opened;
use crate::daemon::config::{Backing, Config, PoolSettings};
use crate::daemon::devices::{Devices, Named, Unusable};
use kvroom::{Pool, PoolError};
use std::path::Path;

/// Pools that are to be adopted, in the order of their kinds.
pub(crate) struct Configured(Vec<Opened>);

/// Why the daemon does not start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotMade {
    /// One in a file.
    #[error("cannot make a pool: {0}")]
    File(#[from] PoolError),
    /// One on a device.
    #[error("cannot make pool {pool:?} on device {device}: {why}")]
    Device {
        /// Its name.
        pool: String,
        /// As the configuration names it.
        device: String,
        /// Who is at fault, and what to do.
        why: Unusable,
    },
}

impl Configured {
    /// Makes those in files and on devices. Each call of a driver is waited for within its bound.
    ///
    /// # Errors
    /// The first that cannot be made.
    pub(crate) async fn open(config: &Config, devices: &Devices) -> Result<Configured, NotMade> {
        let mut all = Configured(Vec::new());
        for settings in config.pools_in(Backing::File) {
            let path = settings.path.as_deref().unwrap_or(Path::new(""));
            let opened = Opened::of_file(settings.layout(), path, settings.create)?;
            all.0.push(opened);
        }
        for settings in config.pools_in(Backing::Device) {
            all.0.push(on_device(settings, devices).await?);
        }
        Ok(all)
    }

    /// Those in memory, which there are already.
    pub(crate) fn and(&mut self, pools: Vec<Pool>) {
        let pools = pools.into_iter();
        self.0
            .extend(pools.map(|pool| Opened::configured(pool, None)));
    }

    /// All of them.
    pub(crate) fn pools(&self) -> impl Iterator<Item = &Pool> {
        self.0.iter().map(Opened::pool)
    }

    /// The next one, for the keeper.
    pub(crate) fn next(&mut self) -> Option<Opened> {
        (!self.0.is_empty()).then(|| self.0.remove(0))
    }
}

impl Drop for Configured {
    fn drop(&mut self) {
        let on_devices = |opened: &Opened| opened.pool().device().is_some();
        for opened in self.0.drain(..).filter(on_devices) {
            std::mem::forget(opened);
        }
    }
}

async fn on_device(settings: &PoolSettings, devices: &Devices) -> Result<Opened, NotMade> {
    let made = match &settings.device {
        Some(device) => devices.allocate(device, settings.layout()).await,
        None => Err(Unusable::NoneAllowed),
    };
    match made {
        Ok((pool, memory)) => Ok(Opened::allocated(pool, memory)),
        Err(why) => Err(NotMade::Device {
            pool: settings.name.clone(),
            device: match settings.device {
                Some(Named::Ordinal(ordinal)) => ordinal.to_string(),
                Some(Named::Uuid(uuid)) => uuid.to_string(),
                None => "…".to_owned(),
            },
            why,
        }),
    }
}
