//! `bench rooms`: whole rooms per second without data, and what an idle one takes of memory.

use super::super::args::RoomsArgs;
use super::super::exit::{Failure, Verdict};
use super::super::node::protocol::{Request, Send, Wait, Waited};
use super::super::output;
use super::super::pair::{self, Link, Pair, Setup};
use super::super::proc;
use super::ends;
use super::quiet;
use super::report::{Idle, RoomsReport};
use super::rss;
use kvroom::{Limits, Node, ReceiveRoom, RoomId, SendRoom, StartError, Which};
use std::env;
use std::ops::Range;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Rooms in one call of the batch API.
pub(super) const BATCH: u64 = 1_024;
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
    if let Some(rooms) = args.idle_cpu {
        return super::finish(&quiet::idle_cpu(args, rooms)?, args, args.json);
    }
    if let Some(rooms) = args.soak {
        return super::finish(&quiet::soak(args, rooms)?, args, args.json);
    }
    let setup = ends::of_rooms(args, limits(args.rate_rooms + 2 * BATCH))?;
    let link = setup.link;
    let mut idle = Vec::new();
    if link == Link::Local {
        for &rooms in &args.rooms {
            idle.push(idle_in_a_fresh_process(rooms)?);
        }
    } else if args.require_bytes.is_some() {
        let text = "--require-bytes is for rooms within one process and without --transport";
        return Err(Failure::Usage(text.to_owned()));
    }
    let times = pair::block_on(rates(args, setup))?;
    super::finish(
        &RoomsReport::new(args.processes, link, args.rate_rooms, &times, idle)?,
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
    let mut pair = pair_for(rooms).await?;
    // One batch has come and gone, so that what is made once is not counted.
    whole_rooms(&pair, 0..BATCH).await?;
    let before = rss::settled(PATIENCE)?;
    let waiting = start_idle(&mut pair, BATCH..BATCH + rooms).await?;
    let idle = rss::settled(PATIENCE)?;
    abort_idle(&mut pair, waiting, rooms).await?;
    let after = rss::settled(PATIENCE)?;
    pair.shut_down().await?;
    Ok(Idle::new(rooms, before, idle, after))
}

async fn rates(args: &RoomsArgs, setup: Setup) -> Result<Vec<Duration>, Failure> {
    let rooms = args.rate_rooms;
    let mut pair = Pair::start(setup).await?;
    let mut times = Vec::new();
    for rep in 0..=u64::from(args.reps) {
        let ids = rep * rooms..(rep + 1) * rooms;
        let started = Instant::now();
        lives(&mut pair, ids).await?;
        // The first one warms up.
        if rep > 0 {
            times.push(started.elapsed());
        }
    }
    pair.shut_down().await?;
    Ok(times)
}

/// Takes rooms from start to both outcomes, wherever the prefill node is.
pub(super) async fn lives(pair: &mut Pair, ids: Range<u64>) -> Result<(), Failure> {
    if pair.other_process().is_some() {
        whole_rooms_apart(pair, ids).await
    } else {
        whole_rooms(pair, ids).await
    }
}

/// Rooms that wait: their senders have started and not finished.
pub(super) struct Waiting {
    receivers: Vec<ReceiveRoom>,
    senders: Vec<SendRoom>,
    /// In another process.
    first: u64,
}

/// Starts rooms that wait, on both nodes.
pub(super) async fn start_idle(pair: &mut Pair, ids: Range<u64>) -> Result<Waiting, Failure> {
    let mut waiting = Waiting {
        receivers: Vec::new(),
        senders: Vec::new(),
        first: ids.start,
    };
    for ids in batches(ids) {
        if pair.other_process().is_some() {
            let send = Send {
                finish: false,
                ..Send::empty(ids.start, ids.end - ids.start)
            };
            pair.send(send).await?;
            waiting.receivers.extend(receivers(pair, ids).await?);
        } else {
            let (receivers, senders) = start(pair, ids).await?;
            waiting.receivers.extend(receivers);
            waiting.senders.extend(senders);
        }
    }
    Ok(waiting)
}

/// Aborts rooms that wait and waits until nothing of them is left; there are `count` of them.
pub(super) async fn abort_idle(
    pair: &mut Pair,
    waiting: Waiting,
    count: u64,
) -> Result<(), Failure> {
    pair.decode.abort_where(Which::All, "measured").await;
    if let Some(prefill) = pair.prefill() {
        prefill.abort_where(Which::All, "measured").await;
    }
    for room in waiting.receivers {
        room.outcome().await;
        drop(room.released().await);
    }
    if pair.other_process().is_some() {
        pair.waited(waiting.first, count).await?;
    }
    for room in waiting.senders {
        room.outcome().await;
        drop(room.released().await);
    }
    Ok(())
}

/// As [`whole_rooms`], with the senders in another process: a command starts a batch of them before
/// its receivers start here, and another one waits for them beside the receivers.
async fn whole_rooms_apart(pair: &mut Pair, ids: Range<u64>) -> Result<(), Failure> {
    let mut last = None;
    let mut pending = Vec::new();
    let mut batches = batches(ids).peekable();
    let mut told = match batches.peek() {
        Some(first) => Some(tell(pair, first)?),
        None => None,
    };
    while let Some(batch) = batches.next() {
        let mine = told.take();
        if let Some(next) = batches.peek() {
            told = Some(tell(pair, next)?);
        }
        let receivers = receivers(pair, batch.clone()).await?;
        if let Some(mine) = mine {
            pair.sent(mine).await?;
        }
        let wait = Wait::sends(batch.start, batch.end - batch.start);
        pending.push(pair.tell(Request::Wait(wait))?);
        if let Some(before) = last.replace(receivers) {
            wait_receivers(before).await?;
        }
    }
    if let Some(receivers) = last {
        wait_receivers(receivers).await?;
    }
    for one in pending {
        let waited: Waited = pair.answer(one).await?;
        pair::all_done(&pair::all_over(waited)?)?;
    }
    Ok(())
}

fn tell(pair: &mut Pair, ids: &Range<u64>) -> Result<pair::Later, Failure> {
    let send = Send::empty(ids.start, ids.end - ids.start);
    pair.tell(Request::Send(send))
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
    let receivers = receivers(pair, ids.clone()).await?;
    let prefill = prefill(pair)?;
    let sends = ids.map(|id| prefill.send(RoomId(id)));
    let senders = all(prefill.start_sends(sends.collect()).await)?;
    Ok((receivers, senders))
}

async fn receivers(pair: &Pair, ids: Range<u64>) -> Result<Vec<ReceiveRoom>, Failure> {
    let receives = ids.map(|id| pair.decode.receive(RoomId(id)).from(&pair.sender).total(0));
    all(pair.decode.start_receives(receives.collect()).await)
}

/// Backwards: the last room of a batch is done last, so the driver sleeps once and not at every room.
async fn wait((receivers, senders): Batch) -> Result<(), Failure> {
    wait_receivers(receivers).await?;
    for room in senders.into_iter().rev() {
        pair::require_done(room.outcome().await, "sender")?;
    }
    Ok(())
}

async fn wait_receivers(receivers: Vec<ReceiveRoom>) -> Result<(), Failure> {
    for room in receivers.into_iter().rev() {
        pair::require_done(room.outcome().await, "receiver")?;
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

/// A pair of this process that holds `rooms` rooms at once on each side, and two batches more.
async fn pair_for(rooms: u64) -> Result<Pair, Failure> {
    Pair::start(Setup::local(None, limits(rooms + 2 * BATCH))).await
}

fn prefill(pair: &Pair) -> Result<&Node, Failure> {
    let elsewhere = || Failure::Failed("the prefill node is in another process".to_owned());
    pair.prefill().ok_or_else(elsewhere)
}

pub(super) fn limits(rooms: u64) -> Limits {
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
