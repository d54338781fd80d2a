//! What a message that decodes may still not say.
//!
//! Every value that a later stage would index with, subtract from or keep is bounded here, once.

use super::{Bounds, WireError};
use crate::ids::{ClaimNo, PoolId};
use crate::peer::hello::{
    FarKey, Hello, Link, MAX_NAME, MAX_POOLS, MAX_REMOTE_KEY, MAX_SOCKET, MAX_WORKER, Offer,
    UcxOffer,
};
use crate::peer::message::{Body, Claim, Part};
use crate::reason::Reason;
use kvroom_kernels::coverage::Coverage;
use kvroom_kernels::layout::cube::CubeLayout;
use kvroom_kernels::layout::{PoolKind, PoolLayout};

/// Checks the bounds of a decoded body.
///
/// # Errors
/// [`WireError::OutOfBounds`], naming the value and its bound.
pub fn check(body: &Body, bounds: &Bounds) -> Result<(), WireError> {
    let told = |what: Result<(), String>| {
        what.map_err(|what| WireError::OutOfBounds {
            name: body.name(),
            what,
        })
    };
    if let Some(tag) = body.tag() {
        told(number(tag.id.number))?;
    }
    told(match body {
        Body::Claim(claim) => check_claim(claim, bounds),
        Body::Complete { coverage, .. } => check_coverage(coverage),
        Body::Quiesced { landed, .. } => check_coverage(landed),
        Body::Rejected { reason, .. }
        | Body::Failed { reason, .. }
        | Body::Abort { reason, .. }
        | Body::GaveUp { reason } => check_reason(reason),
        Body::PoolAdded {
            layout,
            content,
            far,
            ..
        } => check_layout(layout)
            .and_then(|()| match content {
                Some(content) => check_content(content, layout),
                None => Ok(()),
            })
            .and_then(|()| far.as_deref().map_or(Ok(()), check_far)),
        Body::Credit { claims: 0 } => Err("no claims in it".into()),
        Body::Credit { .. }
        | Body::Bound { .. }
        | Body::Progress { .. }
        | Body::Accepted { .. }
        | Body::PoolRetired { .. }
        | Body::Ping { .. }
        | Body::Pong { .. }
        | Body::Bye { .. }
        | Body::Superseded => Ok(()),
    })
}

/// Checks the bounds of a Hello; what it means is [`crate::peer::hello::greet`]'s.
pub(super) fn check_hello(hello: &Hello) -> Result<(), String> {
    let name = hello.node.len();
    if name == 0 || name > MAX_NAME {
        return Err(format!("a node name of {name} bytes (1 to {MAX_NAME})"));
    }
    if hello.protocols.oldest > hello.protocols.newest {
        return Err(format!("protocols {}", hello.protocols));
    }
    Ok(())
}

/// Checks the bounds of an offer; what it means is [`crate::peer::hello::accept`]'s.
pub(super) fn check_offer(offer: &Offer) -> Result<(), String> {
    let socket = offer.host.as_ref().and_then(|h| h.socket.as_ref());
    if let Some(long) = socket.filter(|s| s.is_empty() || s.len() > MAX_SOCKET) {
        let len = long.len();
        return Err(format!(
            "a socket's name of {len} bytes (1 to {MAX_SOCKET})"
        ));
    }
    let pools = &offer.pools;
    if pools.len() > MAX_POOLS {
        return Err(format!("{} pools (at most {MAX_POOLS})", pools.len()));
    }
    for (n, (id, layout)) in pools.iter().enumerate() {
        check_layout(layout)?;
        let twice = |(other, before): &(_, PoolLayout)| other == id || before.name == layout.name;
        if pools[..n].iter().any(twice) {
            return Err(format!("pool {} (id {}) listed twice", layout.name, id.0));
        }
    }
    let contents = &offer.contents;
    if contents.len() > MAX_POOLS {
        let n = contents.len();
        return Err(format!("contents of {n} pools (at most {MAX_POOLS})"));
    }
    for (n, (id, content)) in contents.iter().enumerate() {
        let Some((_, layout)) = pools.iter().find(|(pool, _)| pool == id) else {
            return Err(format!("a content of pool {}, which is not listed", id.0));
        };
        if contents[..n].iter().any(|(other, _)| other == id) {
            return Err(format!("two contents of pool {}", id.0));
        }
        check_content(content, layout)?;
    }
    match &offer.ucx {
        Some(ucx) => check_ucx(ucx, pools),
        None => Ok(()),
    }
}

/// Checks the bounds of what a node offers of UCX, beside its pools.
fn check_ucx(ucx: &UcxOffer, pools: &[(PoolId, PoolLayout)]) -> Result<(), String> {
    let worker = ucx.worker.len();
    if worker == 0 || worker > MAX_WORKER {
        return Err(format!(
            "a worker's address of {worker} bytes (1 to {MAX_WORKER})"
        ));
    }
    check_far(&ucx.probe)?;
    if ucx.pools.len() > MAX_POOLS {
        let n = ucx.pools.len();
        return Err(format!("{n} remote keys (at most {MAX_POOLS})"));
    }
    for (n, (id, key)) in ucx.pools.iter().enumerate() {
        if !pools.iter().any(|(pool, _)| pool == id) {
            return Err(format!(
                "a remote key of pool {}, which is not listed",
                id.0
            ));
        }
        if ucx.pools[..n].iter().any(|(other, _)| other == id) {
            return Err(format!("two remote keys of pool {}", id.0));
        }
        check_far(key)?;
    }
    Ok(())
}

fn check_far(far: &FarKey) -> Result<(), String> {
    let key = far.key.len();
    if key == 0 || key > MAX_REMOTE_KEY {
        return Err(format!(
            "a remote key of {key} bytes (1 to {MAX_REMOTE_KEY})"
        ));
    }
    Ok(())
}

/// Checks the bounds of what a peer on this host shares.
pub(super) fn check_link(link: &Link) -> Result<(), String> {
    let pools = &link.pools;
    if pools.len() > MAX_POOLS {
        return Err(format!("{} pools (at most {MAX_POOLS})", pools.len()));
    }
    for (n, pool) in pools.iter().enumerate() {
        if pools[..n].iter().any(|before| before.pool == pool.pool) {
            return Err(format!("pool {} listed twice", pool.pool.0));
        }
    }
    Ok(())
}

/// About how many bytes of a body are not fixed; a hint for the buffer.
pub(super) fn encoded_hint(body: &Body) -> usize {
    match body {
        Body::Claim(claim) => sections_bytes(claim),
        _ => 0,
    }
}

/// What a frame with this claim takes at most.
pub fn claim_bytes(claim: &Claim) -> usize {
    // All else in it has a fixed size, which is less.
    const FIXED: usize = 256;
    FIXED + sections_bytes(claim)
}

fn sections_bytes(claim: &Claim) -> usize {
    let pages: usize = claim.sections.iter().map(|s| 10 + 4 * s.pages.len()).sum();
    let parts: usize = match &claim.part {
        Part::Slices(parts) => (parts.iter().flatten())
            .map(|part| 16 + 10 * part.heads.len())
            .sum(),
        Part::Whole | Part::Layers { .. } => 0,
    };
    pages + parts
}

fn number(number: ClaimNo) -> Result<(), String> {
    if number.0 == 0 || number > ClaimNo::MAX {
        return Err(format!(
            "claim number {} (1 to {})",
            number.0,
            ClaimNo::MAX.0
        ));
    }
    Ok(())
}

fn check_claim(claim: &Claim, bounds: &Bounds) -> Result<(), String> {
    if claim.receivers == 0 || claim.receivers > bounds.receivers {
        return Err(format!(
            "{} receivers (1 to {})",
            claim.receivers, bounds.receivers
        ));
    }
    if claim.rank >= claim.receivers {
        return Err(format!(
            "rank {} of {} receivers",
            claim.rank, claim.receivers
        ));
    }
    if claim.skip > claim.total {
        return Err(format!(
            "skip {} over its total {}",
            claim.skip, claim.total
        ));
    }
    if let Part::Layers { first, end } = claim.part
        && first >= end
    {
        return Err(format!("no layers in {first}..{end}"));
    }
    if let Part::Slices(parts) = &claim.part {
        let (parts, sections) = (parts.len(), claim.sections.len());
        if parts != sections {
            return Err(format!("{parts} parts for {sections} sections"));
        }
    }
    if claim.sections.len() > Claim::MAX_SECTIONS {
        let n = claim.sections.len();
        return Err(format!("{n} sections (at most {})", Claim::MAX_SECTIONS));
    }
    let pages: usize = claim.sections.iter().map(|s| s.pages.len()).sum();
    if pages > bounds.pages_per_claim {
        return Err(format!(
            "{pages} pages (pages_per_claim is {})",
            bounds.pages_per_claim
        ));
    }
    Ok(())
}

fn check_reason(reason: &Reason) -> Result<(), String> {
    if reason.text.len() > Reason::MAX_TEXT {
        return Err(format!(
            "{} bytes of text (at most {})",
            reason.text.len(),
            Reason::MAX_TEXT
        ));
    }
    Ok(())
}

/// The one place for `Coverage::validate()`: a decoded set must be canonical before it is used.
fn check_coverage(coverage: &Coverage) -> Result<(), String> {
    coverage.validate().map_err(|error| error.to_string())
}

/// A content is one that a pool can have, and says of the very cells that the layout names.
fn check_content(content: &CubeLayout, layout: &PoolLayout) -> Result<(), String> {
    content.validate().map_err(|error| error.to_string())?;
    match content.pool_layout() {
        Some(cells) if cells == *layout => Ok(()),
        _ => {
            let name = &layout.name;
            Err(format!(
                "the content of pool {name} does not give its cells"
            ))
        }
    }
}

fn check_layout(layout: &PoolLayout) -> Result<(), String> {
    let name = layout.name.len();
    if name == 0 || name > MAX_NAME {
        return Err(format!("a pool name of {name} bytes (1 to {MAX_NAME})"));
    }
    let tokens = layout.kind == PoolKind::Aux || layout.page_tokens > 0;
    if layout.layers == 0 || layout.pages == 0 || layout.page_bytes == 0 || !tokens {
        return Err(format!(
            "pool {} without layers, pages, bytes or tokens",
            layout.name
        ));
    }
    Ok(())
}
