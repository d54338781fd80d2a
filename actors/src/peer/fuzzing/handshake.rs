//! The whole handshake of one connection, against an end that is right until it is damaged.

use super::framed;
use crate::fuzzing::Feed;
use crate::ids::{Incarnation, PoolId};
use crate::peer::auth::ClusterKey;
use crate::peer::handshake::{Handshake, HandshakeError, Step};
use crate::peer::hello::{
    Capabilities, Hello, Host, Offer, Protocols, RefusalCode, SessionId, SharedPools,
};
use crate::peer::wire;
use kvroom_kernels::layout::{Order, PoolKind, PoolLayout};
use std::collections::VecDeque;
use std::mem;

/// Steps of an input; those with a length are followed by that many bytes.
pub(crate) mod step {
    /// The next message of the right peer.
    pub(crate) const GENUINE: u8 = 0;
    /// The same in two pieces.
    pub(crate) const CUT: u8 = 1;
    /// The same with one byte changed, and a sum that is right again.
    pub(crate) const DAMAGED: u8 = 2;
    /// A message with these bytes.
    pub(crate) const FRAMED: u8 = 3;
    /// A first message with these bytes.
    pub(crate) const FIRST: u8 = 4;
    /// These bytes.
    pub(crate) const RAW: u8 = 5;
    /// A call of this node's own, in its turn or not.
    pub(crate) const CALL: u8 = 6;
    /// How many there are.
    pub(crate) const STEPS: u8 = 7;
}

/// The first byte of an input says who both are, the rest is steps. Whatever comes: no panic, every
/// byte is taken or the handshake is over, a stranger is told no more than a Hello, and with a key
/// nobody is known whose words were not exactly those that the MAC is about.
pub fn handshake(data: &[u8]) {
    let mut feed = Feed::new(data);
    let setup = feed.byte();
    let mut here = Here::new(setup);
    let mut there = There::new(setup);
    while !feed.is_empty() && !here.over {
        there.hear(&here.sent());
        let step = feed.byte() % step::STEPS;
        match step {
            step::GENUINE | step::CUT | step::DAMAGED => {
                let Some(mut message) = there.says.pop_front() else {
                    continue;
                };
                let cut = if step == step::CUT {
                    usize::from(feed.u16()) % message.len()
                } else {
                    0
                };
                if step == step::DAMAGED {
                    let payload = &mut message[wire::PREFIX..];
                    let at = usize::from(feed.u16()) % payload.len().max(1);
                    if let Some(byte) = payload.get_mut(at) {
                        *byte ^= feed.byte();
                    }
                    message = framed(payload);
                }
                here.hear(&message[..cut], &there.genuine);
                here.hear(&message[cut..], &there.genuine);
            }
            step::FRAMED => here.hear(&framed(feed.long()), &there.genuine),
            step::FIRST => {
                let payload = [b"KVRM", feed.long()].concat();
                here.hear(&framed(&payload), &there.genuine);
            }
            step::RAW => here.hear(feed.short(), &there.genuine),
            step::CALL.. => here.call(feed.byte()),
        }
    }
    let closed = here.handshake.closed();
    assert!(!closed.to_string().is_empty());
}

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
        capabilities: Capabilities::QUIESCENCE.and(Capabilities::CHECKSUM),
        keyed: false,
    }
}

fn offer(setup: u8, n: u64) -> Offer {
    let layout = PoolLayout {
        name: "kv".into(),
        kind: PoolKind::Kv,
        order: Order::LayersFirst,
        layers: 2,
        pages: 3,
        page_bytes: 4,
        page_tokens: 5,
    };
    let resume = SessionId {
        lower: 1,
        higher: 2,
    };
    let host = Host {
        boot: [9; 16],
        socket: Some("kvroom-1".into()),
        shared: SharedPools::All,
    };
    Offer {
        pools: vec![(PoolId(0), layout)],
        contents: Vec::new(),
        credit: 8,
        resume: (setup & 16 != 0).then_some(resume),
        received: n,
        token: 77,
        host: (setup & 32 != 0).then_some(host),
        ucx: None,
    }
}

/// Both ends: lives, keys, and which one dials.
fn ends(setup: u8) -> (Handshake, Handshake, u64) {
    let key = || {
        let key = ClusterKey::new([7; 16]).unwrap();
        (setup & 1 != 0).then_some(key)
    };
    let (mine, theirs) = if setup & 2 != 0 { (1, 2) } else { (2, 1) };
    let (here, there) = (hello("here", mine), hello("there", theirs));
    let (here, there) = if setup & 4 != 0 {
        (
            Handshake::dialer(here, key()),
            Handshake::acceptor(there, key()),
        )
    } else {
        (
            Handshake::acceptor(here, key()),
            Handshake::dialer(there, key()),
        )
    };
    (here, there, theirs)
}

/// The end that is tested.
struct Here {
    handshake: Handshake,
    setup: u8,
    theirs: u64,
    out: Vec<u8>,
    /// Messages that were sent before the peer was known.
    told: usize,
    known: bool,
    accepted: bool,
    /// Everything that came and was taken.
    heard: Vec<u8>,
    over: bool,
}

impl Here {
    fn new(setup: u8) -> Self {
        let (mut handshake, _, theirs) = ends(setup);
        let mut out = Vec::new();
        handshake.start(&mut out).unwrap();
        let told = messages(&out).len();
        Here {
            handshake,
            setup,
            theirs,
            out,
            told,
            known: false,
            accepted: false,
            heard: Vec::new(),
            over: false,
        }
    }

    fn sent(&mut self) -> Vec<u8> {
        mem::take(&mut self.out)
    }

    fn hear(&mut self, bytes: &[u8], genuine: &[u8]) {
        let mut rest = bytes;
        while !self.over {
            let (before, said) = (rest.len(), self.out.len());
            let step = self.handshake.take(&mut rest, &mut self.out);
            self.heard
                .extend_from_slice(&bytes[bytes.len() - before..bytes.len() - rest.len()]);
            if !self.known {
                self.told += messages(&self.out[said..]).len();
                // A dialer's Mac is all that may follow its Hello; an acceptor's comes with `Known`.
                let known = matches!(step, Ok(Step::Known(_)));
                let keyed = usize::from(self.setup & 1);
                let most = 1 + if self.setup & 4 != 0 || known {
                    keyed
                } else {
                    0
                };
                assert!(self.told <= most, "a stranger was told {}", self.told);
            }
            match step {
                Ok(Step::More) => {
                    assert!(rest.is_empty(), "more is wanted, and there is more");
                    return;
                }
                Ok(step) => self.step(step, genuine),
                Err(error) => self.failed(&error),
            }
        }
    }

    fn step(&mut self, step: Step, genuine: &[u8]) {
        match step {
            Step::Known(_) => {
                assert!(!self.known);
                self.known = true;
                if self.setup & 1 != 0 {
                    assert!(
                        genuine.starts_with(&self.heard),
                        "somebody is known who did not say what was heard"
                    );
                }
                let known = (self.setup & 8 != 0).then_some(life(self.theirs));
                let mine = offer(self.setup, 3);
                self.handshake.offer(mine, known, &mut self.out).unwrap();
            }
            Step::Accepted {
                theirs, decider, ..
            } => {
                assert!(self.known && !self.accepted);
                self.accepted = true;
                let mine = life(3 - self.theirs);
                assert_eq!(decider, mine < theirs.incarnation);
                if decider {
                    self.handshake.go(&mut self.out).unwrap();
                    self.over = true;
                }
            }
            Step::Refused { text, .. } => {
                assert!(self.known && !text.contains(char::is_control));
                self.over = true;
            }
            Step::Go | Step::Crossed => {
                assert!(self.accepted);
                self.over = true;
            }
            Step::Data(data) => {
                assert!(self.setup & 4 == 0, "a data connection that was dialed");
                let key = ClusterKey::new([7; 16]).unwrap();
                assert!(data.is_proven(None));
                let _ = data.is_proven(Some(&key));
                self.over = true;
            }
            Step::More => unreachable!("it was dealt with"),
        }
    }

    fn failed(&mut self, error: &HandshakeError) {
        let _ = error.fault();
        assert!(!error.to_string().is_empty());
        let more = self.handshake.take(&mut &b"more"[..], &mut self.out);
        assert!(
            matches!(more, Err(HandshakeError::Misused { called: "take", .. })),
            "an error was not the end: {more:?}"
        );
        self.over = true;
    }

    /// A call that need not be in its turn: then it is an error, and nothing is said.
    fn call(&mut self, which: u8) {
        let said = self.out.len();
        let waits_for = self.handshake.waits_for();
        let done = match which % 4 {
            0 => self.handshake.go(&mut self.out),
            1 => self.handshake.crossed(&mut self.out),
            2 => self
                .handshake
                .refuse(RefusalCode::Busy, "no room\nfor you", &mut self.out),
            _ => {
                let mine = offer(self.setup, 3);
                self.handshake.offer(mine, None, &mut self.out)
            }
        };
        match done {
            Ok(()) => {
                assert!(self.known, "a stranger was told more than a Hello");
                self.over = true;
            }
            Err(error) => {
                assert!(matches!(error, HandshakeError::Misused { .. }), "{error:?}");
                assert_eq!(
                    (self.out.len(), self.handshake.waits_for()),
                    (said, waits_for)
                );
            }
        }
    }
}

/// The other end, which keeps to the rules.
struct There {
    handshake: Handshake,
    setup: u8,
    /// All that it has said.
    genuine: Vec<u8>,
    /// Its messages that were not carried over yet.
    says: VecDeque<Vec<u8>>,
    over: bool,
}

impl There {
    fn new(setup: u8) -> Self {
        let (_, mut handshake, _) = ends(setup);
        let mut out = Vec::new();
        handshake.start(&mut out).unwrap();
        let mut there = There {
            handshake,
            setup,
            genuine: Vec::new(),
            says: VecDeque::new(),
            over: false,
        };
        there.said(&out);
        there
    }

    fn said(&mut self, out: &[u8]) {
        self.genuine.extend_from_slice(out);
        self.says.extend(messages(out));
    }

    fn hear(&mut self, bytes: &[u8]) {
        let (mut rest, mut out) = (bytes, Vec::new());
        while !self.over {
            match self.handshake.take(&mut rest, &mut out) {
                Ok(Step::More) => break,
                Ok(Step::Known(theirs)) => {
                    let known = (self.setup & 64 != 0).then_some(theirs.incarnation);
                    let mine = offer(self.setup, 4);
                    self.handshake.offer(mine, known, &mut out).unwrap();
                }
                Ok(Step::Accepted { decider: true, .. }) => {
                    let last = if self.setup & 128 != 0 {
                        self.handshake.crossed(&mut out)
                    } else {
                        self.handshake.go(&mut out)
                    };
                    last.unwrap();
                    self.over = true;
                }
                Ok(Step::Accepted { .. }) => {}
                Ok(_) | Err(_) => self.over = true,
            }
        }
        self.said(&out);
    }
}

/// The messages of a stream of whole ones, each with its prefix.
fn messages(mut stream: &[u8]) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    while let Some(first) = stream.first_chunk() {
        let len = wire::PREFIX + (u32::from_le_bytes(*first) & 0x1ff_ffff) as usize;
        all.push(stream[..len].to_vec());
        stream = &stream[len..];
    }
    all
}
