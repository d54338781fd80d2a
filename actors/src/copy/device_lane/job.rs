//! A job of a device's lane: what it still has to queue, and what became of what it queued.

use super::cut::{self, Cut};
use super::hands::{Hands, Holds, Way as Path, When};
use super::kernels::table_at;
use super::net::{Outgoing, Quota, Staged};
use super::{Device, Waker};
use crate::copy::device::{DeviceError, Held, InFlight, Ready};
use crate::copy::job::{Place, SourceSum};
use crate::copy::pieces::Pieces;
use crate::copy::schedule::{Class, Work};
use crate::fabric::shm::Way;
use crate::fabric::tcp::{NewJob, TcpRoute};
use crate::fabric::{Fabric, Fact};
use crate::ids::ClaimNo;
use crate::memory::Ticket;
use crate::runtime::meter::Meter;
use kvroom_kernels::layout::PoolLayout;
use kvroom_kernels::plan::Piece;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

/// Runs of one piece: what one call of the driver is given.
pub(super) const RUNS: usize = 512;

/// Bytes of a source that are summed in one turn.
const SUM_STRETCH: u64 = 1 << 20;

/// By which way a device's bytes go.
pub(crate) enum Route {
    /// Into pages that this process reaches.
    Pages(Way),
    /// Over a network.
    Tcp(TcpRoute, TcpEnds),
}

/// What a network job needs besides its bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TcpEnds {
    pub(crate) class: Class,
    pub(crate) claim: ClaimNo,
    pub(crate) gate: u32,
    pub(crate) lane: Option<u16>,
}

/// What a job has still to queue.
enum Rest {
    New,
    Pieces(Pieces),
    Parts(Cut),
}

/// On its way to a lane. The lane makes a [`Job`] of it.
pub(crate) struct DeviceJob {
    pub(crate) ticket: Ticket,
    pub(crate) route: Route,
    pub(crate) layout: Arc<PoolLayout>,
    pub(crate) place: Place,
    /// The device of the destination, if it is on one.
    pub(crate) to: Option<Device>,
    /// When the source's data is there, if it may not be yet.
    pub(crate) ready: Option<Arc<Ready>>,
    pub(crate) checksum: bool,
    pub(crate) meter: Option<Arc<Meter>>,
}

impl DeviceJob {
    /// Whether its bytes go over a network.
    pub(super) fn is_for_network(&self) -> bool {
        self.peer().is_some()
    }

    /// The route, if its bytes go over a network.
    pub(super) fn peer(&self) -> Option<&TcpRoute> {
        match &self.route {
            Route::Tcp(route, _) => Some(route),
            Route::Pages(_) => None,
        }
    }

    /// The lane does not take it.
    pub(crate) fn refuse(mut self, why: &str) {
        self.ticket.errored(why);
    }
}

/// See the module.
pub(super) struct Job {
    pub(super) new: DeviceJob,
    rest: Rest,
    /// Bytes in all, and of them those that were queued.
    bytes: u64,
    queued_bytes: u64,
    sum: Option<SourceSum>,
    no_more: bool,
    /// How many slots its peer has.
    pub(super) share: Option<Arc<AtomicUsize>>,
    /// Its bytes are handed to the other process, and stay on the device.
    pub(super) handed: bool,
    pub(super) fate: Rc<Fate>,
}

/// What a job shares with its pieces that are queued.
#[derive(Default)]
pub(super) struct Fate {
    pub(super) queued: Cell<usize>,
    /// Bytes that have landed, or are on their way over a network.
    landed: Cell<u64>,
    failed: RefCell<Option<Failure>>,
}

/// Why a job cannot be done.
#[derive(Clone, Debug)]
pub(super) enum Failure {
    Refused,
    Errored(String),
    Lost(String),
}

/// A piece that is queued.
pub(super) struct Flying {
    flight: InFlight<Holds>,
    rest: Kept,
}

/// Where a piece goes on from its slot.
enum Onward {
    /// It is in the pages.
    There,
    /// To pages, by the CPU.
    Pages(Way),
    /// Over a network, as this part of its job.
    Tcp(Box<(TcpRoute, TcpEnds, Part)>),
}

/// What a part of a job needs to be sent.
struct Part {
    place: Place,
    layout: Arc<PoolLayout>,
    checksum: bool,
    waker: Waker,
}

/// What the lane keeps with a piece.
pub(super) struct Kept {
    fate: Rc<Fate>,
    bytes: u64,
    /// A kernel copies it.
    pub(super) launched: bool,
    onward: Onward,
    meter: Option<Arc<Meter>>,
    /// Part of it could not be queued: it is only waited for.
    doomed: bool,
}

/// How far a job is that has nothing more to queue.
pub(super) enum Settled {
    /// Pieces of it are queued.
    Waits,
    /// Something of its source was summed.
    Some,
    /// Its ticket can go.
    Over,
}

/// What a turn of a job did.
pub(super) struct Stepped {
    /// Bytes that were queued.
    pub(super) bytes: u64,
    /// It has nothing more to queue.
    pub(super) over: bool,
}

impl From<Fact> for Failure {
    fn from(fact: Fact) -> Self {
        match fact {
            Fact::Refused => Failure::Refused,
            Fact::Errored(text) => Failure::Errored(text),
        }
    }
}

impl From<DeviceError> for Failure {
    fn from(error: DeviceError) -> Self {
        match error.is_sticky() {
            true => Failure::Lost(error.to_string()),
            false => Failure::Errored(error.to_string()),
        }
    }
}

impl Fate {
    fn fail(&self, failure: Failure) {
        self.failed.borrow_mut().get_or_insert(failure);
    }

    pub(super) fn is_failed(&self) -> bool {
        self.failed.borrow().is_some()
    }
}

impl Job {
    pub(super) fn new(new: DeviceJob) -> Self {
        Job {
            bytes: new.place.bytes(&new.layout),
            rest: Rest::New,
            queued_bytes: 0,
            // What goes over a network is summed part by part.
            sum: (new.checksum && !new.is_for_network()).then(SourceSum::new),
            no_more: false,
            share: None,
            handed: false,
            fate: Rc::default(),
            new,
        }
    }

    /// When its next piece may run: `late` is a stream for those whose data is not there. An event that has
    /// fired once is not asked again, whatever it is recorded for later.
    pub(super) fn when(&mut self, late: usize) -> When {
        let Some(ready) = &self.new.ready else {
            return When::Now;
        };
        match ready.has_fired() {
            Ok(false) => When::After(Arc::clone(ready), late),
            // Nobody knows: it is not there before somebody does.
            Err(error) if !error.is_sticky() => When::After(Arc::clone(ready), late),
            // Of a lost device nothing can be queued.
            Ok(true) | Err(_) => {
                self.new.ready = None;
                When::Now
            }
        }
    }

    /// Whether its pieces go to a device that this one does not reach.
    pub(super) fn goes_across(&self, hands: &mut Hands) -> bool {
        let to = self.new.to.as_ref().map(|to| to.context().clone());
        to.is_some_and(|to| self.new.ticket.device().is_some() && !hands.reaches(&to))
    }

    /// Queues one piece of at most `budget` bytes.
    pub(super) fn step(
        &mut self,
        budget: u64,
        when: &When,
        hands: &mut Hands,
    ) -> (Stepped, Option<Flying>) {
        match self.try_step(budget, when, hands) {
            Ok((bytes, flying)) => {
                self.queued_bytes += bytes;
                let over = self.queued_bytes >= self.bytes || bytes == 0 || self.fate.is_failed();
                (Stepped { bytes, over }, flying)
            }
            Err(failure) => {
                self.fate.fail(failure);
                let stepped = Stepped {
                    bytes: 0,
                    over: true,
                };
                (stepped, None)
            }
        }
    }

    fn try_step(
        &mut self,
        budget: u64,
        when: &When,
        hands: &mut Hands,
    ) -> Result<(u64, Option<Flying>), Failure> {
        let to = self.new.to.as_ref().and_then(|to| to.context().lost());
        if let Some(sticky) = hands.context().lost().or(to) {
            // Slots may be gone with it; and what is queued from here to there has no end.
            return Err(DeviceError::Lost(sticky.clone()).into());
        }
        let (layout, place) = (&self.new.layout, &self.new.place);
        if let Rest::New = self.rest {
            self.rest = match &self.new.route {
                Route::Pages(Way::Local(route)) => Rest::Pieces(route.plan(layout, place)?),
                Route::Pages(Way::Shm(claim)) => Rest::Pieces(claim.plan(layout, place)?),
                Route::Tcp(..) => {
                    let (place, layout) = (place.clone(), Arc::clone(layout));
                    Rest::Parts(Cut::new(place, layout, hands.slot_bytes(), RUNS))
                }
            };
        }
        let mut runs = Vec::new();
        let mut part = None;
        match &mut self.rest {
            Rest::New => {}
            Rest::Pieces(plan) => {
                let budget = budget.clamp(1, hands.slot_bytes());
                let mut bytes = 0;
                while bytes < budget
                    && runs.len() < RUNS
                    && let Some(run) = plan.next_piece(budget - bytes)
                {
                    bytes += run.bytes;
                    runs.push(run);
                }
            }
            Rest::Parts(cut) => {
                if let Some(next) = cut.next().map_err(Failure::Errored)? {
                    runs = cut::runs(&next, layout).map_err(Failure::Errored)?;
                    part = Some(next);
                }
            }
        }
        if runs.is_empty() {
            return Ok((0, None));
        }
        let bytes = runs.iter().map(|run| run.bytes).sum();
        self.queue(runs, bytes, part, when, hands)
            .map(|flying| (bytes, flying))
    }

    fn queue(
        &mut self,
        runs: Vec<Piece>,
        bytes: u64,
        part: Option<Place>,
        when: &When,
        hands: &mut Hands,
    ) -> Result<Option<Flying>, Failure> {
        let new = &mut self.new;
        let from_here = new.ticket.device().is_some();
        let (path, across) = match (&new.to, from_here) {
            (None, _) => (Path::Out, None),
            (Some(_), false) => (Path::In, None),
            (Some(to), true) if hands.reaches(to.context()) => (Path::Direct, None),
            (Some(to), true) => (Path::Direct, Some(to.context().clone())),
        };
        let alike = match across {
            // The tables have room for so many.
            None if runs.len() <= RUNS => hands.alike(&runs, path != Path::Out),
            _ => None,
        };
        let ring = match (&part, self.handed) {
            (Some(_), true) => Some(hands.ring_slot().ok_or_else(no_slot)?),
            _ => None,
        };
        // The tables of a kernel are written by the CPU; without a place for them copies do.
        let tables = match (&ring, alike) {
            (Some(_), Some(_)) => hands.outgoing_slot(),
            _ => None,
        };
        let alike = alike.filter(|_| ring.is_none() || tables.is_some());
        let mut slot = match path {
            _ if ring.is_some() => tables,
            Path::Direct if across.is_none() && alike.is_none() => None,
            _ if part.is_some() => Some(hands.outgoing_slot().ok_or_else(no_slot)?),
            _ => Some(hands.slot().ok_or_else(no_slot)?),
        };
        if path == Path::In
            && let Some(slot) = &mut slot
        {
            let mut at = 0;
            for run in &runs {
                let range = at..at + run.bytes;
                let read = new.ticket.with_source(run.src, run.bytes, |bytes| {
                    slot.write(range, |into| into.copy_from_slice(bytes))
                });
                read.map_err(|e| Failure::Errored(e.to_string()))??;
                at += run.bytes;
            }
        }
        if let (Some(alike), Some(slot)) = (alike, &mut slot) {
            let tables = alike.tables(&runs);
            let at = table_at(bytes);
            let range = at..at + tables.len() as u64;
            slot.write(range, |into| into.copy_from_slice(&tables))?;
        }
        // Before anything is queued, and until its event has fired.
        let stay = match (path, &new.route) {
            (Path::Out, _) => None,
            (_, Route::Pages(Way::Local(route))) => Some(route.stay()?),
            (_, Route::Pages(Way::Shm(_)) | Route::Tcp(..)) => {
                let text = "no device of this process writes another process's pool";
                return Err(Failure::Errored(text.into()));
            }
        };
        let holds = Holds {
            stay,
            part: new.ticket.part(),
            slot,
            ring,
            runs,
            section: new.place.section,
            cursor: Cell::new(0),
            alike,
            quota: self.share.as_ref().map(Quota::take),
        };
        let queued = match &across {
            Some(to) => hands.queue_across(to, holds),
            None => hands.queue(path, when, holds),
        };
        let (flight, doomed) = match queued {
            Ok(flight) => (flight, false),
            Err(refused) => {
                self.fate.fail(refused.error.into());
                match refused.holds {
                    // Nothing was queued: the part and the stay end here.
                    Held::Back(_) => return Ok(None),
                    Held::InFlight(flight) => (flight, true),
                }
            }
        };
        self.fate.queued.set(self.fate.queued.get() + 1);
        let onward = match (&self.new.route, part) {
            (Route::Tcp(route, ends), Some(place)) => {
                let part = Part {
                    place,
                    layout: Arc::clone(&self.new.layout),
                    checksum: self.new.checksum,
                    waker: hands.waker().clone(),
                };
                Onward::Tcp(Box::new((route.clone(), *ends, part)))
            }
            (Route::Pages(way), _) if path == Path::Out => Onward::Pages(way.clone()),
            _ => Onward::There,
        };
        let rest = Kept {
            fate: Rc::clone(&self.fate),
            bytes,
            launched: alike.is_some(),
            onward,
            meter: self.new.meter.clone(),
            doomed,
        };
        Ok(Some(Flying { flight, rest }))
    }

    /// Pieces that are queued.
    pub(super) fn queued(&self) -> usize {
        self.fate.queued.get()
    }

    /// It has nothing more to queue.
    pub(super) fn no_more(&mut self) {
        self.no_more = true;
    }

    /// Whether nothing more of it is to be queued.
    pub(super) fn is_over(&self) -> bool {
        self.no_more || self.is_cancelled()
    }

    /// Nothing more will be queued: goes on with its sum, if its pieces have landed.
    pub(super) fn settle(&mut self) -> Settled {
        if self.is_cancelled() {
            // What is queued has parts of the ticket; this one has nothing to wait for.
            return Settled::Over;
        }
        if self.queued() > 0 {
            return Settled::Waits;
        }
        let Some(sum) = &mut self.sum else {
            return Settled::Over;
        };
        let (layout, place) = (&self.new.layout, &self.new.place);
        let step = sum.step(&mut self.new.ticket, layout, place, SUM_STRETCH);
        match step.over {
            true => Settled::Over,
            false => Settled::Some,
        }
    }

    /// Lets go of it: its ticket says what became of it.
    pub(super) fn end(mut self) {
        match self.fate.failed.borrow_mut().take() {
            None => {}
            Some(Failure::Refused) => self.new.ticket.refused(),
            Some(Failure::Errored(text)) => self.new.ticket.errored(text),
            Some(Failure::Lost(text)) => {
                self.new.ticket.tell_lost(&text);
                self.new.ticket.errored(text);
            }
        }
        let facts = self.new.ticket.facts();
        let whole = self.fate.queued.get() == 0 && self.fate.landed.get() == self.bytes;
        if whole && facts.errored.is_none() && facts.refused_pieces == 0 {
            let sum = self.sum.map_or(0, SourceSum::value);
            self.new.ticket.finish_with(sum);
        }
    }

    /// A step of it panicked.
    pub(super) fn broke(&mut self) {
        tracing::error!(job = ?self.new.ticket.id(), "a copy job of a device panicked");
        self.fate.fail(Failure::Errored(BROKE.into()));
    }
}

impl Work for Job {
    fn remaining(&self) -> u64 {
        self.bytes.saturating_sub(self.queued_bytes).max(1)
    }

    fn is_cancelled(&self) -> bool {
        self.new.ticket.is_cancelled() || self.fate.is_failed()
    }
}

impl Flying {
    pub(super) fn is_for_network(&self) -> bool {
        self.rest.is_for_network()
    }

    pub(super) fn into_parts(self) -> (InFlight<Holds>, Kept) {
        (self.flight, self.rest)
    }
}

impl Kept {
    /// Whether its slot is one for what goes over a network.
    pub(super) fn is_for_network(&self) -> bool {
        matches!(self.onward, Onward::Tcp(_))
    }

    pub(super) fn with(self, flight: InFlight<Holds>) -> Flying {
        Flying { flight, rest: self }
    }

    /// The lane panicked over it.
    pub(super) fn broke(&self) {
        tracing::error!("a landed piece of a device panicked");
        self.fate.fail(Failure::Errored(BROKE.into()));
    }

    /// Its event has fired: what it owned comes back. Gives the bytes that landed.
    pub(super) fn landed(&self, mut holds: Holds) -> u64 {
        let fate = &self.fate;
        fate.queued.set(fate.queued.get() - 1);
        if self.doomed {
            return 0;
        }
        let placed = match &self.onward {
            Onward::Tcp(sent) => {
                let (route, ends, part) = &**sent;
                return self.send(route, *ends, part, holds);
            }
            Onward::Pages(route) => place(route, &holds),
            Onward::There => match &holds.stay {
                Some(stay) => {
                    let pieces = holds.runs.len() as u64;
                    stay.target().count_pieces(pieces, self.bytes);
                    Ok(Fabric::Local)
                }
                None => Err(Fact::Errored("a piece without a gate".into())),
            },
        };
        // Outside before anybody hears of it.
        drop(holds.stay.take());
        match placed {
            Ok(fabric) => {
                if let Some(meter) = &self.meter {
                    meter.sent(fabric, self.bytes);
                }
                fate.landed.set(fate.landed.get() + self.bytes);
                let mut part = holds.part;
                part.landed(self.bytes);
                part.finish();
                self.bytes
            }
            Err(fact) => {
                fate.fail(fact.into());
                0
            }
        }
    }

    /// Sends a part on from its slot; its ticket says what becomes of it.
    fn send(&self, route: &TcpRoute, ends: TcpEnds, part: &Part, holds: Holds) -> u64 {
        let (mut ticket, quota) = (holds.part, holds.quota);
        let slot = match (holds.ring, holds.slot) {
            (Some((number, slot)), _) => Some(Outgoing::Exported(number, slot)),
            (None, slot) => slot.map(Outgoing::Pinned),
        };
        let sum = match part.checksum {
            false => None,
            true => match summed(&mut ticket, part) {
                Ok(sum) => Some(sum),
                Err(text) => {
                    self.fate.fail(Failure::Errored(text));
                    return 0;
                }
            },
        };
        let staged = Staged {
            slot,
            bytes: self.bytes,
            sum,
            quota,
            waker: part.waker.clone(),
        };
        let job = NewJob {
            ticket,
            class: ends.class,
            layout: Arc::clone(&part.layout),
            place: part.place.clone(),
            claim: ends.claim,
            gate: ends.gate,
            checksum: part.checksum,
            meter: self.meter.clone(),
            queued: None,
            lane: ends.lane,
        };
        route.post_staged(job, Box::new(staged));
        self.fate.landed.set(self.fate.landed.get() + self.bytes);
        self.bytes
    }

    /// The device is lost: what it owned has no end that anybody can prove.
    pub(super) fn lost(&self, holds: &Holds, why: &DeviceError) {
        self.fate.queued.set(self.fate.queued.get() - 1);
        let text = why.to_string();
        holds.part.tell_lost(&text);
        self.fate.fail(Failure::Lost(text));
    }
}

/// The sum of a part, from its pages.
fn summed(ticket: &mut Ticket, part: &Part) -> Result<u64, String> {
    let mut sum = SourceSum::new();
    while !sum.step(ticket, &part.layout, &part.place, u64::MAX).over {}
    match &ticket.facts().errored {
        Some(text) => Err(text.clone()),
        None => Ok(sum.value()),
    }
}

/// Copies a slot on into pages of the host, through the claim's gate.
fn place(route: &Way, holds: &Holds) -> Result<Fabric, Fact> {
    let Some(slot) = &holds.slot else {
        return Err(Fact::Errored("a piece without a slot".into()));
    };
    let all: u64 = holds.runs.iter().map(|run| run.bytes).sum();
    let placed = slot.read(0..all, |bytes| match route {
        Way::Local(route) => route
            .place(holds.section, &holds.runs, bytes)
            .map(|()| Fabric::Local),
        Way::Shm(claim) => claim
            .place(holds.section, &holds.runs, bytes)
            .map(|()| Fabric::Shm),
    });
    placed.unwrap_or_else(|error| Err(Fact::Errored(error.to_string())))
}

const BROKE: &str = "the copy panicked; this is a defect of kvroom, the log has its message";

fn no_slot() -> Failure {
    Failure::Errored("no staging slot is free; this is a bug of kvroom".into())
}
