//! The command line, and the two sides in processes of their own.

use super::{Result, Side, decode, prefill, start, together};
use clap::{Parser, Subcommand, ValueEnum};
use kvroom::{LocalHub, Pool, PoolLayout};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// How the bytes move.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Fabric {
    Local,
    Tcp,
    Shm,
}

/// Moves one request between two nodes and compares every byte; aborts another one
#[derive(Parser)]
#[command(args_conflicts_with_subcommands = true)]
struct Args {
    #[command(subcommand)]
    alone: Option<Alone>,
    /// How the bytes move
    #[arg(long, value_enum, default_value = "local")]
    fabric: Fabric,
    /// With 2 a child plays prefill
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=2))]
    processes: u8,
}

#[derive(Subcommand)]
enum Alone {
    /// Play prefill in this process, once
    Prefill {
        /// tcp://HOST:PORT (port 0 for any free one) or unix:///PATH
        #[arg(long, value_name = "ADDRESS")]
        listen: String,
        /// shm if decode is on this host
        #[arg(long, value_enum, default_value = "tcp")]
        fabric: Fabric,
    },
    /// Play decode in this process, once
    Decode {
        /// Where prefill listens
        #[arg(long, value_name = "ADDRESS")]
        connect: String,
        /// shm if prefill is on this host
        #[arg(long, value_enum, default_value = "tcp")]
        fabric: Fabric,
    },
}

impl Fabric {
    /// Nodes of one host find out by themselves that they can share memory, if a pool is made for it.
    pub(super) fn pool(self, layout: PoolLayout) -> Result<Pool> {
        match self {
            Fabric::Shm => Ok(Pool::shared(layout)?),
            Fabric::Local | Fabric::Tcp => Ok(Pool::owned(layout)?),
        }
    }
}

/// Does what the command line says.
pub(super) async fn run() -> Result<()> {
    let args = Args::parse();
    match (args.alone, args.fabric, args.processes) {
        (Some(Alone::Prefill { listen, fabric }), ..) => prefill_at(&listen, fabric).await,
        (Some(Alone::Decode { connect, fabric }), ..) => decode_from(&connect, fabric).await,
        (None, fabric, 1) => together(fabric).await,
        (None, Fabric::Local, _) => Err("two processes are joined by --fabric tcp or shm".into()),
        (None, fabric, _) => with_child(fabric).await,
    }
}

async fn prefill_at(address: &str, fabric: Fabric) -> Result<()> {
    let side = start("prefill", &LocalHub::new(), fabric, Some(address)).await?;
    println!("listening on {}", side.node.addresses()[0]);
    let served = prefill(&side).await;
    side.node.shutdown().await;
    served
}

async fn decode_from(address: &str, fabric: Fabric) -> Result<()> {
    let side = start("decode", &LocalHub::new(), fabric, None).await?;
    let served = connect_and_decode(&side, address).await;
    side.node.shutdown().await;
    served
}

async fn connect_and_decode(side: &Side, address: &str) -> Result<()> {
    decode(side, &side.node.connect(address).await?).await
}

async fn with_child(fabric: Fabric) -> Result<()> {
    let mut child = Command::new(std::env::current_exe()?);
    child.args(["prefill", "--listen", "tcp://127.0.0.1:0"]);
    if fabric == Fabric::Shm {
        child.args(["--fabric", "shm"]);
    }
    let mut child = Killed(child.stdout(Stdio::piped()).spawn()?);
    let said = child.0.stdout.take().map(BufReader::new);
    let said = said.and_then(|out| out.lines().next()).transpose()?;
    let address = said
        .as_deref()
        .and_then(|said| said.strip_prefix("listening on "));
    decode_from(address.ok_or("the child does not listen")?, fabric).await?;
    match child.0.wait()? {
        status if status.success() => Ok(()),
        status => Err(format!("the child failed: {status}").into()),
    }
}

/// A child that does not outlive its parent's work.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill(); // it may be gone already
        let _ = self.0.wait();
    }
}
