//! `bench rooms`: whole rooms per second without data, and what an idle one takes of memory.

use super::super::args::RoomsArgs;
use super::super::exit::{Failure, Verdict};
use super::super::output;
use super::super::pair::{self, Pair, Setup};
use super::super::proc;
use super::report::{Idle, RoomsReport};
use super::rss;
use kvroom::{Limits, ReceiveRoom, RoomId, SendRoom, StartError, Which};
use std::env;
use std::ops::Range;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Rooms in one call of the batch API.
const BATCH: u64 = 1_024;
/// More than one idle whole room may take; for refusing before the machine swaps.
const GENEROUS_BYTES_PER_ROOM: u64 = 6_144;
/// How long to wait for idle memory to stop changing.
const PATIENCE: Duration = Duration::from_secs(10);

/// Measures both, or only one idle count.
pub(crate) fn run(args: &RoomsArgs) -> Result<Verdict, Failure> {
    if let Some(rooms) = args.idle_only {
        output::print_json(&pair::block_on(idle_memory(rooms))?)?;
        return Ok(Verdict::Met);
    }
    let idle = args
        .rooms
        .iter()
        .map(|&n| idle_in_a_fresh_process(n))
        .collect::<Result<_, _>>()?;
    let times = pair::block_on(rates(args.rate_rooms, args.reps))?;
    super::finish(
        &RoomsReport::new(args.rate_rooms, &times, idle)?,
        args,
        args.json,
    )
}

/// Memory that an earlier measurement freed would be used again and hide what is needed.
fn idle_in_a_fresh_process(rooms: u64) -> Result<Idle, Failure> {
    let what = format!("measuring {rooms} idle rooms");
    proc::require_memory(&what, rooms.saturating_mul(GENEROUS_BYTES_PER_ROOM))?;
    let program = env::current_exe().map_err(pair::failed("cannot find this program"))?;
    let output = Command::new(program)
        .args([
            "bench",
            "rooms",
            "--json",
            "--idle-only",
            &rooms.to_string(),
        ])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(pair::failed(
            "cannot start a process to measure idle rooms in",
        ))?;
    if !output.status.success() {
        return Err(Failure::Failed(format!(
            "{what}: its process ended with {}",
            output.status
        )));
    }
    serde_json::from_slice(&output.stdout).map_err(pair::failed(&what))
}

async fn idle_memory(rooms: u64) -> Result<Idle, Failure> {
    let pair = pair_for(rooms).await?;
    // One batch has come and gone, so that what is made once is not counted.
    whole_rooms(&pair, 0..BATCH).await?;
    let before = rss::settled(PATIENCE)?;
    let mut held = Vec::new();
    for ids in batches(BATCH..BATCH + rooms) {
        held.push(start(&pair, ids).await?);
    }
    let idle = rss::settled(PATIENCE)?;
    pair.decode.abort_where(Which::All, "measured").await;
    pair.prefill.abort_where(Which::All, "measured").await;
    for (receivers, senders) in held {
        for room in receivers {
            room.outcome().await;
            drop(room.released().await);
        }
        for room in senders {
            room.outcome().await;
            drop(room.released().await);
        }
    }
    let after = rss::settled(PATIENCE)?;
    pair.shut_down().await?;
    Ok(Idle::new(rooms, before, idle, after))
}

async fn rates(rooms: u64, reps: u32) -> Result<Vec<Duration>, Failure> {
    let pair = pair_for(rooms).await?;
    let mut times = Vec::new();
    for rep in 0..=u64::from(reps) {
        let started = Instant::now();
        whole_rooms(&pair, rep * rooms..(rep + 1) * rooms).await?;
        // The first one warms up.
        if rep > 0 {
            times.push(started.elapsed());
        }
    }
    pair.shut_down().await?;
    Ok(times)
}

/// Takes rooms from start to both outcomes. The next batch is started before the last one is
/// waited for, so that the shards always have something to do.
async fn whole_rooms(pair: &Pair, ids: Range<u64>) -> Result<(), Failure> {
    let mut last = None;
    for ids in batches(ids) {
        let batch = start(pair, ids).await?;
        for room in &batch.1 {
            room.finish(0, None)
                .map_err(pair::failed("cannot finish a room"))?;
        }
        if let Some(before) = last.replace(batch) {
            wait(before).await?;
        }
    }
    match last {
        Some(batch) => wait(batch).await,
        None => Ok(()),
    }
}

type Batch = (Vec<ReceiveRoom>, Vec<SendRoom>);

async fn start(pair: &Pair, ids: Range<u64>) -> Result<Batch, Failure> {
    let receives = ids
        .clone()
        .map(|id| pair.decode.receive(RoomId(id)).from(&pair.sender).total(0));
    let receivers = all(pair.decode.start_receives(receives.collect()).await)?;
    let sends = ids.map(|id| pair.prefill.send(RoomId(id)));
    let senders = all(pair.prefill.start_sends(sends.collect()).await)?;
    Ok((receivers, senders))
}

/// Backwards: the last room of a batch is done last, so the driver sleeps once and not at every room.
async fn wait((receivers, senders): Batch) -> Result<(), Failure> {
    for room in receivers.into_iter().rev() {
        pair::require_done(room.outcome().await, "receiver")?;
    }
    for room in senders.into_iter().rev() {
        pair::require_done(room.outcome().await, "sender")?;
    }
    Ok(())
}

fn all<R>(rooms: Vec<Result<R, StartError>>) -> Result<Vec<R>, Failure> {
    let mut started = Vec::with_capacity(rooms.len());
    for room in rooms {
        started.push(room.map_err(pair::failed("cannot start a room"))?);
    }
    Ok(started)
}

fn batches(ids: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let end = ids.end;
    ids.step_by(BATCH as usize)
        .map(move |first| first..(first + BATCH).min(end))
}

/// A pair that holds `rooms` rooms at once on each side, and two batches more.
async fn pair_for(rooms: u64) -> Result<Pair, Failure> {
    Pair::start(Setup {
        layout: None,
        lanes: 1,
        limits: limits(rooms + 2 * BATCH),
    })
    .await
}

fn limits(rooms: u64) -> Limits {
    let defaults = Limits::default();
    let rooms = rooms as usize;
    Limits {
        rooms: defaults.rooms.max(rooms),
        gates: defaults.gates.max(rooms),
        early_claims_per_peer: defaults.early_claims_per_peer.max(rooms),
        claims_per_peer: defaults
            .claims_per_peer
            .max(u32::try_from(rooms).unwrap_or(u32::MAX)),
        frames_unacknowledged: defaults.frames_unacknowledged.max(4 * rooms),
        ..defaults
    }
}
