//! What nodes take when nothing happens, and whether they grow.

use super::super::args::RoomsArgs;
use super::super::exit::Failure;
use super::super::pair::{self, Pair};
use super::super::proc;
use super::ends;
use super::report::{IdleCpuReport, Sample, SoakReport};
use super::rss;
use super::run_rooms::{self, BATCH};
use std::time::{Duration, Instant};

/// Samples of a soak.
const SAMPLES: u64 = 20;
/// How long the nodes may take to come to rest.
const REST: Duration = Duration::from_millis(500);

/// The processor time that waiting rooms take.
pub(crate) fn idle_cpu(args: &RoomsArgs, rooms: u64) -> Result<IdleCpuReport, Failure> {
    let setup = ends::of_rooms(args, run_rooms::limits(rooms + 2 * BATCH))?;
    let (fabric, link) = (setup.fabric(), setup.link);
    let seconds = Duration::from_secs(args.seconds.into());
    pair::block_on(async {
        let mut pair = Pair::start(setup).await?;
        let held = run_rooms::start_idle(&mut pair, BATCH..BATCH + rooms).await?;
        tokio::time::sleep(REST).await;
        let other = pair.other_process();
        let before = (proc::cpu_time(None)?, other_time(other)?);
        let started = Instant::now();
        tokio::time::sleep(seconds).await;
        let after = (proc::cpu_time(None)?, other_time(other)?);
        let elapsed = started.elapsed();
        run_rooms::abort_idle(&mut pair, held, rooms).await?;
        pair.shut_down().await?;
        let percent = |from: Duration, to: Duration| {
            to.saturating_sub(from).as_secs_f64() / elapsed.as_secs_f64() * 100.0
        };
        Ok(IdleCpuReport {
            fabric,
            processes: args.processes,
            transport: link.name(),
            rooms,
            seconds: elapsed.as_secs_f64(),
            nodes: if other.is_some() { 1 } else { 2 },
            percent_of_core: percent(before.0, after.0),
            sender_percent_of_core: before.1.zip(after.1).map(|(b, a)| percent(b, a)),
        })
    })
}

fn other_time(process: Option<u32>) -> Result<Option<Duration>, Failure> {
    process.map(|id| proc::cpu_time(Some(id))).transpose()
}

/// Resident memory while rooms come and go.
pub(crate) fn soak(args: &RoomsArgs, rooms: u64) -> Result<SoakReport, Failure> {
    let setup = ends::of_rooms(args, run_rooms::limits(4 * BATCH))?;
    let (fabric, link) = (setup.fabric(), setup.link);
    pair::block_on(async {
        let mut pair = Pair::start(setup).await?;
        let mut samples = Vec::new();
        let mut spent = Duration::ZERO;
        for k in 0..SAMPLES {
            let ids = rooms * k / SAMPLES..rooms * (k + 1) / SAMPLES;
            let end = ids.end;
            let started = Instant::now();
            run_rooms::lives(&mut pair, ids).await?;
            spent += started.elapsed();
            let other = pair.other_process();
            samples.push(Sample {
                rooms: end,
                rss_bytes: rss::settled(REST)?,
                sender_rss_bytes: other.map(rss::of_process).transpose()?,
            });
        }
        pair.shut_down().await?;
        Ok(SoakReport::new(
            fabric,
            args.processes,
            link,
            rooms as f64 / spent.as_secs_f64(),
            samples,
        ))
    })
}
