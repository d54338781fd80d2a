//! The command line.

use crate::storms::Storm;
use clap::{Parser, ValueEnum};
use std::path::PathBuf;

/// Which design a storm falls on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum EngineKind {
    /// This project: every room is an actor, memory comes back on proof
    Rooms,
    /// The old design: dictionaries that all threads share, workers that assert
    SharedDict,
}

/// A path to the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FabricKind {
    /// Copies within this process
    Local,
}

/// A wrong that a lane really does, to see that it is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Plant {
    /// Write into pages after they were given back
    LateWrite,
    /// Read a source after it was given back
    TornRead,
    /// Keep a lease for ever
    Leak,
}

/// Replays an abort storm and reports what it did to memory and to the next request.
#[derive(Clone, Debug, Parser)]
#[command(name = "abort_storm", version, long_about = None, after_help = "\
Exit codes: 0 the run worked and rooms kept its contract; 1 it did not, or something was planted; \
2 the command line cannot be used.
With --json the last line of standard output is one JSON object (with both engines: the line before \
is shared-dict's, the last is rooms').")]
pub(crate) struct Options {
    /// The engine to run; without it both run, one after the other
    #[arg(long, value_enum)]
    pub(crate) engine: Option<EngineKind>,
    /// The storm
    #[arg(long, value_enum, default_value_t = Storm::Incident)]
    pub(crate) storm: Storm,
    /// Agent sessions, 1 to 2000
    #[arg(long, value_name = "N", default_value_t = 80, value_parser = sessions)]
    pub(crate) sessions: usize,
    /// Seed of the load and of the storm
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// The fabric
    #[arg(long, value_enum, default_value_t = FabricKind::Local)]
    pub(crate) fabric: FabricKind,
    /// Processes; prefill and decode share one
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = processes)]
    pub(crate) processes: u32,
    /// Take the sizes and prefixes of requests from a Mooncake trace (JSONL)
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
    /// The same load, and nobody aborts
    #[arg(long)]
    pub(crate) no_abort: bool,
    /// Make a lane of the rooms engine really do the wrong thing once
    #[arg(long, value_enum, value_name = "WHAT")]
    pub(crate) plant: Option<Plant>,
    /// Print reports as JSON, one line each
    #[arg(long)]
    pub(crate) json: bool,
    /// Write a timeline of the rooms (of the last engine that runs) as one HTML file
    #[arg(long, value_name = "FILE")]
    pub(crate) timeline: Option<PathBuf>,
}

fn sessions(text: &str) -> Result<usize, String> {
    let wanted = "give --sessions a whole number from 1 to 2000";
    match text.parse() {
        Ok(count @ 1..=2000) => Ok(count),
        _ => Err(wanted.into()),
    }
}

fn processes(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(1) => Ok(1),
        _ => Err("the local fabric joins nodes of one process; give --processes 1".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed_and_defaults_to_the_incident_on_both() {
        Options::command().debug_assert();
        let options = Options::try_parse_from(["abort_storm"]).unwrap();
        assert_eq!((options.engine, options.storm), (None, Storm::Incident));
        assert_eq!((options.sessions, options.seed), (80, 1));
    }

    #[test]
    fn a_bad_value_is_named_and_ends_with_code_2() {
        for (flag, value) in [
            ("--sessions", "0"),
            ("--sessions", "2001"),
            ("--sessions", "-3"),
            ("--seed", "x"),
            ("--processes", "2"),
            ("--storm", "hail"),
            ("--engine", "old"),
            ("--fabric", "tcp"),
            ("--plant", "tree"),
        ] {
            let argument = format!("{flag}={value}");
            let error = Options::try_parse_from(["abort_storm", &argument]).unwrap_err();
            assert_eq!(error.exit_code(), 2);
            let text = error.to_string();
            assert!(text.contains(value) && text.contains(flag), "{text}");
        }
    }
}
