//! The effective configuration of the daemon.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Everything that can be set.
#[derive(Clone, Debug, Default)]
pub(crate) struct Config {
    /// What stands above all tables.
    pub(crate) top: Top,
    /// HTTP.
    pub(crate) http: Http,
    /// The node.
    pub(crate) node: NodeSettings,
    /// What is remembered of rooms that are over.
    pub(crate) retention: Retention,
}

/// What stands above all tables.
#[derive(Clone, Debug, Default)]
pub(crate) struct Top {
    /// The node's name.
    pub(crate) name: Option<String>,
}

/// Bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bytes(pub(crate) u64);

/// Where to listen.
#[derive(Clone, Debug)]
pub(crate) enum Listen {
    /// TCP.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
}

/// HTTP.
#[derive(Clone, Debug)]
pub(crate) struct Http {
    pub(crate) listen: Vec<Listen>,
    pub(crate) token_file: Option<PathBuf>,
    pub(crate) tls_cert: Option<PathBuf>,
    pub(crate) tls_key: Option<PathBuf>,
    pub(crate) tls_client_ca: Option<PathBuf>,
    pub(crate) max_body_bytes: Bytes,
    pub(crate) max_header_bytes: Bytes,
    pub(crate) header_timeout: Duration,
    pub(crate) request_timeout: Duration,
    pub(crate) max_connections: usize,
    pub(crate) max_concurrent: usize,
    pub(crate) rate_per_second: Option<u32>,
    pub(crate) rate_burst: Option<u32>,
    pub(crate) long_poll_max: Duration,
}

impl Default for Http {
    fn default() -> Http {
        Http {
            listen: vec![Listen::Tcp(SocketAddr::from(([127, 0, 0, 1], 7480)))],
            token_file: None,
            tls_cert: None,
            tls_key: None,
            tls_client_ca: None,
            max_body_bytes: Bytes(8 << 20),
            max_header_bytes: Bytes(16 << 10),
            header_timeout: Duration::from_secs(10),
            request_timeout: Duration::from_secs(30),
            max_connections: 1024,
            max_concurrent: 512,
            rate_per_second: None,
            rate_burst: None,
            long_poll_max: Duration::from_secs(60),
        }
    }
}

/// The node.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeSettings {
    pub(crate) listen: Vec<String>,
    pub(crate) connect: Vec<String>,
}

/// What is remembered of rooms that are over.
#[derive(Clone, Debug)]
pub(crate) struct Retention {
    pub(crate) ended_rooms: usize,
    pub(crate) ended_for: Duration,
}

impl Default for Retention {
    fn default() -> Retention {
        Retention {
            ended_rooms: 10_000,
            ended_for: Duration::from_secs(600),
        }
    }
}
