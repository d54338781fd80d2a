//! Two ends, joined by pipes: in order, lossy only as a whole.
//!
//! ```text
//!   end 0 (sender) ══ pipe of generation n ══ end 1 (receiver)
//!
//!   reset:   one end, then the other; frames under way are lost; both greet, and send them again
//!   give up: one end; the other reads what is left, finds the pipe closed, gives up too
//!   attach:  one end, then the other: a session of the next generation, on a pipe of its own
//! ```

use super::end::{End, Told};
use super::plane::Process;
use super::size::{Plant, Size};
use kvroom_actors::ids::ClaimNo;
use kvroom_actors::peer::message::Frame;
use std::collections::{BTreeMap, VecDeque};

/// Which end of a link.
pub(crate) type Side = usize;
pub(crate) const SENDER: Side = 0;
pub(crate) const RECEIVER: Side = 1;

/// A transport.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Pipe {
    /// What is under way to each end.
    to: [VecDeque<Frame>; 2],
    /// Ends that let go of it.
    closed: [bool; 2],
}

/// What a link can do next, on one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Step {
    /// The owner handles its shard's next command.
    Command,
    /// What the session has to send goes into the pipe.
    Flush,
    /// The next frame arrives.
    Deliver,
    /// The pipe is empty and the other side let go.
    Closed,
    /// The transport is gone; the session is not.
    Reset,
    /// A new transport of the same session: both sides greet each other.
    Resume,
    /// This side ends the session.
    GiveUp,
    /// A new session.
    Attach,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Link {
    pub(crate) ends: [End; 2],
    pipes: BTreeMap<u32, Pipe>,
}

impl Link {
    /// A sender, and the receiver of this rank, with a session.
    pub(crate) fn new(sender: Process, receiver: Process, rank: usize, size: &Size) -> Self {
        let ends = [
            End::new(sender, receiver, None),
            End::new(receiver, sender, Some(rank)),
        ];
        let mut link = Link {
            ends,
            pipes: BTreeMap::new(),
        };
        for side in [SENDER, RECEIVER] {
            link.step(side, Step::Attach, size, &mut Vec::new());
        }
        link
    }

    /// What happens by itself.
    pub(crate) fn fair(&self, side: Side, size: &Size) -> impl Iterator<Item = Step> + use<> {
        let (end, other) = (&self.ends[side], &self.ends[1 - side]);
        let up = end.session.is_some();
        let pipe = self.pipes.get(&end.generation).filter(|_| up);
        let arrived = pipe.is_some_and(|p| !p.to[side].is_empty());
        let closed = pipe.is_some_and(|p| p.to[side].is_empty() && p.closed[1 - side]);
        let both = up && other.session.is_some() && end.generation == other.generation;
        let all = [
            (Step::Command, !end.commands.is_empty()),
            (Step::Flush, end.has_output(size.acks)),
            (Step::Deliver, arrived),
            (Step::Closed, closed),
            (Step::Reset, both && other.reset && !end.reset),
            (
                Step::Resume,
                side == SENDER && both && end.reset && other.reset,
            ),
            (Step::Attach, end.generation < other.generation),
        ];
        all.into_iter()
            .filter_map(|(step, can)| can.then_some(step))
    }

    /// Frames on their way to this side, of the session that it has.
    pub(crate) fn under_way(&self, side: Side) -> impl Iterator<Item = &Frame> {
        let pipe = self.pipes.get(&self.ends[side].generation);
        pipe.into_iter().flat_map(move |pipe| &pipe.to[side])
    }

    /// Whether a caller may connect from this side: there is no session.
    pub(crate) fn can_connect(&self, side: Side) -> bool {
        let [a, b] = &self.ends;
        a.generation == b.generation && self.ends[side].session.is_none()
    }

    /// Whether the transport may be reset as a fault.
    pub(crate) fn can_reset(&self) -> bool {
        let [a, b] = &self.ends;
        let both = a.session.is_some() && b.session.is_some() && a.generation == b.generation;
        both && !a.reset && !b.reset
    }

    pub(crate) fn is_quiet(&self, size: &Size) -> bool {
        self.is_quiet_but_for(size, |_| false)
    }

    /// Whether nothing is under way or open here but the claims of these numbers.
    pub(crate) fn is_quiet_but_for(&self, size: &Size, kept: impl Fn(ClaimNo) -> bool) -> bool {
        // An end whose peer lags a session behind cannot be quiet: it is waited for. One whose peer
        // has none any more hears nothing.
        let [a, b] = &self.ends;
        let both = a.session.is_some() == b.session.is_some() || a.generation != b.generation;
        let open = a.open();
        open.iter().all(|number| kept(*number))
            && self
                .ends
                .iter()
                .all(|end| end.is_quiet(size, both, open.len() as u32))
    }

    pub(crate) fn step(&mut self, side: Side, step: Step, size: &Size, told: &mut Vec<Told>) {
        let end = &mut self.ends[side];
        match step {
            Step::Command => {
                if let Some(command) = end.commands.pop_front() {
                    end.command(size, command, told);
                }
            }
            Step::Flush => self.flush(side),
            Step::Deliver => {
                let pipe = self.pipes.get_mut(&end.generation);
                if let Some(frame) = pipe.and_then(|p| p.to[side].pop_front()) {
                    end.receive(size, frame, told);
                }
            }
            Step::Closed | Step::GiveUp => {
                self.let_go(side);
                self.ends[side].give_up(size, told);
            }
            Step::Reset => {
                if let Some(session) = &mut end.session {
                    session.reset();
                }
                end.reset = true;
                if let Some(pipe) = self.pipes.get_mut(&end.generation) {
                    pipe.to[side].clear();
                }
            }
            Step::Resume => self.resume(size, told),
            Step::Attach => {
                self.let_go(side);
                let peer = self.ends[1 - side].me();
                let end = &mut self.ends[side];
                end.attach(size, peer, told);
                self.pipes.entry(end.generation).or_default();
                let oldest = self.ends[0].generation.min(self.ends[1].generation);
                self.pipes.retain(|generation, _| *generation >= oldest);
            }
        }
    }

    /// The process at this side is gone, or stopped for good, and `end` is its node's next one.
    pub(crate) fn replace(&mut self, side: Side, mut end: End, is_dead: bool) {
        let other = self.ends[1 - side].generation;
        if self.ends[side].generation > other {
            // The other one never saw the last session.
            self.pipes.remove(&self.ends[side].generation);
        }
        end.generation = other;
        end.go_on_from(self.ends[side].last());
        self.ends[side] = end;
        if let Some(pipe) = self.pipes.get_mut(&other) {
            pipe.to[side].clear();
            pipe.closed[side] |= is_dead;
            if pipe.closed[1 - side] {
                self.pipes.remove(&other);
            }
        }
    }

    /// A side drops its end of the pipe: the other one can still read what is in it.
    fn let_go(&mut self, side: Side) {
        let end = &self.ends[side];
        if end.session.is_none() {
            return;
        }
        if let Some(pipe) = self.pipes.get_mut(&end.generation) {
            pipe.to[side].clear();
            pipe.closed[side] = true;
            if pipe.closed[1 - side] {
                self.pipes.remove(&end.generation);
            }
        }
    }

    fn flush(&mut self, side: Side) {
        let [a, b] = &mut self.ends;
        let (end, other) = if side == SENDER { (a, b) } else { (b, a) };
        let mut frames = Vec::new();
        if let Some(session) = &mut end.session {
            session.transmit(usize::MAX, &mut frames);
        }
        let lost = other.generation == end.generation && other.reset;
        if let Some(pipe) = self.pipes.get_mut(&end.generation)
            && !pipe.closed[1 - side]
            && !lost
        {
            pipe.to[1 - side].extend(frames);
        }
    }

    /// The greetings of a new transport: each says what it has received.
    fn resume(&mut self, size: &Size, told: &mut Vec<Told>) {
        let [a, b] = &mut self.ends;
        let generation = a.generation;
        let (Some(sender), Some(receiver)) = (&mut a.session, &mut b.session) else {
            return;
        };
        let (to_receiver, to_sender) = (sender.received(), receiver.received());
        let short = u64::from(size.plant == Some(Plant::ResumedTooShort));
        let (to_receiver, to_sender) = (
            to_receiver.saturating_sub(short),
            to_sender.saturating_sub(short),
        );
        let too_far =
            size.plant == Some(Plant::ResumedTooFar) && sender.resume(to_sender + 1).is_ok();
        let resumed = too_far || sender.resume(to_sender).is_ok();
        if !resumed || receiver.resume(to_receiver).is_err() {
            told.push(Told::Accused);
        }
        (a.reset, b.reset) = (false, false);
        if let Some(pipe) = self.pipes.get_mut(&generation) {
            pipe.to = Default::default();
        }
    }
}
