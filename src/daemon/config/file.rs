//! The file: TOML, read key by key, with the line of everything that is wrong.

use super::schema::{Config, POOL, POOL_ROWS, PoolSettings, ROWS, TABLES};
use super::source::{Complaint, Origin, Origins};
use super::value::Raw;
use super::words::nearest;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The most bytes that a file may have.
pub(super) const MAX_FILE: usize = 1 << 20;

/// Reads a file's text onto what there is; gives what is wrong with it.
pub(super) fn read(
    name: &str,
    text: &str,
    config: &mut Config,
    origins: &mut Origins,
) -> Vec<Complaint> {
    let lines = Lines { name, text };
    let (table, errors) = DeTable::parse_recoverable(text);
    if !errors.is_empty() {
        // What was recovered would only repeat them.
        let complaints = errors.iter().map(|error| Complaint {
            at: lines.at(error.span().map_or(0, |span| span.start)),
            what: format!("this is not TOML: {}", error.message()),
        });
        return complaints.collect();
    }
    let mut reading = Reading {
        lines,
        config,
        origins,
        complaints: Vec::new(),
    };
    reading.top(table.get_ref());
    reading.complaints
}

struct Lines<'a> {
    name: &'a str,
    text: &'a str,
}

impl Lines<'_> {
    fn at(&self, offset: usize) -> Origin {
        let before = self.text.as_bytes().iter().take(offset);
        let line = 1 + before.filter(|byte| **byte == b'\n').count();
        Origin::File(self.name.to_owned(), line)
    }
}

struct Reading<'a> {
    lines: Lines<'a>,
    config: &'a mut Config,
    origins: &'a mut Origins,
    complaints: Vec<Complaint>,
}

impl Reading<'_> {
    fn top(&mut self, table: &DeTable<'_>) {
        for (key, value) in table {
            let name: &str = key.get_ref();
            let start = key.span().start;
            if name == POOL {
                self.pools(start, value);
            } else if !name.is_empty() && TABLES.iter().any(|(table, _)| *table == name) {
                match value.get_ref().as_table() {
                    Some(inner) => self.table(name, inner),
                    None => self.complain(start, format!("{name} is a table; write [{name}]")),
                }
            } else {
                self.key("", name, start, value);
            }
        }
    }

    fn table(&mut self, table: &str, inner: &DeTable<'_>) {
        for (key, value) in inner {
            self.key(table, key.get_ref(), key.span().start, value);
        }
    }

    fn key(&mut self, table: &str, name: &str, start: usize, value: &Spanned<DeValue<'_>>) {
        let found = ROWS
            .iter()
            .find(|row| row.table == table && row.key == name);
        let Some(row) = found else {
            let known = ROWS.iter().filter(|row| row.table == table);
            let mut known: Vec<&str> = known.map(|row| row.key).collect();
            let what = if table.is_empty() {
                known.extend(TABLES.iter().skip(1).map(|(table, _)| *table));
                known.push(POOL);
                format!("there is no key {name:?}")
            } else {
                format!("[{table}] has no key {name:?}")
            };
            return self.complain(start, what + &nearest(name, &known));
        };
        let path = row.path();
        match row.read(self.config, &raw(value.get_ref())) {
            Ok(()) => {}
            Err(why) => {
                self.origins.garble(&path);
                self.complain(value.span().start, format!("{path}: {why}"));
            }
        }
        self.origins.say(&path, self.lines.at(start));
    }

    fn pools(&mut self, start: usize, value: &Spanned<DeValue<'_>>) {
        let at = self.lines.at(start);
        self.origins.say(POOL, at);
        let tables = value.get_ref().as_array().map(|array| {
            let tables = array.iter().map(|one| (one, one.get_ref().as_table()));
            tables.collect::<Vec<_>>()
        });
        let Some(tables) = tables else {
            return self.complain(start, "there can be several pools; write [[pool]]".into());
        };
        self.config.pools.clear();
        for (number, (one, table)) in tables.into_iter().enumerate() {
            let start = one.span().start;
            match table {
                Some(table) => self.pool(number, start, table),
                None => self.complain(start, "a pool is a table; write [[pool]]".into()),
            }
        }
    }

    fn pool(&mut self, number: usize, start: usize, table: &DeTable<'_>) {
        let mut pool = PoolSettings::default();
        let mut given = Vec::new();
        let mut garbled = false;
        for (key, value) in table {
            let name: &str = key.get_ref();
            let Some(row) = POOL_ROWS.iter().find(|row| row.key == name) else {
                let known: Vec<&str> = POOL_ROWS.iter().map(|row| row.key).collect();
                let what = format!("a pool has no key {name:?}{}", nearest(name, &known));
                self.complain(key.span().start, what);
                continue;
            };
            given.push(row.key);
            if let Err(why) = row.read(&mut pool, &raw(value.get_ref())) {
                garbled = true;
                self.complain(value.span().start, format!("pool.{name}: {why}"));
            }
        }
        pool.settle(&given);
        for key in PoolSettings::REQUIRED {
            if !given.contains(&key) {
                garbled = true;
                self.complain(start, format!("the pool has no {key}"));
            }
        }
        let path = PoolSettings::path_of(number);
        self.origins.say(&path, self.lines.at(start));
        if garbled {
            self.origins.garble(&path);
        }
        self.config.pools.push(pool);
    }

    fn complain(&mut self, start: usize, what: String) {
        let at = self.lines.at(start);
        self.complaints.push(Complaint { at, what });
    }
}

/// A value of TOML.
pub(super) fn raw(value: &DeValue<'_>) -> Raw {
    match value {
        DeValue::Boolean(value) => Raw::Bool(*value),
        DeValue::Integer(value) => match i128::from_str_radix(value.as_str(), value.radix()) {
            Ok(value) => Raw::Integer(value),
            Err(_) => Raw::Other("a number that is too large"),
        },
        DeValue::String(text) => Raw::Text(text.to_string()),
        DeValue::Array(list) => Raw::List(list.iter().map(|one| raw(one.get_ref())).collect()),
        DeValue::Float(_) => Raw::Other("a number with a fraction"),
        DeValue::Datetime(_) => Raw::Other("a date"),
        DeValue::Table(_) => Raw::Other("a table"),
    }
}
