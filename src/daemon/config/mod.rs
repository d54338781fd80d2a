//! The configuration: a file, the environment and flags, read by one schema.
//!
//! ```text
//!                  ┌──────── schema (ROWS) ────────┐
//!   kvroom.toml ─▶ file ─┐                         ├─▶ show ─▶ kvroom config, the example, the docs
//!   KVROOM_…    ─▶ env  ─┼─▶ Config + Origins ─▶ check ─▶ build ─▶ NodeBuilder, pools
//!   --flags     ─▶ given ┘        └─▶ ConfigError: everything that is wrong, and where
//! ```
//!
//! Rules: what is said later wins, in that order. Nothing is started before everything is right; all
//! errors are told at once, each with the line, the variable or the flag and what to do. No key holds
//! a secret: keys name files.

mod build;
mod check;
mod effective;
mod env;
mod file;
mod flags;
#[cfg(test)]
mod fuzzing;
mod given;
mod pool;
mod schema;
mod show;
mod source;
mod value;
mod words;

#[cfg(test)]
mod tests;

pub(crate) use effective::Effective;
pub(crate) use given::Given;
pub(crate) use schema::{Config, DeviceSettings, HealthSettings, Http, PoolSettings, Retention};
pub(crate) use show::example;
pub(crate) use source::ConfigError;
pub(crate) use value::{Backing, Listen};
pub(crate) use words::of_the_daemon;

use std::time::Duration;
use value::{Raw, Setting};

/// A duration, as a flag has it.
///
/// # Errors
/// What to write instead.
pub(crate) fn read_duration(text: &str) -> Result<Duration, String> {
    Duration::read(&Raw::Word(text.to_owned()))
}
