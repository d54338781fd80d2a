//! A recording as load on two real nodes of this process: the same arrivals, sizes and aborts.

use kvroom::recording::Recording;
use kvroom::recording::load::{Request, requests};
use kvroom::{Chunk, LocalHub, Node, Order, Outcome, Peer, Pool, PoolKind, PoolLayout, Role};
use std::error::Error;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Pages of 4 KiB in either pool: 256 MiB.
const PAGES: u32 = 65_536;
const PAGE_BYTES: u64 = 4 << 10;
/// What a room may take that nobody gives up.
const PATIENCE: Duration = Duration::from_secs(30);

type Failure = Box<dyn Error + Send + Sync>;

#[derive(Clone)]
struct Pair {
    decode: Node,
    prefill: Node,
    peer: Peer,
    source: Pool,
    destination: Pool,
    /// Destination pages that no room has.
    free: Arc<Mutex<Vec<u32>>>,
}

pub(crate) fn play(recording: &Recording, speed: f64) -> ExitCode {
    let requests = requests(recording);
    if requests.is_empty() {
        eprintln!("error: there is no start of a room in this recording");
        return ExitCode::from(2);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_time()
        .build();
    let played = match runtime {
        Ok(runtime) => runtime.block_on(all(&requests, speed)),
        Err(error) => Err(error.into()),
    };
    match played {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(1)
        }
    }
}

async fn all(requests: &[Request], speed: f64) -> Result<bool, Failure> {
    let hub = LocalHub::new();
    let (source, destination) = (Pool::owned(layout())?, Pool::owned(layout())?);
    let node = |name, pool: &Pool| Node::builder(name).hub(&hub).pool(pool.clone());
    let prefill = node("prefill-0", &source).start().await?;
    let decode = node("decode-0", &destination).start().await?;
    let peer = decode.connect("local://prefill-0").await?;
    let pair = Pair {
        decode,
        prefill,
        peer,
        source,
        destination,
        free: Arc::new(Mutex::new((0..PAGES).collect())),
    };
    let began = Instant::now();
    let mut rooms = tokio::task::JoinSet::new();
    for request in requests {
        tokio::time::sleep_until(began + request.at.div_f64(speed)).await;
        rooms.spawn(one(pair.clone(), request.clone(), speed));
    }
    let (mut done, mut aborted, mut failed) = (0, 0, Vec::new());
    while let Some(room) = rooms.join_next().await {
        match room? {
            Ok(Outcome::Done) => done += 1,
            Ok(Outcome::Aborted(_)) => aborted += 1,
            Err(error) => failed.push(error.to_string()),
        }
    }
    let recorded = requests.iter().filter(|r| r.aborted.is_some()).count();
    let drained = pair.decode.shutdown().await.drained && pair.prefill.shutdown().await.drained;
    println!(
        "{} rooms in {:?}: {done} done, {aborted} aborted ({recorded} were given up in the recording), {} failed; {}",
        requests.len(),
        began.elapsed(),
        failed.len(),
        if drained {
            "all memory came back"
        } else {
            "NOT ALL MEMORY CAME BACK"
        },
    );
    failed
        .iter()
        .take(10)
        .for_each(|why| println!("  failed: {why}"));
    Ok(drained && failed.is_empty())
}

async fn one(pair: Pair, request: Request, speed: f64) -> Result<Outcome, Failure> {
    let pages = u32::try_from(request.pages)
        .unwrap_or(u32::MAX)
        .min(PAGES / 4);
    let began = Instant::now();
    let own = loop {
        // Others give theirs back, or this one is over its time.
        match pair.take(pages) {
            Some(own) => break own,
            None if began.elapsed() > PATIENCE => return Err("no pages came free".into()),
            None => tokio::time::sleep(Duration::from_millis(1)).await,
        }
    };
    let to = pair.destination.lease_write(&own)?;
    // All rooms read the same ones.
    let from = pair.source.lease_read(&(0..pages).collect::<Vec<_>>())?;
    let key = request.key;
    let sender = pair
        .prefill
        .send(key.id)
        .attempt(key.attempt)
        .start()
        .await?;
    let receiver = pair.decode.receive(key.id).attempt(key.attempt);
    let receiver = receiver.from(&pair.peer).into(to).start().await?;
    let work = async {
        let slot = sender.reserve().await?;
        slot.push(Chunk::tokens(0..u64::from(pages)).pages(from))?;
        sender.finish(u64::from(pages), None)?;
        Ok::<(), Failure>(())
    };
    match request.aborted {
        None => work.await?,
        Some(after) => {
            tokio::select! {
                worked = work => worked?,
                () = tokio::time::sleep(after.div_f64(speed)) => {}
            }
            match request.role {
                Role::Receiver => receiver.abort("replayed"),
                Role::Sender => sender.abort("replayed"),
            }
        }
    }
    let outcome = tokio::time::timeout(PATIENCE, receiver.outcome()).await?;
    tokio::time::timeout(PATIENCE, sender.outcome()).await?;
    drop(tokio::time::timeout(PATIENCE, receiver.released()).await?);
    drop(tokio::time::timeout(PATIENCE, sender.released()).await?);
    pair.give(own);
    Ok(outcome)
}

impl Pair {
    fn take(&self, pages: u32) -> Option<Vec<u32>> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let left = free.len().checked_sub(pages as usize)?;
        Some(free.split_off(left))
    }

    fn give(&self, pages: Vec<u32>) {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.extend(pages);
    }
}

fn layout() -> PoolLayout {
    PoolLayout {
        name: "kv".into(),
        kind: PoolKind::Kv,
        order: Order::LayersFirst,
        layers: 1,
        pages: PAGES,
        page_bytes: PAGE_BYTES,
        page_tokens: 1,
    }
}
