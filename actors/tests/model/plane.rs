//! Gates and lanes of the fabric `local`: a copy enters the gate, lands, leaves.

use super::node::Lease;
use kvroom_actors::ids::{LegNo, LifeId};
use kvroom_actors::peer::message::ClaimTag;
use kvroom_actors::room::JobSpec;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Gate {
    pub(crate) node: usize,
    pub(crate) life: LifeId,
    pub(crate) leg: LegNo,
    pub(crate) closed: bool,
    pub(crate) inside: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Job {
    pub(crate) life: LifeId,
    pub(crate) leg: LegNo,
    pub(crate) no: u32,
    pub(crate) spec: JobSpec,
    pub(crate) claim: ClaimTag,
    pub(crate) source: Option<Lease>,
    pub(crate) inside: bool,
    pub(crate) cancelled: bool,
    /// It left the gate and its end was said; only a planted bug does that before it landed.
    pub(crate) told: bool,
}

/// A page of a claim, or its aux row.
pub(crate) const AUX: u32 = u32::MAX;

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Plane {
    pub(crate) gates: BTreeMap<ClaimTag, Gate>,
    pub(crate) jobs: Vec<Job>,
    /// What was written for each claim, in truth.
    pub(crate) landed: BTreeMap<ClaimTag, BTreeSet<u32>>,
}

impl Plane {
    pub(crate) fn pages(spec: &JobSpec) -> Vec<u32> {
        match spec {
            JobSpec::Pages { to, pages, .. } => (*to..to + pages).collect(),
            JobSpec::Aux => vec![AUX],
        }
    }

    /// The lane begins with job `at`. False if the gate refuses it.
    pub(crate) fn enter(&mut self, at: usize) -> bool {
        let job = &mut self.jobs[at];
        match self.gates.get_mut(&job.claim) {
            Some(gate) if !gate.closed => {
                gate.inside += 1;
                job.inside = true;
                true
            }
            _ => false,
        }
    }

    /// Leaves the gate; true if that was the last one of a closed gate.
    pub(crate) fn leave(&mut self, claim: ClaimTag) -> bool {
        let Some(gate) = self.gates.get_mut(&claim) else {
            return false;
        };
        gate.inside -= 1;
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
}
