//! `bench abort`: the receiver aborts in the middle of a large request.

use super::super::args::AbortArgs;
use super::super::exit::Failure;
use super::super::pair::{self, Pair, Setup};
use super::super::proc;
use super::report::{AbortReport, AbortTimes};
use super::workload::{self, Workload};
use kvroom::{Chunk, Limits, Outcome, ReadLease, RoomId, WriteLease};
use std::time::{Duration, Instant};

/// The request: 256 MiB in pages of 16 KiB.
const WORKLOAD: &str = "b_32x512x16K";
const WARM_UPS: u32 = 10;
/// How long the first piece of a request may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Measures the aborts.
pub(crate) fn run(args: &AbortArgs) -> Result<AbortReport, Failure> {
    let w = workload::find(WORKLOAD).map_err(|e| Failure::Failed(e.to_string()))?;
    // Pools no larger than the request: the rest would only take memory.
    let w = Workload {
        pool_pages: w.pages,
        ..w
    };
    proc::require_memory("bench abort", 2 * w.pool_bytes())?;
    let times = pair::block_on(measure(args, &w))?;
    AbortReport::new(args, w.request_bytes(), &times)
}

async fn measure(args: &AbortArgs, w: &Workload) -> Result<Vec<AbortTimes>, Failure> {
    let layout = pair::layout(w.layers, w.pool_pages, w.page_bytes);
    let setup = Setup {
        layout: Some(layout),
        lanes: args.lanes,
        limits: Limits::default(),
    };
    let pair = Pair::start(setup).await?;
    let mut source = pair.lease_source(&w.source_slots())?.into_read();
    let mut destination = pair.lease_destination(&w.destination_slots())?;
    let mut all = Vec::new();
    for rep in 0..WARM_UPS + args.reps {
        let times;
        (times, source, destination) = abort_once(&pair, rep, source, destination).await?;
        if rep >= WARM_UPS {
            all.push(times);
        }
    }
    drop((source, destination));
    pair.shut_down().await?;
    Ok(all)
}

/// Starts a request, waits until some of it has been copied, aborts; gives the leases back.
async fn abort_once(
    pair: &Pair,
    rep: u32,
    source: ReadLease,
    destination: WriteLease,
) -> Result<(AbortTimes, ReadLease, WriteLease), Failure> {
    let id = RoomId(u64::from(rep));
    let tokens = source.pages().len() as u64;
    let before = copied(pair).await;
    let receiver = pair
        .decode
        .receive(id)
        .from(&pair.sender)
        .into(destination)
        .start()
        .await;
    let receiver = receiver.map_err(pair::failed("cannot start a receiver"))?;
    let sender = pair.prefill.send(id).start().await;
    let sender = sender.map_err(pair::failed("cannot start a sender"))?;
    let slot = sender
        .reserve()
        .await
        .map_err(pair::failed("cannot reserve a chunk"))?;
    let chunk = Chunk::tokens(0..tokens).pages(source);
    let pushed = slot
        .push(chunk)
        .map_err(pair::failed("cannot push a chunk"))?;
    sender
        .finish(tokens, None)
        .map_err(pair::failed("cannot finish the request"))?;
    let pushed_at = Instant::now();
    while copied(pair).await == before {
        if pushed_at.elapsed() > PATIENCE {
            return Err(Failure::Failed(format!(
                "nothing was copied within {PATIENCE:?}"
            )));
        }
    }

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
    let source = pushed.released().await.ok_or_else(pair::source_kept)?;
    Ok((
        AbortTimes {
            answer,
            reusable,
            queued_bytes,
        },
        source,
        destination,
    ))
}

async fn copied(pair: &Pair) -> u64 {
    let (prefill, decode) = pair.stats().await;
    prefill.bytes_copied + decode.bytes_copied
}
