//! Runs one program to its end, or to its time limit, and keeps what it said.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Most that is kept of what a program says on one stream.
const MOST: u64 = 64 << 20;
/// How often it is looked whether a program has ended.
const LOOK: Duration = Duration::from_millis(20);

/// How a program ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum End {
    Success,
    /// How, in words.
    Failure(String),
    TimeLimit,
}

/// A program that ended, and what it said.
#[derive(Clone, Debug)]
pub(super) struct Ended {
    pub(super) end: End,
    pub(super) output: String,
    pub(super) errors: String,
}

impl Ended {
    /// Why it is no success, if it is none, with the last thing that it complained of.
    pub(super) fn complaint(&self) -> Option<String> {
        let last = self
            .errors
            .lines()
            .rev()
            .find(|line| !line.trim().is_empty());
        let last = last
            .map(|line| format!(": {}", line.trim()))
            .unwrap_or_default();
        match &self.end {
            End::Success => None,
            End::Failure(how) => Some(format!("{how}{last}")),
            End::TimeLimit => Some("did not end in time".to_owned()),
        }
    }
}

/// Runs a program in a process group of its own; whatever is left of the group at its end is killed.
pub(super) fn run(mut command: Command, limit: Duration) -> Ended {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0);
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(e) => {
            let program = command.get_program().display();
            return failure(format!("{program} cannot be started: {e}"));
        }
    };
    let output = child.stdout.take().map(read);
    let errors = child.stderr.take().map(read);
    let end = end_of(&mut child, limit);
    // Its own children may still hold the pipes.
    kill_group(child.id());
    // Killed or ended: there is nothing to wait for.
    let _ = child.wait();
    Ended {
        end,
        output: text(output),
        errors: text(errors),
    }
}

fn end_of(child: &mut Child, limit: Duration) -> End {
    let started = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return End::Success,
            Ok(Some(status)) => return End::Failure(status.to_string()),
            Err(e) => return End::Failure(e.to_string()),
            Ok(None) if started.elapsed() > limit => return End::TimeLimit,
            Ok(None) => thread::sleep(LOOK),
        }
    }
}

/// By the program of that name: there is no safe call for it. Fails if nobody is left.
fn kill_group(leader: u32) {
    let _ = Command::new("kill")
        .args(["-KILL", "--", &format!("-{leader}")])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
}

fn read(from: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut kept = Vec::new();
        let mut from = from;
        // What was read until an error is kept; the rest of what is too much is thrown away, so that
        // its writer does not wait.
        let _ = from.by_ref().take(MOST).read_to_end(&mut kept);
        let _ = std::io::copy(&mut from, &mut std::io::sink());
        kept
    })
}

fn text(reading: Option<JoinHandle<Vec<u8>>>) -> String {
    let bytes = reading.and_then(|r| r.join().ok()).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn failure(why: String) -> Ended {
    Ended {
        end: End::Failure(why),
        output: String::new(),
        errors: String::new(),
    }
}
