//! Two ends fed to each other, whole and in pieces, and what a liar or a stranger may send.

mod liars;
mod pairs;
mod property;

use super::*;
use crate::ids::PoolId;
use crate::peer::hello::{Accepted, Capabilities, Protocols};
use crate::peer::wire::{DataHello, WireError};
use kvroom_kernels::layout::{Order, PoolKind, PoolLayout};

fn life(n: u64) -> Incarnation {
    Incarnation {
        started_ns: n,
        nonce: n,
    }
}

fn hello(node: &str, n: u64) -> Hello {
    Hello {
        protocols: Protocols::MINE,
        node: node.into(),
        incarnation: life(n),
        nonce: [n as u8; 32],
        capabilities: Capabilities::QUIESCENCE,
        keyed: false,
    }
}

/// The name of its pool is looked for in what a stranger sees.
fn offer() -> Offer {
    let layout = PoolLayout {
        name: "secret-pool".into(),
        kind: PoolKind::Kv,
        order: Order::LayersFirst,
        layers: 2,
        pages: 3,
        page_bytes: 4,
        page_tokens: 5,
    };
    Offer {
        pools: vec![(PoolId(0), layout)],
        contents: Vec::new(),
        credit: 8,
        resume: None,
        received: 0,
        token: 77,
        host: None,
        ucx: None,
    }
}

fn key(byte: u8) -> ClusterKey {
    ClusterKey::new([byte; 16]).unwrap()
}

/// What the decider says in the end.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Say {
    Go,
    Crossed,
    Refuse,
}

/// An end with its caller.
struct End {
    handshake: Handshake,
    offer: Offer,
    known: Option<Incarnation>,
    say: Say,
    /// Written and not yet carried over.
    out: Vec<u8>,
    /// All that it has written.
    written: Vec<u8>,
    /// Read and not yet taken.
    inbox: Vec<u8>,
    accepted: Option<(Accepted, bool)>,
    end: Option<Result<Step, HandshakeError>>,
}

impl End {
    fn new(handshake: Handshake) -> Self {
        let mut end = End {
            handshake,
            offer: offer(),
            known: None,
            say: Say::Go,
            out: Vec::new(),
            written: Vec::new(),
            inbox: Vec::new(),
            accepted: None,
            end: None,
        };
        end.handshake.start(&mut end.out).unwrap();
        end
    }

    fn dialer(n: u64, key: Option<ClusterKey>) -> Self {
        Self::new(Handshake::dialer(hello("d", n), key))
    }

    fn acceptor(n: u64, key: Option<ClusterKey>) -> Self {
        Self::new(Handshake::acceptor(hello("a", n), key))
    }

    /// What it has to send since the last time.
    fn sent(&mut self) -> Vec<u8> {
        let out = mem::take(&mut self.out);
        self.written.extend_from_slice(&out);
        out
    }

    fn hear(&mut self, bytes: &[u8]) {
        self.inbox.extend_from_slice(bytes);
        let inbox = mem::take(&mut self.inbox);
        let mut rest = &inbox[..];
        while self.end.is_none() {
            match self.handshake.take(&mut rest, &mut self.out) {
                Ok(Step::More) => {
                    assert!(rest.is_empty(), "more is wanted, and there is more");
                    break;
                }
                Ok(Step::Known(_)) => {
                    let offer = self.offer.clone();
                    let offered = self.handshake.offer(offer, self.known, &mut self.out);
                    offered.unwrap();
                }
                Ok(Step::Accepted {
                    accepted, decider, ..
                }) => {
                    self.accepted = Some((accepted, decider));
                    if decider {
                        self.decide();
                    }
                }
                end => self.end = Some(end),
            }
        }
        self.inbox = rest.to_vec();
    }

    fn decide(&mut self) {
        let (handshake, out) = (&mut self.handshake, &mut self.out);
        match self.say {
            Say::Go => handshake.go(out).unwrap(),
            Say::Crossed => handshake.crossed(out).unwrap(),
            Say::Refuse => handshake
                .refuse(RefusalCode::Busy, "no room\nfor you", out)
                .unwrap(),
        }
        // The decider's own end of it; frames may follow in the same write.
        out.extend_from_slice(b"frames");
        self.end = Some(Ok(match self.say {
            Say::Go => Step::Go,
            Say::Crossed => Step::Crossed,
            Say::Refuse => no_room(),
        }));
    }

    fn error(&self) -> &HandshakeError {
        match &self.end {
            Some(Err(error)) => error,
            other => panic!("no error: {other:?}"),
        }
    }

    fn refusal(&self) -> &Refusal {
        match self.error() {
            HandshakeError::Refused(refusal) => refusal,
            other => panic!("no refusal: {other:?}"),
        }
    }
}

fn no_room() -> Step {
    Step::Refused {
        code: RefusalCode::Busy,
        text: "no room for you".into(),
    }
}

/// Carries bytes over, all there are at a time, until both are silent.
fn run(d: &mut End, a: &mut End) {
    loop {
        let (from_d, from_a) = (d.sent(), a.sent());
        if from_d.is_empty() && from_a.is_empty() {
            return;
        }
        a.hear(&from_d);
        d.hear(&from_a);
    }
}

/// The messages of a stream, each with its prefix.
fn messages(mut stream: &[u8]) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    while let Some(first) = stream.first_chunk() {
        let len = wire::PREFIX + (u32::from_le_bytes(*first) & 0x1ff_ffff) as usize;
        all.push(stream[..len].to_vec());
        stream = &stream[len..];
    }
    all
}

fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    haystack.windows(needle.len()).any(|w| w == needle)
}
