//! `kvroom node`: a bare node that serves until it is told to stop.
//!
//! ```text
//!   args ─▶ Node ─▶ {"event":"ready"} ─▶ signal │ stdin's end │ "stop" ─▶ shutdown ─▶ {"event":"stopped"}
//!                          lines ─▶ protocol ─▶ engine ─▶ answers
//! ```
//!
//! Rules: a bad line gets an error for an answer and changes nothing. Whatever ends the node, its
//! rooms drain first, bounded by the shutdown deadline, and the last line says how that went.

pub(crate) mod engine;
mod lines;
mod listing;
pub(crate) mod protocol;

use super::args::{NodeArgs, PoolSpec};
use super::exit::{Failure, Verdict};
use super::output;
use super::pair;
use super::secret;
use engine::Engine;
use kvroom::{ClusterKey, Deadlines, Limits, Net, Node, NodeBuilder, Pool};
use lines::Input;
pub(crate) use listing::stats as node_stats;
use protocol::{MAX_LINE, Request};
use serde_json::{Value, json};
use std::env::{self, VarError};
use std::path::Path;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::LocalSet;

const KEY_VARIABLE: &str = "KVROOM_CLUSTER_KEY";

/// Runs the node to its end.
pub(crate) fn run(args: &NodeArgs) -> Result<Verdict, Failure> {
    let key = key(args.key_file.as_deref())?;
    let pool = |spec| pool(spec, args.shared_pools);
    let pools = args.pool.iter().map(pool).collect::<Result<Vec<_>, _>>()?;
    let builder = builder(args, key, &pools);
    if !args.drive {
        let work = async {
            // Before anything else: a signal that comes while the node starts must not be missed.
            let signals = Signals::listen()?;
            let node = builder.start().await.map_err(pair::failed(STARTING))?;
            serve(args, signals, node, pools).await
        };
        return pair::block_on(LocalSet::new().run_until(work));
    }
    let (node, mut driver) = builder.start_driven().map_err(pair::failed(STARTING))?;
    let work = async {
        let signals = Signals::listen()?;
        serve(args, signals, node, pools).await
    };
    let tasks = LocalSet::new();
    let work = tasks.run_until(work);
    driver.run_looking(work)
}

const STARTING: &str = "cannot start the node";

async fn serve(
    args: &NodeArgs,
    mut signals: Signals,
    node: Node,
    pools: Vec<Pool>,
) -> Result<Verdict, Failure> {
    let why = match ready(args, &node).await {
        Ok(()) => until_stopped(args, Engine::new(node.clone(), pools), &mut signals).await,
        Err(failure) => {
            node.shutdown().await;
            return Err(failure);
        }
    };
    let report = node.shutdown().await;
    let leaked: Vec<String> = report
        .leaked
        .iter()
        .map(|room| room.key.to_string())
        .take(protocol::MAX_LIST)
        .collect();
    output::print_json(&json!({
        "event": "stopped", "why": why?, "drained": report.drained, "leaked": leaked,
    }))?;
    if report.drained {
        Ok(Verdict::Met)
    } else {
        let count = report.leaked.len();
        Err(Failure::Failed(format!(
            "the node did not drain within its shutdown deadline; {count} rooms are left"
        )))
    }
}

fn builder(args: &NodeArgs, key: Option<ClusterKey>, pools: &[Pool]) -> NodeBuilder {
    let mut limits = Limits::default();
    args.limit
        .iter()
        .for_each(|setting| setting.apply(&mut limits));
    let mut deadlines = Deadlines::default();
    args.deadline
        .iter()
        .for_each(|setting| setting.apply(&mut deadlines));
    let mut builder = args.net.spin(Node::builder(&args.name));
    builder = builder
        .lanes(usize::from(args.lanes))
        .limits(limits)
        .deadlines(deadlines)
        .net(Net {
            listen: args.listen.clone(),
            key,
            ..args.net.net()
        });
    if let Some(shards) = args.shards {
        builder = builder.shards(usize::from(shards));
    }
    for pool in pools {
        builder = builder.pool(pool.clone());
    }
    builder
}

/// Connects to the peers that were named, and says that the node serves.
async fn ready(args: &NodeArgs, node: &Node) -> Result<(), Failure> {
    let mut peers = Vec::new();
    for address in &args.connect {
        let peer = node.connect(address).await;
        let peer = peer.map_err(pair::failed(&format!("cannot connect to {address}")))?;
        peers.push(peer.name().to_owned());
    }
    output::print_json(&json!({
        "event": "ready", "name": node.name(), "pid": std::process::id(),
        "addresses": node.addresses(), "peers": peers,
    }))
}

/// Serves; says why that is over.
async fn until_stopped(
    args: &NodeArgs,
    engine: Engine,
    signals: &mut Signals,
) -> Result<&'static str, Failure> {
    let mut input = None;
    if args.commands || args.until_stdin_closes {
        let reading = lines::start();
        input = Some(reading.map_err(pair::failed("cannot read standard input"))?);
    }
    loop {
        let line = tokio::select! {
            name = signals.any() => return Ok(name),
            line = next(&mut input) => line,
        };
        match line {
            None if args.until_stdin_closes => return Ok("standard input ended"),
            None => input = None,
            Some(line) if args.commands => {
                // The command is still done in turn, but a signal must not wait for it.
                tokio::select! {
                    name = signals.any() => return Ok(name),
                    stop = command(&engine, line) => if stop? {
                        return Ok("stop");
                    },
                }
            }
            Some(_) => {}
        }
    }
}

/// The next line; never, without an input.
async fn next(input: &mut Option<mpsc::Receiver<Input>>) -> Option<Input> {
    match input {
        Some(lines) => lines.recv().await,
        None => std::future::pending().await,
    }
}

/// Does one command and answers it; whether it was the one to stop.
async fn command(engine: &Engine, line: Input) -> Result<bool, Failure> {
    let (id, request) = match line {
        Input::Line(line) => protocol::parse(&line),
        Input::TooLong => {
            let error = format!("the line is longer than {MAX_LINE} bytes");
            (Value::Null, Err(error))
        }
    };
    let request = match request {
        Ok(request) => request,
        Err(error) => {
            output::print_json(&protocol::answer(id, Err(error)))?;
            return Ok(false);
        }
    };
    if let Request::Wait(_) = request {
        let engine = engine.clone();
        // Only this one overlaps with others: what it waits for may need them.
        tokio::task::spawn_local(async move {
            let result = engine.run(request).await;
            if let Err(failure) = output::print_json(&protocol::answer(id, result)) {
                output::complain(&format!("error: {failure}"));
            }
        });
        return Ok(false);
    }
    let stop = request == Request::Stop {};
    let result = engine.run(request).await;
    output::print_json(&protocol::answer(id, result))?;
    Ok(stop)
}

fn pool(spec: &PoolSpec, shared: bool) -> Result<Pool, Failure> {
    let layout = pair::named_layout(&spec.name, spec.layers, spec.pages, spec.page_bytes);
    pair::new_pool(layout, shared).map_err(|e| Failure::Usage(format!("pool {:?}: {e}", spec.name)))
}

/// The cluster's key: never on the command line, where every user of the machine could see it.
pub(crate) fn key(file: Option<&Path>) -> Result<Option<ClusterKey>, Failure> {
    let (from, text) = match file {
        Some(path) => {
            let text = secret::read(path, secret::MOST);
            let text = text.map_err(|e| {
                Failure::Usage(format!("key file {}: cannot be read: {e}", path.display()))
            })?;
            (format!("key file {}", path.display()), text)
        }
        None => match env::var(KEY_VARIABLE) {
            Ok(text) => (KEY_VARIABLE.to_owned(), text.into_bytes()),
            Err(VarError::NotPresent) => return Ok(None),
            Err(VarError::NotUnicode(_)) => {
                let text = format!("{KEY_VARIABLE} is not valid UTF-8; use --key-file");
                return Err(Failure::Usage(text));
            }
        },
    };
    ClusterKey::new(text.trim_ascii())
        .map(Some)
        .map_err(|e| Failure::Usage(format!("{from}: {e}")))
}

struct Signals {
    term: Signal,
    int: Signal,
}

impl Signals {
    fn listen() -> Result<Signals, Failure> {
        let listen = |kind| signal(kind).map_err(pair::failed("cannot listen to signals"));
        Ok(Signals {
            term: listen(SignalKind::terminate())?,
            int: listen(SignalKind::interrupt())?,
        })
    }

    async fn any(&mut self) -> &'static str {
        tokio::select! {
            _ = self.term.recv() => "SIGTERM",
            _ = self.int.recv() => "SIGINT",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_file_is_taken_without_its_last_line_end_and_a_short_one_is_refused() {
        let path = env::temp_dir().join(format!("kvroom-key-{}", std::process::id()));
        std::fs::write(&path, "0123456789abcdef\n").unwrap();
        let expected = ClusterKey::new("0123456789abcdef").unwrap();
        assert!(key(Some(&path)).unwrap() == Some(expected));
        std::fs::write(&path, "0123456789abcde\n").unwrap();
        let e = key(Some(&path)).unwrap_err();
        assert_eq!(e.exit_code(), super::super::exit::USAGE);
        assert!(e.to_string().contains("15 bytes"), "{e}");
        std::fs::remove_file(&path).unwrap();
        assert!(key(Some(&path)).is_err());
    }
}
