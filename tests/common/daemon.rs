//! A daemon in a process of its own, and a tiny HTTP/1.1 client on the standard library.
//!
//! ```text
//!   Daemon::start(&["--name", "decode"]) ──▶ kvroom serve --http 127.0.0.1:0 … ──▶ first line: ready
//!   daemon.post("/v1/rooms", &json!({…})) ──▶ Answer { status, headers, body }
//!   daemon.events("/v1/events") ──▶ Events ──▶ next() ──▶ Event { id, event, data }
//! ```
//!
//! A test file takes it with `#[path = "common/daemon.rs"] mod daemon;`. No wait is unbounded; a
//! daemon is killed when dropped, so it never outlives its test.
#![allow(dead_code)] // Each test file uses a part of it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "helpers of tests fail by panicking, as tests do"
)]

use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// How long anything is waited for before a test fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// The program, without what the environment of the test would change about it.
pub(crate) fn kvroom(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvroom"));
    command.args(args).stdin(Stdio::null());
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("KVROOM_") {
            command.env_remove(name);
        }
    }
    command.env_remove("RUST_LOG").env_remove("NOTIFY_SOCKET");
    command
}

/// `kvroom serve`, killed when dropped.
pub(crate) struct Daemon {
    child: Child,
    lines: mpsc::Receiver<String>,
    /// Its first line.
    pub(crate) ready: Value,
    /// Where it serves HTTP.
    pub(crate) http: SocketAddr,
    /// Sent as `Authorization: Bearer` with every request.
    pub(crate) token: Option<String>,
}

impl Daemon {
    /// Starts it on a free port and waits until it is ready.
    pub(crate) fn start(args: &[&str]) -> Daemon {
        Daemon::start_with(args, |_| {})
    }

    /// As [`Daemon::start`], with changes to the command.
    pub(crate) fn start_with(args: &[&str], change: impl FnOnce(&mut Command)) -> Daemon {
        let mut command = kvroom(&["serve", "--http", "127.0.0.1:0"]);
        command.args(args);
        change(&mut command);
        Daemon::spawn(command)
    }

    /// Starts this command, which says itself where it serves HTTP, and waits until it is ready.
    pub(crate) fn spawn(mut command: Command) -> Daemon {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = lines_of(child.stdout.take().unwrap());
        let Ok(first) = lines.recv_timeout(PATIENCE) else {
            let _ = child.kill();
            panic!("{command:?} is not ready: {:?}", child.wait());
        };
        let ready: Value = serde_json::from_str(&first).expect(&first);
        assert_eq!(ready["event"], "ready", "{first}");
        let http = ready["http"][0].as_str().unwrap_or_default().parse();
        Daemon {
            child,
            lines,
            http: http.unwrap_or_else(|_| SocketAddr::from(([127, 0, 0, 1], 0))),
            ready,
            token: None,
        }
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Where its node listens for other nodes.
    pub(crate) fn node_address(&self) -> String {
        self.ready["addresses"][0].as_str().unwrap().to_owned()
    }

    /// A client with one connection that is kept.
    pub(crate) fn client(&self) -> Client {
        Client {
            to: self.http,
            token: self.token.clone(),
            connection: None,
        }
    }

    /// `GET`, on a connection of its own.
    pub(crate) fn get(&self, path: &str) -> Answer {
        self.client().send("GET", path, None)
    }

    /// `POST` of JSON, on a connection of its own.
    pub(crate) fn post(&self, path: &str, body: &Value) -> Answer {
        self.client().send("POST", path, Some(body))
    }

    /// `DELETE`, on a connection of its own.
    pub(crate) fn delete(&self, path: &str) -> Answer {
        self.client().send("DELETE", path, None)
    }

    /// Asks until the answer is as wanted, and gives that one.
    pub(crate) fn until(&self, path: &str, wanted: impl Fn(&Answer) -> bool) -> Answer {
        let start = Instant::now();
        loop {
            let answer = self.get(path);
            if wanted(&answer) {
                return answer;
            }
            assert!(start.elapsed() < PATIENCE, "GET {path}: still {answer:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The stream of events at this path.
    pub(crate) fn events(&self, path: &str, last_id: Option<&str>) -> Events {
        Events::open(self, path, last_id)
    }

    /// Sends a signal, by its name without SIG.
    pub(crate) fn signal(&self, name: &str) {
        let kill = Command::new("kill")
            .args([&format!("-{name}"), &self.pid().to_string()])
            .status();
        assert!(kill.unwrap().success());
    }

    /// Waits until it has ended, and gives its last line.
    pub(crate) fn end(&mut self) -> (ExitStatus, Option<Value>) {
        let start = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(start.elapsed() < PATIENCE, "the daemon does not end");
            std::thread::sleep(Duration::from_millis(5));
        };
        let mut last = None;
        while let Ok(line) = self.lines.recv_timeout(PATIENCE) {
            last = serde_json::from_str(&line).ok();
        }
        (status, last)
    }

    /// Asks it to stop and waits until it has.
    pub(crate) fn stop(&mut self) -> (ExitStatus, Option<Value>) {
        self.signal("TERM");
        self.end()
    }

    /// Bytes of memory that the process has in use now.
    pub(crate) fn resident_bytes(&self) -> u64 {
        let path = format!("/proc/{}/status", self.pid());
        let status = std::fs::read_to_string(path).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:"));
        let kib = line.and_then(|line| line.split_whitespace().nth(1));
        kib.unwrap().parse::<u64>().unwrap() * 1024
    }

    /// Descriptors that the process has open now.
    pub(crate) fn open_files(&self) -> usize {
        let path = format!("/proc/{}/fd", self.pid());
        std::fs::read_dir(path).unwrap().count()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What daemons of this name, which is the test's alone, leave for their next life: removed when dropped.
pub(crate) struct Left<'a>(pub(crate) &'a str);

impl Drop for Left<'_> {
    fn drop(&mut self) {
        remove_all(&format!("kvroom:{}:", self.0));
    }
}

/// Removes what begins with this in `/dev/shm`.
pub(crate) fn remove_all(prefix: &str) {
    for entry in std::fs::read_dir("/dev/shm")
        .into_iter()
        .flatten()
        .flatten()
    {
        if entry.file_name().to_string_lossy().starts_with(prefix) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

fn lines_of(stdout: ChildStdout) -> mpsc::Receiver<String> {
    let (say, lines) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            if say.send(line).is_err() {
                break;
            }
        }
    });
    lines
}

/// What a request was answered with.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// Names in lower case.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    /// A header, by its name in lower case.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(n, _)| n == name);
        found.map(|(_, value)| value.as_str())
    }

    /// The body as text.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON.
    pub(crate) fn json(&self) -> Value {
        let parsed = serde_json::from_slice(&self.body);
        parsed.unwrap_or_else(|e| panic!("{e}: {} {}", self.status, self.text()))
    }

    /// The body as JSON, of an answer that has this status.
    #[track_caller]
    pub(crate) fn expect(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.text());
        self.json()
    }

    /// The detail of a problem document that has this status and this code.
    #[track_caller]
    pub(crate) fn expect_problem(&self, status: u16, code: &str) -> String {
        assert_eq!(self.status, status, "{}", self.text());
        let kind = self.header("content-type").unwrap_or_default();
        assert!(kind.starts_with("application/problem+json"), "{kind}");
        let problem = self.json();
        assert_eq!(problem["code"], code, "{problem}");
        assert_eq!(problem["status"], status, "{problem}");
        assert!(problem["title"].is_string() && problem["type"].is_string());
        problem["detail"].as_str().unwrap().to_owned()
    }
}

/// Asks over one connection, which it keeps, and makes again when it was closed.
pub(crate) struct Client {
    pub(crate) to: SocketAddr,
    pub(crate) token: Option<String>,
    connection: Option<BufReader<TcpStream>>,
}

impl Client {
    /// A client for this address.
    pub(crate) fn to(to: SocketAddr) -> Client {
        Client {
            to,
            token: None,
            connection: None,
        }
    }

    /// Sends a request and reads its answer.
    pub(crate) fn send(&mut self, method: &str, path: &str, body: Option<&Value>) -> Answer {
        let body = body.map(|body| serde_json::to_vec(body).unwrap());
        let kind = body.is_some().then_some("application/json");
        self.send_raw(method, path, kind, body.as_deref().unwrap_or_default())
    }

    /// Sends a request with any body.
    pub(crate) fn send_raw(
        &mut self,
        method: &str,
        path: &str,
        kind: Option<&str>,
        body: &[u8],
    ) -> Answer {
        let mut head = format!("{method} {path} HTTP/1.1\r\nHost: {}\r\n", self.to);
        if let Some(token) = &self.token {
            head.push_str(&format!("Authorization: Bearer {token}\r\n"));
        }
        if let Some(kind) = kind {
            head.push_str(&format!("Content-Type: {kind}\r\n"));
        }
        if !body.is_empty() || kind.is_some() {
            head.push_str(&format!("Content-Length: {}\r\n", body.len()));
        }
        head.push_str("\r\n");
        let message = [head.as_bytes(), body].concat();
        let kept = self.connection.take();
        if let Some(answer) = kept.and_then(|old| self.exchange(old, &message).ok()) {
            return answer;
        }
        let fresh = connect(self.to);
        let answer = self.exchange(BufReader::new(fresh), &message);
        answer.unwrap_or_else(|e| panic!("{method} {path}: {e}"))
    }

    fn exchange(
        &mut self,
        mut connection: BufReader<TcpStream>,
        message: &[u8],
    ) -> std::io::Result<Answer> {
        // What does not take all of a body may still answer.
        let written = connection.get_mut().write_all(message);
        let answer = read_answer(&mut connection).map_err(|e| written.err().unwrap_or(e))?;
        if answer.header("connection") != Some("close") {
            self.connection = Some(connection);
        }
        Ok(answer)
    }
}

/// A connection with a bound on every read and write.
pub(crate) fn connect(to: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect_timeout(&to, PATIENCE).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// Reads the next answer of a connection.
pub(crate) fn read_answer(from: &mut impl BufRead) -> std::io::Result<Answer> {
    let (status, headers) = read_head(from)?;
    let mut answer = Answer {
        status,
        headers,
        body: Vec::new(),
    };
    if answer.header("transfer-encoding") == Some("chunked") {
        while let Some(chunk) = read_chunk(from)? {
            answer.body.extend(chunk);
        }
    } else if let Some(length) = answer.header("content-length") {
        answer.body = vec![0; length.parse().unwrap()];
        from.read_exact(&mut answer.body)?;
    } else if status != 204 && status != 304 {
        from.read_to_end(&mut answer.body)?;
    }
    Ok(answer)
}

fn read_head(from: &mut impl BufRead) -> std::io::Result<(u16, Vec<(String, String)>)> {
    let first = read_line(from)?;
    let status = first.split(' ').nth(1).and_then(|s| s.parse().ok());
    let status =
        status.ok_or_else(|| std::io::Error::other(format!("not an answer: {first:?}")))?;
    let mut headers = Vec::new();
    loop {
        let line = read_line(from)?;
        match line.split_once(':') {
            Some((name, value)) => {
                headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
            }
            None => return Ok((status, headers)),
        }
    }
}

fn read_line(from: &mut impl BufRead) -> std::io::Result<String> {
    let mut line = String::new();
    if from.read_line(&mut line)? == 0 {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    }
    Ok(line.trim_end().to_owned())
}

fn read_chunk(from: &mut impl BufRead) -> std::io::Result<Option<Vec<u8>>> {
    let length = read_line(from)?;
    let length = usize::from_str_radix(&length, 16).map_err(std::io::Error::other)?;
    let mut chunk = vec![0; length + 2];
    from.read_exact(&mut chunk)?;
    chunk.truncate(length);
    Ok((length > 0).then_some(chunk))
}

/// One server-sent event.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) id: Option<String>,
    pub(crate) event: String,
    pub(crate) data: Value,
}

/// A stream of server-sent events; closed when dropped.
pub(crate) struct Events {
    stream: BufReader<TcpStream>,
    text: String,
    /// The answer's head.
    pub(crate) head: Answer,
}

impl Events {
    fn open(daemon: &Daemon, path: &str, last_id: Option<&str>) -> Events {
        let mut stream = BufReader::new(connect(daemon.http));
        let mut head = format!(
            "GET {path} HTTP/1.1\r\nHost: {}\r\nAccept: text/event-stream\r\n",
            daemon.http
        );
        if let Some(token) = &daemon.token {
            head.push_str(&format!("Authorization: Bearer {token}\r\n"));
        }
        if let Some(id) = last_id {
            head.push_str(&format!("Last-Event-ID: {id}\r\n"));
        }
        head.push_str("\r\n");
        stream.get_mut().write_all(head.as_bytes()).unwrap();
        let (status, headers) = read_head(&mut stream).unwrap();
        let body = Vec::new();
        let head = Answer {
            status,
            headers,
            body,
        };
        assert_eq!(head.status, 200, "GET {path}: {head:?}");
        Events {
            stream,
            text: String::new(),
            head,
        }
    }

    /// The next event; none when the stream has ended.
    pub(crate) fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(end) = self.text.find("\n\n") {
                let block: String = self.text.drain(..end + 2).collect();
                if let Some(event) = parse_event(&block) {
                    return Some(event);
                }
                continue;
            }
            let chunk = read_chunk(&mut self.stream).ok().flatten()?;
            self.text.push_str(&String::from_utf8(chunk).unwrap());
        }
    }

    /// The next event that is as wanted; fails when there is none in time.
    #[track_caller]
    pub(crate) fn until(&mut self, wanted: impl Fn(&Event) -> bool) -> Event {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            match self.next() {
                Some(event) if wanted(&event) => return event,
                Some(_) => {}
                None => panic!("the stream ended"),
            }
        }
        panic!("no such event came");
    }
}

/// None for a comment.
fn parse_event(block: &str) -> Option<Event> {
    let (mut id, mut event, mut data) = (None, String::from("message"), String::new());
    for line in block.lines() {
        match line.split_once(": ") {
            Some(("id", value)) => id = Some(value.to_owned()),
            Some(("event", value)) => event = value.to_owned(),
            Some(("data", value)) => data.push_str(value),
            _ => {}
        }
    }
    if data.is_empty() {
        return None;
    }
    let data = serde_json::from_str(&data).unwrap_or(Value::String(data));
    Some(Event { id, event, data })
}
