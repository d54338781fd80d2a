//! Where values come from, and what is wrong with them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Where a value was said.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Origin {
    /// Nowhere: the default.
    Default,
    /// In a file, on a line.
    File(String, usize),
    /// In a variable of the environment.
    Variable(String),
    /// On the command line, by a flag.
    Flag(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::File(file, line) => write!(f, "{file}:{line}"),
            Origin::Variable(name) => f.write_str(name),
            Origin::Flag(name) => write!(f, "--{name}"),
        }
    }
}

/// Where each key that was said has its value from, by its path. Pools are "pool", and "pool NAME" for
/// each.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Origins {
    said: BTreeMap<String, Origin>,
    /// Keys whose value could not be read: what depends on them is not looked at.
    unread: BTreeSet<String>,
}

impl Origins {
    /// It was said there; what was said before does not count any more.
    pub(super) fn say(&mut self, path: &str, origin: Origin) {
        self.said.insert(path.to_owned(), origin);
    }

    /// It was said, and could not be read.
    pub(super) fn garble(&mut self, path: &str) {
        self.unread.insert(path.to_owned());
    }

    /// Where it was said.
    pub(crate) fn of(&self, path: &str) -> &Origin {
        self.said.get(path).unwrap_or(&Origin::Default)
    }

    /// Whether all of them could be read.
    pub(super) fn are_read(&self, paths: &[&str]) -> bool {
        !paths.iter().any(|path| self.unread.contains(*path))
    }

    /// The first of these that was said anywhere.
    pub(super) fn first_said(&self, paths: &[&str]) -> Origin {
        let said = paths.iter().map(|path| self.of(path));
        let mut said = said.filter(|origin| **origin != Origin::Default);
        said.next().cloned().unwrap_or(Origin::Default)
    }
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Complaint {
    /// Where.
    pub(crate) at: Origin,
    /// What, and what to do.
    pub(crate) what: String,
}

/// Everything that is wrong with a configuration, in the order of its sources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConfigError(Vec<Complaint>);

impl ConfigError {
    /// Of these, of which there is one at least.
    pub(super) fn new(mut complaints: Vec<Complaint>) -> ConfigError {
        complaints.sort();
        complaints.dedup();
        ConfigError(complaints)
    }

    /// What is wrong.
    pub(crate) fn complaints(&self) -> &[Complaint] {
        &self.0
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.0.len();
        if count != 1 {
            write!(f, "the configuration has {count} errors")?;
        } else {
            write!(f, "the configuration has an error")?;
        }
        for complaint in &self.0 {
            match &complaint.at {
                Origin::Default => write!(f, "\n  {}", complaint.what)?,
                at => write!(f, "\n  {at}: {}", complaint.what)?,
            }
        }
        Ok(())
    }
}

impl std::error::Error for ConfigError {}
