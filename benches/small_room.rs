//! Instructions of one whole small room, as callgrind counts them: a number that stays the same where
//! times do not.
//!
//! ```text
//!   cargo bench --bench small_room               runs itself under valgrind, twice
//!     └─ small_room rooms 200   ─▶ instructions a      two nodes of one process, one shard and one
//!     └─ small_room rooms 1200  ─▶ instructions b      lane each, one page of 16 KiB a room
//!   instructions of a room = (b − a) / 1000
//! ```
//!
//! What is made once cancels out. All threads count: the callers', the shards' and the lanes'. The
//! allocator is the C library's, since valgrind brings its own.
//!
//! `--at-most N` fails if a room takes more instructions. Without valgrind it says so and measures
//! nothing; with `KVROOM_REQUIRE_ALL` set that is a failure.

use kvroom::{
    Chunk, Class, LocalHub, Node, Order, Outcome, Pool, PoolKind, PoolLayout, RoomId, WriteLease,
};
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

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
    let result = match after("rooms") {
        Some(count) => rooms(count).map(|()| true),
        None => measure(after("--at-most")),
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
fn measure(at_most: Option<u64>) -> Result<bool> {
    let version = Command::new("valgrind").arg("--version").output();
    let Ok(version) = version else {
        let required = std::env::var_os("KVROOM_REQUIRE_ALL").is_some();
        println!("NOT MEASURED: valgrind is not installed; it counts the instructions of a room.");
        return Ok(!required);
    };
    let (few, _) = count(FEW)?;
    let (many, profile) = count(MANY)?;
    let of_one = many.saturating_sub(few) / (MANY - FEW);
    println!("one whole room of one {PAGE_BYTES}-byte page between two nodes of one process:");
    println!("  {of_one} instructions");
    println!(
        "  {} over {} rooms; look closer with: callgrind_annotate {}",
        String::from_utf8_lossy(&version.stdout).trim(),
        MANY - FEW,
        profile.display()
    );
    match at_most {
        Some(most) if of_one > most => {
            println!("not met: a room may take {most} instructions");
            Ok(false)
        }
        _ => Ok(true),
    }
}

/// Instructions of this program with so many rooms, and the profile.
fn count(rooms: u64) -> Result<(u64, PathBuf)> {
    let profile = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("small_room.{rooms}"));
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--fair-sched=yes"])
        .arg(format!("--callgrind-out-file={}", profile.display()))
        .arg(std::env::current_exe()?)
        .args(["rooms", &rooms.to_string()])
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
fn rooms(count: u64) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let hub = LocalHub::new();
        let (source, destination) = (Pool::owned(layout())?, Pool::owned(layout())?);
        let prefill = node("prefill", &hub, &source).await?;
        let decode = node("decode", &hub, &destination).await?;
        let peer = decode.connect("local://prefill").await?;
        let mut lease: WriteLease = destination.lease_write(&[1])?;
        for id in (0..count).map(RoomId) {
            let sender = prefill.send(id).class(Class::Interactive).start().await?;
            let slot = sender.try_reserve()?;
            slot.push(Chunk::tokens(0..1).pages(source.lease_read(&[0])?))?;
            sender.finish(1, None)?;
            let receiver = decode.receive(id).from(&peer).class(Class::Interactive);
            let receiver = receiver.into(lease).start().await?;
            for outcome in [receiver.outcome().await, sender.outcome().await] {
                if outcome != Outcome::Done {
                    return Err(format!("{id:?} ended with {outcome:?}").into());
                }
            }
            let back = receiver.released().await.leases.pop();
            lease = back.ok_or("the lease did not come back")?;
            drop(sender.released().await);
        }
        drop(lease);
        for node in [decode, prefill] {
            if !node.shutdown().await.drained {
                return Err("a node did not drain".into());
            }
        }
        Ok(())
    })
}

async fn node(name: &str, hub: &LocalHub, pool: &Pool) -> Result<Node> {
    let node = Node::builder(name).hub(hub).pool(pool.clone());
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
