//! The session core, told arbitrary frames, and called by its owner in between.

use super::BOUNDS;
use crate::fuzzing::Feed;
use crate::ids::{ClaimId, ClaimNo, Incarnation, PoolId, RoomKey};
use crate::peer::message::{AuxRow, Body, Claim, ClaimTag, Frame, Part, Section};
use crate::peer::session::{Admit, Received, Session, SessionLimits};
use crate::peer::terms::{LocalPool, TheirPool, terms_of};
use crate::peer::wire;
use crate::reason::{Code, Reason};
use kvroom_kernels::coverage::Coverage;
use kvroom_kernels::layout::cube::{
    CubeKind, CubeLayout, DimOrder, Dtype, Plane as CubePlane, Share, Span,
};
use kvroom_kernels::layout::{Order, PoolKind, PoolLayout};
use kvroom_kernels::plan::cube::Part as CubePart;
use std::sync::Arc;

const ME: Incarnation = Incarnation {
    started_ns: 1,
    nonce: 1,
};
const PEER: Incarnation = Incarnation {
    started_ns: 2,
    nonce: 2,
};
const LIMITS: SessionLimits = SessionLimits {
    unacknowledged: 8,
    progress: 4,
    our_window: 4,
    their_window: 4,
};

/// Frames of a peer that may lie, and calls of the owner. Nothing panics; a lie is a violation, and
/// then everything that the session held comes back; what is delivered was in order, once, about
/// these two incarnations, and within the credit that the peer was given.
pub fn session(data: &[u8]) {
    let mut feed = Feed::new(data);
    let mut owner = Owner::new();
    while !feed.is_empty() {
        let step = feed.byte();
        if step < 128 {
            let frame = owner.frame(step, &mut feed);
            if !owner.receive(frame) {
                break;
            }
        } else if step < 160 {
            let Ok(frame) = wire::decode_frame(feed.long(), &BOUNDS) else {
                continue;
            };
            if !owner.receive(frame) {
                break;
            }
        } else {
            owner.call(step, &mut feed);
        }
        assert!(owner.session.peer_claims() <= owner.session.window());
        assert_eq!(owner.session.window(), LIMITS.our_window + owner.granted);
        assert_eq!(owner.session.peer_claims(), owner.live);
    }
    let (queued, opened) = (owner.session.unacknowledged(), owner.opened);
    let left = owner.session.give_up();
    let held = left.unsent_claims.len() + left.unsent.len() + left.unacknowledged.len();
    assert_eq!(held, queued, "something that was held did not come back");
    for unsent in &left.unsent_claims {
        assert_eq!(unsent.receipt.claim(), unsent.claim.tag.id);
        assert!(unsent.claim.tag.id.number.0 <= opened);
        assert!(!owner.shown.contains(&unsent.claim.tag.id.number.0));
    }
}

struct Owner {
    session: Session,
    /// The highest number of a reliable frame that went out.
    sent: u64,
    opened: u64,
    /// Claims that a transport has seen.
    shown: Vec<u64>,
    granted: u32,
    /// Claims of the peer that were delivered and have not ended.
    live: u32,
    mark: u64,
}

impl Owner {
    fn new() -> Self {
        Owner {
            session: Session::new(ME, PEER, LIMITS),
            sent: 0,
            opened: 0,
            shown: Vec::new(),
            granted: 0,
            live: 0,
            mark: 0,
        }
    }

    /// A frame of which most are the next ones.
    fn frame(&self, step: u8, feed: &mut Feed<'_>) -> Frame {
        let body = body(step, feed);
        let reliable = body.as_ref().is_some_and(|body| {
            !matches!(
                body,
                Body::Progress { .. } | Body::Ping { .. } | Body::Pong { .. }
            )
        });
        let how = feed.byte();
        let next = self.session.received() + 1;
        let seq = match how & 7 {
            0 => feed.u64(),
            1 => next.saturating_sub(1),
            2 => next + 1,
            3 => 0,
            _ if reliable => next,
            _ => 0,
        };
        let ack = match how >> 3 & 7 {
            0 => feed.u64(),
            1 => 0,
            2 => self.sent.wrapping_sub(1),
            _ => self.sent,
        };
        Frame { seq, ack, body }
    }

    /// Whether the session goes on.
    fn receive(&mut self, frame: Frame) -> bool {
        let before = self.session.received();
        let (seq, up) = (frame.seq, self.session.is_up());
        let received = match self.session.receive(frame) {
            Ok(received) => received,
            Err(violation) => {
                assert!(!violation.to_string().is_empty());
                assert_eq!(self.session.received(), before, "a lie was counted");
                return false;
            }
        };
        let after = self.session.received();
        match received {
            Received::Deliver(Body::Progress { .. } | Body::Pong { .. }) => {
                assert!(up && seq == 0 && after == before);
            }
            Received::Deliver(body) => {
                assert!(up && seq == before + 1 && after == seq);
                self.deliver(body);
            }
            Received::Credit(claims) => {
                assert!(up && after == before + 1);
                assert!(self.session.credit_available() >= claims);
            }
            Received::Duplicate => assert!(seq <= before && after == before),
            Received::OutOfOrder { expected } => {
                assert!(expected == before + 1 && seq > expected && after == before);
            }
            Received::Nothing => assert_eq!(after, before),
        }
        true
    }

    fn deliver(&mut self, body: Body) {
        if let Some(tag) = body.tag() {
            let pair = (tag.id.receiver, tag.id.sender);
            assert!(pair == (PEER, ME) || pair == (ME, PEER));
        }
        match body {
            Body::Claim(claim) => {
                self.live += 1;
                let number = claim.tag.id.number;
                let admitted = self.session.admit_claim(number);
                assert_eq!(admitted == Admit::Fresh, number.0 > self.mark);
                self.mark = self.mark.max(number.0);
                serve(&claim);
            }
            Body::Abort { tag, .. } => {
                self.session.note_abort(tag.id.number);
                self.mark = self.mark.max(tag.id.number.0);
            }
            _ => {}
        }
        assert_eq!(self.session.mark().0, self.mark);
    }

    fn call(&mut self, step: u8, feed: &mut Feed<'_>) {
        match step % 10 {
            0 => {
                let number = self.opened + 1;
                let claim = Box::new(claim(tag(ME, PEER, number), feed));
                if self.session.open_claim(ClaimNo(number), claim).is_ok() {
                    self.opened = number;
                }
            }
            1 => {
                let number = u64::from(feed.byte());
                if let Some(receipt) = self.session.withdraw_claim(ClaimNo(number)) {
                    assert_eq!(receipt.claim().number.0, number);
                    assert!(!self.shown.contains(&number), "a peer has seen it");
                }
            }
            2 => {
                self.session.claim_ended();
                self.live = self.live.saturating_sub(1);
            }
            3..=5 => self.transmit(usize::from(feed.byte() % 8)),
            6 => {
                self.session.reset();
                assert!(!self.session.has_output());
                let said = match feed.byte() {
                    0 => feed.u64(),
                    n => self.sent.saturating_sub(u64::from(n % 4)),
                };
                if self.session.resume(said).is_ok() {
                    assert!(said <= self.sent && self.session.is_up());
                }
            }
            7 => {
                let more = u32::from(feed.byte() % 4);
                self.session.grant(more);
                self.granted += more;
            }
            8 => {
                if let Some(body) = body(feed.byte(), feed) {
                    let _ = self.session.queue(body);
                }
            }
            _ => {
                self.session.ping(feed.u64());
                self.session
                    .progress(tag(PEER, ME, u64::from(feed.byte())), 2, 1);
            }
        }
    }

    fn transmit(&mut self, most: usize) {
        let mut out = Vec::new();
        self.session.transmit(most, &mut out);
        assert!(out.len() <= most);
        let mut last = None;
        for frame in out {
            assert_eq!(frame.ack, self.session.received());
            if frame.seq == 0 {
                continue;
            }
            assert!(frame.seq <= self.sent + 1, "a number was left out");
            assert!(last.is_none_or(|last| frame.seq == last + 1));
            last = Some(frame.seq);
            self.sent = self.sent.max(frame.seq);
            if let Some(Body::Claim(claim)) = frame.body {
                self.shown.push(claim.tag.id.number.0);
            }
        }
    }
}

fn tag(receiver: Incarnation, sender: Incarnation, n: u64) -> ClaimTag {
    ClaimTag {
        id: ClaimId {
            receiver,
            sender,
            number: ClaimNo(n),
        },
        room: RoomKey::new(n, 0),
    }
}

/// A tag of which most are of these two incarnations.
fn some_tag(feed: &mut Feed<'_>) -> ClaimTag {
    let (how, n) = (feed.byte(), u64::from(feed.byte()));
    match how % 8 {
        0 => tag(
            Incarnation {
                started_ns: feed.u64(),
                nonce: 1,
            },
            ME,
            n,
        ),
        1 => tag(PEER, ME, feed.u64()),
        2..=4 => tag(PEER, ME, n),
        _ => tag(ME, PEER, n),
    }
}

fn body(kind: u8, feed: &mut Feed<'_>) -> Option<Body> {
    let reason = || Reason::from(Code::Requested);
    Some(match kind % 19 {
        0 => return None,
        1..=3 => {
            let tag = some_tag(feed);
            Body::Claim(Box::new(claim(tag, feed)))
        }
        4 => Body::Bound {
            tag: some_tag(feed),
        },
        5 => Body::Progress {
            tag: some_tag(feed),
            posted: feed.u64(),
            written: feed.u64(),
        },
        6 => Body::Complete {
            tag: some_tag(feed),
            total: feed.u64(),
            coverage: Coverage::default(),
            checksum: None,
        },
        7 => Body::Accepted {
            tag: some_tag(feed),
        },
        8 => Body::Rejected {
            tag: some_tag(feed),
            reason: reason(),
        },
        9 => Body::Failed {
            tag: some_tag(feed),
            reason: reason(),
        },
        10 => Body::Abort {
            tag: some_tag(feed),
            reason: reason(),
        },
        11 => Body::Quiesced {
            tag: some_tag(feed),
            landed: Coverage::default(),
        },
        12 => Body::Credit {
            claims: feed.u32().max(1),
        },
        13 => Body::PoolAdded {
            pool: PoolId(feed.u16()),
            layout: layout("kv", PoolKind::Kv),
            content: None,
            far: None,
        },
        14 => Body::PoolRetired {
            pool: PoolId(feed.u16()),
        },
        15 => Body::Ping { nonce: feed.u64() },
        16 => Body::Pong { nonce: feed.u64() },
        17 => Body::Bye {
            drained: feed.flag(),
        },
        _ => Body::GaveUp { reason: reason() },
    })
}

fn claim(tag: ClaimTag, feed: &mut Feed<'_>) -> Claim {
    let how = feed.byte();
    let sections = (0..how & 3).map(|_| Section {
        pool: PoolId(u16::from(feed.byte() % 4)),
        pages: feed
            .short()
            .iter()
            .take(20)
            .map(|p| u32::from(*p))
            .collect(),
    });
    let sections = sections.collect();
    let part = match how >> 2 & 3 {
        0 => Part::Layers {
            first: u32::from(feed.byte()),
            end: feed.u32(),
        },
        1 => Part::Slices(
            (0..how & 3)
                .map(|_| {
                    let [first, end, head, head_end] = [(); 4].map(|()| u32::from(feed.byte() % 6));
                    let heads = Span::new(head, head_end);
                    (first != 5).then(|| CubePart {
                        layers: Span::new(first, end),
                        heads: vec![heads; 2],
                    })
                })
                .collect(),
        ),
        _ => Part::Whole,
    };
    let (skip, total) = match how >> 4 & 3 {
        0 => (feed.u64(), feed.u64()),
        _ => (u64::from(feed.byte() & 31), u64::from(feed.byte())),
    };
    Claim {
        tag,
        receivers: 1,
        rank: 0,
        part,
        sections,
        skip,
        total,
        aux: (how & 64 != 0).then(|| AuxRow {
            pool: PoolId(u16::from(feed.byte() % 4)),
            row: feed.u32(),
        }),
        gate: 0,
        deadline_ms: 0,
        checksum: false,
        trace: None,
    }
}

fn layout(name: &str, kind: PoolKind) -> PoolLayout {
    PoolLayout {
        name: name.into(),
        kind,
        order: Order::LayersFirst,
        layers: 3,
        pages: 8,
        page_bytes: 16,
        page_tokens: 4,
    }
}

/// 3 layers of 4, and `held` of 4 heads of two planes: pages of 4 tokens, 2 bytes a head.
fn content(first: u32, held: u32) -> Arc<CubeLayout> {
    let plane = CubePlane {
        heads: Share::part(4, first, held),
        channels: 1,
        dtype: Dtype::fp8_e4m3(),
    };
    Arc::new(CubeLayout {
        name: "cube".into(),
        kind: CubeKind::Kv,
        layers: Share::part(4, 0, 3),
        planes: vec![plane; 2],
        page_tokens: 4,
        granule: 1,
        pages: 8,
        page_gap: 0,
        order: DimOrder::NHD,
    })
}

/// Whether a claim can be served; what can be, names only what there is.
fn serve(claim: &Claim) {
    let (kv, aux) = (layout("kv", PoolKind::Kv), layout("aux", PoolKind::Aux));
    let other = PoolLayout {
        layers: 4,
        ..kv.clone()
    };
    let (src, dst) = (content(0, 3), content(1, 2));
    let (src_cells, dst_cells) = (src.pool_layout().unwrap(), dst.pool_layout().unwrap());
    let remote = |pool: PoolId| {
        let (layout, content) = match pool.0 {
            0 => (&kv, None),
            1 => (&aux, None),
            2 => (&other, None),
            3 => (&dst_cells, Some(&dst)),
            _ => return None,
        };
        Some(TheirPool { layout, content })
    };
    let local = |name: &str| {
        let (layout, content) = match name {
            "kv" => (&kv, None),
            "aux" => (&aux, None),
            "cube" => (&src_cells, Some(&src)),
            _ => return None,
        };
        Some(LocalPool {
            id: PoolId(0),
            layout,
            content,
        })
    };
    match terms_of(claim, remote, local) {
        Ok(served) => {
            let terms = &served.terms;
            if let Some(slices) = &served.slices {
                assert_eq!(slices.len(), claim.sections.len());
                for slice in slices.iter().flatten() {
                    let common = CubePart::common(&src, &dst);
                    assert!(common.holds(&slice.part) && !slice.part.is_empty());
                }
                let carried = slices.iter().flatten().count();
                assert_eq!(terms.sections.len(), carried);
            } else {
                assert_eq!(terms.sections.len(), claim.sections.len());
            }
            for (i, shape) in terms.sections.iter().enumerate() {
                let at = shape.slice.map_or(i, |slice| usize::from(slice.section));
                let section = &claim.sections[at];
                assert!(shape.layer < shape.layer_end && shape.layer_end <= kv.layers);
                assert_eq!(shape.pages as usize, section.pages.len());
                assert!(section.pages.iter().all(|page| *page < kv.pages));
            }
        }
        Err(reason) => assert!(reason.text.len() <= Reason::MAX_TEXT && !reason.text.is_empty()),
    }
}
