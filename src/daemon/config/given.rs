//! What flags say, however they were read.

use super::env::take_pools;
use super::schema::{Config, POOL, PoolSettings, ROWS};
use super::source::{Complaint, Origin, Origins};
use super::value::Raw;

/// What flags say: the path of a key, and the words of its flag.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Given(Vec<(String, Vec<String>)>);

impl Given {
    /// Paths of keys, with the words of each.
    pub(super) fn of(words: impl IntoIterator<Item = (String, Vec<String>)>) -> Given {
        Given(words.into_iter().collect())
    }

    /// Reads them onto what there is; gives what is wrong with them.
    pub(super) fn read(&self, config: &mut Config, origins: &mut Origins) -> Vec<Complaint> {
        let mut complaints = Vec::new();
        for (path, words) in &self.0 {
            if path == POOL {
                let at = Origin::Flag(POOL.to_owned());
                let wrong = take_pools(
                    PoolSettings::read_words(&words.join(";")),
                    config,
                    origins,
                    &at,
                );
                complaints.extend(wrong.into_iter().map(|what| {
                    let at = at.clone();
                    Complaint { at, what }
                }));
                continue;
            }
            let Some(row) = ROWS.iter().find(|row| row.path() == *path) else {
                continue;
            };
            let at = Origin::Flag(row.flag());
            let raw = match words.as_slice() {
                [word] => Raw::Word(word.clone()),
                words => Raw::Words(words.to_vec()),
            };
            if let Err(what) = row.read(config, &raw) {
                origins.garble(path);
                let at = at.clone();
                complaints.push(Complaint { at, what });
            }
            origins.say(path, at);
        }
        complaints
    }
}
