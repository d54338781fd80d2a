//! The configuration as text: the effective one, the example file, the table of the documentation.

use super::Effective;
use super::schema::{Config, POOL, POOL_ROWS, PoolSettings, ROWS, Row, TABLES};
use super::source::Origin;
use super::value::Shown;
use serde_json::{Map, Value, json};
use std::fmt::Write;

/// Lines of comments are no longer.
const WIDTH: usize = 100;

impl Effective {
    /// As TOML, with where each value is from. Read again, it is the same.
    pub(crate) fn to_toml(&self) -> String {
        let version = env!("CARGO_PKG_VERSION");
        let mut text = format!("# The effective configuration of kvroom {version}.\n\n");
        for (table, _) in TABLES {
            if !table.is_empty() {
                let _ = write!(text, "\n[{table}]\n");
            }
            for row in ROWS.iter().filter(|row| row.table == *table) {
                self.line(&mut text, row);
            }
            if *table == "node" && self.key_in_environment {
                let _ = writeln!(
                    text,
                    "# KVROOM_CLUSTER_KEY is set, and used without a cluster_key_file"
                );
            }
        }
        for (number, pool) in self.config.pools.iter().enumerate() {
            let origin = self.origins.of(&PoolSettings::path_of(number));
            let _ = write!(text, "\n[[{POOL}]] # {origin}\n");
            for row in POOL_ROWS.iter() {
                let shown = row.show(pool);
                if shown != Shown::Nothing {
                    let _ = writeln!(text, "{} = {shown}", row.key);
                }
            }
        }
        text
    }

    fn line(&self, text: &mut String, row: &Row<Config>) {
        let shown = row.show(&self.config);
        let origin = self.origins.of(&row.path());
        // "none" is a value only where another one stands without it.
        let unset = shown == Shown::Nothing && row.show(&Config::default()) == Shown::Nothing;
        let _ = match (unset, origin) {
            (true, Origin::Default) => writeln!(text, "# {} is not set", row.key),
            (true, origin) => writeln!(text, "# {} is not set # {origin}", row.key),
            (false, origin) => writeln!(text, "{} = {shown} # {origin}", row.key),
        };
    }

    /// As JSON: tables of keys, each with `value` and `from`.
    pub(crate) fn to_json(&self) -> Value {
        let mut all = Map::new();
        for row in ROWS.iter() {
            let entry = json!({
                "value": row.show(&self.config).to_json(),
                "from": self.origins.of(&row.path()).to_string(),
            });
            if row.table.is_empty() {
                all.insert(row.key.to_owned(), entry);
                continue;
            }
            let table = all.entry(row.table).or_insert_with(|| json!({}));
            if let Some(table) = table.as_object_mut() {
                table.insert(row.key.to_owned(), entry);
            }
        }
        let pools = self.config.pools.iter().enumerate().map(|(number, pool)| {
            let value: Map<String, Value> = POOL_ROWS
                .iter()
                .map(|row| (row.key.to_owned(), row.show(pool).to_json()))
                .collect();
            let from = self.origins.of(&PoolSettings::path_of(number)).to_string();
            json!({ "value": value, "from": from })
        });
        all.insert(POOL.to_owned(), pools.collect());
        let secret = self.key_in_environment;
        all.insert("cluster_key_in_environment".to_owned(), secret.into());
        Value::Object(all)
    }
}

/// The example file: every key with its words and its default, all of them comments.
pub(crate) fn example() -> String {
    let mut text = String::new();
    comment(
        &mut text,
        "An example of kvroom.toml. Every key is here, with what holds if it is not said; keys that \
         have no default have an example. A variable of the environment goes before the file, and a \
         flag before both: http.listen is also KVROOM_HTTP_LISTEN and --http-listen. `kvroom config` \
         prints what is in effect, and where it is from. Secrets are not here: keys name files.",
    );
    let defaults = Config::default();
    for (table, about) in TABLES {
        if !table.is_empty() {
            text.push_str("\n\n");
            comment(&mut text, about);
            let _ = writeln!(text, "[{table}]");
        }
        for row in ROWS.iter().filter(|row| row.table == *table) {
            key(&mut text, row, &defaults);
        }
    }
    text.push_str("\n\n");
    comment(&mut text, PoolSettings::ABOUT);
    let _ = writeln!(text, "# [[{POOL}]]");
    let pool = PoolSettings::default();
    for row in POOL_ROWS.iter() {
        key(&mut text, row, &pool);
    }
    text
}

fn key<T>(text: &mut String, row: &Row<T>, defaults: &T) {
    text.push('\n');
    comment(text, row.doc);
    comment(text, &format!("({}{})", row.kind, bounds(row)));
    let _ = writeln!(text, "# {} = {}", row.key, value(row, defaults));
}

/// The default; an example where there is none.
fn value<T>(row: &Row<T>, defaults: &T) -> String {
    let default = row.show(defaults);
    match row.example {
        Some(example) if row.list => format!("[{example}]"),
        Some(example) => example.to_owned(),
        None => default.to_string(),
    }
}

fn bounds<T>(row: &Row<T>) -> String {
    match &row.bounds {
        Some((least, most)) if !is_endless(most) => {
            format!("; {} to {}", plain(least), plain(most))
        }
        Some((least, _)) => format!("; from {}", plain(least)),
        None => String::new(),
    }
}

/// Whether it is only what its type can hold.
fn is_endless(most: &Shown) -> bool {
    matches!(most, Shown::Integer(n) if *n == u64::from(u32::MAX) || *n == u64::MAX || *n == 1 << 40)
}

/// Without quotes.
fn plain(shown: &Shown) -> String {
    match shown {
        Shown::Text(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Lines of a comment.
fn comment(text: &mut String, words: &str) {
    let mut line = String::from("#");
    for word in words.split_whitespace() {
        if line.len() + 1 + word.len() > WIDTH {
            let _ = writeln!(text, "{line}");
            line.truncate(1);
        }
        line.push(' ');
        line.push_str(word);
    }
    let _ = writeln!(text, "{line}");
}

/// The tables of docs/configuration.md.
#[cfg(test)]
pub(super) fn markdown() -> String {
    let mut text = String::new();
    let defaults = Config::default();
    for (table, about) in TABLES {
        if !table.is_empty() {
            let _ = write!(text, "\n### `[{table}]`\n\n{}\n\n", about.trim());
        }
        head(&mut text);
        for row in ROWS.iter().filter(|row| row.table == *table) {
            line(&mut text, row, &defaults);
        }
    }
    let _ = write!(
        text,
        "\n### `[[{POOL}]]`\n\n{}\n\n",
        PoolSettings::ABOUT.trim()
    );
    head(&mut text);
    let pool = PoolSettings::default();
    for row in POOL_ROWS.iter() {
        line(&mut text, row, &pool);
    }
    text
}

#[cfg(test)]
fn head(text: &mut String) {
    text.push_str("| Key | Value | Default | What it is |\n|---|---|---|---|\n");
}

#[cfg(test)]
fn line<T>(text: &mut String, row: &Row<T>, defaults: &T) {
    let required = row.table.is_empty() && PoolSettings::REQUIRED.contains(&row.key);
    let default = match row.show(defaults) {
        _ if required && row.example.is_some() && row.key != "name" => "must be said".to_owned(),
        Shown::Nothing => "not set".to_owned(),
        Shown::List(list) if list.is_empty() => "none".to_owned(),
        Shown::Text(text) if text.is_empty() => "must be said".to_owned(),
        shown => format!("`{shown}`"),
    };
    let kind = row.kind.split(':').next().unwrap_or_default();
    let list = if row.list { ", or a list" } else { "" };
    let (key, bounds) = (row.key, bounds(row));
    let doc = row.doc.trim().replace('|', "\\|");
    let _ = writeln!(
        text,
        "| `{key}` | {kind}{list}{bounds} | {default} | {doc} |"
    );
}
