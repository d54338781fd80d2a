//! A session's frames over a ring in shared memory, between two processes of one host.
//!
//! ```text
//!   send ─▶ buffer ─▶ ring ─▶ next          frames, in memory of both
//!             bell ◀─────────▶ bell         rung only if the other side sleeps
//!   socket ◀───── descriptors ─────▶ socket an end of it is the end of the ring too
//! ```
//!
//! Rules:
//! - What is in the ring when the socket ends was said before, and is read before the loss is told.
//! - A wrong cursor or a wrong message on the socket is the peer's fault and loses the transport.
//! - The descriptor of a pool is sent before the frame that tells of it, and is asked for when that
//!   frame has come: it is there then.
//! - No clock: a side that waits is woken by a ring, by the socket, or because its thread looks.

use super::transport::{KEEP, READ, Sent, give_buffer, no_more_writes, take_buffer};
use crate::fabric::stream::{Detached, Stream};
use crate::memory::{
    Bell, RingError, RingMemory, RingReader, RingWriter, recv_with_fds, send_with_fds,
};
use crate::peer::hello::MAX_POOLS;
use crate::runtime::readable::Readable;
use crate::runtime::spin::{self, RingHere, Watched};
use std::cell::RefCell;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use tokio::io::Interest;

/// A message on the socket: this, then the pool's number; one descriptor with it.
const POOL: u8 = b'P';
const MESSAGE: usize = 5;

/// A connection over a ring that has been greeted, between threads.
#[derive(Debug)]
pub(crate) struct RingConnection {
    /// Nothing waits on it to be read.
    pub(crate) socket: Detached,
    pub(crate) ring: RingMemory,
    /// What the other side rings.
    pub(crate) bell: Bell,
    /// What the other side waits for.
    pub(crate) theirs: Arc<Bell>,
}

/// Sends a pool's descriptor over the socket beside a ring.
///
/// # Errors
/// The socket's. `WouldBlock`: the peer does not read; nothing was sent, and it can be tried again.
pub(crate) fn send_descriptor(stream: &Stream, pool: u32, fd: BorrowedFd<'_>) -> io::Result<()> {
    let mut message = [POOL, 0, 0, 0, 0];
    message[1..].copy_from_slice(&pool.to_le_bytes());
    // Whatever the reactor knows: nobody waits for this.
    let n = send_with_fds(stream.as_fd(), &message, &[fd])?;
    if n < MESSAGE {
        // A socket that takes less than this is of no use, and the rest would come without its place.
        return Err(io::ErrorKind::WriteZero.into());
    }
    Ok(())
}

/// Everything of one connection, in the reactor of its thread.
struct Line {
    socket: Stream,
    writer: RefCell<RingWriter>,
    reader: RefCell<RingReader>,
    /// What the peer rings.
    bell: Readable,
    /// What the peer waits for.
    theirs: Arc<Bell>,
    heard: RefCell<Heard>,
    _here: RingHere,
}

/// What came over the socket.
#[derive(Default)]
struct Heard {
    part: Vec<u8>,
    fd: Option<OwnedFd>,
    pools: Vec<(u32, OwnedFd)>,
    /// The socket has ended: why.
    ended: Option<String>,
}

impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Line")
            .field("socket", &self.socket)
            .finish_non_exhaustive()
    }
}

/// The writing half, and what it has not written.
#[derive(Debug)]
pub(crate) struct RingSink {
    line: Rc<Line>,
    room: Rc<Room>,
    out: Vec<u8>,
    written: usize,
}

/// The reading half.
#[derive(Debug)]
pub(crate) struct RingSource {
    line: Rc<Line>,
    bytes: Rc<Bytes>,
}

/// Enters the reactor of this thread.
pub(super) fn open(connection: RingConnection) -> io::Result<(RingSink, RingSource)> {
    let (writer, reader) = connection.ring.split();
    let bell = Readable::new(connection.bell.into())?;
    let line = Rc::new(Line {
        socket: connection.socket.attach()?,
        writer: RefCell::new(writer),
        reader: RefCell::new(reader),
        bell,
        theirs: connection.theirs,
        heard: RefCell::default(),
        _here: RingHere::new(),
    });
    let sink = RingSink {
        line: Rc::clone(&line),
        room: Rc::new(Room(Rc::clone(&line))),
        out: Vec::new(),
        written: 0,
    };
    let source = RingSource {
        bytes: Rc::new(Bytes(Rc::clone(&line))),
        line,
    };
    Ok((sink, source))
}

/// Waits for bytes of the peer.
#[derive(Debug)]
struct Bytes(Rc<Line>);

impl Watched for Bytes {
    fn look(&self) -> bool {
        self.0.reader.borrow().look()
    }
    fn arm(&self) -> bool {
        self.0.reader.borrow_mut().arm()
    }
    fn awake(&self) {
        self.0.reader.borrow_mut().awake();
    }
}

/// Waits for room for the peer.
#[derive(Debug)]
struct Room(Rc<Line>);

impl Watched for Room {
    fn look(&self) -> bool {
        self.0.writer.borrow().look()
    }
    fn arm(&self) -> bool {
        self.0.writer.borrow_mut().arm()
    }
    fn awake(&self) {
        self.0.writer.borrow_mut().awake();
    }
}

impl Line {
    /// Puts in what fits of these, and gives how much that was.
    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        let moved = self.writer.borrow_mut().write(bytes).map_err(fault)?;
        if moved.ring {
            self.theirs.ring();
        }
        Ok(moved.bytes)
    }

    /// Takes out what is there.
    fn read(&self, into: &mut [u8]) -> io::Result<usize> {
        let moved = self.reader.borrow_mut().read(into).map_err(fault)?;
        if moved.ring {
            self.theirs.ring();
        }
        Ok(moved.bytes)
    }

    fn look(&self) -> bool {
        self.reader.borrow().look()
    }

    /// Hears what came over the socket, without waiting. The reactor may not know of it yet.
    fn hear(&self) {
        let heard = &mut *self.heard.borrow_mut();
        while heard.ended.is_none() {
            let mut buffer = [0; MESSAGE];
            let rest = &mut buffer[heard.part.len()..];
            match recv_with_fds(self.socket.as_fd(), rest, 1) {
                Ok((0, _)) => heard.ended = Some("the other side closed it".into()),
                Ok((n, fds)) => {
                    let came = &rest[..n];
                    heard.part.extend_from_slice(came);
                    heard.message(fds);
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => heard.ended = Some(e.to_string()),
            }
        }
    }

    /// Hears what the reactor knows of.
    fn hear_ready(&self) {
        // Clears the readiness, unless more has come since.
        let _ = self.socket.try_io(Interest::READABLE, || {
            self.hear();
            Err::<(), _>(io::ErrorKind::WouldBlock.into())
        });
    }
}

impl Heard {
    /// Takes what came, and the message if it is whole.
    fn message(&mut self, fds: Vec<OwnedFd>) {
        for fd in fds {
            if self.fd.replace(fd).is_some() {
                self.ended = Some("the peer sent two descriptors for one pool".into());
            }
        }
        let &[tag, a, b, c, d] = self.part.as_slice() else {
            return;
        };
        self.part.clear();
        let pool = u32::from_le_bytes([a, b, c, d]);
        match self.fd.take() {
            Some(_) if self.pools.len() >= MAX_POOLS => {
                self.ended = Some(format!(
                    "the peer sent descriptors of more than {MAX_POOLS} pools that it does not tell of"
                ));
            }
            Some(fd) if tag == POOL => self.pools.push((pool, fd)),
            _ => {
                self.ended = Some(format!(
                    "the peer sent something beside the ring that is no pool with a descriptor \
                     (tag {tag})"
                ));
            }
        }
    }
}

fn fault(error: RingError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

impl RingSink {
    /// Buffers of frames that wait to be sent.
    pub(super) fn out(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }

    /// Says the last word of a greeting, on the socket: the other side has not opened the ring yet.
    pub(super) fn first(&self, bytes: &[u8]) {
        // A socket that has carried nothing but a greeting has room, and the reactor may not know yet.
        // If it is lost, the reader tells of it.
        let _ = send_with_fds(self.line.socket.as_fd(), bytes, &[]);
    }

    /// Sends what waits, and then what `fill` appends, until that has no more.
    pub(super) fn send(&mut self, most: usize, mut fill: impl FnMut(&mut Vec<u8>) -> bool) -> Sent {
        loop {
            let mut more = true;
            // Nothing behind bytes that the ring has not taken.
            while self.written == 0 && more && self.out.len() < most {
                more = fill(&mut self.out);
            }
            while self.written < self.out.len() {
                match self.line.write(&self.out[self.written..]) {
                    Ok(0) => return Sent::Blocked,
                    Ok(n) => self.written += n,
                    Err(e) => return Sent::Lost(e),
                }
            }
            self.out.clear();
            self.written = 0;
            if self.out.capacity() > KEEP {
                self.out = Vec::new();
            }
            if !more {
                return Sent::All;
            }
        }
    }

    /// Ends when there is room, or the transport is lost.
    pub(super) fn room(&self) -> impl Future<Output = ()> + 'static {
        let room = Rc::clone(&self.room);
        async move { room.wait().await }
    }

    /// Sends a pool's descriptor, see [`send_descriptor`].
    ///
    /// # Errors
    /// See there.
    pub(super) fn send_descriptor(&self, pool: u32, fd: BorrowedFd<'_>) -> io::Result<()> {
        send_descriptor(&self.line.socket, pool, fd)
    }

    /// The descriptor that the peer sent for this pool of its own, if it has sent one by now.
    pub(super) fn take_descriptor(&self, pool: u32) -> Option<OwnedFd> {
        self.line.hear();
        let pools = &mut self.line.heard.borrow_mut().pools;
        let at = pools.iter().position(|(id, _)| *id == pool)?;
        Some(pools.swap_remove(at).1)
    }

    /// Puts what waits into the ring, and ends the socket for writing; then waits until the other
    /// side, which reads the ring to its end before it closes, has closed. Bounded by whoever polls.
    pub(super) async fn linger(self) {
        let line = &self.line;
        let mut rest = self.out.get(self.written..).unwrap_or_default();
        let mut sink = [0; 64];
        while !rest.is_empty() {
            match line.write(rest) {
                Ok(0) => {
                    let ended = tokio::select! {
                        () = self.room.wait() => false,
                        ended = discard(&line.socket, &mut sink) => ended,
                    };
                    if ended {
                        return;
                    }
                }
                Ok(n) => rest = &rest[n..],
                Err(_) => return,
            }
        }
        if no_more_writes(&line.socket).is_ok() {
            while !discard(&line.socket, &mut sink).await {}
        }
    }
}

/// Waits for what comes over the socket and throws it away; whether the socket has ended.
async fn discard(socket: &Stream, sink: &mut [u8]) -> bool {
    if socket.ready(Interest::READABLE).await.is_err() {
        return true;
    }
    match socket.try_read(sink) {
        Ok(n) => n == 0,
        Err(e) => !matches!(
            e.kind(),
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
        ),
    }
}

impl Room {
    async fn wait(self: &Rc<Self>) {
        let watched: Rc<dyn Watched> = Rc::clone(self) as _;
        // A bell that fails is told of by the reader.
        let _ = spin::wait(&watched, &self.0.bell).await;
    }
}

impl RingSource {
    /// The next bytes, and how many of the buffer they are.
    ///
    /// # Errors
    /// The transport is lost; the text says how.
    pub(super) async fn next(&mut self) -> Result<(Vec<u8>, usize), String> {
        loop {
            if self.line.look() {
                // Only now: an idle connection holds no buffer.
                let mut buffer = take_buffer();
                debug_assert_eq!(buffer.len(), READ);
                match self.line.read(&mut buffer) {
                    Ok(n) => {
                        return Ok((buffer, n));
                    }
                    Err(e) => {
                        give_buffer(buffer);
                        return Err(e.to_string());
                    }
                }
            }
            if let Some(why) = &self.line.heard.borrow().ended {
                return Err(why.clone());
            }
            let watched: Rc<dyn Watched> = Rc::clone(&self.bytes) as _;
            tokio::select! {
                biased;
                waited = spin::wait(&watched, &self.line.bell) => {
                    waited.map_err(|e| e.to_string())?;
                }
                ready = self.line.socket.ready(Interest::READABLE) => {
                    ready.map_err(|e| e.to_string())?;
                    // If it has ended, what was said before is still in the ring.
                    self.line.hear_ready();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
