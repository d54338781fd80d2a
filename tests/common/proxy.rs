//! A proxy between two nodes whose connections can be broken while they run.
//!
//! ```text
//!   dialer ──▶ Proxy ──▶ listener        Way::Up: what the dialer says
//!          ◀──       ◀──                 Way::Down: what it hears
//! ```
//!
//! Every fault is set off by a call or by the number of bytes that have passed, never by time. A
//! connection has the number in which it was accepted, over the proxy's whole life: the control
//! connection is first, then come the data connections. It runs on a thread and a runtime of its own, so that a
//! test that blocks its thread does not stop it.
#![allow(dead_code)] // Each test file uses a part of it.
#![allow(clippy::unwrap_used)]

use socket2::SockRef;
use std::collections::BTreeMap;
use std::io;
use std::net::Shutdown;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{oneshot, watch};

/// One direction of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// From who connected.
    Up,
    /// To who connected.
    Down,
}

/// What happens to a direction, or to the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// The connection is reset towards both ends.
    Reset,
    /// The far end of this direction sees an end of stream; what comes after it is thrown away.
    HalfClose,
    /// What comes is read and thrown away: a black hole that acknowledges.
    Swallow,
    /// Nothing is read any more: a peer that is stopped.
    Stop,
    /// The next byte is changed by these bits; the rest passes.
    Flip(u8),
    /// The next frame comes twice; of a control connection.
    Repeat,
    /// The next frame comes behind the one after it; of a control connection.
    Swap,
}

/// How many of the first bytes of a connection are kept.
pub(crate) const HEAD: usize = 16;

/// What a connection does before the first byte of it passes.
pub(crate) type Plan = Vec<(Way, u64, Act)>;

type Planner = Box<dyn FnMut(usize) -> Plan + Send>;

/// A listener whose connections go on to another address.
pub(crate) struct Proxy {
    address: String,
    shared: Arc<Shared>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

struct Shared {
    upstream: Mutex<String>,
    planner: Mutex<Planner>,
    links: Mutex<BTreeMap<usize, Link>>,
    /// Connections ever.
    count: AtomicUsize,
    refusing: Mutex<bool>,
    refused: AtomicU64,
}

impl Proxy {
    /// A proxy on a free port of 127.0.0.1.
    pub(crate) fn tcp(upstream: &str) -> Proxy {
        Proxy::start(upstream, None)
    }

    /// A proxy on a Unix socket at this path.
    pub(crate) fn unix(upstream: &str, path: PathBuf) -> Proxy {
        Proxy::start(upstream, Some(path))
    }

    fn start(upstream: &str, path: Option<PathBuf>) -> Proxy {
        let shared = Arc::new(Shared {
            upstream: Mutex::new(upstream.to_owned()),
            planner: Mutex::new(Box::new(|_| Plan::new())),
            links: Mutex::default(),
            count: AtomicUsize::new(0),
            refusing: Mutex::new(false),
            refused: AtomicU64::new(0),
        });
        let (tell, told) = std::sync::mpsc::channel();
        let (stop, mut stopped) = oneshot::channel::<()>();
        let of = Arc::clone(&shared);
        let run = move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async move {
                let listener = Listener::bind(path).await;
                tell.send(listener.address()).unwrap();
                loop {
                    tokio::select! {
                        _ = &mut stopped => return,
                        Ok(near) = listener.accept() => accepted(near, &of),
                    }
                }
            });
        };
        let thread = std::thread::Builder::new().name("proxy".into());
        let thread = thread.spawn(run).unwrap();
        Proxy {
            address: told.recv().unwrap(),
            shared,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    /// Where to connect.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Where connections that come from now on go.
    pub(crate) fn lead_to(&self, upstream: &str) {
        *lock(&self.shared.upstream) = upstream.to_owned();
    }

    /// Asked once for each connection that comes from now on, with its number.
    pub(crate) fn plan(&self, planner: impl FnMut(usize) -> Plan + Send + 'static) {
        *lock(&self.shared.planner) = Box::new(planner);
    }

    /// Whether connections that come are reset at once. They get no number.
    pub(crate) fn refuse(&self, refuse: bool) {
        *lock(&self.shared.refusing) = refuse;
    }

    /// How many were.
    pub(crate) fn refused(&self) -> u64 {
        self.shared.refused.load(Ordering::SeqCst)
    }

    /// Whether they are now.
    pub(crate) fn refuses(&self) -> bool {
        *lock(&self.shared.refusing)
    }

    /// How many connections ever came and were not refused.
    pub(crate) fn connections(&self) -> u64 {
        self.shared.count.load(Ordering::SeqCst) as u64
    }

    /// All connections ever, those that are over among them unless they were forgotten.
    pub(crate) fn links(&self) -> Vec<Link> {
        lock(&self.shared.links).values().cloned().collect()
    }

    /// Forgets those that are over.
    pub(crate) fn forget(&self) {
        lock(&self.shared.links).retain(|_, link| link.is_open());
    }

    /// Those that are not over.
    pub(crate) fn open(&self) -> Vec<Link> {
        let mut links = self.links();
        links.retain(Link::is_open);
        links
    }

    /// A connection by its number; waits until it is there.
    pub(crate) async fn link(&self, number: usize) -> Link {
        let start = Instant::now();
        loop {
            if let Some(link) = lock(&self.shared.links).get(&number) {
                return link.clone();
            }
            let there = self.shared.count.load(Ordering::SeqCst);
            assert!(
                start.elapsed() < super::PATIENCE,
                "connection {number} never came; there are {there}"
            );
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Does this to all open connections.
    pub(crate) fn all(&self, way: Way, act: Act) {
        for link in self.open() {
            link.now(way, act);
        }
    }

    /// Resets all open connections.
    pub(crate) fn reset(&self) {
        self.all(Way::Up, Act::Reset);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// One connection through a proxy.
#[derive(Clone)]
pub(crate) struct Link {
    number: usize,
    state: Arc<State>,
}

struct State {
    ways: Mutex<[Flow; 2]>,
    /// Counts changes, so that whoever waits looks again.
    changes: watch::Sender<u64>,
    /// No socket of it is open any more.
    over: watch::Sender<bool>,
}

#[derive(Default)]
struct Flow {
    mode: Mode,
    /// What happens when so many bytes have passed.
    at: BTreeMap<u64, Act>,
    /// Bytes read from the near end.
    came: u64,
    /// Bytes that the far end's socket took.
    passed: u64,
    /// Change the next byte.
    flip: u8,
    /// Bytes that were changed and not swallowed.
    flipped: u64,
    /// Resets at a number of bytes that have happened.
    resets: u64,
    /// The first bytes that came.
    head: Vec<u8>,
    delay: Duration,
    /// Bytes in a second.
    rate: Option<u64>,
    frames: Frames,
    /// What happens when so many frames have passed.
    at_frame: BTreeMap<u64, Act>,
    /// A frame that is to come once more, or later.
    again: Option<Again>,
}

/// A frame that is kept while it comes.
struct Again {
    act: Act,
    /// Frames that had come before it.
    before: u64,
    bytes: Vec<u8>,
    is_whole: bool,
}

/// Where the frames of a control connection end. Not of a data connection, of which it counts none.
#[derive(Default)]
struct Frames {
    /// Of the present frame: its length and sum, as far as they have come.
    prefix: Vec<u8>,
    /// Bytes of it that are still to come, when its prefix has.
    left: u64,
    /// Frames that have come, the greetings among them.
    whole: u64,
}

impl Frames {
    const PREFIX: usize = 8;

    /// Whether a frame has ended and nothing of the next one has come.
    fn is_between(&self) -> bool {
        self.left == 0 && self.prefix.is_empty()
    }

    /// How many bytes may be read without reading over an end.
    fn most(&self) -> u64 {
        match self.left {
            0 => (Frames::PREFIX - self.prefix.len()) as u64,
            left => left,
        }
    }

    /// Not more of them than [`Frames::most`] said.
    fn came(&mut self, bytes: &[u8]) {
        if self.left > 0 {
            self.left -= bytes.len() as u64;
        } else {
            self.prefix.extend_from_slice(bytes);
            if let Some(word) = self.prefix.first_chunk::<4>()
                && self.prefix.len() == Frames::PREFIX
            {
                // The length, without the check of it.
                self.left = u64::from(u32::from_le_bytes(*word) & ((1 << 25) - 1));
            } else {
                return;
            }
        }
        if self.left == 0 {
            self.prefix.clear();
            self.whole += 1;
        }
    }
}

impl Again {
    /// Whether the kept frame had come whole before these bytes; keeps them if not.
    fn was_whole(&mut self, frames: u64, bytes: &[u8]) -> bool {
        let whole = self.is_whole;
        if !whole {
            self.bytes.extend_from_slice(bytes);
            self.is_whole = frames > self.before;
        }
        whole
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Mode {
    #[default]
    Forward,
    Swallow,
    Stop,
    /// To be half closed, then swallowed.
    Close,
    Reset,
}

impl Link {
    /// In which order it came, from 0.
    pub(crate) fn number(&self) -> usize {
        self.number
    }

    /// Does it now.
    pub(crate) fn now(&self, way: Way, act: Act) {
        self.change(way, |flow| flow.act(act));
    }

    /// Does it when `bytes` bytes in all have come this way. More than have come already.
    pub(crate) fn after(&self, way: Way, bytes: u64, act: Act) {
        self.change(way, |flow| {
            assert!(bytes >= flow.came, "{} have passed already", flow.came);
            flow.at.insert(bytes, act);
        });
    }

    /// Does it when so many bytes more have come this way.
    pub(crate) fn after_more(&self, way: Way, more: u64, act: Act) {
        self.change(way, |flow| {
            flow.at.insert(flow.came + more, act);
        });
    }

    /// Does it when so many frames more have come this way, at the end of the last one; of a control
    /// connection. What is only on its way counts.
    pub(crate) fn after_frames(&self, way: Way, more: u64, act: Act) {
        self.change(way, |flow| {
            flow.at_frame.insert(flow.frames.whole + more, act);
        });
    }

    /// Frames that have come this way so far, greetings among them; of a control connection.
    pub(crate) fn frames(&self, way: Way) -> u64 {
        lock(&self.state.ways)[way as usize].frames.whole
    }

    /// Forwards again, and forgets what was to happen. What was swallowed stays lost, and a frame that is
    /// held back to be swapped still goes behind the next one.
    pub(crate) fn heal(&self) {
        for way in [Way::Up, Way::Down] {
            self.change(way, |flow| {
                flow.mode = Mode::Forward;
                flow.at.clear();
                flow.at_frame.clear();
                flow.again.take_if(|again| again.act == Act::Repeat);
                (flow.delay, flow.rate) = (Duration::ZERO, None);
            });
        }
    }

    /// Lets a direction that is stopped go on.
    pub(crate) fn go_on(&self, way: Way) {
        self.change(way, |flow| flow.mode = Mode::Forward);
    }

    /// Holds every read back for so long.
    pub(crate) fn delay(&self, way: Way, delay: Duration) {
        self.change(way, |flow| flow.delay = delay);
    }

    /// Lets no more bytes through in a second.
    pub(crate) fn throttle(&self, way: Way, bytes: u64) {
        self.change(way, |flow| flow.rate = Some(bytes));
    }

    /// Bytes that have come this way so far.
    pub(crate) fn came(&self, way: Way) -> u64 {
        self.flow(way).0
    }

    /// Bytes that have reached the other end's socket so far.
    pub(crate) fn passed(&self, way: Way) -> u64 {
        self.flow(way).1
    }

    /// Bytes that were changed so far, and not swallowed.
    pub(crate) fn flipped(&self, way: Way) -> u64 {
        lock(&self.state.ways)[way as usize].flipped
    }

    /// Resets at a number of bytes that have happened so far: one at most.
    pub(crate) fn resets(&self, way: Way) -> u64 {
        lock(&self.state.ways)[way as usize].resets
    }

    /// Whether something is to happen at a number of bytes, or to the next one.
    pub(crate) fn is_armed(&self, way: Way) -> bool {
        let flow = &lock(&self.state.ways)[way as usize];
        !flow.at.is_empty() || flow.flip != 0
    }

    /// The first bytes that came this way, at most [`HEAD`], as they came.
    pub(crate) fn head(&self, way: Way) -> Vec<u8> {
        lock(&self.state.ways)[way as usize].head.clone()
    }

    /// Whether what was to happen at a number of bytes has happened.
    pub(crate) fn has_acted(&self, way: Way) -> bool {
        let flow = &lock(&self.state.ways)[way as usize];
        flow.at.is_empty() && flow.at_frame.is_empty() && flow.again.is_none()
    }

    /// Whether what comes this way is thrown away.
    pub(crate) fn swallows(&self, way: Way) -> bool {
        let mode = lock(&self.state.ways)[way as usize].mode;
        matches!(mode, Mode::Swallow | Mode::Close)
    }

    /// Whether one of its sockets is open.
    pub(crate) fn is_open(&self) -> bool {
        !*self.state.over.borrow()
    }

    fn flow(&self, way: Way) -> (u64, u64) {
        let ways = lock(&self.state.ways);
        let flow = &ways[way as usize];
        (flow.came, flow.passed)
    }

    fn change(&self, way: Way, change: impl FnOnce(&mut Flow)) {
        change(&mut lock(&self.state.ways)[way as usize]);
        self.state.changes.send_modify(|n| *n += 1);
    }
}

impl Flow {
    fn act(&mut self, act: Act) {
        match act {
            Act::Reset => self.mode = Mode::Reset,
            Act::HalfClose => self.mode = Mode::Close,
            Act::Swallow => self.mode = Mode::Swallow,
            Act::Stop => self.mode = Mode::Stop,
            Act::Flip(bits) => self.flip = bits,
            Act::Repeat | Act::Swap => {
                self.again = Some(Again {
                    act,
                    before: self.frames.whole,
                    bytes: Vec::new(),
                    is_whole: false,
                });
            }
        }
    }

    /// What of `bytes`, which have been taken, goes on now: with a frame that comes again behind it, or
    /// nothing while one is held back.
    fn again(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut now = bytes.to_vec();
        let Some(again) = &mut self.again else {
            return now;
        };
        let is_over = |frames| self.frames.whole >= again.before + frames;
        let last = match again.act {
            Act::Swap => 2,
            _ => 1,
        };
        if is_over(last) {
            if last == 1 {
                again.bytes.extend_from_slice(bytes);
            }
            now.append(&mut again.bytes);
            self.again = None;
        } else if again.act == Act::Repeat {
            again.bytes.extend_from_slice(bytes);
        } else if !again.was_whole(self.frames.whole, bytes) {
            now.clear();
        }
        now
    }

    /// Does what is due, and says how many bytes may come until the next thing is.
    fn due(&mut self) -> u64 {
        while let Some(first) = self.at.first_entry()
            && *first.key() <= self.came
        {
            let act = first.remove();
            self.resets += u64::from(act == Act::Reset);
            self.act(act);
        }
        while let Some(first) = self.at_frame.first_entry()
            && *first.key() <= self.frames.whole
            && (self.frames.is_between() || !matches!(first.get(), Act::Repeat | Act::Swap))
        {
            let act = first.remove();
            self.act(act);
        }
        let next = self.at.first_key_value().map_or(u64::MAX, |(at, _)| *at);
        match self.is_control() {
            false => next - self.came,
            true => self.frames.most().min(next - self.came),
        }
    }

    /// As far as can be said: behind length, sum and "KVRM" of the first frame stands which message it
    /// is. Nothing else that a test sends begins so.
    fn is_control(&self) -> bool {
        let magic = self
            .head
            .get(8..12)
            .is_none_or(|magic| magic == b"KVRM" || magic == b"MRVK");
        magic && self.head.get(12).is_none_or(|message| *message == 0)
    }

    /// Bytes have come, not more of them than [`Flow::due`] said.
    fn take(&mut self, bytes: &[u8]) {
        if self.is_control() {
            self.frames.came(bytes);
        }
        self.came += bytes.len() as u64;
        let head = HEAD.saturating_sub(self.head.len()).min(bytes.len());
        self.head.extend_from_slice(&bytes[..head]);
    }
}

fn accepted(near: Socket, shared: &Arc<Shared>) {
    if *lock(&shared.refusing) {
        near.reset_on_close();
        shared.refused.fetch_add(1, Ordering::SeqCst);
        return;
    }
    let upstream = lock(&shared.upstream).clone();
    let number = shared.count.fetch_add(1, Ordering::SeqCst);
    let mut flows = [Flow::default(), Flow::default()];
    for (way, at, act) in lock(&shared.planner)(number) {
        flows[way as usize].at.insert(at, act);
    }
    let link = Link {
        number,
        state: Arc::new(State {
            ways: Mutex::new(flows),
            changes: watch::Sender::new(0),
            over: watch::Sender::new(false),
        }),
    };
    lock(&shared.links).insert(number, link.clone());
    tokio::spawn(async move {
        match Socket::connect(&upstream).await {
            Ok(far) => carry(&near, &far, &link).await,
            Err(_) => near.reset_on_close(),
        }
        drop(near);
        link.state.over.send_replace(true);
    });
}

/// Both directions, until both have ended or the connection is reset.
async fn carry(near: &Socket, far: &Socket, link: &Link) {
    let up = pump(near, far, link, Way::Up);
    let down = pump(far, near, link, Way::Down);
    let reset = async {
        let mut changes = link.state.changes.subscribe();
        loop {
            changes.mark_unchanged();
            if lock(&link.state.ways).iter().any(|f| f.mode == Mode::Reset) {
                return;
            }
            if changes.changed().await.is_err() {
                return;
            }
        }
    };
    let both = async { tokio::try_join!(up, down) };
    let ended = tokio::select! {
        biased;
        () = reset => None,
        ended = both => ended.ok(),
    };
    if ended.is_none() {
        near.reset_on_close();
        far.reset_on_close();
    }
}

/// One direction, until its end of stream; an error is a reset.
async fn pump(from: &Socket, to: &Socket, link: &Link, way: Way) -> io::Result<()> {
    let mut changes = link.state.changes.subscribe();
    let mut buffer = vec![0; 16 << 10];
    loop {
        changes.mark_unchanged();
        let (mode, most) = {
            let mut ways = lock(&link.state.ways);
            let flow = &mut ways[way as usize];
            let most = flow.due();
            let one = if flow.flip == 0 { most } else { 1 };
            (flow.mode, one)
        };
        match mode {
            Mode::Stop => {
                let _ = changes.changed().await;
                continue;
            }
            Mode::Reset => return Err(io::ErrorKind::ConnectionReset.into()),
            Mode::Close => {
                to.close_write();
                link.change(way, |flow| flow.mode = Mode::Swallow);
                continue;
            }
            Mode::Forward | Mode::Swallow => {}
        }
        let most = usize::try_from(most)
            .unwrap_or(usize::MAX)
            .min(buffer.len());
        let n = tokio::select! {
            biased;
            _ = changes.changed() => continue,
            n = from.read(&mut buffer[..most]) => n,
        };
        let n = match n {
            // A black hole takes the end of what it swallows, too.
            Ok(0) | Err(_) if mode == Mode::Swallow => return Ok(()),
            Ok(0) => {
                to.close_write();
                return Ok(());
            }
            n => n?,
        };
        let bytes = &mut buffer[..n];
        let (mut mode, delay, rate) = {
            let mut ways = lock(&link.state.ways);
            let flow = &mut ways[way as usize];
            flow.take(bytes);
            if flow.flip != 0 {
                bytes[0] ^= std::mem::take(&mut flow.flip);
                flow.flipped += u64::from(flow.mode != Mode::Swallow);
            }
            (flow.mode, flow.delay, flow.rate)
        };
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        if let Some(rate) = rate {
            tokio::time::sleep(Duration::from_secs_f64(n as f64 / rate as f64)).await;
        }
        while mode == Mode::Stop {
            let _ = changes.changed().await;
            mode = lock(&link.state.ways)[way as usize].mode;
        }
        if mode == Mode::Forward {
            let now = lock(&link.state.ways)[way as usize].again(bytes);
            to.write_all(&now).await?;
            lock(&link.state.ways)[way as usize].passed += now.len() as u64;
        }
    }
}

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

impl Listener {
    async fn bind(path: Option<PathBuf>) -> Listener {
        match path {
            None => Listener::Tcp(TcpListener::bind("127.0.0.1:0").await.unwrap()),
            Some(path) => Listener::Unix(UnixListener::bind(&path).unwrap(), path),
        }
    }

    fn address(&self) -> String {
        match self {
            Listener::Tcp(l) => format!("tcp://{}", l.local_addr().unwrap()),
            Listener::Unix(_, path) => format!("unix://{}", path.display()),
        }
    }

    async fn accept(&self) -> io::Result<Socket> {
        match self {
            Listener::Tcp(l) => l.accept().await.map(|(s, _)| Socket::tcp(s)),
            Listener::Unix(l, _) => l.accept().await.map(|(s, _)| Socket::Unix(s)),
        }
    }
}

/// A stream socket that both directions use through a shared reference.
enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    fn tcp(stream: TcpStream) -> Socket {
        let _ = stream.set_nodelay(true);
        Socket::Tcp(stream)
    }

    async fn connect(address: &str) -> io::Result<Socket> {
        match address.split_once("://") {
            Some(("tcp", at)) => TcpStream::connect(at).await.map(Socket::tcp),
            Some(("unix", at)) => UnixStream::connect(at).await.map(Socket::Unix),
            _ => panic!("{address} is no address"),
        }
    }

    async fn read(&self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            let read = match self {
                Socket::Tcp(s) => {
                    s.readable().await?;
                    s.try_read(into)
                }
                Socket::Unix(s) => {
                    s.readable().await?;
                    s.try_read(into)
                }
            };
            match read {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                read => return read,
            }
        }
    }

    async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let wrote = match self {
                Socket::Tcp(s) => {
                    s.writable().await?;
                    s.try_write(bytes)
                }
                Socket::Unix(s) => {
                    s.writable().await?;
                    s.try_write(bytes)
                }
            };
            match wrote {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) => return Err(e),
                Ok(n) => bytes = &bytes[n..],
            }
        }
        Ok(())
    }

    fn close_write(&self) {
        let _ = match self {
            Socket::Tcp(s) => SockRef::from(s).shutdown(Shutdown::Write),
            Socket::Unix(s) => SockRef::from(s).shutdown(Shutdown::Write),
        };
    }

    /// When it is dropped the other end gets a reset and not an end of stream. A Unix socket cannot
    /// do that unless bytes are unread.
    fn reset_on_close(&self) {
        if let Socket::Tcp(s) = self {
            let _ = s.set_zero_linger();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
