//! `bench abort`: the receiver aborts in the middle of a large request.

use super::super::args::AbortArgs;
use super::super::exit::Failure;
use super::super::node::protocol::{Pages, Send};
use super::super::pair::{self, POOL, Pair, Pools};
use super::super::proc;
use super::ends::Checked;
use super::report::{AbortReport, AbortTimes};
use super::workload::{self, Workload};
use kvroom::{Limits, Outcome, RoomId, WriteLease};
use std::thread;
use std::time::{Duration, Instant};

/// The request: 256 MiB in pages of 16 KiB.
const WORKLOAD: &str = "b_32x512x16K";
const WARM_UPS: u32 = 10;
/// Those of them whose memory is used again at once and watched.
const WATCHED: u32 = 3;
/// For how long.
const WATCH: Duration = Duration::from_millis(50);
/// What it is filled with.
const CANARY: u8 = 0xc5;
/// How long the first piece of a request may take.
const PATIENCE: Duration = Duration::from_secs(10);
const SEED: u64 = 3;
/// What the first word of the request is set to before each repetition; the pattern has others.
const MARK: [u8; 8] = [0xee; 8];

/// Measures the aborts.
pub(crate) fn run(args: &AbortArgs) -> Result<AbortReport, Failure> {
    let ends = Checked::of(&args.ends)?;
    let w = workload::find(WORKLOAD).map_err(|e| Failure::Failed(e.to_string()))?;
    // Pools no larger than the request: the rest would only take memory.
    let w = Workload {
        pool_pages: w.pages,
        ..w
    };
    proc::require_memory("bench abort", 2 * w.pool_bytes())?;
    let times = pair::block_on(measure(args, &ends, &w))?;
    let watched = u64::from(WATCHED) * u64::from(w.layers) * u64::from(w.pages);
    AbortReport::new(args, ends.between, w.request_bytes(), watched, &times)
}

async fn measure(
    args: &AbortArgs,
    ends: &Checked,
    w: &Workload,
) -> Result<Vec<AbortTimes>, Failure> {
    let layout = pair::layout(w.layers, w.pool_pages, w.page_bytes);
    let pools = vec![Pools::alike(layout)];
    let mut pair = Pair::start(ends.setup(pools, Limits::default())).await?;
    pair.fill_source(&w.source_slots(), SEED).await?;
    let mut destination = pair.lease_destination(&w.destination_slots())?;
    let mut all = Vec::new();
    for rep in 0..WARM_UPS + args.reps {
        let times;
        (times, destination) = abort_once(&mut pair, w, rep, destination).await?;
        if rep < WATCHED {
            watch(&mut pair, w, rep, &mut destination).await?;
        }
        if rep >= WARM_UPS {
            all.push(times);
        }
    }
    drop(destination);
    pair.shut_down().await?;
    Ok(all)
}

/// Starts a request, waits until some of it has landed, aborts; gives the lease back.
async fn abort_once(
    pair: &mut Pair,
    w: &Workload,
    rep: u32,
    mut destination: WriteLease,
) -> Result<(AbortTimes, WriteLease), Failure> {
    let id = u64::from(rep);
    destination.page_mut(0, 0)[..MARK.len()].copy_from_slice(&MARK);
    let send = Send {
        pool: Some(POOL.to_owned()),
        pages: Some(Pages::List(w.source_slots())),
        ..Send::empty(id, 1)
    };
    pair.send(send).await?;
    let receiver = pair.decode.receive(RoomId(id)).from(&pair.sender);
    let receiver = receiver.into(destination).start().await;
    let receiver = receiver.map_err(pair::failed("cannot start a receiver"))?;
    until_something_landed(pair, w)?;

    let aborted_at = Instant::now();
    receiver.abort("measured");
    let outcome = receiver.outcome().await;
    let answer = aborted_at.elapsed();
    let released = receiver.released().await;
    let reusable = aborted_at.elapsed();

    if matches!(outcome, Outcome::Done) {
        return Err(Failure::Failed(
            "a request was done before it could be aborted".to_owned(),
        ));
    }
    let queued_bytes = released.landed.wanted.saturating_sub(released.landed.bytes);
    let destination = pair::only_lease(released, "receiver")?;
    // The source's pages have to be free before the next request takes them.
    pair.waited(id, 1).await?;
    let times = AbortTimes {
        answer,
        reusable,
        queued_bytes,
    };
    Ok((times, destination))
}

/// Uses the memory of both sides for something else and fails if a byte of the receiver's changes.
async fn watch(
    pair: &mut Pair,
    w: &Workload,
    rep: u32,
    destination: &mut WriteLease,
) -> Result<(), Failure> {
    let pages = w.pages as usize;
    for layer in 0..w.layers {
        for i in 0..pages {
            destination.page_mut(layer, i).fill(CANARY);
        }
    }
    let seed = SEED + 1 + u64::from(rep);
    pair.fill_source(&w.source_slots(), seed).await?;
    tokio::time::sleep(WATCH).await;
    let canary = vec![CANARY; w.page_bytes as usize];
    let cells = (0..w.layers).flat_map(|layer| (0..pages).map(move |i| (layer, i)));
    let late = cells.filter(|&(layer, i)| destination.page(layer, i) != canary);
    match late.count() {
        0 => Ok(()),
        late => Err(Failure::Failed(format!(
            "{late} pages changed after their lease had come back from an abort"
        ))),
    }
}

/// Looks at the request's first bytes until they change: that asks nothing of either node.
fn until_something_landed(pair: &Pair, w: &Workload) -> Result<(), Failure> {
    let pool = pair.destination(POOL)?;
    let first = w.destination_slots().first().copied().unwrap_or_default();
    let started = Instant::now();
    let mut word = MARK;
    while word == MARK {
        if started.elapsed() > PATIENCE {
            return Err(Failure::Failed(format!(
                "nothing had landed within {PATIENCE:?}"
            )));
        }
        thread::yield_now();
        pool.observe(0, first, &mut word)
            .map_err(pair::failed("cannot look at a destination page"))?;
    }
    Ok(())
}
