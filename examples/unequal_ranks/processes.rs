//! The command line, and each rank in a process of its own.

use super::{Result, Sides, decode, prefill};
use clap::{Parser, Subcommand};
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Stdio};

/// Moves a request between sides that have different numbers of ranks, over shared memory, and compares
/// every byte
#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    rank: Option<Rank>,
}

#[derive(Subcommand)]
enum Rank {
    /// One rank of prefill, once
    #[command(hide = true)]
    Prefill {
        prefill: u32,
        decode: u32,
        me: usize,
    },
    /// One rank of decode, once
    #[command(hide = true)]
    Decode {
        prefill: u32,
        decode: u32,
        me: usize,
        addresses: Vec<String>,
    },
}

/// Does what the command line says.
pub(super) async fn run() -> Result<()> {
    match Args::parse().rank {
        Some(Rank::Prefill {
            prefill: p,
            decode: d,
            me,
        }) => {
            let sides = Sides {
                prefill: p,
                decode: d,
            };
            prefill(sides, me).await
        }
        Some(Rank::Decode {
            prefill: p,
            decode: d,
            me,
            addresses,
        }) => {
            let sides = Sides {
                prefill: p,
                decode: d,
            };
            decode(sides, me, &addresses).await
        }
        None => table(),
    }
}

/// A rank's process, which does not outlive its parent's work.
struct Running {
    child: Child,
    out: BufReader<ChildStdout>,
}

impl Running {
    fn start(side: &str, sides: Sides, me: u32, addresses: &[String]) -> Result<Running> {
        let numbers = [sides.prefill, sides.decode, me].map(|n| n.to_string());
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(side).args(numbers).args(addresses);
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        let out = child.stdout.take().ok_or("no pipe")?;
        let out = BufReader::new(out);
        Ok(Running { child, out })
    }

    fn line(&mut self) -> Result<String> {
        let mut said = String::new();
        self.out.read_line(&mut said)?;
        Ok(said.trim().to_owned())
    }

    /// What else it said, if it ended well.
    fn end(&mut self) -> Result<String> {
        let mut said = String::new();
        self.out.read_to_string(&mut said)?;
        match self.child.wait()? {
            status if status.success() => Ok(said),
            status => Err(format!("a rank failed: {status}").into()),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may be gone already
        let _ = self.child.wait();
    }
}

/// Moves the request both ways round, and says what each rank of decode got.
fn table() -> Result<()> {
    println!("prefill  decode  rank  legs  bytes landed  bytes compared  time      over");
    for (prefill, decode) in [(4, 2), (2, 4)] {
        let sides = Sides { prefill, decode };
        let mut senders = Vec::new();
        let mut addresses = Vec::new();
        for me in 0..prefill {
            let mut sender = Running::start("prefill", sides, me, &[])?;
            let said = sender.line()?;
            let address = said.strip_prefix("listening on ");
            addresses.push(address.ok_or("a rank does not listen")?.to_owned());
            senders.push(sender);
        }
        let mut receivers = Vec::new();
        for me in 0..decode {
            receivers.push(Running::start("decode", sides, me, &addresses)?);
        }
        for (me, receiver) in receivers.iter_mut().enumerate() {
            let said = receiver.end()?;
            let [legs, landed, right, micros, fabric] = Vec::from_iter(said.split_whitespace())[..]
            else {
                return Err(format!("a rank said {said:?}").into());
            };
            println!(
                "TP {prefill}     TP {decode}    {me:<4}  {legs:<4}  {landed:<12}  {right:<14}  {:<8}  {fabric}",
                format!("{micros} us")
            );
        }
        for sender in &mut senders {
            sender.end()?;
        }
    }
    Ok(())
}
