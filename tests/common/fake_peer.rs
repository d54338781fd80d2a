//! A peer written by hand, which greets as it should and then lies.
//!
//! It dials the node under test, speaks the handshake with the right key, and has a session and data
//! connections like any peer. What it says on them is up to the test. Its data frames are laid out
//! here once more, byte by byte, so that they can be wrong in any way.
//!
//! It blocks: the nodes have threads of their own, so a test that waits for bytes holds nobody up.
#![allow(clippy::unwrap_used)]

use super::PATIENCE;
use kvroom::actors::copy::schedule::Class;
use kvroom::actors::ids::{ClaimId, ClaimNo, PoolId};
use kvroom::actors::peer::handshake::{Handshake, Step};
use kvroom::actors::peer::hello::{Capabilities, Hello, Offer, Protocols};
use kvroom::actors::peer::message::{Body, Claim, ClaimTag, Frame, Part, Section};
use kvroom::actors::peer::wire::{
    self, Bounds, DataHello, FrameReader, Greeting, encode_first_greeting,
};
use kvroom::{ClusterKey, Incarnation, Limits, PoolLayout, RoomKey};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

/// Its end of a session.
pub(crate) struct FakePeer {
    control: TcpStream,
    address: String,
    reader: FrameReader,
    /// Read and not decoded yet.
    ahead: Vec<u8>,
    /// Last number that it used.
    pub(crate) seq: u64,
    received: u64,
    /// What names its data connections.
    pub(crate) token: u128,
    key: Option<ClusterKey>,
    pub(crate) me: Incarnation,
    /// The node under test.
    pub(crate) theirs: Incarnation,
    next_claim: u64,
}

/// Something that a fake peer waits for did not come.
fn too_late(what: &str) -> ! {
    panic!("the node under test did not send {what} in {PATIENCE:?}")
}

/// A new incarnation, later than all before.
pub(crate) fn incarnation() -> Incarnation {
    static COUNT: AtomicU64 = AtomicU64::new(1);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    Incarnation {
        started_ns: u64::try_from(now.unwrap().as_nanos()).unwrap(),
        nonce: COUNT.fetch_add(1, Ordering::Relaxed),
    }
}

/// A greeting with a fresh nonce.
pub(crate) fn hello(name: &str, me: Incarnation) -> Hello {
    static COUNT: AtomicU64 = AtomicU64::new(1);
    let mut nonce = [7; 32];
    let fresh = COUNT.fetch_add(1, Ordering::Relaxed).to_le_bytes();
    nonce[..8].copy_from_slice(&fresh);
    nonce[8..16].copy_from_slice(&me.started_ns.to_le_bytes());
    Hello {
        protocols: Protocols::MINE,
        node: name.to_owned(),
        incarnation: me,
        nonce,
        capabilities: Capabilities::QUIESCENCE.and(Capabilities::CHECKSUM),
        keyed: false,
    }
}

/// A plain connection to `tcp://…` that does not wait for ever.
pub(crate) fn dial(address: &str) -> TcpStream {
    let at = address.strip_prefix("tcp://").unwrap();
    let stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// What a node says to a connection while it believes in an earlier one of the same life.
pub(crate) const CROSSED: &str = "another connection is up";

impl FakePeer {
    /// Dials, greets and is accepted.
    pub(crate) fn connect(
        address: &str,
        name: &str,
        key: Option<ClusterKey>,
        pools: Vec<PoolLayout>,
    ) -> FakePeer {
        FakePeer::connect_as(incarnation(), address, name, key, pools, || ()).unwrap()
    }

    /// As [`FakePeer::connect`], in a life of its choice; `meanwhile` runs before it makes its offer. In
    /// words why it is not accepted, if it is not.
    pub(crate) fn connect_as(
        me: Incarnation,
        address: &str,
        name: &str,
        key: Option<ClusterKey>,
        pools: Vec<PoolLayout>,
        meanwhile: impl FnOnce(),
    ) -> Result<FakePeer, String> {
        let mut meanwhile = Some(meanwhile);
        let mut control = dial(address);
        let mut shake = Handshake::dialer(hello(name, me), key.clone());
        let mut out = Vec::new();
        shake.start(&mut out).unwrap();
        control.write_all(&out).unwrap();
        out.clear();
        let mut pools = Some(pools);
        let (mut theirs, mut token, mut decides) = (None, 0, false);
        let mut ahead: Vec<u8> = Vec::new();
        loop {
            let mut bytes = &ahead[..];
            let step = shake.take(&mut bytes, &mut out);
            let used = ahead.len() - bytes.len();
            ahead.drain(..used);
            control.write_all(&out).unwrap();
            out.clear();
            match step.map_err(|e| e.to_string())? {
                Step::More => {
                    let mut some = [0; 4096];
                    let n = control
                        .read(&mut some)
                        .unwrap_or_else(|_| too_late("a greeting"));
                    if n == 0 {
                        return Err(shake.closed().to_string());
                    }
                    ahead.extend_from_slice(&some[..n]);
                }
                Step::Known(hello) => {
                    theirs = Some(hello.incarnation);
                    meanwhile.take().unwrap()();
                    let pools = pools.take().unwrap().into_iter().enumerate();
                    let offer = Offer {
                        pools: pools.map(|(i, pool)| (PoolId(i as u16), pool)).collect(),
                        contents: Vec::new(),
                        credit: 1_000,
                        resume: None,
                        received: 0,
                        token: 1,
                        host: None,
                        ucx: None,
                    };
                    shake.offer(offer, None, &mut out).unwrap();
                    control.write_all(&out).unwrap();
                    out.clear();
                }
                Step::Accepted { offer, decider, .. } => {
                    token = offer.token;
                    decides = decider;
                    if decider {
                        shake.go(&mut out).unwrap();
                        control.write_all(&out).unwrap();
                        break;
                    }
                }
                Step::Go => break,
                Step::Crossed => return Err(CROSSED.into()),
                other => panic!("{other:?}"),
            }
        }
        assert!(!decides, "its life began after the node's");
        Ok(FakePeer {
            control,
            address: address.to_owned(),
            reader: FrameReader::new(Bounds::from(&Limits::default())),
            ahead,
            seq: 0,
            received: 0,
            token,
            key,
            me,
            theirs: theirs.unwrap(),
            next_claim: 1,
        })
    }

    /// Says it, numbered as it should be.
    pub(crate) fn say(&mut self, body: Body) {
        let probe = matches!(
            body,
            Body::Progress { .. } | Body::Ping { .. } | Body::Pong { .. }
        );
        if !probe {
            self.seq += 1;
        }
        let seq = if probe { 0 } else { self.seq };
        self.say_frame(&Frame {
            seq,
            ack: self.received,
            body: Some(body),
        });
    }

    /// Says a frame as it is.
    pub(crate) fn say_frame(&mut self, frame: &Frame) {
        let mut out = Vec::new();
        wire::encode_frame(frame, &mut out, wire::MAX).unwrap();
        self.raw(&out);
    }

    /// Bytes on the control connection. The node may have closed it by now.
    pub(crate) fn raw(&mut self, bytes: &[u8]) {
        let _ = self.control.write_all(bytes);
    }

    /// The next body that is not a question whether it is there; `None` when the connection ends.
    pub(crate) fn hear(&mut self) -> Option<Body> {
        let start = Instant::now();
        loop {
            if start.elapsed() > PATIENCE {
                too_late("anything but pings");
            }
            let mut bytes = &self.ahead[..];
            let frame = self.reader.read(&mut bytes).unwrap();
            let used = self.ahead.len() - bytes.len();
            self.ahead.drain(..used);
            match frame {
                Some(Frame { seq, body, .. }) => {
                    self.received = self.received.max(seq);
                    match body {
                        Some(Body::Ping { nonce }) => self.say(Body::Pong { nonce }),
                        Some(body) => return Some(body),
                        None => {}
                    }
                }
                None => {
                    let mut some = [0; 16 << 10];
                    match self.control.read(&mut some) {
                        Ok(0) => return None,
                        Ok(n) => self.ahead.extend_from_slice(&some[..n]),
                        Err(e) if e.kind() == ErrorKind::WouldBlock => too_late("a frame"),
                        Err(_) => return None,
                    }
                }
            }
        }
    }

    /// Hears until something is what is looked for; the session ends before only if the test fails.
    #[track_caller]
    pub(crate) fn hear_until<T>(&mut self, mut wanted: impl FnMut(Body) -> Option<T>) -> T {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            match self.hear() {
                Some(body) => {
                    if let Some(found) = wanted(body) {
                        return found;
                    }
                }
                None => panic!("the session ended before that was said"),
            }
        }
        too_late("what was waited for")
    }

    /// The next claim.
    #[track_caller]
    pub(crate) fn hear_claim(&mut self) -> Claim {
        self.hear_until(|body| match body {
            Body::Claim(claim) => Some(*claim),
            _ => None,
        })
    }

    /// Waits until the node has ended the session's connection.
    #[track_caller]
    pub(crate) fn is_put_out(&mut self) {
        let start = Instant::now();
        while self.hear().is_some() {
            if start.elapsed() > PATIENCE {
                too_late("the end of the session");
            }
        }
    }

    /// Opens a data connection, named as it should be.
    pub(crate) fn data(&self, class: Class, index: u16) -> TcpStream {
        let mut stream = dial(&self.address);
        stream.write_all(&self.data_hello(class, index)).unwrap();
        stream
    }

    /// What names a data connection, with a number that was not used before.
    pub(crate) fn data_hello(&self, class: Class, index: u16) -> Vec<u8> {
        static COUNT: AtomicU64 = AtomicU64::new(1);
        let attempt = COUNT.fetch_add(1, Ordering::Relaxed);
        let hello = DataHello::new(self.token, (class, index), attempt, self.key.as_ref());
        let mut out = Vec::new();
        encode_first_greeting(&Greeting::Data(hello), &mut out).unwrap();
        out
    }

    /// A claim on its own pages, as it should be.
    pub(crate) fn claim(&mut self, room: RoomKey, pages: &[u32]) -> Claim {
        let number = ClaimNo(self.next_claim);
        self.next_claim += 1;
        Claim {
            tag: ClaimTag {
                id: ClaimId {
                    receiver: self.me,
                    sender: self.theirs,
                    number,
                },
                room,
            },
            receivers: 1,
            rank: 0,
            part: Part::Whole,
            sections: vec![Section {
                pool: PoolId(0),
                pages: pages.to_vec(),
            }],
            skip: 0,
            total: pages.len() as u64 * super::TOKENS,
            aux: None,
            gate: number.0 as u32,
            deadline_ms: 60_000,
            checksum: false,
            trace: None,
        }
    }
}

/// Whether the other end has closed this; what it sends before is thrown away.
pub(crate) fn is_closed(stream: &mut TcpStream) {
    let mut some = [0; 4096];
    loop {
        match stream.read(&mut some) {
            Ok(0) => return,
            Ok(_) => {}
            Err(e) if e.kind() == ErrorKind::WouldBlock => too_late("the end of a connection"),
            Err(_) => return,
        }
    }
}

/// Whether nothing comes for this long and the connection stays open.
pub(crate) fn is_silent(stream: &mut TcpStream, time: Duration) -> bool {
    stream.set_read_timeout(Some(time)).unwrap();
    let came = stream.read(&mut [0; 1]);
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    matches!(came, Err(e) if e.kind() == ErrorKind::WouldBlock)
}

/// A half-open connection: closed for writing.
pub(crate) fn half_close(stream: &TcpStream) {
    // The other end may have closed it by now.
    let _ = stream.shutdown(Shutdown::Write);
}

/// A data frame, as far as its header says.
#[derive(Clone, Debug)]
pub(crate) struct DataFrame {
    pub(crate) seq: u64,
    pub(crate) claim: u64,
    pub(crate) gate: u32,
    pub(crate) section: u16,
    pub(crate) layers: Range<u32>,
    pub(crate) places: Range<u32>,
    pub(crate) position: u64,
    pub(crate) length: u32,
}

impl DataFrame {
    /// All cells of the first section of a claim, of `page_bytes` each.
    pub(crate) fn whole(claim: &Claim, layers: u32, page_bytes: u64) -> DataFrame {
        let places = claim.sections[0].pages.len() as u32;
        DataFrame {
            seq: 1,
            claim: claim.tag.id.number.0,
            gate: claim.gate,
            section: 0,
            layers: 0..layers,
            places: 0..places,
            position: 0,
            length: (u64::from(layers * places) * page_bytes) as u32,
        }
    }

    pub(crate) fn header(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64);
        out.extend_from_slice(b"KVRF");
        out.extend_from_slice(&[1, 0]);
        out.extend_from_slice(&self.section.to_le_bytes());
        out.extend_from_slice(&self.seq.to_le_bytes());
        out.extend_from_slice(&self.claim.to_le_bytes());
        out.extend_from_slice(&self.position.to_le_bytes());
        let words = [
            self.gate,
            self.layers.start,
            self.layers.end,
            self.places.start,
            self.places.end,
            self.length,
        ];
        for word in words {
            out.extend_from_slice(&word.to_le_bytes());
        }
        sealed(out)
    }

    /// Header, a payload of this byte, and a trailer that calls it valid.
    pub(crate) fn bytes(&self, byte: u8) -> Vec<u8> {
        let mut out = self.header();
        out.resize(out.len() + self.length as usize, byte);
        let mut trailer = b"good".to_vec();
        trailer.extend_from_slice(&0u32.to_le_bytes());
        trailer.extend_from_slice(&(self.seq as u32).to_le_bytes());
        let crc = crc32c::crc32c(&trailer);
        trailer.extend_from_slice(&crc.to_le_bytes());
        out.extend(trailer);
        out
    }
}

/// What became of frames, in an acknowledgement.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fate {
    Landed = 0,
    Void = 2,
}

/// An acknowledgement of all these frames.
pub(crate) fn ack_frame(fate: Fate, frames: Range<u64>) -> Vec<u8> {
    let mut out = b"KVRF".to_vec();
    out.extend_from_slice(&[2, fate as u8, 0, 0]);
    out.extend_from_slice(&frames.start.to_le_bytes());
    out.extend_from_slice(&(frames.end - 1).to_le_bytes());
    sealed(out)
}

fn sealed(mut header: Vec<u8>) -> Vec<u8> {
    header.resize(60, 0);
    let crc = crc32c::crc32c(&header);
    header.extend_from_slice(&crc.to_le_bytes());
    header
}
