//! `bench latency`: one small room after the other, from the receiver's start to its end, alone and
//! beside a bulk room.
//!
//! ```text
//!   alone   ▪▪▪▪▪        ▪▪▪▪▪        …   a tenth of the rooms at a time
//!   beside       ▪▪▪▪▪        ▪▪▪▪▪   …   only those that a bulk room was under way with all along
//!   bulk         ██████       ██████
//! ```

use super::super::args::{Fabric, LatencyArgs};
use super::super::exit::Failure;
use super::super::node::protocol::{Pages, Send, Urgency};
use super::super::pair::{self, POOL, Pair, Pools};
use super::super::proc;
use super::busy::{self, Bulk};
use super::ends::Checked;
use super::report::{BusyTimes, LatencyReport, LatencyTimes};
use kvroom::{Class, Limits, ReceiveRoom, RoomId, WriteLease};
use std::time::Instant;

pub(crate) const PAGE_BYTES: u64 = 16 << 10;
const WARM_UPS: u32 = 200;
/// Senders that are started by one command.
const BATCH: u32 = 100;
const SEED: u64 = 5;
/// How long shards stay awake over sockets, if it is not said.
const SPIN_US: u32 = 100;
/// Turns of alone and beside.
const TURNS: u32 = 10;
/// Bulk rooms beside which not even one small room fitted, after which it is given up.
const PATIENCE: u32 = 100;

/// Measures the rooms.
pub(crate) fn run(args: &LatencyArgs) -> Result<LatencyReport, Failure> {
    let mut ends = args.ends.clone();
    if ends.fabric != Fabric::Shm {
        ends.net.spin_us.get_or_insert(SPIN_US);
    }
    let ends = Checked::of(&ends)?;
    if let Some(asked) = args.busy_bytes {
        proc::require_memory("bench latency --busy-bytes", busy::bytes(asked).1)?;
    }
    let (alone, beside) = measure(args, &ends)?;
    LatencyReport::new(args, ends.between, &alone, beside.as_ref())
}

type Measured = (Vec<LatencyTimes>, Option<BusyTimes>);

fn measure(args: &LatencyArgs, ends: &Checked) -> Result<Measured, Failure> {
    let mut pools = vec![Pools::alike(pair::layout(1, 2, PAGE_BYTES))];
    let mut limits = Limits::default();
    if let Some(asked) = args.busy_bytes {
        pools.push(busy::pools(asked));
        limits = busy::limits(asked);
    }
    let how = match (args.wait, ends.between.drive) {
        (true, _) => How::Wait,
        (false, true) => How::Drive,
        (false, false) => How::Look,
    };
    Pair::run(ends.setup(pools, limits), |pair| rooms(args, how, pair))
}

async fn rooms(args: &LatencyArgs, how: How, mut pair: Pair) -> Result<Measured, Failure> {
    pair.fill_source(&[1], SEED).await?;
    let mut small = Small {
        destination: Some(pair.lease_destination(&[0])?),
        how,
        next: 0,
    };
    small.rooms(&mut pair, WARM_UPS, None).await?;
    let mut alone = Vec::with_capacity(args.reps as usize);
    let mut beside = None;
    match args.busy_bytes {
        None => alone = small.rooms(&mut pair, args.reps, None).await?,
        Some(asked) => {
            let mut bulk = Bulk::new(&mut pair, asked).await?;
            let mut times = Vec::with_capacity(args.reps as usize);
            let turns = TURNS.min(args.reps);
            for turn in 0..turns {
                let count = args.reps * (turn + 1) / turns - args.reps * turn / turns;
                alone.extend(small.rooms(&mut pair, count, None).await?);
                times.extend(small.rooms(&mut pair, count, Some(&mut bulk)).await?);
                bulk.finish(&mut pair).await?;
            }
            beside = Some(BusyTimes {
                bytes: busy::bytes(asked).0,
                rooms: times,
                bulk: bulk.times().to_vec(),
            });
        }
    }
    drop(small);
    pair.shut_down().await?;
    Ok((alone, beside))
}

/// The small rooms.
struct Small {
    destination: Option<WriteLease>,
    how: How,
    next: u64,
}

/// How the receiver hears of its room's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// As a task does.
    Wait,
    /// It looks in a loop.
    Look,
    /// The same, and drives its shard in between.
    Drive,
}

impl How {
    /// Starts something, in this way.
    pub(crate) async fn start<T>(self, future: impl Future<Output = T>) -> T {
        match self {
            How::Look => pair::look_at(future).await,
            How::Wait | How::Drive => future.await,
        }
    }

    /// Between two looks.
    pub(crate) async fn turn(self) {
        match self {
            // The driver has a turn.
            How::Drive => pair::turn().await,
            How::Wait | How::Look => std::thread::yield_now(),
        }
    }

    /// Looks at a room until it is so, unless it is waited for. A driver that looks without a break is
    /// told by a store when the room has ended: there is no need to ask each time.
    fn look_until(self, room: &ReceiveRoom, is: impl Fn(&kvroom::Status) -> bool) {
        while self == How::Look && !is(&room.poll()) {
            std::thread::yield_now();
        }
    }
}

impl Small {
    /// So many of them; with a bulk room, so many that it was under way with from start to end.
    async fn rooms(
        &mut self,
        pair: &mut Pair,
        count: u32,
        mut bulk: Option<&mut Bulk>,
    ) -> Result<Vec<LatencyTimes>, Failure> {
        let mut times = Vec::with_capacity(count as usize);
        let mut in_vain = 0;
        while times.len() < count as usize {
            let (first, before) = (self.next, times.len());
            self.next += u64::from(BATCH);
            let send = Send {
                class: Urgency::Interactive,
                pool: Some(POOL.to_owned()),
                pages: Some(Pages::List(vec![1])),
                ..Send::empty(first, BATCH.into())
            };
            pair.send(send).await?;
            for id in first..self.next {
                if let Some(bulk) = &mut bulk {
                    bulk.keep_going(pair).await?;
                }
                let one = self.room(pair, id).await?;
                let counts = bulk.as_ref().is_none_or(|bulk| bulk.is_under_way());
                if counts && times.len() < count as usize {
                    times.push(one);
                }
            }
            let waited = pair.waited(first, BATCH.into()).await?;
            pair::all_done(&waited)?;
            in_vain = if times.len() == before {
                in_vain + 1
            } else {
                0
            };
            if in_vain == PATIENCE {
                return Err(Failure::Failed(
                    "no small room fits beside a bulk room: give more --busy-bytes".to_owned(),
                ));
            }
        }
        Ok(times)
    }

    async fn room(&mut self, pair: &Pair, id: u64) -> Result<LatencyTimes, Failure> {
        let lease = self.destination.take();
        let lease = lease.ok_or_else(|| Failure::Failed("the page is lent".to_owned()))?;
        let builder = pair
            .decode
            .receive(RoomId(id))
            .from(&pair.sender)
            .class(Class::Interactive)
            .into(lease);
        let started = Instant::now();
        let room = self.how.start(builder.start()).await;
        let room = room.map_err(pair::failed("cannot start a receiver"))?;
        self.how.look_until(&room, |status| status.ended);
        let outcome = room.outcome().await;
        let done = started.elapsed();
        self.how.look_until(&room, |status| status.released);
        let back = room.released().await;
        let released = started.elapsed();
        pair::require_done(outcome, "receiver")?;
        let lease = pair::only_lease(back, "receiver")?;
        if id == 0 {
            pair::require_pattern(&lease, SEED)?;
        }
        self.destination = Some(lease);
        Ok(LatencyTimes { done, released })
    }
}
