//! A pool as one word: `name=kv,layers=32,pages=512,page_bytes=16KiB`.

use super::schema::{POOL_ROWS, PoolSettings};
use super::value::{Backing, Raw};
use super::words::nearest;
use kvroom::PoolLayout;

impl PoolSettings {
    /// Keys that every pool has.
    pub(super) const REQUIRED: [&str; 4] = ["name", "layers", "pages", "page_bytes"];

    /// What stands for the n-th pool among the origins of values.
    pub(super) fn path_of(number: usize) -> String {
        format!("pool {number}")
    }

    /// Its shape, as the library has it.
    pub(crate) fn layout(&self) -> PoolLayout {
        PoolLayout {
            name: self.name.clone(),
            kind: self.kind,
            order: self.order,
            layers: self.layers,
            pages: self.pages,
            page_bytes: self.page_bytes.0,
            page_tokens: self.page_tokens,
        }
    }

    /// When all of its keys are read, of which these were given.
    pub(super) fn settle(&mut self, given: &[&str]) {
        if self.device.is_some() && !given.contains(&"backing") {
            self.backing = Backing::Device;
        }
    }

    /// Reads pools of one word: each `key=value,…`, with `;` between two.
    pub(super) fn read_words(word: &str) -> Result<Vec<PoolSettings>, Vec<String>> {
        let mut pools = Vec::new();
        let mut complaints = Vec::new();
        for one in word.split(';').map(str::trim).filter(|w| !w.is_empty()) {
            match PoolSettings::read_word(one) {
                Ok(pool) => pools.push(pool),
                Err(more) => complaints.extend(more),
            }
        }
        if complaints.is_empty() {
            Ok(pools)
        } else {
            Err(complaints)
        }
    }

    fn read_word(word: &str) -> Result<PoolSettings, Vec<String>> {
        let mut pool = PoolSettings::default();
        let mut given = Vec::new();
        let mut complaints = Vec::new();
        for part in word.split(',').map(str::trim).filter(|p| !p.is_empty()) {
            let Some((key, value)) = part.split_once('=') else {
                complaints.push(format!(
                    "{part:?} is not KEY=VALUE; write for example \
                     name=kv,layers=32,pages=512,page_bytes=16KiB"
                ));
                continue;
            };
            let Some(row) = POOL_ROWS.iter().find(|row| row.key == key) else {
                let known: Vec<&str> = POOL_ROWS.iter().map(|row| row.key).collect();
                complaints.push(format!("a pool has no key {key:?}{}", nearest(key, &known)));
                continue;
            };
            if given.contains(&row.key) {
                complaints.push(format!("{key} is said twice"));
            }
            given.push(row.key);
            if let Err(why) = row.read(&mut pool, &Raw::Word(value.to_owned())) {
                complaints.push(format!("{key}: {why}"));
            }
        }
        pool.settle(&given);
        for key in PoolSettings::REQUIRED {
            if !given.contains(&key) {
                complaints.push(format!("the pool {word:?} has no {key}"));
            }
        }
        if complaints.is_empty() {
            Ok(pool)
        } else {
            Err(complaints)
        }
    }
}
