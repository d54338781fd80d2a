//! What every route has at hand.

use super::config::Config;
use super::metrics::Requests;
use super::pools::Pools;
use super::rooms::Rooms;
use kvroom::Node;
use std::sync::Arc;

/// The daemon's parts. Clones are the same.
#[derive(Clone)]
pub(crate) struct App(Arc<Parts>);

struct Parts {
    node: Node,
    config: Config,
    rooms: Rooms,
    pools: Pools,
    requests: Requests,
}

impl App {
    /// Of this node; starts the tasks of the parts.
    pub(crate) fn new(node: Node, config: Config) -> App {
        let pools = Pools::start(node.clone());
        let rooms = Rooms::start(node.clone(), pools.clone());
        App(Arc::new(Parts {
            node,
            config,
            rooms,
            pools,
            requests: Requests::default(),
        }))
    }

    /// The node.
    pub(crate) fn node(&self) -> &Node {
        &self.0.node
    }

    /// The effective configuration.
    pub(crate) fn config(&self) -> &Config {
        &self.0.config
    }

    /// The rooms that were started over HTTP.
    pub(crate) fn rooms(&self) -> &Rooms {
        &self.0.rooms
    }

    /// Requests, counted.
    pub(crate) fn requests(&self) -> &Requests {
        &self.0.requests
    }

    /// The pools.
    pub(crate) fn pools(&self) -> &Pools {
        &self.0.pools
    }
}
