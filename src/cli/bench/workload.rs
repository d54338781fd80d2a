//! What is transferred: built-in workloads by name, others from a JSON file of the same shape.
//!
//! A workload is `layers × pages × page_bytes`. Each side has a pool of `pool_pages` slots per
//! layer; the request takes `pages` of them, the same in every layer, another list on each side.

use super::perm::perm;
use serde_json::{Map, Value};
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::ops::RangeInclusive;

/// Largest file of workloads that is read, in bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// Largest pool of one side, in bytes.
const MAX_POOL_BYTES: u64 = 1 << 38;

/// One transfer, and the pools it happens in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Workload {
    /// Its name; 1 to 64 bytes.
    pub(crate) name: String,
    /// Layers; 1 to 4,096.
    pub(crate) layers: u32,
    /// Pages of the request in each layer; 1 to `pool_pages`.
    pub(crate) pages: u32,
    /// Bytes of a page; 8 to 2^30.
    pub(crate) page_bytes: u64,
    /// Pages of each pool in each layer; 1 to 2^20.
    pub(crate) pool_pages: u32,
    /// Chooses the slots; below 2^63.
    pub(crate) seed: u64,
    /// How other programs run it.
    pub(crate) kind: Kind,
}

/// How a workload is meant to be repeated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// One request at a time, for its throughput.
    Throughput,
    /// `count` requests one after the other.
    Latency { count: u32 },
    /// `count` requests, so many at a time as each entry of `inflight` says.
    Rate { count: u32, inflight: Vec<u32> },
}

impl Kind {
    /// Its name in files and reports.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Kind::Throughput => "throughput",
            Kind::Latency { .. } => "latency",
            Kind::Rate { .. } => "rate",
        }
    }
}

impl Workload {
    /// The source's slots, in request order.
    pub(crate) fn source_slots(&self) -> Vec<u32> {
        self.slots(self.seed * 2)
    }

    /// The destination's slots, in request order.
    pub(crate) fn destination_slots(&self) -> Vec<u32> {
        self.slots(self.seed * 2 + 1)
    }

    fn slots(&self, seed: u64) -> Vec<u32> {
        let mut slots = perm(self.pool_pages, seed);
        slots.truncate(self.pages as usize);
        slots
    }

    /// Bytes that the request moves.
    pub(crate) fn request_bytes(&self) -> u64 {
        u64::from(self.layers) * u64::from(self.pages) * self.page_bytes
    }

    /// Bytes of one side's pool.
    pub(crate) fn pool_bytes(&self) -> u64 {
        u64::from(self.layers) * u64::from(self.pool_pages) * self.page_bytes
    }
}

/// The workloads that have a name everywhere.
pub(crate) fn built_in() -> Vec<Workload> {
    let rows = [
        ("a_32x64x16K", 32, 64, 16_384, 128, 1, Kind::Throughput),
        ("b_32x512x16K", 32, 512, 16_384, 1_024, 2, Kind::Throughput),
        (
            "c_1x16384x4K",
            1,
            16_384,
            4_096,
            32_768,
            3,
            Kind::Throughput,
        ),
        ("d_1x1x256M", 1, 1, 268_435_456, 1, 4, Kind::Throughput),
        (
            "tiny_1x1x16K",
            1,
            1,
            16_384,
            128,
            5,
            Kind::Latency { count: 2_000 },
        ),
        (
            "many_8x16K",
            1,
            8,
            16_384,
            1_024,
            6,
            Kind::Rate {
                count: 10_000,
                inflight: vec![1, 16],
            },
        ),
    ];
    let workload =
        |(name, layers, pages, page_bytes, pool_pages, seed, kind): (&str, _, _, _, _, _, _)| {
            Workload {
                name: name.to_owned(),
                layers,
                pages,
                page_bytes,
                pool_pages,
                seed,
                kind,
            }
        };
    rows.into_iter().map(workload).collect()
}

/// The workload that `--workload` means: a built-in name, or `FILE:NAME`.
pub(crate) fn find(which: &str) -> Result<Workload, WorkloadError> {
    if let Some(w) = built_in().into_iter().find(|w| w.name == which) {
        return Ok(w);
    }
    match which.rsplit_once(':') {
        Some((file, name)) if !file.is_empty() && !name.is_empty() => from_file(file, name),
        _ => Err(WorkloadError::Unknown {
            name: which.to_owned(),
            known: names(&built_in()),
        }),
    }
}

/// What is wrong with a workload; every text says where to look and what would be right.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WorkloadError {
    #[error("unknown workload {name:?}; built in are {known}; FILE:NAME takes one of a JSON file")]
    Unknown { name: String, known: String },
    #[error("workload file {file}: cannot be read: {error}")]
    Unreadable { file: String, error: io::Error },
    #[error("workload file {file}: larger than {MAX_FILE_BYTES} bytes")]
    TooLarge { file: String },
    #[error("workload file {file}: not JSON: {error}")]
    NotJson {
        file: String,
        error: serde_json::Error,
    },
    #[error("workload file {file}: {problem}")]
    File { file: String, problem: String },
    #[error("workload file {file}: no workload {name:?}; it has {known}")]
    NotInFile {
        file: String,
        name: String,
        known: String,
    },
    #[error("workload file {file}: workload {name:?}: field {field}: {problem}")]
    Field {
        file: String,
        name: String,
        field: &'static str,
        problem: String,
    },
    #[error("workload file {file}: workload {name:?}: {problem}")]
    Shape {
        file: String,
        name: String,
        problem: String,
    },
}

fn from_file(file: &str, name: &str) -> Result<Workload, WorkloadError> {
    let unreadable = |error| WorkloadError::Unreadable {
        file: file.to_owned(),
        error,
    };
    let mut text = Vec::new();
    let opened = File::open(file).map_err(unreadable)?;
    opened
        .take(MAX_FILE_BYTES + 1)
        .read_to_end(&mut text)
        .map_err(unreadable)?;
    if text.len() as u64 > MAX_FILE_BYTES {
        return Err(WorkloadError::TooLarge {
            file: file.to_owned(),
        });
    }
    parse(file, &text, name)
}

/// Reads workload `name` out of `text`, the contents of `file`.
pub(crate) fn parse(file: &str, text: &[u8], name: &str) -> Result<Workload, WorkloadError> {
    let rows = rows(file, text)?;
    let name_of =
        |row: &Map<String, Value>| row.get("name").and_then(Value::as_str).map(str::to_owned);
    let mut matching = rows
        .iter()
        .filter(|row| name_of(row).as_deref() == Some(name));
    let Some(row) = matching.next() else {
        let known: Vec<String> = rows.iter().filter_map(name_of).collect();
        return Err(WorkloadError::NotInFile {
            file: file.to_owned(),
            name: name.to_owned(),
            known: if known.is_empty() {
                "none with a name".to_owned()
            } else {
                known.join(", ")
            },
        });
    };
    let row = Row {
        file,
        name,
        fields: row,
    };
    if matching.next().is_some() {
        return Err(row.shape("the name is given twice"));
    }
    row.workload()
}

fn rows(file: &str, text: &[u8]) -> Result<Vec<Map<String, Value>>, WorkloadError> {
    let problem = |p: &str| WorkloadError::File {
        file: file.to_owned(),
        problem: p.to_owned(),
    };
    let root: Value = serde_json::from_slice(text).map_err(|error| WorkloadError::NotJson {
        file: file.to_owned(),
        error,
    })?;
    let Value::Object(mut root) = root else {
        return Err(problem(
            "the top level is not an object with a list \"workloads\"",
        ));
    };
    let Some(Value::Array(list)) = root.remove("workloads") else {
        return Err(problem("there is no list \"workloads\""));
    };
    let object = |(i, v)| match v {
        Value::Object(fields) => Ok(fields),
        _ => Err(problem(&format!(
            "entry {i} of \"workloads\" is not an object"
        ))),
    };
    list.into_iter().enumerate().map(object).collect()
}

/// One workload of a file while it is read.
struct Row<'a> {
    file: &'a str,
    name: &'a str,
    fields: &'a Map<String, Value>,
}

impl Row<'_> {
    fn workload(&self) -> Result<Workload, WorkloadError> {
        const KNOWN: [&str; 9] = [
            "name",
            "layers",
            "pages",
            "page_bytes",
            "pool_pages",
            "seed",
            "kind",
            "count",
            "inflight",
        ];
        if let Some(odd) = self.fields.keys().find(|k| !KNOWN.contains(&k.as_str())) {
            return Err(self.shape(&format!(
                "unknown field {odd:?}; known are {}",
                KNOWN.join(", ")
            )));
        }
        if self.name.len() > 64 {
            return Err(self.shape("the name is longer than 64 bytes"));
        }
        let w = Workload {
            name: self.name.to_owned(),
            layers: self.number("layers", 1..=4_096)? as u32,
            pages: self.number("pages", 1..=1 << 20)? as u32,
            page_bytes: self.number("page_bytes", 8..=1 << 30)?,
            pool_pages: self.number("pool_pages", 1..=1 << 20)? as u32,
            seed: self.number("seed", 0..=u64::MAX / 2)?,
            kind: self.kind()?,
        };
        if w.pages > w.pool_pages {
            let p = format!("{} is more than pool_pages, {}", w.pages, w.pool_pages);
            return Err(self.field("pages", p));
        }
        if w.pool_bytes() > MAX_POOL_BYTES {
            return Err(self.shape(&format!(
                "layers x pool_pages x page_bytes is {} bytes, more than {MAX_POOL_BYTES}",
                w.pool_bytes()
            )));
        }
        Ok(w)
    }

    fn kind(&self) -> Result<Kind, WorkloadError> {
        let kind = match self.fields.get("kind") {
            None => "throughput",
            Some(Value::String(s)) => s.as_str(),
            Some(other) => return Err(self.field("kind", format!("{other} is not a string"))),
        };
        match kind {
            "throughput" => Ok(Kind::Throughput),
            "latency" => Ok(Kind::Latency {
                count: self.count()?,
            }),
            "rate" => Ok(Kind::Rate {
                count: self.count()?,
                inflight: self.inflight()?,
            }),
            other => Err(self.field(
                "kind",
                format!("{other:?} is not throughput, latency or rate"),
            )),
        }
    }

    fn count(&self) -> Result<u32, WorkloadError> {
        Ok(self.number("count", 1..=100_000_000)? as u32)
    }

    fn inflight(&self) -> Result<Vec<u32>, WorkloadError> {
        let Some(Value::Array(list)) = self.fields.get("inflight") else {
            return Err(self.field("inflight", "must be a list of numbers".to_owned()));
        };
        if list.is_empty() || list.len() > 64 {
            return Err(self.field("inflight", "must have 1 to 64 numbers".to_owned()));
        }
        let one = |v| self.in_range("inflight", v, 1..=65_536).map(|n| n as u32);
        list.iter().map(one).collect()
    }

    fn number(
        &self,
        field: &'static str,
        range: RangeInclusive<u64>,
    ) -> Result<u64, WorkloadError> {
        match self.fields.get(field) {
            None => Err(self.field(field, "is missing".to_owned())),
            Some(value) => self.in_range(field, value, range),
        }
    }

    fn in_range(
        &self,
        field: &'static str,
        value: &Value,
        range: RangeInclusive<u64>,
    ) -> Result<u64, WorkloadError> {
        match value.as_u64() {
            Some(n) if range.contains(&n) => Ok(n),
            _ => Err(self.field(
                field,
                format!(
                    "{value} is not a whole number from {} to {}",
                    range.start(),
                    range.end()
                ),
            )),
        }
    }

    fn field(&self, field: &'static str, problem: String) -> WorkloadError {
        WorkloadError::Field {
            file: self.file.to_owned(),
            name: self.name.to_owned(),
            field,
            problem,
        }
    }

    fn shape(&self, problem: &str) -> WorkloadError {
        WorkloadError::Shape {
            file: self.file.to_owned(),
            name: self.name.to_owned(),
            problem: problem.to_owned(),
        }
    }
}

fn names(workloads: &[Workload]) -> String {
    workloads
        .iter()
        .map(|w| w.name.as_str())
        .collect::<Vec<_>>()
        .join(", ")
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (layers, pages, bytes) = (self.layers, self.pages, self.page_bytes);
        write!(
            f,
            "{} ({layers} x {pages} pages of {bytes} bytes)",
            self.name
        )
    }
}

#[cfg(test)]
#[path = "workload_tests.rs"]
mod tests;
