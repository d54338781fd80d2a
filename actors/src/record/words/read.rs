//! From words to what happened.

use super::*;
use crate::ids::{ClaimNo, LifeId, PeerRef, PoolId, RoomId, RoomKey};
use crate::record::entry::{Begun, ChunkTold, MESSAGES, Proofs, Road, Step, Told, What, Word};
use crate::room::event::{JobEnd, LegTerms, SectionShape};
use std::sync::Arc;
use std::time::Duration;

/// What the words say; none if it is kept whole.
pub(in crate::record) fn read(w: &Words) -> Option<What> {
    let [what, which, is, marks, ..] = w[1].to_le_bytes();
    let key = RoomKey {
        id: RoomId(w[2]),
        attempt: high(w[1]),
    };
    let life = LifeId(w[3]);
    let (leg, short, long) = (LegNo(w[4] as u16), (w[4] >> 16) as u16, high(w[4]));
    let has = |mark: u8| marks & mark != 0;
    Some(match what {
        ROOM => What::Room(Step {
            key,
            life,
            role: role(is),
            from: state(is >> 1),
            to: state(is >> 4),
            told: read_told(w, which, marks)?,
            reason: None,
        }),
        SENT | RECEIVED => {
            let word = Word {
                peer: PeerRef(long),
                message: MESSAGES.get(usize::from(which)).copied()?,
                claim: has(HAS_CLAIM).then_some(ClaimNo(w[3])),
                room: has(HAS_ROOM).then_some(key),
                frame: w[5],
            };
            match what {
                SENT => What::Sent(word),
                _ => What::Received(word),
            }
        }
        LEG => What::Leg {
            key,
            life,
            leg,
            peer: PeerRef(long),
            claim: ClaimNo(w[5]),
        },
        GATE => What::Gate {
            key,
            life,
            leg,
            claim: ClaimNo(w[5]),
            is: GATES.get(usize::from(which)).copied()?,
        },
        JOB => What::Job {
            key,
            life,
            leg,
            job: long,
            road: match which {
                0 => Road::Here,
                1 => Road::Lane(short),
                2 => Road::Tcp,
                4 => Road::Device(short),
                5 => Road::Ucx,
                _ => Road::Nowhere,
            },
            bytes: w[5],
        },
        LEASE => What::Lease {
            key,
            life,
            proofs: Proofs::of_bits(which),
        },
        RETRY => What::Retry {
            key,
            life,
            role: role(is),
            of: long,
        },
        REFUSED => What::Refused {
            key,
            role: role(is),
        },
        _ => return None,
    })
}

fn read_told(w: &Words, which: u8, marks: u8) -> Option<Told> {
    let (leg, short, long) = (LegNo(w[4] as u16), (w[4] >> 16) as u16, high(w[4]));
    let has = |mark: u8| marks & mark != 0;
    let deadline = has(HAS_DEADLINE).then(|| Duration::from_nanos(w[5]));
    let over = |end| Told::JobOver {
        leg,
        job: long,
        rest: w[5],
        end,
    };
    Some(match which {
        told::START_SENDER => Told::Start(Begun::Sender {
            receivers: short,
            deadline,
        }),
        told::START_RECEIVER => Told::Start(Begun::Receiver {
            legs: short,
            peer: PeerRef(long),
            cells: w[6],
            total: w[7],
            checksum: has(HAS_SUM),
            pages: w[8],
            deadline,
        }),
        told::LEG => Told::Leg {
            leg,
            peer: PeerRef(long),
            cells: w[5],
        },
        told::PUSH => Told::Push(ChunkTold {
            no: long,
            pool: short,
            tokens: (w[5], w[6]),
            layers: (low(w[7]), high(w[7])),
            pages: low(w[8]),
            first: high(w[8]),
            last: low(w[9]),
            page_tokens: high(w[9]),
            pool_layers: low(w[10]),
        }),
        told::FINISH => Told::Finish {
            total: w[5],
            aux: has(HAS_AUX),
        },
        told::BIND => Told::Bind {
            leg,
            terms: Arc::new(read_terms(w, marks)),
        },
        told::CLAIM_OPENED => Told::ClaimOpened(leg),
        told::BOUND => Told::Bound(leg),
        told::PROGRESS => Told::Progress {
            leg,
            posted: w[5],
            written: w[6],
        },
        told::COMPLETE => Told::Complete {
            leg,
            total: w[5],
            cells: w[6],
            checksum: has(HAS_SUM).then_some(w[7]),
        },
        told::ACCEPTED => Told::Accepted(leg),
        told::PEER_OUT => Told::PeerOut(leg),
        told::MOVED => Told::Moved { leg, bytes: w[5] },
        told::JOB_LANDED => over(JobEnd::Landed { checksum: w[6] }),
        told::JOB_REFUSED => over(JobEnd::Refused),
        told::JOB_CANCELLED => over(JobEnd::Cancelled),
        told::SUMMED => Told::Summed(w[5]),
        told::TIMER => Told::Timer(TIMERS.get(usize::try_from(w[5]).ok()?).copied()?),
        told::QUIET => Told::Quiet,
        told::PANICKED => Told::Panicked,
        _ => return None,
    })
}

fn read_terms(w: &Words, marks: u8) -> LegTerms {
    let section = SectionShape {
        pool: PoolId(low(w[7]) as u16),
        layer: low(w[8]),
        layer_end: high(w[8]),
        page_tokens: high(w[7]),
        page_bytes: w[9],
        pages: low(w[10]),
        slice: None,
    };
    let sections = (marks & HAS_SECTION != 0).then_some(section);
    LegTerms {
        receivers: (w[4] >> 16) as u16,
        rank: high(w[4]) as u16,
        skip: w[5],
        total: w[6],
        sections: sections.into_iter().collect(),
        aux: marks & HAS_AUX != 0,
        checksum: marks & HAS_SUM != 0,
    }
}
fn state(no: u8) -> StateName {
    STATES
        .get(usize::from(no & 7))
        .copied()
        .unwrap_or(StateName::Aborted)
}

fn role(states: u8) -> Role {
    match states & 1 {
        0 => Role::Sender,
        _ => Role::Receiver,
    }
}
