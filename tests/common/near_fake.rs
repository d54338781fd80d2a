//! A peer of this host, written by hand, that shares what it likes.
//!
//! It speaks the handshake over a Unix socket as it should, says that it is on this host, and then
//! shares descriptors of any kind. It reads without taking any: the kernel closes those that the node
//! under test passes to it.
#![allow(clippy::unwrap_used)]

use super::PATIENCE;
use super::fake_peer::{hello, incarnation};
use kvroom::PoolLayout;
use kvroom::actors::copy::plant::near;
use kvroom::actors::ids::PoolId;
use kvroom::actors::peer::handshake::{Handshake, Step};
use kvroom::actors::peer::hello::{Host, Link, LinkPool, LinkTable, Offer, SharedPools};
use kvroom::actors::peer::wire::{Greeting, GreetingReader, OFFER_BYTES, encode_greeting};
use socket2::{MsgHdr, SockRef};
use std::io::{IoSlice, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};

/// The boot id of this host.
pub(crate) fn boot() -> [u8; 16] {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let digits: String = text.trim().chars().filter(|c| *c != '-').collect();
    std::array::from_fn(|i| u8::from_str_radix(&digits[2 * i..2 * i + 2], 16).unwrap())
}

/// A host that would share all pools.
pub(crate) fn host() -> Host {
    Host {
        boot: boot(),
        socket: None,
        shared: SharedPools::All,
    }
}

/// Writes bytes and passes descriptors with the first of them.
pub(crate) fn send_with(stream: &UnixStream, bytes: &[u8], fds: &[OwnedFd]) {
    // One control message: length, level SOL_SOCKET, type SCM_RIGHTS, and the numbers.
    let mut control = Vec::new();
    if !fds.is_empty() {
        control.extend_from_slice(&(16 + 4 * fds.len()).to_ne_bytes());
        control.extend_from_slice(&1_i32.to_ne_bytes());
        control.extend_from_slice(&1_i32.to_ne_bytes());
        for fd in fds {
            control.extend_from_slice(&fd.as_raw_fd().to_ne_bytes());
        }
        control.resize(control.len().next_multiple_of(8), 0);
    }
    let buffers = [IoSlice::new(bytes)];
    let message = MsgHdr::new().with_buffers(&buffers).with_control(&control);
    // The node under test may have closed it by now.
    if let Ok(sent) = SockRef::from(stream).sendmsg(&message, 0) {
        let _ = (&*stream).write_all(&bytes[sent..]);
    }
}

/// What such a peer would share if it told the truth.
pub(crate) struct Truth {
    pub(crate) link: Link,
    pub(crate) fds: Vec<OwnedFd>,
}

impl Truth {
    /// With one pool of this layout. The node under test makes the ring: its life began earlier.
    pub(crate) fn of(layout: &PoolLayout) -> Truth {
        let bytes = u64::from(layout.layers) * u64::from(layout.pages) * layout.page_bytes;
        let link = Link {
            willing: true,
            table: Some(LinkTable {
                slots: 8,
                file: false,
            }),
            ring: false,
            pools: vec![LinkPool {
                pool: PoolId(0),
                file: false,
            }],
        };
        let fds = vec![
            near::pidfd(std::process::id()).unwrap(),
            near::doorbell().unwrap(),
            near::gate_table(8).unwrap(),
            near::memory(usize::try_from(bytes).unwrap()).unwrap(),
        ];
        Truth { link, fds }
    }
}

/// Its end of a greeting.
pub(crate) struct NearFake {
    stream: UnixStream,
    shake: Handshake,
    ahead: Vec<u8>,
}

/// How a greeting went on.
#[derive(Debug)]
pub(crate) enum Heard {
    /// The node under test shares this.
    Link(Link),
    /// It is refused, with this text.
    Refused(String),
    /// The node under test is content.
    Go,
    /// The connection is closed.
    Closed,
}

impl NearFake {
    /// Dials `unix://…`; offers a pool of this layout and says that it is there. The greeting is at
    /// the point where both share what they have, or would.
    pub(crate) fn greet(
        address: &str,
        name: &str,
        layout: &PoolLayout,
        host: Option<Host>,
    ) -> NearFake {
        let path = address.strip_prefix("unix://").unwrap();
        let stream = UnixStream::connect(path).unwrap();
        let shake = Handshake::dialer(hello(name, incarnation()), None);
        NearFake::over(stream, shake, layout, host)
    }

    /// The same of one that is dialed by the node under test.
    pub(crate) fn greeted(
        listener: &UnixListener,
        name: &str,
        layout: &PoolLayout,
        host: Option<Host>,
    ) -> NearFake {
        let (stream, _) = listener.accept().unwrap();
        let shake = Handshake::acceptor(hello(name, incarnation()), None);
        NearFake::over(stream, shake, layout, host)
    }

    fn over(
        stream: UnixStream,
        shake: Handshake,
        layout: &PoolLayout,
        host: Option<Host>,
    ) -> NearFake {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        let mut fake = NearFake {
            stream,
            shake,
            ahead: Vec::new(),
        };
        let mut out = Vec::new();
        fake.shake.start(&mut out).unwrap();
        fake.say(&out, &[]);
        loop {
            match fake.step() {
                Some(Step::Known(_)) => {
                    let offer = Offer {
                        pools: vec![(PoolId(0), layout.clone())],
                        contents: Vec::new(),
                        credit: 1_000,
                        resume: None,
                        received: 0,
                        token: 1,
                        host: host.clone(),
                        ucx: None,
                    };
                    let mut out = Vec::new();
                    fake.shake.offer(offer, None, &mut out).unwrap();
                    fake.say(&out, &[]);
                }
                Some(Step::Accepted { .. }) => return fake,
                other => panic!("{other:?}"),
            }
        }
    }

    /// The next step of the handshake; `None` when the connection is closed.
    fn step(&mut self) -> Option<Step> {
        loop {
            let (mut bytes, mut out) = (&self.ahead[..], Vec::new());
            let step = self.shake.take(&mut bytes, &mut out);
            let used = self.ahead.len() - bytes.len();
            self.ahead.drain(..used);
            self.say(&out, &[]);
            match step.unwrap() {
                Step::More => {
                    if !self.read() {
                        return None;
                    }
                }
                step => return Some(step),
            }
        }
    }

    fn read(&mut self) -> bool {
        let mut some = [0; 4096];
        match self.stream.read(&mut some) {
            Ok(n) => {
                self.ahead.extend_from_slice(&some[..n]);
                n > 0
            }
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
                panic!("the node under test said nothing in {PATIENCE:?}")
            }
            Err(_) => false,
        }
    }

    /// Bytes, with descriptors.
    pub(crate) fn say(&self, bytes: &[u8], fds: &[OwnedFd]) {
        if !bytes.is_empty() {
            send_with(&self.stream, bytes, fds);
        }
    }

    /// Shares this.
    pub(crate) fn share(&self, link: Link, fds: &[OwnedFd]) {
        let mut out = Vec::new();
        encode_greeting(&Greeting::Link(link), &mut out).unwrap();
        self.say(&out, fds);
    }

    /// What the node under test shares; it says so first of all.
    pub(crate) fn hears_link(&mut self) -> Heard {
        let mut reader = GreetingReader::default();
        loop {
            let mut rest = &self.ahead[..];
            let read = reader.next(&mut rest, OFFER_BYTES).unwrap();
            let used = self.ahead.len() - rest.len();
            self.ahead.drain(..used);
            match read {
                Some(Greeting::Link(link)) => return Heard::Link(link),
                Some(other) => panic!("{other:?}"),
                None => {
                    if !self.read() {
                        return Heard::Closed;
                    }
                }
            }
        }
    }

    /// How the greeting ends.
    pub(crate) fn hears_end(&mut self) -> Heard {
        match self.step() {
            Some(Step::Go) => Heard::Go,
            Some(Step::Refused { text, .. }) => Heard::Refused(text),
            None => Heard::Closed,
            other => panic!("{other:?}"),
        }
    }
}
