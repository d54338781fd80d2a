//! `bench latency`: one small room after the other, from the receiver's start to its end.

use super::super::args::LatencyArgs;
use super::super::exit::Failure;
use super::super::node::protocol::{Pages, Send, Urgency};
use super::super::pair::{self, POOL, Pair};
use super::ends::Checked;
use super::report::{LatencyReport, LatencyTimes};
use kvroom::{Class, Limits, RoomId, WriteLease};
use std::time::Instant;

pub(crate) const PAGE_BYTES: u64 = 16 << 10;
const WARM_UPS: u32 = 200;
/// Senders that are started by one command.
const BATCH: u32 = 100;
const SEED: u64 = 5;
/// How long shards stay awake, if it is not said.
const SPIN_US: u32 = 100;

/// Measures the rooms.
pub(crate) fn run(args: &LatencyArgs) -> Result<LatencyReport, Failure> {
    let mut ends = args.ends.clone();
    ends.net.spin_us.get_or_insert(SPIN_US);
    let ends = Checked::of(&ends)?;
    let times = pair::block_on(measure(args, &ends))?;
    LatencyReport::new(args, ends.between, &times)
}

async fn measure(args: &LatencyArgs, ends: &Checked) -> Result<Vec<LatencyTimes>, Failure> {
    let layout = pair::layout(1, 2, PAGE_BYTES);
    let mut pair = Pair::start(ends.setup(Some(layout), Limits::default())).await?;
    pair.fill_source(&[1], SEED).await?;
    let mut destination = pair.lease_destination(&[0])?;
    let all = WARM_UPS + args.reps;
    let mut times = Vec::with_capacity(all as usize);
    for first in (0..all).step_by(BATCH as usize) {
        let count = BATCH.min(all - first);
        let send = Send {
            class: Urgency::Interactive,
            pool: Some(POOL.to_owned()),
            pages: Some(Pages::List(vec![1])),
            ..Send::empty(u64::from(first), u64::from(count))
        };
        pair.send(send).await?;
        for rep in first..first + count {
            let one;
            (one, destination) = small_room(&pair, rep, destination).await?;
            times.push(one);
            if rep == 0 {
                pair::require_pattern(&destination, SEED)?;
            }
        }
        let waited = pair.waited(u64::from(first), u64::from(count)).await?;
        pair::all_done(&waited)?;
    }
    drop(destination);
    pair.shut_down().await?;
    times.drain(..WARM_UPS as usize);
    Ok(times)
}

async fn small_room(
    pair: &Pair,
    rep: u32,
    destination: WriteLease,
) -> Result<(LatencyTimes, WriteLease), Failure> {
    let builder = pair
        .decode
        .receive(RoomId(u64::from(rep)))
        .from(&pair.sender)
        .class(Class::Interactive)
        .into(destination);
    let started = Instant::now();
    let receiver = builder.start().await;
    let receiver = receiver.map_err(pair::failed("cannot start a receiver"))?;
    let outcome = receiver.outcome().await;
    let done = started.elapsed();
    let released = receiver.released().await;
    let all = started.elapsed();
    pair::require_done(outcome, "receiver")?;
    let destination = pair::only_lease(released, "receiver")?;
    let times = LatencyTimes {
        done,
        released: all,
    };
    Ok((times, destination))
}
