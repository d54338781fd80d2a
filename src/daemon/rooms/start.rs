//! Starting rooms: from a request to a handle, away from the keeper, which never waits.

use super::problems;
use super::request::{
    From, MAX_DEADLINE_MS, MAX_TAG, Pages, StartReceive, StartRoom, StartSend, Urgency,
};
use super::table::Handle;
use crate::daemon::http::Problem;
use crate::daemon::pools::Pools;
use crate::daemon::trace;
use kvroom::{
    Class, LeaseError, Node, Peer, ReceiveBuilder, RoomId, SendBuilder, StartError, WriteLease,
};
use std::sync::Arc;
use std::time::Duration;

/// Why a room was not started.
pub(super) enum Refused {
    /// As it is.
    Problem(Problem),
    /// A page is leased; the keeper may know by which room.
    Leased { pool: String, error: LeaseError },
}

impl std::convert::From<Problem> for Refused {
    fn from(problem: Problem) -> Refused {
        Refused::Problem(problem)
    }
}

type Started = Result<Handle, Refused>;

/// Of rooms whose start met a defect: what had been started of them has ended with it.
pub(super) fn broken() -> Refused {
    let text = "starting the room met a defect of the daemon; its log says more. The room was not started: \
                send it again, and please report it";
    Refused::Problem(Problem::defect(text))
}

/// A tag with which starting a room is a defect.
#[cfg(test)]
const PLANTED: &str = "a planted defect";

/// Starts these rooms, with one wait for all of them. Answers are in their order.
pub(super) async fn start(
    node: Node,
    pools: Pools,
    rooms: Vec<(u64, StartRoom)>,
) -> Vec<(u64, Started)> {
    #[cfg(test)]
    let planted = |(_, room): &(u64, StartRoom)| matches!(room, StartRoom::Send(s) if s.tag.as_deref() == Some(PLANTED));
    #[cfg(test)]
    assert!(!rooms.iter().any(planted), "planted");
    let peers = node.peers().await;
    let (mut over, mut sends, mut receives) = (Vec::new(), Vec::new(), Vec::new());
    for (seq, room) in rooms {
        match room {
            StartRoom::Send(send) => match send_builder(&node, &send) {
                Ok(builder) => sends.push((seq, builder)),
                Err(problem) => over.push((seq, Err(problem.into()))),
            },
            StartRoom::Receive(receive) => match receive_builder(&node, &pools, &peers, &receive) {
                Ok(builder) => receives.push((seq, builder)),
                Err(refused) => over.push((seq, Err(refused))),
            },
        }
    }
    let (seqs, builders): (Vec<u64>, Vec<SendBuilder>) = sends.into_iter().unzip();
    let started = node.start_sends(builders).await;
    let started = started
        .into_iter()
        .map(|room| room.map(|r| Handle::Send(Arc::new(r))));
    over.extend(seqs.into_iter().zip(started.map(told)));
    let (seqs, builders): (Vec<u64>, Vec<ReceiveBuilder>) = receives.into_iter().unzip();
    let started = node.start_receives(builders).await;
    let started = started
        .into_iter()
        .map(|room| room.map(|r| Handle::Receive(Arc::new(r))));
    over.extend(seqs.into_iter().zip(started.map(told)));
    over
}

fn told(room: Result<Handle, StartError>) -> Started {
    room.map_err(|error| Refused::Problem(problems::not_started(&error.kind)))
}

/// What can be seen of a request without the node.
pub(super) fn check(room: &StartRoom) -> Result<(), Problem> {
    let (tag, deadline_ms, traceparent) = match room {
        StartRoom::Receive(r) => (&r.tag, r.deadline_ms, &r.traceparent),
        StartRoom::Send(s) => (&s.tag, s.deadline_ms, &s.traceparent),
    };
    let (attempt, retry_of) = match room {
        StartRoom::Receive(r) => (r.attempt, r.retry_of),
        StartRoom::Send(s) => (s.attempt, s.retry_of),
    };
    if retry_of == Some(attempt) {
        let text =
            format!("retry_of is {attempt}, as attempt is: a new try has an attempt of its own");
        return Err(Problem::unusable(text));
    }
    if let Some(tag) = tag
        && (tag.is_empty() || tag.len() > MAX_TAG)
    {
        let text = format!("tag has {} bytes; it must have 1 to {MAX_TAG}", tag.len());
        return Err(Problem::unusable(text));
    }
    if let Some(ms) = deadline_ms
        && (ms == 0 || ms > MAX_DEADLINE_MS)
    {
        let text = format!("deadline_ms is {ms}; it must be 1 to {MAX_DEADLINE_MS}");
        return Err(Problem::unusable(text));
    }
    match traceparent.as_deref().map(trace::parse) {
        Some(Err(text)) => Err(Problem::unusable(text)),
        _ => Ok(()),
    }
}

fn send_builder(node: &Node, send: &StartSend) -> Result<SendBuilder, Problem> {
    let mut builder = node
        .send(RoomId(send.id.0))
        .attempt(send.attempt)
        .receivers(send.receivers)
        .class(class(send.class));
    if let Some(attempt) = send.retry_of {
        builder = builder.retry_of(attempt);
    }
    if let Some(tag) = &send.tag {
        builder = builder.tag(tag);
    }
    if let Some(ms) = send.deadline_ms {
        builder = builder.deadline(Duration::from_millis(ms));
    }
    Ok(builder)
}

fn receive_builder(
    node: &Node,
    pools: &Pools,
    peers: &[Peer],
    receive: &StartReceive,
) -> Result<ReceiveBuilder, Refused> {
    let mut builder = node
        .receive(RoomId(receive.id.0))
        .attempt(receive.attempt)
        .receivers(receive.receivers)
        .rank(receive.rank)
        .checksum(receive.checksum)
        .skip(receive.skip)
        .class(class(receive.class));
    for from in &receive.from {
        let name = from.peer();
        let peer = peers.iter().find(|peer| peer.name() == name);
        let peer = peer.ok_or_else(|| problems::no_peer(name))?;
        builder = match from {
            From::Whole(_) => builder.from(peer),
            From::Layers(part) => builder.from_layers(peer, part.layers[0]..part.layers[1]),
        };
    }
    for one in &receive.pages {
        builder = builder.into(lease(pools, one)?);
    }
    if let Some(row) = &receive.aux {
        let row = Pages {
            pool: row.pool.clone(),
            pages: vec![row.page],
        };
        builder = builder.aux(lease(pools, &row)?);
    }
    if let Some(total) = receive.total {
        builder = builder.total(total);
    }
    if let Some(attempt) = receive.retry_of {
        builder = builder.retry_of(attempt);
    }
    if let Some(tag) = &receive.tag {
        builder = builder.tag(tag);
    }
    if let Some(ms) = receive.deadline_ms {
        builder = builder.deadline(Duration::from_millis(ms));
    }
    if let Some(Ok((trace_id, span_id))) = receive.traceparent.as_deref().map(trace::parse) {
        builder = builder.trace(trace_id, span_id);
    }
    Ok(builder)
}

fn lease(pools: &Pools, pages: &Pages) -> Result<WriteLease, Refused> {
    let pool = problems::pool(pools, &pages.pool)?;
    pool.lease_write(&pages.pages)
        .map_err(|error| Refused::Leased {
            pool: pages.pool.clone(),
            error,
        })
}

fn class(urgency: Urgency) -> Class {
    match urgency {
        Urgency::Interactive => Class::Interactive,
        Urgency::Bulk => Class::Bulk,
    }
}
