//! The environment: `KVROOM_<TABLE>_<KEY>`.

use super::schema::{Config, POOL, PoolSettings, ROWS, TABLES};
use super::source::{Complaint, Origin, Origins};
use super::value::Raw;
use super::words::nearest;
use std::ffi::OsString;

const PREFIX: &str = "KVROOM_";
const POOLS: &str = "KVROOM_POOL";
/// A secret, and no key of the file.
const CLUSTER_KEY: &str = "KVROOM_CLUSTER_KEY";

/// What the environment says.
pub(super) struct Found {
    pub(super) complaints: Vec<Complaint>,
    /// Whether it has the cluster's key.
    pub(super) key: bool,
}

/// Reads these variables onto what there is. Others of the program are left alone; one that begins as a
/// table does and is no key of it is wrong.
pub(super) fn read(
    variables: impl IntoIterator<Item = (OsString, OsString)>,
    config: &mut Config,
    origins: &mut Origins,
) -> Found {
    let mut found = Found {
        complaints: Vec::new(),
        key: false,
    };
    for (name, value) in variables {
        let Some(name) = name.to_str().filter(|name| name.starts_with(PREFIX)) else {
            continue;
        };
        if name == CLUSTER_KEY {
            found.key = true;
            continue;
        }
        let complaints = one(name, &value, config, origins);
        let at = Origin::Variable(name.to_owned());
        found.complaints.extend(complaints.into_iter().map(|what| {
            let at = at.clone();
            Complaint { at, what }
        }));
    }
    found
}

/// What is wrong with one.
fn one(name: &str, value: &OsString, config: &mut Config, origins: &mut Origins) -> Vec<String> {
    let row = ROWS.iter().find(|row| row.variable() == name);
    if row.is_none() && name != POOLS {
        return unknown(name).into_iter().collect();
    }
    let Some(text) = value.to_str() else {
        return vec!["the value is not UTF-8".to_owned()];
    };
    let origin = Origin::Variable(name.to_owned());
    let Some(row) = row else {
        let pools = PoolSettings::read_words(text);
        return take_pools(pools, config, origins, &origin);
    };
    let read = row.read(config, &Raw::Word(text.to_owned()));
    origins.say(&row.path(), origin);
    match read {
        Ok(()) => Vec::new(),
        Err(why) => {
            origins.garble(&row.path());
            vec![why]
        }
    }
}

/// Puts pools in the place of all there were.
pub(super) fn take_pools(
    pools: Result<Vec<PoolSettings>, Vec<String>>,
    config: &mut Config,
    origins: &mut Origins,
    origin: &Origin,
) -> Vec<String> {
    match pools {
        Ok(pools) => {
            origins.say(POOL, origin.clone());
            for number in 0..pools.len() {
                origins.say(&PoolSettings::path_of(number), origin.clone());
            }
            config.pools = pools;
            Vec::new()
        }
        Err(complaints) => {
            origins.garble(POOL);
            complaints
        }
    }
}

fn unknown(name: &str) -> Option<String> {
    let tables = TABLES.iter().skip(1);
    let tables = tables.map(|(table, _)| *table).chain([POOL]);
    let begins = |table: &str| name.starts_with(&format!("{PREFIX}{}_", table.to_uppercase()));
    let table = tables.into_iter().find(|table| begins(table))?;
    if table == POOL {
        let what = format!("there is no such variable; all pools are in {POOLS}, see its help");
        return Some(what);
    }
    let rows = ROWS.iter().filter(|row| row.table == table);
    let known: Vec<String> = rows.map(|row| row.variable()).collect();
    let known: Vec<&str> = known.iter().map(String::as_str).collect();
    let near = nearest(name, &known);
    Some(format!("[{table}] has no such key{near}"))
}
