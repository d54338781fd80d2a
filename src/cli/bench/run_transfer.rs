//! `bench transfer`: one request at a time through a room, in turns with the yardsticks.

use super::super::args::TransferArgs;
use super::super::exit::Failure;
use super::super::node::protocol::{Pages, RawAddress, RawServe, Request, Send};
use super::super::pair::{self, POOL, Pair};
use super::super::proc;
use super::super::raw::Receiver;
use super::ends::Checked;
use super::memcpy::Yardstick;
use super::report::TransferReport;
use super::workload::Workload;
use kvroom::{Limits, RoomId, WriteLease};
use std::time::{Duration, Instant};

/// Of the pattern that is moved.
const SEED: u64 = 0x6b76_726f_6f6d;

/// What each repetition took, in turns.
#[derive(Debug, Default)]
pub(crate) struct Times {
    pub(crate) rooms: Vec<Duration>,
    /// Empty for fabric local.
    pub(crate) raw: Vec<Duration>,
    pub(crate) memcpy: Vec<Duration>,
}

/// Measures the workload.
pub(crate) fn run(args: &TransferArgs, w: &Workload) -> Result<TransferReport, Failure> {
    let ends = Checked::of(&args.ends)?;
    if !ends.over_sockets() && args.require_ratio_raw.is_some() {
        let text = "--require-ratio-raw needs --fabric tcp";
        return Err(Failure::Usage(text.to_owned()));
    }
    // Two pools of the nodes, two buffers of memcpy, and two of raw TCP.
    let pools = if ends.over_sockets() { 6 } else { 4 };
    proc::require_memory(&format!("workload {w}"), pools * w.pool_bytes())?;
    let mut yardstick = Yardstick::new(w);
    let times = pair::block_on(measure(args, &ends, w, &mut yardstick))?;
    TransferReport::new(args, ends.between, w, &times)
}

async fn measure(
    args: &TransferArgs,
    ends: &Checked,
    w: &Workload,
    yardstick: &mut Yardstick,
) -> Result<Times, Failure> {
    let layout = pair::layout(w.layers, w.pool_pages, w.page_bytes);
    let mut pair = Pair::start(ends.setup(Some(layout), limits(w))).await?;
    pair.fill_source(&w.source_slots(), SEED).await?;
    let mut destination = pair.lease_destination(&w.destination_slots())?;
    let raw = if ends.over_sockets() {
        Some(raw(&mut pair, ends, w).await?)
    } else {
        None
    };

    let mut times = Times::default();
    // Repetition 0 warms up and is compared; it starts from destinations with other bytes.
    for rep in 0..=args.reps {
        let time;
        (time, destination) = transfer(&mut pair, ends, w, rep, destination).await?;
        let raw_time = raw.as_ref().map(Receiver::run).transpose()?;
        let copy = yardstick.run();
        if rep == 0 {
            pair::require_pattern(&destination, SEED)?;
            raw.as_ref().map(Receiver::compare).transpose()?;
        } else {
            times.rooms.push(time);
            times.raw.extend(raw_time);
            times.memcpy.push(copy);
        }
    }
    drop((destination, raw));
    pair.shut_down().await?;
    Ok(times)
}

/// One request; gives the lease back. The clock runs from the receiver's start to its outcome.
async fn transfer(
    pair: &mut Pair,
    ends: &Checked,
    w: &Workload,
    rep: u32,
    destination: WriteLease,
) -> Result<(Duration, WriteLease), Failure> {
    let id = u64::from(rep);
    let send = Send {
        pool: Some(POOL.to_owned()),
        pages: Some(Pages::List(w.source_slots())),
        ..Send::empty(id, 1)
    };
    let builder = pair.decode.receive(RoomId(id)).from(&pair.sender);
    let builder = builder.into(destination);
    // A command to another process is no part of a transfer, so the sender is there before. Within
    // one process and fabric it starts within the clock, after the receiver.
    let mut late = Some(send);
    if ends.over_sockets()
        && let Some(send) = late.take()
    {
        pair.send(send).await?;
    }
    let started = Instant::now();
    let receiver = builder.start().await;
    let receiver = receiver.map_err(pair::failed("cannot start a receiver"))?;
    if let Some(send) = late {
        pair.send(send).await?;
    }
    pair::require_done(receiver.outcome().await, "receiver")?;
    let time = started.elapsed();

    let destination = pair::only_lease(receiver.released().await, "receiver")?;
    pair::all_done(&pair.waited(id, 1).await?)?;
    Ok((time, destination))
}

/// Raw TCP between the same processes, ready to run.
async fn raw(pair: &mut Pair, ends: &Checked, w: &Workload) -> Result<Receiver, Failure> {
    let shape = |slots| RawServe {
        layers: w.layers,
        slots,
        page_bytes: w.page_bytes,
        pool_pages: w.pool_pages,
        seed: SEED,
        connections: ends.between.connections.unwrap_or(1),
        congestion: ends.between.congestion.clone(),
    };
    let request = Request::RawServe(shape(w.source_slots()));
    let to: RawAddress = pair.ask(request).await?;
    Receiver::start(shape(w.destination_slots()), to.address)
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
