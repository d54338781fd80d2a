//! What can go wrong with UCX.

use std::time::Duration;

/// Why UCX cannot be used, or a peer not be reached through it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UcxError {
    /// The library is not there, too old, or not what it should be; the text says which and what to do.
    #[error("{0}")]
    Library(String),
    /// UCX refused a call.
    #[error("UCX: {call}: {status}{advice}")]
    Call {
        /// Which.
        call: &'static str,
        /// In UCX's words.
        status: String,
        /// What to do; may be empty, or begins with "; ".
        advice: &'static str,
    },
    /// Something took longer than it may.
    #[error("{what} took longer than {within:?} (limit {limit})")]
    Late {
        /// What.
        what: &'static str,
        /// How long it may take.
        within: Duration,
        /// The option that says so.
        limit: &'static str,
    },
    /// A bound was reached.
    #[error("limit {limit} = {value} is reached: {what}")]
    Limit {
        /// Of what there is no more.
        what: &'static str,
        /// The option that says so.
        limit: &'static str,
        /// How many there may be.
        value: usize,
    },
    /// Its thread has ended.
    #[error("the thread of UCX has ended{0}")]
    Ended(String),
}
