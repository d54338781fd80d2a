//! A folder for files that are pools, in memory where the system has that.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

pub(super) struct Dir(PathBuf);

impl Dir {
    pub(super) fn new() -> Dir {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let shm = Path::new("/dev/shm");
        let root = if shm.is_dir() {
            shm.to_owned()
        } else {
            std::env::temp_dir()
        };
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir = root.join(format!("kvroom-test-{}-{n}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Dir(dir)
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// The names of what is in it, in order.
    pub(super) fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).unwrap();
        let mut names: Vec<_> = entries
            .map(|e| e.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Says that a test cannot be done here; an error where nothing may be left out.
#[track_caller]
pub(super) fn skip(why: &str) {
    assert!(
        std::env::var_os("KVROOM_REQUIRE_ALL").is_none_or(|v| v != "1"),
        "skipped, and KVROOM_REQUIRE_ALL=1: {why}"
    );
    eprintln!("skipped: {why}");
}
