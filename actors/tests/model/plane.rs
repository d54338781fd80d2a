//! Gates, copies and what is under way, for each kind of fabric.
//!
//! ```text
//!   Local   sender's lane ─▶ gate ─▶ page                                one process
//!   Shm     sender's lane ─▶ gate in the receiver's memory ─▶ page       may stop or die inside
//!   Tcp     sender ─▶ frame ─▶ receiver's lane ─▶ gate ─▶ page           frames outlive the sender
//!   Ucx     sender's device ───────────────────────────▶ page            no gate: any time
//! ```
//!
//! One-sided `ucx` is played by its rules here, around the shipped cores, which
//! take any witness: a claim ends by the answer of the incarnation that it was sent to, by its
//! `Complete`, or by a fence, and by nothing else. So the model shows that the cores are right for
//! such a fabric, not that the fabric is right.

use super::node::Lease;
use super::size::Kind;
use kvroom_actors::ids::{LegNo, LifeId, RoomKey};
use kvroom_actors::peer::message::ClaimTag;
use kvroom_actors::room::JobSpec;
use std::collections::{BTreeMap, BTreeSet};

/// A process: a node, and which of its lives.
pub(crate) type Process = (usize, u32);

/// A claim's pages and the gate before them. With `Kind::Ucx` nothing asks the gate.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Gate {
    pub(crate) node: usize,
    /// The life of the node that offered it.
    pub(crate) inc: u32,
    /// The life of the pool that it lies in.
    pub(crate) pool: u32,
    /// The pages, as one thing that is leased.
    pub(crate) place: u32,
    pub(crate) life: LifeId,
    pub(crate) leg: LegNo,
    pub(crate) closed: bool,
    pub(crate) inside: u32,
    /// Its witness was made.
    pub(crate) met: bool,
}

/// A copy that a sender's room posted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Job {
    pub(crate) owner: Process,
    pub(crate) life: LifeId,
    /// Whose bytes they are.
    pub(crate) key: RoomKey,
    pub(crate) leg: LegNo,
    pub(crate) no: u32,
    pub(crate) spec: JobSpec,
    pub(crate) claim: ClaimTag,
    pub(crate) source: Option<Lease>,
    /// It is inside the gate; or on the wire; or with the device.
    pub(crate) inside: bool,
    pub(crate) cancelled: bool,
    /// It left the gate and its end was said; only a planted bug does that before it landed.
    pub(crate) told: bool,
    /// Its flush ended in an error. It may land all the same.
    pub(crate) errored: bool,
    /// And it has landed, which its sender does not know.
    pub(crate) landed: bool,
    /// Its path was destroyed: it will not land.
    pub(crate) fenced: bool,
    /// How often it was sent.
    pub(crate) copy: u32,
    /// The gate that it entered, where that is not its claim's: only by a planted bug.
    pub(crate) entered: Option<ClaimTag>,
}

/// A piece on the wire of `Kind::Tcp`, or with the lane at its end.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct TcpFrame {
    pub(crate) owner: Process,
    pub(crate) life: LifeId,
    pub(crate) key: RoomKey,
    pub(crate) no: u32,
    pub(crate) copy: u32,
    pub(crate) claim: ClaimTag,
    pub(crate) cells: Vec<u32>,
    pub(crate) inside: bool,
}

/// The aux row of a claim, as a cell.
pub(crate) const AUX: u32 = 0xffff;

/// A cell of a room's destination: of this leg, this page or aux row.
pub(crate) fn cell(leg: LegNo, page: u32) -> u32 {
    u32::from(leg.0) << 16 | page
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Plane {
    pub(crate) gates: BTreeMap<ClaimTag, Gate>,
    pub(crate) jobs: Vec<Job>,
    pub(crate) frames: Vec<TcpFrame>,
    /// Claims whose path was destroyed: nothing of them lands.
    pub(crate) fenced: BTreeSet<ClaimTag>,
}

impl Plane {
    pub(crate) fn pages(spec: &JobSpec) -> Vec<u32> {
        match spec {
            JobSpec::Pages { to, .. } => to.clone().collect(),
            JobSpec::Aux => vec![AUX],
        }
    }

    /// The cells that a job of this claim writes.
    pub(crate) fn cells(&self, claim: ClaimTag, spec: &JobSpec) -> Vec<u32> {
        let leg = self.gates[&claim].leg;
        let pages = Self::pages(spec).into_iter();
        pages.map(|page| cell(leg, page)).collect()
    }

    /// A lane enters the gate of `claim`; false if that refuses.
    pub(crate) fn enter(&mut self, claim: ClaimTag) -> bool {
        match self.gates.get_mut(&claim) {
            Some(gate) if !gate.closed => {
                gate.inside += 1;
                true
            }
            _ => false,
        }
    }

    /// The gate that a lane finds by the claim's number alone, in the table that it has mapped:
    /// the claim's own, unless numbers were used twice.
    pub(crate) fn by_number(&self, claim: ClaimTag) -> ClaimTag {
        let Some(own) = self.gates.get(&claim) else {
            return claim;
        };
        let same = self.gates.iter().filter(|(tag, gate)| {
            let table = (gate.node, gate.pool) == (own.node, own.pool);
            table && tag.id.number == claim.id.number && tag.id.sender == claim.id.sender
        });
        let newest = same.max_by_key(|(tag, _)| tag.id.receiver.nonce);
        newest.map_or(claim, |(tag, _)| *tag)
    }

    /// Leaves the gate; true if that was the last one of a closed gate.
    pub(crate) fn leave(&mut self, claim: ClaimTag) -> bool {
        let Some(gate) = self.gates.get_mut(&claim) else {
            return false;
        };
        gate.inside = gate.inside.saturating_sub(1);
        gate.closed && gate.inside == 0
    }

    /// Closes the gate of a leg; its claim if it is empty now (or, planted, whoever is inside) and
    /// was not closed before.
    pub(crate) fn close(
        &mut self,
        (node, life, leg): (usize, LifeId, LegNo),
        early: bool,
    ) -> Option<ClaimTag> {
        let (tag, gate) = self
            .gates
            .iter_mut()
            .find(|(_, g)| (g.node, g.life, g.leg) == (node, life, leg))?;
        if gate.closed {
            return None;
        }
        gate.closed = true;
        (gate.inside == 0 || early).then_some(*tag)
    }

    /// Whether nothing can be written through this claim any more, by what its receiver can see.
    pub(crate) fn is_out(&self, kind: Kind, claim: ClaimTag) -> bool {
        match kind {
            Kind::Ucx => self.gates[&claim].met || self.fenced.contains(&claim),
            _ => self.gates[&claim].closed && self.gates[&claim].inside == 0,
        }
    }
}
