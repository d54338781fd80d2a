//! Who is compared, and how each is asked to do a task.

use super::super::super::args::CompareArgs;
use super::super::super::exit::Failure;
use super::super::super::pair::failed;
use super::super::workload::{Kind, Workload};
use super::parse::{self, Run};
use super::process::Ended;
use std::env;
use std::path::Path;
use std::process::Command;

/// What runs a task over one fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Contender {
    NixlDefault,
    KvroomShm,
    NixlTcp,
    KvroomTcp,
    MooncakeTcp,
}

/// What each of them does.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Task {
    Workload(Workload),
    /// Aborts in the middle of a large request.
    Abort,
}

/// The request that is aborted.
const ABORTED: &str = "b_32x512x16K";
/// Mooncake refuses batches of more pages than this; its default is 2,056.
const MOONCAKE_QUEUE: (&str, &str) = ("MC_TCP_MAX_QUEUED_TRANSFERS_PER_PEER", "65535");
/// Requests of Mooncake's latency and rate, of which one takes up to a millisecond.
const MOONCAKE_COUNT: u32 = 2_000;

impl Task {
    /// Name of the abort.
    pub(super) const ABORT: &'static str = "abort";

    pub(super) fn name(&self) -> &str {
        match self {
            Task::Workload(w) => &w.name,
            Task::Abort => Task::ABORT,
        }
    }
}

impl Contender {
    /// All, in the order of a round: each fabric of this program behind its closest competitor.
    pub(super) const ALL: [Contender; 5] = [
        Contender::NixlDefault,
        Contender::KvroomShm,
        Contender::NixlTcp,
        Contender::KvroomTcp,
        Contender::MooncakeTcp,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Contender::NixlDefault => "NIXL default",
            Contender::KvroomShm => "kvroom shm",
            Contender::NixlTcp => "NIXL tcp",
            Contender::KvroomTcp => "kvroom tcp",
            Contender::MooncakeTcp => "Mooncake tcp",
        }
    }

    /// The command that does the task, or why there is none.
    ///
    /// # Errors
    /// This program cannot be found.
    pub(super) fn command(
        self,
        args: &CompareArgs,
        task: &Task,
    ) -> Result<Result<Command, String>, Failure> {
        let missing = |flag: &str| Ok(Err(format!("not run: {flag} is not given")));
        match self {
            Contender::KvroomShm => kvroom("shm", args, task).map(Ok),
            Contender::KvroomTcp => kvroom("tcp", args, task).map(Ok),
            Contender::NixlDefault | Contender::NixlTcp => {
                let Some(python) = &args.python else {
                    return missing("--python");
                };
                let tls = if self == Contender::NixlTcp {
                    "tcp"
                } else {
                    "default"
                };
                Ok(Ok(nixl(python, tls, args, task)))
            }
            Contender::MooncakeTcp => match &args.python_mooncake {
                Some(python) => Ok(Ok(mooncake(python, args, task))),
                None => missing("--python-mooncake"),
            },
        }
    }

    /// What an ended process has to say about the task.
    pub(super) fn parse(self, task: &Task, ended: &Ended) -> Run {
        match self {
            Contender::KvroomShm => parse::kvroom("shm", task, ended),
            Contender::KvroomTcp => parse::kvroom("tcp", task, ended),
            _ => parse::peer(task, ended),
        }
    }
}

fn kvroom(fabric: &str, args: &CompareArgs, task: &Task) -> Result<Command, Failure> {
    let program = env::current_exe().map_err(failed("cannot find this program"))?;
    let mut command = Command::new(program);
    let (bench, workload) = match task {
        Task::Abort => ("abort", None),
        Task::Workload(w) => match w.kind {
            Kind::Throughput => ("transfer", Some(&w.name)),
            Kind::Rate { .. } => ("rate", Some(&w.name)),
            Kind::Latency { .. } => ("latency", None),
        },
    };
    command.args([
        "bench",
        bench,
        "--fabric",
        fabric,
        "--processes",
        "2",
        "--json",
    ]);
    if let Some(name) = workload {
        command.args(["--workload", name, "--reps", &args.reps.to_string()]);
    }
    Ok(command)
}

fn nixl(python: &Path, tls: &str, args: &CompareArgs, task: &Task) -> Command {
    let mut command = script(python, args, "nixl_bench.py", task);
    command.args(["--tls", tls]);
    // Its best without its progress thread; but then a target that only waits makes no progress, and
    // in the abort it waits.
    let progress = if *task == Task::Abort { "1" } else { "0" };
    command.args(["--prog", progress]);
    command
}

fn mooncake(python: &Path, args: &CompareArgs, task: &Task) -> Command {
    let mut command = script(python, args, "mooncake_bench.py", task);
    command.args(["--maxcount", &MOONCAKE_COUNT.to_string()]);
    command.env(MOONCAKE_QUEUE.0, MOONCAKE_QUEUE.1);
    command
}

fn script(python: &Path, args: &CompareArgs, name: &str, task: &Task) -> Command {
    let mut command = Command::new(python);
    command.current_dir(&args.peers).arg(name);
    match task {
        Task::Abort => command.args(["abort", "--wl", ABORTED, "--reps", "1"]),
        Task::Workload(w) => {
            let reps = match w.kind {
                Kind::Throughput => args.reps,
                // Each of them is thousands of requests.
                _ => 1,
            };
            command.args(["bench", "--wl", &w.name, "--reps", &reps.to_string()])
        }
    };
    command
}
