//! Loops over what lies at fixed distances on both sides, as few of them as the bytes allow.
//!
//! ```text
//!   token × head × row, both sides NHD with 4 heads      token × head × row, 4 heads onto 8
//!     row ─▶ head joins it ─▶ token joins it               row ─▶ head joins it ─▶ token does not
//!     one run of tokens × 4 × row                          a loop over tokens, runs of 4 × row
//! ```

/// `count` steps at fixed distances.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Loop {
    pub(super) count: u64,
    /// Bytes from one step to the next at the source, and at the destination.
    pub(super) src: u64,
    pub(super) dst: u64,
}

/// Runs of equal length under up to four loops. A step of one loop never goes backwards.
#[derive(Clone, Copy, Debug)]
pub(super) struct Nest {
    /// Bytes that lie together on both sides.
    pub(super) run: u64,
    /// Bytes of one row, of which a run is a multiple: where to cut if there is a choice.
    pub(super) row: u64,
    /// How many of `loops` there are.
    pub(super) depth: usize,
    /// The fastest first.
    pub(super) loops: [Loop; 4],
}

impl Nest {
    pub(super) fn new(row: u64) -> Nest {
        Nest {
            run: row,
            row,
            depth: 0,
            loops: [Loop::default(); 4],
        }
    }

    /// Puts a loop around what is there: into the run if rows follow each other on both sides, into
    /// the slowest loop if its steps go on, and otherwise as a loop of its own (of which there are
    /// no more than indices beside the page: layer, plane, head, token).
    pub(super) fn wrap(&mut self, count: u32, src: u64, dst: u64) {
        let count = u64::from(count);
        if count == 1 {
            return;
        }
        if self.depth == 0 && (src, dst) == (self.run, self.run) {
            self.run *= count;
            return;
        }
        if let Some(slowest) = self.loops[..self.depth].last_mut()
            && (src, dst) == (slowest.count * slowest.src, slowest.count * slowest.dst)
        {
            slowest.count *= count;
            return;
        }
        self.loops[self.depth] = Loop { count, src, dst };
        self.depth += 1;
    }
}
