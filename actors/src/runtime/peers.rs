//! The peers that a node has met, each by its name and in its newest life.
//!
//! Names that are gone are forgotten when there are too many of them ([`MOST_DOWN`]), so that a node
//! whose peers come and go stays small. With a forgotten name goes the knowledge of its last
//! incarnation: an older one would be let in again, as by a node that has just started.

use super::address::Address;
use super::control::{Contents, PeerInfo, State};
use super::pulse::{Beat, Part};
use crate::copy::schedule::Class;
use crate::fabric::tcp::TcpRoute;
use crate::ids::{Incarnation, PeerRef};
use crate::peer::actor::{GiveUp, PeerActor, PeerState};
use crate::peer::hello::{Hello, SessionId};
use crate::reason::{Code, Reason};
use actix::{Actor, Addr};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// Peers without a session that are remembered.
const MOST_DOWN: usize = 4_096;

/// One life of a peer.
pub(crate) struct Known {
    pub(crate) info: PeerInfo,
    pub(crate) addr: Addr<PeerActor>,
    /// Whether its owner answers.
    pub(crate) beat: Arc<Beat>,
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
    /// What is known of each connection that this node makes.
    pub(crate) made: BTreeMap<(Class, u16), Made>,
    /// The last attempt that was taken of each connection that this node accepts.
    pub(crate) taken: BTreeMap<(Class, u16), u64>,
}

/// One place for a data connection, and what became of it.
#[derive(Debug, Default)]
pub(crate) struct Made {
    /// Somebody is making it now.
    busy: bool,
    /// How often it was tried.
    attempts: u64,
    /// When it was made last.
    at: Option<Instant>,
    /// What was waited last because it did not live for long.
    wait: Duration,
}

impl Data {
    /// A place is to be filled: how long to wait first, or nothing if that is being done already.
    pub(crate) fn make(
        &mut self,
        class: Class,
        index: u16,
        is_lost: bool,
        (first, most): (Duration, Duration),
    ) -> Option<Duration> {
        let place = (class, index);
        self.made
            .entry(place)
            .or_default()
            .begin(is_lost, Instant::now(), first, most)
    }

    /// The number of the next attempt to fill a place.
    pub(crate) fn attempt(&mut self, class: Class, index: u16) -> u64 {
        let made = self.made.entry((class, index)).or_default();
        made.attempts += 1;
        made.attempts
    }

    /// The place is filled.
    pub(crate) fn made(&mut self, class: Class, index: u16) {
        let made = self.made.entry((class, index)).or_default();
        made.busy = false;
        made.at = Some(Instant::now());
    }
}

impl Made {
    /// A connection that was lost soon is waited for, longer each time.
    fn begin(
        &mut self,
        is_lost: bool,
        now: Instant,
        first: Duration,
        most: Duration,
    ) -> Option<Duration> {
        if std::mem::replace(&mut self.busy, true) {
            return None;
        }
        let lived = self.at.map(|at| now.saturating_duration_since(at));
        self.wait = match lived {
            Some(lived) if is_lost && lived <= most => grown(self.wait, first, most),
            _ => Duration::ZERO,
        };
        Some(self.wait)
    }
}

/// The wait after this one: twice as long, within these bounds and never none.
pub(crate) fn grown(wait: Duration, first: Duration, most: Duration) -> Duration {
    let next = wait.saturating_mul(2).max(first);
    next.min(most).max(Duration::from_millis(1))
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
#[error(
    "{node} is incarnation {theirs}, but {known} of it is known: it must stop, or its clock went back"
)]
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
        self.node.recorder.know(peer, &theirs.node);
        let (state_tx, state) = watch::channel(PeerState::Down("not yet connected".into()));
        let (fabric_tx, fabric) = watch::channel(None);
        let (contents_tx, contents) = watch::channel(Contents::default());
        let info = PeerInfo {
            fabric,
            contents,
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
            let told = (state_tx, fabric_tx, contents_tx);
            PeerActor::new(peer, node, name, incarnation, shards, told, parted)
        });
        let (part, beats) = (Part::Session(info.name.clone()), &self.node.beats);
        let beat = Beat::new(part, self.node.started, &beats.answered);
        Known {
            info,
            addr,
            beat,
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_data_connection_that_is_refused_each_time_is_made_less_and_less_often() {
        let ms = Duration::from_millis;
        let (first, most) = (ms(50), ms(300));
        let mut made = Made::default();
        let mut now = Instant::now();
        assert_eq!(made.begin(false, now, first, most), Some(ms(0)));
        assert_eq!(made.begin(true, now, first, most), None, "one at a time");
        for wait in [50, 100, 200, 300, 300] {
            (made.busy, made.at) = (false, Some(now));
            now += ms(1);
            assert_eq!(made.begin(true, now, first, most), Some(ms(wait)));
        }
        (made.busy, made.at) = (false, Some(now));
        now += ms(301);
        assert_eq!(made.begin(true, now, first, most), Some(ms(0)), "it lived");
        (made.busy, made.at) = (false, Some(now));
        now += ms(1);
        assert_eq!(made.begin(true, now, first, most), Some(ms(50)));
        (made.busy, made.at) = (false, Some(now));
        assert_eq!(made.begin(false, now, first, most), Some(ms(0)), "resumed");
    }
}
