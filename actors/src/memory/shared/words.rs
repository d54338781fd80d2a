//! Words in a file that other processes map to look at: a status page.
//!
//! ```text
//!   SharedWords::create(path, n, magic) ─▶ n atomic words ◀─ any process, mapped for reading
//! ```
//!
//! Rules:
//! - One process writes: the file is locked for as long as this lives, by the kernel.
//! - A file that is not empty is touched only if it begins with `magic`, or with `!magic`: it is being made,
//!   or its maker was killed. Any other file is somebody else's.
//! - A file of this kind and of the right size is used again, so that who has it mapped sees the next
//!   writer; one of another size is replaced.
//! - What was locked is what the path names: it is looked at again once the lock is there.
//! - It is all allocated before it is used, and of this user alone to write.

use super::error::SharedError;
use super::{SharedMemory, SharedOptions, file, sys};
use std::fs::{self, File, Metadata, Permissions};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
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
    /// The file at `path` with `words` words, which others may read: zero, but for the first. That is
    /// `!magic` until this process has filled in the rest and stores `magic` there, by which the file is
    /// known as one of its kind, today and when it is used again.
    ///
    /// # Errors
    /// [`SharedError::Attached`]: another process writes it, or has it as a pool.
    /// [`SharedError::Companion`]: there is a file that is not empty and does not begin like one of these, or
    /// that belongs to another user; it is left as it is. [`SharedError::NotAFile`],
    /// [`SharedError::NoRoom`], or the system's.
    pub fn create(path: &Path, words: usize, magic: u64) -> Result<SharedWords, SharedError> {
        let words = words.max(1);
        let bytes = words * size_of::<u64>();
        let what = path.display().to_string();
        let file = own(path, bytes as u64, magic)?;
        file::allocate(&file, &what, bytes as u64)?;
        file.set_permissions(Permissions::from_mode(0o644))
            .map_err(|e| SharedError::of(&what, bytes as u64, "fchmod", e))?;
        let memory = SharedMemory::of_file(file.into(), bytes, &what, &SharedOptions::default())?;
        memory.hold(path)?;
        let page = SharedWords {
            path: path.to_owned(),
            memory,
            words,
        };
        // Being made: who is killed from here on leaves a file that is known again.
        page.store(0, !magic);
        for word in 1..words {
            page.store(word, 0);
        }
        Ok(page)
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

/// How often the file at a path may be another one by the time it is locked.
const TRIES: usize = 16;

/// Opens and locks the file at `path`, which is empty or one of this kind with so many bytes; one of this
/// kind with another length is replaced. It begins with a mark of this kind.
fn own(path: &Path, bytes: u64, magic: u64) -> Result<File, SharedError> {
    let what = path.display().to_string();
    let fail = |call| {
        let what = what.clone();
        move |e| SharedError::of(&what, bytes, call, e)
    };
    let refuse = |why: String| SharedError::Companion {
        path: path.to_owned(),
        why: format!("{why}: remove it, or choose another path"),
    };
    // One that is replaced stays open until the next one is there: so they are told apart.
    let mut _replaced = None;
    for _ in 0..TRIES {
        let file = file::open(path, true)?;
        let found = file.metadata().map_err(fail("fstat"))?;
        if found.uid() != sys::user() {
            return Err(refuse(format!("belongs to user {}", found.uid())));
        }
        if !sys::lock_byte(file.as_fd(), WRITING, true).map_err(fail("lock"))? {
            return Err(SharedError::Attached {
                path: path.to_owned(),
                pid: 0,
            });
        }
        // Whoever had the lock may have put another file there.
        if !is_at(&found, path) {
            continue;
        }
        let length = file::length(&file, &what)?;
        let mut first = [0; size_of::<u64>()];
        if length == 0 {
            // Before it has its size: who is killed in between leaves a file that is known again.
            file.write_all_at(&(!magic).to_ne_bytes(), 0)
                .map_err(fail("write"))?;
            return Ok(file);
        }
        let whole = length >= first.len() as u64;
        if whole {
            file.read_exact_at(&mut first, 0).map_err(fail("read"))?;
        }
        if !whole || ![magic, !magic].contains(&u64::from_ne_bytes(first)) {
            return Err(refuse("is not empty and no file of this kind".into()));
        }
        if length == bytes {
            return Ok(file);
        }
        // Who has mapped it keeps what it has; it is never made shorter under them. With the lock, nobody
        // else who keeps to this puts another file there meanwhile.
        fs::remove_file(path).map_err(fail("unlink"))?;
        _replaced = Some(file);
    }
    Err(refuse("is another file each time it is looked at".into()))
}

fn is_at(file: &Metadata, path: &Path) -> bool {
    fs::symlink_metadata(path)
        .is_ok_and(|there| (there.dev(), there.ino()) == (file.dev(), file.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAGIC: u64 = 0x1122_3344_5566_7788;

    fn path(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("kvroom-words-{}-{name}", std::process::id()))
    }

    fn create(path: &Path, words: usize) -> Result<SharedWords, SharedError> {
        SharedWords::create(path, words, MAGIC)
    }

    fn bytes_of(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|w| w.to_ne_bytes()).collect()
    }

    #[test]
    fn words_are_in_the_file_and_nothing_is_beyond_the_last() {
        let path = path("file");
        let words = create(&path, 3).unwrap();
        assert_eq!(fs::read(&path).unwrap(), bytes_of(&[!MAGIC, 0, 0]));
        words.store(0, 7);
        words.store(2, 9);
        words.store(3, 11);
        assert_eq!((words.len(), words.load(2), words.load(3)), (3, 9, 0));
        assert!(words.word(3).is_none() && words.word(usize::MAX).is_none());
        assert_eq!(fs::read(&path).unwrap(), bytes_of(&[7, 0, 9]));
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o644, "others read it, and do not write it");
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn one_writes_at_a_time_and_the_next_one_has_the_same_file_zeroed() {
        let path = path("writers");
        let first = create(&path, 4).unwrap();
        first.store(0, MAGIC);
        first.store(1, 5);
        let second = create(&path, 4).unwrap_err();
        assert!(matches!(second, SharedError::Attached { .. }), "{second}");
        assert_eq!(first.load(1), 5, "the second one changed nothing");
        let inode = fs::metadata(&path).unwrap().ino();
        drop(first);
        let next = create(&path, 4).unwrap();
        assert_eq!(
            (
                next.load(0),
                next.load(1),
                fs::metadata(&path).unwrap().ino()
            ),
            (!MAGIC, 0, inode)
        );
        // Killed before it was ready.
        drop(next);
        let larger = create(&path, 5).unwrap();
        assert_ne!(
            fs::metadata(&path).unwrap().ino(),
            inode,
            "mapped ones stay whole"
        );
        assert_eq!(larger.len(), 5);
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_file_that_is_not_its_own_is_refused_and_left_as_it_is_whatever_its_size() {
        let path = path("others");
        for found in [
            b"text".to_vec(),
            bytes_of(&[5]),
            bytes_of(&[5, 6, 7]),
            // A pool that nobody has written yet.
            bytes_of(&[0, 0, 0]),
            bytes_of(&[0, 0, 0, 0]),
            bytes_of(&[MAGIC ^ 1, 0, 0]),
        ] {
            fs::write(&path, &found).unwrap();
            let inode = fs::metadata(&path).unwrap().ino();
            let refused = create(&path, 3).unwrap_err();
            assert!(
                matches!(&refused, SharedError::Companion { path: at, .. } if *at == path),
                "{refused}"
            );
            assert!(
                refused.to_string().contains("choose another path"),
                "{refused}"
            );
            assert_eq!(fs::read(&path).unwrap(), found);
            assert_eq!(fs::metadata(&path).unwrap().ino(), inode);
        }
        for killed in [vec![], bytes_of(&[!MAGIC]), bytes_of(&[!MAGIC, 9, 9])] {
            fs::write(&path, &killed).unwrap();
            let words = create(&path, 3).unwrap();
            assert_eq!((words.load(1), words.load(2)), (0, 0));
        }
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn what_is_locked_is_told_apart_from_what_is_at_the_path_by_then() {
        let path = path("replaced");
        fs::write(&path, b"one").unwrap();
        let was = fs::metadata(&path).unwrap();
        assert!(is_at(&was, &path));
        fs::rename(&path, path.with_extension("away")).unwrap();
        assert!(!is_at(&was, &path));
        fs::write(&path, b"two").unwrap();
        assert!(!is_at(&was, &path));
        fs::remove_file(&path).unwrap();
        fs::remove_file(path.with_extension("away")).unwrap();
    }

    /// Threads that each make a page of another length and give it up at once: each page that is made is
    /// the one that others find at the path.
    #[test]
    fn pages_that_are_replaced_all_the_time_are_never_served_from_a_file_that_nobody_finds() {
        let path = path("race");
        let made = std::sync::atomic::AtomicU64::new(0);
        std::thread::scope(|scope| {
            for n in 1..=4 {
                let (path, made) = (&path, &made);
                scope.spawn(move || {
                    for round in 0..300 {
                        let Ok(words) = create(path, n) else { continue };
                        let word = n as u64 * 1_000 + round;
                        words.store(0, MAGIC);
                        words.store(n - 1, word);
                        let found = fs::read(path).unwrap();
                        assert_eq!(found[(n - 1) * 8..], word.to_ne_bytes());
                        words.store(0, MAGIC);
                        made.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        assert!(made.into_inner() > 4);
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_link_or_a_folder_is_no_place_for_words() {
        let (path, link) = (path("target"), path("link"));
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let error = create(&link, 1).unwrap_err();
        fs::remove_file(&link).unwrap();
        assert!(matches!(error, SharedError::NotAFile { .. }), "{error}");
        assert!(!path.exists());
        assert!(create(Path::new("/tmp"), 1).is_err());
    }
}
