//! The effective configuration of the daemon.

use super::health::HealthSettings;
use std::net::SocketAddr;

/// Everything that can be set.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// The node's name.
    pub(crate) name: String,
    /// Where HTTP is served.
    pub(crate) http: SocketAddr,
    /// Health.
    pub(crate) health: HealthSettings,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            name: format!("kvroom-{}", std::process::id()),
            http: SocketAddr::from(([127, 0, 0, 1], 7480)),
            health: HealthSettings::default(),
        }
    }
}
