//! What takes longer than the keeper may: what a shard knows of rooms, and waiting for one.

use super::Rooms;
use super::keeper::{Ask, Seen};
use super::request::RoleName;
use super::table::{Stage, Which};
use super::view::{Leg, Room};
use crate::daemon::http::{Problem, QUESTION, answered};
use kvroom::{Node, Role, RoomId, RoomInfo, RoomKey};
use std::collections::HashMap;
use std::time::Duration;

/// How long a shard may take to tell about its rooms, before they are shown without.
const SHARD: Duration = Duration::from_secs(1);
/// How long the end of a room is waited for that was just aborted.
const AT_ONCE: Duration = Duration::from_secs(1);

/// Adds what only the shards know to rooms whose memory is not back.
pub(super) async fn complete(rooms: &Rooms, node: &Node, shown: &mut [Room]) {
    let keys: Vec<(RoomKey, Role)> = shown
        .iter()
        .filter(|room| !room.released)
        .map(|room| (RoomKey::new(room.id.0, room.attempt), role(room.role)))
        .collect();
    if keys.is_empty() {
        return;
    }
    let told = tokio::time::timeout(SHARD, node.rooms_of(&keys)).await;
    let silent = told.is_err();
    let told = told.unwrap_or_default().into_iter();
    let mut told: HashMap<(RoomKey, RoleName), RoomInfo> = told
        .map(|info| ((info.key, info.role.into()), info))
        .collect();
    let mut met = Vec::new();
    for room in shown.iter_mut().filter(|room| !room.released) {
        let key = RoomKey::new(room.id.0, room.attempt);
        match told.remove(&(key, room.role)) {
            Some(info) => {
                room.legs = legs(&info);
                room.quarantined = info.quarantined;
                room.held_because = info.held_because;
                if room.traceparent.is_none() {
                    // A claim came with it.
                    room.traceparent = info.trace.as_ref().map(crate::daemon::trace::show);
                }
                if room.role == RoleName::Send && room.peers != info.peers && !info.peers.is_empty()
                {
                    room.peers.clone_from(&info.peers);
                    met.push((key, room.role, info.peers));
                }
            }
            None if silent => {
                let text =
                    format!("its shard has not answered for {SHARD:?}: GET /readyz says more");
                room.held_because = Some(text);
            }
            None => {}
        }
    }
    if !met.is_empty() {
        let _ = rooms.asks.send(Ask::Met(met)).await;
    }
}

/// The room as it is when it has come so far, or when the time is over.
///
/// # Errors
/// `no-such-room`, if it has been forgotten in the moment after its end.
pub(super) async fn until(
    rooms: &Rooms,
    which: Which,
    seen: Seen,
    stage: Stage,
    within: Duration,
) -> Result<Seen, Problem> {
    if has_reached(&seen.room, stage) {
        return Ok(seen);
    }
    let mut stages = seen.stage.clone();
    let reached = stages.wait_for(|now| *now >= stage);
    let _ = tokio::time::timeout(within, reached).await;
    // The same room, whatever was started since.
    let exactly = Which {
        attempt: Some(seen.room.attempt),
        role: Some(seen.room.role),
        ..which
    };
    rooms.look(exactly).await
}

/// Whether what is shown of the room says so: its stage now may be of a later moment.
fn has_reached(room: &Room, stage: Stage) -> bool {
    match stage {
        Stage::Alive => true,
        Stage::Ended => room.outcome.is_some(),
        Stage::Released => room.released,
    }
}

/// The room that was aborted, with its outcome if that is known at once.
pub(super) async fn outcome(rooms: &Rooms, which: Which, seen: Seen) -> Result<Seen, Problem> {
    match until(rooms, which, seen.clone(), Stage::Ended, AT_ONCE).await {
        // It is over and forgotten: it was told to end all the same.
        Err(problem) if problem.status == 404 => Ok(seen),
        other => other,
    }
}

/// Tells the keeper the peers of all rooms that send, which only the shards know: then it can look for one.
///
/// # Errors
/// `not-answering`, if a shard does not: a list without its rooms would say that nothing hangs on the peer.
pub(super) async fn meet(rooms: &Rooms, node: &Node) -> Result<(), Problem> {
    let told = answered(node, QUESTION, node.rooms()).await?;
    let sending = told.into_iter();
    let sending = sending.filter(|info| info.role == Role::Sender && !info.peers.is_empty());
    let met: Vec<_> = sending
        .map(|info| (info.key, RoleName::Send, info.peers))
        .collect();
    if !met.is_empty() {
        // The keeper has it before the question that follows.
        let sent = rooms.asks.send(Ask::Met(met)).await;
        sent.map_err(|_| Problem::stopping())?;
    }
    Ok(())
}

/// Rooms that passed their drain deadline.
pub(super) async fn quarantined(node: &Node) -> Result<Vec<(RoomKey, RoleName)>, Problem> {
    let told = answered(node, QUESTION, node.rooms()).await?;
    let held = told.into_iter().filter(|info| info.quarantined);
    Ok(held.map(|info| (info.key, info.role.into())).collect())
}

fn legs(info: &RoomInfo) -> Vec<Leg> {
    let all = info.peers.iter().zip(&info.legs).zip(&info.moved);
    all.map(|((peer, state), moved)| Leg {
        peer: peer.clone(),
        state: (*state).to_owned(),
        posted_bytes: moved.posted,
        written_bytes: moved.written,
    })
    .collect()
}

fn role(name: RoleName) -> Role {
    match name {
        RoleName::Receive => Role::Receiver,
        RoleName::Send => Role::Sender,
    }
}

/// A key of a room.
pub(super) fn which(id: u64, attempt: Option<u32>, role: Option<RoleName>) -> Which {
    let RoomId(id) = RoomId(id);
    Which { id, attempt, role }
}

#[cfg(test)]
mod tests {
    use super::super::view::{Chunks, End, RoomState};
    use super::*;
    use crate::daemon::http::Id;
    use tokio::sync::{mpsc, watch};

    fn room(released: bool) -> Room {
        Room {
            id: Id(7),
            attempt: 0,
            retry_of: None,
            role: RoleName::Send,
            state: RoomState::Draining,
            outcome: released.then_some(End::Done {}),
            released,
            proofs: Vec::new(),
            landed: None,
            peers: Vec::new(),
            legs: Vec::new(),
            tag: None,
            pages: 0,
            pool_pages: Vec::new(),
            age_ms: 0,
            quarantined: false,
            held_because: None,
            chunks: Some(Chunks::default()),
            traceparent: None,
            status_slot: None,
        }
    }

    /// Rooms whose keeper answers every look with this, and how often it was asked.
    async fn played(answer: Result<Seen, Problem>) -> (Rooms, tokio::task::JoinHandle<u32>) {
        let node = Node::builder("waits").shards(1).lanes(1).start();
        let (asks, mut queue) = mpsc::channel(4);
        let keeper = tokio::spawn(async move {
            let mut asked = 0;
            while let Some(ask) = queue.recv().await {
                if let Ask::Look(_, reply) = ask {
                    asked += 1;
                    let _ = reply.send(answer.clone());
                }
            }
            asked
        });
        let node = node.await.unwrap();
        (Rooms { asks, node }, keeper)
    }

    #[tokio::test]
    async fn a_room_that_came_to_its_end_after_it_was_shown_is_shown_again() {
        let (_stage, stage) = watch::channel(Stage::Released);
        let seen = |released| Seen {
            room: room(released),
            stage: stage.clone(),
        };
        let (rooms, keeper) = played(Ok(seen(true))).await;
        let asked = which(7, None, None);
        for stage in [Stage::Ended, Stage::Released] {
            let found = until(&rooms, asked, seen(false), stage, Duration::from_secs(30)).await;
            assert!(found.ok().unwrap().room.released);
        }
        // One that is there already is not.
        let found = until(&rooms, asked, seen(true), Stage::Released, Duration::ZERO).await;
        assert!(found.ok().unwrap().room.released);
        drop(rooms);
        assert_eq!(keeper.await.unwrap(), 2);
    }

    #[tokio::test]
    async fn a_room_that_is_forgotten_as_it_ends_is_not_shown_as_it_was_before() {
        let (_stage, stage) = watch::channel(Stage::Released);
        let seen = Seen {
            room: room(false),
            stage,
        };
        let gone = Problem::not_found("no-such-room", "There is no such room", "");
        let (rooms, _keeper) = played(Err(gone)).await;
        let asked = which(7, None, None);
        let end = until(&rooms, asked, seen.clone(), Stage::Released, Duration::ZERO).await;
        assert_eq!(end.err().unwrap().status, 404);
        // Who wanted it to end has what was wanted.
        assert!(outcome(&rooms, asked, seen).await.is_ok());
    }
}
