//! What is known of a life's legs, from its entries: so also of one whose start is not recorded.

use super::Missing;
use crate::StateName;
use crate::record::{Begun, ClaimNo, Entry, GateIs, LegNo, Road, Told, What};
use kvroom_actors::room::Role;
use std::collections::BTreeMap;
use std::time::Duration;

/// See the module.
#[derive(Debug)]
pub(super) struct Facts {
    role: Role,
    /// When the last thing happened to the room.
    last: Duration,
    receivers: u16,
    finished: bool,
    summing: bool,
    legs: BTreeMap<LegNo, Leg>,
    returned: bool,
}

#[derive(Debug, Default)]
struct Leg {
    peer: Option<String>,
    claim: Option<ClaimNo>,
    /// When the last thing happened on it.
    last: Duration,
    asked: bool,
    open: bool,
    not_opened: bool,
    bound: bool,
    lost: bool,
    complete: bool,
    accepted: bool,
    moved: (u64, u64),
    gate: Option<(GateIs, Duration)>,
    jobs: BTreeMap<u32, (Road, u64, Duration)>,
}

impl Facts {
    pub(super) fn new(role: Role) -> Self {
        Facts {
            role,
            last: Duration::ZERO,
            receivers: 1,
            finished: false,
            summing: false,
            legs: BTreeMap::new(),
            returned: false,
        }
    }

    pub(super) fn returned(&self) -> bool {
        self.returned
    }

    fn leg(&mut self, leg: LegNo, at: Duration) -> &mut Leg {
        let leg = self.legs.entry(leg).or_default();
        leg.last = at;
        leg
    }

    pub(super) fn note(&mut self, entry: &Entry) {
        let (at, peer) = (entry.at, entry.peer.as_deref().map(str::to_owned));
        match &entry.what {
            What::Room(step) => {
                self.last = at;
                self.told(&step.told, at, peer);
            }
            What::Leg { leg, claim, .. } => {
                let leg = self.leg(*leg, at);
                leg.claim = Some(*claim);
                leg.peer = peer;
            }
            What::Gate { leg, claim, is, .. } => {
                let leg = self.leg(*leg, at);
                leg.claim = Some(*claim);
                leg.gate = Some((*is, at));
            }
            What::Job {
                leg,
                job,
                road,
                bytes,
                ..
            } => {
                let jobs = &mut self.leg(*leg, at).jobs;
                jobs.insert(*job, (*road, *bytes, at));
            }
            What::Lease { .. } => self.returned = true,
            _ => {}
        }
    }

    fn told(&mut self, told: &Told, at: Duration, peer: Option<String>) {
        match told {
            Told::Start(Begun::Sender { receivers, .. }) => self.receivers = *receivers,
            Told::Start(Begun::Receiver { .. }) => {
                let leg = self.leg(LegNo(0), at);
                (leg.asked, leg.peer) = (true, peer);
            }
            Told::Leg { leg, .. } => {
                let leg = self.leg(*leg, at);
                (leg.asked, leg.peer) = (true, peer);
            }
            Told::ClaimOpened(leg) => self.leg(*leg, at).open = true,
            Told::ClaimNotOpened { leg, .. } => self.leg(*leg, at).not_opened = true,
            Told::Bound(leg) | Told::Bind { leg, .. } => self.leg(*leg, at).bound = true,
            Told::Progress {
                leg,
                posted,
                written,
            } => self.leg(*leg, at).moved = (*posted, *written),
            Told::Complete { leg, .. } => self.leg(*leg, at).complete = true,
            Told::Accepted(leg) => self.leg(*leg, at).accepted = true,
            Told::LegLost { leg, .. } => self.leg(*leg, at).lost = true,
            Told::JobOver { leg, job, .. } => {
                self.leg(*leg, at).jobs.remove(job);
            }
            Told::Finish { .. } => self.finished = true,
            Told::Quiet => self.summing = true,
            Told::Summed(_) => self.summing = false,
            _ => {}
        }
    }

    /// What is not proven to be out, in words.
    pub(super) fn held(&self) -> Vec<String> {
        let mut held = Vec::new();
        for (LegNo(no), leg) in &self.legs {
            let peer = leg.name();
            if let Some((is, since)) = leg.gate {
                let claim = leg.claim.map_or(0, |claim| claim.0);
                match is {
                    GateIs::Open => held.push(format!(
                        "leg {no}: the gate of claim {claim} is open to {peer} since {since:?}"
                    )),
                    GateIs::Occupied => held.push(format!(
                        "leg {no}: {peer} is inside the closed gate of claim {claim} since {since:?}"
                    )),
                    GateIs::Closed | GateIs::WriterDead | GateIs::Drained | GateIs::Fenced => {}
                }
            } else if leg.asked && !leg.not_opened {
                held.push(format!(
                    "leg {no}: the session with {peer} has not said whether its claim was opened"
                ));
            }
            for (job, (road, bytes, since)) in &leg.jobs {
                let road = match road {
                    Road::Here => "the shard".to_owned(),
                    Road::Lane(lane) => format!("lane {lane}"),
                    Road::Tcp => format!("the tcp route to {peer}"),
                    Road::Ucx => format!("the ucx route to {peer}"),
                    Road::Nowhere => "nobody".to_owned(),
                    Road::Device(n) => format!("the copy actor of device {n}"),
                };
                held.push(format!(
                    "leg {no}: job {job} ({bytes} bytes) is with {road} since {since:?}"
                ));
            }
        }
        held
    }

    /// What did not come.
    pub(super) fn missing(&self, state: StateName) -> Vec<Missing> {
        let mut missing = Vec::new();
        for (no, leg) in &self.legs {
            let (event, from) = match self.role {
                _ if state == StateName::Draining => match leg.owes() {
                    Some(owes) => owes,
                    None => continue,
                },
                Role::Receiver => match leg.receiver() {
                    Some(missing) => missing,
                    None => continue,
                },
                Role::Sender => match leg.sender(self.finished) {
                    Some(missing) => missing,
                    None => continue,
                },
            };
            missing.push(Missing {
                event,
                leg: Some(no.0),
                since: leg.last,
                from,
            });
        }
        let whole = |event, from: String| Missing {
            event,
            leg: None,
            since: self.last,
            from,
        };
        let bound = self.legs.len();
        if state != StateName::Draining && self.role == Role::Sender {
            if bound < usize::from(self.receivers) {
                let from = format!(
                    "{bound} of {} receivers have claimed: no claim for this key came from the others",
                    self.receivers
                );
                missing.insert(0, whole("Bind", from));
            }
            if !self.finished {
                let from = "the caller has not said that there is no more".to_owned();
                missing.insert(0, whole("Finish", from));
            }
        }
        if missing.is_empty() {
            missing.push(match self.summing {
                true => whole("Summed", "a lane reads the pages for their sum".to_owned()),
                false => whole(
                    "Quiet",
                    "everything owed is back; the shard was to say so".to_owned(),
                ),
            });
        }
        missing
    }
}

impl Leg {
    fn name(&self) -> String {
        let peer = self.peer.as_deref();
        peer.map_or("its peer".to_owned(), |name| format!("{name:?}"))
    }

    /// A witness that a draining room waits for.
    fn owes(&self) -> Option<(&'static str, String)> {
        let peer = self.name();
        if !self.jobs.is_empty() {
            let count = self.jobs.len();
            return Some(("JobOver", format!("{count} jobs have not come back")));
        }
        match self.gate {
            Some((GateIs::Occupied, _)) => Some((
                "Quiet",
                format!("{peer} has not left the gate, and is not proven dead"),
            )),
            Some((GateIs::Open, _)) => Some(("Quiet", "its gate was not closed".to_owned())),
            None if self.asked && !self.not_opened => Some((
                "ClaimOpened",
                format!("the session with {peer} has not answered"),
            )),
            _ => None,
        }
    }

    fn receiver(&self) -> Option<(&'static str, String)> {
        let peer = self.name();
        if self.complete {
            return match self.gate {
                Some((GateIs::Occupied, _)) => {
                    Some(("Quiet", format!("{peer} has not left the gate")))
                }
                _ => None,
            };
        }
        Some(if self.bound {
            let (posted, written) = self.moved;
            let from = format!("{peer} has posted {posted} bytes and written {written}");
            ("Complete", from)
        } else if self.open {
            let from = format!("{peer} has the claim: no send for this key there, or no answer");
            ("Bound", from)
        } else {
            let from = format!("the session with {peer} has no number for it: no credit, or down");
            ("ClaimOpened", from)
        })
    }

    fn sender(&self, finished: bool) -> Option<(&'static str, String)> {
        if self.accepted || self.lost {
            return None;
        }
        if let Some((job, (road, bytes, _))) = self.jobs.first_key_value() {
            let from = format!("job {job} of {bytes} bytes went to {road:?}");
            return Some(("JobOver", from));
        }
        finished.then(|| {
            let from = format!("{} has not said that it has all of it", self.name());
            ("Accepted", from)
        })
    }
}
