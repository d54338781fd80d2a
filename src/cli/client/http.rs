//! Requests to a daemon: HTTP/1.1, a connection each.

use super::super::args::DaemonArgs;
use super::super::exit::Failure;
use super::super::secret;
use super::table::printable;
use super::url::{Place, Target};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

/// The most bytes of an answer that is taken as a whole.
const MAX_ANSWER: usize = 64 << 20;

/// A daemon that can be asked.
pub(super) struct Daemon {
    url: String,
    place: Place,
    token: Option<HeaderValue>,
    pub(super) timeout: Duration,
}

/// A question.
pub(super) struct Question {
    pub(super) method: Method,
    pub(super) target: Target,
    pub(super) body: Option<Value>,
    /// A former event, after which a stream is to go on.
    pub(super) last_event: Option<String>,
}

impl Question {
    /// `GET`.
    pub(super) fn get(target: Target) -> Question {
        Question {
            method: Method::GET,
            target,
            body: None,
            last_event: None,
        }
    }
}

impl Daemon {
    /// The one that these arguments name.
    pub(super) fn new(args: &DaemonArgs) -> Result<Daemon, Failure> {
        let place = Place::read(&args.url)?;
        let token = match &args.token_file {
            None => None,
            Some(path) => {
                let wrong =
                    |why: String| Failure::Usage(format!("token file {}: {why}", path.display()));
                let text = secret::read(path, secret::MOST);
                let text = text.map_err(|e| wrong(format!("cannot be read: {e}")))?;
                let token = text.trim_ascii();
                if token.is_empty() {
                    return Err(wrong("it has no token".to_owned()));
                }
                let bearer = [b"Bearer ", token].concat();
                let value = HeaderValue::from_bytes(&bearer);
                let mut value =
                    value.map_err(|_| wrong("the token has bytes that no token has".to_owned()))?;
                value.set_sensitive(true);
                Some(value)
            }
        };
        Ok(Daemon {
            url: args.url.clone(),
            place,
            token,
            timeout: args.timeout,
        })
    }

    /// The whole answer, as JSON.
    ///
    /// # Errors
    /// The daemon cannot be asked, says nothing for longer than its time, or refuses.
    pub(super) async fn ask(
        &self,
        question: Question,
        patience: Duration,
    ) -> Result<Value, Failure> {
        let body = self.text(question, patience).await?;
        serde_json::from_slice(&body)
            .map_err(|e| Failure::Failed(format!("{}: the answer is not JSON: {e}", self.url)))
    }

    async fn text(&self, question: Question, patience: Duration) -> Result<Bytes, Failure> {
        let whole = async {
            let response = self.send(question).await?;
            collect(response).await.map_err(|why| self.failed(&why))
        };
        match tokio::time::timeout(patience, whole).await {
            Ok(result) => result,
            Err(_) => Err(self.silent(patience)),
        }
    }

    /// The beginning of an answer, whose body is still to come.
    ///
    /// # Errors
    /// As [`Daemon::ask`].
    pub(super) async fn open(&self, question: Question) -> Result<Response<Incoming>, Failure> {
        match tokio::time::timeout(self.timeout, self.send(question)).await {
            Ok(result) => result,
            Err(_) => Err(self.silent(self.timeout)),
        }
    }

    /// Something went wrong on the way.
    pub(super) fn failed(&self, why: &str) -> Failure {
        Failure::Failed(format!("{}: {why}", self.url))
    }

    fn silent(&self, patience: Duration) -> Failure {
        self.failed(&format!(
            "the daemon said nothing within {patience:?}; see --timeout"
        ))
    }

    /// Gives an answer of success, or what the daemon says instead.
    async fn send(&self, question: Question) -> Result<Response<Incoming>, Failure> {
        let request = self.request(question)?;
        let response = match &self.place {
            Place::Tcp(host, port) => {
                let host = host.trim_start_matches('[').trim_end_matches(']');
                let stream = TcpStream::connect((host, *port)).await;
                exchange(stream.map_err(|e| self.nobody(&e))?, request).await
            }
            Place::Unix(path) => {
                let stream = UnixStream::connect(path).await;
                exchange(stream.map_err(|e| self.nobody(&e))?, request).await
            }
        };
        let response = response.map_err(|e| self.failed(&format!("the connection broke: {e}")))?;
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status();
        let body = collect(response).await.unwrap_or_default();
        Err(Failure::Failed(problem(status.as_u16(), &body)))
    }

    fn nobody(&self, error: &std::io::Error) -> Failure {
        self.failed(&format!(
            "cannot connect: {error}; is `kvroom serve` running there? See --url and KVROOM_URL"
        ))
    }

    fn request(&self, question: Question) -> Result<Request<Full<Bytes>>, Failure> {
        let mut request = Request::builder()
            .method(question.method)
            .uri(question.target.as_str())
            .header(HOST, self.place.host())
            .header(ACCEPT, "*/*");
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, token.clone());
        }
        if let Some(id) = question.last_event {
            request = request.header("last-event-id", id);
        }
        let body = match question.body {
            None => Bytes::new(),
            Some(body) => {
                request = request.header(CONTENT_TYPE, "application/json");
                Bytes::from(body.to_string())
            }
        };
        let request = request.body(Full::new(body));
        request.map_err(|e| Failure::Usage(format!("no request can be made of that: {e}")))
    }
}

async fn exchange<S>(stream: S, request: Request<Full<Bytes>>) -> hyper::Result<Response<Incoming>>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // Ends with the answer, or with the program.
    tokio::spawn(connection);
    sender.send_request(request).await
}

async fn collect(response: Response<Incoming>) -> Result<Bytes, String> {
    let body = Limited::new(response.into_body(), MAX_ANSWER)
        .collect()
        .await;
    let body =
        body.map_err(|e| format!("the answer broke off, or is over {MAX_ANSWER} bytes: {e}"));
    Ok(body?.to_bytes())
}

/// What the daemon says to a request that it does not do.
fn problem(status: u16, body: &[u8]) -> String {
    let problem: Value = serde_json::from_slice(body).unwrap_or(Value::Null);
    let word = |key: &str| problem[key].as_str().map(printable);
    match (word("detail"), word("title")) {
        (Some(detail), _) => {
            let code = word("code").map(|code| format!(", {code}"));
            format!("{detail} ({status}{})", code.unwrap_or_default())
        }
        (None, Some(title)) => format!("{title} ({status})"),
        (None, None) => {
            let text = String::from_utf8_lossy(&body[..body.len().min(200)]);
            let text = printable(text.trim());
            let text = if text.is_empty() {
                "nothing more"
            } else {
                &text
            };
            format!("it answered with status {status}: {text}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_told_in_the_daemons_words() {
        let document = br#"{"title":"T","detail":"the room is\u001b there","code":"room-exists"}"#;
        let text = problem(409, document);
        assert_eq!(text, "the room is\\u{1b} there (409, room-exists)");
        assert_eq!(problem(404, b"{\"title\":\"T\"}"), "T (404)");
        assert!(problem(502, b"<html>").ends_with("502: <html>"));
        assert!(problem(500, b"").contains("nothing more"));
    }
}
