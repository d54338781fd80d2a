//! UCX: whether its library can be opened, which it is, and what works through it.
//!
//! ```text
//!   look ── starts ──▶ this program again, `doctor --try-ucx` ── opens UCX, and moves bytes
//!    ▲                                   │
//!    └── lines, each as soon as known ◀──┘
//! ```
//!
//! UCX's initialisers patch functions of the C library and take over signals, and a library that is
//! something else can do anything: so it is opened in a process of its own, which may end as it likes and is
//! killed when it takes too long. UCX writes its logs to standard output too: lines that do not begin with
//! [`MARK`] are not the child's.

use super::self_test::{self, SelfTest};
use crate::cli::args::{NetArgs, UcxWhen};
use kvroom::{Node, UcxOptions, UcxUse};
use kvroom_ucx_sys::LoadError;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Before each line of the child.
const MARK: &str = "kvroom-ucx ";
/// How long all of it may take. It needs a second or two; the room in it ends by itself in ten.
const BOUND: Duration = Duration::from_secs(20);
/// The most bytes that are read of the child.
const MOST: u64 = 1 << 20;

/// What is known of UCX here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Ucx {
    pub(crate) state: UcxState,
    /// As the library says it, as in 1.20.0.
    pub(crate) version: Option<String>,
    /// Whether kvroom's tests have run with this version.
    pub(crate) tested: Option<bool>,
    /// The file, as the linker names it.
    pub(crate) library: Option<String>,
    /// Whether one of its transports on this machine is RDMA.
    pub(crate) rdma: Option<bool>,
    pub(crate) detail: String,
}

/// What is known of its library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum UcxState {
    /// It was opened, and is one that can be used.
    #[serde(rename = "opened")]
    Opened,
    /// There is none, or the linker could not load it; nothing bad for who does not ask for it.
    #[serde(rename = "absent")]
    Absent,
    /// It is there and cannot be used: too old, or not UCX, or not all of it.
    #[serde(rename = "refused")]
    Refused,
    /// Whoever opened it died, or did not come back.
    #[serde(rename = "broken")]
    Broken,
}

impl UcxState {
    /// The word for it in the table, the same as in JSON.
    pub(crate) fn word(self) -> &'static str {
        match self {
            UcxState::Opened => "opened",
            UcxState::Absent => "absent",
            UcxState::Refused => "refused",
            UcxState::Broken => "broken",
        }
    }
}

/// A line of the child.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Said {
    Opened {
        version: String,
        tested: bool,
        library: String,
    },
    Not {
        state: UcxState,
        why: String,
    },
    Rdma(bool),
    Moved(String),
    Failed(String),
}

/// Opens it in another process; and what came of a room through it.
pub(crate) fn look(library: Option<&Path>) -> (Ucx, SelfTest) {
    let (said, end) = match ask(library) {
        Ok(heard) => heard,
        Err(error) => (Vec::new(), format!("no process could be started: {error}")),
    };
    judge(&said, &end)
}

/// What the child said, and how it ended if it did not end well.
fn ask(library: Option<&Path>) -> std::io::Result<(Vec<Said>, String)> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["doctor", "--try-ucx"]);
    if let Some(library) = library {
        command.arg("--ucx-library").arg(library);
    }
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let (tx, lines) = mpsc::channel();
    let stdout = child.stdout.take();
    std::thread::spawn(move || {
        let lines = stdout.map(|out| BufReader::new(out.take(MOST)).split(b'\n'));
        for line in lines.into_iter().flatten().map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line);
            let said = line.strip_prefix(MARK).map(serde_json::from_str);
            if let Some(Ok(said)) = said
                && tx.send(said).is_err()
            {
                break;
            }
        }
    });
    let (mut said, start) = (Vec::new(), Instant::now());
    let late = loop {
        match lines.recv_timeout(BOUND.saturating_sub(start.elapsed())) {
            Ok(one) => said.push(one),
            Err(RecvTimeoutError::Disconnected) => break false,
            Err(RecvTimeoutError::Timeout) => break true,
        }
    };
    // It has closed its output, or may not go on: nothing that it would still do matters.
    let ended = match child.try_wait()? {
        None if late => None,
        None => Some(wait_a_little(&mut child)?),
        ended => Some(ended),
    };
    let end = match ended {
        Some(Some(status)) if status.success() => "it ended without a word".to_owned(),
        Some(Some(status)) => format!("the process that tried it ended with {status}"),
        _ => {
            child.kill()?;
            child.wait()?;
            format!("the process that tried it did not end within {BOUND:?}")
        }
    };
    Ok((said, end))
}

/// Who has closed its output ends soon, as a rule.
fn wait_a_little(
    child: &mut std::process::Child,
) -> std::io::Result<Option<std::process::ExitStatus>> {
    for _ in 0..200 {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(None)
}

fn judge(said: &[Said], end: &str) -> (Ucx, SelfTest) {
    let mut ucx = Ucx {
        state: UcxState::Broken,
        version: None,
        tested: None,
        library: None,
        rdma: None,
        detail: end.to_owned(),
    };
    let mut test = None;
    for one in said {
        match one.clone() {
            Said::Opened {
                version,
                tested,
                library,
            } => {
                let known = if tested {
                    "which tests have run with"
                } else {
                    "which is newer than any that tests have run with"
                };
                ucx.state = UcxState::Opened;
                ucx.detail = format!("UCX {version}, {known}, of {library}");
                (ucx.version, ucx.tested) = (Some(version), Some(tested));
                ucx.library = Some(library);
            }
            Said::Not { state, why } => {
                test = Some(SelfTest::NotRun(format!("UCX is {}", state.word())));
                (ucx.state, ucx.detail) = (state, why);
            }
            Said::Rdma(rdma) => {
                ucx.rdma = Some(rdma);
                let with = if rdma { "with" } else { "without" };
                ucx.detail = format!("{}, {with} RDMA", ucx.detail);
            }
            Said::Moved(how) => test = Some(SelfTest::Passed(how)),
            Said::Failed(why) => test = Some(SelfTest::Failed(why)),
        }
    }
    (
        ucx,
        test.unwrap_or_else(|| SelfTest::Failed(end.to_owned())),
    )
}

/// In the child: opens it, and says what comes of it as soon as that is known.
pub(crate) fn attempt(library: Option<&Path>) {
    let ucx = match kvroom_ucx_sys::Ucx::open(library) {
        Ok(ucx) => ucx,
        Err(error) => {
            let state = match &error {
                LoadError::Absent { .. } => UcxState::Absent,
                _ => UcxState::Refused,
            };
            let why = error.to_string();
            return say(&Said::Not { state, why });
        }
    };
    say(&Said::Opened {
        version: ucx.version().to_string(),
        tested: ucx.version().is_tested(),
        library: ucx.library().display().to_string(),
    });
    let options = UcxOptions {
        when: UcxUse::Always,
        library: library.map(Path::to_owned),
        ..UcxOptions::default()
    };
    match Node::builder("doctor-ucx").ucx(options).blocking_start() {
        Ok(node) => {
            if let Some(Ok(facts)) = node.ucx() {
                say(&Said::Rdma(facts.rdma));
            }
            node.blocking_shutdown();
        }
        Err(error) => return say(&Said::Failed(error.to_string())),
    }
    let net = NetArgs {
        ucx: UcxWhen::Always,
        ucx_library: library.map(PathBuf::from),
        ..NetArgs::default()
    };
    say(&match self_test::through_ucx(net) {
        SelfTest::Passed(how) => Said::Moved(how),
        SelfTest::Failed(why) | SelfTest::NotRun(why) => Said::Failed(why),
    });
}

fn say(said: &Said) {
    let Ok(line) = serde_json::to_string(said) else {
        return;
    };
    // Whoever asked may be gone: then nobody wants to know.
    let _ = writeln!(std::io::stdout(), "{MARK}{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened() -> Said {
        Said::Opened {
            version: "1.20.0".into(),
            tested: true,
            library: "/x/libucp.so.0".into(),
        }
    }

    #[test]
    fn a_process_that_dies_with_ucx_says_as_far_as_it_came_and_how_it_ended() {
        let (ucx, test) = judge(&[], "it died");
        assert_eq!(
            (ucx.state, ucx.detail.as_str()),
            (UcxState::Broken, "it died")
        );
        assert_eq!(test, SelfTest::Failed("it died".into()));
        let (ucx, test) = judge(&[opened(), Said::Rdma(false)], "it died");
        assert_eq!(ucx.state, UcxState::Opened);
        assert_eq!(
            ucx.detail,
            "UCX 1.20.0, which tests have run with, of /x/libucp.so.0, without RDMA"
        );
        assert_eq!(test, SelfTest::Failed("it died".into()));
        let (_, test) = judge(&[opened(), Said::Moved("8 bytes".into())], "it died");
        assert_eq!(test, SelfTest::Passed("8 bytes".into()));
    }

    #[test]
    fn the_words_of_the_table_are_those_of_the_json() {
        for state in [
            UcxState::Opened,
            UcxState::Absent,
            UcxState::Refused,
            UcxState::Broken,
        ] {
            assert_eq!(serde_json::to_value(state).unwrap(), state.word());
        }
    }
}
