//! A connected stream socket, TCP or Unix, that can move from one thread's reactor to another's.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream as StdUnix;
use tokio::io::{Interest, Ready};

/// In no reactor; non-blocking.
#[derive(Debug)]
pub(crate) enum Detached {
    Tcp(std::net::TcpStream),
    Unix(StdUnix),
}

/// In the reactor of the thread that made it.
#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(tokio::net::TcpStream),
    Unix(tokio::net::UnixStream),
}

impl Detached {
    /// Enters the reactor of this thread.
    pub(crate) fn attach(self) -> io::Result<Stream> {
        match self {
            Detached::Tcp(s) => tokio::net::TcpStream::from_std(s).map(Stream::Tcp),
            Detached::Unix(s) => tokio::net::UnixStream::from_std(s).map(Stream::Unix),
        }
    }
}

impl Stream {
    /// Leaves the reactor.
    pub(crate) fn detach(self) -> io::Result<Detached> {
        match self {
            Stream::Tcp(s) => s.into_std().map(Detached::Tcp),
            Stream::Unix(s) => s.into_std().map(Detached::Unix),
        }
    }

    /// Waits until one of these can be done.
    pub(crate) async fn ready(&self, interest: Interest) -> io::Result<Ready> {
        match self {
            Stream::Tcp(s) => s.ready(interest).await,
            Stream::Unix(s) => s.ready(interest).await,
        }
    }

    /// Does it now or says `WouldBlock`, which clears the readiness.
    pub(crate) fn try_io<R>(
        &self,
        interest: Interest,
        io: impl FnOnce() -> io::Result<R>,
    ) -> io::Result<R> {
        match self {
            Stream::Tcp(s) => s.try_io(interest, io),
            Stream::Unix(s) => s.try_io(interest, io),
        }
    }

    /// Reads what is there, if anything is.
    pub(crate) fn try_read(&self, into: &mut [u8]) -> io::Result<usize> {
        let asked = into.len();
        self.try_read_with(asked, || crate::memory::read_plain(self.as_fd(), into))
    }

    /// Reads once with `read`, which asks the socket for `asked` bytes. Less than that has emptied it,
    /// and the reactor is told so, which saves asking again to hear `WouldBlock`.
    pub(crate) fn try_read_with(
        &self,
        asked: usize,
        read: impl FnOnce() -> io::Result<usize>,
    ) -> io::Result<usize> {
        let mut short = None;
        let result = self.try_io(Interest::READABLE, || {
            let n = read()?;
            if n > 0 && n < asked {
                short = Some(n);
                return Err(io::ErrorKind::WouldBlock.into());
            }
            Ok(n)
        });
        short.map_or(result, Ok)
    }

    /// Writes what fits of these in order, if anything does.
    pub(crate) fn try_write_vectored(&self, slices: &[io::IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Stream::Tcp(s) => s.try_write_vectored(slices),
            Stream::Unix(s) => s.try_write_vectored(slices),
        }
    }

    /// Writes what fits, if anything does.
    pub(crate) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(s) => s.try_write(bytes),
            Stream::Unix(s) => s.try_write(bytes),
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Stream::Tcp(s) => s.as_fd(),
            Stream::Unix(s) => s.as_fd(),
        }
    }
}
