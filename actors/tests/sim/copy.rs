//! Lanes and what is under way: the shipped scheduler, gates and tickets, over virtual time.
//!
//! ```text
//!   local, shm:  lane ── enter ───────(time)──────── copy, leave            the sender's lane is inside
//!   tcp:         lane ── read source ──(latency)──▶ enter ─(time)─ copy, leave ──(latency)──▶ ack
//! ```
//!
//! A piece that is under way over a network has its own bytes. What a broken data connection took
//! with it is sent again; what a session took with it has failed.

use super::fact::{Fact, LeaseNo, Life};
use super::node::{Back, CELL, Inbound, Kept, Sink};
use super::plan::{Fabric, US};
use super::plant::Plant;
use super::shard::{job_code, job_over};
use super::world::{Ev, World};
use crate::memory::{
    CancelFlag, GateTable, Inside, JobId, Lease, Pool, Ticket, Withdrawn, Witness,
};
use kvroom_actors::copy::schedule::{Class, Config, Scheduler, Turn, Work};
use kvroom_actors::ids::{LegNo, LifeId};
use kvroom_actors::peer::message::ClaimTag;
use kvroom_actors::room::{JobEnd, JobSpec};
use kvroom_actors::supervisor::custody::Held;
use kvroom_actors::supervisor::io::Input;
use kvroom_kernels::checksum::Checksum;
use kvroom_kernels::coverage::Rect;
use kvroom_kernels::layout::{Order, PoolKind, PoolLayout};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

/// One page in one layer, and where it goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cell {
    layer: u32,
    place: u32,
    /// In the source's pool.
    page: u32,
}

pub(crate) struct Job {
    life: LifeId,
    ticket: Option<Ticket>,
    lease: LeaseNo,
    source: Pool,
    link: usize,
    fabric: Fabric,
    gates: &'static GateTable,
    slot: u32,
    pub(crate) claim: ClaimTag,
    section: u16,
    layout: Arc<PoolLayout>,
    cells: Vec<Cell>,
    todo: VecDeque<Cell>,
    queued: bool,
    checksum: bool,
    class: Class,
}

#[derive(Clone)]
pub(crate) struct JobRef(Rc<RefCell<Job>>);

impl Work for JobRef {
    fn remaining(&self) -> u64 {
        self.0.borrow().todo.len() as u64 * CELL
    }

    fn is_cancelled(&self) -> bool {
        let job = self.0.borrow();
        job.ticket.as_ref().is_none_or(Ticket::is_cancelled)
    }
}

impl JobRef {
    /// The next cells of it, and whether more are left.
    fn take(&self, count: usize) -> Vec<Cell> {
        let mut job = self.0.borrow_mut();
        let count = count.min(job.todo.len());
        let cells = job.todo.drain(..count).collect();
        job.queued = !job.todo.is_empty();
        cells
    }
}

/// A node's one lane.
pub(crate) struct Lane {
    pub(crate) scheduler: Scheduler<JobRef>,
    pub(crate) busy: Option<Busy>,
    /// Over a network, and not over.
    pub(crate) tcp: Vec<JobRef>,
    due: bool,
}

/// A piece that is being copied, inside the gate.
pub(crate) struct Busy {
    job: JobRef,
    inside: Inside<'static>,
    cells: Vec<Cell>,
}

impl Default for Lane {
    fn default() -> Self {
        Lane {
            scheduler: Scheduler::new(&Config {
                interactive_piece: CELL,
                bulk_piece: 3 * CELL,
                bulk_every: 4,
                capacity: 1 << 16,
            }),
            busy: None,
            tcp: Vec::new(),
            due: false,
        }
    }
}

impl Busy {
    /// Its process died: whose gate it is in, and the guard that nobody will ever leave by.
    pub(crate) fn into_dead(self) -> (ClaimTag, Inside<'static>) {
        let claim = self.job.0.borrow().claim;
        (claim, self.inside)
    }

    pub(crate) fn fabric(&self) -> Fabric {
        self.job.0.borrow().fabric
    }
}

/// A data frame on its way, or what is left of it until it is acknowledged.
pub(crate) struct Flight {
    job: JobRef,
    pub(crate) from: Life,
    pub(crate) to: Life,
    pub(crate) link: usize,
    session: u64,
    conn: u64,
    cells: Vec<Cell>,
    bytes: Vec<u8>,
    pub(crate) inside: Option<Inside<'static>>,
    landed: bool,
}

impl Flight {
    /// Its sender is dead.
    pub(crate) fn forget_source(&self) {
        drop(self.job.0.borrow_mut().ticket.take());
    }
}

impl World {
    pub(crate) fn post(&mut self, n: usize, life: LifeId, leg: LegNo, job: u32, spec: &JobSpec) {
        let held = match spec {
            JobSpec::Pages { chunk, .. } => Held::Chunk(*chunk),
            JobSpec::Aux => Held::Aux,
        };
        let id = JobId {
            life,
            leg,
            job: job_code(job, held),
        };
        let Some(job_ref) = self.build(n, id, held, spec) else {
            let witness = Witness::NeverSubmitted(Withdrawn::unnumbered());
            self.nodes[n].follow.push_back(Input::JobOver {
                life,
                leg,
                job,
                carried: held,
                rest: 0,
                end: JobEnd::Errored("the job could not be built".into()),
                witness,
            });
            return;
        };
        let (fabric, class, small) = {
            let job = job_ref.0.borrow();
            (job.fabric, job.class, job.cells.len() <= 2 && !job.checksum)
        };
        if fabric != Fabric::Tcp && small && self.nodes[n].copies_small {
            return self.copy_here(n, &job_ref);
        }
        if fabric == Fabric::Tcp {
            self.nodes[n].lane.tcp.push(job_ref.clone());
        }
        job_ref.0.borrow_mut().queued = true;
        let lane = &mut self.nodes[n].lane;
        let _ = lane.scheduler.push(life.0, class, job_ref);
        self.wake_lane(n);
    }

    fn build(&mut self, n: usize, id: JobId, held: Held, spec: &JobSpec) -> Option<JobRef> {
        let node = &self.nodes[n];
        let l = node.core.life(id.life)?;
        let record = l.legs().get(usize::from(id.leg.0))?;
        let (peer, slot, checksum) = (record.peer, record.gate, record.checksum);
        let claim = record.claim?;
        let (link, side) = *node.peers.get(&peer)?;
        let end = &self.links[link].ends[side];
        let fabric = self.plan.links[link].fabric;
        let routed = end.peer_ref() == Some(peer) && end.session.is_some();
        if !routed && fabric != Fabric::Local {
            return None;
        }
        let gates = *self.tables.get(&claim.id.receiver)?;
        let Kept::Sender { cancel } = &l.attached().role else {
            return None;
        };
        let lent = l.custody().lease(held)?;
        let guard = lent.lease.borrow();
        let Lease::Read(lease) = &*guard else {
            return None;
        };
        let (view, pages) = (lease.source_view(), lease.arc_pages());
        let layout = Arc::clone(lease.pool().layout());
        let (section, layers, from, to) = match spec {
            JobSpec::Pages {
                section,
                layers,
                from,
                to,
                ..
            } => (*section, layers.clone(), from.clone(), to.clone()),
            JobSpec::Aux => (Rect::AUX, 0..layout.layers, 0..1, 0..1),
        };
        let mut cells = Vec::new();
        for layer in layers {
            cells.extend(from.clone().zip(to.clone()).map(|(from, to)| Cell {
                layer,
                place: to,
                page: pages[from as usize],
            }));
        }
        let sink: Arc<Sink> = Arc::clone(&node.sink);
        let ticket = Ticket::new(id, view, cancel.clone(), sink);
        let (no, source) = (lent.no, lease.pool().clone());
        drop(guard);
        let job = Job {
            life: id.life,
            ticket: Some(ticket),
            lease: no,
            source,
            link,
            fabric,
            gates,
            slot,
            claim,
            section,
            layout,
            todo: cells.iter().copied().collect(),
            cells,
            queued: false,
            checksum,
            class: l.attached().class,
        };
        let fact = Fact::Posted {
            at: node.life(),
            life: id.life,
            job: id.job,
            lease: no,
            claim,
        };
        self.fact(fact);
        Some(JobRef(Rc::new(RefCell::new(job))))
    }

    /// A small job is copied in the turn that posts it.
    fn copy_here(&mut self, n: usize, job: &JobRef) {
        while !job.is_cancelled() && job.remaining() > 0 {
            let cells: Vec<Cell> = job.0.borrow_mut().todo.drain(..).collect();
            match self.enter(job) {
                Some(inside) => self.land(n, job, inside, &cells),
                None => self.end_job(n, job),
            }
        }
        self.end_job(n, job);
        let at = self.nodes[n].life();
        for back in self.nodes[n].sink.take() {
            match back {
                Back::Job(back) => {
                    let (life, job) = (back.id.life, back.id.job);
                    self.fact(Fact::JobOver { at, life, job });
                    self.nodes[n].follow.push_back(job_over(back));
                }
                Back::Bell(life) => self.nodes[n].inbox.push_back(Inbound::Bell(life)),
            }
        }
    }

    pub(crate) fn cancel_jobs(&mut self, n: usize, life: LifeId) {
        self.nodes[n].cancel(life);
        self.nodes[n].lane.scheduler.cancel(life.0);
        let of = |job: &&JobRef| job.0.borrow().life == life;
        let over: Vec<JobRef> = self.nodes[n].lane.tcp.iter().filter(of).cloned().collect();
        for job in over {
            self.end_job(n, &job);
        }
        self.wake_lane(n);
    }

    /// The session of a link is over: what was under way over a network has failed.
    pub(crate) fn close_route(&mut self, link: usize) {
        let n = self.plan.links[link].sender;
        let of = |job: &&JobRef| job.0.borrow().link == link;
        let over: Vec<JobRef> = self.nodes[n].lane.tcp.iter().filter(of).cloned().collect();
        for job in over {
            if let Some(ticket) = &mut job.0.borrow_mut().ticket {
                ticket.errored("the route is closed");
            }
            self.end_job(n, &job);
        }
        self.wake_lane(n);
    }

    pub(crate) fn wake_lane(&mut self, n: usize) {
        let node = &mut self.nodes[n];
        let idle = node.lane.busy.is_none() && !node.lane.scheduler.is_empty();
        if node.up && idle && !node.lane.due {
            node.lane.due = true;
            let epoch = node.epoch;
            let wait = self.roll(5, n, 1..8) * US;
            self.after(wait, Ev::Lane(n, epoch));
        }
    }

    /// The lane's next turn.
    pub(crate) fn lane(&mut self, n: usize) {
        let lane = &mut self.nodes[n].lane;
        lane.due = false;
        if lane.busy.is_some() {
            return;
        }
        let (job, piece) = match lane.scheduler.next() {
            None => return,
            Some(Turn::Cancelled(job)) => (job, None),
            Some(Turn::Piece(mut turn)) => {
                let job = turn.job().clone();
                let count = (turn.budget() / CELL).max(1) as usize;
                let cells = job.take(count);
                let over = !job.0.borrow().queued;
                let _ = turn.report(cells.len() as u64 * CELL, over);
                (job, Some(cells))
            }
        };
        let fabric = job.0.borrow().fabric;
        match piece {
            None => self.end_job(n, &job),
            Some(cells) if fabric == Fabric::Tcp => self.send(n, job, cells),
            Some(cells) => match self.enter(&job) {
                Some(inside) => {
                    let (epoch, times) = (self.nodes[n].epoch, self.times(job.0.borrow().link));
                    self.nodes[n].lane.busy = Some(Busy { job, inside, cells });
                    let wait = self.roll(6, n, 1..60) * US * times;
                    return self.after(wait, Ev::Land(n, epoch));
                }
                None => self.end_job(n, &job),
            },
        }
        self.wake_lane(n);
    }

    /// The lane has copied its piece.
    pub(crate) fn landed(&mut self, n: usize) {
        let Some(Busy { job, inside, cells }) = self.nodes[n].lane.busy.take() else {
            return;
        };
        self.land(n, &job, inside, &cells);
        if job.remaining() == 0 || job.0.borrow().ticket.is_none() {
            self.end_job(n, &job);
        }
        self.wake_lane(n);
    }

    /// Lets a writer in. A refusal is noted on the ticket.
    fn enter(&mut self, job: &JobRef) -> Option<Inside<'static>> {
        let mut job = job.0.borrow_mut();
        let claim = job.claim;
        match job.gates.enter(job.slot, claim.id.number) {
            Ok(inside) => {
                drop(job);
                self.fact(Fact::Entered { claim });
                Some(inside)
            }
            Err(_) => {
                if let Some(ticket) = &mut job.ticket {
                    ticket.refused();
                }
                None
            }
        }
    }

    /// Copies cells from page to page, and leaves the gate.
    fn land(&mut self, n: usize, job: &JobRef, inside: Inside<'static>, cells: &[Cell]) {
        let mut job = job.0.borrow_mut();
        let (claim, section, lease, link) = (job.claim, job.section, job.lease, job.link);
        let failed = self.copy_fails(link);
        let counts = !failed || self.nodes[n].plant == Some(Plant::FailureCountsAsLanded);
        if !failed && let Some(ticket) = &job.ticket {
            for cell in cells {
                let from = job.layout.cell_offset(cell.layer, cell.page).unwrap();
                self.fact(Fact::Read { lease });
                self.place(&inside, claim, section, *cell, (ticket, from));
            }
        }
        if let Some(ticket) = &mut job.ticket {
            if counts {
                ticket.landed(cells.len() as u64 * CELL);
            } else {
                ticket.errored("the copy failed");
            }
        }
        drop(job);
        drop(inside);
        self.fact(Fact::Left { claim });
    }

    /// One cell into its place.
    fn place(
        &mut self,
        inside: &Inside<'static>,
        claim: ClaimTag,
        section: u16,
        cell: Cell,
        (ticket, from): (&Ticket, u64),
    ) {
        if self.planted(Plant::CellLeftOut, 9) {
            return;
        }
        let wrong = self.planted(Plant::WrongPlace, 9);
        let Some(target) = inside.target().section(section) else {
            return self.note(format!("no section {section} in {claim:?}"));
        };
        let (layout, pages) = (target.memory().layout(), target.pages());
        let place = match wrong {
            true => (cell.place as usize + 1) % pages.len(),
            false => cell.place as usize,
        };
        let page = pages[place];
        let to = layout.cell_offset(cell.layer, page).unwrap();
        inside
            .copy_from(section, to, ticket, from, CELL)
            .expect("a planned copy is within what was lent");
        target.mark(cell.layer, cell.place, 0, CELL);
        let pool = self.pool_of(claim, section);
        self.fact(Fact::Wrote {
            claim,
            section,
            layer: cell.layer,
            place: place as u32,
            pool,
            page,
        });
    }

    /// Lets go of a job: its ticket says what became of it.
    fn end_job(&mut self, n: usize, job: &JobRef) {
        let lane = &mut self.nodes[n].lane;
        lane.tcp.retain(|other| !Rc::ptr_eq(&other.0, &job.0));
        let mut job = job.0.borrow_mut();
        let Some(ticket) = job.ticket.take() else {
            return;
        };
        let facts = ticket.facts();
        let all = job.cells.len() as u64 * CELL;
        if facts.errored.is_some() || facts.refused_pieces > 0 || facts.landed_bytes != all {
            return drop(ticket);
        }
        let mut sum = Checksum::new();
        if job.checksum {
            for cell in &job.cells {
                let offset = job.layout.cell_offset(cell.layer, cell.page).unwrap();
                let section = u32::from(job.section);
                let add = |bytes: &[u8]| sum.add_cell(section, cell.layer, cell.place, bytes);
                ticket.with_source(offset, CELL, add).unwrap();
            }
        }
        ticket.finish_with(if job.checksum { sum.value() } else { 0 });
    }

    /// A data frame goes out, with bytes of its own.
    fn send(&mut self, n: usize, job: JobRef, cells: Vec<Cell>) {
        let (link, lease, receiver) = {
            let job = job.0.borrow();
            let link = job.link;
            (link, job.lease, self.plan.links[link].receiver)
        };
        let early = self.planted(Plant::TicketBeforeRead, 2);
        let mut bytes = Vec::new();
        {
            let mut job = job.0.borrow_mut();
            let layout = Arc::clone(&job.layout);
            let Some(ticket) = &mut job.ticket else {
                return;
            };
            if early {
                ticket.landed(cells.len() as u64 * CELL);
            } else {
                for cell in &cells {
                    let from = layout.cell_offset(cell.layer, cell.page).unwrap();
                    let read = ticket.with_source(from, CELL, |b| bytes.extend_from_slice(b));
                    read.expect("the source is lent");
                }
            }
        }
        if early {
            if job.remaining() == 0 {
                self.end_job(n, &job);
            }
        } else {
            self.fact(Fact::Read { lease });
        }
        let flight = Flight {
            job,
            from: self.nodes[n].life(),
            to: self.nodes[receiver].life(),
            link,
            session: self.links[link].ends[0].id,
            conn: self.links[link].conn,
            cells,
            bytes,
            inside: None,
            landed: false,
        };
        let id = self.next_flight;
        self.next_flight += 1;
        self.flights.insert(id, flight);
        let wait = self.latency(link, 7);
        self.after(wait, Ev::Data(id));
    }

    /// A data frame arrives: its reader enters the gate.
    pub(crate) fn data_arrives(&mut self, id: u64) {
        let Some(flight) = self.flights.get(&id) else {
            return;
        };
        let (link, claim) = (flight.link, flight.job.0.borrow().claim);
        if self.links[link].blocked[1] {
            return self.links[link].held.push(Ev::Data(id));
        }
        let end = &self.links[link].ends[1];
        let there = self.nodes[flight.to.node].life() == flight.to && self.nodes[flight.to.node].up;
        let known = end.session.is_some() && end.id == flight.session;
        if !there || !known || flight.conn != self.links[link].conn {
            // Nobody reads it. Its sender hears of that when the connection is gone.
            return;
        }
        let slot = flight.job.0.borrow().slot;
        let gates = self.nodes[flight.to.node].gates;
        match gates.enter(slot, claim.id.number) {
            Ok(inside) => {
                if inside.target().writer() != end.peer_ref() {
                    return self.note(format!("{claim:?} was made to somebody else"));
                }
                self.flights.get_mut(&id).unwrap().inside = Some(inside);
                self.fact(Fact::Entered { claim });
                let wait = self.roll(8, link, 1..40) * US * self.times(link);
                self.after(wait, Ev::DataRead(id));
            }
            Err(_) => {
                let wait = self.latency(link, 9);
                self.after(wait, Ev::DataAck(id));
            }
        }
    }

    /// Its bytes are read into their pages.
    pub(crate) fn data_read(&mut self, id: u64) {
        let Some(mut flight) = self.flights.remove(&id) else {
            return;
        };
        let Some(inside) = flight.inside.take() else {
            return;
        };
        let link = flight.link;
        let failed = self.copy_fails(link);
        let counts = !failed || self.planted(Plant::FailureCountsAsLanded, 1);
        let (claim, section) = {
            let job = flight.job.0.borrow();
            (job.claim, job.section)
        };
        if !failed {
            if flight.bytes.is_empty() {
                // Only a planted bug reads this late.
                let job = flight.job.0.borrow();
                self.fact(Fact::Read { lease: job.lease });
                for cell in &flight.cells {
                    let mut bytes = [0; CELL as usize];
                    job.source
                        .observe(cell.layer, cell.page, &mut bytes)
                        .unwrap();
                    flight.bytes.extend_from_slice(&bytes);
                }
            }
            let ticket = frame_ticket(&flight.bytes);
            for (i, cell) in flight.cells.iter().enumerate() {
                self.place(&inside, claim, section, *cell, (&ticket, i as u64 * CELL));
            }
        }
        drop(inside);
        self.fact(Fact::Left { claim });
        flight.landed = counts;
        if !counts && let Some(ticket) = &mut flight.job.0.borrow_mut().ticket {
            ticket.errored("the copy failed");
        }
        self.flights.insert(id, flight);
        let wait = self.latency(link, 9);
        self.after(wait, Ev::DataAck(id));
    }

    /// The sender hears what became of a frame.
    pub(crate) fn data_acked(&mut self, id: u64) {
        let Some(flight) = self.flights.get(&id) else {
            return;
        };
        let link = flight.link;
        if self.links[link].blocked[0] {
            return self.links[link].held.push(Ev::DataAck(id));
        }
        let end = &self.links[link].ends[0];
        let there = self.nodes[flight.from.node].life() == flight.from;
        let known = end.session.is_some() && end.id == flight.session;
        if !there || !known || flight.conn != self.links[link].conn {
            return;
        }
        let Some(flight) = self.flights.remove(&id) else {
            return;
        };
        let n = flight.from.node;
        let over = {
            let mut job = flight.job.0.borrow_mut();
            let all = job.cells.len() as u64 * CELL;
            match &mut job.ticket {
                Some(ticket) if flight.landed => {
                    ticket.landed(flight.cells.len() as u64 * CELL);
                    ticket.facts().landed_bytes == all
                }
                Some(ticket) if ticket.facts().errored.is_none() => {
                    ticket.refused();
                    true
                }
                _ => true,
            }
        };
        if over {
            self.end_job(n, &flight.job);
        }
        self.wake_lane(n);
    }

    /// A data connection is gone: what was not acknowledged is sent again on another.
    pub(crate) fn data_reset(&mut self, link: usize) {
        self.links[link].conn += 1;
        let n = self.plan.links[link].sender;
        let life = self.nodes[n].life();
        let of: Vec<u64> = self
            .flights
            .iter()
            .filter(|(_, f)| f.link == link && f.from == life)
            .map(|(id, _)| *id)
            .collect();
        for id in of {
            let (job, cells) = {
                let flight = &self.flights[&id];
                (flight.job.clone(), flight.cells.clone())
            };
            // One that is being read still lands; its acknowledgement is lost.
            if self.flights[&id].inside.is_none() {
                self.flights.remove(&id);
            }
            let (queue, class, life) = {
                let mut job = job.0.borrow_mut();
                let queue = job.ticket.is_some() && !job.queued;
                job.todo.extend(cells);
                job.queued |= queue;
                (queue, job.class, job.life)
            };
            if queue {
                let _ = self.nodes[n].lane.scheduler.push(life.0, class, job);
            }
        }
        self.wake_lane(n);
    }
}

/// The bytes of a frame, to be copied into pages.
fn frame_ticket(bytes: &[u8]) -> Ticket {
    let pages = (bytes.len() as u64 / CELL).max(1) as u32;
    let pool = Pool::owned(PoolLayout {
        name: "frame".into(),
        kind: PoolKind::Kv,
        order: Order::LayersFirst,
        layers: 1,
        pages,
        page_bytes: CELL,
        page_tokens: 1,
    })
    .unwrap();
    let all: Vec<u32> = (0..pages).collect();
    let mut lease = pool.lease_write(&all).unwrap();
    for (i, cell) in bytes.chunks(CELL as usize).enumerate() {
        lease.page_mut(0, i).copy_from_slice(cell);
    }
    let id = JobId {
        life: LifeId(0),
        leg: LegNo(0),
        job: 0,
    };
    let view = lease.into_read().source_view();
    Ticket::new(id, view, CancelFlag::new(), Arc::new(Sink::default()))
}
