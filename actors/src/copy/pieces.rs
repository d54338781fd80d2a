//! What a job copies, piece by piece: whole cells, or parts of them.

use kvroom_kernels::plan::cube::CubePlan;
use kvroom_kernels::plan::{Piece, Plan};

/// A plan of either kind, and how far it is.
#[derive(Debug)]
pub(crate) enum Pieces {
    /// Whole cells, between pools whose cells are alike.
    Cells(Plan),
    /// Parts of cells, between any two pools that say what their bytes mean.
    Slices(Box<CubePlan>),
}

impl Pieces {
    /// The next bytes to copy, at most `max_bytes` of them; none when all were given out.
    #[inline]
    pub(crate) fn next_piece(&mut self, max_bytes: u64) -> Option<Piece> {
        match self {
            Pieces::Cells(plan) => plan.next_piece(max_bytes),
            Pieces::Slices(plan) => plan.next_piece(max_bytes),
        }
    }

    /// Bytes that were not given out yet.
    pub(crate) fn remaining_bytes(&self) -> u64 {
        match self {
            Pieces::Cells(plan) => plan.remaining_bytes(),
            Pieces::Slices(plan) => plan.remaining_bytes(),
        }
    }
}
