//! Arbitrary frames that pass [`super::check`].

use crate::ids::{ClaimId, ClaimNo, Incarnation, PoolId, RoomKey};
use crate::peer::message::*;
use crate::reason::{Code, Reason};
use kvroom_kernels::layout::cube::{CubeLayout, Span};
use kvroom_kernels::layout::{Order, PoolKind, PoolLayout};
use kvroom_kernels::plan::cube::Part as CubePart;
use proptest::prelude::*;

fn incarnation() -> impl Strategy<Value = Incarnation> {
    any::<(u64, u64)>().prop_map(|(started_ns, nonce)| Incarnation { started_ns, nonce })
}

fn tag() -> impl Strategy<Value = ClaimTag> {
    (
        incarnation(),
        incarnation(),
        1..=ClaimNo::MAX.0,
        any::<(u64, u32)>(),
    )
        .prop_map(|(receiver, sender, n, (id, attempt))| ClaimTag {
            id: ClaimId {
                receiver,
                sender,
                number: ClaimNo(n),
            },
            room: RoomKey::new(id, attempt),
        })
}

fn reason() -> impl Strategy<Value = Reason> {
    let code = prop_oneof![
        Just(Code::Requested),
        Just(Code::Stalled),
        Just(Code::LimitReached)
    ];
    (code, ".{0,300}").prop_map(|(code, text)| Reason::new(code, text))
}

fn layout() -> impl Strategy<Value = PoolLayout> {
    (
        "[a-z]{1,64}",
        any::<(bool, bool)>(),
        1..=u32::MAX,
        1..=u32::MAX,
        1..=u64::MAX,
    )
        .prop_map(
            |(name, (aux, pages_first), layers, pages, page_bytes)| PoolLayout {
                name,
                kind: if aux { PoolKind::Aux } else { PoolKind::Kv },
                order: if pages_first {
                    Order::PagesFirst
                } else {
                    Order::LayersFirst
                },
                layers,
                pages,
                page_bytes,
                page_tokens: layers,
            },
        )
}

fn sections() -> impl Strategy<Value = Vec<Section>> {
    let section = (any::<u16>(), prop::collection::vec(any::<u32>(), 0..40));
    let section = section.prop_map(|(pool, pages)| Section {
        pool: PoolId(pool),
        pages,
    });
    prop::collection::vec(section, 0..5)
}

fn slice() -> impl Strategy<Value = CubePart> {
    let span = || any::<(u32, u32)>().prop_map(|(start, end)| Span { start, end });
    let heads = prop::collection::vec(span(), 0..=CubeLayout::MAX_PLANES);
    (span(), heads).prop_map(|(layers, heads)| CubePart { layers, heads })
}

fn claim() -> impl Strategy<Value = Claim> {
    let part = prop_oneof![
        Just(Part::Whole),
        (0..99u32, 1..99u32).prop_map(|(first, n)| Part::Layers {
            first,
            end: first + n
        }),
        // As many as there are sections, below.
        prop::collection::vec(prop::option::of(slice()), 0..5).prop_map(Part::Slices)
    ];
    let rest = (
        any::<(u32, u32, bool)>(),
        any::<Option<(u16, u32)>>(),
        any::<Option<(u128, u64)>>(),
    );
    (
        tag(),
        1..=256u16,
        any::<u16>(),
        part,
        sections(),
        any::<(u64, u64)>(),
        rest,
    )
        .prop_map(
            |(
                tag,
                receivers,
                rank,
                part,
                sections,
                (x, y),
                ((gate, deadline_ms, checksum), aux, trace),
            )| {
                let part = match part {
                    Part::Slices(mut parts) => {
                        parts.resize(sections.len(), None);
                        Part::Slices(parts)
                    }
                    part => part,
                };
                Claim {
                    tag,
                    receivers,
                    rank: rank % receivers,
                    part,
                    sections,
                    skip: x.min(y),
                    total: x.max(y),
                    aux: aux.map(|(pool, row)| AuxRow {
                        pool: PoolId(pool),
                        row,
                    }),
                    gate,
                    deadline_ms,
                    checksum,
                    trace: trace.map(|(trace_id, span_id)| Trace { trace_id, span_id }),
                }
            },
        )
}

fn body() -> impl Strategy<Value = Body> {
    prop_oneof![
        4 => claim().prop_map(|c| Body::Claim(Box::new(c))),
        1 => tag().prop_map(|tag| Body::Bound { tag }),
        1 => (tag(), any::<(u64, u64)>())
            .prop_map(|(tag, (posted, written))| Body::Progress { tag, posted, written }),
        1 => (tag(), any::<(u64, Option<u64>)>()).prop_map(|(tag, (total, checksum))| {
            Body::Complete { tag, total, coverage: Default::default(), checksum }
        }),
        1 => tag().prop_map(|tag| Body::Accepted { tag }),
        1 => (tag(), reason()).prop_map(|(tag, reason)| Body::Rejected { tag, reason }),
        1 => (tag(), reason()).prop_map(|(tag, reason)| Body::Failed { tag, reason }),
        1 => (tag(), reason()).prop_map(|(tag, reason)| Body::Abort { tag, reason }),
        1 => tag().prop_map(|tag| Body::Quiesced { tag, landed: Default::default() }),
        1 => (1..=u32::MAX).prop_map(|claims| Body::Credit { claims }),
        1 => (any::<u16>(), layout())
            .prop_map(|(pool, layout)| Body::PoolAdded { pool: PoolId(pool), layout, content: None, far: None }),
        1 => any::<u16>().prop_map(|pool| Body::PoolRetired { pool: PoolId(pool) }),
        1 => any::<u64>().prop_map(|nonce| Body::Ping { nonce }),
        1 => any::<u64>().prop_map(|nonce| Body::Pong { nonce }),
        1 => any::<bool>().prop_map(|drained| Body::Bye { drained }),
        1 => Just(Body::Superseded),
        1 => reason().prop_map(|reason| Body::GaveUp { reason }),
    ]
}

pub(super) fn frame() -> impl Strategy<Value = Frame> {
    (any::<(u64, u64)>(), prop::option::weighted(0.9, body()))
        .prop_map(|((seq, ack), body)| Frame { seq, ack, body })
}
