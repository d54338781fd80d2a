//! Round trips, streams cut anywhere, bounds.

mod arbitrary;
mod bounds;
mod greeting;
mod property;
mod stream;

use super::*;
use crate::ids::{ClaimId, ClaimNo, Incarnation, PoolId, RoomKey};
use crate::peer::hello::{Capabilities, Hello, Offer, Protocols, RefusalCode, SessionId};
use crate::peer::message::{Body, Claim, ClaimTag, Part, Section};
use crate::reason::{Code, Reason};
use kvroom_kernels::layout::{Order, PoolKind, PoolLayout};

const BOUNDS: Bounds = Bounds {
    frame_bytes: 64 << 10,
    pages_per_claim: 4096,
    receivers: 256,
};

fn hello() -> Hello {
    Hello {
        protocols: Protocols::MINE,
        node: "decode-0".into(),
        incarnation: Incarnation {
            started_ns: 5,
            nonce: 6,
        },
        nonce: [7; 32],
        capabilities: Capabilities::QUIESCENCE,
        keyed: true,
    }
}

fn offer() -> Offer {
    let layout = |name: &str| PoolLayout {
        name: name.into(),
        kind: PoolKind::Kv,
        order: Order::LayersFirst,
        layers: 2,
        pages: 3,
        page_bytes: 4,
        page_tokens: 5,
    };
    Offer {
        pools: vec![(PoolId(0), layout("kv")), (PoolId(1), layout("aux"))],
        contents: Vec::new(),
        credit: 8,
        resume: Some(SessionId {
            lower: 1,
            higher: 2,
        }),
        received: 9,
        token: 10,
        host: None,
        ucx: None,
    }
}

/// The bytes of a frame that holds this payload.
fn framed(payload: &[u8]) -> Vec<u8> {
    let word = length_word(payload.len() as u32);
    let prefix = [word.to_le_bytes(), sum(word, payload).to_le_bytes()];
    [prefix.as_flattened(), payload].concat()
}

fn bytes(frame: &Frame) -> Vec<u8> {
    let mut out = Vec::new();
    encode_frame(frame, &mut out, MAX).unwrap();
    out
}

fn some_claim() -> Claim {
    let id = ClaimId {
        receiver: Incarnation {
            started_ns: 1,
            nonce: 1,
        },
        sender: Incarnation {
            started_ns: 2,
            nonce: 2,
        },
        number: ClaimNo(1),
    };
    Claim {
        tag: ClaimTag {
            id,
            room: RoomKey::new(42, 0),
        },
        receivers: 1,
        rank: 0,
        part: Part::Whole,
        sections: vec![Section {
            pool: PoolId(0),
            pages: vec![7; 8],
        }],
        skip: 0,
        total: 128,
        aux: None,
        gate: 3,
        deadline_ms: 1000,
        checksum: false,
        trace: None,
    }
}

fn claim_frame(change: impl FnOnce(&mut Claim)) -> Frame {
    let mut claim = some_claim();
    change(&mut claim);
    Frame {
        seq: 1,
        ack: 0,
        body: Some(Body::Claim(Box::new(claim))),
    }
}

fn refused(frame: &Frame) -> String {
    match decode_frame(&bytes(frame)[PREFIX..], &BOUNDS) {
        Err(WireError::OutOfBounds { what, .. }) => what,
        other => panic!("{other:?}"),
    }
}
