//! The configuration: a file, the environment and flags, read by one schema.
//!
//! ```text
//!                  ┌──────── schema (ROWS) ────────┐
//!   kvroom.toml ─▶ file ─┐                         ├─▶ show ─▶ kvroom config, the example, the docs
//!   KVROOM_…    ─▶ env  ─┼─▶ Config + Origins ─▶ check ─▶ build ─▶ NodeBuilder, pools
//!   --flags     ─▶ given ┘        └─▶ ConfigError: everything that is wrong, and where
//! ```
//!
//! Rules: what is said later wins, in that order. Nothing is started before everything is right; all
//! errors are told at once, each with the line, the variable or the flag and what to do. No key holds
//! a secret: keys name files.

mod build;
mod check;
mod env;
mod file;
mod given;
mod pool;
mod schema;
mod show;
mod source;
mod value;
mod words;

#[cfg(test)]
mod tests;

pub(crate) use given::Given;
pub(crate) use schema::{Config, HealthSettings, Http, PoolSettings, Retention};
pub(crate) use show::example;
pub(crate) use source::{ConfigError, Origins};
pub(crate) use value::Listen;

use source::{Complaint, Origin};
use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;
use value::{Raw, Setting};

/// A configuration, and where each value of it has been said.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Effective {
    /// The values.
    pub(crate) config: Config,
    /// Where they are from.
    pub(crate) origins: Origins,
    /// Whether the cluster's key is in the environment.
    pub(crate) key_in_environment: bool,
}

impl Effective {
    /// Reads the file, if there is one, then these variables, then these flags.
    ///
    /// # Errors
    /// All that is wrong.
    pub(crate) fn read(
        path: Option<&Path>,
        variables: impl IntoIterator<Item = (OsString, OsString)>,
        given: &Given,
    ) -> Result<Effective, ConfigError> {
        let text = path.map(|path| (path.display().to_string(), text_of(path)));
        let (file, failed) = match text {
            None => (None, None),
            Some((name, Ok(text))) => (Some((name, text)), None),
            Some((name, Err(why))) => (None, Some((name, why))),
        };
        let file = file.as_ref().map(|(name, text)| (&**name, &**text));
        let read = Effective::read_text(file, variables, given);
        match failed {
            None => read,
            Some((name, why)) => {
                let mut complaints = match read {
                    Ok(_) => Vec::new(),
                    Err(error) => error.complaints().to_vec(),
                };
                complaints.push(Complaint {
                    at: Origin::Default,
                    what: format!("{name}: {why}"),
                });
                Err(ConfigError::new(complaints))
            }
        }
    }

    /// The same, with the file's name and text.
    pub(crate) fn read_text(
        file: Option<(&str, &str)>,
        variables: impl IntoIterator<Item = (OsString, OsString)>,
        given: &Given,
    ) -> Result<Effective, ConfigError> {
        let mut effective = Effective::default();
        let Effective {
            config,
            origins,
            key_in_environment,
        } = &mut effective;
        let mut complaints = Vec::new();
        if let Some((name, text)) = file {
            complaints.extend(file::read(name, text, config, origins));
        }
        let found = env::read(variables, config, origins);
        complaints.extend(found.complaints);
        *key_in_environment = found.key;
        complaints.extend(given.read(config, origins));
        complaints.extend(check::check(config, origins));
        if complaints.is_empty() {
            Ok(effective)
        } else {
            Err(ConfigError::new(complaints))
        }
    }
}

/// A duration, as a flag has it.
///
/// # Errors
/// What to write instead.
pub(crate) fn read_duration(text: &str) -> Result<Duration, String> {
    Duration::read(&Raw::Word(text.to_owned()))
}

fn text_of(path: &Path) -> Result<String, String> {
    use std::io::Read;
    let open = std::fs::File::open(path);
    let open = open.map_err(|e| format!("the file cannot be opened: {e}"))?;
    let mut bytes = Vec::new();
    let most = file::MAX_FILE as u64;
    open.take(most + 1)
        .read_to_end(&mut bytes)
        .map_err(|e| format!("the file cannot be read: {e}"))?;
    if bytes.len() as u64 > most {
        return Err(format!("the file has more than {most} bytes"));
    }
    String::from_utf8(bytes).map_err(|e| {
        let line = e.as_bytes()[..e.utf8_error().valid_up_to()]
            .iter()
            .filter(|byte| **byte == b'\n')
            .count();
        format!("line {} is not UTF-8", line + 1)
    })
}
