//! What takes longer than the keeper may: what a shard knows of rooms, and waiting for one.

use super::Rooms;
use super::keeper::{Ask, Seen};
use super::request::RoleName;
use super::table::{Stage, Which};
use super::view::{Leg, Room};
use crate::daemon::http::Problem;
use axum::http::StatusCode;
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
pub(super) async fn until(
    rooms: &Rooms,
    which: Which,
    seen: Seen,
    stage: Stage,
    within: Duration,
) -> Result<Seen, Problem> {
    let mut stages = seen.stage.clone();
    if *stages.borrow() >= stage {
        return Ok(seen);
    }
    let reached = stages.wait_for(|now| *now >= stage);
    let _ = tokio::time::timeout(within, reached).await;
    // The same room, whatever was started since.
    let exactly = Which {
        attempt: Some(seen.room.attempt),
        role: Some(seen.room.role),
        ..which
    };
    match rooms.look(exactly).await {
        // It was forgotten in the moment after its end.
        Err(problem) if problem.status == 404 => Ok(seen),
        other => other,
    }
}

/// The room that was aborted, with its outcome if that is known at once.
pub(super) async fn outcome(rooms: &Rooms, which: Which, seen: Seen) -> Result<Seen, Problem> {
    until(rooms, which, seen, Stage::Ended, AT_ONCE).await
}

/// Rooms that passed their drain deadline.
pub(super) async fn quarantined(node: &Node) -> Result<Vec<(RoomKey, RoleName)>, Problem> {
    let told = tokio::time::timeout(SHARD, node.rooms())
        .await
        .map_err(|_| {
            let text = format!(
                "a shard has not answered for {SHARD:?}, so it is not known: GET /readyz says more"
            );
            Problem::new(
                StatusCode::REQUEST_TIMEOUT,
                "request-timeout",
                "The request took too long",
                text,
            )
        })?;
    let held = told.into_iter().filter(|info| info.quarantined);
    Ok(held.map(|info| (info.key, info.role.into())).collect())
}

fn legs(info: &RoomInfo) -> Vec<Leg> {
    let all = info.peers.iter().zip(&info.legs);
    all.map(|(peer, state)| Leg {
        peer: peer.clone(),
        state: (*state).to_owned(),
        posted_bytes: None,
        written_bytes: None,
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
