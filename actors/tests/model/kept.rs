//! What a world may hold for ever, and nothing else: memory that a device may still write, where no
//! path can be destroyed.
//!
//! ```text
//!   a dead writer, a failed flush ─▶ claim without an end ─▶ lives at both ends ─▶ all they hold
//!                                                       └─▶ pages of a former life of the pool
//! ```
//!
//! A quarantine explains what it holds, piece by piece: each life that is left owes something that
//! nothing can pay, and each room, claim, credit, source, page and copy that is left is of such a
//! life, or under such pages. Clocks, sums and callers who wait for an outcome it does not explain.

use super::end::process;
use super::network::SENDER;
use super::node::{Lease, Witness};
use super::size::Kind;
use super::world::World;
use kvroom_actors::ids::LifeId;
use kvroom_actors::peer::message::ClaimTag;
use kvroom_actors::room::Role;
use kvroom_actors::supervisor::core::Life;

/// What may be left of [`World::leftovers`], each looked at below.
const EXPLAINED: [&str; 8] = [
    "lives", "claims", "rooms", "links", "copies", "sources", "pages", "leases",
];

impl World {
    /// Whether nothing is left but what has to be kept: pages whose writer is dead or whose flush
    /// failed, on a path that nothing can destroy, or (if not `for_ever`) whose peer is not connected.
    pub(crate) fn is_wanted_quarantine(&self, for_ever: bool) -> bool {
        let pages = || self.truth.places.values().filter(|h| h.quarantined);
        self.size.plane == Kind::Ucx
            && !self.size.fence
            && (self.nodes.iter().any(|n| n.core.lives().next().is_some())
                || pages().next().is_some())
            && self.leftovers().iter().all(|left| EXPLAINED.contains(left))
            && (0..self.nodes.len()).all(|node| self.is_node_kept(node, for_ever))
            && self.are_pages_kept()
            && self.are_links_kept()
            && self.are_copies_kept()
            && self.are_stories_kept()
            && self.is_at_rest()
    }

    /// Whether everything that a node has is of lives that have to be kept.
    fn is_node_kept(&self, at: usize, for_ever: bool) -> bool {
        let node = &self.nodes[at];
        let lives = || node.core.lives();
        let claims = lives().flat_map(|(_, life)| life.legs());
        let claims = claims.filter(|leg| leg.claim.is_some()).count();
        lives().all(|(id, life)| self.is_life_kept(id, life, for_ever))
            && node.core.early().is_empty()
            && node.core.claims() <= claims
            && node.rooms.keys().all(|id| node.core.life(*id).is_some())
            && node.inbox.is_empty()
            && node.mail.is_empty()
    }

    fn is_life_kept(&self, id: LifeId, life: &Life<Lease, Witness, ()>, for_ever: bool) -> bool {
        let mut owing = life.custody().owing();
        let owes = life.custody().owed() > 0;
        owes && life.outcome().is_some()
            && owing.all(|(leg, owed)| match life.role() {
                Role::Sender => {
                    let jobs = self.plane.jobs.iter();
                    let failed = jobs.filter(|j| j.life == id && j.leg == leg && j.errored);
                    failed.count() == owed as usize
                }
                Role::Receiver => {
                    let claim = life.legs()[usize::from(leg.0)].claim;
                    claim.is_some_and(|tag| self.is_claim_kept(tag, for_ever))
                }
            })
    }

    /// Whether nothing will ever end this claim.
    fn is_claim_kept(&self, tag: ClaimTag, for_ever: bool) -> bool {
        let (gate, sender) = (&self.plane.gates[&tag], process(tag.id.sender));
        let link = &self.links[self.link_of(gate.node, sender.0)];
        let apart = link.ends.iter().any(|e| e.session.is_none());
        // A sender's room is out of none of its claims before it is out of all.
        let mut jobs = self.plane.jobs.iter();
        let failed = jobs.any(|j| (j.owner, j.key) == (sender, tag.room) && j.errored);
        let over = self.lives[sender.0] != sender.1 || self.is_dead(sender);
        !gate.met && (over || failed || (apart && !for_ever))
    }

    /// Pages that are not free are of a life, or a writer of a former life may still reach them.
    fn are_pages_kept(&self) -> bool {
        let places = &self.truth.places;
        let known = (0..self.nodes.len()).all(|node| {
            let mut taken = self.pages[node].taken();
            taken.all(|(at, _)| places.contains_key(&(node, self.pools[node], at)))
        });
        let mut pages = places.iter();
        known
            && pages.all(|((node, pool, at), held)| {
                let mut gates = self.plane.gates.values();
                let mut writer = || {
                    gates.any(|g| {
                        let former = g.inc < self.lives[*node] && !g.met;
                        former
                            && (g.node, g.pool, g.place, g.life) == (*node, *pool, *at, held.life)
                    })
                };
                match held.quarantined {
                    _ if !self.runs(*node) => true,
                    true => writer(),
                    false => self.nodes[*node].core.life(held.life).is_some(),
                }
            })
    }

    /// Credit that is out is of claims that are kept.
    fn are_links_kept(&self) -> bool {
        let mut links = self.links.iter().enumerate();
        links.all(|(i, link)| {
            let peer = self.peer_at(i, SENDER);
            let core = &self.nodes[self.node_at(i, SENDER)].core;
            link.is_quiet_but_for(&self.size, |number| core.serves(peer, number))
        })
    }

    /// Copies that are under way have failed, and their sender is kept for them, or over.
    fn are_copies_kept(&self) -> bool {
        let mut jobs = self.plane.jobs.iter();
        self.plane.frames.is_empty()
            && jobs.all(|job| {
                let (node, inc) = job.owner;
                let over = self.lives[node] != inc || self.is_dead(job.owner);
                job.errored && (over || self.nodes[node].core.life(job.life).is_some())
            })
    }

    /// Who waits for a lease, and each source that is out, is of a life.
    fn are_stories_kept(&self) -> bool {
        let life = |node: usize, id| self.nodes[node].core.life(id);
        let mut waiting = self.truth.stories.iter();
        let waiting =
            waiting.all(|((node, id), s)| s.returned || s.died || life(*node, *id).is_some());
        let mut lent = self.truth.lent.iter();
        waiting
            && lent.all(|(lease, node)| {
                let lives = self.nodes[*node].core.lives();
                let mut held = lives.flat_map(|(_, life)| life.custody().leases());
                held.any(|(_, l)| l == lease)
            })
    }
}
