//! One end on the thread of UCX: its worker, the way to the peer, and what goes there.
//!
//! ```text
//!   Offered ── connect ─▶ Wiring ─ the peer was reached ─▶ Up ─ close ─▶ Ending ─ idle ─▶ Forced
//!      │                     └ late, refused ──────────────┼── failed, or something is late ─▶ │
//!      └── close ──────────────────────────────────────────┴─────────────────────────────────▶ │
//!                                                                                              ▼
//!          endpoints closed by force, or late with that ─▶ the fence table ─▶ Gone: destroyed, or left alone
//!                                                                       └───▶ Retired: it goes on
//! ```
//!
//! Rules, of one that puts:
//! - A job's ticket goes back when nothing of it is under way; of one that was under way when the route
//!   failed, when the fence table says that nothing is read any more. Else it is parked for ever: its pages
//!   are never used again.
//! - The path is fenced when the table says that nothing is written any more.
//! - Where the table has no proof, the worker goes on, so that what the peer has posted can end. When
//!   nobody waits for it any more it is let go of.
//!
//! One that sends messages reads its sources before it posts, and its peer writes through this node's
//! gates: there is nothing to fence.

use super::UcxJob;
use super::context::Context;
use super::endpoint_of;
use super::error::UcxError;
use super::events::Events;
use super::fence::{Proof, Verdict};
use super::mailbox::{Born, EndNo, Reply};
use super::messages::{Inlet, Messages};
use super::options::UcxOptions;
use super::puts::Puts;
use super::worker::{Flight, Worker};
use crate::copy::schedule::Class;
use crate::fabric::tcp::frame::Header;
use crate::ids::LifeId;
use crate::memory::FarPath;
use crate::peer::hello::{UcxMode, UcxOffer};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// What all ends of the thread share.
pub(super) struct Common {
    pub(super) context: Rc<Context>,
    pub(super) events: Events,
    pub(super) options: UcxOptions,
    pub(super) verdict: Verdict,
    /// Workers that were left alone: nobody lets them work any more.
    pub(super) left: Cell<usize>,
    /// Whether a peer may put.
    pub(super) puts: bool,
}

/// See the module.
pub(super) struct Route {
    number: EndNo,
    common: Rc<Common>,
    worker: Option<Worker>,
    path: Arc<FarPath>,
    inlet: Rc<Inlet>,
    stage: Stage,
    way: Way,
    /// A test holds it: it is not progressed.
    #[cfg(test)]
    pub(super) held: bool,
}

/// How its bytes go.
enum Way {
    Puts(Puts),
    Messages(Messages),
}

enum Stage {
    Offered,
    Wiring {
        probe: Rc<Flight>,
        until: Instant,
        reply: Option<Reply<()>>,
    },
    Up,
    Ending {
        until: Instant,
    },
    Forced {
        until: Instant,
        why: String,
    },
    Retired {
        why: String,
    },
    Gone,
}

/// What a job is told that comes too late.
pub(super) const OVER: &str = "the connection through UCX is over";

/// Most jobs of a route.
pub(super) const MOST_JOBS: usize = 1 << 16;

/// How often a retired worker is looked at.
const RETIRED_LOOK: Duration = Duration::from_millis(500);

impl Route {
    /// An end with a worker of its own.
    pub(super) fn new(number: EndNo, common: &Rc<Common>) -> Result<(Route, Born), UcxError> {
        let border = Arc::<OnceLock<_>>::default();
        let inlet = Inlet::new(Arc::clone(&border));
        let worker = Worker::new(&common.context, &inlet)?;
        if let Err(error) = common.events.add(worker.event(), number) {
            return Err(UcxError::Call {
                call: "epoll_ctl",
                status: error.to_string(),
                advice: "; look at `ulimit -n` and fs.epoll.max_user_watches",
            });
        }
        let path = Arc::<FarPath>::default();
        let born = Born {
            number,
            address: worker.address().to_vec(),
            probe: common.context.probe().clone(),
            path: Arc::clone(&path),
            border,
        };
        let route = Route {
            number,
            common: Rc::clone(common),
            worker: Some(worker),
            path,
            way: Way::Messages(Messages::new(&inlet, &common.options)),
            inlet,
            stage: Stage::Offered,
            #[cfg(test)]
            held: false,
        };
        Ok((route, born))
    }

    /// Connects to the peer's worker, and finds out whether it can be reached.
    pub(super) fn connect(
        &mut self,
        theirs: &UcxOffer,
        mode: UcxMode,
        reply: Reply<()>,
        now: Instant,
    ) {
        let (Stage::Offered, Some(worker)) = (&self.stage, &mut self.worker) else {
            let _ = reply.send(Err(UcxError::Ended(": this end was closed before".into())));
            return;
        };
        if mode == UcxMode::OneSided {
            self.way = Way::Puts(Puts::new(&self.common.options));
        }
        let probe = match (mode, &self.common.verdict.crashes) {
            (UcxMode::OneSided, Some(why)) => Err(UcxError::Call {
                call: "one-sided puts",
                status: why.clone(),
                advice: "; leave it out of ucx.transports, or turn ucx.one_sided off on one side",
            }),
            (UcxMode::OneSided, None) => put_probe(worker, theirs),
            (UcxMode::Messages, _) => say_alive(worker, theirs),
        };
        match probe {
            Ok(probe) => {
                self.stage = Stage::Wiring {
                    probe,
                    until: now + self.common.options.wire_up,
                    reply: Some(reply),
                };
            }
            Err(error) => {
                let _ = reply.send(Err(error.clone()));
                self.force(&error.to_string(), now);
            }
        }
    }

    /// A job for it. One that finds no way says so by its ticket.
    pub(super) fn post(&mut self, mut job: UcxJob) {
        if !matches!(self.stage, Stage::Up) {
            job.ticket.errored(OVER);
            return;
        }
        match &mut self.way {
            Way::Puts(puts) => puts.post(job),
            Way::Messages(messages) => messages.post(job),
        }
    }

    /// Jobs of this life were cancelled.
    pub(super) fn cancel(&mut self, life: LifeId) {
        match &mut self.way {
            Way::Puts(puts) => puts.cancel(life),
            Way::Messages(messages) => messages.cancel(life),
        }
    }

    /// The session is over.
    pub(super) fn close(&mut self, now: Instant) {
        match self.stage {
            Stage::Up => {
                // Nothing is worth a flush any more: what is under way is waited for as long as any end of a
                // connection. A peer that has given its side up lets none of it end.
                self.stage = Stage::Ending {
                    until: now + self.common.options.close,
                };
                self.hand_back(None);
            }
            Stage::Offered | Stage::Wiring { .. } => self.force("the session is over", now),
            Stage::Ending { .. } | Stage::Forced { .. } | Stage::Retired { .. } | Stage::Gone => {}
        }
    }

    /// Jobs of which nothing is under way go back.
    fn hand_back(&mut self, why: Option<&str>) {
        match &mut self.way {
            Way::Puts(puts) => puts.hand_back(why),
            Way::Messages(messages) => messages.hand_back(why),
        }
    }

    /// Gives the route up, and closes its endpoints by force.
    fn force(&mut self, why: &str, now: Instant) {
        if let Stage::Wiring { reply, .. } = &mut self.stage
            && let Some(reply) = reply.take()
        {
            let _ = reply.send(Err(UcxError::Call {
                call: "the first message to a peer",
                status: why.to_owned(),
                advice: "; look at ucx.transports and ucx.devices on both sides",
            }));
        }
        self.stage = Stage::Forced {
            until: now + self.common.options.close,
            why: why.to_owned(),
        };
        self.hand_back(Some(why));
        if let Some(worker) = &mut self.worker {
            worker.close();
        }
    }

    /// Lets UCX work, and does what is due; whether anything happened.
    pub(super) fn step(&mut self, now: Instant) -> bool {
        #[cfg(test)]
        if self.held {
            return false;
        }
        let Some(worker) = &mut self.worker else {
            return false;
        };
        let mut worked = worker.progress();
        let failed = worker.failed();
        let next = match &mut self.stage {
            Stage::Offered => failed,
            Stage::Wiring {
                probe,
                until,
                reply,
            } => {
                let messages = matches!(self.way, Way::Messages(_));
                let error = failed.or_else(|| worker.error_of(probe));
                if error.is_some() {
                    error
                } else if probe.is_over() && (self.inlet.heard.get() || !messages) {
                    let reply = reply.take();
                    self.stage = Stage::Up;
                    // If nobody waits for it, its handle is gone, too, and closes it.
                    if let Some(reply) = reply {
                        let _ = reply.send(Ok(()));
                    }
                    worked = true;
                    None
                } else if now >= *until {
                    let late = UcxError::Late {
                        what: "the first message to a peer",
                        within: self.common.options.wire_up,
                        limit: "ucx.wire_up",
                    };
                    if let Some(reply) = reply.take() {
                        let _ = reply.send(Err(late.clone()));
                    }
                    Some(late.to_string())
                } else {
                    None
                }
            }
            Stage::Up | Stage::Ending { .. } => {
                let posts = matches!(self.stage, Stage::Up);
                let failed = failed.or_else(|| match &self.way {
                    Way::Puts(puts) => puts.failed(worker, now),
                    Way::Messages(messages) => messages.failed(worker, now),
                });
                if failed.is_none() {
                    worked |= match &mut self.way {
                        Way::Puts(puts) => puts.step(worker, now, posts),
                        Way::Messages(messages) => messages.step(worker, now, posts),
                    };
                }
                let messages = matches!(self.way, Way::Messages(_));
                let idle = match &self.way {
                    Way::Puts(puts) => puts.is_idle(),
                    // The last words to a peer that is there go out in a moment.
                    Way::Messages(messages) => messages.is_idle() && worker.is_quiet(),
                };
                match (&self.stage, failed) {
                    (_, Some(why)) => Some(why),
                    (Stage::Ending { until }, None) if idle || now >= *until => {
                        if messages && idle {
                            // Nothing is under way, and nothing is to be proven: so no endpoint is closed by force.
                            // Where both sides do that at once, UCX 1.13 has ended the process over `tcp`.
                            self.let_go("the session is over", true);
                            return true;
                        }
                        Some("the session is over".into())
                    }
                    _ => None,
                }
            }
            Stage::Forced { until, .. } => {
                let out = worker.is_out();
                if out || now >= *until {
                    self.decide(out);
                    worked = true;
                }
                None
            }
            Stage::Retired { why } => {
                let (out, why) = (worker.is_out(), why.clone());
                if self.is_proven(out) {
                    self.let_go(&why, out);
                    worked = true;
                }
                None
            }
            Stage::Gone => None,
        };
        if let Some(why) = next {
            // Before the endpoints are closed: after that a flush of the peer may end well of which nothing
            // landed, and the session must be over when its `Complete` comes.
            if let (Stage::Up, Some(border)) = (&self.stage, self.inlet.border()) {
                (border.over)(&why);
            }
            self.force(&why, now);
            worked = true;
        }
        worked
    }

    /// The endpoints are closed, or are late with that: what does it prove?
    fn decide(&mut self, out: bool) {
        let Stage::Forced { why, .. } = &self.stage else {
            return;
        };
        let why = why.clone();
        if self.is_proven(out) {
            return self.let_go(&why, out);
        }
        let worker = self
            .worker
            .as_ref()
            .map(Worker::describe)
            .unwrap_or_default();
        tracing::warn!(
            why,
            worker,
            table = self.common.verdict.why,
            "a connection through UCX ended, and that proves nothing: what it may still read or write stays held"
        );
        self.stage = Stage::Retired { why };
    }

    /// Whether the end of the worker is a proof for what is waited for, or nothing is. Of jobs that this side
    /// has and claims that the peer has the jobs decide: a peer can still say that it is out.
    fn is_proven(&self, out: bool) -> bool {
        let Way::Puts(puts) = &self.way else {
            return true;
        };
        let verdict = &self.common.verdict;
        if puts.len() > 0 {
            return match verdict.reads {
                None => false,
                Some(Proof::Left) => out,
                Some(Proof::Destroyed) => true,
            };
        }
        verdict.writes.is_some() || Arc::strong_count(&self.path) == 1
    }

    /// Lets go of the worker, and of what the fence table then says is over.
    fn let_go(&mut self, why: &str, out: bool) {
        self.stage = Stage::Gone;
        let Some(worker) = self.worker.take() else {
            return;
        };
        if let Err(error) = self.common.events.remove(worker.event()) {
            tracing::debug!(%error, "a worker's descriptor was not waited for");
        }
        let verdict = &self.common.verdict;
        let destroys = match &self.way {
            // Before there is a connection nobody knows whether the peer has put its word.
            Way::Messages(_) if !worker.is_connected() && self.common.puts => verdict.destroys(),
            Way::Messages(_) => out,
            Way::Puts(_) => verdict.destroys(),
        };
        if destroys {
            drop(worker);
        } else {
            // Replies to the peer may be pending in it, and UCX does not survive that everywhere.
            worker.abandon();
            self.common.left.set(self.common.left.get() + 1);
        }
        if let Way::Puts(puts) = &mut self.way {
            // Who comes here with jobs has a proof for them.
            puts.let_go(why);
            if verdict.writes.is_some() {
                self.path.fence();
            }
        }
    }

    /// Calls of UCX that have not ended.
    #[cfg(test)]
    pub(super) fn under_way(&self) -> usize {
        self.worker.as_ref().map_or(0, Worker::under_way)
    }

    /// Sends the peer what is no frame.
    #[cfg(test)]
    pub(super) fn send_raw(&self, bytes: Vec<u8>) {
        if let Some(worker) = &self.worker {
            worker.send(0, bytes);
        }
    }

    pub(super) fn is_gone(&self) -> bool {
        matches!(self.stage, Stage::Gone)
    }

    pub(super) fn is_up(&self) -> bool {
        matches!(self.stage, Stage::Up)
    }

    pub(super) fn is_retired(&self) -> bool {
        matches!(self.stage, Stage::Retired { .. })
    }

    /// When it has to have a turn, whatever UCX says.
    pub(super) fn due(&self) -> Option<Instant> {
        match &self.stage {
            Stage::Wiring { until, .. } | Stage::Ending { until } | Stage::Forced { until, .. } => {
                Some(*until)
            }
            Stage::Up => match &self.way {
                Way::Puts(puts) => puts.due(),
                Way::Messages(messages) => messages.due(),
            },
            // Nobody tells when a gate has gone.
            Stage::Retired { .. } => Some(Instant::now() + RETIRED_LOOK),
            Stage::Offered | Stage::Gone => None,
        }
    }

    /// Whether it may sleep: its descriptor tells of what comes next.
    pub(super) fn arm(&self) -> bool {
        #[cfg(test)]
        if self.held {
            return true;
        }
        if self.is_retired() {
            // It is looked at now and then; one whose endpoints do not close would never let others sleep.
            return true;
        }
        match self.worker.as_ref().map(Worker::arm) {
            None => true,
            Some(Ok(armed)) => armed,
            Some(Err(error)) => {
                tracing::warn!(end = self.number, %error, "a worker cannot sleep");
                true
            }
        }
    }
}

/// Classes whose endpoints differ.
const CLASSES: [Class; 2] = [Class::Interactive, Class::Bulk];

fn endpoints(worker: &mut Worker, theirs: &UcxOffer) -> Result<(), UcxError> {
    for _ in CLASSES {
        worker.connect(&theirs.worker)?;
    }
    Ok(())
}

/// Endpoints at the peer's worker, and a put to its probe through each.
fn put_probe(worker: &mut Worker, theirs: &UcxOffer) -> Result<Rc<Flight>, UcxError> {
    endpoints(worker, theirs)?;
    let key = worker.unpack(&theirs.probe)?;
    let flight = worker.flight();
    for class in CLASSES {
        worker.write_word(endpoint_of(class), (theirs.probe.base, key), &flight)?;
    }
    for class in CLASSES {
        worker.flush(endpoint_of(class), &flight);
    }
    Ok(flight)
}

/// Endpoints at the peer's worker, and a word to it through each.
fn say_alive(worker: &mut Worker, theirs: &UcxOffer) -> Result<Rc<Flight>, UcxError> {
    endpoints(worker, theirs)?;
    let mut last = worker.send(endpoint_of(Class::Interactive), Header::alive().to_vec());
    if endpoint_of(Class::Bulk) != endpoint_of(Class::Interactive) {
        last = worker.send(endpoint_of(Class::Bulk), Header::alive().to_vec());
    }
    Ok(last)
}
