//! Reader of the public Mooncake trace format: one JSON object a line with `timestamp` (ms),
//! `input_length` and `output_length` (tokens) and `hash_ids` (one per block of 512 tokens; equal
//! ids mean equal prefixes). Other fields are ignored.
//!
//! The trace gives sizes and prefixes; when rooms start and die is the storm's matter.

use serde_json::{Map, Value};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

/// Tokens of one block.
pub(crate) const BLOCK_TOKENS: u32 = 512;
/// Longest line in bytes, so that a file without line ends is not read into memory.
pub(crate) const MAX_LINE: u64 = 1 << 20;
/// Longest request in tokens; a room of half a GiB.
pub(crate) const MAX_TOKENS: u64 = 1 << 23;

/// One line of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// Arrival in milliseconds since the trace's start.
    pub(crate) timestamp_ms: u64,
    /// Tokens of the prompt, 1 to [`MAX_TOKENS`].
    pub(crate) input_length: u64,
    /// Tokens that were generated.
    pub(crate) output_length: u64,
    /// One id per block of 512 tokens of the prompt.
    pub(crate) hash_ids: Vec<u64>,
}

/// Why a trace cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TraceError {
    /// The file cannot be opened or read.
    #[error("trace {file}: {source}; give --trace a readable JSONL file")]
    Io {
        file: String,
        source: std::io::Error,
    },
    /// A line is not a request.
    #[error("trace {file}, line {line}: {what}; correct the line or take it out")]
    Line {
        file: String,
        line: usize,
        what: String,
    },
    /// There is no request in it.
    #[error("trace {file}: it holds no request; expected one JSON object a line")]
    Empty { file: String },
}

/// Reads at most `limit` requests of a file.
pub(crate) fn read_file(path: &Path, limit: usize) -> Result<Vec<Request>, TraceError> {
    let file = path.display().to_string();
    match File::open(path) {
        Ok(opened) => read(&file, BufReader::new(opened), limit),
        Err(source) => Err(TraceError::Io { file, source }),
    }
}

/// Reads at most `limit` requests; `file` is what errors call the input.
pub(crate) fn read(
    file: &str,
    mut input: impl BufRead,
    limit: usize,
) -> Result<Vec<Request>, TraceError> {
    let mut requests = Vec::new();
    let mut line = 0;
    while requests.len() < limit {
        line += 1;
        let mut bytes = Vec::new();
        let read = input
            .by_ref()
            .take(MAX_LINE + 1)
            .read_until(b'\n', &mut bytes);
        let count = read.map_err(|source| TraceError::Io {
            file: file.into(),
            source,
        })?;
        if count == 0 {
            break;
        }
        let bad = |what| TraceError::Line {
            file: file.into(),
            line,
            what,
        };
        if count as u64 > MAX_LINE {
            return Err(bad(format!("longer than {MAX_LINE} bytes")));
        }
        if bytes.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        requests.push(parse(&bytes).map_err(bad)?);
    }
    if requests.is_empty() {
        return Err(TraceError::Empty { file: file.into() });
    }
    Ok(requests)
}

fn parse(line: &[u8]) -> Result<Request, String> {
    let value: Value = serde_json::from_slice(line).map_err(|e| format!("not JSON: {e}"))?;
    let Value::Object(fields) = value else {
        return Err(format!("expected a JSON object, found {}", kind(&value)));
    };
    let request = Request {
        timestamp_ms: whole(&fields, "timestamp")?,
        input_length: whole(&fields, "input_length")?,
        output_length: whole(&fields, "output_length")?,
        hash_ids: ids(&fields)?,
    };
    if !(1..=MAX_TOKENS).contains(&request.input_length) {
        let found = request.input_length;
        return Err(format!(
            "field `input_length` is {found}, expected 1 to {MAX_TOKENS}"
        ));
    }
    let blocks = request.input_length.div_ceil(u64::from(BLOCK_TOKENS));
    if request.hash_ids.len() as u64 != blocks {
        return Err(format!(
            "field `hash_ids` has {} ids, but {} tokens are {blocks} blocks of {BLOCK_TOKENS}",
            request.hash_ids.len(),
            request.input_length,
        ));
    }
    Ok(request)
}

fn whole(fields: &Map<String, Value>, name: &str) -> Result<u64, String> {
    let Some(value) = fields.get(name) else {
        return Err(format!("field `{name}` is missing"));
    };
    value.as_u64().ok_or_else(|| {
        format!(
            "field `{name}` is {}, expected a whole number of at least 0",
            kind(value)
        )
    })
}

fn ids(fields: &Map<String, Value>) -> Result<Vec<u64>, String> {
    let list = match fields.get("hash_ids") {
        None => return Err("field `hash_ids` is missing".into()),
        Some(Value::Array(list)) => list,
        Some(other) => {
            return Err(format!(
                "field `hash_ids` is {}, expected a list",
                kind(other)
            ));
        }
    };
    let id = |(place, value): (usize, &Value)| {
        value.as_u64().ok_or_else(|| {
            let found = kind(value);
            format!("field `hash_ids`, place {place}, is {found}, expected a whole number")
        })
    };
    list.iter().enumerate().map(id).collect()
}

fn kind(value: &Value) -> String {
    match value {
        Value::Null => "null".into(),
        Value::Bool(flag) => flag.to_string(),
        Value::Number(number) => number.to_string(),
        Value::String(_) => "a text".into(),
        Value::Array(_) => "a list".into(),
        Value::Object(_) => "an object".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::path::PathBuf;

    const GOOD: &str =
        r#"{"timestamp": 7, "input_length": 513, "output_length": 2, "hash_ids": [4, 5]}"#;

    fn error_of(text: &str) -> String {
        match read("t.jsonl", text.as_bytes(), 100) {
            Ok(requests) => panic!("{requests:?} should have been refused"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn good_lines_are_read_and_blank_ones_skipped() {
        let text = format!("{GOOD}\n\n{GOOD}");
        let requests = read("t", text.as_bytes(), 100).unwrap();
        assert_eq!(requests.len(), 2);
        assert_eq!(requests[0].hash_ids, [4, 5]);
        assert_eq!(
            (requests[0].timestamp_ms, requests[0].output_length),
            (7, 2)
        );
        assert_eq!(read("t", text.as_bytes(), 1).unwrap().len(), 1);
    }

    #[test]
    fn an_error_names_file_line_field_and_what_is_wrong() {
        for (line, expected) in [
            (r#"{"timestamp": 0"#, "not JSON"),
            ("[1]", "expected a JSON object, found a list"),
            (
                r#"{"timestamp": 0, "output_length": 1, "hash_ids": []}"#,
                "`input_length` is missing",
            ),
            (&GOOD.replace("513", "-1"), "`input_length` is -1"),
            (&GOOD.replace("513", "1.5"), "`input_length` is 1.5"),
            (
                &GOOD.replace("513", "0"),
                "`input_length` is 0, expected 1 to",
            ),
            (
                &GOOD.replace("513", "99999999999"),
                "`input_length` is 99999999999",
            ),
            (
                &GOOD.replace("[4, 5]", "7"),
                "`hash_ids` is 7, expected a list",
            ),
            (
                &GOOD.replace("[4, 5]", "[4, \"x\"]"),
                "`hash_ids`, place 1, is a text",
            ),
            (
                &GOOD.replace("[4, 5]", "[4]"),
                "1 ids, but 513 tokens are 2 blocks",
            ),
        ] {
            let error = error_of(&format!("{GOOD}\n{line}\n"));
            assert!(error.starts_with("trace t.jsonl, line 2: "), "{error}");
            assert!(
                error.contains(expected),
                "{error} should contain {expected}"
            );
        }
    }

    #[test]
    fn an_endless_line_is_refused_without_being_kept() {
        let endless = std::io::repeat(b'[');
        let error = read("t", BufReader::new(endless), 1)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("line 1: longer than 1048576 bytes"),
            "{error}"
        );
    }

    #[test]
    fn an_empty_or_absent_file_is_named() {
        assert!(error_of("\n").contains("t.jsonl: it holds no request"));
        let error = read_file(Path::new("/nowhere/t"), 1)
            .unwrap_err()
            .to_string();
        assert!(error.contains("/nowhere/t"), "{error}");
    }

    #[test]
    fn the_public_traces_are_read_whole() {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../shared/traces");
        for (name, lines) in [
            ("mooncake_conversation_head.jsonl", 3000),
            ("mooncake_synthetic.jsonl", 3993),
        ] {
            let path = folder.join(name);
            if !path.exists() {
                // Past the test harness, which would keep it to itself.
                let mut stderr = std::io::stderr();
                writeln!(stderr, "NOT TESTED: {} is not there", path.display()).unwrap();
                continue;
            }
            let requests = read_file(&path, usize::MAX).unwrap();
            assert_eq!(requests.len(), lines, "{name}");
            let load = crate::load::Load::from_trace(&requests, 80);
            assert!(load.sessions.iter().flatten().all(|turn| turn.pages > 0));
            assert!(
                load.sessions
                    .iter()
                    .flatten()
                    .any(|turn| turn.skip_pages > 0)
            );
        }
    }
}
