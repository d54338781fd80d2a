//! Commands that ask a daemon: `rooms`, `room`, `abort`, `pools`, `events`, `record`.
//!
//! ```text
//!   args ─▶ request ─▶ http ─▶ daemon
//!              Answer ─▶ --json, or no terminal: as it came
//!                    └─▶ table: lines for people
//! ```
//!
//! Rules: what the daemon says is shown, and nothing is made up beside it. Text of others has its
//! control characters shown, so that no tag or name can play with a terminal. A refusal of the daemon
//! is told with its own words.

mod commands;
mod http;
mod sse;
mod stream;
mod table;
mod url;

pub(crate) use commands::{abort, pools, room, rooms};
pub(crate) use stream::{events, record};
