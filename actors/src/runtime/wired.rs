//! Two nodes find out, before there is a session, whether each writes the other's memory through UCX.
//!
//! ```text
//!   capability UCX on both sides ─▶ each offer has: version, a worker for this session alone, a word to write,
//!                                   remote keys of its pools
//!   offers ─▶ use_ucx ─▶ connect, write the other's word, flush ─▶ Wired ─▶          ◀─ Wired
//!                └ no, or versions that do not mix                    └ one says why not: the next route, or refused
//! ```
//!
//! Rules: nothing of it is said before the peer has proven itself. A library that only seems to
//! understand the other one is found out here, by a put that never ends, and not by a room.

use super::control::Shared;
use super::greet::GreetError;
use super::shared::NodeShared;
use crate::fabric::ucx::{OneSided, Ucx, UcxEnd, UcxOptions, UcxRoute, UcxUse};
use crate::memory::Pool;
use crate::peer::hello::{Capabilities, Hello, Offer, RefusalCode, UcxOffer, UcxVerdict, use_ucx};
use crate::peer::wire::MAX_REFUSAL;
use std::sync::Arc;
use std::time::Duration;

/// UCX of this node, if it has any and is to use it.
fn of(node: &NodeShared) -> Option<Ucx> {
    node.ucx.as_ref()?.as_ref().ok().cloned()
}

/// What a greeting says of it.
pub(crate) fn capability(node: &NodeShared) -> Capabilities {
    match of(node) {
        Some(_) => Capabilities::UCX,
        None => Capabilities::default(),
    }
}

/// Registers a pool; what speaks against it is logged, and claims of it are refused.
pub(crate) async fn register(node: &NodeShared, ucx: &Ucx, pool: &Pool) {
    if !(ucx.has_rdma() || node.net.ucx.one_sided == OneSided::Always) {
        // Nobody would put.
        return;
    }
    let name = &pool.layout().name;
    if pool.device().is_some() {
        tracing::warn!(
            node = node.name,
            pool = name,
            "a pool on a device is not written through UCX"
        );
        return;
    }
    if let Err(error) = ucx.register(pool).await {
        tracing::warn!(node = node.name, pool = name, %error, "a pool was not registered with UCX");
    }
}

/// What this node offers of UCX to a peer that has it, too; and its end of what may come of that.
/// Not to one whose path failed so short a time ago that the next route has its turn.
pub(crate) async fn offer(
    state: &Shared,
    theirs: &Hello,
    failed: Option<Duration>,
) -> Option<(UcxOffer, UcxEnd)> {
    if !theirs.capabilities.has(Capabilities::UCX) {
        return None;
    }
    let (node, pools) = {
        let state = state.borrow();
        let pools = state.pools.borrow().clone();
        (Arc::clone(&state.node), pools)
    };
    let ucx = of(&node)?;
    if let Some(failed) = failed
        && passed_over(&node.net.ucx, failed)
    {
        tracing::warn!(
            node = node.name,
            peer = theirs.node,
            ?failed,
            "UCX is not offered to a peer: its path failed a while ago (after_failure); the next route is taken"
        );
        return None;
    }
    if let Some(named) = pools.pools.iter().find(|p| p.pool.device().is_some()) {
        let (pool, peer) = (&named.pool.layout().name, &theirs.node);
        tracing::warn!(
            node = node.name,
            peer,
            pool,
            "UCX is not offered to a peer: a pool is on a device, which it is not let reach; the next route is taken"
        );
        return None;
    }
    let mut keys = Vec::new();
    let puts = ucx.has_rdma() || node.net.ucx.one_sided == OneSided::Always;
    // What is registered stays so, with its memory, for as long as the process runs.
    for named in pools.pools.iter().filter(|_| puts) {
        if ucx.key_of(&named.pool).is_none() {
            register(&node, &ucx, &named.pool).await;
        }
        keys.extend(ucx.key_of(&named.pool).map(|key| (named.id, key)));
    }
    match ucx.end().await {
        Ok(end) => {
            let offer = UcxOffer {
                version: ucx.version(),
                rdma: ucx.has_rdma(),
                wanted: matches!(node.net.ucx.when, UcxUse::Prefer | UcxUse::Always),
                always: node.net.ucx.when == UcxUse::Always,
                one_sided: node.net.ucx.one_sided == OneSided::Always,
                worker: end.address().to_vec(),
                probe: end.probe(),
                pools: keys,
            };
            Some((offer, end))
        }
        Err(error) => {
            tracing::warn!(node = node.name, peer = theirs.node, %error, "UCX is not offered to a peer");
            None
        }
    }
}

/// Whether UCX is left out with a peer whose path failed so long ago.
fn passed_over(options: &UcxOptions, failed: Duration) -> bool {
    options.when != UcxUse::Always && failed < options.after_failure
}

/// What this side found.
pub(crate) struct Tried {
    /// One of both is to use UCX in any case.
    pub(crate) always: bool,
    pub(crate) route: Result<UcxRoute, String>,
}

/// Connects, if both offers say so.
pub(crate) async fn attempt(mine: &Offer, theirs: &Offer, end: Option<UcxEnd>) -> Option<Tried> {
    let (ours, far) = (mine.ucx.as_ref()?, theirs.ucx.as_ref()?);
    let (always, route) = match use_ucx(mine, theirs) {
        UcxVerdict::No => return None,
        UcxVerdict::Versions { always } => {
            let text = |(major, minor, patch)| format!("{major}.{minor}.{patch}");
            let (here, there) = (text(ours.version), text(far.version));
            let why = format!(
                "UCX {here} here and {there} there do not understand each other: use the same version on both \
                 sides, or turn UCX off on one"
            );
            (always, Err(why))
        }
        UcxVerdict::Try { always, mode } => {
            let route = match end {
                Some(end) => end
                    .connect(far, mode)
                    .await
                    .map_err(|error| error.to_string()),
                None => Err("its worker is gone; a bug of kvroom".into()),
            };
            (always, route)
        }
    };
    Some(Tried { always, route })
}

impl Tried {
    /// What the other side is told.
    pub(crate) fn said(&self) -> Option<String> {
        let why = self.route.as_ref().err()?;
        let mut end = why.len().min(MAX_REFUSAL);
        while !why.is_char_boundary(end) {
            end -= 1;
        }
        Some(why[..end].to_owned())
    }

    /// The route, if it is one at both ends.
    ///
    /// # Errors
    /// It is none, and nothing else will do.
    pub(crate) fn with(
        self,
        theirs: Option<String>,
        node: &str,
        peer: &str,
    ) -> Result<Option<UcxRoute>, GreetError> {
        let why = match (self.route, theirs) {
            (Ok(route), None) => return Ok(Some(route)),
            (Err(why), _) => why,
            (Ok(_), Some(why)) => format!("node {peer:?} says: {why}"),
        };
        if self.always {
            return Err(GreetError::Refused {
                code: RefusalCode::Other,
                text: format!("bytes are to go through UCX, and cannot: {why}"),
            });
        }
        tracing::warn!(
            node,
            peer,
            why,
            "UCX is there at both ends and does not work; the next route is taken"
        );
        Ok(None)
    }
}
