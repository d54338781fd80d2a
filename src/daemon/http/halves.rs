//! A connection whose client may have closed its half.
//!
//! ```text
//!   client ── request, end ──▶ Halves ── request ──▶ hyper        (the end is kept back)
//!          ◀──────────── answer ──────────────────── hyper ── end? ──▶ yes, it is at rest
//! ```
//!
//! Rules: who says that it sends no more still reads, or is gone: nothing tells the two apart before something
//! is sent. So it has its answer if that comes within [`PATIENCE`], and is taken for gone after that: what
//! waits for it ends, as for a client whose connection breaks. Between requests an end is an end at once.

use axum::response::Response;
use http_body_util::BodyExt;
use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// How long an answer may take for a client that has closed its half.
const PATIENCE: Duration = Duration::from_secs(10);

/// Whether a request is being answered; each that is has a clone.
#[derive(Clone, Default)]
pub(super) struct Asked(Arc<()>);

impl Asked {
    /// Until the answer's last byte was taken over.
    pub(super) fn until_sent(self, response: Response) -> Response {
        response.map(|body| {
            let kept = move |error| {
                let _until_the_body_is_dropped = &self;
                error
            };
            axum::body::Body::new(body.map_err(kept))
        })
    }
}

/// The connection.
pub(super) struct Halves<S> {
    stream: S,
    asked: Asked,
    /// Clones of `asked` when nothing is being answered.
    at_rest: usize,
    /// What was answered is not all sent.
    unsent: bool,
    /// The client's half is closed, and until when that is kept back.
    ended: Option<Pin<Box<Sleep>>>,
}

impl<S> Halves<S> {
    /// To be made when the one who serves has its clone.
    pub(super) fn new(stream: S, asked: Asked) -> Halves<S> {
        let at_rest = Arc::strong_count(&asked.0);
        Halves {
            stream,
            asked,
            at_rest,
            unsent: false,
            ended: None,
        }
    }

    fn is_answering(&self) -> bool {
        self.unsent || Arc::strong_count(&self.asked.0) > self.at_rest
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Halves<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = into.filled().len();
        if this.ended.is_none() {
            ready!(Pin::new(&mut this.stream).poll_read(cx, into))?;
            if into.filled().len() > before || into.remaining() == 0 {
                return Poll::Ready(Ok(()));
            }
        }
        if !this.is_answering() {
            return Poll::Ready(Ok(()));
        }
        let until = this.ended.get_or_insert_with(|| Box::pin(sleep(PATIENCE)));
        until.as_mut().poll(cx).map(Ok)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Halves<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.unsent = written.is_pending();
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bytes);
        self.unsent = written.is_pending();
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
