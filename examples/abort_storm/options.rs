//! The command line.

use crate::storms::{Side, Storm};
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
    /// TCP connections between nodes, over the loopback
    Tcp,
    /// Shared pools of one host: a TCP address, of which the nodes find out that it is near
    Shm,
    /// UCX, over the loopback
    Ucx,
}

impl FabricKind {
    /// Whether nodes that it joins can be in two processes.
    pub(crate) fn is_remote(self) -> bool {
        self != FabricKind::Local
    }

    /// As it is called.
    pub(crate) fn name(self) -> &'static str {
        match self {
            FabricKind::Local => "local",
            FabricKind::Tcp => "tcp",
            FabricKind::Shm => "shm",
            FabricKind::Ucx => "ucx",
        }
    }
}

/// Where pages are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum DeviceKind {
    /// In the memory of the host
    #[default]
    None,
    /// On devices that are not there: their streams are threads, which delay and overtake each other
    Emulated,
}

impl DeviceKind {
    /// As it is called.
    pub(crate) fn name(self) -> &'static str {
        match self {
            DeviceKind::None => "none",
            DeviceKind::Emulated => "emulated",
        }
    }
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
    /// With --fabric ucx: the transports that it may use, as UCX_TLS names them; tcp if not given
    #[arg(long, value_name = "LIST")]
    pub(crate) ucx_transports: Option<String>,
    /// With --fabric ucx: senders put into the other node's memory by themselves; not over tcp
    #[arg(long)]
    pub(crate) ucx_one_sided: bool,
    /// With --fabric ucx: its library; what the system finds as libucp.so.0 if not given
    #[arg(long, value_name = "FILE", env = "KVROOM_UCX_LIBRARY")]
    pub(crate) ucx_library: Option<PathBuf>,
    /// The devices that the pages are on
    #[arg(long, value_enum, default_value_t = DeviceKind::None)]
    pub(crate) device: DeviceKind,
    /// Processes, 1 or 2. With 2 this one plays decode and keeps the report, a child plays prefill
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = processes)]
    pub(crate) processes: u32,
    /// With two processes: this one plays prefill, the child decode
    #[arg(long)]
    pub(crate) swap: bool,
    /// Take the sizes and prefixes of requests from a Mooncake trace (JSONL)
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
    /// Take rooms, their sizes, arrivals and aborts from a recording of a node, in place of a storm
    #[arg(long, value_name = "FILE", conflicts_with_all = ["trace", "storm", "sessions"])]
    pub(crate) replay: Option<PathBuf>,
    /// Write what the nodes of the rooms engine recorded to FILE, with `-decode` and `-prefill` in its name
    #[arg(long, value_name = "FILE")]
    pub(crate) record: Option<PathBuf>,
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
    /// The side that this child plays
    #[arg(long, value_enum, hide = true)]
    pub(crate) child: Option<Side>,
    /// Where the child's node listens
    #[arg(long, value_name = "ADDRESS", hide = true, requires = "child")]
    pub(crate) listen: Option<String>,
}

impl Options {
    /// The side that another process plays.
    pub(crate) fn far(&self) -> Option<Side> {
        match (self.processes, self.swap) {
            (1, _) => None,
            (_, false) => Some(Side::Prefill),
            (_, true) => Some(Side::Decode),
        }
    }

    /// What does not go together, and what to do.
    pub(crate) fn contradiction(&self) -> Option<&'static str> {
        let rooms_only = self.engine != Some(EngineKind::SharedDict);
        if self.plant.is_some() && !rooms_only {
            return Some(
                "--plant makes a lane of the rooms engine go wrong; use it with --engine rooms",
            );
        }
        if self.fabric.is_remote() && !rooms_only {
            return Some("the old design is a model within one process; use --fabric local");
        }
        if self.plant == Some(Plant::TornRead) && self.fabric == FabricKind::Tcp {
            return Some(
                "torn-read is for lanes that copy from page to page; use --fabric local or shm",
            );
        }
        if self.plant.is_some() && self.fabric == FabricKind::Ucx {
            return Some("UCX has no lanes that could be made to go wrong; use another --fabric");
        }
        if self.ucx_transports.is_some() && self.fabric != FabricKind::Ucx {
            return Some("--ucx-transports is for --fabric ucx");
        }
        if self.ucx_one_sided && self.fabric != FabricKind::Ucx {
            return Some("--ucx-one-sided is for --fabric ucx");
        }
        let names = self.ucx_transports.as_deref().unwrap_or("tcp");
        if self.ucx_one_sided && names.split(',').any(|name| name == "tcp") {
            return Some(
                "no peer may put over UCX's tcp; name others with it, such as --ucx-transports posix",
            );
        }
        if self.device != DeviceKind::None {
            if !rooms_only {
                return Some("the old design is a model in host memory; use --engine rooms");
            }
            if matches!(self.fabric, FabricKind::Shm | FabricKind::Ucx) {
                return Some(
                    "no other process writes pages on a device; use --fabric local or tcp",
                );
            }
            if self.plant.is_some() {
                return Some("only lanes of the host are made to go wrong; leave --device out");
            }
        }
        if self.processes == 2 && self.fabric == FabricKind::Local {
            return Some(
                "the local fabric joins nodes of one process; use --fabric tcp, shm or ucx",
            );
        }
        if self.storm.strikes() && self.processes == 1 {
            return Some(
                "this storm strikes the other process; use --fabric tcp --processes 2 (or shm) with it",
            );
        }
        if self.record.is_some() && !rooms_only {
            return Some("the old design records nothing; use --engine rooms with --record");
        }
        if self.swap && self.processes == 1 {
            return Some("--swap says which side the other process plays; use --processes 2");
        }
        None
    }

    /// What the child is given besides its side and its address: it makes the same script.
    pub(crate) fn for_child(&self) -> Vec<String> {
        let mut arguments = vec![
            format!("--storm={}", self.storm.name()),
            format!("--sessions={}", self.sessions),
            format!("--seed={}", self.seed),
            format!("--fabric={}", self.fabric.name()),
            format!("--device={}", self.device.name()),
            "--processes=2".into(),
        ];
        let transports = self.ucx_transports.as_ref();
        arguments.extend(transports.map(|list| format!("--ucx-transports={list}")));
        if self.ucx_one_sided {
            arguments.push("--ucx-one-sided".into());
        }
        let library = self.ucx_library.as_ref();
        arguments.extend(library.map(|file| format!("--ucx-library={}", file.display())));
        let plant = self.plant.and_then(|plant| plant.to_possible_value());
        arguments.extend(plant.map(|plant| format!("--plant={}", plant.get_name())));
        let trace = self.trace.as_ref();
        arguments.extend(trace.map(|file| format!("--trace={}", file.display())));
        let replay = self.replay.as_ref();
        if replay.is_some() {
            // They do not go with it.
            arguments.retain(|a| !a.starts_with("--storm=") && !a.starts_with("--sessions="));
        }
        arguments.extend(replay.map(|file| format!("--replay={}", file.display())));
        if self.swap {
            arguments.push("--swap".into());
        }
        if self.no_abort {
            arguments.push("--no-abort".into());
        }
        arguments
    }
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
        Ok(count @ 1..=2) => Ok(count),
        _ => Err("give --processes 1 or 2".into()),
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
    fn what_does_not_go_together_is_refused_with_what_to_do() {
        let contradiction = |text: &str| {
            let words = ["abort_storm"].into_iter().chain(text.split_whitespace());
            Options::try_parse_from(words).unwrap().contradiction()
        };
        for (text, advice) in [
            ("--plant leak --engine shared-dict", "--engine rooms"),
            ("--fabric tcp --engine shared-dict", "--fabric local"),
            ("--plant torn-read --fabric tcp", "--fabric local"),
            ("--processes 2", "--fabric tcp"),
            ("--device emulated --engine shared-dict", "--engine rooms"),
            ("--device emulated --fabric shm", "--fabric local"),
            ("--device emulated --plant leak", "--device"),
            ("--storm peer-kill --fabric tcp", "--processes 2"),
            ("--storm peer-stop", "--processes 2"),
            ("--swap --fabric tcp", "--processes 2"),
            ("--fabric shm --engine shared-dict", "--fabric local"),
            ("--storm peer-kill --fabric shm", "--processes 2"),
            ("--record r.jsonl --engine shared-dict", "--engine rooms"),
            ("--ucx-one-sided --fabric tcp", "--fabric ucx"),
            ("--ucx-one-sided --fabric ucx", "--ucx-transports posix"),
            (
                "--ucx-one-sided --fabric ucx --ucx-transports posix,tcp",
                "--ucx-transports posix",
            ),
        ] {
            let said = contradiction(text).unwrap_or_else(|| panic!("{text} is taken"));
            assert!(said.contains(advice), "{text}: {said}");
        }
        for text in [
            "",
            "--fabric tcp",
            "--fabric tcp --processes 2 --swap --storm peer-kill",
            "--fabric shm --plant torn-read",
            "--fabric shm --processes 2 --swap --storm peer-stop",
            "--fabric ucx --ucx-one-sided --ucx-transports posix,cma --processes 2",
        ] {
            assert_eq!(contradiction(text), None, "{text}");
        }
    }

    #[test]
    fn a_child_reads_the_same_options() {
        for fabric in [
            "tcp",
            "shm",
            "ucx --ucx-transports posix --ucx-one-sided --ucx-library libucp.so.0",
        ] {
            let text = format!(
                "abort_storm --storm peer-stop --sessions 7 --seed 3 --fabric {fabric} \
                 --processes 2 --swap --no-abort --plant late-write --trace a.jsonl"
            );
            let parent = Options::try_parse_from(text.split_whitespace()).unwrap();
            let words = [
                "abort_storm",
                "--child",
                "decode",
                "--listen",
                "tcp://127.0.0.1:0",
            ];
            let words = words.iter().map(|&word| word.to_owned());
            let mut child = Options::try_parse_from(words.chain(parent.for_child())).unwrap();
            assert_eq!(
                (child.child.take(), parent.far()),
                (parent.far(), Some(Side::Decode))
            );
            assert_eq!(child.listen.take().as_deref(), Some("tcp://127.0.0.1:0"));
            assert_eq!(format!("{child:?}"), format!("{parent:?}"));
        }
    }

    #[test]
    fn a_bad_value_is_named_and_ends_with_code_2() {
        for (flag, value) in [
            ("--sessions", "0"),
            ("--sessions", "2001"),
            ("--sessions", "-3"),
            ("--seed", "x"),
            ("--processes", "3"),
            ("--storm", "hail"),
            ("--engine", "old"),
            ("--fabric", "smoke"),
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
