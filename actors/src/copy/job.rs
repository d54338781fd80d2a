//! A copy job as a lane holds it.

use super::pieces::Pieces;
use super::schedule::Work;
use super::split;
use crate::fabric::Fabric;
use crate::fabric::Fact;
use crate::fabric::local::LocalRoute;
use crate::fabric::shm::Way;
use crate::memory::Ticket;
use crate::runtime::meter::{Meter, time_some};
use crate::runtime::queue;
use crate::slice::Slice;
use kvroom_kernels::checksum::Checksum;
use kvroom_kernels::layout::PoolLayout;
use kvroom_kernels::plan::cube::{PageList, Rows};
use std::ops::Range;
use std::sync::Arc;

/// Which pages go where.
#[derive(Clone, Debug)]
pub struct Place {
    /// Section of the claim.
    pub section: u16,
    /// Layers.
    pub layers: Range<u32>,
    /// All source pages of the lease.
    pub pages: Arc<[u32]>,
    /// Which of them.
    pub from: Range<usize>,
    /// Places in the claim's list; as many, unless there is a slice.
    pub to: Range<usize>,
    /// Which bytes of the cells, if not all of them.
    pub slice: Option<Arc<Slice>>,
}

impl Place {
    /// Bytes that are carried, of cells of this layout unless there is a slice; `u64::MAX` if they are
    /// more.
    pub fn bytes(&self, layout: &PoolLayout) -> u64 {
        if let Some(slice) = &self.slice {
            return slice.bytes(self.layers.clone());
        }
        let cells = self.from.len() as u64 * self.layers.len() as u64;
        cells.saturating_mul(layout.page_bytes)
    }

    /// Bytes that are copied at once or not at all, if they can be: a lane that has less left of its turn
    /// leaves them for the next one.
    fn grain(&self, layout: &PoolLayout) -> u64 {
        let Some(slice) = &self.slice else {
            return layout.page_bytes;
        };
        let planes = slice.dst.planes.iter();
        let rows = planes.filter_map(|plane| plane.row_bytes(slice.dst.granule));
        rows.max().unwrap_or(1)
    }

    /// The pages of the source.
    pub(crate) fn source(&self) -> PageList {
        PageList {
            list: Arc::clone(&self.pages),
            range: self.from.clone(),
        }
    }
}

/// Copies pages of one chunk (or an aux row) to one claim.
pub struct Job {
    ticket: Ticket,
    route: Way,
    layout: Arc<PoolLayout>,
    place: Place,
    bytes: u64,
    state: State,
    sum: Option<SourceSum>,
    /// Landed bytes that were told of already.
    told: u64,
    /// The peer's.
    meter: Option<Arc<Meter>>,
    /// Its place on a lane.
    queued: Option<queue::Place>,
}

/// The sum over a job's cells, or over its rows if it carries parts of cells, from its source, in steps.
#[derive(Debug)]
pub(crate) struct SourceSum {
    sum: Checksum,
    /// Cells that are in it.
    cells: u64,
    /// Rows that are not.
    rows: Option<Box<Rows>>,
    /// Bytes that are in it.
    bytes: u64,
}

impl SourceSum {
    pub(crate) fn new() -> Self {
        SourceSum {
            sum: Checksum::new(),
            cells: 0,
            rows: None,
            bytes: 0,
        }
    }

    /// Adds the rows of about `budget` bytes.
    fn step_rows(
        &mut self,
        ticket: &mut Ticket,
        place: &Place,
        slice: &Slice,
        budget: u64,
    ) -> Result<Step, String> {
        let rows = match &mut self.rows {
            Some(rows) => rows,
            none => {
                let rows = slice.rows(place.layers.clone(), place.source());
                none.insert(Box::new(rows.map_err(|error| error.to_string())?))
            }
        };
        let (section, mut read) = (u32::from(place.section), 0);
        while read < budget {
            let Some(row) = rows.next() else {
                break;
            };
            let sum = &mut self.sum;
            ticket
                .with_source(row.offset, row.bytes, |b| sum.add_row(section, row.name, b))
                .map_err(|error| error.to_string())?;
            read += row.bytes;
            self.bytes += row.bytes;
        }
        // In the turn that reads the last row: one with nothing left would have a budget of no bytes.
        Ok(Step {
            bytes: read,
            over: rows.is_done(),
        })
    }

    /// Adds the cells of about `budget` bytes. A cell that cannot be read is an error of the ticket.
    pub(crate) fn step(
        &mut self,
        ticket: &mut Ticket,
        layout: &PoolLayout,
        place: &Place,
        budget: u64,
    ) -> Step {
        if let Some(slice) = &place.slice {
            return match self.step_rows(ticket, place, slice, budget) {
                Ok(step) => step,
                Err(why) => {
                    ticket.errored(why);
                    Step {
                        bytes: 0,
                        over: true,
                    }
                }
            };
        }
        let pages = place.from.len() as u64;
        let cells = pages * place.layers.len() as u64;
        let mut read = 0;
        while self.cells < cells && read < budget {
            let layer = place.layers.start + (self.cells / pages) as u32;
            let index = (self.cells % pages) as usize;
            let source = place.pages.get(place.from.start + index).copied();
            let offset = source.and_then(|page| layout.cell_offset(layer, page));
            let page = (place.to.start + index) as u32;
            let sum = &mut self.sum;
            let summed = ticket.with_source(offset.unwrap_or(u64::MAX), layout.page_bytes, |b| {
                sum.add_cell(u32::from(place.section), layer, page, b);
            });
            if let Err(error) = summed {
                ticket.errored(error.to_string());
                return Step {
                    bytes: read,
                    over: true,
                };
            }
            read += layout.page_bytes;
            self.bytes += layout.page_bytes;
            self.cells += 1;
        }
        Step {
            bytes: read,
            over: self.cells == cells,
        }
    }

    /// The sum.
    pub(crate) fn value(self) -> u64 {
        self.sum.value()
    }
}

enum State {
    New,
    Copying(Pieces),
    /// All copied; the source is being summed.
    Summing,
}

/// What a turn did.
pub struct Step {
    /// Bytes copied or read.
    pub bytes: u64,
    /// Whether the job is over.
    pub over: bool,
}

/// Landed bytes between two reports of progress.
const TELL_EVERY: u64 = 8 << 20;

impl Job {
    /// A job of `bytes` bytes from pages of a pool with this layout.
    pub fn new(
        ticket: Ticket,
        route: LocalRoute,
        layout: Arc<PoolLayout>,
        place: Place,
        checksum: bool,
    ) -> Self {
        Self::over(ticket, Way::Local(route), layout, place, checksum)
    }

    /// The same, whichever way.
    pub(crate) fn over(
        ticket: Ticket,
        route: Way,
        layout: Arc<PoolLayout>,
        place: Place,
        checksum: bool,
    ) -> Self {
        let bytes = place.bytes(&layout);
        Job {
            ticket,
            route,
            layout,
            place,
            bytes,
            state: State::New,
            sum: checksum.then(SourceSum::new),
            told: 0,
            meter: None,
            queued: None,
        }
    }

    /// Counts what lands.
    pub(crate) fn metered(mut self, meter: Option<Arc<Meter>>) -> Self {
        self.meter = meter;
        self
    }

    /// In a lane's queue from now on, until it is dropped.
    pub(crate) fn queued(mut self, place: queue::Place) -> Self {
        self.queued = Some(place);
        self
    }

    /// Cuts a job that has not begun into at most `most` parts (at least 1) of about equal size, each
    /// for a lane of its own. It is over when all of them are. A small one stays whole.
    pub(crate) fn split(self, most: usize) -> Vec<Job> {
        let (order, cell) = (self.layout.order, self.layout.page_bytes);
        let places = match &self.state {
            State::New if most > 1 => split::places(&self.place, order, cell, most),
            _ => return vec![self],
        };
        if places.len() == 1 {
            return vec![self];
        }
        let Job {
            ticket,
            route,
            layout,
            place,
            sum,
            meter,
            ..
        } = self;
        let job = |ticket, place| {
            let (route, layout) = (route.clone(), Arc::clone(&layout));
            Job::over(ticket, route, layout, place, sum.is_some()).metered(meter.clone())
        };
        match ticket.split(places.len()) {
            Ok(tickets) => {
                let parts = tickets.into_iter().zip(places);
                parts.map(|(ticket, place)| job(ticket, place)).collect()
            }
            Err(ticket) => vec![job(*ticket, place)],
        }
    }

    /// The job's ticket.
    pub fn ticket(&self) -> &Ticket {
        &self.ticket
    }

    /// Copies at most `budget` bytes.
    pub fn step(&mut self, budget: u64) -> Step {
        let plan = match &mut self.state {
            State::New => match self.plan() {
                Ok(plan) => {
                    if let Some(place) = &mut self.queued {
                        place.begins();
                    }
                    self.state = State::Copying(plan);
                    return self.step(budget);
                }
                Err(fact) => return self.fail(fact, 0),
            },
            State::Copying(plan) => plan,
            State::Summing => return self.sum(budget),
        };
        let cell = self.place.grain(&self.layout);
        let (section, budget) = (self.place.section, budget.max(1));
        let began = time_some();
        let (fabric, (bytes, end)) = match &self.route {
            Way::Local(route) => {
                let wrote = route.write(section, plan, cell, budget, &self.ticket);
                (Fabric::Local, wrote)
            }
            Way::Shm(claim) => {
                let wrote = claim.write(section, plan, cell, budget, &self.ticket);
                (Fabric::Shm, wrote)
            }
        };
        if bytes > 0 {
            self.ticket.landed(bytes);
            if let Some(meter) = &self.meter {
                meter.sent(fabric, bytes);
                if let Some(began) = began {
                    meter.piece(fabric, began.elapsed());
                }
            }
        }
        match end {
            Some(fact) => self.fail(fact, bytes),
            None if plan.remaining_bytes() == 0 => self.copied(bytes),
            None => Step { bytes, over: false },
        }
    }

    fn plan(&self) -> Result<Pieces, Fact> {
        match &self.route {
            Way::Local(route) => route.plan(&self.layout, &self.place),
            Way::Shm(claim) => claim.plan(&self.layout, &self.place),
        }
    }

    /// All pieces have landed.
    fn copied(&mut self, bytes: u64) -> Step {
        if self.sum.is_none() {
            return Step { bytes, over: true };
        }
        self.state = State::Summing;
        Step { bytes, over: false }
    }

    /// Sums some cells of the source.
    fn sum(&mut self, budget: u64) -> Step {
        match &mut self.sum {
            Some(sum) => sum.step(&mut self.ticket, &self.layout, &self.place, budget),
            None => Step {
                bytes: 0,
                over: true,
            },
        }
    }

    fn fail(&mut self, fact: Fact, bytes: u64) -> Step {
        match fact {
            Fact::Refused => self.ticket.refused(),
            Fact::Errored(text) => self.ticket.errored(text),
        }
        Step { bytes, over: true }
    }

    /// Tells the room of bytes that landed since the last time, if that is enough to tell.
    pub fn tell_news(&mut self) {
        let landed = self.ticket.facts().landed_bytes;
        let fresh = landed - self.told;
        if fresh >= TELL_EVERY {
            self.told = landed;
            self.ticket.tell_moved(fresh);
        }
    }

    /// The wrong write that this job can make: of its first cell, later.
    #[cfg(feature = "plant")]
    pub(crate) fn wrong(&self, read_again: bool) -> Option<super::plant::Due> {
        use crate::memory::plant::Wrong;
        let (to, page) = match &self.route {
            Way::Local(route) => {
                let (pool, page) = route.destination(&self.place)?;
                (Wrong::Here(pool), page)
            }
            Way::Shm(claim) => {
                let (pool, page) = claim.destination(&self.place)?;
                (Wrong::There(pool), page)
            }
        };
        let layer = self.place.layers.start;
        let from = if read_again {
            let source = *self.place.pages.get(self.place.from.start)?;
            Some((
                crate::memory::plant::source_pool(&self.ticket)?,
                layer,
                source,
            ))
        } else {
            None
        };
        Some(super::plant::Due {
            from,
            to,
            layer,
            page,
        })
    }

    /// The job panicked; nothing more is tried.
    pub(crate) fn broke(&mut self) -> Step {
        tracing::error!(job = ?self.ticket.id(), "a copy job panicked");
        self.ticket
            .errored("the copy panicked; this is a defect of kvroom, the log has its message");
        Step {
            bytes: 0,
            over: true,
        }
    }

    /// The lane does not take the job.
    pub fn refuse(mut self, why: &str) {
        self.ticket.errored(why);
    }

    /// Lets go of the job: its ticket says what became of it.
    pub fn end(self) {
        let facts = self.ticket.facts();
        if facts.errored.is_none() && facts.refused_pieces == 0 && facts.landed_bytes == self.bytes
        {
            self.ticket
                .finish_with(self.sum.map_or(0, SourceSum::value));
        }
    }
}

impl Work for Job {
    fn remaining(&self) -> u64 {
        match &self.state {
            State::New => self.bytes,
            State::Copying(plan) => plan.remaining_bytes(),
            State::Summing => {
                (self.sum.as_ref()).map_or(0, |sum| self.bytes.saturating_sub(sum.bytes))
            }
        }
    }

    fn is_cancelled(&self) -> bool {
        self.ticket.is_cancelled()
    }
}
