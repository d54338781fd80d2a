//! Logs: through tracing, to standard error only, filtered by `RUST_LOG`.

use super::args::LogFormat;
use super::exit::Failure;
use std::env::{self, VarError};
use std::io::{self, IsTerminal};
use tracing_subscriber::EnvFilter;

/// What is logged when `RUST_LOG` is not set.
const DEFAULT_FILTER: &str = "warn";

/// Starts logging for the rest of the process.
pub(crate) fn start(format: LogFormat) -> Result<(), Failure> {
    let filter = filter(env::var("RUST_LOG"))?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr);
    let started = match format {
        LogFormat::Human => builder.with_ansi(io::stderr().is_terminal()).try_init(),
        LogFormat::Json => builder.json().try_init(),
    };
    started.map_err(|e| Failure::Failed(format!("cannot start logging: {e}")))?;
    tracing::debug!(version = env!("CARGO_PKG_VERSION"), "logging started");
    Ok(())
}

fn filter(value: Result<String, VarError>) -> Result<EnvFilter, Failure> {
    let text = match value {
        Ok(text) if text.is_empty() => DEFAULT_FILTER.to_owned(),
        Ok(text) => text,
        Err(VarError::NotPresent) => DEFAULT_FILTER.to_owned(),
        Err(VarError::NotUnicode(_)) => {
            return Err(Failure::Usage("RUST_LOG is not valid UTF-8".to_owned()));
        }
    };
    EnvFilter::builder().parse(&text).map_err(|e| {
        Failure::Usage(format!(
            "RUST_LOG={text:?}: {e}; write for example RUST_LOG=kvroom=debug"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_filter_only_warnings_are_logged() {
        assert_eq!(
            filter(Err(VarError::NotPresent)).unwrap().to_string(),
            "warn"
        );
    }

    #[test]
    fn a_bad_filter_is_named() {
        let e = filter(Ok("kvroom=loud".to_owned())).unwrap_err();
        assert!(e.to_string().contains("kvroom=loud"), "{e}");
    }
}
