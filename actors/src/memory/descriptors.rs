//! Descriptors over a Unix socket.
//!
//! ```text
//!   send_with_fds(socket, bytes, fds) ──▶ kernel: own descriptors for who reads ──▶ recv_with_fds
//! ```
//!
//! Rules: what was received is owned at once, so that no error leaks it; it is close-on-exec; a
//! message whose descriptors did not all arrive is an error and never a shorter list.
#![allow(unsafe_code)] // sendmsg and recvmsg, and the descriptors that come with them.

use std::io;
use std::mem::{MaybeUninit, offset_of, size_of};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// Descriptors in one message, at most; the kernel's own bound.
pub(crate) const MAX_DESCRIPTORS: usize = 253;

/// A control message with room for descriptors, as `CMSG_DATA` lays it out.
#[repr(C)]
struct Control {
    head: libc::cmsghdr,
    fds: [RawFd; MAX_DESCRIPTORS],
}

impl Control {
    /// All zero: says nothing.
    fn new() -> Control {
        Control {
            head: zeroed_cmsghdr(),
            fds: [0; MAX_DESCRIPTORS],
        }
    }

    /// Bytes of one with `n` descriptors, without padding behind: the kernel then gives no more.
    const fn bytes(n: usize) -> usize {
        offset_of!(Control, fds) + n * size_of::<RawFd>()
    }
}

/// Sends bytes with descriptors beside the first of them. The descriptors stay the caller's.
/// Gives how many bytes were taken; the descriptors are on their way if that is not 0, and what is
/// left of the bytes goes without them.
///
/// # Errors
/// `InvalidInput` for more than [`MAX_DESCRIPTORS`], or for descriptors without a byte to go with;
/// else the socket's, `WouldBlock` among them. Nothing was sent.
pub(crate) fn send_with_fds(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
) -> io::Result<usize> {
    if fds.len() > MAX_DESCRIPTORS || bytes.is_empty() {
        let text = "descriptors go with at least one byte, and at most 253 of them";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    let mut control = Control::new();
    for (place, fd) in control.fds.iter_mut().zip(fds) {
        *place = fd.as_raw_fd();
    }
    control.head.cmsg_len = Control::bytes(fds.len()) as _; // about a thousand at most
    control.head.cmsg_level = libc::SOL_SOCKET;
    control.head.cmsg_type = libc::SCM_RIGHTS;
    let mut part = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    let mut message = zeroed_msghdr();
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    if !fds.is_empty() {
        message.msg_control = (&raw mut control).cast();
        message.msg_controllen = Control::bytes(fds.len()) as _;
    }
    // SAFETY: the message points to one part, which is borrowed and only read, and to a control
    // message of the length said; both live through the call.
    let n = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) };
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}

/// Receives bytes and the descriptors that came with them, `most` at most. No bytes mean that the
/// other side has closed.
///
/// # Errors
/// `InvalidInput` for an empty buffer or `most` over [`MAX_DESCRIPTORS`]; `InvalidData` if there were
/// more descriptors than `most`, or this process can have no more: those that came are closed, and
/// the bytes are lost; else the socket's, `WouldBlock` among them.
pub(crate) fn recv_with_fds(
    socket: BorrowedFd<'_>,
    into: &mut [u8],
    most: usize,
) -> io::Result<(usize, Vec<OwnedFd>)> {
    if most > MAX_DESCRIPTORS || into.is_empty() {
        let text = "an empty buffer, or room for more than 253 descriptors";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    let mut control = Control::new();
    let mut part = libc::iovec {
        iov_base: into.as_mut_ptr().cast(),
        iov_len: into.len(),
    };
    let mut message = zeroed_msghdr();
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut control).cast();
    message.msg_controllen = Control::bytes(most) as _;
    let flags = libc::MSG_CMSG_CLOEXEC;
    // SAFETY: the message points to one part, which is borrowed for writing, and to room for a
    // control message, of the lengths said; both live through the call.
    let n = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) };
    let n = usize::try_from(n).map_err(|_| io::Error::last_os_error())?;
    let came: usize = message.msg_controllen;
    let mut fds = Vec::new();
    let mut strange = false;
    if came >= Control::bytes(0) {
        let rights = control.head.cmsg_level == libc::SOL_SOCKET
            && control.head.cmsg_type == libc::SCM_RIGHTS;
        strange = !rights;
        if rights {
            let bytes = control.head.cmsg_len.saturating_sub(Control::bytes(0));
            for fd in control.fds.iter().take(bytes / size_of::<RawFd>()) {
                // SAFETY: the kernel has just made this descriptor for us, and nobody else knows it.
                fds.push(unsafe { OwnedFd::from_raw_fd(*fd) });
            }
        }
    }
    if strange || message.msg_flags & libc::MSG_CTRUNC != 0 || fds.len() > most {
        let text = format!(
            "the other side sent more descriptors than the {most} that this message may have, or \
             this process may open no more (see ulimit -n)"
        );
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    Ok((n, fds))
}

fn zeroed_cmsghdr() -> libc::cmsghdr {
    // SAFETY: numbers only, for which zero is a value.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

fn zeroed_msghdr() -> libc::msghdr {
    // SAFETY: numbers and raw pointers only, for which zero is a value.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Bell;
    use std::io::{Read, Seek};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    fn pair() -> (UnixStream, UnixStream) {
        let (a, b) = UnixStream::pair().unwrap();
        a.set_nonblocking(true).unwrap();
        b.set_nonblocking(true).unwrap();
        (a, b)
    }

    fn is_close_on_exec(fd: &OwnedFd) -> bool {
        let info =
            std::fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd())).unwrap();
        let flags = info.lines().find_map(|l| l.strip_prefix("flags:")).unwrap();
        i64::from_str_radix(flags.trim(), 8).unwrap() & i64::from(libc::O_CLOEXEC) != 0
    }

    #[test]
    fn descriptors_arrive_with_their_bytes_in_order_and_close_on_exec() {
        let (a, b) = pair();
        let bells = [Bell::new().unwrap(), Bell::new().unwrap()];
        for (n, bell) in (1..).zip(&bells) {
            (0..n).for_each(|_| bell.ring());
        }
        let fds = [bells[0].as_fd(), bells[1].as_fd()];
        assert_eq!(send_with_fds(a.as_fd(), b"two", &fds).unwrap(), 3);
        assert_eq!(send_with_fds(a.as_fd(), b"none", &[]).unwrap(), 4);
        let mut buffer = [0; 16];
        let (n, came) = recv_with_fds(b.as_fd(), &mut buffer, 2).unwrap();
        assert_eq!(&buffer[..n], b"two");
        assert_eq!(came.len(), 2);
        for (n, fd) in (1..).zip(came) {
            assert!(is_close_on_exec(&fd));
            assert_eq!(Bell::from(fd).count(), n);
        }
        let (n, came) = recv_with_fds(b.as_fd(), &mut buffer, 2).unwrap();
        assert_eq!((&buffer[..n], came.len()), (&b"none"[..], 0));
        drop(a);
        let (n, came) = recv_with_fds(b.as_fd(), &mut buffer, 2).unwrap();
        assert_eq!((n, came.len()), (0, 0));
    }

    #[test]
    fn an_empty_socket_would_block() {
        let (_a, b) = pair();
        let error = recv_with_fds(b.as_fd(), &mut [0; 4], 1).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn more_descriptors_than_asked_for_are_an_error_and_leak_nothing() {
        for most in [0, 1] {
            let (a, b) = pair();
            // A pipe tells when its last writing end is closed.
            let (mut read, write) = std::io::pipe().unwrap();
            let fds = [write.as_fd(), write.as_fd()];
            assert_eq!(send_with_fds(a.as_fd(), b"x", &fds).unwrap(), 1);
            let error = recv_with_fds(b.as_fd(), &mut [0; 4], most).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
            drop(write);
            let mut rest = Vec::new();
            assert_eq!(read.read_to_end(&mut rest).unwrap(), 0);
        }
    }

    #[test]
    fn as_many_as_the_kernel_takes_and_not_one_more() {
        let (a, b) = pair();
        let file = std::fs::File::open("/dev/null").unwrap();
        let most = vec![file.as_fd(); MAX_DESCRIPTORS];
        assert_eq!(send_with_fds(a.as_fd(), b"x", &most).unwrap(), 1);
        let (n, came) = recv_with_fds(b.as_fd(), &mut [0; 4], MAX_DESCRIPTORS).unwrap();
        assert_eq!((n, came.len()), (1, MAX_DESCRIPTORS));
        let over = vec![file.as_fd(); MAX_DESCRIPTORS + 1];
        let error = send_with_fds(a.as_fd(), b"x", &over).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        let error = send_with_fds(a.as_fd(), b"", &most).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        let mut own = file.try_clone().unwrap();
        assert_eq!(
            own.stream_position().unwrap(),
            0,
            "the sender keeps its own"
        );
    }
}
