//! Which sender of a decode room covers what.
//!
//! ```text
//!   from, from_layers      whole cells: the senders' layers together are all, none twice
//!   from_part, from_ranks  parts of cells: for each pool, layers x heads of each plane
//!                          together are what this rank holds, none twice
//! ```
//!
//! A room is of one kind or the other: what is written by cells and what by parts of them is accounted for
//! in the same way and summed in another.

use super::error::StartErrorKind;
use super::node::Peer;
use kvroom_actors::ids::PeerRef;
use kvroom_actors::memory::WriteLease;
use kvroom_actors::peer::message::Part;
use kvroom_kernels::coverage::{Coverage, Rect};
use kvroom_kernels::layout::cube::{CubeKind, CubeLayout};
use kvroom_kernels::plan::cube::{Part as CubePart, TilingError, tiles};
use kvroom_kernels::plan::routes::routes;
use std::ops::Range;
use std::sync::Arc;

/// What a named sender covers.
#[derive(Clone, Debug)]
pub(super) enum Cover {
    Whole,
    Layers(Range<u32>),
    /// Of pools, by their names.
    Parts(Vec<(String, CubePart)>),
}

/// Senders that are asked for what they hold.
#[derive(Clone, Debug)]
pub(super) struct Ranks {
    pub(super) peers: Vec<Peer>,
    pub(super) turn: u64,
}

/// All ranks that receive the request, and which of them this is.
#[derive(Clone, Debug)]
pub(super) struct Receivers {
    pub(super) all: Vec<Vec<CubeLayout>>,
    pub(super) me: usize,
}

/// One sender, and what it is told.
#[derive(Debug)]
pub(super) struct Leg {
    pub(super) peer: PeerRef,
    pub(super) part: Part,
    pub(super) receivers: u16,
    pub(super) rank: u16,
    /// The cells of which it writes something, the aux row among them.
    pub(super) wanted: Coverage,
}

/// The destination, as far as its senders go.
#[derive(Clone, Copy)]
pub(super) struct Into<'a> {
    pub(super) leases: &'a [WriteLease],
    pub(super) aux: Option<&'a WriteLease>,
    /// What a sender is told of the room if it is told nothing of its own.
    pub(super) receivers: u16,
    pub(super) rank: u16,
}

type Refused = StartErrorKind;

/// A sender, what it covers of which pool, and how many receivers it has, of which this is which.
type Named = (PeerRef, Vec<(String, CubePart)>, (u16, u16));

fn bad<T>(text: String) -> Result<T, Refused> {
    Err(StartErrorKind::BadRequest(text))
}

/// Whether the pool has one row for each request that is moved in parts, and not by `aux`.
pub(super) fn is_state(lease: &WriteLease) -> bool {
    let content = lease.pool().content();
    content.is_some_and(|content| content.kind == CubeKind::State)
}

impl Into<'_> {
    /// The legs to senders that were named with what they cover.
    pub(super) fn named(&self, from: &[(PeerRef, Cover)]) -> Result<Vec<Leg>, Refused> {
        let is_parts = |(_, cover): &&(PeerRef, Cover)| matches!(cover, Cover::Parts(_));
        match from.iter().filter(is_parts).count() {
            0 => self.by_cells(from),
            n if n == from.len() => {
                let all = from.iter().map(|(peer, cover)| {
                    let parts = match cover {
                        Cover::Parts(parts) => parts.clone(),
                        Cover::Whole | Cover::Layers(_) => Vec::new(),
                    };
                    (*peer, parts, (self.receivers, self.rank))
                });
                self.by_parts(all.collect())
            }
            _ => bad(
                "some senders cover whole cells and some parts of them: name all of them with from_part(), \
                 or none"
                    .into(),
            ),
        }
    }

    /// What each sender must write; together it is everything, and nothing twice.
    fn by_cells(&self, from: &[(PeerRef, Cover)]) -> Result<Vec<Leg>, Refused> {
        let mut all = Coverage::new();
        let mut legs = Vec::with_capacity(from.len());
        let mut everything = Coverage::new();
        for (i, (peer, cover)) in from.iter().enumerate() {
            let given = match cover {
                Cover::Layers(layers) => Some(layers.clone()),
                Cover::Whole | Cover::Parts(_) => None,
            };
            if let Some(layers) = &given
                && layers.is_empty()
            {
                let Range { start, end } = layers;
                return bad(format!(
                    "sender {i} covers layers {start}..{end}, which is none"
                ));
            }
            let mut wanted = Coverage::new();
            for (section, lease) in (0..).zip(self.leases) {
                let (layers, pages) = (lease.pool().layout().layers, lease.pages().len() as u32);
                let range = given.clone().unwrap_or(0..layers);
                if range.is_empty() || range.end > layers {
                    return bad(format!(
                        "sender {i} covers layers {}..{}, the pool has {layers}",
                        range.start, range.end
                    ));
                }
                let _ = wanted.insert(section, range, 0..pages);
                if i == 0 {
                    let _ = everything.insert(section, 0..layers, 0..pages);
                }
            }
            if all.absorb(&wanted).is_err() {
                return bad(format!(
                    "sender {i} covers what another one covers: give each its layers with from_layers()"
                ));
            }
            if i == 0 && self.aux.is_some() {
                let _ = wanted.insert(Rect::AUX, 0..1, 0..1);
            }
            let part = match given {
                None => Part::Whole,
                Some(Range { start, end }) => Part::Layers { first: start, end },
            };
            legs.push(Leg {
                peer: *peer,
                part,
                receivers: self.receivers,
                rank: self.rank,
                wanted,
            });
        }
        if let Some(cell) = all.first_missing(&everything) {
            return bad(format!("no sender covers {cell}"));
        }
        Ok(legs)
    }

    /// The same for parts of cells.
    fn by_parts(&self, from: Vec<Named>) -> Result<Vec<Leg>, Refused> {
        let contents = self.contents()?;
        for (i, (_, parts, _)) in from.iter().enumerate() {
            for (at, (name, _)) in parts.iter().enumerate() {
                if !contents.iter().any(|c| c.name == *name) {
                    return bad(format!(
                        "sender {i} covers a part of pool {name:?}, of which the room has no lease"
                    ));
                }
                if parts[..at].iter().any(|(other, _)| other == name) {
                    return bad(format!(
                        "sender {i} covers two parts of pool {name:?}; a claim is for one"
                    ));
                }
            }
            if parts.is_empty() && (i > 0 || self.aux.is_none()) {
                return bad(format!("sender {i} covers nothing"));
            }
        }
        let of = |i: usize, name: &str| {
            let parts = &from[i].1;
            parts.iter().find(|(n, _)| n == name).map(|(_, part)| part)
        };
        for content in &contents {
            let name = &content.name;
            // Who is part 0, 1, … of what is checked.
            let who: Vec<usize> = (0..from.len()).filter(|i| of(*i, name).is_some()).collect();
            tiles(content, who.iter().filter_map(|i| of(*i, name)))
                .map_err(|wrong| tiling(name, &who, wrong))?;
        }
        let mut legs = Vec::with_capacity(from.len());
        for (i, (peer, _, (receivers, rank))) in from.iter().enumerate() {
            let mut wanted = Coverage::new();
            let mut parts = Vec::with_capacity(contents.len());
            for (section, (lease, content)) in (0..).zip(self.leases.iter().zip(&contents)) {
                let part = of(i, &content.name).cloned();
                if let Some(part) = &part {
                    // The tiling is right: all of it is within what the rank holds.
                    let first = content.layers.first;
                    let layers = part.layers.start - first..part.layers.end - first;
                    let _ = wanted.insert(section, layers, 0..lease.pages().len() as u32);
                }
                parts.push(part);
            }
            if i == 0 && self.aux.is_some() {
                let _ = wanted.insert(Rect::AUX, 0..1, 0..1);
            }
            legs.push(Leg {
                peer: *peer,
                part: Part::Slices(parts),
                receivers: *receivers,
                rank: *rank,
                wanted,
            });
        }
        Ok(legs)
    }

    /// The legs to senders that hold what this rank wants, by what they announced.
    pub(super) fn routed(
        &self,
        ranks: &Ranks,
        receivers: Option<&Receivers>,
    ) -> Result<Vec<Leg>, Refused> {
        let mut mine: Vec<CubeLayout> = Vec::new();
        mine.extend(self.contents()?.iter().map(|c| (**c).clone()));
        let aux = self.aux.and_then(|aux| aux.pool().content());
        mine.extend(aux.map(|content| (**content).clone()));
        let (all, me) = match receivers {
            None => (vec![mine.clone()], 0),
            Some(Receivers { all, me }) => (all.clone(), *me),
        };
        let sorted = |set: &[CubeLayout]| {
            let mut set = set.to_vec();
            set.sort();
            set
        };
        match all.get(me) {
            Some(said) if sorted(said) == sorted(&mine) => {}
            Some(_) => {
                return bad(format!(
                    "rank {me} of ranks() has other pools than the leases of this room, or others in them"
                ));
            }
            None => return bad(format!("ranks() names {} ranks and no {me}", all.len())),
        }
        let wanted = |content: &CubeLayout| all.iter().flatten().any(|c| c.name == content.name);
        let held: Vec<Vec<CubeLayout>> = (ranks.peers.iter())
            .map(|peer| {
                let contents = peer.contents();
                let contents = contents.iter().filter(|content| wanted(content));
                contents.map(|content| (**content).clone()).collect()
            })
            .collect();
        let plan = match routes(&held, &all, ranks.turn) {
            Ok(plan) => plan,
            Err(error) => return bad(format!("the senders of from_ranks(): {error}")),
        };
        let mut from = Vec::new();
        for leg in plan.to(me) {
            let mut parts: Vec<(String, CubePart)> = Vec::new();
            let mut has_aux = false;
            for of in &leg.parts {
                let pool = &all[me][of.dst_pool];
                match pool.kind {
                    CubeKind::Aux => has_aux = true,
                    _ => parts.push((pool.name.clone(), of.part.clone())),
                }
            }
            let seats: Vec<usize> = plan.from(leg.sender).map(|leg| leg.receiver).collect();
            let seat = match receivers {
                None => (self.receivers, self.rank),
                Some(_) => (
                    count(seats.len()),
                    count(seats.iter().position(|r| *r == me).unwrap_or(0)),
                ),
            };
            let one = (ranks.peers[leg.sender].id(), parts, seat);
            // The aux row goes with the first claim.
            match has_aux {
                true => from.insert(0, one),
                false => from.push(one),
            }
        }
        self.by_parts(from)
    }

    /// What the pools of all leases hold, in the order of the sections.
    fn contents(&self) -> Result<Vec<Arc<CubeLayout>>, Refused> {
        let content = |lease: &WriteLease| match lease.pool().content() {
            Some(content) => Ok(Arc::clone(content)),
            None => bad(format!(
                "pool {:?} does not say what its bytes mean, so no part of it can be covered: give it a \
                 content with Pool::with_content()",
                lease.pool().layout().name
            )),
        };
        self.leases.iter().map(content).collect()
    }
}

fn count(n: usize) -> u16 {
    u16::try_from(n).unwrap_or(u16::MAX)
}

/// In words, with the senders' numbers for the parts'.
fn tiling(pool: &str, who: &[usize], wrong: TilingError) -> Refused {
    let sender = |part: usize| who.get(part).copied().unwrap_or(part);
    let what = match wrong {
        TilingError::Missing { layer, plane, head } => {
            format!("no sender covers layer {layer}, head {head} of plane {plane}")
        }
        TilingError::Twice {
            layer,
            plane,
            head,
            parts: [a, b],
        } => format!(
            "senders {} and {} both cover layer {layer}, head {head} of plane {plane}",
            sender(a),
            sender(b)
        ),
        TilingError::Planes { part, .. }
        | TilingError::Empty { part }
        | TilingError::Layers { part, .. }
        | TilingError::Heads { part, .. } => format!("sender {}: {wrong}", sender(part)),
    };
    StartErrorKind::BadRequest(format!("pool {pool:?}: {what}"))
}
