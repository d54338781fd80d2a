//! The command lines of the commands that ask a daemon.

use clap::{Args, ValueEnum};
use std::path::PathBuf;
use std::time::Duration;

pub(super) const AFTER: &str = "\
Asks a daemon (`kvroom serve`) over HTTP. On a terminal the answer is for people; with --json, or if
standard output is no terminal, it is the daemon's JSON. The exit code is 1 if the daemon cannot be
asked or refuses (what it says is on standard error), 2 if the command line is wrong.";

pub(super) const ROOM_AFTER: &str = "\
Asks a daemon (`kvroom serve`) over HTTP. On a terminal the answer is for people; with --json, or if
standard output is no terminal, it is the daemon's JSON. The exit code is 1 if the daemon cannot be
asked or refuses (what it says is on standard error), 2 if the command line is wrong.
With --wait the exit code is 3 if the room is not over by then, or its memory not back with
--for released. How it ended does not count: see outcome.";

/// Which daemon, and how its answer is written.
#[derive(Args, Clone, Debug)]
pub(crate) struct DaemonArgs {
    /// Where the daemon serves: http://HOST:PORT or unix:///PATH
    #[arg(
        long,
        value_name = "URL",
        env = "KVROOM_URL",
        default_value = "http://127.0.0.1:7480"
    )]
    pub(crate) url: String,
    /// A file with the token that the daemon asks for
    #[arg(long, value_name = "FILE", env = "KVROOM_TOKEN_FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// Give up when the daemon says nothing for so long
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration)]
    pub(crate) timeout: Duration,
    /// JSON, on a terminal too
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `rooms`.
#[derive(Args, Debug)]
pub(crate) struct RoomsOfDaemonArgs {
    /// Rooms in this state
    #[arg(long, value_enum)]
    pub(crate) state: Option<State>,
    /// Rooms of this role
    #[arg(long, value_enum)]
    pub(crate) role: Option<RoleWord>,
    /// Rooms with this tag
    #[arg(long, value_name = "TAG")]
    pub(crate) tag: Option<String>,
    /// Rooms with a leg to this peer
    #[arg(long, value_name = "NAME")]
    pub(crate) peer: Option<String>,
    /// Rooms whose memory is held for longer than the drain deadline
    #[arg(long)]
    pub(crate) quarantined: bool,
    /// So many rooms at most
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) limit: u32,
    #[command(flatten)]
    pub(crate) daemon: DaemonArgs,
}

/// Arguments of `room`.
#[derive(Args, Debug)]
pub(crate) struct RoomArgs {
    /// Its id
    pub(crate) id: u64,
    /// Its attempt; the newest if not given
    #[arg(long, value_name = "N")]
    pub(crate) attempt: Option<u32>,
    /// Its role, if the node has it in both
    #[arg(long, value_enum)]
    pub(crate) role: Option<RoleWord>,
    /// Wait until it is over, for so long at most
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) wait: Option<Duration>,
    /// What to wait for
    #[arg(long = "for", value_enum, default_value = "outcome", requires = "wait")]
    pub(crate) until: Until,
    #[command(flatten)]
    pub(crate) daemon: DaemonArgs,
}

/// Arguments of `abort`.
#[derive(Args, Debug)]
#[command(group = clap::ArgGroup::new("which").required(true))]
pub(crate) struct AbortRoomsArgs {
    /// The room with this id
    #[arg(group = "which")]
    pub(crate) id: Option<u64>,
    /// Rooms with this tag
    #[arg(long, value_name = "TAG", group = "which")]
    pub(crate) tag: Option<String>,
    /// Rooms with a leg to this peer
    #[arg(long, value_name = "NAME", group = "which")]
    pub(crate) peer: Option<String>,
    /// All rooms of the node
    #[arg(long, group = "which")]
    pub(crate) all: bool,
    /// The attempt of the room; the newest if not given
    #[arg(long, value_name = "N", conflicts_with_all = ["tag", "peer", "all"])]
    pub(crate) attempt: Option<u32>,
    /// The role of the room, if the node has it in both
    #[arg(long, value_enum, conflicts_with_all = ["tag", "peer", "all"])]
    pub(crate) role: Option<RoleWord>,
    /// Why; the outcome of each room has it
    #[arg(long, value_name = "TEXT", default_value = "kvroom abort")]
    pub(crate) reason: String,
    #[command(flatten)]
    pub(crate) daemon: DaemonArgs,
}

/// Arguments of `pools`.
#[derive(Args, Debug)]
pub(crate) struct PoolsArgs {
    #[command(flatten)]
    pub(crate) daemon: DaemonArgs,
}

/// Arguments of `events`.
#[derive(Args, Debug)]
pub(crate) struct EventsArgs {
    /// Events of these types only
    #[arg(long, value_enum, value_delimiter = ',', default_value = "room,peer")]
    pub(crate) types: Vec<EventType>,
    /// Events of this room only
    #[arg(long, value_name = "ID")]
    pub(crate) room: Option<u64>,
    /// Go on after this event, as a former line has its id
    #[arg(long, value_name = "EVENT")]
    pub(crate) after: Option<String>,
    /// Stop after so many events
    #[arg(long, value_name = "N")]
    pub(crate) count: Option<u64>,
    #[command(flatten)]
    pub(crate) daemon: DaemonArgs,
}

/// Arguments of `record`.
#[derive(Args, Debug)]
pub(crate) struct RecordArgs {
    /// Entries from this one on; the newest ones if not said
    #[arg(long, value_name = "SEQ")]
    pub(crate) since: Option<u64>,
    /// So many entries at most; 100000 if not said
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<u64>,
    /// Entries about this room only
    #[arg(long, value_name = "ID")]
    pub(crate) room: Option<u64>,
    /// Write them there instead of to standard output
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) daemon: DaemonArgs,
}

macro_rules! words {
    ($($(#[doc = $doc:literal])+ $name:ident { $($(#[doc = $word_doc:literal])+ $word:ident = $text:literal,)+ })+) => {$(
        $(#[doc = $doc])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
        pub(crate) enum $name {
            $($(#[doc = $word_doc])+ $word,)+
        }

        impl $name {
            /// As the daemon has it.
            pub(crate) fn word(self) -> &'static str {
                match self {
                    $($name::$word => $text,)+
                }
            }
        }
    )+};
}

words! {
    /// A room's state.
    State {
        /// Started, and nothing is going yet
        Registered = "registered",
        /// Bytes are going
        Transferring = "transferring",
        /// Over, and its memory is still held
        Draining = "draining",
        /// Everything has arrived
        Done = "done",
        /// Ended before
        Aborted = "aborted",
    }

    /// A room's role.
    RoleWord {
        /// The prefill side
        Send = "send",
        /// The decode side
        Receive = "receive",
    }

    /// What to wait for.
    Until {
        /// How it ended
        Outcome = "outcome",
        /// Its memory
        Released = "released",
    }

    /// A type of events.
    EventType {
        /// Rooms that go on
        Room = "room",
        /// Peers that come and go
        Peer = "peer",
        /// What the dashboard draws, once a second
        Sample = "sample",
    }
}

/// A duration, as the configuration has it.
fn duration(text: &str) -> Result<Duration, String> {
    crate::daemon::read_duration(text)
}
