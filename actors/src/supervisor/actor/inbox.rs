//! The way into a shard from other threads: handles, tickets and doorbells put messages here, and nothing else
//! of them reaches a shard.

use super::Shard;
use crate::ids::{ClaimNo, LegNo, LifeId};
use crate::memory::{Doorbell, JobBack, JobId, TicketSink};
use crate::reason::{Code, Reason};
use crate::runtime::pulse::Beat;
use crate::supervisor::attached::RealInput;
use crate::supervisor::io::Input;
use actix::Context;
use std::sync::Arc;
use tokio::sync::mpsc;

/// What reaches a shard from other threads.
///
/// The channel itself has no bound of its own: every sender is something that was admitted (a
/// handle of a room, a ticket of a job, a gate), so that what is in it is bounded by
/// `Limits::rooms`, `Limits::jobs_per_lane` and `Limits::gates`, and nothing on a way out is refused.
pub enum Inbound {
    /// For the core.
    Core(RealInput),
    /// A ticket came back.
    Job(JobBack),
    /// A doorbell rang.
    Bell(LifeId, LegNo),
    /// Something to be asked of the shard, on its own thread.
    Ask(Question),
    /// Several of these, in order, with one wake-up.
    Many(Vec<Inbound>),
    /// Clocks have run out; behind everything that was here before.
    Fire,
}

/// Runs on a shard's own thread.
pub type Question = Box<dyn FnOnce(&mut Shard, &mut ShardContext) + Send>;

/// What a shard runs in.
pub type ShardContext = Context<Shard>;

/// The way into a shard from any thread.
#[derive(Clone, Debug)]
pub struct Inbox {
    tx: mpsc::UnboundedSender<Inbound>,
    pub(super) beat: Arc<Beat>,
}

impl Inbox {
    /// A new inbox and its reading end.
    pub(crate) fn new(beat: Arc<Beat>) -> (Inbox, mpsc::UnboundedReceiver<Inbound>) {
        let (tx, rx) = mpsc::unbounded_channel();
        (Inbox { tx, beat }, rx)
    }

    /// Whether both lead to the same shard.
    pub fn is(&self, other: &Inbox) -> bool {
        self.tx.same_channel(&other.tx)
    }

    /// Whether the shard has stopped.
    pub(crate) fn is_closed(&self) -> bool {
        self.tx.is_closed()
    }

    /// Puts a message in. Hands it back if the shard has stopped.
    pub fn put(&self, message: Inbound) -> Result<(), Box<Inbound>> {
        self.tx.send(message).map_err(|e| Box::new(e.0))?;
        self.beat.post();
        Ok(())
    }
}

impl std::fmt::Debug for Inbound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Inbound::Core(_) => "Core",
            Inbound::Job(_) => "Job",
            Inbound::Bell(..) => "Bell",
            Inbound::Ask(_) => "Ask",
            Inbound::Fire => "Fire",
            Inbound::Many(_) => "Many",
        })
    }
}

/// Where this shard's tickets come back to.
pub(super) struct Sink(pub(super) Inbox);

impl TicketSink for Sink {
    fn returned(&self, back: JobBack) {
        // A shard that has stopped has leaked what was lent; the witness has nobody to go to.
        let _ = self.0.put(Inbound::Job(back));
    }

    fn moved(&self, id: JobId, bytes: u64) {
        let JobId { life, leg, .. } = id;
        let _ = self.0.put(Inbound::Core(Input::Moved { life, leg, bytes }));
    }

    fn lost(&self, id: JobId, why: &str) {
        let reason = Reason::new(Code::DeviceLost, why);
        let life = id.life;
        let _ = self.0.put(Inbound::Core(Input::Abort { life, reason }));
    }
}

/// Rings a shard for one claim.
pub(super) struct Bell {
    pub(super) inbox: Inbox,
    pub(super) life: LifeId,
    pub(super) leg: LegNo,
}

impl Doorbell for Bell {
    fn ring(&self, _: ClaimNo) {
        let _ = self.inbox.put(Inbound::Bell(self.life, self.leg));
    }

    fn device_failed(&self, _: ClaimNo, lost: bool, why: &str) {
        let code = match lost {
            true => Code::DeviceLost,
            false => Code::CopyFailed,
        };
        let (life, reason) = (self.life, Reason::new(code, why));
        let _ = self.inbox.put(Inbound::Core(Input::Abort { life, reason }));
    }
}
