//! When which stream was at work: what an emulated machine remembers for who asks whether two were at once.
//!
//! ```text
//!   device 0, stream 1   ├─ gather ─┤├─ gather ─┤
//!   device 1, stream 0        ├─ scatter ─┤├─ scatter ─┤
//!   both                      ╰────╯ ╰─────╯╰─┤
//! ```

use super::super::context::lock;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// What a stream did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Work {
    /// A copy, or a batch of them.
    Copy,
    /// A kernel.
    Launch,
}

/// Which stream of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Line {
    /// The device's number.
    pub device: u32,
    /// The stream's number among all that were ever made on this device, from 0.
    pub stream: u64,
}

/// One operation, from its turn in the stream (its delay is a part of it) to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Of which stream.
    pub line: Line,
    /// What it was.
    pub work: Work,
    /// Bytes that it moved.
    pub bytes: u64,
    /// When it began, from when the machine was made.
    pub begin: Duration,
    /// When it ended.
    pub end: Duration,
}

/// The spans of a machine, in the order of their ends; those of one stream do not overlap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timeline {
    /// The spans that were kept: the first ones.
    pub spans: Vec<Span>,
    /// How many were not.
    pub dropped: u64,
}

impl Timeline {
    /// The spans of one stream.
    pub fn of(&self, line: Line) -> impl Iterator<Item = &Span> {
        self.spans.iter().filter(move |span| span.line == line)
    }

    /// How long a stream was at work.
    #[must_use]
    pub fn busy(&self, line: Line) -> Duration {
        self.of(line).map(|span| span.end - span.begin).sum()
    }

    /// How long two streams were at work at once.
    #[must_use]
    pub fn both(&self, one: Line, other: Line) -> Duration {
        let mut sum = Duration::ZERO;
        let mut others = self.of(other).peekable();
        for span in self.of(one) {
            while let Some(there) = others.peek() {
                let begin = span.begin.max(there.begin);
                sum += span.end.min(there.end).saturating_sub(begin);
                // One that goes on may meet the next span, too.
                if there.end > span.end {
                    break;
                }
                others.next();
            }
        }
        sum
    }
}

/// Where spans are kept, up to a limit.
pub(in super::super) struct Recorder {
    from: Instant,
    limit: usize,
    timeline: Mutex<Timeline>,
}

impl Recorder {
    pub(super) fn new(limit: usize) -> Self {
        Recorder {
            from: Instant::now(),
            limit,
            timeline: Mutex::default(),
        }
    }

    pub(super) fn is_on(&self) -> bool {
        self.limit > 0
    }

    pub(super) fn now(&self) -> Duration {
        self.from.elapsed()
    }

    pub(super) fn keep(&self, span: Span) {
        let mut timeline = lock(&self.timeline);
        if timeline.spans.len() < self.limit {
            timeline.spans.push(span);
        } else {
            timeline.dropped += 1;
        }
    }

    pub(super) fn take(&self) -> Timeline {
        std::mem::take(&mut lock(&self.timeline))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timeline(spans: &[(u32, u64, u64)]) -> Timeline {
        let span = |(device, begin, end): &(u32, u64, u64)| Span {
            line: line(*device),
            work: Work::Copy,
            bytes: 1,
            begin: Duration::from_millis(*begin),
            end: Duration::from_millis(*end),
        };
        Timeline {
            spans: spans.iter().map(span).collect(),
            dropped: 0,
        }
    }

    fn line(device: u32) -> Line {
        Line { device, stream: 0 }
    }

    #[test]
    fn two_streams_are_at_work_at_once_where_their_spans_meet() {
        let both = |spans: &[(u32, u64, u64)]| {
            let timeline = timeline(spans);
            let both = timeline.both(line(0), line(1));
            assert_eq!(both, timeline.both(line(1), line(0)));
            both.as_millis()
        };
        assert_eq!(both(&[(0, 0, 10), (1, 10, 20)]), 0, "one after the other");
        assert_eq!(both(&[(0, 0, 10), (1, 4, 6)]), 2, "one within the other");
        assert_eq!(both(&[(0, 0, 10), (0, 10, 20), (1, 5, 15)]), 10);
        assert_eq!(both(&[(0, 0, 4), (1, 1, 3), (1, 3, 9), (0, 6, 8)]), 5);
        assert_eq!(both(&[(0, 0, 4), (2, 0, 4)]), 0, "another stream");
        assert_eq!(
            timeline(&[(0, 0, 4), (0, 6, 9)]).busy(line(0)).as_millis(),
            7
        );
    }

    #[test]
    fn what_is_more_than_the_limit_is_counted_and_not_kept() {
        let recorder = Recorder::new(2);
        for nth in 0..5 {
            recorder.keep(timeline(&[(0, nth, nth + 1)]).spans[0]);
        }
        let kept = recorder.take();
        assert_eq!((kept.spans.len(), kept.dropped), (2, 3));
        assert_eq!(kept.spans[1].begin, Duration::from_millis(1));
        assert_eq!(recorder.take(), Timeline::default());
        assert!(!Recorder::new(0).is_on());
    }
}
