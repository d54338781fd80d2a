//! What every route has at hand.

use super::config::Config;
use super::devices::Devices;
use super::events::{self, Sampler};
use super::health::Health;
use super::metrics::Requests;
use super::pools::Pools;
use super::recording;
use super::rooms::Rooms;
use super::status::StatusPage;
use kvroom::Node;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, watch};

/// The daemon's parts. Clones are the same.
#[derive(Clone)]
pub(crate) struct App(Arc<Parts>);

struct Parts {
    node: Node,
    config: Config,
    since: Instant,
    stopping: watch::Sender<bool>,
    rooms: Rooms,
    pools: Pools,
    sampler: Sampler,
    requests: Requests,
    health: Health,
    devices: Devices,
    recordings: Arc<Semaphore>,
    streams: Arc<Semaphore>,
}

impl App {
    /// Of this node; starts the tasks of the parts. The rooms' states go to the page, if there is one.
    pub(crate) fn new(
        node: Node,
        config: Config,
        health: Health,
        devices: Devices,
        page: Option<StatusPage>,
    ) -> App {
        let tasks = health.tasks();
        let pools = Pools::start(node.clone(), devices.clone(), tasks);
        let rooms = Rooms::start(node.clone(), pools.clone(), &config, page, tasks);
        let sampler = Sampler::start(node.clone(), rooms.clone(), tasks);
        App(Arc::new(Parts {
            node,
            config,
            since: Instant::now(),
            stopping: watch::Sender::new(false),
            rooms,
            pools,
            sampler,
            requests: Requests::default(),
            health,
            devices,
            recordings: Arc::new(Semaphore::new(recording::AT_A_TIME)),
            streams: Arc::new(Semaphore::new(events::STREAMS)),
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

    /// Since when it serves.
    pub(crate) fn uptime(&self) -> Duration {
        self.0.since.elapsed()
    }

    /// Whether it was told to stop: then nothing new is started.
    pub(crate) fn is_stopping(&self) -> bool {
        *self.0.stopping.borrow()
    }

    /// For who must hear of the stop: true from then on.
    pub(crate) fn stopping(&self) -> watch::Receiver<bool> {
        self.0.stopping.subscribe()
    }

    /// From now on nothing new is started.
    pub(crate) fn stop(&self) {
        self.0.stopping.send_replace(true);
    }

    /// The rooms that were started over HTTP.
    pub(crate) fn rooms(&self) -> &Rooms {
        &self.0.rooms
    }

    /// Requests, counted.
    pub(crate) fn requests(&self) -> &Requests {
        &self.0.requests
    }

    /// Whether all is well.
    pub(crate) fn health(&self) -> &Health {
        &self.0.health
    }

    /// The pools.
    pub(crate) fn pools(&self) -> &Pools {
        &self.0.pools
    }

    /// The devices that pools can be on.
    pub(crate) fn devices(&self) -> &Devices {
        &self.0.devices
    }

    /// A permit for each recording that is being made or sent.
    pub(crate) fn recordings(&self) -> &Arc<Semaphore> {
        &self.0.recordings
    }

    /// A permit for each stream of events.
    pub(crate) fn streams(&self) -> &Arc<Semaphore> {
        &self.0.streams
    }

    /// What happens, once a second.
    pub(crate) fn sampler(&self) -> &Sampler {
        &self.0.sampler
    }
}
