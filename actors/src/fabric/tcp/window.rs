//! Where at one end the bytes of a sliced frame are, some of them at a time.
//!
//! ```text
//!   frame    ──────────────────────────────────────────▶ payload, in the destination's order
//!            done │ ranges (at most one write's) │ runs │ what the plan has not given out
//! ```
//!
//! The two ends make the same walk with a plan of their own: the sender from its pages onto the
//! destination's order, the receiver over its own pages. No more is kept of it than one call to the
//! kernel takes.

use crate::memory::{MAX_RANGES, PoolRange};
use kvroom_kernels::plan::End;
use kvroom_kernels::plan::cube::{CubePlan, Strided};

/// See the module.
pub(super) struct Window {
    plan: CubePlan,
    end: End,
    /// Bytes of the frame that the plan has not given out.
    left: u64,
    /// What it gave out last, as far as it is no range yet.
    runs: Runs,
    /// From `first` on.
    ranges: Vec<PoolRange>,
    first: usize,
}

/// Runs of one end at equal distances.
#[derive(Default)]
struct Runs {
    at: u64,
    bytes: u64,
    step: u64,
    count: u64,
}

impl Window {
    /// The `length` bytes of a plan from `position` on, at one of its ends.
    pub(super) fn new(mut plan: CubePlan, end: End, position: u64, length: u64) -> Window {
        let mut skip = position;
        while skip > 0
            && let Some(runs) = plan.next_strided(skip)
        {
            skip -= runs.bytes * runs.count;
        }
        Window {
            left: length.min(plan.remaining_bytes()),
            plan,
            end,
            runs: Runs::default(),
            ranges: Vec::new(),
            first: 0,
        }
    }

    /// The next ranges: all that are left, or more than [`MAX_RANGES`] (by one).
    pub(super) fn ranges(&mut self) -> &[PoolRange] {
        self.ranges.drain(..self.first);
        self.first = 0;
        while self.ranges.len() <= MAX_RANGES && (self.runs.count > 0 || self.pull()) {
            let Runs { at, bytes, .. } = self.runs;
            self.runs.count -= 1;
            self.runs.at += self.runs.step;
            match self.ranges.last_mut() {
                Some(last) if last.offset + last.bytes == at => last.bytes += bytes,
                _ => self.ranges.push(PoolRange { offset: at, bytes }),
            }
        }
        &self.ranges
    }

    /// The first `bytes` bytes of the ranges are done.
    pub(super) fn advance(&mut self, mut bytes: u64) {
        while bytes > 0
            && let Some(range) = self.ranges.get_mut(self.first)
        {
            let now = bytes.min(range.bytes);
            range.offset += now;
            range.bytes -= now;
            bytes -= now;
            if range.bytes == 0 {
                self.first += 1;
            }
        }
    }

    /// Takes runs from the plan. False if the frame has no more.
    fn pull(&mut self) -> bool {
        let Some(strided) = self.plan.next_strided(self.left) else {
            return false;
        };
        let Strided { bytes, count, .. } = strided;
        self.left -= bytes * count;
        let (at, step) = match self.end {
            End::Source => (strided.src, strided.src_step),
            End::Destination => (strided.dst, strided.dst_step),
        };
        self.runs = match step == bytes {
            // Apart at the other end only.
            true => Runs {
                at,
                bytes: bytes * count,
                step: 0,
                count: 1,
            },
            false => Runs {
                at,
                bytes,
                step,
                count,
            },
        };
        true
    }
}
