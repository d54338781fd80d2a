//! This program again, as `kvroom node --commands`: the other end of what runs in two processes.
//!
//! Rules: the child does not outlive its parent. Dropping it kills it, also while a panic unwinds;
//! if the parent is killed, the child's standard input ends and it stops by itself.

use super::exit::Failure;
use super::node::protocol::{self, MAX_LINE, Request};
use super::pair::failed;
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child as Process, ChildStdin, Command, Stdio};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::timeout;

/// How long the child may take to start, to answer, and to stop.
const PATIENCE: Duration = Duration::from_secs(90);

/// A node in another process.
pub(crate) struct Child {
    process: Process,
    /// None when the child was told to stop.
    stdin: Option<ChildStdin>,
    lines: mpsc::UnboundedReceiver<Value>,
    /// Answers that came while another one was waited for.
    early: HashMap<u64, Value>,
    next: u64,
    addresses: Vec<String>,
}

/// A command whose answer is still to come.
#[derive(Debug)]
#[must_use = "its answer has to be taken"]
pub(crate) struct Pending(u64);

impl Child {
    /// Starts `kvroom node --commands` with these words more, and waits until it serves.
    pub(crate) async fn start(words: &[String]) -> Result<Child, Failure> {
        let program = std::env::current_exe().map_err(failed("cannot find this program"))?;
        let mut process = Command::new(program)
            .args(["node", "--commands", "--until-stdin-closes"])
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .map_err(failed("cannot start a second process"))?;
        let (stdin, stdout) = (process.stdin.take(), process.stdout.take());
        let (tx, lines) = mpsc::unbounded_channel();
        let mut child = Child {
            process,
            stdin,
            lines,
            early: HashMap::new(),
            next: 0,
            addresses: Vec::new(),
        };
        let stdout = stdout.ok_or_else(|| child.gone())?;
        std::thread::Builder::new()
            .name("kvroom-child".into())
            .spawn(move || read_lines(BufReader::new(stdout), &tx))
            .map_err(failed("cannot start a thread"))?;
        let ready = child.line().await?;
        let addresses = ready.get("addresses").cloned().unwrap_or_default();
        child.addresses = serde_json::from_value(addresses)
            .map_err(failed("the second process did not say where it listens"))?;
        Ok(child)
    }

    /// Its process.
    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> Result<&str, Failure> {
        let first = self.addresses.first().map(String::as_str);
        first.ok_or_else(|| Failure::Failed("the second process listens nowhere".to_owned()))
    }

    /// Gives a command without waiting for its answer.
    pub(crate) fn tell(&mut self, request: &Request) -> Result<Pending, Failure> {
        let id = self.next;
        self.next += 1;
        let line = protocol::line(id, request).map_err(failed("cannot make a command"))?;
        let written = match &mut self.stdin {
            Some(stdin) => stdin.write_all(format!("{line}\n").as_bytes()),
            None => Err(std::io::ErrorKind::BrokenPipe.into()),
        };
        // A child that is gone has a better reason than a broken pipe.
        written.map_err(|_| self.gone())?;
        Ok(Pending(id))
    }

    /// The answer to a command, without `id` and `ok`.
    pub(crate) async fn answer(&mut self, pending: Pending) -> Result<Value, Failure> {
        loop {
            if let Some(answer) = self.early.remove(&pending.0) {
                return result(answer);
            }
            let line = self.line().await?;
            if let Some(id) = line.get("id").and_then(Value::as_u64) {
                self.early.insert(id, line);
            }
        }
    }

    /// Stops it and waits for its end; it must have drained.
    pub(crate) async fn stop(mut self) -> Result<(), Failure> {
        let pending = self.tell(&Request::Stop {})?;
        self.answer(pending).await?;
        let stopped = loop {
            let line = self.line().await?;
            if line.get("event").is_some_and(|e| e == "stopped") {
                break line;
            }
        };
        self.stdin = None;
        // The reader's channel ends with the child's standard output, and so with the child.
        while timeout(PATIENCE, self.lines.recv())
            .await
            .map_err(failed("the second process does not end"))?
            .is_some()
        {}
        let status = self.process.wait();
        let status = status.map_err(failed("cannot wait for the second process"))?;
        if status.success() && stopped.get("drained") == Some(&Value::Bool(true)) {
            return Ok(());
        }
        Err(Failure::Failed(format!(
            "the second process ended with {status} and said {stopped}"
        )))
    }

    async fn line(&mut self) -> Result<Value, Failure> {
        match timeout(PATIENCE, self.lines.recv()).await {
            Ok(Some(line)) => Ok(line),
            Ok(None) => Err(self.gone()),
            Err(_) => Err(Failure::Failed(format!(
                "the second process said nothing for {PATIENCE:?}"
            ))),
        }
    }

    fn gone(&mut self) -> Failure {
        let how = match self.process.try_wait() {
            Ok(Some(status)) => status.to_string(),
            Ok(None) => "it still runs".to_owned(),
            Err(e) => e.to_string(),
        };
        Failure::Failed(format!("the second process says nothing more ({how})"))
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // Fails only if it is gone already; and whoever is killed is reaped at once.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn read_lines(mut from: impl BufRead, tell: &mpsc::UnboundedSender<Value>) {
    let limit = MAX_LINE as u64;
    loop {
        let mut line = Vec::new();
        match from.by_ref().take(limit).read_until(b'\n', &mut line) {
            Ok(n) if n > 0 => {}
            _ => return,
        }
        // Whatever is no JSON is not of this protocol and says nothing.
        if let Ok(value) = serde_json::from_slice(&line)
            && tell.send(value).is_err()
        {
            return;
        }
    }
}

fn result(answer: Value) -> Result<Value, Failure> {
    let mut fields: Map<String, Value> = match answer {
        Value::Object(fields) => fields,
        other => return Err(Failure::Failed(format!("the second process said {other}"))),
    };
    fields.remove("id");
    match fields.remove("ok") {
        Some(Value::Bool(true)) => Ok(Value::Object(fields)),
        _ => {
            let error = fields.get("error").and_then(Value::as_str);
            let error = error.unwrap_or("it did not say why");
            Err(Failure::Failed(format!("the second process: {error}")))
        }
    }
}
