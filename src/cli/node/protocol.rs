//! Commands and answers of `kvroom node --commands`, as lines of JSON.
//!
//! ```text
//!   {"id":7,"op":"send","first":1,"count":9}  ─▶  {"id":7,"ok":true,"started":9,"refused":0,"reasons":[]}
//! ```

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Most rooms of one command.
pub(crate) const MAX_COUNT: u64 = 1_000_000;
/// Most bytes of one line.
pub(crate) const MAX_LINE: usize = 16 << 20;
/// Most entries of an answer that lists things.
pub(crate) const MAX_LIST: usize = 1_000;

/// What can be asked for. `args/node.rs` says what each does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Request {
    Ping {},
    Fill(Cells),
    Check(Cells),
    Send(Send),
    Push(Push),
    Finish(Finish),
    Receive(Receive),
    Wait(Wait),
    Abort(Abort),
    AbortWhere {
        which: Which,
        #[serde(default = "default_reason")]
        reason: String,
    },
    Stats {},
    Peers {},
    Rooms {},
    EarlyClaims {},
    Connect {
        address: String,
    },
    Disconnect {
        peer: String,
    },
    RawServe(RawServe),
    Stop {},
}

/// Pages of a pool that hold, or are to hold, the pattern of `seed`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Cells {
    pub(crate) pool: String,
    pub(crate) pages: Pages,
    pub(crate) seed: u64,
    /// Place in the request of the first page.
    #[serde(default)]
    pub(crate) index: u32,
}

/// Pages of the rooms of a command.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum Pages {
    /// The same for every room.
    List(Vec<u32>),
    /// `each` pages for every room, one room's behind the other's.
    Run { first: u32, each: u32 },
    /// One of these lists for every room, in turns.
    Sets { sets: Vec<Vec<u32>> },
}

impl Pages {
    /// Those of the `k`-th room; fails where there are no such numbers, or more than [`MAX_COUNT`].
    pub(crate) fn of(&self, k: u64) -> Result<Vec<u32>, String> {
        match self {
            Pages::List(pages) => Ok(pages.clone()),
            Pages::Sets { sets } => {
                let count = u64::try_from(sets.len()).unwrap_or(u64::MAX);
                let which = k.checked_rem(count).and_then(|i| usize::try_from(i).ok());
                let pages = which.and_then(|i| sets.get(i)).cloned();
                pages.ok_or_else(|| "the list of sets is empty".to_owned())
            }
            // A page has 4 bytes in this list: some GiB of them for a few bytes of a line.
            Pages::Run { each, .. } if u64::from(*each) > MAX_COUNT => {
                Err(format!("{each} pages for one room; at most {MAX_COUNT}"))
            }
            &Pages::Run { first, each } => {
                let start = k
                    .checked_mul(u64::from(each))
                    .and_then(|n| n.checked_add(u64::from(first)))
                    .and_then(|n| u32::try_from(n).ok());
                let range = start.and_then(|start| Some(start..start.checked_add(each)?));
                range
                    .map(Iterator::collect)
                    .ok_or_else(|| format!("there are no pages for room {k} of the command"))
            }
        }
    }
}

/// Starts sending rooms.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Send {
    pub(crate) first: u64,
    pub(crate) count: u64,
    #[serde(default)]
    pub(crate) attempt: u32,
    #[serde(default = "one")]
    pub(crate) receivers: u16,
    #[serde(default)]
    pub(crate) class: Urgency,
    pub(crate) tag: Option<String>,
    pub(crate) deadline_ms: Option<u64>,
    pub(crate) pool: Option<String>,
    pub(crate) pages: Option<Pages>,
    /// Pages of each chunk; all in one if not given.
    pub(crate) chunk_pages: Option<usize>,
    /// Tokens of the request; those of `pages` if not given.
    pub(crate) total: Option<u64>,
    #[serde(default = "yes")]
    pub(crate) finish: bool,
}

impl Send {
    /// `count` rooms without data.
    pub(crate) fn empty(first: u64, count: u64) -> Send {
        Send {
            first,
            count,
            attempt: 0,
            receivers: 1,
            class: Urgency::Bulk,
            tag: None,
            deadline_ms: None,
            pool: None,
            pages: None,
            chunk_pages: None,
            total: None,
            finish: true,
        }
    }
}

/// Pushes one chunk into each of some rooms.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Push {
    pub(crate) first: u64,
    pub(crate) count: u64,
    #[serde(default)]
    pub(crate) attempt: u32,
    pub(crate) pool: String,
    pub(crate) pages: Pages,
    /// First token of the chunk.
    #[serde(default)]
    pub(crate) token: u64,
}

/// Says the total of some rooms.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Finish {
    pub(crate) first: u64,
    pub(crate) count: u64,
    #[serde(default)]
    pub(crate) attempt: u32,
    pub(crate) total: u64,
}

/// Starts receiving rooms.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Receive {
    pub(crate) first: u64,
    pub(crate) count: u64,
    #[serde(default)]
    pub(crate) attempt: u32,
    pub(crate) from: Vec<String>,
    #[serde(default = "one")]
    pub(crate) receivers: u16,
    #[serde(default)]
    pub(crate) rank: u16,
    #[serde(default)]
    pub(crate) class: Urgency,
    pub(crate) tag: Option<String>,
    pub(crate) deadline_ms: Option<u64>,
    #[serde(default)]
    pub(crate) checksum: bool,
    #[serde(default)]
    pub(crate) skip: u64,
    pub(crate) pool: Option<String>,
    pub(crate) pages: Option<Pages>,
    /// Tokens of the request; those of `pages` if not given.
    pub(crate) total: Option<u64>,
}

/// Waits for some rooms.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Wait {
    pub(crate) role: Role,
    pub(crate) first: u64,
    pub(crate) count: u64,
    #[serde(default)]
    pub(crate) attempt: u32,
    #[serde(default = "a_minute")]
    pub(crate) timeout_ms: u64,
    /// For the memory too; then the rooms are forgotten.
    #[serde(default = "yes")]
    pub(crate) released: bool,
}

impl Wait {
    /// For the memory of sending rooms.
    pub(crate) fn sends(first: u64, count: u64) -> Wait {
        Wait {
            role: Role::Send,
            first,
            count,
            attempt: 0,
            timeout_ms: a_minute(),
            released: true,
        }
    }
}

/// Aborts some rooms.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Abort {
    pub(crate) role: Role,
    pub(crate) first: u64,
    pub(crate) count: u64,
    #[serde(default)]
    pub(crate) attempt: u32,
    #[serde(default = "default_reason")]
    pub(crate) reason: String,
}

/// Which rooms `abort_where` is for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Which {
    All,
    Room(u64),
    Tag(String),
    Peer(String),
}

/// Serves the pages of a workload by raw TCP.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawServe {
    pub(crate) layers: u32,
    /// Slots of the pages, in request order.
    pub(crate) slots: Vec<u32>,
    pub(crate) page_bytes: u64,
    pub(crate) pool_pages: u32,
    pub(crate) seed: u64,
    pub(crate) connections: u16,
    pub(crate) congestion: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Urgency {
    Interactive,
    #[default]
    Bulk,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Role {
    Send,
    Receive,
}

/// Answer to what is done to each of many rooms.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Started {
    /// With how many it worked.
    pub(crate) started: u64,
    /// With how many not.
    pub(crate) refused: u64,
    /// Some of the reasons, with the room's key.
    pub(crate) reasons: Vec<String>,
}

/// Answer to `wait`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Waited {
    /// Rooms that ended done.
    pub(crate) done: u64,
    /// Rooms that ended aborted.
    pub(crate) aborted: u64,
    /// Rooms that were waited for in vain: no outcome, or memory that did not come back.
    pub(crate) timed_out: u64,
    /// Rooms that this node has no handle of.
    pub(crate) unknown: u64,
    /// How many were aborted by which code.
    pub(crate) codes: BTreeMap<String, u64>,
    /// Some of the reasons, with the room's key.
    pub(crate) reasons: Vec<String>,
}

/// Answer to `raw_serve`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct RawAddress {
    pub(crate) address: std::net::SocketAddr,
}

/// Answer to `check`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Checked {
    /// The first cell that does not hold its pattern.
    pub(crate) differs: Option<String>,
}

/// Reads one line. The id comes back even where the rest cannot be understood.
pub(crate) fn parse(line: &[u8]) -> (Value, Result<Request, String>) {
    let mut fields = match serde_json::from_slice::<Map<String, Value>>(line) {
        Ok(fields) => fields,
        Err(e) => return (Value::Null, Err(format!("not a JSON object: {e}"))),
    };
    let id = fields.remove("id").unwrap_or(Value::Null);
    let request = serde_json::from_value(Value::Object(fields));
    (id, request.map_err(|e| format!("not a command: {e}")))
}

/// One request as a line without its end.
pub(crate) fn line(id: u64, request: &Request) -> Result<String, String> {
    let mut value = serde_json::to_value(request).map_err(|e| e.to_string())?;
    if let Value::Object(fields) = &mut value {
        fields.insert("id".to_owned(), json!(id));
        fields.retain(|_, v| !v.is_null());
    }
    Ok(value.to_string())
}

/// The answer that belongs to a result.
pub(crate) fn answer(id: Value, result: Result<Value, String>) -> Value {
    let (ok, mut fields) = match result {
        Ok(Value::Object(fields)) => (true, fields),
        Ok(Value::Null) => (true, Map::new()),
        Ok(other) => (true, Map::from_iter([("value".to_owned(), other)])),
        Err(error) => (false, Map::from_iter([("error".to_owned(), json!(error))])),
    };
    fields.insert("id".to_owned(), id);
    fields.insert("ok".to_owned(), json!(ok));
    Value::Object(fields)
}

fn default_reason() -> String {
    "asked for by a command".to_owned()
}

fn one() -> u16 {
    1
}

fn yes() -> bool {
    true
}

fn a_minute() -> u64 {
    60_000
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip(request: Request) {
        let text = line(9, &request).unwrap();
        let (id, parsed) = parse(text.as_bytes());
        assert_eq!(id, json!(9), "{text}");
        assert_eq!(parsed, Ok(request), "{text}");
    }

    #[test]
    fn what_one_end_says_the_other_understands() {
        round_trip(Request::Ping {});
        round_trip(Request::Stop {});
        round_trip(Request::Send(Send::empty(3, 4)));
        round_trip(Request::Send(Send {
            pages: Some(Pages::Run { first: 1, each: 2 }),
            pool: Some("kv".into()),
            class: Urgency::Interactive,
            ..Send::empty(0, 1)
        }));
        round_trip(Request::Send(Send {
            pages: Some(Pages::Sets {
                sets: vec![vec![1, 2], vec![3]],
            }),
            ..Send::empty(0, 1)
        }));
        round_trip(Request::Wait(Wait::sends(0, 10)));
        round_trip(Request::AbortWhere {
            which: Which::Room(7),
            reason: "x".into(),
        });
        round_trip(Request::Fill(Cells {
            pool: "kv".into(),
            pages: Pages::List(vec![4, 2]),
            seed: u64::MAX,
            index: 1,
        }));
    }

    #[test]
    fn a_line_that_is_no_command_keeps_its_id_and_says_what_is_wrong() {
        for (text, says) in [
            (r#"{"id":"a","op":"fly"}"#, "fly"),
            (r#"{"id":"a","op":"ping","extra":1}"#, "extra"),
            (r#"{"id":"a","op":"send","first":1}"#, "count"),
            (
                r#"{"id":"a","op":"send","first":1,"count":1,"cuont":1}"#,
                "cuont",
            ),
            (r#"{"id":"a","op":"send","first":-1,"count":1}"#, "-1"),
            (r#"{"id":"a"}"#, "op"),
        ] {
            let (id, parsed) = parse(text.as_bytes());
            assert_eq!(id, json!("a"));
            let e = parsed.unwrap_err();
            assert!(e.contains(says), "{text}: {e}");
        }
        for text in ["", "[]", "{", "\u{0}"] {
            let (id, parsed) = parse(text.as_bytes());
            assert!(
                id.is_null() && parsed.unwrap_err().contains("JSON"),
                "{text}"
            );
        }
    }

    #[test]
    fn pages_of_rooms_lie_one_behind_the_other_and_never_wrap() {
        let sets = Pages::Sets {
            sets: vec![vec![1, 2], vec![3]],
        };
        assert_eq!(sets.of(4).unwrap(), [1, 2]);
        assert_eq!(sets.of(u64::MAX).unwrap(), [3]);
        assert!(Pages::Sets { sets: vec![] }.of(0).is_err());
        let run = Pages::Run { first: 10, each: 3 };
        assert_eq!(run.of(2).unwrap(), [16, 17, 18]);
        assert!(run.of(u64::MAX).is_err());
        assert!(run.of(u64::from(u32::MAX) / 3).is_err());
        assert_eq!(Pages::List(vec![5]).of(9).unwrap(), [5]);
    }

    #[test]
    fn a_run_of_more_pages_than_a_command_may_name_is_refused_before_it_is_listed() {
        let run = Pages::Run {
            first: 0,
            each: u32::MAX,
        };
        let why = run.of(0).unwrap_err();
        assert!(why.contains("at most 1000000"), "{why}");
    }
}
