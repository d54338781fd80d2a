//! What can be wrong: a promise that is broken, a step that may not be, a state without a good end.
//!
//! ```text
//!   Promise   some state breaks it               Step   some step does it
//!   Stuck     from some state, no good end can be reached any more by actions of the named classes
//! ```

use crate::model::network::RECEIVER;
use crate::model::plane::{Gate, Job};
use crate::model::reach::{Class, EVERY, IN_TIME, PROGRESS};
use crate::model::truth::{Broken, Story};
use crate::model::world::World;
use kvroom_actors::peer::message::Body;
use kvroom_actors::reason::Code;
use kvroom_actors::room::{Outcome, Role};

/// What goes wrong in a row.
#[derive(Clone, Copy)]
pub(crate) enum Wrong {
    /// This promise is broken in some state.
    Promise(Broken),
    /// This happens in some step.
    Step(&'static str, fn(&World, &World) -> bool),
    /// From some state no good end can be reached.
    Stuck(&'static Goal),
}

/// A good end, and by what it must be in reach from everywhere.
pub(crate) struct Goal {
    pub(crate) name: &'static str,
    /// What happens at all.
    pub(crate) within: &'static [Class],
    /// What may be counted on.
    pub(crate) by: &'static [Class],
    pub(crate) from: fn(&World) -> bool,
    pub(crate) to: fn(&World) -> bool,
}

pub(crate) const EVERYTHING_ENDS: &Goal = &Goal {
    name: "something is held for ever",
    within: EVERY,
    by: PROGRESS,
    from: |_| true,
    to: World::is_empty_at_rest,
};

pub(crate) const ENDS_IN_TIME: &Goal = &Goal {
    name: "only a deadline can still end it",
    within: &[Class::Fair, Class::Call, Class::Healing, Class::Abort],
    by: IN_TIME,
    from: |w| w.truth.stories.values().any(|s| s.outcome.is_some()),
    to: |w| all_started(w) && w.truth.stories.values().all(|s| s.outcome.is_some()),
};

pub(crate) const BOUND_ENDS_IN_TIME: &Goal = &Goal {
    name: "both sides have the claim, and only a deadline can still end it",
    within: EVERY,
    by: IN_TIME,
    from: |w| w.nodes.iter().all(|n| n.core.claims() > 0),
    to: |w| w.truth.stories.values().all(|s| s.outcome.is_some()),
};

pub(crate) const ALL_ARE_DONE: &Goal = &Goal {
    name: "nothing went wrong, and not all can be done any more",
    within: &[Class::Fair, Class::Call],
    by: &[Class::Fair, Class::Call],
    from: |_| true,
    to: |w| {
        let done = |s: &Story| s.outcome == Some(Outcome::Done);
        all_started(w) && w.truth.stories.values().all(done)
    },
};

pub(crate) const NEXT_IS_DONE: &Goal = &Goal {
    name: "the first attempt was done, and the next one never will be",
    from: |w| {
        let done = |s: &&Story| s.outcome == Some(Outcome::Done) && s.returned;
        w.truth.stories.values().filter(done).count() == w.nodes.len()
    },
    ..*ALL_ARE_DONE
};

fn all_started(world: &World) -> bool {
    world.truth.stories.len() == world.nodes.len() * world.size.attempts as usize
}

/// Whether the receiver's clock for stalled copies ended it, while its sender lives and nothing was
/// ever posted.
pub(crate) fn stalled_with_nothing_posted(before: &World, after: &World) -> bool {
    let written = |w: &World| w.truth.places.values().any(|held| !held.bytes.is_empty());
    let idle = before.plane.jobs.is_empty() && !written(before);
    let mut senders = before
        .truth
        .stories
        .values()
        .filter(|s| s.role == Role::Sender);
    let live = senders.any(|s| s.outcome.is_none());
    let stalled = |w: &World| {
        let mut stories = w.truth.stories.values();
        stories.any(|s| matches!(&s.outcome, Some(Outcome::Aborted(r)) if r.code == Code::Stalled))
    };
    idle && live && !stalled(before) && stalled(after)
}

/// Whether a writer is inside the gate of a room that is done.
pub(crate) fn written_after_done(_: &World, after: &World) -> bool {
    let done = |g: &Gate| {
        let story = after.truth.stories.get(&(g.node, g.life));
        story.is_some_and(|s| s.outcome == Some(Outcome::Done))
    };
    after.plane.gates.values().any(|g| g.inside > 0 && done(g))
}

/// Whether a sender says `Complete` because of a job that a closed gate refused.
pub(crate) fn complete_for_a_refused_job(before: &World, after: &World) -> bool {
    let told = |w: &World, claim| {
        let frames = w.links.iter().flat_map(|l| l.under_way(RECEIVER));
        let mut bodies = frames.filter_map(|f| f.body.as_ref());
        bodies.any(|b| matches!(b, Body::Complete { tag, .. } if *tag == claim))
    };
    let closed = |j: &&Job| before.plane.gates[&j.claim].closed && !j.inside;
    let mut refused = before.plane.jobs.iter().filter(closed);
    refused.any(|j| !told(before, j.claim) && told(after, j.claim))
}
