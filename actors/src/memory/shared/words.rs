//! Words in a file that other processes map to look at: a status page.
//!
//! ```text
//!   SharedWords::create(path, n) ─▶ n atomic words, zeroed ◀─ any process, mapped for reading
//! ```
//!
//! Rules:
//! - One process writes: the file is locked for as long as this lives, by the kernel.
//! - A file of the right size that is there is used again, so that who has it mapped sees the next
//!   writer; one of another size is replaced.
//! - It is all allocated before it is used, and of this user alone to write.

use super::error::SharedError;
use super::{SharedMemory, SharedOptions, file, sys};
use std::fs::{self, Permissions};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Behind the end of any file: locked while somebody writes it.
const WRITING: u64 = 1 << 61;

/// Words of 8 bytes in a file that others may map and read. This process is the only writer.
///
/// The file stays when this goes. Who cuts it short ends this process by a signal (SIGBUS): only its
/// user may write it.
#[derive(Debug)]
pub struct SharedWords {
    path: PathBuf,
    memory: SharedMemory,
    words: usize,
}

impl SharedWords {
    /// The file at `path` with `words` words of zero, which others may read.
    ///
    /// # Errors
    /// [`SharedError::Attached`]: another process writes it. [`SharedError::NotAFile`],
    /// [`SharedError::NoRoom`], or the system's. A file that belongs to another user is not taken.
    pub fn create(path: &Path, words: usize) -> Result<SharedWords, SharedError> {
        let bytes = words.max(1) * size_of::<u64>();
        let what = path.display().to_string();
        let fail = |call| {
            let what = what.clone();
            move |e| SharedError::of(&what, bytes as u64, call, e)
        };
        let mut file = file::open(path, true)?;
        let owner = file.metadata().map_err(fail("fstat"))?.uid();
        if owner != sys::user() {
            return Err(SharedError::Companion {
                path: path.to_owned(),
                why: format!("belongs to user {owner}: remove it, or choose another path"),
            });
        }
        let taken = || SharedError::Attached {
            path: path.to_owned(),
            pid: 0,
        };
        if !sys::lock_byte(file.as_fd(), WRITING, true).map_err(fail("lock"))? {
            return Err(taken());
        }
        let found = file::length(&file, &what)?;
        if found != 0 && found != bytes as u64 {
            // Who has mapped it keeps what it has; it is never made shorter under them.
            fs::remove_file(path).map_err(fail("unlink"))?;
            file = file::open(path, true)?;
            if !sys::lock_byte(file.as_fd(), WRITING, true).map_err(fail("lock"))? {
                return Err(taken());
            }
        }
        file::allocate(&file, &what, bytes as u64)?;
        file.set_permissions(Permissions::from_mode(0o644))
            .map_err(fail("fchmod"))?;
        let memory = SharedMemory::of_file(file.into(), bytes, &what, &SharedOptions::default())?;
        let words = SharedWords {
            path: path.to_owned(),
            memory,
            words: bytes / size_of::<u64>(),
        };
        for word in 0..words.len() {
            words.store(word, 0);
        }
        Ok(words)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How many words there are.
    pub fn len(&self) -> usize {
        self.words
    }

    /// Never: there is one at least.
    pub fn is_empty(&self) -> bool {
        self.words == 0
    }

    /// A word; `None` beyond the last, and in a child of fork, where it is not mapped.
    pub fn word(&self, index: usize) -> Option<&AtomicU64> {
        if !self.memory.is_mapped() {
            return None;
        }
        self.memory.word(index.checked_mul(size_of::<u64>())?)
    }

    /// Sets a word, after everything that was set before it; nothing beyond the last.
    pub fn store(&self, index: usize, value: u64) {
        if let Some(word) = self.word(index) {
            word.store(value, Ordering::Release);
        }
    }

    /// A word's value; 0 beyond the last.
    pub fn load(&self, index: usize) -> u64 {
        self.word(index)
            .map_or(0, |word| word.load(Ordering::Acquire))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("kvroom-words-{}-{name}", std::process::id()))
    }

    #[test]
    fn words_are_in_the_file_and_nothing_is_beyond_the_last() {
        let path = path("file");
        let words = SharedWords::create(&path, 3).unwrap();
        words.store(0, 7);
        words.store(2, 9);
        words.store(3, 11);
        assert_eq!((words.len(), words.load(2), words.load(3)), (3, 9, 0));
        assert!(words.word(3).is_none() && words.word(usize::MAX).is_none());
        let bytes: Vec<u8> = [7_u64, 0, 9].iter().flat_map(|w| w.to_ne_bytes()).collect();
        assert_eq!(fs::read(&path).unwrap(), bytes);
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o644, "others read it, and do not write it");
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn one_writes_at_a_time_and_the_next_one_has_the_same_file_zeroed() {
        let path = path("writers");
        let first = SharedWords::create(&path, 4).unwrap();
        first.store(1, 5);
        let second = SharedWords::create(&path, 4).unwrap_err();
        assert!(matches!(second, SharedError::Attached { .. }), "{second}");
        assert_eq!(first.load(1), 5, "the second one changed nothing");
        let inode = fs::metadata(&path).unwrap().ino();
        drop(first);
        let next = SharedWords::create(&path, 4).unwrap();
        assert_eq!(
            (next.load(1), fs::metadata(&path).unwrap().ino()),
            (0, inode)
        );
        drop(next);
        let larger = SharedWords::create(&path, 5).unwrap();
        assert_ne!(
            fs::metadata(&path).unwrap().ino(),
            inode,
            "mapped ones stay whole"
        );
        assert_eq!(larger.len(), 5);
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_link_or_a_folder_is_no_place_for_words() {
        let (path, link) = (path("target"), path("link"));
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let error = SharedWords::create(&link, 1).unwrap_err();
        fs::remove_file(&link).unwrap();
        assert!(matches!(error, SharedError::NotAFile { .. }), "{error}");
        assert!(!path.exists());
        assert!(SharedWords::create(Path::new("/tmp"), 1).is_err());
    }
}
