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
use crate::model::reach::{Class, Graph, IN_TIME, PROGRESS, shortest};
use crate::model::size::{Plant, Size};
use crate::model::story_text::tell;
use crate::model::truth::Broken;
use crate::model::world::{Action, World};
use kvroom_actors::reason::Code;
use kvroom_actors::room::Outcome;
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
    by: &'static [Class],
    from: fn(&World) -> bool,
    to: fn(&World) -> bool,
}

const EVERYTHING_ENDS: &Goal = &Goal {
    name: "something is held for ever",
    by: PROGRESS,
    from: |_| true,
    to: World::is_empty_at_rest,
};

const ENDS_IN_TIME: &Goal = &Goal {
    name: "only a deadline can still end it",
    by: IN_TIME,
    from: |_| true,
    to: |w| all_started(w) && w.truth.stories.values().all(|s| s.outcome.is_some()),
};

const BOUND_ENDS_IN_TIME: &Goal = &Goal {
    name: "both sides have the claim, and only a deadline can still end it",
    by: IN_TIME,
    from: |w| w.nodes.iter().all(|n| n.core.claims() > 0),
    to: |w| w.truth.stories.values().all(|s| s.outcome.is_some()),
};

const ALL_ARE_DONE: &Goal = &Goal {
    name: "nothing went wrong, and not all can be done any more",
    by: &[Class::Fair, Class::Call],
    from: |_| true,
    to: |w| {
        let done = |s: &crate::model::truth::Story| s.outcome == Some(Outcome::Done);
        all_started(w) && w.truth.stories.values().all(done)
    },
};

const FRESH_IS_DONE: &Goal = &Goal {
    name: "a later attempt, not yet begun, cannot be done any more",
    by: PROGRESS,
    from: |w| w.started.iter().all(|n| *n < 2),
    to: |w| {
        let second = w.truth.stories.values().filter(|s| s.key.attempt == 1);
        second.filter(|s| s.outcome == Some(Outcome::Done)).count() == w.nodes.len()
    },
};

fn all_started(world: &World) -> bool {
    world.truth.stories.len() == world.nodes.len() * world.size.attempts as usize
}

fn stalled_with_nothing_posted(before: &World, after: &World) -> bool {
    let idle = before.plane.jobs.is_empty() && before.plane.landed.is_empty();
    let live = before
        .truth
        .stories
        .iter()
        .any(|((n, _), s)| *n == 0 && s.outcome.is_none());
    let stalled = |w: &World| {
        let mut stories = w.truth.stories.values();
        stories.any(|s| matches!(&s.outcome, Some(Outcome::Aborted(r)) if r.code == Code::Stalled))
    };
    idle && live && !stalled(before) && stalled(after)
}

fn done_before_its_gate_is_closed(before: &World, after: &World) -> bool {
    let done = |w: &World, node, life| {
        let story = w.truth.stories.get(&(node, life));
        story.is_some_and(|s| s.outcome == Some(Outcome::Done))
    };
    let open = before.plane.gates.values().filter(|g| !g.closed);
    open.into_iter()
        .any(|g| !done(before, g.node, g.life) && done(after, g.node, g.life))
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

const fn planted(plant: Plant, wrong: Wrong, size: Size) -> Row {
    Row {
        off: &[],
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
    ..SIZE
};
const SLOW_OWNERS: Size = Size {
    aborts: 1,
    eager: false,
    ..SIZE
};
const RESET: Size = Size { resets: 1, ..SIZE };
const TWO: Size = Size {
    receivers: 2,
    ..SIZE
};
/// Rooms that begin and end, and no claim ever opens.
const NO_DATA: Size = Size {
    panics: 1,
    aborts: 1,
    at_once: false,
    prepared: false,
    pushes: 0,
    credit: 0,
    ..SIZE
};
const CLOCKS: Size = Size {
    clocks: true,
    ..SIZE
};

fn rows() -> Vec<Row> {
    use Broken::*;
    use Switch::*;
    use Wrong::*;
    vec![
        off(&[ReleaseOnDrainTimer], Promise(S1LateWrite), CLOCKS),
        off(&[ReleaseOnPeerLost], Promise(S1LateWrite), LOSS),
        off(&[ReleaseOnDone], Promise(S6NoProof), SIZE),
        off(&[ReleaseOnWithdrawal], Promise(S1LateWrite), SLOW_OWNERS),
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
        off(&[ProofDiesWithRoom], Stuck(EVERYTHING_ENDS), NO_DATA),
        off(&[QuiescedWhileJobsOut], Promise(QuiescedWhileOut), ABORT),
        off(&[CompleteWhenPosted], Promise(S3DoneIsNotAll), SIZE),
        off(&[RefusedCountsAsLanded], Promise(S3DoneIsNotAll), ABORT),
        off(
            &[ErroredCountsAsLanded],
            Promise(S3DoneIsNotAll),
            Size {
                failures: true,
                ..SIZE
            },
        ),
        off(
            &[DoneBeforeGateClosed],
            Step(
                "it is done before its gate is closed",
                done_before_its_gate_is_closed,
            ),
            SIZE,
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
        off(
            &[UnequalAttemptsBind],
            Promise(SenderDoneAlone),
            Size {
                attempts: 2,
                ..ABORT
            },
        ),
        off(
            &[TombstoneByRoomId],
            Stuck(FRESH_IS_DONE),
            Size {
                attempts: 2,
                ..ABORT
            },
        ),
        off(
            &[MessageByRoomId],
            Stuck(FRESH_IS_DONE),
            Size {
                attempts: 2,
                ..ABORT
            },
        ),
        off(
            &[PanickedClaimUnknown],
            Promise(QuiescedWhileOut),
            Size { panics: 1, ..ABORT },
        ),
        off(&[LostSessionKeepsRooms], Stuck(BOUND_ENDS_IN_TIME), LOSS),
        off(&[NotSentAgain], Promise(Accused), RESET),
        off(&[DuplicateDelivered], Promise(CreditMiscounted), RESET),
        off(&[EarlyClaimDropped], Stuck(ALL_ARE_DONE), SIZE),
        off(&[EarlyAbortForgotten], Stuck(ENDS_IN_TIME), ABORT),
        off(&[LateNumberForgotten], Stuck(EVERYTHING_ENDS), SLOW_OWNERS),
        off(&[CreditKept], Stuck(ALL_ARE_DONE), TWICE),
        off(&[ClaimWithoutCredit], Promise(Accused), TWICE),
        off(
            &[StallClockInQueue],
            Step(
                "it is stalled and nothing was posted",
                stalled_with_nothing_posted,
            ),
            Size {
                progress: 8,
                ..SIZE
            },
        ),
        planted(Plant::GateYieldsEarly, Promise(S1LateWrite), ABORT),
        planted(Plant::LandedBeforeTheFlush, Promise(S3DoneIsNotAll), SIZE),
        planted(Plant::QuiescedWhileOut, Promise(QuiescedWhileOut), ABORT),
        planted(
            Plant::CreditAcrossSessions,
            Promise(CreditMiscounted),
            Size {
                attempts: 2,
                ..LOSS
            },
        ),
        planted(
            Plant::WaitingForgotten,
            Stuck(EVERYTHING_ENDS),
            Size { credit: 0, ..LOSS },
        ),
        planted(Plant::ResumedTooFar, Promise(Accused), RESET),
    ]
}

impl Row {
    fn name(&self) -> String {
        let switches = self.off.iter().map(|s| format!("{s:?}"));
        let plant = self.plant.iter().map(|p| format!("{p:?}"));
        let names: Vec<String> = switches.chain(plant).collect();
        names.join("+")
    }

    /// The shortest story of what is wrong, if it can be, and how many states were looked at.
    fn search(&self, off: &[Switch], size: Size) -> (Option<Vec<Action>>, usize) {
        let Some((first, others)) = off.split_first() else {
            return match self.wrong {
                Wrong::Promise(broken) => {
                    let found = shortest(World::new(size), MOST, |_, w| {
                        w.truth.broken.contains(&broken)
                    });
                    (found.story, found.states)
                }
                Wrong::Step(_, is_wrong) => {
                    let found = shortest(World::new(size), MOST, is_wrong);
                    (found.story, found.states)
                }
                Wrong::Stuck(goal) => {
                    let graph = Graph::of(&OneRoom(size));
                    (
                        graph.cannot_reach_by(goal.by, goal.from, goal.to),
                        graph.len(),
                    )
                }
            };
        };
        with(*first, || self.search(others, size))
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

const MOST: usize = 200_000;

#[test]
fn explore() {
    let only = std::env::var("ONLY").unwrap_or_default();
    let show = std::env::var("SHOW").is_ok();
    let skip = std::env::var("SKIP").unwrap_or_default();
    let mut controls = std::collections::BTreeMap::new();
    for row in rows() {
        if !row.name().contains(&only) || skip.split(",").any(|s| !s.is_empty() && row.name().contains(s)) {
            continue;
        }
        let t = std::time::Instant::now();
        let planted = Size {
            plant: row.plant,
            ..row.size
        };
        let (story, states) = row.search(row.off, planted);
        println!(
            "{}: {:?} steps, {states} states, {:.1?}",
            row.name(),
            story.as_ref().map(|s| s.len()),
            t.elapsed()
        );
        if let Some(story) = story
            && show
        {
            println!("{}", row.tell(row.off, planted, &story));
        }
        let t = std::time::Instant::now();
        let key = format!("{:?} {}", row.size, row.ending());
        let (story, states) = controls
            .entry(key)
            .or_insert_with(|| row.search(&[], row.size));
        println!(
            "     control {:?} {states} {:.1?}",
            story.as_ref().map(|s| s.len()),
            t.elapsed()
        );
        if let Some(story) = story
            && show
        {
            println!("{}", row.tell(&[], row.size, &story));
        }
    }
}
