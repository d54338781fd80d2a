//! Events again, out of what is recorded of them.

use crate::record::{Begun, ChunkTold, Entry, Step, Told};
use kvroom_actors::ids::{ChunkNo, PoolId};
use kvroom_actors::room::event::{Chunk, Effect, Event, JobSpec, Say};
use kvroom_actors::room::receiver::{LegPlan, Receiver, Terms};
use kvroom_actors::room::sender::Sender;
use kvroom_actors::room::{Quiescence, Room};
use kvroom_actors::supervisor::custody::Custody;
use kvroom_kernels::coverage::Coverage;

/// Stands in for a witness: in a replay nothing is lent.
pub(super) type W = ();

/// Most pages of a chunk that are made up.
const MOST_PAGES: u32 = 1 << 22;

/// Why there is nothing to tell the machine.
pub(super) enum NoSuchEvent {
    /// The machine begins with it.
    Begun,
    /// The actor panicked.
    Panicked,
    /// It would take too much memory.
    TooLarge(String),
}

/// The machine of a room whose start is recorded.
pub(super) fn start(steps: &[(&Entry, &Step)]) -> Option<Room<W>> {
    let (_, first) = steps.first()?;
    let mut out = Vec::new();
    let Told::Start(begun) = &first.told else {
        return None;
    };
    Some(match begun {
        Begun::Sender { receivers, .. } => Room::Sender(Sender::register(*receivers, &mut out)),
        Begun::Receiver {
            legs,
            cells,
            total,
            checksum,
            ..
        } => {
            let mut plans = vec![LegPlan {
                wanted: self::cells(*cells),
            }];
            for (_, step) in steps.iter().skip(1) {
                if let Told::Leg { cells, .. } = &step.told {
                    let wanted = self::cells(*cells);
                    plans.push(LegPlan { wanted });
                }
            }
            plans.truncate(usize::from(*legs));
            if plans.len() != usize::from(*legs) {
                return None;
            }
            let terms = Terms {
                legs: plans,
                total: *total,
                checksum: *checksum,
            };
            Room::Receiver(Receiver::register(terms, &mut out))
        }
    })
}

/// As many cells.
fn cells(count: u64) -> Coverage {
    let mut cells = Coverage::new();
    let width = u64::from(u32::MAX);
    let (rows, rest) = (count / width, count % width);
    // Only the number counts: whole rows, and what is left in one more.
    let rows = u32::try_from(rows).unwrap_or(u32::MAX - 1);
    if rows > 0 {
        let _ = cells.insert(0, 0..rows, 0..u32::MAX);
    }
    if rest > 0 {
        let _ = cells.insert(0, rows..rows + 1, 0..rest as u32);
    }
    cells
}

/// A proof that rests on nothing, for a machine that holds nothing.
fn proof() -> Option<Quiescence<W>> {
    let mut custody: Custody<(), W> = Custody::default();
    custody.seal();
    custody.quiet()
}

fn chunk(told: &ChunkTold) -> Result<Chunk, NoSuchEvent> {
    if told.pages > MOST_PAGES {
        let pages = told.pages;
        return Err(NoSuchEvent::TooLarge(format!(
            "a chunk of {pages} pages is not replayed"
        )));
    }
    let mut pages: Vec<u32> = (0..told.pages)
        .map(|page| told.first.wrapping_add(page))
        .collect();
    if let Some(last) = pages.last_mut() {
        *last = told.last;
    }
    Ok(Chunk {
        no: ChunkNo(told.no),
        pool: PoolId(told.pool),
        tokens: told.tokens.0..told.tokens.1,
        layers: told.layers.0..told.layers.1,
        pages: pages.into(),
        page_tokens: told.page_tokens,
        pool_layers: told.pool_layers,
    })
}

pub(super) fn event(told: &Told) -> Result<Event<W>, NoSuchEvent> {
    Ok(match told {
        Told::Start(_) | Told::Leg { .. } => return Err(NoSuchEvent::Begun),
        Told::Panicked => return Err(NoSuchEvent::Panicked),
        Told::Abort(reason) => Event::Abort(reason.clone()),
        Told::Push(told) => Event::Push(chunk(told)?),
        Told::Finish { total, aux } => Event::Finish {
            total: *total,
            aux: *aux,
        },
        Told::Bind { leg, terms } => Event::Bind {
            leg: *leg,
            terms: terms.clone(),
        },
        Told::ClaimOpened(leg) => Event::ClaimOpened(*leg),
        Told::ClaimNotOpened { leg, reason } => Event::ClaimNotOpened {
            leg: *leg,
            reason: reason.clone(),
        },
        Told::Bound(leg) => Event::Bound(*leg),
        Told::Progress {
            leg,
            posted,
            written,
        } => Event::Progress {
            leg: *leg,
            posted: *posted,
            written: *written,
        },
        Told::Complete {
            leg,
            total,
            cells,
            checksum,
        } => Event::Complete {
            leg: *leg,
            total: *total,
            coverage: self::cells(*cells),
            checksum: *checksum,
        },
        Told::Accepted(leg) => Event::Accepted(*leg),
        Told::Rejected { leg, reason } => Event::Rejected {
            leg: *leg,
            reason: reason.clone(),
        },
        Told::PeerEnded { leg, reason } => Event::PeerEnded {
            leg: *leg,
            reason: reason.clone(),
        },
        Told::PeerOut(leg) => Event::PeerOut(*leg),
        Told::LegLost { leg, reason } => Event::LegLost {
            leg: *leg,
            reason: reason.clone(),
        },
        Told::Moved { leg, bytes } => Event::Moved {
            leg: *leg,
            bytes: *bytes,
        },
        Told::JobOver {
            leg,
            job,
            rest,
            end,
        } => Event::JobOver {
            leg: *leg,
            job: *job,
            rest: *rest,
            end: end.clone(),
        },
        Told::Summed(sum) => Event::Summed(*sum),
        Told::Timer(timer) => Event::Timer(*timer),
        Told::Quiet => match proof() {
            Some(proof) => Event::Quiet(proof),
            None => return Err(NoSuchEvent::TooLarge("no proof could be made up".into())),
        },
    })
}

/// An effect in few words.
pub(super) fn effect(effect: &Effect<W>) -> String {
    match effect {
        Effect::OpenClaim(leg) => format!("open claim of leg {}", leg.0),
        Effect::WithdrawClaim(leg) => format!("withdraw claim of leg {}", leg.0),
        Effect::CloseGate(leg) => format!("close gate of leg {}", leg.0),
        Effect::Sum => "sum the cells".into(),
        Effect::RefuseClaim { leg, reason } => {
            format!("refuse claim of leg {}: {:?}", leg.0, reason.code)
        }
        Effect::Post { leg, job, spec } => match spec {
            JobSpec::Pages { to, .. } => {
                format!("post job {job} on leg {}: {} pages", leg.0, to.len())
            }
            JobSpec::Aux => format!("post job {job} on leg {}: the aux row", leg.0),
        },
        Effect::CancelJobs => "cancel its jobs".into(),
        Effect::ReleaseChunk(chunk) => format!("give chunk {} back", chunk.0),
        Effect::BounceChunk { chunk, reason } => {
            format!("bounce chunk {}: {:?}", chunk.0, reason.code)
        }
        Effect::Say { leg, say } => format!("say {} on leg {}", word(say), leg.0),
        Effect::SetTimer(timer) => format!("arm clock {timer:?}"),
        Effect::ClearTimer(timer) => format!("disarm clock {timer:?}"),
        Effect::Publish(outcome) => format!("publish {outcome}"),
        Effect::Seal => "seal its custody".into(),
        Effect::Quarantine => "quarantine".into(),
        Effect::ReturnLease(_) => "return its leases".into(),
        Effect::Note(note) => format!("note {note:?}"),
    }
}

fn word(say: &Say) -> &'static str {
    match say {
        Say::Bound => "Bound",
        Say::Progress { .. } => "Progress",
        Say::Complete { .. } => "Complete",
        Say::Failed(_) => "Failed",
        Say::Quiesced { .. } => "Quiesced",
        Say::Accepted => "Accepted",
        Say::Rejected(_) => "Rejected",
        Say::Abort(_) => "Abort",
    }
}
