//! How the program ends: four exit codes, and the two types that lead to them.

use std::io;

/// It worked.
pub(crate) const OK: u8 = 0;
/// What was asked for failed.
pub(crate) const FAILED: u8 = 1;
/// The command line, a workload or the environment is wrong.
pub(crate) const USAGE: u8 = 2;
/// It ran, and a bar that was asked for or a check that is required is not met.
pub(crate) const UNMET: u8 = 3;

/// How a command that ran to its end turned out.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Everything that was required holds.
    Met,
    /// These requirements do not hold; one sentence each.
    Unmet(Vec<String>),
}

impl Verdict {
    /// Met if nothing is missing.
    pub(crate) fn from_missing(missing: Vec<String>) -> Verdict {
        if missing.is_empty() {
            Verdict::Met
        } else {
            Verdict::Unmet(missing)
        }
    }
}

/// Why a command did not run to its end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// What the caller gave cannot be used.
    #[error("{0}")]
    Usage(String),
    /// The work itself failed.
    #[error("{0}")]
    Failed(String),
    /// Standard output could not be written, for another reason than a reader that left.
    #[error("cannot write to standard output: {0}")]
    Output(#[source] io::Error),
}

impl From<crate::daemon::ConfigError> for Failure {
    fn from(error: crate::daemon::ConfigError) -> Failure {
        Failure::Usage(error.to_string())
    }
}

impl Failure {
    /// The exit code of this failure.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Failure::Usage(_) => USAGE,
            Failure::Failed(_) | Failure::Output(_) => FAILED,
        }
    }
}
