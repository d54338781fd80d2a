//! A counter-example as a story that people can read: who does what, and what came of it.
//!
//! ```text
//!   actions ─▶ replayed ─▶ "3. decode receives Bound of claim 1"      what the action is
//!                          "   prefill posts pages 0..4 of claim 1"   what is different after it
//! ```

use super::end::process;
use super::network::{RECEIVER, SENDER, Step};
use super::plane::Job;
use super::size::Kind;
use super::truth::Broken;
use super::world::{Action, World, node_of};
use kvroom_actors::peer::message::{Body, ClaimTag};
use kvroom_actors::room::{JobSpec, Outcome};
use std::fmt::{Debug, Write as _};

/// The story of these actions, with what is wrong at its end.
pub(crate) fn tell(mut world: World, actions: &[Action], ending: &str) -> String {
    let mut text = String::new();
    for (i, action) in actions.iter().enumerate() {
        let _ = write!(text, "{:>2}. ", i + 1);
        world = step(&mut text, &world, action);
    }
    let _ = write!(text, "BROKEN in {} steps: {ending}", actions.len());
    text
}

/// The same for a state from which there is no good end, with how it goes on if nobody interferes
/// but, perhaps, `callers` who begin what they may begin.
pub(crate) fn tell_on(mut world: World, actions: &[Action], ending: &str, callers: bool) -> String {
    let mut text = tell(world.clone(), actions, ending);
    for action in actions {
        world.apply(action);
    }
    text.push_str("\nand then, if nobody interferes:\n");
    for _ in 0..LONG {
        let begin = |a: &Action| callers && matches!(a, Action::Start(_));
        let calls = world.calls().into_iter().filter(begin);
        let next = world.fair().into_iter().chain(world.healing());
        let Some(action) = next.chain(calls).next() else {
            break;
        };
        text.push_str("  - ");
        world = step(&mut text, &world, &action);
    }
    let mut rest = Vec::new();
    for ((node, _), story) in &world.truth.stories {
        let name = format!("{} ({})", who(&world, *node), story.key);
        match (&story.outcome, story.returned) {
            (None, _) => rest.push(format!("{name} still waits for its outcome")),
            (_, false) => rest.push(format!("{name} still waits for its leases")),
            _ => {}
        }
    }
    let _ = write!(text, "  {}", rest.join("; "));
    text.truncate(text.trim_end().len());
    text
}

/// Steps after a story's end, at most.
const LONG: usize = 20;

fn step(text: &mut String, world: &World, action: &Action) -> World {
    let mut next = world.clone();
    next.apply(action);
    let _ = writeln!(text, "{}", deed(world, action));
    for change in changes(world, &next, action) {
        let _ = writeln!(text, "      {change}");
    }
    next
}

/// A broken promise in words.
pub(crate) fn broken_promise(broken: Broken) -> &'static str {
    match broken {
        Broken::S1LateWrite => "S1, a destination was written after its lease was returned",
        Broken::S1WriteIntoAnother => "S1, a write went into pages that another claim has leased",
        Broken::S2TornSource => "S2, a source was read after its lease was returned",
        Broken::S3DoneIsNotAll => "S3, a receiver is Done, and not all of it is there",
        Broken::S4TwoOwners => "S4, pages were leased that somebody had",
        Broken::S5TwoEnds => "S5, a room has two ends",
        Broken::S6NoProof => "S6, a lease came back without proof",
        Broken::S7WrongBytes => "S7, a receiver is Done with the bytes of another request",
        Broken::S8HarmedByAnother => "S8, a room was ended by what happened to another one",
        Broken::SenderDoneAlone => "the sender is Done, and a receiver is not",
        Broken::ToldTwice => "a leg was told its end twice",
        Broken::QuiescedWhileOut => "the sender said that it is out, and a copy was not",
        Broken::CreditMiscounted => "a session counts another number of open claims than there are",
        Broken::Accused => "one of two correct nodes accuses the other",
    }
}

/// What a node is called.
fn who(world: &World, node: usize) -> String {
    let (side, at, of) = match node.checked_sub(world.size.senders) {
        None => ("prefill", node, world.size.senders),
        Some(rank) => ("decode", rank, world.size.receivers),
    };
    match of {
        1 => side.into(),
        _ => format!("{side} {at}"),
    }
}

fn deed(world: &World, action: &Action) -> String {
    let name = |node: usize| who(world, node);
    let copy = |at: usize| copy(&world.plane.jobs[at]);
    match action {
        Action::Start(node) => {
            let key = world.next_key(*node);
            let (call, with) = match *node < world.size.senders {
                true if world.size.prepared => ("send", ", pushes all chunks and finishes"),
                true => ("send", ""),
                false => ("receive", ""),
            };
            let name = name(*node);
            format!("{name} calls {call}({key}){with}")
        }
        Action::Push(life, which) => {
            let (from, to) = world.size.chunks[*which];
            format!("{} pushes its pages {from}..{to}", name(node_of(*life)))
        }
        Action::Finish(life) => format!("{} finishes", name(node_of(*life))),
        Action::Abort(node, _) => format!("{} aborts", name(*node)),
        Action::Core(node) => {
            let input = world.nodes[*node].inbox.front();
            let input = input.map(word).unwrap_or_default();
            format!("the supervisor of {} takes up {input}", name(*node))
        }
        Action::Room(node) => {
            let event = world.nodes[*node].mail.front();
            let event = event.map(|(_, e)| e.name()).unwrap_or_default();
            format!("the room of {} takes up {event}", name(*node))
        }
        Action::Link(i, side, step) => link(world, *i, *side, *step),
        Action::Enter(at) => format!("a lane begins with {}", copy(*at)),
        Action::Land(at) => format!("{} lands", copy(*at)),
        Action::Fail(at) => format!("{} fails", copy(*at)),
        Action::LetGo(at) => format!("the sender lets go of {}", copy(*at)),
        Action::Resend(at) => format!("{} is sent again on another connection", copy(*at)),
        Action::FlushError(at) => format!("the flush of {} ends in an error", copy(*at)),
        Action::Arrive(at) => format!("{} reaches the receiver's lane", frame(world, *at)),
        Action::Place(at) => format!("{} is written", frame(world, *at)),
        Action::Discount(tag) => format!("decode gives up the writer inside {}", claim(*tag)),
        Action::Fence(tag) => format!("decode destroys the path of {}", claim(*tag)),
        Action::Crash(node) => format!("{} dies", name(*node)),
        Action::Stop(node) => format!("{} is stopped", name(*node)),
        Action::Cont(node, life) => match *life == world.lives[*node] {
            true => format!("{} goes on", name(*node)),
            false => format!("the former life of {} goes on", name(*node)),
        },
        Action::Restart(node) => format!("{} is started again", name(*node)),
        Action::Sum(node, _) => format!("{} has summed its pages", name(*node)),
        Action::Clock(node, _, timer) => {
            format!("the {timer:?} clock of {} runs out", name(*node))
        }
        Action::EarlyClock(tag) => {
            let node = process(tag.id.sender).0;
            format!("{} has waited too long with {}", name(node), claim(*tag))
        }
        Action::Panic(node, _) => format!("the room of {} panics", name(*node)),
    }
}

fn link(world: &World, i: usize, side: usize, step: Step) -> String {
    let link = &world.links[i];
    let me = who(world, world.node_at(i, side));
    match step {
        Step::Command => {
            let command = link.ends[side].commands.front();
            let command = command.map(word).unwrap_or_default();
            format!("the session of {me} takes up {command}")
        }
        Step::Flush => format!("the session of {me} writes to the wire"),
        Step::Deliver => {
            let frame = link.under_way(side).next();
            let body = frame.and_then(|f| f.body.as_ref());
            format!(
                "{me} receives {}",
                body.map_or("an acknowledgement".into(), said)
            )
        }
        Step::Closed => format!("{me} finds the connection closed, and gives its session up"),
        Step::Reset => format!("the connection of {me} breaks"),
        Step::Resume => "both greet each other on a new connection, and resume".into(),
        Step::GiveUp => format!("{me} gives its session up"),
        Step::Attach => format!("{me} begins a new session"),
    }
}

/// What is different after an action, as far as people care.
fn changes(before: &World, after: &World, action: &Action) -> Vec<String> {
    let mut all = Vec::new();
    for (tag, gate) in &after.plane.gates {
        let was = before.plane.gates.get(tag);
        let (owner, claim) = (who(after, gate.node), claim(*tag));
        let is_gated = after.size.plane != Kind::Ucx;
        if was.is_none() {
            all.push(match is_gated {
                true => format!("{owner} opens the gate of {claim}"),
                false => format!("{owner} offers its pages with {claim}, and no gate guards them"),
            });
        }
        if gate.closed && !was.is_some_and(|g| g.closed) && is_gated {
            let inside = match gate.inside {
                0 => "nobody is inside",
                _ => "a writer is inside",
            };
            all.push(format!("{owner} closes the gate of {claim}: {inside}"));
        }
    }
    for (i, link) in after.links.iter().enumerate() {
        for side in [SENDER, RECEIVER] {
            let read = usize::from(*action == Action::Link(i, side, Step::Deliver));
            let old = before.links[i].under_way(side).count() - read;
            let bodies = link
                .under_way(side)
                .skip(old)
                .filter_map(|f| f.body.as_ref());
            let sender = who(after, after.node_at(i, 1 - side));
            all.extend(bodies.map(|body| format!("{sender} sends {}", said(body))));
        }
    }
    let is = |a: &Job, b: &Job| (a.claim, a.no) == (b.claim, b.no);
    for job in &after.plane.jobs {
        if !before.plane.jobs.iter().any(|j| is(j, job)) {
            all.push(format!("{} posts {}", who(after, job.owner.0), copy(job)));
        }
        if job.told && !before.plane.jobs.iter().any(|j| is(j, job) && j.told) {
            all.push(format!("{} is said to be over, and is not", copy(job)));
        }
    }
    let landed = matches!(
        action,
        Action::Land(_)
            | Action::Fail(_)
            | Action::LetGo(_)
            | Action::Place(_)
            | Action::Crash(_)
            | Action::FlushError(_)
    );
    for job in before.plane.jobs.iter().filter(|_| !landed) {
        if !after.plane.jobs.iter().any(|j| is(j, job)) {
            let why = match after.size.plane {
                _ if job.cancelled => "cancelled",
                Kind::Ucx => "refused, since its path is gone",
                _ => "refused by the gate",
            };
            all.push(format!("{} is {why}", copy(job)));
        }
    }
    for ((node, life), story) in &after.truth.stories {
        let was = before.truth.stories.get(&(*node, *life));
        let name = format!("{} ({})", who(after, *node), story.key);
        if let Some(outcome) = &story.outcome
            && was.is_none_or(|w| w.outcome.is_none())
        {
            all.push(match outcome {
                Outcome::Done => format!("{name} is told: Done"),
                Outcome::Aborted(reason) => format!("{name} is told: Aborted, {:?}", reason.code),
            });
        }
        if story.returned && !was.is_some_and(|w| w.returned) {
            all.push(format!("{name} has its leases back"));
        }
    }
    all.extend(sources_back(before, after, action));
    for broken in after.truth.broken.difference(&before.truth.broken) {
        all.push(format!("!! {}", broken_promise(*broken)));
    }
    all
}

/// Sources that came back before their life ended.
fn sources_back(before: &World, after: &World, action: &Action) -> Vec<String> {
    let mut all = Vec::new();
    if matches!(action, Action::Crash(_) | Action::Restart(_)) {
        return all;
    }
    for node in 0..after.nodes.len() {
        let lent = before.truth.lent.iter().filter(|(_, n)| **n == node);
        let back = lent.filter(|(lease, _)| !after.truth.lent.contains_key(*lease));
        let returned = |w: &World| {
            let stories = w.truth.stories.iter();
            stories
                .filter(|((n, _), s)| *n == node && s.returned)
                .count()
        };
        if back.count() > 0 && returned(before) == returned(after) {
            all.push(format!(
                "{} has the lease of a source back",
                who(after, node)
            ));
        }
    }
    all
}

fn copy(job: &Job) -> String {
    match &job.spec {
        JobSpec::Pages { to, .. } => {
            format!(
                "the copy of pages {}..{} of {}",
                to.start,
                to.end,
                claim(job.claim)
            )
        }
        JobSpec::Aux => format!("the copy of the aux row of {}", claim(job.claim)),
    }
}

fn frame(world: &World, at: usize) -> String {
    let frame = &world.plane.frames[at];
    let which = match frame.copy {
        1 => "a frame",
        _ => "a second frame",
    };
    format!("{which} of job {} of {}", frame.no, claim(frame.claim))
}

fn claim(tag: ClaimTag) -> String {
    format!("claim {}", tag.id.number.0)
}

fn said(body: &Body) -> String {
    match (body, body.tag()) {
        (Body::Claim(asked), _) => {
            let tag = asked.tag;
            format!("Claim {} for {}", tag.id.number.0, tag.room)
        }
        (
            Body::Progress {
                posted, written, ..
            },
            Some(tag),
        ) => {
            format!("Progress of {}: {written} of {posted} bytes", claim(tag))
        }
        (body, Some(tag)) => format!("{} of {}", body.name(), claim(tag)),
        (Body::Credit { claims }, None) => format!("Credit for {claims}"),
        (body, None) => body.name().into(),
    }
}

/// The first word of what something is.
fn word(thing: &impl Debug) -> String {
    let text = format!("{thing:?}");
    text.chars().take_while(|c| c.is_alphanumeric()).collect()
}
