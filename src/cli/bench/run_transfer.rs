//! `bench transfer`: one request at a time through a room, in turns with the yardstick.

use super::super::args::TransferArgs;
use super::super::exit::Failure;
use super::super::pair::{self, Pair, Setup};
use super::super::proc;
use super::memcpy::Yardstick;
use super::report::TransferReport;
use super::workload::Workload;
use kvroom::{Chunk, Limits, ReadLease, RoomId, WriteLease};
use std::time::{Duration, Instant};

/// Measures the workload.
pub(crate) fn run(args: &TransferArgs, w: &Workload) -> Result<TransferReport, Failure> {
    // Two pools of the nodes and two buffers of the yardstick.
    proc::require_memory(&format!("workload {w}"), 4 * w.pool_bytes())?;
    let mut yardstick = Yardstick::new(w);
    let (rooms, plain) = pair::block_on(measure(args, w, &mut yardstick))?;
    TransferReport::new(args, w, &rooms, &plain)
}

async fn measure(
    args: &TransferArgs,
    w: &Workload,
    yardstick: &mut Yardstick,
) -> Result<(Vec<Duration>, Vec<Duration>), Failure> {
    let layout = pair::layout(w.layers, w.pool_pages, w.page_bytes);
    let pair = Pair::start(Setup {
        layout: Some(layout),
        lanes: args.lanes,
        limits: limits(w),
    })
    .await?;
    let mut source = pair.lease_source(&w.source_slots())?;
    pair::stamp(&mut source, 0);
    let mut source = source.into_read();
    let mut destination = pair.lease_destination(&w.destination_slots())?;

    let (mut rooms, mut plain) = (Vec::new(), Vec::new());
    // Repetition 0 warms up and is compared; it starts from a destination with other bytes.
    for rep in 0..=args.reps {
        let time;
        (time, source, destination) = transfer(&pair, rep, source, destination).await?;
        let copy = yardstick.run();
        if rep == 0 {
            if let Some(difference) = pair::first_difference(&source, &destination) {
                return Err(Failure::Failed(format!("bytes were lost: {difference}")));
            }
        } else {
            rooms.push(time);
            plain.push(copy);
        }
    }
    drop((source, destination));
    pair.shut_down().await?;
    Ok((rooms, plain))
}

/// One request, from the receiver's start to its outcome; gives the leases back.
async fn transfer(
    pair: &Pair,
    rep: u32,
    source: ReadLease,
    destination: WriteLease,
) -> Result<(Duration, ReadLease, WriteLease), Failure> {
    let id = RoomId(u64::from(rep));
    let tokens = source.pages().len() as u64;
    let started = Instant::now();
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
    pair::require_done(receiver.outcome().await, "receiver")?;
    let time = started.elapsed();

    pair::require_done(sender.outcome().await, "sender")?;
    let destination = pair::only_lease(receiver.released().await, "receiver")?;
    let source = pushed.released().await.ok_or_else(pair::source_kept)?;
    Ok((time, source, destination))
}

/// A claim may hold all pages of the request, and its message their numbers.
fn limits(w: &Workload) -> Limits {
    let defaults = Limits::default();
    let pages = w.pages as usize;
    Limits {
        pages_per_claim: defaults.pages_per_claim.max(pages),
        frame_bytes: defaults.frame_bytes.max(pages * 8 + (1 << 20)),
        jobs_per_lane: defaults.jobs_per_lane.max(pages * w.layers as usize),
        ..defaults
    }
}
