//! For each cell that a receiver holds, one sender; cells that the same ones hold go together.
//!
//! ```text
//!   a receiver's heads     0        2        4        6        8
//!   sender A               ├─────────────────┤
//!   sender B               ├─────────────────┤
//!   sender C                        ├────────────────┤
//!   stretches              │  A, B  │ A, B, C│   C   │ nobody │  ◀─ an error
//! ```
//!
//! The same is done for layers, so that a choice is a rectangle.

use super::RouteError;
use crate::layout::cube::{CubeLayout, Span};
use crate::plan::cube::Part;
use std::collections::BTreeMap;

/// One rectangle, and who sends it.
#[derive(Clone, Debug)]
pub(super) struct Choice {
    pub(super) layers: Span,
    pub(super) plane: usize,
    pub(super) heads: Span,
    pub(super) sender: usize,
}

/// Chooses for one receiver after the other, and remembers who has how much to do.
pub(super) struct Chooser<'a> {
    senders: &'a [&'a [CubeLayout]],
    turn: u64,
    receiver: usize,
    /// Whether a sender has a leg to the receiver at hand.
    has_leg: Vec<bool>,
    /// Bytes a sender has for each token, and for each request.
    load: Vec<[u64; 2]>,
    /// Candidates that may still be looked at.
    work: u64,
}

impl<'a> Chooser<'a> {
    pub(super) fn new(senders: &'a [&'a [CubeLayout]], turn: u64, work: u64) -> Chooser<'a> {
        Chooser {
            senders,
            turn,
            receiver: 0,
            has_leg: vec![false; senders.len()],
            load: vec![[0; 2]; senders.len()],
            work,
        }
    }

    pub(super) fn next_receiver(&mut self, receiver: usize) {
        self.receiver = receiver;
        self.has_leg.fill(false);
    }

    /// Chooses for all that the receiver holds of `pool`. `lead` is a pool that this one goes with,
    /// and who was chosen for it.
    pub(super) fn choose(
        &mut self,
        pool: &CubeLayout,
        lead: Option<(&CubeLayout, &[Choice])>,
    ) -> Result<Vec<Choice>, RouteError> {
        let holders: Vec<(usize, &'a CubeLayout)> = (self.senders.iter().enumerate())
            .filter_map(|(s, set)| Some((s, set.iter().find(|p| p.name == pool.name)?)))
            .collect();
        let mut choices = Vec::new();
        let layers = holders.iter().map(|(_, p)| p.layers.span());
        for layers in stretches(pool.layers.span(), layers) {
            let mut here = holders.clone();
            here.retain(|(_, p)| p.layers.span().holds(layers));
            let lead_here = lead.map(|(data, choices)| {
                let holds = |c: &&Choice| c.layers.holds(layers);
                (data, choices.iter().filter(holds).collect::<Vec<_>>())
            });
            for (plane, held) in pool.planes.iter().enumerate() {
                let follows = |data: &CubeLayout| data.planes[plane].heads == held.heads;
                let heads = here.iter().map(|(_, p)| p.planes[plane].heads.span());
                for heads in stretches(held.heads.span(), heads) {
                    let leader = match &lead_here {
                        Some((data, choices)) if follows(data) => {
                            self.spend(choices.len(), pool)?;
                            leader(choices, plane, heads)
                        }
                        _ => None,
                    };
                    self.spend(here.len(), pool)?;
                    let part = (layers, plane, heads);
                    let sender = self.one(pool, &here, part, leader)?;
                    let rows = u64::from(layers.len()) * u64::from(heads.len());
                    let row = held.row_bytes(pool.granule).unwrap_or(0);
                    let load = &mut self.load[sender][usize::from(pool.kind.is_row())];
                    *load = load.saturating_add(rows.saturating_mul(row));
                    self.has_leg[sender] = true;
                    choices.push(Choice {
                        layers,
                        plane,
                        heads,
                        sender,
                    });
                }
            }
        }
        Ok(choices)
    }

    /// Takes off what is about to be looked at.
    fn spend(&mut self, candidates: usize, pool: &CubeLayout) -> Result<(), RouteError> {
        match self.work.checked_sub(candidates as u64) {
            Some(left) => {
                self.work = left;
                Ok(())
            }
            None => Err(RouteError::Ragged {
                pool: pool.name.clone(),
            }),
        }
    }

    /// Who sends one rectangle (layers, plane, heads), of those who hold its layers.
    fn one(
        &self,
        pool: &CubeLayout,
        holders: &[(usize, &CubeLayout)],
        (layers, plane, heads): (Span, usize, Span),
        leader: Option<usize>,
    ) -> Result<usize, RouteError> {
        let holds = |p: &CubeLayout| p.planes[plane].heads.span().holds(heads);
        let candidates: Vec<usize> = (holders.iter())
            .filter_map(|(s, p)| holds(p).then_some(*s))
            .collect();
        if let Some(leader) = leader
            && candidates.contains(&leader)
        {
            return Ok(leader);
        }
        let count = candidates.len() as u64;
        let which = usize::from(pool.kind.is_row());
        let key = |(i, s): &(usize, usize)| {
            let turn = (*i as u64 + count - self.turn % count) % count;
            (!self.has_leg[*s], self.load[*s][which], turn)
        };
        match candidates.iter().copied().enumerate().min_by_key(key) {
            Some((_, sender)) => Ok(sender),
            None => Err(RouteError::Uncovered {
                receiver: self.receiver,
                pool: pool.name.clone(),
                layers,
                plane,
                heads,
            }),
        }
    }
}

/// Who was chosen for these heads of the leading pool. `choices` hold the layers.
fn leader(choices: &[&Choice], plane: usize, heads: Span) -> Option<usize> {
    let holds = |c: &&&Choice| c.plane == plane && c.heads.holds(heads);
    choices.iter().find(holds).map(|c| c.sender)
}

/// `whole`, cut wherever one of `spans` begins or ends.
fn stretches(whole: Span, spans: impl Iterator<Item = Span>) -> Vec<Span> {
    let mut cuts = vec![whole.start, whole.end];
    for span in spans.map(|span| span.meet(whole)).filter(|s| !s.is_empty()) {
        cuts.extend([span.start, span.end]);
    }
    cuts.sort_unstable();
    cuts.dedup();
    cuts.windows(2).map(|w| Span::new(w[0], w[1])).collect()
}

/// One sender's rectangles, joined over planes, neighbouring heads and neighbouring layers.
pub(super) fn parts(choices: &[Choice], sender: usize, planes: usize) -> Vec<Part> {
    let mut rows: BTreeMap<Span, Vec<Vec<Span>>> = BTreeMap::new();
    for choice in choices.iter().filter(|c| c.sender == sender) {
        let row = rows
            .entry(choice.layers)
            .or_insert_with(|| vec![Vec::new(); planes]);
        match row[choice.plane].last_mut() {
            Some(last) if last.end == choice.heads.start => last.end = choice.heads.end,
            _ => row[choice.plane].push(choice.heads),
        }
    }
    let mut parts: Vec<Part> = Vec::new();
    for (layers, row) in rows {
        let most = row.iter().map(Vec::len).max().unwrap_or(0);
        for k in 0..most {
            let nothing = Span::new(0, 0);
            let heads: Vec<Span> = row
                .iter()
                .map(|spans| spans.get(k).copied().unwrap_or(nothing))
                .collect();
            let before = |p: &&mut Part| p.layers.end == layers.start && p.heads == heads;
            match parts.iter_mut().find(before) {
                Some(part) => part.layers.end = layers.end,
                None => parts.push(Part { layers, heads }),
            }
        }
    }
    parts
}
