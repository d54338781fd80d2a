//! Parts of an axis: which layers or heads, and which of them a rank has.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A half-open range of layers or heads, counted over the whole model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Span {
    /// The first one.
    pub start: u32,
    /// One past the last one.
    pub end: u32,
}

impl Span {
    /// `start..end`.
    #[must_use]
    pub const fn new(start: u32, end: u32) -> Span {
        Span { start, end }
    }

    /// How many; 0 for an inverted range.
    #[must_use]
    pub const fn len(self) -> u32 {
        self.end.saturating_sub(self.start)
    }

    /// Whether there is nothing in it.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// What both have; empty if they do not meet.
    #[must_use]
    pub fn meet(self, other: Span) -> Span {
        Span::new(self.start.max(other.start), self.end.min(other.end))
    }

    /// Whether all of `other` is in `self`. An empty range is in every other.
    #[must_use]
    pub fn holds(self, other: Span) -> bool {
        other.is_empty() || (self.start <= other.start && other.end <= self.end)
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.start, self.end)
    }
}

/// How many layers or heads the model has, and which of them a rank holds.
///
/// The held range is stated and not computed from a rank's number: engines cut stages unevenly, and
/// `heads / ranks` is wrong as soon as ranks outnumber heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Share {
    /// Of the whole model; at least 1.
    pub total: u32,
    /// The first one that the rank holds.
    pub first: u32,
    /// How many it holds; at least 1.
    pub held: u32,
}

impl Share {
    /// All `total` of them.
    #[must_use]
    pub const fn whole(total: u32) -> Share {
        Share {
            total,
            first: 0,
            held: total,
        }
    }

    /// `held` of `total`, from `first` on.
    #[must_use]
    pub const fn part(total: u32, first: u32, held: u32) -> Share {
        Share { total, first, held }
    }

    /// What rank `rank` of `ranks` holds when heads are dealt out as engines do it: in equal ranges,
    /// or, if ranks outnumber heads, each head to `ranks / total` ranks *in a row* (ranks 0 and 1
    /// have head 0, ranks 2 and 3 head 1).
    ///
    /// None if neither number divides the other, or if there is no such rank.
    #[must_use]
    pub fn of_rank(total: u32, rank: u32, ranks: u32) -> Option<Share> {
        if total == 0 || rank >= ranks {
            return None;
        }
        if total.is_multiple_of(ranks) {
            let held = total / ranks;
            return Some(Share::part(total, rank * held, held));
        }
        if ranks.is_multiple_of(total) {
            let replicas = ranks / total;
            return Some(Share::part(total, rank / replicas, 1));
        }
        None
    }

    /// The held ones; cut off at `u32::MAX`.
    #[must_use]
    pub const fn span(self) -> Span {
        Span::new(self.first, self.first.saturating_add(self.held))
    }

    /// Whether everything is held.
    #[must_use]
    pub const fn is_whole(self) -> bool {
        self.first == 0 && self.held == self.total
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.span(), self.total)
    }
}
