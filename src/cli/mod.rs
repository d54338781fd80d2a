//! The command line: parse, set up logs, run one command, turn its end into an exit code.
//!
//! ```text
//!   args ─▶ log ─▶ doctor | bench | node | serve | config | completions ─▶ output ─▶ stdout
//!                              └── Failure | unmet bars ─▶ exit code, stderr
//! ```
//!
//! Rules: results go to stdout and nothing else does; logs and errors go to stderr. A command
//! returns what it found as data; only this module decides how the process ends.

pub(crate) mod args;
mod bench;
mod child;
mod client;
mod config;
mod doctor;
pub(crate) mod exit;
#[cfg(test)]
mod fuzzing;
mod log;
pub(crate) mod node;
pub(crate) mod output;
mod pair;
mod pattern;
mod proc;
mod raw;
pub(crate) mod secret;
pub(crate) mod settings;
mod temp;

use clap::{CommandFactory, Parser};
use exit::{Failure, Verdict};
pub(crate) use node::node_stats;
use std::process::ExitCode;

/// Runs the program and gives its exit code.
pub(crate) fn main() -> ExitCode {
    let cli = match args::Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version come this way too. Nobody may be left to read them.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(exit::FAILED));
        }
    };
    match log::start(cli.log_format).and_then(|()| run(cli.command)) {
        Ok(Verdict::Met) => ExitCode::from(exit::OK),
        Ok(Verdict::Unmet(what)) => {
            for one in what {
                output::complain(&format!("not met: {one}"));
            }
            ExitCode::from(exit::UNMET)
        }
        Err(failure) => {
            output::complain(&format!("error: {failure}"));
            ExitCode::from(failure.exit_code())
        }
    }
}

fn run(command: args::Command) -> Result<Verdict, Failure> {
    match command {
        args::Command::Doctor(args) => doctor::run(&args),
        args::Command::Bench(args) => bench::run(args),
        args::Command::Node(args) => node::run(&args),
        args::Command::Serve(args) => crate::daemon::run(args.effective()?.config),
        args::Command::Config(args) => config::run(&args),
        args::Command::Rooms(args) => client::rooms(&args),
        args::Command::Room(args) => client::room(&args),
        args::Command::Abort(args) => client::abort(&args),
        args::Command::Pools(args) => client::pools(&args),
        args::Command::Events(args) => client::events(&args),
        args::Command::Record(args) => client::record(&args),
        args::Command::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut args::Cli::command(), "kvroom", &mut text);
            output::print(&String::from_utf8_lossy(&text))?;
            Ok(Verdict::Met)
        }
    }
}
