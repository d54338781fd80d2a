//! Copies to another process, over several stream connections.

use super::stream::Detached;
use crate::copy::schedule::Class;
use crate::ids::{LifeId, PeerRef};
use crate::reason::Reason;
use crate::runtime::shared::NodeShared;
use actix::ArbiterHandle;
use std::sync::Arc;

/// A data connection that has been opened and named by its token.
#[derive(Debug)]
pub(crate) struct DataConnection {
    pub(crate) stream: Detached,
    /// What was read behind its greeting.
    pub(crate) read: Vec<u8>,
    /// For small pieces, or for large ones.
    pub(crate) class: Class,
    /// Counted from 0 within the class.
    pub(crate) index: u16,
}

/// What the owner of a route must hear.
#[derive(Clone, Debug)]
pub(crate) enum RouteEvent {
    /// This connection is gone; whoever opened it opens it again.
    Lost { class: Class, index: u16 },
    /// The peer broke the protocol: its session ends with this.
    Violation(Reason),
}

/// Told of events, on the thread of a lane; must not block.
pub(crate) type RouteEvents = Arc<dyn Fn(RouteEvent) + Send + Sync>;

/// The way to one life of a peer. Clones are the same route; usable from any thread.
#[derive(Clone, Debug)]
pub(crate) struct TcpRoute {}

impl TcpRoute {
    /// A route without connections: its actor for small pieces runs on `home`, one for large pieces
    /// on each of `lanes`.
    pub(crate) fn start(
        _peer: PeerRef,
        _name: &str,
        _node: &Arc<NodeShared>,
        _home: &ArbiterHandle,
        _lanes: &[ArbiterHandle],
        _events: RouteEvents,
    ) -> Self {
        TcpRoute {}
    }

    /// A connection of it.
    pub(crate) fn attach(&self, _connection: DataConnection) {}

    /// A life's jobs were cancelled.
    pub(crate) fn cancel(&self, _life: LifeId) {}

    /// This life of the peer is over: closes every connection and hands all jobs back. The future
    /// ends when that is done.
    pub(crate) async fn close(&self) {}
}
