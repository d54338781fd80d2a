//! Copies of sending rooms: a job is recorded, then built with its ticket and handed to whoever copies; it comes back
//! by its ticket, whatever became of it. And sums, which are read over what a closed gate protects.

use super::{Inbound, Shard};
use crate::copy::actor::LaneWork;
use crate::copy::device::Ready;
use crate::copy::device_lane::{Device, DeviceJob, Route, TcpEnds};
use crate::copy::job::{Job, Place};
use crate::copy::sum::{SumJob, SumReply, SumSection};
use crate::fabric::local::LocalRoute;
use crate::fabric::shm::Way;
use crate::fabric::tcp::{NewJob, TcpRoute};
use crate::fabric::ucx::{UcxClaim, UcxJob, UcxRoute};
use crate::fabric::{PeerRoute, Reach};
use crate::ids::{ChunkNo, LegNo, LifeId, PeerRef};
use crate::memory::{JobBack, JobId, Lease, Target, Ticket, TicketSink, Withdrawn, Witness};
use crate::peer::message::Body;
use crate::room::event::{JobEnd, JobSpec};
use crate::runtime::queue;
use crate::slice::{Slice, TargetSlice};
use crate::supervisor::attached::{AttachedRole, Gate, RealInput};
use crate::supervisor::custody::Held;
use crate::supervisor::io::Input;
use kvroom_kernels::coverage::Rect;
use kvroom_kernels::plan::cube::Part as CubePart;
use std::sync::Arc;

/// How a job's bytes go.
pub(in crate::supervisor) enum Road {
    /// A lane of this node, or the shard itself, copies them.
    Copy(Way),
    /// A device's lane does.
    Device(Route, Device, DeviceEnds),
    /// Over sockets.
    Tcp(TcpRoute),
    /// Through UCX.
    Ucx(UcxRoute, Option<Arc<UcxClaim>>),
}

/// The ends of a job that a device copies.
pub(in crate::supervisor) struct DeviceEnds {
    /// The device that is written, if one is.
    to: Option<Device>,
    /// When the source's data is there.
    ready: Option<Arc<Ready>>,
}

impl Shard {
    pub(super) fn post(&mut self, life: LifeId, leg: LegNo, job: u32, spec: JobSpec) {
        let all = self.lanes.len().max(1);
        let next = self.next_lane % all;
        self.next_lane = self.next_lane.wrapping_add(1);
        let held = match &spec {
            JobSpec::Pages { chunk, .. } => Held::Chunk(*chunk),
            JobSpec::Aux => Held::Aux,
        };
        let id = JobId {
            life,
            leg,
            job: job_code(job, held),
        };
        let built = self.build(id, held, &spec);
        let only = built.as_ref().and_then(|(_, job, _)| job.lane);
        let lane = only.map_or(next, usize::from);
        self.record_job(id, job, lane, built.as_ref());
        match (built, self.lanes.get(next)) {
            (Some((Road::Copy(way), job, true)), _) => {
                let meter = job.meter;
                let job = Job::over(job.ticket, way, job.layout, job.place, job.checksum);
                let job = job.metered(meter);
                if let Some(back) = self.small.copy(job, &self.node.stats) {
                    let over = self.job_over(back);
                    self.follow_up.push_back(over);
                }
            }
            // Bounded by `Limits::jobs_per_lane`: a slot is taken before a chunk is pushed, and no lane
            // gets more than one part of it.
            (Some((Road::Copy(way), job, _)), Some(_)) => {
                let (class, meter) = (job.class, job.meter);
                let job = Job::over(job.ticket, way, job.layout, job.place, job.checksum);
                let job = job.metered(meter);
                let most = if only.is_some() { 1 } else { all };
                for (i, part) in job.split(most).into_iter().enumerate() {
                    let at = (lane + i) % all;
                    let part = match self.node.stats.lanes.get(at) {
                        Some(queue) => part.queued(queue::Place::take(queue)),
                        None => part,
                    };
                    self.to_lane(at, LaneWork::Copy(class, Box::new(part)));
                }
            }
            (Some((Road::Device(route, device, ends), job, _)), _) => {
                let class = job.class;
                let job = DeviceJob {
                    ticket: job.ticket,
                    route,
                    layout: job.layout,
                    place: job.place,
                    to: ends.to,
                    ready: ends.ready,
                    checksum: job.checksum,
                    meter: job.meter,
                };
                device.post(class, job);
            }
            (Some((Road::Tcp(route), job, _)), _) => route.post(job),
            (Some((Road::Ucx(route, claim), mut job, _)), _) => {
                job.queued = Some(queue::Place::take(&self.node.stats.ucx));
                route.post(UcxJob::new(job, claim));
            }
            _ => {
                // Nothing was posted; the debt that was recorded for it is paid by a ticket that
                // never went anywhere.
                let end = JobEnd::Errored("the job could not be built".into());
                self.job_failed_to_start(id, held, end);
            }
        }
    }

    /// The job, its way, and whether it is copied here and now.
    pub(super) fn build(
        &mut self,
        id: JobId,
        held: Held,
        spec: &JobSpec,
    ) -> Option<(Road, NewJob, bool)> {
        let l = self.core.life_mut(id.life)?;
        let record = l.legs().get(usize::from(id.leg.0))?;
        let (peer, gate, checksum) = (record.peer, record.gate, record.checksum);
        let number = record.claim?.id.number;
        let class = l.attached().class;
        let AttachedRole::Sender { cancel, lane, .. } = &l.attached().role else {
            return None;
        };
        let (cancel, lane) = (cancel.clone(), *lane);
        let lent = l.custody().lease(held)?;
        let ready = lent.ready.clone();
        let Lease::Read(lease) = &lent.lease else {
            return None;
        };
        let from = lease.pool().device().cloned();
        let (view, pages) = (lease.source_view(), lease.arc_pages());
        let layout = Arc::clone(lease.pool().layout());
        let place = match spec {
            JobSpec::Pages {
                section,
                layers,
                tokens,
                from,
                to,
                ..
            } => Place {
                section: *section,
                layers: layers.clone(),
                pages,
                from: from.start as usize..from.end as usize,
                to: to.start as usize..to.end as usize,
                slice: match self.slices.get(&(peer, number)) {
                    None => None,
                    Some(slices) => {
                        let of = slices.get(usize::from(*section))?.as_ref()?;
                        let tokens = tokens.clone();
                        Some(Arc::new(Slice {
                            tokens,
                            ..of.clone()
                        }))
                    }
                },
            },
            JobSpec::Aux => Place {
                section: Rect::AUX,
                layers: 0..layout.layers,
                pages,
                from: 0..1,
                to: 0..1,
                slice: None,
            },
        };
        let link = self.peers.get(&peer)?;
        let meter = Some(Arc::clone(&link.meter));
        let road = match link.route.as_ref()? {
            PeerRoute::Local(gates) => {
                Road::Copy(Way::Local(LocalRoute::new(Arc::clone(gates), gate, number)))
            }
            PeerRoute::Shm(_) => match self.places.get(&(peer, number))? {
                Reach::Shm(claim) => Road::Copy(Way::Shm(Arc::clone(claim))),
                Reach::Ucx(_) => return None,
            },
            PeerRoute::Tcp(route) => Road::Tcp(route.clone()),
            PeerRoute::Ucx(route) if route.gated_here() => Road::Ucx(route.clone(), None),
            PeerRoute::Ucx(route) => match self.places.get(&(peer, number))? {
                Reach::Ucx(claim) => Road::Ucx(route.clone(), Some(Arc::clone(claim))),
                Reach::Shm(_) => return None,
            },
        };
        let tcp = TcpEnds {
            class,
            claim: number,
            gate,
            lane,
        };
        let road = on_device(road, place.section, tcp, from, ready);
        if let (Road::Device(_, device, _), AttachedRole::Sender { devices, .. }) =
            (&road, &mut l.attached_mut().role)
            && !devices.iter().any(|d| d.same(device))
        {
            devices.push(device.clone());
        }
        let bytes = place.bytes(&layout);
        l.attached_mut().moved_on(id.leg).posted += bytes;
        let copies = matches!(road, Road::Copy(_)) && lane.is_none();
        let here = copies && self.small.takes(bytes, checksum);
        let sink = if here {
            self.small.sink()
        } else {
            if let AttachedRole::Sender { posted, .. } = &mut l.attached_mut().role {
                *posted = true;
            }
            Arc::clone(&self.sink) as Arc<dyn TicketSink>
        };
        let job = NewJob {
            ticket: Ticket::new(id, view, cancel, sink),
            class,
            layout,
            place,
            claim: number,
            gate,
            checksum,
            meter,
            queued: None,
            lane,
        };
        Some((road, job, here))
    }

    pub(super) fn job_failed_to_start(&mut self, id: JobId, held: Held, end: JobEnd) {
        let (code, _) = job_parts(id.job);
        let witness = Witness::NeverSubmitted(Withdrawn::unnumbered());
        let input = Input::JobOver {
            life: id.life,
            leg: id.leg,
            job: code,
            carried: held,
            rest: 0,
            end,
            witness,
        };
        self.follow_up.push_back(input);
    }

    pub(super) fn job_over(&mut self, back: JobBack) -> RealInput {
        let JobBack {
            id,
            facts,
            finished,
            witness,
        } = back;
        let (job, held) = job_parts(id.job);
        let end = if let Some(text) = facts.errored {
            JobEnd::Errored(text)
        } else if facts.refused_pieces > 0 {
            self.node.stats.add(&self.node.stats.refused_jobs);
            JobEnd::Refused
        } else if finished {
            JobEnd::Landed {
                checksum: facts.checksum,
            }
        } else {
            JobEnd::Cancelled
        };
        if let Some(attached) = self.core.attached(id.life) {
            attached.moved_on(id.leg).written += facts.landed_bytes;
        }
        let rest = facts.landed_bytes - facts.told_bytes.min(facts.landed_bytes);
        Input::JobOver {
            life: id.life,
            leg: id.leg,
            job,
            carried: held,
            rest,
            end,
            witness: Witness::Job(witness),
        }
    }

    pub(super) fn cancel_jobs(&mut self, life: LifeId) {
        let Some(l) = self.core.life(life) else {
            return;
        };
        let (mut routes, mut far): (Vec<TcpRoute>, Vec<UcxRoute>) = Default::default();
        for leg in l.legs() {
            let route = self.peers.get(&leg.peer).and_then(|p| p.route.as_ref());
            match route {
                Some(PeerRoute::Tcp(route)) => routes.push(route.clone()),
                Some(PeerRoute::Ucx(route)) => far.push(route.clone()),
                _ => {}
            }
        }
        if let AttachedRole::Sender {
            cancel,
            posted,
            devices,
            ..
        } = &l.attached().role
        {
            cancel.cancel();
            for device in devices {
                device.cancel(life);
            }
            if *posted {
                for lane in 0..self.lanes.len() {
                    self.to_lane(lane, LaneWork::Cancel(life));
                }
                for route in routes {
                    route.cancel(life);
                }
                for route in far {
                    route.cancel(life);
                }
            }
        }
    }

    /// What a peer of another process says that it wrote counts as far as this node's own lanes
    /// have marked it.
    pub(super) fn with_own_account(&self, peer: PeerRef, body: Body) -> Body {
        let route = self.peers.get(&peer).and_then(|p| p.route.as_ref());
        if !route.is_some_and(PeerRoute::marks_here) {
            return body;
        }
        match body {
            Body::Complete {
                tag,
                total,
                coverage,
                checksum,
            } => {
                let marked = self
                    .core
                    .offered(peer, tag.id.number)
                    .and_then(|(life, leg)| match &self.core.life(life)?.attached().role {
                        AttachedRole::Receiver { gates, .. } => gates.get(usize::from(leg.0)),
                        AttachedRole::Sender { .. } => None,
                    })
                    .and_then(|gate| match gate {
                        Gate::Open(open) => Some(open.target()),
                        _ => None,
                    })
                    .filter(|target| !target.has_all(&coverage))
                    .map(Target::marked);
                Body::Complete {
                    tag,
                    total,
                    coverage: marked.unwrap_or(coverage),
                    checksum,
                }
            }
            body => body,
        }
    }

    pub(super) fn sum(&mut self, life: LifeId) {
        let Some(l) = self.core.life_mut(life) else {
            return;
        };
        let rows_of = match &l.attached().role {
            AttachedRole::Receiver { rows_of, .. } => rows_of.clone(),
            AttachedRole::Sender { .. } => None,
        };
        let mut sections = Vec::new();
        for (held, lent) in l.leases_mut() {
            let Lease::Write(lease) = &mut lent.lease else {
                continue;
            };
            let section = match held {
                Held::Section(i) => i,
                Held::Aux => Rect::AUX,
                Held::Chunk(_) => continue,
            };
            let slice = match (&rows_of, lease.pool().content(), held) {
                (Some(tokens), Some(content), Held::Section(_)) => Some(TargetSlice {
                    part: CubePart::common(content, content),
                    dst: Arc::clone(content),
                    tokens: tokens.clone(),
                }),
                _ => None,
            };
            let (view, pages) = (lease.sum_view(), lease.arc_pages());
            sections.push(SumSection {
                section,
                view,
                pages,
                slice,
            });
        }
        let inbox = self.inbox.clone();
        let reply = SumReply::new(move |sum| {
            // A sum that was lost with its lane cannot agree with anything.
            let sum = sum.unwrap_or(0x6e6f_2073_756d_2121);
            let _ = inbox.put(Inbound::Core(Input::Summed { life, sum }));
        });
        let lane = life.0 as usize % self.lanes.len().max(1);
        self.to_lane(lane, LaneWork::Sum(SumJob::new(sections, reply)));
    }
}

/// The road of a job whose source or destination is on a device: that device's lane. The lane of the
/// source has it if both are on one.
fn on_device(
    road: Road,
    section: u16,
    tcp: TcpEnds,
    from: Option<Device>,
    ready: Option<Arc<Ready>>,
) -> Road {
    match road {
        Road::Copy(way) => {
            let to = match &way {
                Way::Local(route) => route.device(section),
                Way::Shm(_) => None,
            };
            match from.or_else(|| to.clone()) {
                Some(device) => Road::Device(Route::Pages(way), device, DeviceEnds { to, ready }),
                None => Road::Copy(way),
            }
        }
        Road::Tcp(route) => match from {
            Some(device) => {
                let ends = DeviceEnds { to: None, ready };
                Road::Device(Route::Tcp(route, tcp), device, ends)
            }
            None => Road::Tcp(route),
        },
        road @ (Road::Device(..) | Road::Ucx(..)) => road,
    }
}

/// A job's number and what it carries, in the one word that its ticket keeps.
pub(super) fn job_code(job: u32, held: Held) -> u64 {
    let held = match held {
        Held::Chunk(ChunkNo(no)) => u64::from(no),
        Held::Aux | Held::Section(_) => u64::from(u32::MAX),
    };
    u64::from(job) | held << 32
}

pub(super) fn job_parts(code: u64) -> (u32, Held) {
    let held = match (code >> 32) as u32 {
        u32::MAX => Held::Aux,
        no => Held::Chunk(ChunkNo(no)),
    };
    (code as u32, held)
}
