//! Recordings as files.

use kvroom::Node;
use kvroom::recording::{self, Recording};
use std::fs::{self, File};
use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};

/// Most dumps of a process.
pub(super) const MOST: u32 = 64;

/// Writes dumps. Clones count together.
#[derive(Clone)]
pub(crate) struct Dumps(Arc<Inner>);

struct Inner {
    node: Node,
    dir: Option<PathBuf>,
    written: AtomicU32,
}

/// Why there is no dump.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DumpError {
    /// Nowhere to put it.
    #[error("no recording is written: recorder.dump_dir is not set")]
    NoDir,
    /// Enough.
    #[error(
        "no recording is written: this process has written {MOST}, which is the most; GET /v1/recording still has it"
    )]
    Most,
    /// The disk.
    #[error("the recording cannot be written to {file}: {source}; check recorder.dump_dir")]
    Io { file: String, source: io::Error },
}

impl Dumps {
    pub(super) fn new(node: Node, dir: Option<PathBuf>) -> Dumps {
        Dumps(Arc::new(Inner {
            node,
            dir,
            written: AtomicU32::new(0),
        }))
    }

    /// Writes what the recorder has now; `why` is a word. Blocks for as long as the disk takes.
    pub(super) fn write(&self, why: &str) -> Result<PathBuf, DumpError> {
        let inner = &*self.0;
        let dir = inner.dir.as_deref().ok_or(DumpError::NoDir)?;
        let taken = inner
            .written
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| {
                (n < MOST).then_some(n + 1)
            });
        let number = taken.map_err(|_| DumpError::Most)?;
        let name = file_name(inner.node.name(), why, number);
        let path = dir.join(&name);
        let failed = |source| DumpError::Io {
            file: path.display().to_string(),
            source,
        };
        let recording = Recording::of(&inner.node, why);
        write_whole(&recording, dir, &name).map_err(failed)?;
        Ok(path)
    }

    /// The same, and says in the log what came of it.
    pub(super) fn write_and_log(&self, why: &str) {
        match self.write(why) {
            Ok(file) => tracing::warn!(file = %file.display(), why, "recording written"),
            Err(error) => tracing::error!(why, "{error}"),
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
                    dumps.write_and_log("panic");
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

/// The process and the number make it another one each time.
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
    fn a_nodes_name_cannot_leave_the_directory() {
        let name = file_name("../../etc/x y", "stuck", 3);
        assert!(name.starts_with("kvroom-______etc_x_y-"), "{name}");
        assert!(name.ends_with("-stuck-3.jsonl"), "{name}");
    }
}
