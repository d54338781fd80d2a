//! The parent's end: the child's process, its pipes, and what is waited for.

use super::lines::{Answer, Line, Question, Report};
use crate::engine::Listener;
use crate::oracle::Findings;
use crate::storms::Side;
use crate::world::World;
use kvroom::Incarnation;
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// How long an answer may take; a node that stops may drain for as long as that.
const ANSWER: Duration = Duration::from_secs(30);

/// The child was killed, or has gone.
const GONE: &str = "the other process is gone";

/// A child that runs.
struct Running {
    child: Child,
    lines: Option<mpsc::Sender<String>>,
    reader: Option<JoinHandle<()>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        // Gone already, or gone now: either is what is wanted. A stopped process dies of it too.
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.lines = None;
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}

#[derive(Default)]
struct Questions {
    /// There is a child that may answer.
    open: bool,
    next: u64,
    waiting: HashMap<u64, mpsc::Sender<Answer>>,
}

#[derive(Default)]
struct Found {
    /// By this life of the child.
    now: Findings,
    /// By earlier ones.
    before: Findings,
}

/// See the module.
pub(crate) struct Link {
    /// Which side the child plays.
    far: Side,
    arguments: Vec<String>,
    address: Mutex<String>,
    running: Mutex<Option<Running>>,
    questions: Arc<Mutex<Questions>>,
    world: Arc<Mutex<Weak<World>>>,
    found: Mutex<Found>,
    pause: Mutex<Option<Child>>,
}

impl Link {
    /// Starts a child that plays `far`, with these arguments besides.
    pub(crate) fn start(far: Side, arguments: Vec<String>) -> Result<Arc<Link>, String> {
        let link = Arc::new(Link {
            far,
            arguments,
            address: Mutex::new("tcp://127.0.0.1:0".into()),
            running: Mutex::default(),
            questions: Arc::default(),
            world: Arc::default(),
            found: Mutex::default(),
            pause: Mutex::default(),
        });
        link.start_again()?;
        Ok(link)
    }

    /// Where the child's node listens.
    pub(crate) fn address(&self) -> String {
        lock(&self.address).clone()
    }

    /// Who hears what the child reports. Nothing happens there before it is asked for something.
    pub(crate) fn report_to(&self, world: &Arc<World>) {
        *lock(&self.world) = Arc::downgrade(world);
    }

    /// Starts a child at the address that the last one had.
    pub(crate) fn start_again(&self) -> Result<Incarnation, String> {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let side = match self.far {
            Side::Decode => "decode",
            Side::Prefill => "prefill",
        };
        let mut child = Command::new(program)
            .args(["--child", side, "--listen", &self.address()])
            .args(&self.arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("the other process was not started: {error}"))?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let mut running = Running {
            child,
            lines: None,
            reader: None,
        };
        let (stdin, stdout) = stdin.zip(stdout).ok_or("the other process has no pipes")?;
        let mut reports = BufReader::new(stdout).lines();
        let first = reports.next().and_then(Result::ok).ok_or(GONE)?;
        let Ok(Report::Ready {
            address,
            incarnation,
        }) = serde_json::from_str(&first)
        else {
            return Err(format!("the other process began with {first}"));
        };
        *lock(&self.address) = address;
        lock(&self.questions).open = true;
        let (lines, to_write) = mpsc::channel();
        thread::spawn(move || write_lines(stdin, &to_write));
        let (far, questions) = (self.far, Arc::clone(&self.questions));
        let world = Arc::clone(&self.world);
        running.lines = Some(lines);
        running.reader = Some(thread::spawn(move || {
            for line in reports.map_while(Result::ok) {
                hear(&line, far, &world, &questions);
            }
            // Nobody answers any more.
            let mut questions = lock(&questions);
            questions.open = false;
            questions.waiting.clear();
        }));
        *lock(&self.running) = Some(running);
        Ok(incarnation)
    }

    /// Kills the child (SIGKILL). When this returns nothing of it will be heard any more.
    pub(crate) fn kill(&self) {
        let running = lock(&self.running).take();
        drop(running);
        let mut found = lock(&self.found);
        found.before = found.before.plus(found.now);
        found.now = Findings::default();
    }

    /// Stops the child (SIGSTOP), and returns when it is. `time` later it goes on (SIGCONT), even
    /// if this process is no more by then.
    pub(crate) fn pause(&self, time: Duration) -> Result<(), String> {
        let child = lock(&self.running).as_ref().map(|r| r.child.id());
        let child = child.ok_or(GONE)?.to_string();
        let script = r#"kill -STOP "$0" && echo stopped && sleep "$1"; kill -CONT "$0""#;
        let mut shell = Command::new("sh")
            .args(["-c", script, &child, &time.as_secs_f64().to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("the other process was not stopped: {error}"))?;
        let said = shell.stdout.take().map(BufReader::new);
        let said = said.and_then(|out| out.lines().next()?.ok());
        *lock(&self.pause) = Some(shell);
        match said.as_deref() {
            Some("stopped") => Ok(()),
            _ => Err("the other process was not stopped".into()),
        }
    }

    /// Waits until a child that was stopped goes on.
    pub(crate) fn await_pause(&self) -> Result<(), String> {
        let shell = lock(&self.pause).take();
        let mut shell = shell.ok_or("the other process was not stopped")?;
        let status = shell.wait().map_err(|error| error.to_string())?;
        match status.success() {
            true => Ok(()),
            false => Err(format!("the other process was not let go on: {status}")),
        }
    }

    /// Says something to the child. Never waits.
    pub(crate) fn tell(&self, line: &Line) {
        if let Some(lines) = lock(&self.running).as_ref().and_then(|r| r.lines.as_ref())
            && let Ok(text) = serde_json::to_string(line)
        {
            // One that is gone hears nothing.
            let _ = lines.send(text);
        }
    }

    /// Asks the child something and waits for the answer.
    pub(crate) fn ask(&self, question: Question) -> Result<Answer, String> {
        let (sender, answer) = mpsc::channel();
        let number = {
            let mut questions = lock(&self.questions);
            if !questions.open {
                return Err(GONE.into());
            }
            questions.next += 1;
            let number = questions.next;
            questions.waiting.insert(number, sender);
            number
        };
        self.tell(&Line::Ask { number, question });
        answer.recv_timeout(ANSWER).map_err(|error| match error {
            mpsc::RecvTimeoutError::Timeout => "the other process does not answer".into(),
            mpsc::RecvTimeoutError::Disconnected => GONE.to_owned(),
        })
    }

    /// What the child has found on its pages so far.
    pub(crate) fn found(&self, findings: Findings) {
        lock(&self.found).now = findings;
    }

    /// What all lives of the child had found when they said so last.
    pub(crate) fn findings(&self) -> Findings {
        let found = lock(&self.found);
        found.before.plus(found.now)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if let Some(mut shell) = lock(&self.pause).take() {
            let _ = shell.kill();
            let _ = shell.wait();
        }
    }
}

fn write_lines(mut stdin: ChildStdin, lines: &mpsc::Receiver<String>) {
    while let Ok(mut line) = lines.recv() {
        line.push('\n');
        if stdin.write_all(line.as_bytes()).is_err() {
            return;
        }
    }
}

fn hear(line: &str, far: Side, world: &Mutex<Weak<World>>, questions: &Mutex<Questions>) {
    let report = match serde_json::from_str(line) {
        Ok(report) => report,
        Err(error) => {
            // The last line of one that was killed may be half of one.
            tracing::debug!(%error, line, "not a report");
            return;
        }
    };
    let world = lock(world).upgrade();
    match (report, world) {
        (Report::Answer { number, answer }, _) => {
            let asked = lock(questions).waiting.remove(&number);
            // Who asked may have stopped waiting.
            let _ = asked.map(|asked| asked.send(answer));
        }
        (Report::Landed { room, bytes }, Some(world)) => world.landed(room, bytes),
        (Report::Ended { room, end, at }, Some(world)) => world.ended(room, far, end, at.into()),
        (
            Report::Back {
                room,
                pages,
                landed,
                at,
            },
            Some(world),
        ) => match far {
            Side::Decode => world.destination_back(room, &pages, landed, at.into()),
            Side::Prefill => world.source_back(room, &pages, at.into()),
        },
        (Report::Placed { room, first, pages }, Some(world)) => {
            world.placed(room, first, &pages);
            world.pushed(room, pages.len() as u64 * world.shape.page_total());
        }
        (Report::Ready { .. }, _) | (_, None) => {}
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
