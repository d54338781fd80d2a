//! Gates of claims whose writer writes by itself, from another process or host (`ucx`): nothing on this
//! side lets it in or out, and only somebody else's word, or the end of its path, says that it is out.
//!
//! ```text
//!   open ─▶ FarGate ──close──▶ closed ── its sender said that it is out ───────────────▶ PeerDrained
//!              │                  └───── its path is destroyed, and that stops writes ──▶ PathFenced
//!              └── never sent: withdrawn
//! ```
//!
//! Rules: [`PeerOut`] is made where the addressed incarnation's own message came in, and nowhere else; a
//! path is fenced by its fabric, by a row of the fence table. A gate that is lost keeps its pages for
//! ever: nobody could say when they may be used again.

use super::copy::{CopyError, End, lent};
use super::held::covers;
use super::pool::{Pool, pages_of};
use super::target::{Landed, Target};
use super::ticket::Ticket;
use crate::ids::{ClaimId, ClaimNo};
use kvroom_kernels::coverage::Coverage;
use kvroom_kernels::layout::PoolLayout;
use std::cell::Cell;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A path over which a peer writes, as the gates of its claims see it.
#[derive(Debug, Default)]
pub struct FarPath {
    fenced: AtomicBool,
}

impl FarPath {
    /// From now on nothing lands over it. Only for its fabric, and only when a row of the fence table
    /// says so.
    pub(crate) fn fence(&self) {
        // Release: what landed before is there for whoever finds the path fenced.
        self.fenced.store(true, Ordering::Release);
    }

    /// Whether nothing lands over it any more.
    pub fn is_fenced(&self) -> bool {
        self.fenced.load(Ordering::Acquire)
    }
}

/// Whether a range of a pool of this layout lies in pages that a claim names. `cursor` remembers where in
/// the list the last page was found.
///
/// # Errors
///
/// [`CopyError`]: it does not.
pub(crate) fn named_pages(
    layout: &PoolLayout,
    pages: &[u32],
    offset: u64,
    bytes: u64,
    cursor: &Cell<usize>,
) -> Result<(), CopyError> {
    let end = End::Destination;
    let pool_bytes = u64::from(layout.layers)
        .saturating_mul(layout.pages.into())
        .saturating_mul(layout.page_bytes);
    let upto = offset.checked_add(bytes).filter(|upto| *upto <= pool_bytes);
    let Some(upto) = upto else {
        return Err(CopyError::OutOfPool {
            end,
            offset,
            bytes,
            pool_bytes,
        });
    };
    if bytes > 0 {
        covers(pages, pages_of(layout, offset..upto), cursor)
            .map_err(|page| CopyError::NotLent { end, page })?;
    }
    Ok(())
}

impl Ticket {
    /// Where a range of the source is, for a fabric that reads it by itself. The address is good for as long
    /// as this ticket lives, and is to be read only.
    ///
    /// # Errors
    ///
    /// [`CopyError`]: the range is not in the pages that were lent, or not in memory that the CPU reaches.
    pub(crate) fn address(&self, offset: u64, bytes: u64) -> Result<NonNull<u8>, CopyError> {
        let Some(source) = self.source() else {
            unreachable!("a ticket has its source until it is dropped");
        };
        let cursor = &self.source_cursor;
        lent(source.held(), End::Source, offset, bytes, cursor).map(|(at, _)| at)
    }
}

impl Pool {
    /// Where all of it is, for a fabric that registers it; none if the CPU does not reach it. Good for as
    /// long as the pool is kept.
    pub(crate) fn span(&self) -> Option<(NonNull<u8>, u64)> {
        let bytes = self.memory().bytes();
        self.memory().at(0, bytes).map(|(at, _)| (at, bytes))
    }
}

/// The incarnation that a claim was sent to has said that it is out of it, and will never be in again.
#[derive(Debug)]
pub(crate) struct PeerOut {
    number: ClaimNo,
}

impl PeerOut {
    /// Only for who has taken a `Quiesced` or a `Complete` of this very claim from a session with the
    /// incarnation that the claim names.
    pub(crate) fn heard(id: ClaimId) -> PeerOut {
        PeerOut { number: id.number }
    }
}

/// The witness that claim `number` writes nothing any more: its writer has said so.
#[derive(Debug, PartialEq, Eq)]
pub struct PeerDrained {
    number: ClaimNo,
    landed: Landed,
}

/// The witness that claim `number` writes nothing any more: the path of its writer is destroyed, in a way
/// that stops writes.
#[derive(Debug, PartialEq, Eq)]
pub struct PathFenced {
    number: ClaimNo,
    landed: Landed,
}

macro_rules! of_a_claim {
    ($($witness:ident),*) => {$(
        impl $witness {
            /// Whose gate it was.
            pub fn number(&self) -> ClaimNo {
                self.number
            }

            /// What is known to have landed.
            pub fn landed(&self) -> Landed {
                self.landed
            }
        }
    )*};
}
of_a_claim!(PeerDrained, PathFenced);

/// Why a far gate is over.
#[derive(Debug)]
pub(crate) enum FarOver {
    Drained(PeerDrained),
    Fenced(PathFenced),
}

/// A gate that its writer keeps to, and no lane of this process enters.
pub(super) struct FarGate {
    number: ClaimNo,
    /// None only within `Drop`, and when it is over.
    target: Option<Box<Target>>,
    path: Arc<FarPath>,
    /// Its writer is out, or never heard of it.
    out: bool,
}

impl FarGate {
    pub(super) fn open(number: ClaimNo, target: Box<Target>, path: Arc<FarPath>) -> FarGate {
        FarGate {
            number,
            target: Some(target),
            path,
            out: false,
        }
    }

    pub(super) fn number(&self) -> ClaimNo {
        self.number
    }

    pub(super) fn target(&self) -> &Target {
        match &self.target {
            Some(target) => target,
            None => unreachable!("a far gate has its target until it is over"),
        }
    }

    /// Nobody was told of it.
    pub(super) fn withdraw(&mut self) {
        self.out = true;
    }

    /// Its writer is out; `cells` is what it says it wrote. Nothing if it is another claim's writer.
    pub(super) fn hear(&mut self, said: &PeerOut, cells: &Coverage) {
        if said.number != self.number || self.out {
            return;
        }
        let target = self.target();
        target.count_pieces(cells.rects().len() as u64, target.bytes_of(cells));
        self.out = true;
    }

    /// The witness, if its writer is out. Only of a closed gate.
    pub(super) fn try_finish(mut self) -> Result<FarOver, FarGate> {
        let fenced = self.path.is_fenced();
        if !self.out && !fenced {
            return Err(self);
        }
        let (number, landed) = (self.number, self.target().landed());
        // Before the witness exists: the leases are whole again by then.
        drop(self.target.take());
        Ok(match self.out {
            true => FarOver::Drained(PeerDrained { number, landed }),
            false => FarOver::Fenced(PathFenced { number, landed }),
        })
    }
}

impl Drop for FarGate {
    fn drop(&mut self) {
        let Some(target) = self.target.take() else {
            return;
        };
        if !self.out && !self.path.is_fenced() {
            let claim = self.number;
            tracing::warn!(%claim, "a claim was forgotten while its writer may write: its pages stay held");
            std::mem::forget(target);
        }
    }
}

impl fmt::Debug for FarGate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FarGate")
            .field("number", &self.number)
            .field("out", &self.out)
            .finish_non_exhaustive()
    }
}
