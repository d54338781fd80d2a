//! Two recordings of one transfer, prefill's and decode's, as one timeline.
//!
//! Wall clocks of two hosts differ, and a message cannot have come before it was sent: each message that
//! is in both recordings bounds the offset of the second clock from one side. Within these bounds the
//! one next to zero is taken.

use super::Recording;
use crate::record::{ClaimNo, Entry, What, Word};
use std::collections::{HashMap, HashSet};
use std::time::Duration;

/// One timeline.
#[derive(Clone, Debug)]
pub struct Timeline<'a> {
    /// In order; of one recording, in the order of its numbers.
    pub moments: Vec<Moment<'a>>,
    /// How the second clock was set to the first.
    pub clocks: Clocks,
}

/// One entry of one of the two.
#[derive(Clone, Copy, Debug)]
pub struct Moment<'a> {
    /// Since the first entry of both.
    pub at: Duration,
    /// In which recording: 0 or 1.
    pub of: usize,
    /// The entry.
    pub entry: &'a Entry,
}

/// What is known of the offset between two wall clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Clocks {
    /// What is added to the second one, in microseconds.
    pub offset_us: i64,
    /// At least, by messages from the first node to the second.
    pub at_least_us: Option<i64>,
    /// At most, by messages from the second node to the first.
    pub at_most_us: Option<i64>,
    /// Messages that are in both recordings.
    pub matched: usize,
    /// Of these, ones that came before they were sent even so: a clock was set in between, or the
    /// recordings are not of the same transfer.
    pub reversed: usize,
}

/// Merges two recordings.
pub fn merge<'a>(first: &'a Recording, second: &'a Recording) -> Timeline<'a> {
    let times = [times(first), times(second)];
    let there = matched(first, &times[0], second, &times[1]);
    let back = matched(second, &times[1], first, &times[0]);
    // There: received + offset >= sent. Back: received >= sent + offset.
    let at_least_us = there.iter().map(|(sent, got)| sent - got).max();
    let at_most_us = back.iter().map(|(sent, got)| got - sent).min();
    let offset_us = match (at_least_us, at_most_us) {
        (Some(low), Some(high)) if low > high => low.midpoint(high),
        (low, high) => 0.max(low.unwrap_or(i64::MIN)).min(high.unwrap_or(i64::MAX)),
    };
    let early = |sent: i64, got: i64| got < sent;
    let reversed = there
        .iter()
        .filter(|(s, g)| early(*s, g + offset_us))
        .count()
        + back
            .iter()
            .filter(|(s, g)| early(s + offset_us, *g))
            .count();
    let clocks = Clocks {
        offset_us,
        at_least_us,
        at_most_us,
        matched: there.len() + back.len(),
        reversed,
    };
    let all = zip([first, second], &times, offset_us);
    let began = all.first().map_or(0, |(at, _, _)| *at);
    let moments = all.into_iter().map(|(at, of, entry)| Moment {
        at: Duration::from_micros(u64::try_from(at - began).unwrap_or_default()),
        of,
        entry,
    });
    Timeline {
        moments: moments.collect(),
        clocks,
    }
}

/// Both in the order of time, each in its own order. Of one moment, what was received comes behind what
/// was sent.
fn zip<'a>(
    of: [&'a Recording; 2],
    times: &[Vec<i64>; 2],
    offset: i64,
) -> Vec<(i64, usize, &'a Entry)> {
    let lengths = of.map(|recording| recording.entries.len());
    let mut all = Vec::with_capacity(lengths[0] + lengths[1]);
    let mut next = [0, 0];
    let mut sent: [HashSet<(&str, ClaimNo, u64)>; 2] = Default::default();
    loop {
        let head = |side: usize| {
            let entry = of[side].entries.get(next[side])?;
            let at = times[side].get(next[side])? + if side == 1 { offset } else { 0 };
            let waits = match &entry.what {
                What::Received(word) => name(word).is_some_and(|n| !sent[1 - side].contains(&n)),
                _ => false,
            };
            Some((at, waits, side, entry))
        };
        let heads = [head(0), head(1)].into_iter().flatten();
        let Some((at, _, side, entry)) =
            heads.min_by_key(|(at, waits, side, _)| (*at, *waits, *side))
        else {
            return all;
        };
        if let What::Sent(word) = &entry.what {
            sent[side].extend(name(word));
        }
        next[side] += 1;
        all.push((at, side, entry));
    }
}

/// Each entry by its node's wall clock, in microseconds; never earlier than the one before it.
fn times(recording: &Recording) -> Vec<i64> {
    let mut last = i64::MIN;
    let at = recording.entries.iter().map(|entry| {
        let at = recording
            .header
            .started
            .saturating_add(entry.at)
            .as_micros();
        // Far enough from the ends that an offset can be added.
        last = last.max(i64::try_from(at).unwrap_or(i64::MAX).min(i64::MAX / 4));
        last
    });
    at.collect()
}

/// When messages from one node to the other were sent and received, each by its own clock.
fn matched(
    from: &Recording,
    from_times: &[i64],
    to: &Recording,
    to_times: &[i64],
) -> Vec<(i64, i64)> {
    let mut sent: HashMap<(&str, ClaimNo, u64), i64> = HashMap::new();
    for (entry, at) in from.entries.iter().zip(from_times) {
        if let What::Sent(word) = &entry.what
            && entry.peer.as_deref() == Some(to.header.node.as_str())
            && let Some(name) = name(word)
        {
            // The first time: it may have been sent again.
            sent.entry(name).or_insert(*at);
        }
    }
    let received = to.entries.iter().zip(to_times).filter_map(|(entry, at)| {
        let What::Received(word) = &entry.what else {
            return None;
        };
        let ours = entry.peer.as_deref() == Some(from.header.node.as_str());
        let sent = sent.get(&name(word)?).filter(|_| ours)?;
        Some((*sent, *at))
    });
    received.collect()
}

/// Which message it is: claims are numbered once for the life of a node, frames within a session.
fn name(word: &Word) -> Option<(&'static str, ClaimNo, u64)> {
    let claim = word.claim.filter(|_| word.frame != 0)?;
    Some((word.message, claim, word.frame))
}
