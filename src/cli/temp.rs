//! A temporary directory that only this user can look into, gone with its handle.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

static MADE: AtomicU32 = AtomicU32::new(0);

/// The directory.
#[derive(Debug)]
pub(crate) struct TempDir(PathBuf);

impl TempDir {
    /// Makes one. Its path is short: that of a Unix socket has 107 bytes at most.
    pub(crate) fn new() -> io::Result<TempDir> {
        loop {
            let n = MADE.fetch_add(1, Ordering::Relaxed);
            let name = format!("kvroom-{}-{n}", std::process::id());
            let path = std::env::temp_dir().join(name);
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(TempDir(path)),
                // Left behind by another life of this process id.
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        // Whoever cleans the system's temporary directory gets what is left.
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_gone_with_its_handle_and_no_two_are_the_same() {
        let (a, b) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        assert_ne!(a.path(), b.path());
        fs::write(a.path().join("x"), "x").unwrap();
        let path = a.path().to_owned();
        drop(a);
        assert!(!path.exists() && b.path().exists());
    }
}
