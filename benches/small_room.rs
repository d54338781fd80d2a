//! Instructions of one whole small room, as callgrind counts them: a number that stays the same where
//! times do not.
//!
//! ```text
//!   cargo bench --bench small_room               runs itself under valgrind, twice
//!     └─ small_room rooms 200   ─▶ instructions a      two nodes of one process, one shard and one
//!     └─ small_room rooms 1200  ─▶ instructions b      lane each, one page of 16 KiB a room
//!   instructions of a room = (b − a) / 1000
//!   small_room rooms 200 without             the same without the flight recorder, and 1200
//!
//!   cargo bench --bench small_room -- recorder   time instead: pairs of nodes with the recorder and
//!                                                without, in turns, in one process
//! ```
//!
//! What is made once cancels out. All threads count: the callers', the shards' and the lanes'. The
//! allocator is the C library's, since valgrind brings its own.
//!
//! `--at-most N` fails if a room takes more instructions, `--recorder-at-most P` if the flight recorder
//! takes more than P percent of them. Without valgrind it says so and measures
//! nothing; with `KVROOM_REQUIRE_ALL` set that is a failure.

use kvroom::{
    Chunk, Class, LocalHub, Node, Order, Outcome, Peer, Pool, PoolKind, PoolLayout, RoomId,
    WriteLease,
};
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const FEW: u64 = 200;
const MANY: u64 = 1_200;
const PAGE_BYTES: u64 = 16 << 10;

fn main() -> ExitCode {
    // Cargo adds words of its own, such as --bench.
    let words: Vec<String> = std::env::args().skip(1).collect();
    let after = |word: &str| {
        let at = words.iter().position(|w| w == word)?;
        words.get(at + 1)?.parse::<u64>().ok()
    };
    let said = |word: &str| words.iter().any(|w| w == word);
    let result = match after("rooms") {
        Some(count) => rooms(count, !said("without")).map(|()| true),
        None if said("recorder") => in_turns(after("--rounds").unwrap_or(101)).map(|()| true),
        None => measure(after("--at-most"), after("--recorder-at-most")),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("small_room: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Counts, and says whether it is few enough.
fn measure(at_most: Option<u64>, recorder_at_most: Option<u64>) -> Result<bool> {
    let version = Command::new("valgrind").arg("--version").output();
    let Ok(version) = version else {
        let required = std::env::var_os("KVROOM_REQUIRE_ALL").is_some();
        println!("NOT MEASURED: valgrind is not installed; it counts the instructions of a room.");
        return Ok(!required);
    };
    let (of_one, profile) = of_one(&[])?;
    let (without, _) = self::of_one(&["without"])?;
    let percent = (of_one as f64 / without as f64 - 1.0) * 100.0;
    println!("one whole room of one {PAGE_BYTES}-byte page between two nodes of one process:");
    println!("  {of_one} instructions");
    println!("  {without} without the flight recorder, which takes {percent:.1} %");
    println!(
        "  {} over {} rooms; look closer with: callgrind_annotate {}",
        String::from_utf8_lossy(&version.stdout).trim(),
        MANY - FEW,
        profile.display()
    );
    let mut met = true;
    if let Some(most) = at_most.filter(|most| of_one > *most) {
        println!("not met: a room may take {most} instructions");
        met = false;
    }
    if let Some(most) = recorder_at_most.filter(|most| percent > *most as f64) {
        println!("not met: the flight recorder may take {most} percent");
        met = false;
    }
    Ok(met)
}

/// Instructions of one room, and the profile.
fn of_one(how: &[&str]) -> Result<(u64, PathBuf)> {
    let (few, _) = count(FEW, how)?;
    let (many, profile) = count(MANY, how)?;
    Ok((many.saturating_sub(few) / (MANY - FEW), profile))
}

/// Instructions of this program with so many rooms, and the profile.
fn count(rooms: u64, how: &[&str]) -> Result<(u64, PathBuf)> {
    let name = format!("small_room.{rooms}{}", how.concat());
    let profile = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--fair-sched=yes"])
        .arg(format!("--callgrind-out-file={}", profile.display()))
        .arg(std::env::current_exe()?)
        .args(["rooms", &rooms.to_string()])
        .args(how)
        .stdin(Stdio::null())
        .output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(format!("valgrind ended with {}:\n{said}", output.status).into());
    }
    Ok((collected(&said)?, profile))
}

/// `==7== Collected : 123`
fn collected(said: &str) -> Result<u64> {
    let line = said.lines().find_map(|line| line.split_once("Collected :"));
    let (_, number) =
        line.ok_or_else(|| format!("callgrind did not say what it collected:\n{said}"))?;
    Ok(number.trim().parse()?)
}

/// What is counted: rooms one after the other.
fn rooms(count: u64, recorded: bool) -> Result<()> {
    runtime()?.block_on(async {
        let mut pair = Pair::start(recorded).await?;
        pair.transfer(count).await?;
        pair.stop().await
    })
}

fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
}

/// Two nodes.
struct Pair {
    prefill: Node,
    decode: Node,
    peer: Peer,
    source: Pool,
    lease: Option<WriteLease>,
    next: u64,
}

impl Pair {
    async fn start(recorded: bool) -> Result<Pair> {
        let hub = LocalHub::new();
        let (source, destination) = (Pool::owned(layout())?, Pool::owned(layout())?);
        let prefill = node("prefill", &hub, &source, recorded).await?;
        let decode = node("decode", &hub, &destination, recorded).await?;
        let peer = decode.connect("local://prefill").await?;
        Ok(Pair {
            lease: Some(destination.lease_write(&[1])?),
            prefill,
            decode,
            peer,
            source,
            next: 0,
        })
    }

    /// So many rooms, one after the other.
    async fn transfer(&mut self, count: u64) -> Result<()> {
        let until = self.next + count;
        for id in (self.next..until).map(RoomId) {
            let lease = self.lease.take().ok_or("the lease did not come back")?;
            let sender = self.prefill.send(id).class(Class::Interactive);
            let sender = sender.start().await?;
            let slot = sender.try_reserve()?;
            slot.push(Chunk::tokens(0..1).pages(self.source.lease_read(&[0])?))?;
            sender.finish(1, None)?;
            let receiver = self.decode.receive(id).from(&self.peer);
            let receiver = receiver.class(Class::Interactive).into(lease);
            let receiver = receiver.start().await?;
            for outcome in [receiver.outcome().await, sender.outcome().await] {
                if outcome != Outcome::Done {
                    return Err(format!("{id:?} ended with {outcome:?}").into());
                }
            }
            self.lease = receiver.released().await.leases.pop();
            drop(sender.released().await);
        }
        self.next = until;
        Ok(())
    }

    async fn stop(self) -> Result<()> {
        drop(self.lease);
        for node in [self.decode, self.prefill] {
            if !node.shutdown().await.drained {
                return Err("a node did not drain".into());
            }
        }
        Ok(())
    }
}

/// Rooms of one round.
const ROUND: u64 = 200;

/// Nodes with the recorder and without, some rooms each in turns, and what the one takes of the other.
fn in_turns(rounds: u64) -> Result<()> {
    let (mut time, mut rate) = (Vec::new(), Vec::new());
    runtime()?.block_on(async {
        let mut with = Pair::start(true).await?;
        let mut without = Pair::start(false).await?;
        // Rings are filled for the first time, and all that is made once is made.
        for _ in 0..10 {
            with.transfer(ROUND).await?;
            without.transfer(ROUND).await?;
        }
        for round in 0..rounds {
            let mut of = [(0.0, 0.0); 2];
            for turn in 0..2 {
                // Who is first changes, so that neither has the better half of a round.
                let which = (round + turn) % 2;
                let pair = [&mut with, &mut without].into_iter().nth(which as usize);
                let (began, used) = (Instant::now(), used_ns()?);
                pair.ok_or("no pair")?.transfer(ROUND).await?;
                let spent = used_ns()?.saturating_sub(used);
                of[which as usize] = (spent as f64, began.elapsed().as_secs_f64());
            }
            time.push(of[0].0 / of[1].0);
            rate.push(of[1].1 / of[0].1);
        }
        with.stop().await?;
        without.stop().await
    })?;
    println!("with the flight recorder / without, {rounds} rounds of {ROUND} small rooms each:");
    for (what, mut ratios) in [("processor time", time), ("rooms a second", rate)] {
        ratios.sort_by(f64::total_cmp);
        let at = |part: f64| {
            let place = (ratios.len().saturating_sub(1)) as f64 * part;
            ratios
                .get(place.round() as usize)
                .copied()
                .unwrap_or(f64::NAN)
        };
        println!(
            "  {what}: median {:.3}, quartiles {:.3} and {:.3}, lowest {:.3}, highest {:.3}",
            at(0.5),
            at(0.25),
            at(0.75),
            at(0.0),
            at(1.0)
        );
    }
    Ok(())
}

/// Processor time of all threads of this process, in nanoseconds.
fn used_ns() -> Result<u64> {
    let mut all = 0;
    for thread in std::fs::read_dir("/proc/self/task")? {
        let stat = std::fs::read_to_string(thread?.path().join("schedstat"))?;
        let first = stat.split(' ').next().unwrap_or_default();
        all += first.parse::<u64>()?;
    }
    Ok(all)
}

async fn node(name: &str, hub: &LocalHub, pool: &Pool, recorded: bool) -> Result<Node> {
    let node = Node::builder(name).hub(hub).pool(pool.clone());
    let node = match recorded {
        true => node,
        false => node.recorder(0),
    };
    Ok(node.shards(1).lanes(1).start().await?)
}

fn layout() -> PoolLayout {
    PoolLayout {
        name: "kv".into(),
        kind: PoolKind::Kv,
        order: Order::LayersFirst,
        layers: 1,
        pages: 2,
        page_bytes: PAGE_BYTES,
        page_tokens: 1,
    }
}
