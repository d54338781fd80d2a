//! What every route has at hand.

use super::config::Config;
use super::health::{Health, Watched};
use super::pools::Pools;
use super::rooms::Rooms;
use kvroom::{LocalHub, Node};
use std::sync::Arc;

/// The daemon's parts. Clones are the same.
#[derive(Clone)]
pub(crate) struct App(Arc<Parts>);

struct Parts {
    node: Node,
    config: Config,
    rooms: Rooms,
    pools: Pools,
    health: Health,
}

impl App {
    /// Of this node; starts the tasks of the parts.
    pub(crate) fn new(node: Node, hub: LocalHub, config: Config) -> App {
        let watched = Watched {
            node: node.clone(),
            hub,
            shm: true,
            key: None,
        };
        let health = Health::start(watched, config.health.clone());
        let pools = Pools::start(node.clone());
        let rooms = Rooms::start(node.clone(), pools.clone());
        App(Arc::new(Parts {
            node,
            config,
            rooms,
            pools,
            health,
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

    /// Whether all is well.
    pub(crate) fn health(&self) -> &Health {
        &self.0.health
    }

    /// The pools.
    pub(crate) fn pools(&self) -> &Pools {
        &self.0.pools
    }
}
