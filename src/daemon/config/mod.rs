//! The effective configuration of the daemon.

use std::net::SocketAddr;
use std::path::PathBuf;

/// Everything that can be set.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// The node's name.
    pub(crate) name: String,
    /// Where HTTP is served.
    pub(crate) http: SocketAddr,
    /// The flight recorder.
    pub(crate) recorder: Recorder,
}

/// Of the flight recorder.
#[derive(Clone, Debug)]
pub(crate) struct Recorder {
    /// Entries of each ring; 0 records nothing.
    pub(crate) entries: usize,
    /// Where recordings are written when something is wrong.
    pub(crate) dump_dir: Option<PathBuf>,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            name: format!("kvroom-{}", std::process::id()),
            http: SocketAddr::from(([127, 0, 0, 1], 7480)),
            recorder: Recorder {
                entries: 16_384,
                dump_dir: None,
            },
        }
    }
}
