//! The command lines of `kvroom serve` and `kvroom config`.

use crate::daemon::{Effective, Given};
use clap::Args;
use std::path::PathBuf;

pub(super) const AFTER: &str = "\
Without any argument it serves HTTP on 127.0.0.1:7480, for a node without pools that lives as long as
the process. Every option is also a key of the file and a variable of the environment: --http-listen,
http.listen, KVROOM_HTTP_LISTEN. What is said later wins: the file, the environment, the options.
`kvroom config` prints what is in effect.

Standard output, one JSON object on each line:
  {\"event\":\"ready\",\"name\":…,\"pid\":…,\"http\":[…],\"addresses\":[…]}   it serves
  {\"event\":\"stopped\",\"why\":…,\"drained\":…,\"leaked\":[…]}           the last line
It stops on SIGTERM or SIGINT. The exit code is 0 if every room drained by the deadline, 1 if not or
if it could not start, 2 if the configuration is wrong.";

pub(super) const CONFIG_AFTER: &str = "\
Takes the options of `kvroom serve`, and reads the same file and environment. Prints the effective
configuration as TOML that serve takes again, with where each value is from; secrets are in files, and
are not printed. The exit code is 2, and all errors are named, if serve would refuse it.";

/// Arguments of `serve`.
#[derive(Args, Debug)]
pub(crate) struct ServeArgs {
    /// The file with the configuration, TOML
    #[arg(long, value_name = "FILE", env = "KVROOM_CONFIG")]
    pub(crate) config: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) given: Given,
}

/// Arguments of `config`.
#[derive(Args, Debug)]
pub(crate) struct ConfigArgs {
    /// JSON instead of TOML
    #[arg(long)]
    pub(crate) json: bool,
    /// Print the example file instead: every key with its default and what it is
    #[arg(long, conflicts_with = "json")]
    pub(crate) example: bool,
    #[command(flatten)]
    pub(crate) serve: ServeArgs,
}

impl ServeArgs {
    /// The effective configuration.
    ///
    /// # Errors
    /// All that is wrong with it.
    pub(crate) fn effective(&self) -> Result<Effective, crate::daemon::ConfigError> {
        Effective::read(self.config.as_deref(), std::env::vars_os(), &self.given)
    }
}
