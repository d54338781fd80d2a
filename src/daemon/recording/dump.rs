//! Recordings as files.

use kvroom::Node;
use kvroom::recording::{self, Recording};
use std::fs::{self, File};
use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};

/// What a dump is written for. Each has dumps of its own: stuck rooms do not use up those of an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// A room is stuck, or a shard does not answer.
    Stuck,
    /// A thread panicked.
    Panic,
    /// SIGUSR1.
    Signal,
}

impl Why {
    #[cfg(test)]
    const ALL: [Why; 3] = [Why::Stuck, Why::Panic, Why::Signal];

    fn word(self) -> &'static str {
        match self {
            Why::Stuck => "stuck",
            Why::Panic => "panic",
            Why::Signal => "signal",
        }
    }

    /// Most dumps of a process for this: 64 for all.
    const fn most(self) -> u32 {
        match self {
            Why::Stuck | Why::Signal => 24,
            Why::Panic => 16,
        }
    }
}

/// Writes dumps. Clones count together.
#[derive(Clone)]
pub(crate) struct Dumps(Arc<Inner>);

struct Inner {
    node: Node,
    dir: Option<PathBuf>,
    /// For each reason.
    written: [AtomicU32; 3],
    /// For each reason, in a row.
    failed: [AtomicU32; 3],
}

/// Why there is no dump.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DumpError {
    /// Nowhere to put it.
    #[error(
        "no recording is written: recorder.dump_dir is not set; GET /v1/recording (kvroom record) gives one"
    )]
    NoDir,
    /// Enough.
    #[error(
        "no recording is written: this process has written {most} for this reason ({why}), which is the most; GET /v1/recording still has it"
    )]
    Most { why: &'static str, most: u32 },
    /// The disk.
    #[error("the recording cannot be written to {file}: {source}; check recorder.dump_dir")]
    Io { file: String, source: io::Error },
}

impl Dumps {
    pub(super) fn new(node: Node, dir: Option<PathBuf>) -> Dumps {
        Dumps(Arc::new(Inner {
            node,
            dir,
            written: Default::default(),
            failed: Default::default(),
        }))
    }

    /// Writes what the recorder has now. Blocks for as long as the disk takes.
    pub(super) fn write(&self, why: Why) -> Result<PathBuf, DumpError> {
        let inner = &*self.0;
        let dir = inner.dir.as_deref().ok_or(DumpError::NoDir)?;
        let number = one_more(&inner.written, why)?;
        let taken = &inner.written[why as usize];
        let why = why.word();
        let name = file_name(inner.node.name(), why, number);
        let path = dir.join(&name);
        let failed = |source| DumpError::Io {
            file: path.display().to_string(),
            source,
        };
        let recording = Recording::of(&inner.node, why);
        write_whole(&recording, dir, &name).map_err(|source| {
            // Dumps for a reason are written one after the other: this number is the next one again.
            taken.fetch_sub(1, Ordering::AcqRel);
            failed(source)
        })?;
        Ok(path)
    }

    /// The same, and says in the log what came of it; of a row of failures the first ones, and then fewer
    /// and fewer.
    pub(super) fn write_and_log(&self, why: Why) {
        let word = why.word();
        let failed = &self.0.failed[why as usize];
        match self.write(why) {
            Ok(file) => {
                failed.store(0, Ordering::Release);
                tracing::warn!(file = %file.display(), why = word, "recording written");
            }
            Err(error) => {
                let row = failed.fetch_add(1, Ordering::AcqRel).wrapping_add(1);
                if is_told(row, why.most()) {
                    tracing::error!(why = word, failed = row, "{error}");
                }
            }
        }
    }

    /// From now on a panic of any thread has a dump written, by a thread for that: who panics is most
    /// likely a shard, whose other rooms are not to wait for a disk. One that comes while another is
    /// being written has that one, or the next.
    ///
    /// # Errors
    /// There can be no such thread.
    pub(super) fn on_panic(&self) -> io::Result<()> {
        if self.0.dir.is_none() {
            return Ok(());
        }
        let dumps = self.clone();
        let (ask, asked) = mpsc::sync_channel(1);
        std::thread::Builder::new()
            .name("kvroom-dump".to_owned())
            .spawn(move || {
                while let Ok(()) = asked.recv() {
                    dumps.write_and_log(Why::Panic);
                }
            })?;
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            before(panic);
            let _ = ask.try_send(());
        }));
        Ok(())
    }
}

/// Whether the log says so of this failure in a row.
fn is_told(row: u32, most: u32) -> bool {
    row <= most || row.is_power_of_two()
}

/// The number of the next dump for this, if there is to be one.
fn one_more(written: &[AtomicU32; 3], why: Why) -> Result<u32, DumpError> {
    let most = why.most();
    let taken = written[why as usize].fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| {
        (n < most).then_some(n + 1)
    });
    let why = why.word();
    taken.map_err(|_| DumpError::Most { why, most })
}

/// The process, the reason and the number make it another one each time.
fn file_name(node: &str, why: &str, number: u32) -> String {
    let plain = |c: char| match c {
        'a'..='z' | 'A'..='Z' | '0'..='9' | '-' | '_' => c,
        _ => '_',
    };
    let node: String = node.chars().map(plain).collect();
    let pid = std::process::id();
    format!("kvroom-{node}-{pid}-{why}-{number}.jsonl")
}

fn write_whole(recording: &Recording, dir: &Path, name: &str) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    let part = dir.join(format!("{name}.part"));
    let written = File::create(&part).and_then(|file| {
        let mut out = BufWriter::new(file);
        recording::write(recording, &mut out)?;
        out.flush()
    });
    match written {
        Ok(()) => fs::rename(&part, dir.join(name)),
        Err(error) => {
            let _ = fs::remove_file(&part);
            Err(error)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_its_own_dumps_and_all_together_have_64() {
        let written = Default::default();
        let mut all = 0;
        for why in Why::ALL {
            for n in 0..why.most() {
                assert_eq!(one_more(&written, why).unwrap(), n, "{why:?}");
                all += 1;
            }
            assert!(one_more(&written, why).is_err(), "{why:?}");
        }
        assert_eq!(all, 64);
    }

    #[test]
    fn of_a_row_of_failures_the_first_are_told_and_then_few() {
        let told = (1..=100_000).filter(|row| is_told(*row, 24)).count();
        assert!(is_told(24, 24) && !is_told(25, 24), "{told}");
        assert_eq!(told, 24 + 12);
    }

    #[test]
    fn a_nodes_name_cannot_leave_the_directory() {
        let name = file_name("../../etc/x y", "stuck", 3);
        assert!(name.starts_with("kvroom-______etc_x_y-"), "{name}");
        assert!(name.ends_with("-stuck-3.jsonl"), "{name}");
    }
}
