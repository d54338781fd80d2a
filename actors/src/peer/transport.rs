//! What a session's frames go over: a pipe within the process, a ring in memory that two processes
//! share, or a stream socket.
//!
//! ```text
//!   flush ─▶ buffer of one turn ─▶ send ─▶ pipe: one batch   · full: wait until there is room
//!                                       ├▶ ring: copied in   · full: wait until there is room
//!                                       └▶ socket: one write · would block: wait until writable
//! ```
//!
//! Sockets and rings are read and written on the thread of the session's actor. What is not taken
//! at once stays in the transport, and no frame is encoded before that is gone: frames wait in the
//! session, where they are counted.

use super::pipe::PipeEnd;
pub(crate) use super::ring::RingConnection;
use super::ring::{self, RingSink, RingSource};
use crate::fabric::stream::{Detached, Stream};
use std::cell::RefCell;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::rc::Rc;
use tokio::io::Interest;
use tokio::sync::mpsc;

/// Bytes that are read at once.
pub(crate) const READ: usize = 64 << 10;
/// Encoded bytes after which a write begins.
const WRITE: usize = 64 << 10;
/// A larger buffer is given back when it is empty.
pub(super) const KEEP: usize = 256 << 10;
/// Frames that are encoded at once for a socket: bounds how far a buffer grows beyond [`WRITE`].
const SOCKET_FRAMES: usize = 16;
/// Frames in one batch of a pipe.
const PIPE_FRAMES: usize = 128;

/// A connection that has been greeted, between threads.
#[derive(Debug)]
pub(crate) enum Connection {
    /// Within the process.
    Pipe(PipeEnd),
    /// A socket, in no reactor.
    Socket(Detached),
    /// A ring in shared memory, and the socket beside it.
    Ring(Box<RingConnection>),
}

/// The writing half, and what it has not written.
#[derive(Debug)]
pub(crate) enum Transport {
    Pipe {
        tx: mpsc::Sender<Vec<u8>>,
        /// Emptied buffers, on their way back to the other side, and back from it.
        give: mpsc::Sender<Vec<u8>>,
        spare: mpsc::Receiver<Vec<u8>>,
    },
    Socket {
        stream: Rc<Stream>,
        out: Vec<u8>,
        /// How much of `out` is written.
        written: usize,
    },
    Ring(RingSink),
}

/// The reading half.
#[derive(Debug)]
pub(crate) enum Source {
    Pipe(mpsc::Receiver<Vec<u8>>),
    Socket(Rc<Stream>),
    Ring(RingSource),
}

/// How far sending came.
#[derive(Debug)]
pub(crate) enum Sent {
    /// Everything is out of this node's hands.
    All,
    /// There is no room; [`Transport::room`] waits for it.
    Blocked,
    /// The transport is lost.
    Lost(io::Error),
}

impl Connection {
    /// Takes it into the reactor of this thread, and apart.
    pub(crate) fn open(self) -> io::Result<(Transport, Source)> {
        match self {
            Connection::Pipe(PipeEnd {
                tx,
                rx,
                give,
                spare,
            }) => Ok((Transport::Pipe { tx, give, spare }, Source::Pipe(rx))),
            Connection::Socket(socket) => {
                let stream = Rc::new(socket.attach()?);
                let source = Source::Socket(Rc::clone(&stream));
                let (out, written) = (Vec::new(), 0);
                let transport = Transport::Socket {
                    stream,
                    out,
                    written,
                };
                Ok((transport, source))
            }
            Connection::Ring(connection) => {
                let (sink, source) = ring::open(*connection)?;
                Ok((Transport::Ring(sink), Source::Ring(source)))
            }
        }
    }
}

impl Transport {
    /// Whether a session can go on over another one when this one is lost.
    pub(crate) fn is_socket(&self) -> bool {
        !matches!(self, Transport::Pipe { .. })
    }

    /// Sends what waits from before, then what `fill` appends, until that has no more. It is asked
    /// for so many frames and says whether there may be more.
    pub(crate) fn send(&mut self, mut fill: impl FnMut(usize, &mut Vec<u8>) -> bool) -> Sent {
        match self {
            Transport::Pipe { tx, spare, .. } => loop {
                let permit = match tx.try_reserve() {
                    Ok(permit) => permit,
                    Err(mpsc::error::TrySendError::Full(())) => return Sent::Blocked,
                    // Told of by its reader.
                    Err(mpsc::error::TrySendError::Closed(())) => return Sent::All,
                };
                let mut bytes = spare.try_recv().unwrap_or_default();
                let more = fill(PIPE_FRAMES, &mut bytes);
                if bytes.is_empty() {
                    return Sent::All;
                }
                permit.send(bytes);
                if !more {
                    return Sent::All;
                }
            },
            Transport::Socket {
                stream,
                out,
                written,
            } => loop {
                let mut more = true;
                // Nothing behind bytes that the kernel has not taken.
                while *written == 0 && more && out.len() < WRITE {
                    more = fill(SOCKET_FRAMES, out);
                }
                while *written < out.len() {
                    match stream.try_write(&out[*written..]) {
                        Ok(0) => return Sent::Lost(io::ErrorKind::WriteZero.into()),
                        Ok(n) => *written += n,
                        Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Sent::Blocked,
                        Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                        Err(e) => return Sent::Lost(e),
                    }
                }
                out.clear();
                *written = 0;
                if out.capacity() > KEEP {
                    *out = Vec::new();
                }
                if !more {
                    return Sent::All;
                }
            },
            Transport::Ring(sink) => sink.send(WRITE, |out| fill(SOCKET_FRAMES, out)),
        }
    }

    /// Appends what `fill` has, up to so many bytes, behind everything else: no more will come. A pipe
    /// that is full hears nothing.
    pub(crate) fn send_last(
        &mut self,
        most: usize,
        mut fill: impl FnMut(usize, &mut Vec<u8>) -> bool,
    ) {
        match self {
            Transport::Pipe { .. } => drop(self.send(fill)),
            Transport::Socket { out, .. } => while out.len() < most && fill(SOCKET_FRAMES, out) {},
            Transport::Ring(sink) => {
                while sink.out().len() < most && fill(SOCKET_FRAMES, sink.out()) {}
            }
        }
    }

    /// Puts bytes in front of all frames: the last word of a greeting.
    pub(crate) fn first(&mut self, bytes: Vec<u8>) {
        match self {
            // A new pipe has room.
            Transport::Pipe { tx, .. } => drop(tx.try_send(bytes)),
            Transport::Socket { out, .. } => out.extend_from_slice(&bytes),
            Transport::Ring(sink) => sink.first(&bytes),
        }
    }

    /// Ends when something can be sent, or the transport is lost.
    pub(crate) fn room(&self) -> impl Future<Output = ()> + 'static {
        enum Wait<R> {
            Pipe(mpsc::Sender<Vec<u8>>),
            Socket(Rc<Stream>),
            Ring(R),
        }
        let wait = match self {
            Transport::Pipe { tx, .. } => Wait::Pipe(tx.clone()),
            Transport::Socket { stream, .. } => Wait::Socket(Rc::clone(stream)),
            Transport::Ring(sink) => Wait::Ring(sink.room()),
        };
        async move {
            match wait {
                Wait::Pipe(tx) => drop(tx.reserve().await),
                Wait::Socket(stream) => drop(stream.ready(Interest::WRITABLE).await),
                Wait::Ring(room) => room.await,
            }
        }
    }

    /// Takes back the buffer of a batch that was read.
    pub(crate) fn emptied(&mut self, mut bytes: Vec<u8>) {
        if let Transport::Pipe { give, .. } = self {
            bytes.clear();
            let _ = give.try_send(bytes);
        } else {
            give_buffer(bytes);
        }
    }

    /// Sends the descriptor of a pool of this node beside the ring. In front of the frame that
    /// tells of the pool.
    ///
    /// # Errors
    /// See [`ring::send_descriptor`]; `Unsupported` if this is no ring.
    pub(crate) fn send_descriptor(&self, pool: u32, fd: BorrowedFd<'_>) -> io::Result<()> {
        match self {
            Transport::Ring(sink) => sink.send_descriptor(pool, fd),
            _ => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// The descriptor that the other side sent for this pool of its own, if it has sent one by now. It
    /// has when the frame that tells of the pool is here.
    pub(crate) fn take_descriptor(&self, pool: u32) -> Option<OwnedFd> {
        match self {
            Transport::Ring(sink) => sink.take_descriptor(pool),
            _ => None,
        }
    }

    /// The last words of a session: what waits is written, then the other side is left to read it.
    /// Bounded by whoever polls. Closing a socket with bytes unread makes the kernel throw away what
    /// the other side has not read yet, so this side reads until the other one closes.
    pub(crate) async fn linger(self) {
        let (stream, out, written) = match self {
            Transport::Pipe { .. } => return,
            Transport::Ring(sink) => return sink.linger().await,
            Transport::Socket {
                stream,
                out,
                written,
            } => (stream, out, written),
        };
        let mut rest = out.get(written..).unwrap_or_default();
        while !rest.is_empty() {
            match stream.try_write(rest) {
                Ok(0) => return,
                Ok(n) => rest = &rest[n..],
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    if stream.ready(Interest::WRITABLE).await.is_err() {
                        return;
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
        if no_more_writes(&stream).is_err() {
            return;
        }
        let mut sink = take_buffer();
        loop {
            match stream.try_read(&mut sink) {
                Ok(0) => break,
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    if stream.ready(Interest::READABLE).await.is_err() {
                        break;
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        give_buffer(sink);
    }
}

impl Source {
    /// The next bytes that came, and how many of the buffer they are.
    ///
    /// # Errors
    /// The transport is lost; the text says how.
    pub(crate) async fn next(&mut self) -> Result<(Vec<u8>, usize), String> {
        match self {
            Source::Ring(source) => source.next().await,
            Source::Pipe(rx) => match rx.recv().await {
                Some(bytes) => {
                    let len = bytes.len();
                    Ok((bytes, len))
                }
                None => Err("the other side closed it".into()),
            },
            Source::Socket(stream) => loop {
                stream
                    .ready(Interest::READABLE)
                    .await
                    .map_err(|e| e.to_string())?;
                // Only now: an idle connection holds no buffer.
                let mut buffer = take_buffer();
                match stream.try_read(&mut buffer) {
                    Ok(0) => {
                        give_buffer(buffer);
                        return Err("the other side closed it".into());
                    }
                    Ok(n) => return Ok((buffer, n)),
                    Err(e) => {
                        give_buffer(buffer);
                        match e.kind() {
                            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => {}
                            _ => return Err(e.to_string()),
                        }
                    }
                }
            },
        }
    }
}

pub(super) fn no_more_writes(stream: &Stream) -> io::Result<()> {
    let how = std::net::Shutdown::Write;
    match stream {
        Stream::Tcp(s) => socket2::SockRef::from(s).shutdown(how),
        Stream::Unix(s) => socket2::SockRef::from(s).shutdown(how),
    }
}

/// Buffers of [`READ`] bytes that a thread keeps between reads.
const SPARE_BUFFERS: usize = 8;

thread_local! {
    static BUFFERS: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

pub(super) fn take_buffer() -> Vec<u8> {
    BUFFERS
        .with_borrow_mut(Vec::pop)
        .unwrap_or_else(|| vec![0; READ])
}

pub(super) fn give_buffer(buffer: Vec<u8>) {
    if buffer.len() == READ {
        BUFFERS.with_borrow_mut(|spare| {
            if spare.len() < SPARE_BUFFERS {
                spare.push(buffer);
            }
        });
    }
}
