//! All three sources, one after the other, and what is in effect after them.

use super::given::Given;
use super::schema::Config;
use super::source::{Complaint, ConfigError, Origin, Origins};
use super::{check, env, file};
use std::ffi::OsString;
use std::path::Path;

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
