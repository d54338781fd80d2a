//! Every rule that can be turned off, and every planted bug: the shortest story of what it breaks.
//!
//! ```text
//!   ROWS: what is off, in which size, what must break
//!     │ breadth first, one property at a time ─▶ the shortest story ─▶ stories/NAME.snap
//!     └ the same size with nothing off ────────▶ nothing is broken, in any state
//! ```
//!
//! - A row that needs two switches is a rule that is kept twice: each alone does no harm, which the
//!   rows of `ALONE_HARMLESS` show.
//! - What only shows as waiting for ever (or for a clock) is found backward: a state from which no
//!   good end can be reached by actions of the named classes.
//! - `INSTA_UPDATE=always cargo test -p kvroom-actors --test model stories` writes the stories anew.

use crate::exhaustive::{OneRoom, SIZE};
use crate::model::network::RECEIVER;
use crate::model::plane::{Gate, Job};
use crate::model::reach::{Class, EVERY, Graph, IN_TIME, PROGRESS, shortest};
use crate::model::size::{Kind, Plant, Size};
use crate::model::story_text::tell;
use crate::model::truth::{Broken, Story};
use crate::model::world::{Action, World};
use kvroom_actors::peer::message::Body;
use kvroom_actors::reason::Code;
use kvroom_actors::room::{Outcome, Role};
use kvroom_actors::switch::{Switch, with};

/// What goes wrong in a row.
#[derive(Clone, Copy)]
enum Wrong {
    /// This promise is broken in some state.
    Promise(Broken),
    /// This happens in some step.
    Step(&'static str, fn(&World, &World) -> bool),
    /// From some state no good end can be reached.
    Stuck(&'static Goal),
}

/// A good end, and by what it must be in reach from everywhere.
struct Goal {
    name: &'static str,
    /// What happens at all.
    within: &'static [Class],
    /// What may be counted on.
    by: &'static [Class],
    from: fn(&World) -> bool,
    to: fn(&World) -> bool,
}

const EVERYTHING_ENDS: &Goal = &Goal {
    name: "something is held for ever",
    within: EVERY,
    by: PROGRESS,
    from: |_| true,
    to: World::is_empty_at_rest,
};

const ENDS_IN_TIME: &Goal = &Goal {
    name: "only a deadline can still end it",
    within: &[Class::Fair, Class::Call, Class::Healing, Class::Abort],
    by: IN_TIME,
    from: |w| w.truth.stories.values().any(|s| s.outcome.is_some()),
    to: |w| all_started(w) && w.truth.stories.values().all(|s| s.outcome.is_some()),
};

const BOUND_ENDS_IN_TIME: &Goal = &Goal {
    name: "both sides have the claim, and only a deadline can still end it",
    within: EVERY,
    by: IN_TIME,
    from: |w| w.nodes.iter().all(|n| n.core.claims() > 0),
    to: |w| w.truth.stories.values().all(|s| s.outcome.is_some()),
};

const ALL_ARE_DONE: &Goal = &Goal {
    name: "nothing went wrong, and not all can be done any more",
    within: &[Class::Fair, Class::Call],
    by: &[Class::Fair, Class::Call],
    from: |_| true,
    to: |w| {
        let done = |s: &Story| s.outcome == Some(Outcome::Done);
        all_started(w) && w.truth.stories.values().all(done)
    },
};

const NEXT_IS_DONE: &Goal = &Goal {
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
fn stalled_with_nothing_posted(before: &World, after: &World) -> bool {
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
fn written_after_done(_: &World, after: &World) -> bool {
    let done = |g: &Gate| {
        let story = after.truth.stories.get(&(g.node, g.life));
        story.is_some_and(|s| s.outcome == Some(Outcome::Done))
    };
    after.plane.gates.values().any(|g| g.inside > 0 && done(g))
}

/// Whether a sender says `Complete` because of a job that a closed gate refused.
fn complete_for_a_refused_job(before: &World, after: &World) -> bool {
    let told = |w: &World, claim| {
        let frames = w.links.iter().flat_map(|l| l.under_way(RECEIVER));
        let mut bodies = frames.filter_map(|f| f.body.as_ref());
        bodies.any(|b| matches!(b, Body::Complete { tag, .. } if *tag == claim))
    };
    let closed = |j: &&Job| before.plane.gates[&j.claim].closed && !j.inside;
    let mut refused = before.plane.jobs.iter().filter(closed);
    refused.any(|j| !told(before, j.claim) && told(after, j.claim))
}

/// One thing that is off, and what comes of it.
struct Row {
    off: &'static [Switch],
    plant: Option<Plant>,
    size: Size,
    wrong: Wrong,
}

const fn off(switch: &'static [Switch], wrong: Wrong, size: Size) -> Row {
    Row {
        off: switch,
        plant: None,
        size,
        wrong,
    }
}

const fn with_plant(off: &'static [Switch], plant: Plant, wrong: Wrong, size: Size) -> Row {
    Row {
        off,
        plant: Some(plant),
        size,
        wrong,
    }
}

const ABORT: Size = Size { aborts: 1, ..SIZE };
const LOSS: Size = Size { losses: 1, ..SIZE };
const PANIC: Size = Size { panics: 1, ..SIZE };
const TWICE: Size = Size {
    attempts: 2,
    pushes: 8,
    ..SIZE
};
const AGAIN: Size = Size { aborts: 1, ..TWICE };
const RESET: Size = Size { resets: 1, ..SIZE };
const TWO: Size = Size {
    receivers: 2,
    ..SIZE
};
const UCX: Size = Size {
    plane: Kind::Ucx,
    ..SIZE
};
const RESENT: Size = Size {
    plane: Kind::Tcp,
    resends: 1,
    ..SIZE
};
/// Rooms that begin and end, and nothing is ever copied.
const NO_DATA: Size = Size {
    prepared: false,
    pushes: 0,
    ..SIZE
};
/// The same, over owners of sessions that fall behind.
const SLOW_OWNERS: Size = Size {
    aborts: 1,
    eager: false,
    ..NO_DATA
};
const TWO_CHUNKS: Size = Size {
    chunks: &[(0, 2), (2, 4)],
    pushes: 2,
    prepared: false,
    ..SIZE
};

fn rows() -> Vec<Row> {
    use Broken::*;
    use Switch::*;
    use Wrong::*;
    vec![
        off(
            &[ReleaseOnDrainTimer],
            Promise(S1LateWrite),
            Size {
                clocks: true,
                ..SIZE
            },
        ),
        off(&[ReleaseOnPeerLost], Promise(S1LateWrite), LOSS),
        off(&[ReleaseOnDone], Promise(S1LateWrite), RESENT),
        off(&[ReleaseOnWithdrawal], Promise(S6NoProof), SLOW_OWNERS),
        off(&[ReleaseOfPostedChunk], Promise(S2TornSource), SIZE),
        off(&[ReleaseAfterFirstLeg], Promise(S2TornSource), TWO),
        off(&[CustodyAfterAddress], Promise(S6NoProof), SLOW_OWNERS),
        off(
            &[ReleaseWhileSumming],
            Promise(S2TornSource),
            Size {
                checksum: true,
                ..PANIC
            },
        ),
        off(
            &[ProofDiesWithRoom],
            Stuck(EVERYTHING_ENDS),
            Size {
                panics: 1,
                aborts: 1,
                at_once: false,
                credit: 0,
                ..NO_DATA
            },
        ),
        off(
            &[QuiescedWhileJobsOut],
            Promise(S1LateWrite),
            Size { aborts: 1, ..UCX },
        ),
        off(&[CompleteWhenPosted], Promise(S3DoneIsNotAll), SIZE),
        off(
            &[RefusedCountsAsLanded],
            Step(
                "Complete is said, and the gate had refused a copy",
                complete_for_a_refused_job,
            ),
            ABORT,
        ),
        off(
            &[ErroredCountsAsLanded],
            Promise(S3DoneIsNotAll),
            Size {
                failures: true,
                ..SIZE
            },
        ),
        with_plant(
            &[CoverageIsASum],
            Plant::FinishedTooEarly,
            Promise(S3DoneIsNotAll),
            TWO_CHUNKS,
        ),
        off(
            &[DoneBeforeGateClosed],
            Step(
                "a writer is inside the gate of a room that is Done",
                written_after_done,
            ),
            RESENT,
        ),
        off(&[DoneAfterFirstLeg], Promise(SenderDoneAlone), TWO),
        off(&[DoneOnComplete], Promise(SenderDoneAlone), SIZE),
        off(
            &[OutcomeRepeated],
            Promise(S5TwoEnds),
            Size { panics: 1, ..ABORT },
        ),
        off(
            &[EndSaidTwice],
            Promise(ToldTwice),
            Size { panics: 1, ..ABORT },
        ),
        off(&[UnequalAttemptsBind], Promise(S7WrongBytes), AGAIN),
        off(&[TombstoneByRoomId], Promise(S8HarmedByAnother), AGAIN),
        off(&[MessageByRoomId], Promise(S8HarmedByAnother), AGAIN),
        off(
            &[PanickedClaimUnknown],
            Promise(QuiescedWhileOut),
            Size { panics: 1, ..ABORT },
        ),
        off(
            &[PanickedClaimUnknown],
            Promise(S1LateWrite),
            Size {
                panics: 1,
                aborts: 1,
                ..UCX
            },
        ),
        off(
            &[MarkIgnored, AbortOvertakesClaim],
            Promise(S1LateWrite),
            Size {
                resets: 1,
                aborts: 1,
                ..UCX
            },
        ),
        off(
            &[AbortLeavesNoMark, AbortOvertakesClaim],
            Promise(S1LateWrite),
            Size {
                resets: 1,
                aborts: 1,
                ..UCX
            },
        ),
        with_plant(
            &[DuplicateDelivered],
            Plant::ResumedTooShort,
            Promise(CreditMiscounted),
            RESET,
        ),
        off(&[LostSessionKeepsRooms], Stuck(BOUND_ENDS_IN_TIME), LOSS),
        off(
            &[AbortNotSentAgain],
            Stuck(EVERYTHING_ENDS),
            Size {
                losses: 1,
                aborts: 1,
                ..UCX
            },
        ),
        off(&[NotSentAgain], Promise(Accused), RESET),
        off(&[EarlyClaimDropped], Stuck(ALL_ARE_DONE), SIZE),
        off(
            &[EarlyAbortForgotten],
            Stuck(ENDS_IN_TIME),
            Size {
                aborts: 1,
                ..NO_DATA
            },
        ),
        off(&[LateNumberForgotten], Stuck(EVERYTHING_ENDS), SLOW_OWNERS),
        off(&[CreditKept], Stuck(NEXT_IS_DONE), TWICE),
        off(&[ClaimWithoutCredit], Promise(Accused), TWICE),
        off(
            &[StallClockInQueue],
            Step(
                "it is stalled, and nothing was posted",
                stalled_with_nothing_posted,
            ),
            Size {
                progress: 8,
                prepared: false,
                ..SIZE
            },
        ),
        with_plant(&[], Plant::GateYieldsEarly, Promise(S1LateWrite), ABORT),
        with_plant(
            &[],
            Plant::LandedBeforeTheFlush,
            Promise(S3DoneIsNotAll),
            SIZE,
        ),
        with_plant(
            &[],
            Plant::QuiescedWhileOut,
            Promise(QuiescedWhileOut),
            ABORT,
        ),
        with_plant(
            &[],
            Plant::CreditAcrossSessions,
            Promise(CreditMiscounted),
            Size {
                attempts: 2,
                ..LOSS
            },
        ),
        with_plant(
            &[],
            Plant::WaitingForgotten,
            Stuck(EVERYTHING_ENDS),
            Size { credit: 0, ..LOSS },
        ),
        with_plant(&[], Plant::ResumedTooFar, Promise(Accused), RESET),
    ]
}

impl Row {
    fn name(&self) -> String {
        let switches = self.off.iter().map(|s| format!("{s:?}"));
        let plant = self.plant.iter().map(|p| format!("{p:?}"));
        let names: Vec<String> = switches.chain(plant).collect();
        names.join("+")
    }

    /// The shortest story of what is wrong, if it can be within so many steps, and how many states
    /// were looked at.
    fn search(&self, off: &[Switch], size: Size, deep: usize) -> (Option<Vec<Action>>, usize) {
        if let Some((first, others)) = off.split_first() {
            return with(*first, || self.search(others, size, deep));
        }
        let start = World::new(size);
        let found = match self.wrong {
            Wrong::Promise(broken) => {
                shortest(start, deep, |_, w| w.truth.broken.contains(&broken))
            }
            Wrong::Step(_, is_wrong) => shortest(start, deep, is_wrong),
            Wrong::Stuck(goal) => {
                let graph = Graph::within(&OneRoom(size), goal.within);
                let story = graph.cannot_reach_by(goal.by, goal.from, goal.to);
                return (story, graph.len());
            }
        };
        (found.story, found.states)
    }

    fn tell(&self, off: &[Switch], size: Size, story: &[Action]) -> String {
        match off.split_first() {
            Some((first, others)) => with(*first, || self.tell(others, size, story)),
            None => tell(World::new(size), story, &self.ending()),
        }
    }

    fn ending(&self) -> String {
        match self.wrong {
            Wrong::Promise(broken) => format!("{broken:?}"),
            Wrong::Step(name, _) => name.into(),
            Wrong::Stuck(goal) => goal.name.into(),
        }
    }
}

const MOST: usize = 25;

#[test]
fn explore() {
    let only = std::env::var("ONLY").unwrap_or_default();
    let show = std::env::var("SHOW").is_ok();
    for row in rows() {
        if !row.name().contains(&only) {
            continue;
        }
        let t = std::time::Instant::now();
        let planted = Size {
            plant: row.plant,
            ..row.size
        };
        let (story, states) = row.search(row.off, planted, MOST);
        println!(
            "{}: {:?} steps, {states} states, {:.1?}",
            row.name(),
            story.as_ref().map(|s| s.len()),
            t.elapsed()
        );
        let deep = story.as_ref().map_or(MOST, |s| s.len());
        if let Some(story) = story
            && show
        {
            println!("{}", row.tell(row.off, planted, &story));
        }
        let t = std::time::Instant::now();
        let control = if row.off.is_empty() {
            row.size
        } else {
            planted
        };
        let (story, states) = row.search(&[], control, deep);
        println!(
            "     control {:?} {states} {:.1?}",
            story.as_ref().map(|s| s.len()),
            t.elapsed()
        );
        if let Some(story) = story {
            println!("{}", row.tell(&[], control, &story));
        }
    }
}
