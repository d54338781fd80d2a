//! `bench rate`: whole rooms of a few pages, so many under way at a time.
//!
//! ```text
//!   sender     [ batch 0: started, supplied, finished ][ batch 1 ][ batch 2 ] …      by commands
//!   receiver     0 1 2 … one more whenever the oldest one's pages are back           by this loop
//! ```

use super::super::args::RateArgs;
use super::super::exit::Failure;
use super::super::node::protocol::{Cells, Pages, Request, Send, Urgency, Wait, Waited};
use super::super::pair::{self, POOL, Pair, Pools};
use super::super::pattern::{self, Place};
use super::super::proc;
use super::ends::Checked;
use super::perm::perm;
use super::report::{RateReport, RateTimes};
use super::run_latency::How;
use super::workload::Workload;
use kvroom::{Class, Limits, ReceiveRoom, RoomId, WriteLease};
use serde_json::Value;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Lists of pages that are used in rotation.
const SETS: u32 = 64;
/// Senders that are started by one command; whole rounds of the sets.
const BATCH: u64 = 4 * SETS as u64;
/// Batches of senders that may be ahead of the receivers.
const AHEAD: usize = 3;
const SEED: u64 = 11;

/// Measures the workload.
pub(crate) fn run(args: &RateArgs, w: &Workload) -> Result<RateReport, Failure> {
    let ends = Checked::of(&args.ends)?;
    if w.pages.checked_mul(SETS).is_none_or(|n| n > w.pool_pages) {
        return Err(Failure::Usage(format!(
            "workload {w} has pools of {} pages; {SETS} sets of its pages need more",
            w.pool_pages
        )));
    }
    proc::require_memory(&format!("workload {w}"), 2 * w.pool_bytes())?;
    let times = measure(args, &ends, w)?;
    RateReport::new(args, ends.between, w, &times)
}

fn measure(args: &RateArgs, ends: &Checked, w: &Workload) -> Result<Vec<RateTimes>, Failure> {
    let layout = pair::layout(w.layers, w.pool_pages, w.page_bytes);
    let limits = Limits {
        // A chunk counts until its memory is back, a little after its room.
        chunks_in_flight: Limits::default()
            .chunks_in_flight
            .max(2 * AHEAD * BATCH as usize),
        ..Limits::default()
    };
    let pools = vec![Pools::alike(layout)];
    let how = if ends.between.drive {
        How::Drive
    } else {
        How::Look
    };
    Pair::run(ends.setup(pools, limits), |pair| rates(args, w, how, pair))
}

async fn rates(
    args: &RateArgs,
    w: &Workload,
    how: How,
    pair: Pair,
) -> Result<Vec<RateTimes>, Failure> {
    let mut run = Run {
        pair,
        how,
        sources: sets(w, w.seed * 2),
        destinations: Vec::new(),
        rooms: args.rooms.into(),
        next: 0,
    };
    for (set, pages) in (0..).zip(&run.sources) {
        // Each set has bytes of its own, so that one in another's place is seen.
        let cells = Cells {
            pool: POOL.to_owned(),
            pages: Pages::List(pages.clone()),
            seed: SEED,
            index: set * w.pages,
        };
        run.pair.ask::<Value>(Request::Fill(cells)).await?;
    }
    for pages in sets(w, w.seed * 2 + 1) {
        run.destinations
            .push(Some(run.pair.lease_destination(&pages)?));
    }
    let mut all = Vec::new();
    for &inflight in &args.inflight {
        let mut times = Vec::new();
        for rep in 0..=args.reps {
            if rep == 0 {
                run.spoil(w);
            }
            let time = run.repeat(inflight).await?;
            if rep == 0 {
                run.compare(w)?;
            } else {
                times.push(time);
            }
        }
        all.push(RateTimes { inflight, times });
    }
    run.destinations.clear();
    run.pair.shut_down().await?;
    Ok(all)
}

struct Run {
    pair: Pair,
    how: How,
    sources: Vec<Vec<u32>>,
    /// The destinations' sets, but for those that are lent.
    destinations: Vec<Option<WriteLease>>,
    /// In a repetition.
    rooms: u64,
    /// The first id of the next repetition.
    next: u64,
}

impl Run {
    /// One repetition; says how long it took.
    async fn repeat(&mut self, inflight: u16) -> Result<Duration, Failure> {
        let (first, end) = (self.next, self.next + self.rooms);
        // Each repetition begins with the first set.
        self.next = end.next_multiple_of(u64::from(SETS));
        let started = Instant::now();
        let mut batches = (first..end).step_by(BATCH as usize);
        let (mut told, mut waits) = (VecDeque::new(), Vec::new());
        let mut under_way = VecDeque::new();
        // Rooms begin together, as a scheduler begins them: a quarter of those that may be under way.
        let together = u64::from(inflight).div_ceil(4);
        let mut next = first;
        while next < end || !under_way.is_empty() {
            while let Some((_, room)) = under_way.front() {
                if !ReceiveRoom::poll(room).released {
                    break;
                }
                self.end_oldest(&mut under_way).await?;
            }
            let free = u64::from(inflight) - under_way.len() as u64;
            let begun = (next - first) % BATCH;
            let count = free.min(end - next).min(BATCH - begun);
            if count == 0 || (free < together && free < end - next) {
                self.how.turn().await;
                continue;
            }
            if begun == 0 {
                while told.len() < AHEAD
                    && let Some(batch) = batches.next()
                {
                    let count = BATCH.min(end - batch);
                    let send = self.senders(batch, count);
                    told.push_back(self.pair.tell(Request::Send(send))?);
                    let wait = Wait::sends(batch, count);
                    waits.push(self.pair.tell(Request::Wait(wait))?);
                }
                if let Some(mine) = told.pop_front() {
                    self.pair.sent(mine).await?;
                }
            }
            let sets = (next - first..).map(|k| (k % u64::from(SETS)) as usize);
            let sets = sets.take(count as usize);
            under_way.extend(self.start(sets, next).await?);
            next += count;
        }
        for one in waits {
            let waited: Waited = self.pair.answer(one).await?;
            pair::all_done(&pair::all_over(waited)?)?;
        }
        Ok(started.elapsed())
    }

    fn senders(&self, first: u64, count: u64) -> Send {
        Send {
            class: Urgency::Interactive,
            pool: Some(POOL.to_owned()),
            pages: Some(Pages::Sets {
                sets: self.sources.clone(),
            }),
            ..Send::empty(first, count)
        }
    }

    /// Starts rooms from this id on, one for each of these sets.
    async fn start(
        &mut self,
        sets: impl Iterator<Item = usize>,
        id: u64,
    ) -> Result<Vec<(usize, ReceiveRoom)>, Failure> {
        let mut builders = Vec::new();
        let mut lent = Vec::new();
        for (id, set) in (id..).zip(sets) {
            let lease = self.destinations[set].take();
            let lease = lease.ok_or_else(|| Failure::Failed("a set is lent twice".to_owned()))?;
            let room = self.pair.decode.receive(RoomId(id));
            let room = room.from(&self.pair.sender).class(Class::Interactive);
            builders.push(room.into(lease));
            lent.push(set);
        }
        let started = self.pair.decode.start_receives(builders);
        let rooms = self.how.start(started).await.into_iter();
        rooms
            .zip(lent)
            .map(|(room, set)| Ok((set, room.map_err(pair::failed("cannot start a receiver"))?)))
            .collect()
    }

    async fn end_oldest(
        &mut self,
        under_way: &mut VecDeque<(usize, ReceiveRoom)>,
    ) -> Result<(), Failure> {
        let Some((set, room)) = under_way.pop_front() else {
            return Ok(());
        };
        pair::require_done(room.outcome().await, "receiver")?;
        let lease = pair::only_lease(room.released().await, "receiver")?;
        self.destinations[set] = Some(lease);
        Ok(())
    }

    /// Writes other bytes into all destinations.
    fn spoil(&mut self, w: &Workload) {
        for lease in self.destinations.iter_mut().flatten() {
            for layer in 0..w.layers {
                for i in 0..w.pages as usize {
                    lease.page_mut(layer, i).fill(1);
                }
            }
        }
    }

    /// Fails unless every set that was used holds the bytes of its source.
    fn compare(&self, w: &Workload) -> Result<(), Failure> {
        let used = self.rooms.min(u64::from(SETS)) as usize;
        for (set, lease) in (0..).zip(self.destinations.iter().take(used).flatten()) {
            for layer in 0..w.layers {
                for index in 0..w.pages {
                    let place = Place {
                        layer,
                        index: set * w.pages + index,
                        offset: 0,
                    };
                    if !pattern::holds(lease.page(layer, index as usize), SEED, place) {
                        return Err(Failure::Failed(format!(
                            "bytes were lost: set {set}, layer {layer}, page {index} differs"
                        )));
                    }
                }
            }
        }
        Ok(())
    }
}

/// Lists of pages without one in common.
fn sets(w: &Workload, seed: u64) -> Vec<Vec<u32>> {
    let all = perm(w.pool_pages, seed);
    let sets = all.chunks_exact(w.pages as usize).take(SETS as usize);
    sets.map(<[u32]>::to_vec).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_page_is_in_two_sets() {
        let w = super::super::workload::find("many_8x16K").unwrap();
        let sets = sets(&w, 5);
        assert_eq!(sets.len(), SETS as usize);
        let mut pages: Vec<u32> = sets.concat();
        assert_eq!(pages.len(), 512);
        pages.sort_unstable();
        pages.dedup();
        assert_eq!(pages.len(), 512);
    }
}
