//! The part of YAML that the files of `deploy/` are written in, as JSON values. What is not of that part
//! fails the test, with its line: nothing is read in two ways.
//!
//! ```text
//!   documents (---), maps, lists, words, "quoted" and 'quoted' words, whole numbers, true and false,
//!   [a, b] and {a: b} on one line, >- for a folded text, # comments
//! ```
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "helpers of tests fail by panicking, as tests do"
)]

use serde_json::{Map, Value};

/// All documents of a text.
pub(crate) fn documents(text: &str) -> Vec<Value> {
    let mut all = Vec::new();
    let mut lines = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        assert!(!line.contains('\t'), "line {number}: a tab");
        if line == "---" {
            all.extend(document(std::mem::take(&mut lines)));
            continue;
        }
        let words = line.trim_start();
        if !words.is_empty() && !words.starts_with('#') {
            let depth = line.len() - words.len();
            let words = uncommented(words).to_owned();
            lines.push(Line {
                number,
                depth,
                words,
            });
        }
    }
    all.extend(document(lines));
    all
}

#[derive(Debug)]
struct Line {
    number: usize,
    depth: usize,
    words: String,
}

fn document(lines: Vec<Line>) -> Option<Value> {
    let mut reader = Reader { lines, at: 0 };
    let depth = reader.lines.first()?.depth;
    let value = reader.block(depth);
    let left = reader.lines.get(reader.at);
    assert!(left.is_none(), "this belongs nowhere: {left:?}");
    Some(value)
}

/// Up to a comment, which begins with a blank and `#` outside of quotes.
fn uncommented(words: &str) -> &str {
    let mut quote = None;
    let mut before = ' ';
    for (at, c) in words.char_indices() {
        match quote {
            Some(q) if c == q => quote = None,
            Some(_) => {}
            None if matches!(c, '"' | '\'') && " [{,:".contains(before) => quote = Some(c),
            None if c == '#' && before == ' ' => return words[..at].trim_end(),
            None => {}
        }
        before = c;
    }
    words.trim_end()
}

struct Reader {
    lines: Vec<Line>,
    at: usize,
}

impl Reader {
    fn here(&self, depth: usize) -> Option<&Line> {
        let line = self.lines.get(self.at)?;
        (line.depth == depth).then_some(line)
    }

    fn block(&mut self, depth: usize) -> Value {
        let words = &self.lines[self.at].words;
        if is_item(words) {
            self.list(depth)
        } else {
            self.map(depth)
        }
    }

    fn list(&mut self, depth: usize) -> Value {
        let mut items = Vec::new();
        while let Some(words) = self.here(depth).map(|line| line.words.clone()) {
            let Some(rest) = words.strip_prefix("- ").map(str::trim_start) else {
                break;
            };
            if key_of(rest).is_none() {
                items.push(scalar(rest));
                self.at += 1;
                continue;
            }
            // As if the map's first key stood on a line of its own, below the others.
            let inner = depth + words.len() - rest.len();
            let line = &mut self.lines[self.at];
            (line.depth, line.words) = (inner, rest.to_owned());
            items.push(self.map(inner));
        }
        Value::Array(items)
    }

    fn map(&mut self, depth: usize) -> Value {
        let mut map = Map::new();
        while let Some(line) = self.here(depth) {
            if is_item(&line.words) {
                break;
            }
            let number = line.number;
            let (key, rest) =
                key_of(&line.words).unwrap_or_else(|| panic!("line {number} has no key"));
            let (key, rest) = (key.to_owned(), rest.to_owned());
            self.at += 1;
            let next = self.lines.get(self.at);
            let value = match (&*rest, next) {
                (">-", _) => self.folded(depth),
                ("", Some(next)) if next.depth > depth => {
                    let inner = next.depth;
                    self.block(inner)
                }
                ("", Some(next)) if next.depth == depth && is_item(&next.words) => self.list(depth),
                ("", _) => Value::Null,
                (rest, _) => scalar(rest),
            };
            let before = map.insert(key, value);
            assert!(before.is_none(), "line {number}: a key that is there twice");
        }
        let next = self.lines.get(self.at);
        assert!(
            next.is_none_or(|next| next.depth <= depth),
            "this is too deep: {next:?}"
        );
        Value::Object(map)
    }

    fn folded(&mut self, depth: usize) -> Value {
        let mut words = Vec::new();
        while let Some(line) = self.lines.get(self.at).filter(|line| line.depth > depth) {
            words.push(line.words.clone());
            self.at += 1;
        }
        Value::String(words.join(" "))
    }
}

fn is_item(words: &str) -> bool {
    words.starts_with("- ")
}

/// `key: rest` or `key:`.
fn key_of(words: &str) -> Option<(&str, &str)> {
    if words.starts_with(['"', '\'', '[', '{']) {
        return None;
    }
    let (key, rest) = words
        .split_once(": ")
        .or_else(|| Some((words.strip_suffix(':')?, "")))?;
    let plain = |c: char| c.is_ascii_alphanumeric() || "._/-".contains(c);
    (!key.is_empty() && key.chars().all(plain)).then_some((key, rest.trim()))
}

fn scalar(words: &str) -> Value {
    let (value, rest) = flow(words, false);
    assert!(rest.is_empty(), "{rest:?} is left of {words:?}");
    value
}

/// A value at the beginning of a text, and what follows it. Inside of brackets a word ends at a comma.
fn flow(words: &str, inside: bool) -> (Value, &str) {
    let words = words.trim_start();
    if let Some(mut rest) = words.strip_prefix('[') {
        let mut items = Vec::new();
        while !rest.trim_start().starts_with(']') {
            let (item, after) = flow(rest, true);
            items.push(item);
            rest = after.trim_start().trim_start_matches(',');
        }
        return (Value::Array(items), &rest.trim_start()[1..]);
    }
    if let Some(mut rest) = words.strip_prefix('{') {
        let mut map = Map::new();
        while !rest.trim_start().starts_with('}') {
            let (key, after) = rest.split_once(": ").expect("a key and a value in {}");
            let (value, after) = flow(after, true);
            map.insert(key.trim().to_owned(), value);
            rest = after.trim_start().trim_start_matches(',');
        }
        return (Value::Object(map), &rest.trim_start()[1..]);
    }
    for quote in ['"', '\''] {
        if let Some(rest) = words.strip_prefix(quote) {
            let (text, rest) = rest.split_once(quote).expect("an end of the quotes");
            assert!(!text.contains('\\'), "an escape: {words}");
            return (Value::String(text.to_owned()), rest);
        }
    }
    let end = if inside {
        words.find([',', ']', '}']).unwrap_or(words.len())
    } else {
        words.len()
    };
    let (word, rest) = words.split_at(end);
    let word = word.trim_end();
    assert!(
        !word.is_empty() && !word.starts_with(['&', '*', '!', '|', '>', '%', '@', '`', '?']),
        "not a plain word: {words}"
    );
    assert!(inside || !word.contains(": "), "two values: {words}");
    let value = match word {
        "true" => Value::Bool(true),
        "false" => Value::Bool(false),
        word => match word.parse::<i64>() {
            Ok(number) if !(word.len() > 1 && word.starts_with('0')) => number.into(),
            // Octal, as modes are written.
            Ok(_) => i64::from_str_radix(word, 8)
                .expect("a number that begins with 0 is octal")
                .into(),
            Err(_) => Value::String(word.to_owned()),
        },
    };
    (value, rest)
}
