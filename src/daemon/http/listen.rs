//! Listeners and connections.
//!
//! ```text
//!   bind ─▶ Bound ─▶ serve ─▶ accept ─▶ (TLS) ─▶ HTTP/1.1 ─▶ router
//!                      │ a permit for each connection      │ told to stop: the request that runs is
//!                      └ none left: one of the reserve,     └ answered, then the connection closes
//!                        for one probe, or a 503
//! ```
//!
//! Rules: nothing that one client does or leaves undone holds up another: heads have a deadline, what
//! is not read by the client has one, and so has the handshake. Clients that use up all connections
//! are not taken for a wedge: probes are answered on a few more, for which descriptors are left.

use super::Problem;
use super::halves::{Asked, Halves};
use crate::cli::exit::Failure;
use crate::daemon::config::{Http, Listen};
use crate::daemon::tasks::Guard;
use axum::Router;
use axum::http::{Request, StatusCode};
use axum::response::IntoResponse;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use socket2::SockRef;
use std::future::poll_fn;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt;

/// How long after the stop a connection may still take.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// How long sent bytes may stay unacknowledged.
const UNREAD_FOR: Duration = Duration::from_secs(30);
/// Connections beyond the limit: for probes, and to be told that the limit is reached.
const RESERVE: usize = 16;
/// How long one of those may take: its handshake and its head, and all of it.
const PROBE: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(10));
/// Descriptors that are left to everything else: rooms, pools, other nodes, canaries, the reserve.
const ELSEWHERE: usize = 256;
/// Connections that there may be whatever the limit of descriptors.
const FEWEST: usize = 16;
/// How long to wait when the system gives no descriptor for a new connection.
const BREATH: Duration = Duration::from_millis(50);

/// A socket that listens.
pub(crate) enum Bound {
    Tcp(TcpListener),
    Unix(UnixListener, SocketFile),
}

impl Bound {
    /// Listens there.
    pub(crate) fn new(listen: &Listen) -> Result<Bound, Failure> {
        match listen {
            Listen::Tcp(address) => {
                let failed =
                    |e| Failure::Failed(format!("cannot listen for HTTP on {address}: {e}"));
                let socket = std::net::TcpListener::bind(address).map_err(failed)?;
                socket.set_nonblocking(true).map_err(failed)?;
                TcpListener::from_std(socket)
                    .map(Bound::Tcp)
                    .map_err(failed)
            }
            Listen::Unix(path) => {
                let shown = path.display();
                let failed = |e| Failure::Failed(format!("cannot listen for HTTP on {shown}: {e}"));
                remove_dead(path);
                let socket = UnixListener::bind(path).map_err(failed)?;
                let file = SocketFile {
                    path: path.clone(),
                    made: file_at(path)
                        .ok_or_else(|| failed(std::io::Error::other("it was removed at once")))?,
                };
                Ok(Bound::Unix(socket, file))
            }
        }
    }

    /// As the ready line says it.
    pub(crate) fn address(&self) -> String {
        match self {
            Bound::Tcp(socket) => socket
                .local_addr()
                .map(|a| a.to_string())
                .unwrap_or_default(),
            Bound::Unix(_, file) => format!("unix://{}", file.path.display()),
        }
    }

    /// The port of a TCP socket.
    pub(crate) fn port(&self) -> Option<u16> {
        match self {
            Bound::Tcp(socket) => socket.local_addr().ok().map(|a| a.port()),
            Bound::Unix(..) => None,
        }
    }
}

/// The file of a Unix socket, removed when dropped, unless another daemon has put its own there.
pub(crate) struct SocketFile {
    path: PathBuf,
    /// Its device and inode.
    made: (u64, u64),
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if file_at(&self.path) == Some(self.made) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// The device and inode of what lies there.
fn file_at(path: &Path) -> Option<(u64, u64)> {
    let found = std::fs::symlink_metadata(path).ok()?;
    Some((found.dev(), found.ino()))
}

/// A socket that nobody listens on any more is in the way of the next life.
fn remove_dead(path: &Path) {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_socket());
    if is_socket && std::os::unix::net::UnixStream::connect(path).is_err() {
        let _ = std::fs::remove_file(path);
    }
}

/// Answered though there are as many connections as there may be.
const PROBES: &[&str] = &["/livez", "/readyz", "/metrics"];

/// What a connection is there for.
struct Permit {
    /// For one probe, and nothing else.
    probe: bool,
    _held: OwnedSemaphorePermit,
}

/// What all connections share.
pub(super) struct Serving {
    router: Router,
    tls: Option<TlsAcceptor>,
    http: http1::Builder,
    header_timeout: Duration,
    permits: Arc<Semaphore>,
    most: usize,
    reserve: Arc<Semaphore>,
    /// For what is in the reserve.
    probes: http1::Builder,
    stop: watch::Receiver<bool>,
}

impl Serving {
    pub(super) fn new(
        settings: &Http,
        tls: Option<TlsAcceptor>,
        router: Router,
        stop: watch::Receiver<bool>,
    ) -> Arc<Serving> {
        let wanted = settings.max_connections.clamp(1, Semaphore::MAX_PERMITS);
        let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
        let most = most_connections(wanted, open_files(&limits));
        if most < wanted {
            tracing::warn!(
                "http.max_connections is {wanted}, and the process may open {} files (ulimit -n): {most} connections \
                 at once are taken; raise the limit of open files, or set fewer connections",
                open_files(&limits).unwrap_or_default()
            );
        }
        let head = usize::try_from(settings.max_header_bytes.0).unwrap_or(usize::MAX);
        let head = head.clamp(8 << 10, 16 << 20);
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new())
            .header_read_timeout(settings.header_timeout)
            .max_header_size(head)
            .max_buf_size(head.max(64 << 10));
        let mut probes = http.clone();
        probes
            .header_read_timeout(settings.header_timeout.min(PROBE.0))
            .half_close(true)
            .keep_alive(false);
        Arc::new(Serving {
            router,
            tls,
            http,
            header_timeout: settings.header_timeout,
            permits: Arc::new(Semaphore::new(most)),
            most,
            // Each listener has one while it waits.
            reserve: Arc::new(Semaphore::new(RESERVE + settings.listen.len())),
            probes,
            stop,
        })
    }

    /// Accepts until told to stop.
    pub(super) async fn accept(self: Arc<Self>, bound: Bound, task: Guard) {
        let mut stop = self.stop.clone();
        loop {
            let accepted = tokio::select! {
                _ = stop.wait_for(|stop| *stop) => return,
                accepted = self.next(&bound) => accepted,
            };
            match accepted {
                Ok(()) => {
                    if task.succeeds() {
                        tracing::warn!("connections are accepted again");
                    }
                }
                Err(e) => {
                    if task.fails(&e) {
                        tracing::error!("cannot accept a connection: {e}");
                    }
                    tokio::time::sleep(BREATH).await;
                }
            }
        }
    }

    /// Waits until the last connection is closed, for a moment at most.
    pub(super) async fn end(&self) {
        let all = u32::try_from(self.most).unwrap_or(u32::MAX);
        let _ = tokio::time::timeout(LAST_WORDS, self.permits.acquire_many(all)).await;
    }

    async fn next(self: &Arc<Self>, bound: &Bound) -> std::io::Result<()> {
        let spare = Arc::clone(&self.reserve).acquire_owned().await;
        let spare = spare.map_err(std::io::Error::other)?;
        // Whether it is one too many is known when it is there.
        let permit = || {
            let held = Arc::clone(&self.permits).try_acquire_owned();
            Permit {
                probe: held.is_err(),
                _held: held.unwrap_or(spare),
            }
        };
        match bound {
            Bound::Tcp(socket) => {
                let (stream, _) = socket.accept().await?;
                let _ = stream.set_nodelay(true);
                let _ = SockRef::from(&stream).set_tcp_user_timeout(Some(UNREAD_FOR));
                tokio::spawn(Arc::clone(self).shake_hands(stream, permit()));
            }
            Bound::Unix(socket, _) => {
                let (stream, _) = socket.accept().await?;
                // Who may open the socket's file is known by that: no TLS.
                tokio::spawn(Arc::clone(self).talk(stream, permit()));
            }
        }
        Ok(())
    }

    async fn shake_hands(self: Arc<Self>, stream: tokio::net::TcpStream, permit: Permit) {
        let Some(tls) = self.tls.clone() else {
            return self.talk(stream, permit).await;
        };
        let within = if permit.probe {
            self.header_timeout.min(PROBE.0)
        } else {
            self.header_timeout
        };
        match tokio::time::timeout(within, tls.accept(stream)).await {
            Ok(Ok(stream)) => self.talk(stream, permit).await,
            Ok(Err(e)) => tracing::debug!("a TLS handshake failed: {e}"),
            Err(_) => tracing::debug!("a TLS handshake took too long"),
        }
    }

    async fn talk<S>(self: Arc<Self>, stream: S, permit: Permit)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        if permit.probe {
            let _ = tokio::time::timeout(PROBE.1, self.probe(stream)).await;
        } else {
            self.serve(stream).await;
        }
        drop(permit);
    }

    /// One request, which is answered if it is a probe.
    async fn probe<S>(self: Arc<Self>, stream: S)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (router, most) = (self.router.clone(), self.most);
        let service = service_fn(move |request: Request<Incoming>| {
            let router = router.clone();
            Box::pin(async move {
                if PROBES.contains(&request.uri().path()) {
                    return router.oneshot(request).await;
                }
                let text = format!(
                    "{most} connections are open (http.max_connections); probes alone are answered on more: try again"
                );
                Ok(Problem::limit("http.max_connections", text).into_response())
            })
        });
        let connection = self.probes.serve_connection(TokioIo::new(stream), service);
        if let Err(e) = connection.await {
            tracing::debug!("a connection over the limit: {e}");
        }
    }

    async fn serve<S>(self: Arc<Self>, stream: S)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let router = self.router.clone();
        let asked = Asked::default();
        let service = {
            let asked = asked.clone();
            service_fn(move |request: Request<Incoming>| {
                let (asked, answer) = (asked.clone(), router.clone().oneshot(request));
                Box::pin(async move { answer.await.map(|answer| asked.until_sent(answer)) })
            })
        };
        let stream = TokioIo::new(Halves::new(stream, asked));
        let mut connection = self.http.serve_connection(stream, service);
        let mut stop = self.stop.clone();
        let mut stopping = false;
        let ended = loop {
            tokio::select! {
                ended = poll_fn(|cx| connection.poll_without_shutdown(cx)) => break ended,
                _ = stop.wait_for(|stop| *stop), if !stopping => {
                    stopping = true;
                    std::pin::Pin::new(&mut connection).graceful_shutdown();
                }
            }
        };
        let parts = connection.into_parts();
        let mut stream = parts.io.into_inner();
        let closing = async {
            let too_slow = ended.as_ref().is_err_and(hyper::Error::is_timeout);
            // A connection that is only idle is closed without a word.
            if too_slow && !parts.read_buf.is_empty() {
                let _ = stream.write_all(&slow_head(self.header_timeout)).await;
            }
            let _ = stream.shutdown().await;
        };
        let _ = tokio::time::timeout(LAST_WORDS, closing).await;
    }
}

/// How many files a process may have open, by its `/proc/PID/limits`; none if that is without bound.
fn open_files(limits: &str) -> Option<usize> {
    let line = limits
        .lines()
        .find_map(|l| l.strip_prefix("Max open files"));
    line?.split_whitespace().next()?.parse().ok()
}

/// As many connections as are wanted, if there are descriptors for them.
fn most_connections(wanted: usize, open_files: Option<usize>) -> usize {
    let most = open_files.map(|files| files.saturating_sub(ELSEWHERE).max(FEWEST));
    most.map_or(wanted, |most| wanted.min(most))
}

/// The answer to a head that did not come to its end.
fn slow_head(within: Duration) -> Vec<u8> {
    let problem = Problem::new(
        StatusCode::REQUEST_TIMEOUT,
        "slow-headers",
        "The headers took too long",
        format!("the headers did not end within {within:?} (http.header_timeout)"),
    );
    let body = problem.to_bytes();
    let head = format!(
        "HTTP/1.1 408 Request Timeout\r\nContent-Type: application/problem+json\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n",
        body.len()
    );
    [head.into_bytes(), body].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_connections_are_taken_than_there_are_descriptors_for() {
        let limits = "Limit                     Soft Limit           Hard Limit           Units\n\
                      Max processes             63000                63000                processes\n\
                      Max open files            1024                 1048576              files\n";
        assert_eq!(open_files(limits), Some(1024));
        assert_eq!(open_files("Max open files            unlimited"), None);
        assert_eq!(open_files(""), None);
        assert_eq!(most_connections(1024, Some(1024)), 768);
        assert_eq!(most_connections(1024, Some(65_536)), 1024);
        assert_eq!(most_connections(1024, Some(64)), 16);
        assert_eq!(most_connections(7, Some(64)), 7);
        assert_eq!(most_connections(1024, None), 1024);
    }
}
