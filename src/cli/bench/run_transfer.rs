//! `bench transfer`: one request at a time through a room, in turns with the yardsticks.

use super::super::args::TransferArgs;
use super::super::exit::Failure;
use super::super::node::protocol::{Pages, RawAddress, RawServe, Request, Send};
use super::super::pair::{self, POOL, Pair, Pools};
use super::super::proc;
use super::super::raw::Receiver;
use super::ends::Checked;
use super::kernel::Kernel;
use super::memcpy::Yardstick;
use super::one_copy::OneCopy;
use super::report::TransferReport;
use super::workload::Workload;
use kvroom::{Limits, RoomId, WriteLease};
use std::ops::RangeFrom;
use std::time::{Duration, Instant};

/// Of the pattern that is moved.
const SEED: u64 = 0x6b76_726f_6f6d;

/// What each repetition took, in turns.
#[derive(Debug, Default)]
pub(crate) struct Times {
    /// Of the rooms before `raw` and `memcpy`.
    pub(crate) rooms: Vec<Duration>,
    /// Empty but for fabric tcp.
    pub(crate) raw: Vec<Duration>,
    pub(crate) memcpy: Vec<Duration>,
    /// Of each best copy; empty for fabric tcp.
    pub(crate) one_copy: Vec<OneCopyTimes>,
}

/// What one of the best copies took, each with the room before it.
#[derive(Debug)]
pub(crate) struct OneCopyTimes {
    pub(crate) kernel: Kernel,
    pub(crate) rooms: Vec<Duration>,
    pub(crate) copies: Vec<Duration>,
}

impl OneCopyTimes {
    fn of(kernel: Kernel) -> OneCopyTimes {
        OneCopyTimes {
            kernel,
            rooms: Vec::new(),
            copies: Vec::new(),
        }
    }
}

/// Measures the workload.
pub(crate) fn run(args: &TransferArgs, w: &Workload) -> Result<TransferReport, Failure> {
    let ends = Checked::of(&args.ends)?;
    if !ends.data_over_sockets() && args.require_ratio_raw.is_some() {
        let text = "--require-ratio-raw needs --fabric tcp";
        return Err(Failure::Usage(text.to_owned()));
    }
    if ends.data_over_sockets() && args.require_ratio_one_copy.is_some() {
        let text = "--require-ratio-one-copy needs --fabric local or shm";
        return Err(Failure::Usage(text.to_owned()));
    }
    // Two pools of the nodes, two buffers of memcpy, and two of raw TCP or of the best copies.
    proc::require_memory(&format!("workload {w}"), 6 * w.pool_bytes())?;
    let times = pair::block_on(measure(args, &ends, w))?;
    TransferReport::new(args, ends.between, w, &times)
}

async fn measure(args: &TransferArgs, ends: &Checked, w: &Workload) -> Result<Times, Failure> {
    let layout = pair::layout(w.layers, w.pool_pages, w.page_bytes);
    let pools = vec![Pools::alike(layout)];
    let mut pair = Pair::start(ends.setup(pools, limits(w))).await?;
    pair.fill_source(&w.source_slots(), SEED).await?;
    let mut destination = pair.lease_destination(&w.destination_slots())?;
    let mut yardstick = Yardstick::new(w);
    let (mut raw, mut one_copy) = (None, None);
    let mut times = Times::default();
    if ends.data_over_sockets() {
        raw = Some(self::raw(&mut pair, ends, w).await?);
    } else {
        one_copy = Some(OneCopy::new(w, ends.shared(), ends.lanes())?);
        times.one_copy = Kernel::all().iter().map(|&k| OneCopyTimes::of(k)).collect();
    }

    // Repetition 0 warms up and is compared; it starts from destinations with other bytes.
    let mut ids = 0..;
    for rep in 0..=args.reps {
        let time;
        (time, destination) = transfer(&mut pair, ends, w, &mut ids, destination).await?;
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
        // Each has a room before it, so that both find in the caches what the other one left.
        if let Some(one_copy) = &mut one_copy {
            for both in &mut times.one_copy {
                let time;
                (time, destination) = transfer(&mut pair, ends, w, &mut ids, destination).await?;
                let copy = one_copy.run(both.kernel);
                if rep > 0 {
                    both.rooms.push(time);
                    both.copies.push(copy);
                }
            }
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
    ids: &mut RangeFrom<u64>,
    destination: WriteLease,
) -> Result<(Duration, WriteLease), Failure> {
    let id = ids.next().unwrap_or_default();
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
