//! Listening: sockets bound before the node starts, accepted on its own thread.
//!
//! ```text
//!   bind ─▶ Listener ─▶ accept loop ─▶ Greetings ─▶ one task for each connection, until it is greeted
//!                                       └ one too many: the oldest stranger is put out
//! ```
//!
//! Rules:
//! - whoever connects and says nothing costs a socket and a task, for [`Deadlines::connect`] at most,
//!   and keeps nobody out: one more than [`Limits::greetings`] puts out the oldest;
//! - a connection that has proven who it is (or has greeted, without a key) is counted apart, so that
//!   a flood of strangers does not put it out;
//! - running out of file descriptors stops the accepting for a moment and not for good.
//!
//! [`Deadlines::connect`]: crate::limits::Deadlines::connect
//! [`Limits::greetings`]: crate::limits::Limits::greetings

use super::address::{Address, AddressError};
use super::pulse::Entrance;
use crate::fabric::stream::Stream;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::ToSocketAddrs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixListener as StdUnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::task::AbortHandle;
use tokio::time::Instant;

/// Connections that the kernel keeps for this node until it accepts them.
const BACKLOG: i32 = 1_024;
/// How long accepting rests when the process has no file descriptor left.
const REST: Duration = Duration::from_millis(50);
/// Connections that are accepted in a row before the greetings have their turn.
const IN_A_ROW: u32 = 16;

/// Why an address cannot be listened at.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// It is no address.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// It names a node of a hub.
    #[error("{0} cannot be listened at: a node is found under its name in its hub")]
    Local(String),
    /// Its host is no name that can be looked up, or has no address.
    #[error("the host of {address} cannot be found: {cause}")]
    Host {
        /// The address.
        address: String,
        /// What the resolver said.
        cause: io::Error,
    },
    /// Somebody answers there already.
    #[error("{0} is in use: somebody answers there")]
    InUse(String),
    /// Something that is no socket is there.
    #[error("{0} is there and is no socket: remove it, or listen elsewhere")]
    NoSocket(String),
    /// The kernel refused.
    #[error("cannot listen at {address}: {cause}")]
    Bind {
        /// The address.
        address: String,
        /// What the kernel said.
        cause: io::Error,
    },
}

/// A bound socket that nobody accepts from yet.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: Socket,
    /// With the port that it was given.
    pub(crate) address: String,
}

#[derive(Debug)]
enum Socket {
    Tcp(std::net::TcpListener),
    Unix(StdUnixListener, SocketFile),
    /// In the abstract namespace: no file.
    Near(StdUnixListener),
}

/// The file of a Unix socket; removed when it is dropped, unless another node has put its own there.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    inode: (u64, u64),
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if inode(&self.path).is_ok_and(|now| now == self.inode) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn inode(path: &Path) -> io::Result<(u64, u64)> {
    std::fs::symlink_metadata(path).map(|m| (m.dev(), m.ino()))
}

/// Binds. Looks names up, and so may block for as long as that takes.
///
/// # Errors
/// See [`ListenError`].
pub(crate) fn bind(text: &str) -> Result<Listener, ListenError> {
    match Address::parse(text)? {
        Address::Local(_) => Err(ListenError::Local(text.to_owned())),
        Address::Tcp { host, port } => tcp(text, &host, port),
        Address::Unix(path) => unix(text, path),
    }
}

/// A socket by which nodes on this host find this one, whatever they connected to: its name is given
/// to peers that have proven themselves.
///
/// # Errors
/// The kernel refused.
pub(crate) fn bind_near(name: &str) -> io::Result<Listener> {
    use std::os::linux::net::SocketAddrExt;
    let address = std::os::unix::net::SocketAddr::from_abstract_name(name)?;
    let listener = StdUnixListener::bind_addr(&address)?;
    listener.set_nonblocking(true)?;
    Ok(Listener {
        socket: Socket::Near(listener),
        address: format!("the abstract socket {name}"),
    })
}

fn tcp(text: &str, host: &str, port: u16) -> Result<Listener, ListenError> {
    let host_error = |cause| ListenError::Host {
        address: text.to_owned(),
        cause,
    };
    let mut last = io::Error::other("it has no address");
    for at in (host, port).to_socket_addrs().map_err(host_error)? {
        match bind_tcp(at) {
            Ok((listener, port)) => {
                let host = host.to_owned();
                return Ok(Listener {
                    socket: Socket::Tcp(listener),
                    address: Address::Tcp { host, port }.to_string(),
                });
            }
            Err(error) => last = error,
        }
    }
    Err(ListenError::Bind {
        address: text.to_owned(),
        cause: last,
    })
}

fn bind_tcp(at: std::net::SocketAddr) -> io::Result<(std::net::TcpListener, u16)> {
    use socket2::{Domain, Protocol, Socket, Type};
    let socket = Socket::new(Domain::for_address(at), Type::STREAM, Some(Protocol::TCP))?;
    // A node that restarts finds its port again, whatever is left of its connections.
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&at.into())?;
    socket.listen(BACKLOG)?;
    let listener = std::net::TcpListener::from(socket);
    let port = listener.local_addr()?.port();
    Ok((listener, port))
}

fn unix(text: &str, path: PathBuf) -> Result<Listener, ListenError> {
    let bind_error = |cause| ListenError::Bind {
        address: text.to_owned(),
        cause,
    };
    if let Ok(found) = std::fs::symlink_metadata(&path) {
        if !found.file_type().is_socket() {
            return Err(ListenError::NoSocket(text.to_owned()));
        }
        // Left behind by a node that was killed, if nobody is at home.
        match is_anybody_at(&path) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                std::fs::remove_file(&path).map_err(bind_error)?;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                return Err(bind_error(error));
            }
            _ => return Err(ListenError::InUse(text.to_owned())),
        }
    }
    let listener = StdUnixListener::bind(&path).map_err(bind_error)?;
    let inode = inode(&path).map_err(bind_error)?;
    listener.set_nonblocking(true).map_err(bind_error)?;
    Ok(Listener {
        socket: Socket::Unix(listener, SocketFile { path, inode }),
        address: text.to_owned(),
    })
}

/// Asks without waiting: a node that is stopped and has its backlog full would answer never. It says
/// `WouldBlock` then.
fn is_anybody_at(path: &Path) -> io::Result<()> {
    use socket2::{Domain, SockAddr, Socket, Type};
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.connect(&SockAddr::unix(path)?)
}

/// A listener in the reactor of this thread.
#[derive(Debug)]
pub(crate) enum Accepting {
    Tcp(tokio::net::TcpListener),
    Unix(
        tokio::net::UnixListener,
        #[allow(dead_code)] Option<SocketGuard>,
    ),
}

/// Keeps a socket's file until the listener goes.
#[derive(Debug)]
pub(crate) struct SocketGuard(#[allow(dead_code)] SocketFile);

impl Listener {
    /// Enters the reactor of this thread.
    pub(crate) fn attach(self) -> io::Result<Accepting> {
        match self.socket {
            Socket::Tcp(listener) => {
                tokio::net::TcpListener::from_std(listener).map(Accepting::Tcp)
            }
            Socket::Unix(listener, file) => tokio::net::UnixListener::from_std(listener)
                .map(|l| Accepting::Unix(l, Some(SocketGuard(file)))),
            Socket::Near(listener) => {
                tokio::net::UnixListener::from_std(listener).map(|l| Accepting::Unix(l, None))
            }
        }
    }
}

impl Accepting {
    async fn accept(&self) -> io::Result<Stream> {
        match self {
            Accepting::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                Ok(Stream::Tcp(stream))
            }
            Accepting::Unix(listener, _) => {
                let (stream, _) = listener.accept().await?;
                Ok(Stream::Unix(stream))
            }
        }
    }

    /// Hands over every connection, for ever.
    pub(crate) async fn run(
        self,
        node: &str,
        address: &str,
        door: Option<&Entrance>,
        mut each: impl FnMut(Stream),
    ) {
        let mut in_a_row = 0;
        let mut resting = false;
        loop {
            match self.accept().await {
                Ok(stream) => {
                    if resting && let Some(door) = door {
                        door.works();
                    }
                    resting = false;
                    each(stream);
                    in_a_row += 1;
                    if in_a_row >= IN_A_ROW {
                        in_a_row = 0;
                        tokio::task::yield_now().await;
                    }
                }
                // It went before it was accepted.
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::ConnectionAborted
                            | io::ErrorKind::ConnectionReset
                            | io::ErrorKind::Interrupted
                    ) => {}
                Err(error) => {
                    if !resting {
                        tracing::error!(node, address, %error, "cannot accept; trying on");
                    }
                    resting = true;
                    if let Some(door) = door {
                        door.fails(&error);
                    }
                    tokio::time::sleep(REST).await;
                }
            }
        }
    }
}

/// What strangers may make this node write into its log at most: a line a second.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    said: Option<Instant>,
    unsaid: u64,
}

impl Refusals {
    /// Longest silence about them.
    const EVERY: Duration = Duration::from_secs(1);

    /// One more. How many there were since the last line, this one too, if there is to be one now.
    pub(crate) fn add(&mut self, now: Instant) -> Option<u64> {
        self.unsaid += 1;
        if self
            .said
            .is_some_and(|said| now.saturating_duration_since(said) < Self::EVERY)
        {
            return None;
        }
        self.said = Some(now);
        Some(std::mem::take(&mut self.unsaid))
    }
}

/// The connections that are being greeted.
#[derive(Debug)]
pub(crate) struct Greetings {
    most: usize,
    next: u64,
    strangers: Waiting,
    known: Waiting,
}

/// In the order in which they came; those that are over are skipped.
#[derive(Debug, Default)]
struct Waiting {
    order: VecDeque<u64>,
    tasks: BTreeMap<u64, AbortHandle>,
}

impl Greetings {
    pub(crate) fn new(most: usize) -> Self {
        Greetings {
            most: most.max(1),
            next: 0,
            strangers: Waiting::default(),
            known: Waiting::default(),
        }
    }

    /// A number for one more.
    pub(crate) fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// One more stranger. True if that put another one out.
    pub(crate) fn add(&mut self, number: u64, task: AbortHandle) -> bool {
        self.strangers.add(number, task, self.most)
    }

    /// It has said who it is. True if that put another one out.
    pub(crate) fn known(&mut self, number: u64) -> bool {
        match self.strangers.take(number) {
            Some(task) => self.known.add(number, task, self.most),
            None => false,
        }
    }

    /// Its greeting is over.
    pub(crate) fn over(&mut self, number: u64) {
        self.strangers.take(number);
        self.known.take(number);
    }

    /// Puts everybody out.
    pub(crate) fn clear(&mut self) {
        for waiting in [&mut self.strangers, &mut self.known] {
            for task in std::mem::take(&mut waiting.tasks).into_values() {
                task.abort();
            }
            waiting.order.clear();
        }
    }
}

impl Waiting {
    fn add(&mut self, number: u64, task: AbortHandle, most: usize) -> bool {
        let mut put_out = false;
        while self.tasks.len() >= most
            && let Some(oldest) = self.order.pop_front()
        {
            if let Some(task) = self.tasks.remove(&oldest) {
                task.abort();
                put_out = true;
            }
        }
        self.tasks.insert(number, task);
        self.order.push_back(number);
        if self.order.len() > 2 * most {
            self.order.retain(|n| self.tasks.contains_key(n));
        }
        put_out
    }

    fn take(&mut self, number: u64) -> Option<AbortHandle> {
        self.tasks.remove(&number)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("kvroom-listen-{}-{name}", std::process::id()))
    }

    #[test]
    fn a_port_that_is_not_named_is_told_and_one_that_is_taken_is_refused_by_name() {
        let first = bind("tcp://127.0.0.1:0").unwrap();
        assert!(!first.address.ends_with(":0"), "{}", first.address);
        let error = bind(&first.address).unwrap_err();
        assert!(matches!(error, ListenError::Bind { .. }));
        assert!(error.to_string().contains(&first.address), "{error}");
        let again = first.address.clone();
        drop(first);
        assert_eq!(bind(&again).unwrap().address, again);
    }

    #[test]
    fn a_socket_file_is_taken_over_only_from_the_dead_and_removed_at_the_end() {
        let path = scratch("stale.sock");
        let address = format!("unix://{}", path.display());
        drop(StdUnixListener::bind(&path).unwrap());
        assert!(path.exists(), "a killed node leaves its file behind");
        let alive = bind(&address).unwrap();
        let error = bind(&address).unwrap_err();
        assert!(matches!(error, ListenError::InUse(_)), "{error}");
        drop(alive);
        assert!(!path.exists());
        std::fs::write(&path, "precious").unwrap();
        let error = bind(&address).unwrap_err();
        assert!(matches!(error, ListenError::NoSocket(_)), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn the_file_of_another_node_is_left_alone() {
        let path = scratch("other.sock");
        let address = format!("unix://{}", path.display());
        let first = bind(&address).unwrap();
        std::fs::remove_file(&path).unwrap();
        let second = bind(&address).unwrap();
        drop(first);
        assert!(path.exists());
        drop(second);
        assert!(!path.exists());
    }

    #[test]
    fn a_stopped_node_with_a_full_backlog_is_somebody_and_is_not_waited_for() {
        use socket2::{Domain, SockAddr, Socket, Type};
        let path = scratch("full.sock");
        let at = SockAddr::unix(&path).unwrap();
        let full = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
        full.bind(&at).unwrap();
        full.listen(0).unwrap();
        let mut waiting = Vec::new();
        loop {
            let one = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
            one.set_nonblocking(true).unwrap();
            let connected = one.connect(&at);
            waiting.push(one);
            if connected.is_err() {
                break;
            }
        }
        let error = bind(&format!("unix://{}", path.display())).unwrap_err();
        assert!(matches!(error, ListenError::InUse(_)), "{error}");
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_flood_of_refusals_is_one_line_a_second_that_counts_them() {
        let mut refusals = Refusals::default();
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        assert_eq!(refusals.add(at(0)), Some(1));
        for ms in 1..1_000 {
            assert_eq!(refusals.add(at(ms)), None);
        }
        assert_eq!(refusals.add(at(1_000)), Some(1_000));
        assert_eq!(refusals.add(at(1_001)), None);
    }

    #[tokio::test]
    async fn one_stranger_too_many_puts_out_the_oldest_and_nobody_who_is_known() {
        let mut greetings = Greetings::new(2);
        let mut tasks = Vec::new();
        for n in 0..5 {
            let task = tokio::spawn(std::future::pending::<()>());
            let number = greetings.number();
            assert_eq!(greetings.add(number, task.abort_handle()), n > 2);
            if n == 0 {
                assert!(!greetings.known(number));
            }
            tasks.push(task);
        }
        for out in [1, 2] {
            assert!((&mut tasks[out]).await.unwrap_err().is_cancelled());
        }
        for still in [0, 3, 4] {
            assert!(!tasks[still].is_finished(), "{still}");
        }
        greetings.clear();
        for task in tasks
            .into_iter()
            .enumerate()
            .filter(|(n, _)| [0, 3, 4].contains(n))
        {
            assert!(task.1.await.unwrap_err().is_cancelled());
        }
    }
}
