//! The peers that a node has met, each by its name and in its newest life.
//!
//! Names that are gone are forgotten when there are too many of them ([`MOST_DOWN`]), so that a node
//! whose peers come and go stays small. With a forgotten name goes the knowledge of its last
//! incarnation: an older one would be let in again, as by a node that has just started.

use super::address::Address;
use super::control::{PeerInfo, State};
use crate::fabric::tcp::TcpRoute;
use crate::ids::{Incarnation, PeerRef};
use crate::peer::actor::{GiveUp, PeerActor, PeerState};
use crate::peer::hello::{Hello, SessionId};
use crate::reason::{Code, Reason};
use actix::{Actor, Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::watch;

/// Peers without a session that are remembered.
const MOST_DOWN: usize = 4_096;

/// One life of a peer.
pub(crate) struct Known {
    pub(crate) info: PeerInfo,
    pub(crate) addr: Addr<PeerActor>,
    /// The peer has ended the session on purpose.
    pub(crate) left: Arc<AtomicBool>,
    /// This node has ended it on purpose: what the peer connects by itself is refused.
    pub(crate) sent_away: bool,
    /// How bytes go in the session that is there, or was.
    pub(crate) data: Option<Data>,
}

/// The data connections of one session.
pub(crate) struct Data {
    pub(crate) session: SessionId,
    pub(crate) route: TcpRoute,
    /// What the acceptor's connections are named by, if this node accepted the first of them.
    pub(crate) token: u128,
    /// Where they are made to, and with which name, if this node made the first of them.
    pub(crate) dial: Option<(Address, u128)>,
}

impl Known {
    pub(crate) fn is_up(&self) -> bool {
        *self.info.state.borrow() == PeerState::Up
    }

    /// Whether it is connected to again only when somebody asks for that.
    pub(crate) fn parted(&self) -> bool {
        self.sent_away || self.left.load(Ordering::Acquire)
    }
}

/// An older life than one that is known.
#[derive(Debug, thiserror::Error)]
#[error("{node} is incarnation {theirs}, but {known} of it is known: it must stop")]
pub(crate) struct Outdated {
    node: String,
    known: Incarnation,
    theirs: Incarnation,
}

impl State {
    /// The peer of this greeting; a newer life of it is a new peer, and the older one is over.
    pub(crate) fn peer(&mut self, theirs: &Hello) -> Result<&mut Known, Outdated> {
        if let Some(known) = self.peers.get(&theirs.node) {
            let incarnation = known.info.incarnation;
            if incarnation > theirs.incarnation {
                return Err(Outdated {
                    node: theirs.node.clone(),
                    known: incarnation,
                    theirs: theirs.incarnation,
                });
            }
            if incarnation < theirs.incarnation {
                let text = format!("node {:?} came back as a newer incarnation", theirs.node);
                // Its actor stops when the shards have let go of it too.
                known.addr.do_send(GiveUp {
                    reason: Reason::new(Code::PeerRestarted, text),
                    bye: None,
                    for_good: true,
                });
                self.forget(&theirs.node.clone());
            }
        }
        if !self.peers.contains_key(&theirs.node) {
            let known = self.new_peer(theirs);
            self.peers.insert(theirs.node.clone(), known);
            self.forget_some(&theirs.node);
        }
        self.peers.get_mut(&theirs.node).ok_or(Outdated {
            node: theirs.node.clone(),
            known: theirs.incarnation,
            theirs: theirs.incarnation,
        })
    }

    fn new_peer(&mut self, theirs: &Hello) -> Known {
        let peer = PeerRef(self.next_peer);
        self.next_peer += 1;
        let (state_tx, state) = watch::channel(PeerState::Down("not yet connected".into()));
        let info = PeerInfo {
            peer,
            name: theirs.node.clone(),
            incarnation: theirs.incarnation,
            state,
        };
        let shards: Vec<_> = self.shards.iter().map(|(addr, _)| addr.clone()).collect();
        let arbiter = &self.shards[peer.0 as usize % self.shards.len()].1;
        let (node, name, incarnation) = (self.node.clone(), info.name.clone(), info.incarnation);
        let left = Arc::new(AtomicBool::new(false));
        let parted = Arc::clone(&left);
        let addr = PeerActor::start_in_arbiter(arbiter, move |_| {
            PeerActor::new(peer, node, name, incarnation, shards, state_tx, parted)
        });
        Known {
            info,
            addr,
            left,
            sent_away: false,
            data: None,
        }
    }

    fn forget(&mut self, name: &str) {
        if let Some(known) = self.peers.remove(name)
            && let Some(data) = known.data
        {
            self.tokens.remove(&data.token);
        }
    }

    /// Too many that are gone: the one met first goes.
    fn forget_some(&mut self, but: &str) {
        if self.peers.len() <= MOST_DOWN {
            return;
        }
        let down = self
            .peers
            .values()
            .filter(|k| matches!(*k.info.state.borrow(), PeerState::Down(_)) && k.info.name != but);
        let (oldest, count) = down.fold((None, 0), |(oldest, count), k| {
            let older = |o: &(PeerRef, String)| k.info.peer < o.0;
            let k = match oldest {
                Some(o) if !older(&o) => o,
                _ => (k.info.peer, k.info.name.clone()),
            };
            (Some(k), count + 1)
        });
        if count > MOST_DOWN
            && let Some((_, name)) = oldest
        {
            if let Some(known) = self.peers.get(&name) {
                let text = format!("node {name:?} was gone for long and is forgotten");
                known.addr.do_send(GiveUp {
                    reason: Reason::new(Code::PeerLost, text),
                    bye: None,
                    for_good: true,
                });
            }
            self.forget(&name);
        }
    }
}
