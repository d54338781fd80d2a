//! What is different with a peer on this host that shares memory.
//!
//! Its claims say where to write in its mapped pools; pools that come later come with a descriptor,
//! beside the ring; and that its process is dead is known from its pidfd, for certain.

use super::{Link, PeerActor};
use crate::fabric::shm::{ShmClaim, ShmRoute, ShmSection};
use crate::fabric::ucx::{FarPool, FarSection, UcxClaim};
use crate::fabric::{PeerRoute, Reach};
use crate::ids::PoolId;
use crate::memory::Backing;
use crate::peer::hello::{FarKey, SessionId};
use crate::peer::message::{Body, Claim};
use crate::reason::{Code, Reason};
use crate::runtime::link;
use crate::runtime::readable::Readable;
use actix::{AsyncContext, Context, Handler, Message};
use kvroom_kernels::layout::PoolLayout;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

/// The process that this session is with is dead.
#[derive(Message)]
#[rtype(result = "()")]
struct Died {
    session: SessionId,
    /// What it had said has been read by now.
    heard: bool,
}

/// The path that a session's bytes go over is over, and the session is not.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct PathOver {
    pub(super) session: SessionId,
    pub(super) why: String,
}

/// How long what a dead process had said is read. The end of its socket says sooner that it was.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// Tells the actor when the process at the other end is dead, and the gates when it rings. For as
/// long as these tasks are not aborted.
pub(super) fn watch(
    route: &ShmRoute,
    session: SessionId,
    ctx: &mut Context<PeerActor>,
) -> Vec<JoinHandle<()>> {
    let me = ctx.address();
    let writer = Arc::clone(&route.writer);
    let died = readable(writer.pidfd()).map(|pidfd| {
        actix::spawn(async move {
            while !writer.ask() {
                if pidfd.again().await.is_err() {
                    return;
                }
            }
            let heard = false;
            me.do_send(Died { session, heard });
        })
    });
    let gates = Arc::clone(&route.ours);
    let rung = readable(&*route.bell).map(|bell| {
        actix::spawn(async move {
            while bell.again().await.is_ok() {
                gates.rang();
            }
        })
    });
    let mut watching = Vec::new();
    for task in [died, rung] {
        match task {
            Ok(task) => watching.push(task),
            // The socket's end and the shards' ticks find the same out later.
            Err(error) => tracing::warn!(%error, "a peer of this host cannot be watched"),
        }
    }
    watching
}

fn readable(fd: &impl AsFd) -> io::Result<Readable> {
    fd.as_fd().try_clone_to_owned().and_then(Readable::new)
}

impl Handler<PathOver> for PeerActor {
    type Result = ();

    /// Nothing more would come over it: the rooms end, and a new session brings another path.
    fn handle(&mut self, PathOver { session, why }: PathOver, _: &mut Context<Self>) {
        let current = self.link.as_ref().is_some_and(|link| link.id == session);
        if !current {
            return;
        }
        let name = &self.name;
        let text = format!("the path to node {name:?} through UCX is over: {why}");
        self.path_failed = Some(Instant::now());
        // Without a connection the other side cannot be told, and is as likely gone as the path is.
        let (code, word) = match self.link.as_ref().is_some_and(|l| l.transport.is_some()) {
            true => (Code::RouteFenced, true),
            false => (Code::SessionLost, false),
        };
        let reason = Reason::new(code, text);
        tracing::warn!(node = self.node.name, peer = self.name, %reason, "session ends");
        // Not on purpose: whoever connected connects again.
        let word = word.then(|| Body::GaveUp {
            reason: reason.clone(),
        });
        if let Some(last) = self.give_up(reason, word) {
            actix::spawn(last);
        }
    }
}

impl Handler<Died> for PeerActor {
    type Result = ();

    fn handle(&mut self, died: Died, ctx: &mut Context<Self>) {
        let Some(Link {
            route: PeerRoute::Shm(route),
            id,
            transport,
            ..
        }) = &self.link
        else {
            return;
        };
        if *id != died.session {
            return;
        }
        route.ours.rang();
        if transport.is_some() && !died.heard {
            let died = Died {
                heard: true,
                ..died
            };
            ctx.notify_later(died, LAST_WORDS);
            return;
        }
        self.is_dead();
    }
}

/// How a pool is numbered beside the ring: a file is another thing to map than a memfd.
fn numbered(pool: PoolId, file: bool) -> u32 {
    const FILE: u32 = 1 << 31;
    u32::from(pool.0) | if file { FILE } else { 0 }
}

/// See [`PeerActor::keep_key`].
fn keep_key(route: Option<&PeerRoute>, body: &mut Body) {
    let puts = matches!(route, Some(PeerRoute::Ucx(route)) if !route.gated_here());
    if let (Body::PoolAdded { far, .. }, false) = (body, puts) {
        *far = None;
    }
}

impl PeerActor {
    /// The process at the other end is dead, and this incarnation was that process.
    fn is_dead(&mut self) {
        self.for_good = true;
        let text = format!("the process of node {:?} is dead", self.name);
        self.give_up(Reason::new(Code::PeerLost, text), None);
    }

    /// Its connection is lost; gives the session up if that is because the process is dead.
    pub(super) fn gave_up_the_dead(&mut self) -> bool {
        let dead = match self.link.as_ref().map(|link| &link.route) {
            Some(PeerRoute::Shm(route)) => route.writer.ask(),
            _ => false,
        };
        if dead {
            self.is_dead();
        }
        dead
    }

    /// Only who is to put is told how.
    pub(super) fn keep_key(&self, body: &mut Body) {
        keep_key(self.link.as_ref().map(|link| &link.route), body);
    }

    /// Sends the descriptor of a pool that is about to be announced.
    pub(super) fn share_pool(&mut self, body: &Body) {
        if let (Body::PoolAdded { pool, .. }, Some(link)) = (body, &mut self.link)
            && let PeerRoute::Shm(_) = &link.route
        {
            link.unshared.push(*pool);
        }
        if let (Body::PoolAdded { pool, far, .. }, Some(link)) = (body, &mut self.link)
            && far.is_some()
            && let PeerRoute::Ucx(_) = &link.route
        {
            link.offered.insert(*pool);
        }
        self.share_pools();
    }

    /// Sends the descriptors of pools that were announced, as far as they could not be sent before.
    pub(super) fn share_pools(&mut self) {
        let Some(link) = &mut self.link else { return };
        let Some(transport) = &link.transport else {
            return;
        };
        let pools = self.node.pools.borrow().clone();
        link.unshared.retain(|id| {
            let named = pools.pools.iter().find(|p| p.id == *id);
            let Some((pool, memory)) = named.and_then(|p| Some((&p.pool, p.pool.shared_memory()?)))
            else {
                return false;
            };
            let file = matches!(pool.backing(), Backing::File);
            let sent = transport.send_descriptor(numbered(*id, file), memory.fd());
            if let Err(error) = &sent {
                let (node, peer) = (&self.node.name, &self.name);
                tracing::warn!(node, peer, %error, "a pool was not shared with the peer yet; claims of it are refused until it is");
            }
            sent.is_err()
        });
    }
}

impl Link {
    /// A pool of the peer that can be written through UCX.
    pub(super) fn learn(&mut self, pool: PoolId, layout: &PoolLayout, key: FarKey) {
        if let PeerRoute::Ucx(_) = self.route {
            let layout = Arc::new(layout.clone());
            self.far.insert(pool, Arc::new(FarPool { layout, key }));
        }
    }

    /// Maps a pool whose descriptor has come beside its announcement. Without one it is private memory,
    /// or its descriptor comes later.
    pub(super) fn map_pool(&mut self, pool: PoolId, layout: &PoolLayout) {
        let (PeerRoute::Shm(_), Some(transport)) = (&self.route, &self.transport) else {
            return;
        };
        for file in [false, true] {
            let Some(fd) = transport.take_descriptor(numbered(pool, file)) else {
                continue;
            };
            match link::map(fd, file, layout) {
                Ok(mapped) => {
                    self.remote.insert(pool, Arc::new(mapped));
                }
                Err(why) => {
                    tracing::warn!(
                        why,
                        "a pool of a peer cannot be mapped; its claims are refused"
                    );
                }
            }
        }
    }

    /// Where a claim's pages are, if this node writes them itself.
    pub(super) fn reach<T>(
        &mut self,
        claim: &Claim,
        terms: Result<T, Reason>,
    ) -> (Result<T, Reason>, Option<Reach>) {
        if terms.is_err() {
            return (terms, None);
        }
        let reach = match self.route {
            PeerRoute::Local(_) | PeerRoute::Tcp(_) => return (terms, None),
            PeerRoute::Shm(_) => self.shm_claim(claim).map(Reach::Shm),
            PeerRoute::Ucx(ref route) if route.gated_here() => return (terms, None),
            PeerRoute::Ucx(_) => self.ucx_claim(claim).map(Reach::Ucx),
        };
        match reach {
            Ok(reach) => (terms, Some(reach)),
            Err(reason) => (Err(reason), None),
        }
    }

    fn ucx_claim(&self, claim: &Claim) -> Result<Arc<UcxClaim>, Reason> {
        let section = |pool: PoolId, pages: Arc<[u32]>| match self.far.get(&pool) {
            Some(pool) => Ok(FarSection {
                pool: Arc::clone(pool),
                pages,
            }),
            None => {
                let text = format!("pool {} of the receiver is not registered with UCX", pool.0);
                Err(Reason::new(Code::LayoutMismatch, text))
            }
        };
        let sections = claim.sections.iter();
        let sections = sections.map(|s| section(s.pool, s.pages.as_slice().into()));
        let aux = claim.aux.as_ref();
        let aux = aux.map(|aux| section(aux.pool, Arc::new([aux.row])));
        Ok(Arc::new(UcxClaim {
            number: claim.tag.id.number,
            sections: sections.collect::<Result<_, _>>()?,
            aux: aux.transpose()?,
        }))
    }

    fn shm_claim(&mut self, claim: &Claim) -> Result<Arc<ShmClaim>, Reason> {
        let aux = claim.aux.as_ref().map(|aux| aux.pool);
        for pool in claim.sections.iter().map(|s| s.pool).chain(aux) {
            if !self.remote.contains_key(&pool)
                && let Some(layout) = self.pools.get(&pool).map(|p| p.layout.clone())
            {
                self.map_pool(pool, &layout);
            }
        }
        let PeerRoute::Shm(route) = &self.route else {
            return Err(Reason::from(Code::SessionLost));
        };
        let section = |pool: PoolId, pages: Arc<[u32]>| {
            let mapped = self.remote.get(&pool).cloned();
            mapped
                .map(|pool| ShmSection { pool, pages })
                .ok_or_else(|| {
                    let text = format!(
                        "pool {} of the receiver is not shared with the sender",
                        pool.0
                    );
                    Reason::new(Code::LayoutMismatch, text)
                })
        };
        let sections = claim.sections.iter();
        let sections = sections.map(|s| section(s.pool, s.pages.as_slice().into()));
        let sections = sections.collect::<Result<Vec<_>, _>>();
        let aux = claim.aux.as_ref();
        let aux = aux
            .map(|aux| section(aux.pool, Arc::new([aux.row])))
            .transpose();
        Ok(Arc::new(ShmClaim {
            gates: Arc::clone(&route.theirs),
            slot: claim.gate,
            number: claim.tag.id.number,
            sections: sections?,
            aux: aux?,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::ucx::UcxRoute;
    use crate::memory::GateTable;
    use crate::peer::hello::UcxMode;
    use kvroom_kernels::layout::{Order, PoolKind};

    /// Whether a peer that is reached so is told how a pool that was added can be written.
    fn told(route: Option<&PeerRoute>) -> bool {
        let layout = PoolLayout {
            name: "kv".into(),
            kind: PoolKind::Kv,
            order: Order::LayersFirst,
            layers: 1,
            pages: 1,
            page_bytes: 64,
            page_tokens: 1,
        };
        let (base, key) = (4096, vec![7; 16]);
        let mut body = Body::PoolAdded {
            pool: PoolId(3),
            layout,
            content: None,
            far: Some(Box::new(FarKey { base, key })),
        };
        keep_key(route, &mut body);
        matches!(body, Body::PoolAdded { far: Some(_), .. })
    }

    #[test]
    fn the_key_of_a_pool_is_told_to_a_peer_that_puts_and_to_no_other() {
        let ucx = |mode| PeerRoute::Ucx(UcxRoute::nowhere(mode));
        assert!(told(Some(&ucx(UcxMode::OneSided))));
        assert!(!told(Some(&ucx(UcxMode::Messages))));
        assert!(!told(Some(&PeerRoute::Local(GateTable::new(1)))));
        assert!(!told(None));
    }
}
