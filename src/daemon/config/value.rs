//! Values of the configuration: how each type is read from any source, and how it is shown.
//!
//! ```text
//!   TOML ─▶ Raw::{Bool, Integer, Text, List} ─┐
//!                                             ├─ Setting::read ─▶ T ─ Setting::show ─▶ Shown
//!   environment, flags ─▶ Raw::Word ──────────┘
//! ```
//!
//! Rules: what is shown is read as the same value again. A reader that refuses says what to write
//! instead; where the value stands is for the caller to say.

use crate::daemon::devices::{Named, Uuid};
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// A value as a source has it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Raw {
    /// `true` or `false` of TOML.
    Bool(bool),
    /// A whole number of TOML.
    Integer(i128),
    /// A string of TOML.
    Text(String),
    /// An array of TOML.
    List(Vec<Raw>),
    /// A word of the command line or of the environment, which has no type. Commas divide a list.
    Word(String),
    /// Words of an option that was repeated.
    Words(Vec<String>),
    /// Something that no setting is; what, in words.
    Other(&'static str),
}

/// A value as TOML has it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Shown {
    /// There is none.
    Nothing,
    /// `true` or `false`.
    Bool(bool),
    /// A whole number.
    Integer(u64),
    /// A string.
    Text(String),
    /// An array.
    List(Vec<Shown>),
}

/// A type that a setting can have.
pub(crate) trait Setting: Clone + PartialEq + Sized {
    /// What bounds are given for: the type itself, or what is in its option.
    type Inner: PartialOrd + Setting;
    /// Its name in the documentation: "a duration".
    const KIND: &'static str;
    /// What stands for it in a command line's help: "DURATION".
    const WORD: &'static str;
    /// Whether it is a list, whose option may be repeated.
    const LIST: bool = false;

    /// Reads it.
    fn read(raw: &Raw) -> Result<Self, String>;
    /// Shows it.
    fn show(&self) -> Shown;
    /// What bounds are compared with.
    fn inner(&self) -> Option<&Self::Inner>;
}

impl Raw {
    fn text(&self) -> Option<&str> {
        match self {
            Raw::Text(text) | Raw::Word(text) => Some(text),
            _ => None,
        }
    }

    /// What it is, for whoever expected something else.
    fn what(&self) -> String {
        match self {
            Raw::Bool(value) => value.to_string(),
            Raw::Integer(value) => value.to_string(),
            Raw::Text(text) | Raw::Word(text) => format!("{text:?}"),
            Raw::List(_) | Raw::Words(_) => "a list".to_owned(),
            Raw::Other(what) => (*what).to_owned(),
        }
    }
}

impl fmt::Display for Shown {
    /// As TOML.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Shown::Nothing => f.write_str("\"none\""),
            Shown::Bool(value) => write!(f, "{value}"),
            Shown::Integer(value) => write!(f, "{value}"),
            Shown::Text(text) => quoted(f, text),
            Shown::List(list) => {
                f.write_str("[")?;
                for (i, value) in list.iter().enumerate() {
                    if i > 0 {
                        f.write_str(", ")?;
                    }
                    write!(f, "{value}")?;
                }
                f.write_str("]")
            }
        }
    }
}

/// A basic string of TOML.
fn quoted(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    f.write_str("\"")?;
    for c in text.chars() {
        match c {
            '"' => f.write_str("\\\"")?,
            '\\' => f.write_str("\\\\")?,
            '\n' => f.write_str("\\n")?,
            '\t' => f.write_str("\\t")?,
            c if c.is_control() => write!(f, "\\u{:04X}", u32::from(c))?,
            c => write!(f, "{c}")?,
        }
    }
    f.write_str("\"")
}

impl Shown {
    /// As JSON.
    pub(crate) fn to_json(&self) -> serde_json::Value {
        match self {
            Shown::Nothing => serde_json::Value::Null,
            Shown::Bool(value) => (*value).into(),
            Shown::Integer(value) => (*value).into(),
            Shown::Text(text) => text.clone().into(),
            Shown::List(list) => list.iter().map(Shown::to_json).collect(),
        }
    }
}

macro_rules! itself {
    () => {
        type Inner = Self;
        fn inner(&self) -> Option<&Self> {
            Some(self)
        }
    };
}

impl Setting for bool {
    itself!();
    const KIND: &'static str = "true or false";
    const WORD: &'static str = "true|false";

    fn read(raw: &Raw) -> Result<Self, String> {
        match raw {
            Raw::Bool(value) => Ok(*value),
            Raw::Word(word) if word == "true" => Ok(true),
            Raw::Word(word) if word == "false" => Ok(false),
            Raw::Text(word) if word == "true" || word == "false" => {
                Err(format!("{word:?} is a string; write {word} without quotes"))
            }
            raw => Err(format!("{} is not true or false", raw.what())),
        }
    }

    fn show(&self) -> Shown {
        Shown::Bool(*self)
    }
}

/// A whole number from any source.
fn integer(raw: &Raw) -> Result<i128, String> {
    match raw {
        Raw::Integer(value) => Ok(*value),
        Raw::Word(word) => {
            let digits = word.replace('_', "");
            digits.parse().map_err(|_| no_number(raw))
        }
        Raw::Text(word) if word.parse::<i128>().is_ok() => {
            Err(format!("{word:?} is a string; write {word} without quotes"))
        }
        raw => Err(no_number(raw)),
    }
}

fn no_number(raw: &Raw) -> String {
    format!("{} is not a whole number", raw.what())
}

macro_rules! integers {
    ($($type:ty),*) => {$(
        impl Setting for $type {
            itself!();
            const KIND: &'static str = "a whole number";
            const WORD: &'static str = "N";

            fn read(raw: &Raw) -> Result<Self, String> {
                let value = integer(raw)?;
                <$type>::try_from(value)
                    .map_err(|_| format!("{value} is not within 0 to {}", <$type>::MAX))
            }

            fn show(&self) -> Shown {
                Shown::Integer(u64::try_from(*self).unwrap_or(u64::MAX))
            }
        }
    )*};
}

integers!(u16, u32, u64, usize);

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Bytes(pub(crate) u64);

const BYTE_UNITS: [(&str, u64); 5] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("B", 1),
];

impl Setting for Bytes {
    itself!();
    const KIND: &'static str = "a number of bytes: 65536 or \"64KiB\"";
    const WORD: &'static str = "BYTES";

    fn read(raw: &Raw) -> Result<Self, String> {
        let wrong = |why: String| {
            Err(format!(
                "{why}; write a number of bytes, or one with KiB, MiB or GiB, for example \"8MiB\""
            ))
        };
        let (number, unit) = match raw {
            Raw::Integer(value) => match u64::try_from(*value) {
                Ok(value) => return Ok(Bytes(value)),
                Err(_) => return wrong(format!("{value} is no number of bytes")),
            },
            raw => match raw.text() {
                Some(text) => split_unit(text),
                None => return wrong(format!("{} is no number of bytes", raw.what())),
            },
        };
        let Ok(value) = number.parse::<u64>() else {
            return wrong(format!("{} is no number of bytes", raw.what()));
        };
        if unit.is_empty() {
            return match raw {
                Raw::Word(_) => Ok(Bytes(value)),
                _ => wrong(format!("{} has no unit", raw.what())),
            };
        }
        match BYTE_UNITS.iter().find(|u| u.0 == unit) {
            Some((_, factor)) => match value.checked_mul(*factor) {
                Some(bytes) => Ok(Bytes(bytes)),
                None => wrong(format!("{} is more than can be counted", raw.what())),
            },
            None => wrong(format!("{}: {unit:?} is no unit of bytes", raw.what())),
        }
    }

    fn show(&self) -> Shown {
        let fits = |unit: &&(&str, u64)| unit.1 > 1 && self.0 > 0 && self.0.is_multiple_of(unit.1);
        match BYTE_UNITS.iter().find(fits) {
            Some((unit, factor)) => Shown::Text(format!("{}{unit}", self.0 / factor)),
            None => Shown::Integer(self.0),
        }
    }
}

/// The digits at the front, and the rest without spaces around it.
fn split_unit(text: &str) -> (&str, &str) {
    let text = text.trim();
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    (number, unit.trim_start())
}

const TIME_UNITS: [(&str, u64); 9] = [
    ("us", 1),
    ("µs", 1),
    ("ms", 1_000),
    ("s", 1_000_000),
    ("sec", 1_000_000),
    ("m", 60_000_000),
    ("min", 60_000_000),
    ("h", 3_600_000_000),
    ("d", 86_400_000_000),
];

/// Longer than anything is waited for, and short enough to be added to any time.
const LONGEST: Duration = Duration::from_secs(366 * 86_400);

impl Setting for Duration {
    itself!();
    const KIND: &'static str = "a duration: \"250ms\", \"5s\", \"10min\"";
    const WORD: &'static str = "DURATION";

    fn read(raw: &Raw) -> Result<Self, String> {
        let wrong = |why: String| {
            Err(format!(
                "{why}; write a whole number with us, ms, s, min, h or d, for example \"5s\""
            ))
        };
        let Some(text) = raw.text() else {
            return match raw {
                Raw::Integer(value) => wrong(format!("{value} has no unit")),
                raw => wrong(format!("{} is no duration", raw.what())),
            };
        };
        let (number, unit) = split_unit(text);
        let Ok(value) = number.parse::<u64>() else {
            return wrong(format!("{} is no duration", raw.what()));
        };
        if unit.is_empty() {
            return wrong(format!("{} has no unit", raw.what()));
        }
        let Some((_, factor)) = TIME_UNITS.iter().find(|u| u.0 == unit) else {
            return wrong(format!("{}: {unit:?} is no unit of time", raw.what()));
        };
        match value.checked_mul(*factor).map(Duration::from_micros) {
            Some(duration) if duration <= LONGEST => Ok(duration),
            _ => Err(format!("{} is longer than 366d", raw.what())),
        }
    }

    fn show(&self) -> Shown {
        let us = u64::try_from(self.as_micros()).unwrap_or(u64::MAX);
        Shown::Text(match us {
            us if us.is_multiple_of(1_000_000) => format!("{}s", us / 1_000_000),
            us if us.is_multiple_of(1_000) => format!("{}ms", us / 1_000),
            us => format!("{us}us"),
        })
    }
}

impl Setting for String {
    itself!();
    const KIND: &'static str = "a string";
    const WORD: &'static str = "TEXT";

    fn read(raw: &Raw) -> Result<Self, String> {
        match raw.text() {
            Some("") => Err("it is empty".to_owned()),
            Some(text) => Ok(text.to_owned()),
            None => Err(format!("{} is not a string; put it in quotes", raw.what())),
        }
    }

    fn show(&self) -> Shown {
        Shown::Text(self.clone())
    }
}

impl Setting for PathBuf {
    itself!();
    const KIND: &'static str = "a path";
    const WORD: &'static str = "PATH";

    fn read(raw: &Raw) -> Result<Self, String> {
        String::read(raw).map(PathBuf::from)
    }

    fn show(&self) -> Shown {
        Shown::Text(self.display().to_string())
    }
}

impl<T: Setting> Setting for Option<T> {
    type Inner = T::Inner;
    const KIND: &'static str = T::KIND;
    const WORD: &'static str = T::WORD;

    fn read(raw: &Raw) -> Result<Self, String> {
        match raw.text() {
            Some("none") => Ok(None),
            _ => T::read(raw).map(Some),
        }
    }

    fn show(&self) -> Shown {
        self.as_ref().map_or(Shown::Nothing, T::show)
    }

    fn inner(&self) -> Option<&T::Inner> {
        self.as_ref().and_then(T::inner)
    }
}

impl<T: Setting + PartialOrd> Setting for Vec<T> {
    itself!();
    const KIND: &'static str = T::KIND;
    const WORD: &'static str = T::WORD;
    const LIST: bool = true;

    fn read(raw: &Raw) -> Result<Self, String> {
        let words = |word: &String| {
            let parts = word.split(',').map(str::trim).filter(|p| !p.is_empty());
            parts
                .map(|part| T::read(&Raw::Word(part.to_owned())))
                .collect::<Vec<_>>()
        };
        match raw {
            Raw::List(list) => list.iter().map(T::read).collect(),
            Raw::Word(word) => words(word).into_iter().collect(),
            Raw::Words(all) => all.iter().flat_map(words).collect(),
            raw => T::read(raw).map(|one| vec![one]),
        }
    }

    fn show(&self) -> Shown {
        Shown::List(self.iter().map(T::show).collect())
    }
}

/// Where HTTP is served.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Listen {
    /// TCP; port 0 is any free one.
    Tcp(SocketAddr),
    /// A Unix socket at this path.
    Unix(PathBuf),
}

impl Listen {
    /// Whether only this machine can reach it.
    pub(crate) fn is_local(&self) -> bool {
        match self {
            Listen::Tcp(address) => address.ip().is_loopback(),
            Listen::Unix(_) => true,
        }
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Listen::Tcp(address) => write!(f, "{address}"),
            Listen::Unix(path) => write!(f, "unix://{}", path.display()),
        }
    }
}

impl Setting for Listen {
    itself!();
    const KIND: &'static str = "an address: \"127.0.0.1:7480\", \"unix:///run/kvroom/http.sock\"";
    const WORD: &'static str = "ADDR";

    fn read(raw: &Raw) -> Result<Self, String> {
        let text = raw.text();
        let unix = text.and_then(|t| t.strip_prefix("unix://"));
        if let Some(path) = unix.filter(|path| path.starts_with('/') && path.len() > 1) {
            return Ok(Listen::Unix(PathBuf::from(path)));
        }
        let tcp = text.and_then(|t| t.parse().ok());
        tcp.map(Listen::Tcp).ok_or_else(|| {
            format!(
                "{} is no address; write IP:PORT (for example 127.0.0.1:7480 or [::1]:7480) or \
                 unix:///PATH",
                raw.what()
            )
        })
    }

    fn show(&self) -> Shown {
        Shown::Text(self.to_string())
    }
}

/// An address of a node, as the library takes it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NodeAddress(pub(crate) String);

impl Setting for NodeAddress {
    itself!();
    const KIND: &'static str =
        "an address: \"tcp://10.0.0.7:7400\", \"unix:///run/kvroom/node.sock\"";
    const WORD: &'static str = "ADDR";

    fn read(raw: &Raw) -> Result<Self, String> {
        let found = raw.text().map(crate::cli::args::words::address);
        match found {
            Some(Ok(address)) => Ok(NodeAddress(address)),
            Some(Err(hint)) => Err(format!("{} is no address; {hint}", raw.what())),
            None => Err(format!(
                "{} is no address; write tcp://HOST:PORT or unix:///PATH in quotes",
                raw.what()
            )),
        }
    }

    fn show(&self) -> Shown {
        Shown::Text(self.0.clone())
    }
}

/// Makes settings of types that are one of some words.
macro_rules! words {
    ($($type:ty: $kind:literal, $word:literal, { $($text:literal => $value:path),+ $(,)? })*) => {$(
        impl Setting for $type {
            itself!();
            const KIND: &'static str = $kind;
            const WORD: &'static str = $word;

            fn read(raw: &Raw) -> Result<Self, String> {
                match raw.text() {
                    $(Some($text) => Ok($value),)+
                    _ => Err(format!("{} is not {}", raw.what(), $kind)),
                }
            }

            fn show(&self) -> Shown {
                let text = match self {
                    $($value => $text,)+
                };
                Shown::Text(text.to_owned())
            }
        }
    )*};
}

impl Setting for Named {
    itself!();
    const KIND: &'static str = "a device: 0, \"GPU-…\"";
    const WORD: &'static str = "N|UUID";

    fn read(raw: &Raw) -> Result<Self, String> {
        let number = |text: &str| text.parse().map(Named::Ordinal).ok();
        let found = match raw {
            Raw::Integer(value) => u32::try_from(*value).map(Named::Ordinal).ok(),
            Raw::Text(text) if number(text).is_some() => {
                return Err(format!("{text:?} is a string; write {text} without quotes"));
            }
            Raw::Word(text) | Raw::Text(text) => {
                number(text).or_else(|| Uuid::read(text).map(Named::Uuid))
            }
            _ => None,
        };
        found.ok_or_else(|| {
            format!(
                "{} is no device; write its number, for example 0, or its UUID as `nvidia-smi -L` shows it \
                 (GPU-…)",
                raw.what()
            )
        })
    }

    fn show(&self) -> Shown {
        match self {
            Named::Ordinal(ordinal) => Shown::Integer(u64::from(*ordinal)),
            Named::Uuid(uuid) => Shown::Text(uuid.to_string()),
        }
    }
}

/// What a pool's memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Backing {
    /// Of this process alone.
    Private,
    /// A memfd that peers on this host may map.
    Shared,
    /// A file, that engines and peers on this host map, and that outlives the daemon.
    File,
    /// Memory of a device, which engines on this host open.
    Device,
}

/// When bytes go through UCX.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum WhenUcx {
    /// Never.
    Off,
    /// Where it reaches a peer by RDMA.
    Rdma,
    /// With every peer that has it, and by sockets where it does not work.
    Prefer,
    /// With every peer that has it.
    Always,
}

/// When senders write into the receiver's memory by themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum WhenOneSided {
    /// Where both sides could use RDMA.
    Rdma,
    /// With every peer that says the same.
    Always,
}

words! {
    Backing: "\"private\", \"shared\", \"file\" or \"device\"", "private|shared|file|device", {
        "private" => Backing::Private, "shared" => Backing::Shared, "file" => Backing::File,
        "device" => Backing::Device,
    }
    kvroom::PoolKind: "\"kv\" or \"aux\"", "kv|aux", {
        "kv" => kvroom::PoolKind::Kv, "aux" => kvroom::PoolKind::Aux,
    }
    kvroom::Order: "\"layers_first\" or \"pages_first\"", "layers_first|pages_first", {
        "layers_first" => kvroom::Order::LayersFirst, "pages_first" => kvroom::Order::PagesFirst,
    }
    WhenUcx: "\"off\", \"rdma\", \"prefer\" or \"always\"", "off|rdma|prefer|always", {
        "off" => WhenUcx::Off, "rdma" => WhenUcx::Rdma, "prefer" => WhenUcx::Prefer,
        "always" => WhenUcx::Always,
    }
    WhenOneSided: "\"rdma\" or \"always\"", "rdma|always", {
        "rdma" => WhenOneSided::Rdma, "always" => WhenOneSided::Always,
    }
}
