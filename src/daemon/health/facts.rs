//! What the node has to be asked for: its peers and its pages. Asked beside the health task, which
//! reads the last answer, so that a part that does not answer holds up nothing.

use super::judge::PoolSeen;
use super::report::PeerHealth;
use kvroom::health::QuarantinedPages;
use kvroom::{Node, Peer, PeerState};
use std::time::{Duration, Instant};

/// As of the last answer.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    /// The peers.
    pub(crate) peers: Vec<PeerHealth>,
    /// Quarantined pages.
    pub(crate) quarantined: QuarantinedPages,
    /// Rooms that have ended.
    ended: u64,
    /// When the last one was seen to end, or when there was none to end.
    pub(crate) ended_at: Instant,
}

impl Facts {
    /// Before anybody was asked.
    pub(crate) fn none() -> Facts {
        Facts {
            peers: Vec::new(),
            quarantined: QuarantinedPages::default(),
            ended: 0,
            ended_at: Instant::now(),
        }
    }

    /// Asks; the rest stays as it was if somebody does not answer in time.
    pub(crate) async fn ask(mut self, node: &Node, budget: u64, within: Duration) -> Facts {
        if let Ok(quarantined) = tokio::time::timeout(within, node.quarantined()).await {
            self.quarantined = quarantined;
        }
        if let Ok(peers) = tokio::time::timeout(within, node.peers()).await {
            let pages = |peer: &Peer| self.quarantined.by_peer.get(peer.name()).copied();
            let peers = peers.iter();
            let told = peers.map(|peer| tell(peer, pages(peer).unwrap_or(0), budget));
            self.peers = told.collect();
        }
        if let Ok(stats) = tokio::time::timeout(within, node.stats()).await {
            let ended = stats.done + stats.aborted;
            if ended != self.ended || stats.rooms_live + stats.rooms_draining == 0 {
                (self.ended, self.ended_at) = (ended, Instant::now());
            }
        }
        self
    }

    /// The node's pools, all but the canaries' own.
    pub(crate) fn pools(&self, node: &Node) -> Vec<PoolSeen> {
        let pools = node.pools().into_iter();
        let pools = pools.filter(|pool| pool.layout().name != super::canary::NAME);
        let seen = pools.map(|pool| {
            let name = pool.layout().name.clone();
            let by_rooms = self.quarantined.by_pool.get(&name).copied().unwrap_or(0);
            let former = pool.quarantined_pages() as u64;
            PoolSeen {
                pages: u64::from(pool.layout().pages),
                leased: pool.leased_pages() as u64,
                quarantined: by_rooms + former,
                name,
            }
        });
        seen.collect()
    }
}

fn tell(peer: &Peer, quarantined_pages: u64, budget: u64) -> PeerHealth {
    let (state, why) = match peer.state() {
        PeerState::Up => ("up", None),
        PeerState::Resuming(why) => ("resuming", Some(why)),
        PeerState::Down(why) => ("down", Some(why)),
    };
    PeerHealth {
        name: peer.name().to_owned(),
        state: state.to_owned(),
        why,
        quarantined_pages,
        over_budget: quarantined_pages >= budget,
    }
}
