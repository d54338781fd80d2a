//! Compiled kernels on disk. It saves time and is never needed: what cannot be read is compiled again,
//! and what cannot be written is not kept.
//!
//! ```text
//!   file: "kvroom kernel 1\n" │ SHA-256 of the image │ image        name: the key in hex, ".kernel"
//! ```
//!
//! What is here runs on the device, so the folder must belong to this user and be closed to writers
//! else; one that is not is left alone. A file appears as a whole (written beside, then renamed).

use super::super::kernel::Program;
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

const MAGIC: &[u8] = b"kvroom kernel 1\n";
const SUM: usize = 32;
/// Files that are being written are no older than this; others were left by who died.
const WRITING: Duration = Duration::from_secs(3600);

/// What an image is for. Anything in it that differs makes another one.
pub(super) struct Key(String);

impl Key {
    pub(super) fn of(program: &Program, capability: (u32, u32), driver: u32) -> Key {
        let mut hash = Sha256::new();
        // Each part with its length, so that no two sets of parts look the same.
        let mut part = |bytes: &[u8]| {
            hash.update((bytes.len() as u64).to_le_bytes());
            hash.update(bytes);
        };
        part(program.source.as_bytes());
        part(&(program.options.len() as u64).to_le_bytes());
        program
            .options
            .iter()
            .for_each(|option| part(option.as_bytes()));
        part(&capability.0.to_le_bytes());
        part(&capability.1.to_le_bytes());
        part(&driver.to_le_bytes());
        let mut name = String::with_capacity(64);
        for byte in hash.finalize() {
            let _ = write!(name, "{byte:02x}");
        }
        Key(name)
    }
}

/// How large a cache may grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheLimits {
    /// Bytes of all files; the oldest go first.
    pub bytes: u64,
    /// The most files.
    pub files: usize,
}

impl Default for CacheLimits {
    fn default() -> Self {
        CacheLimits {
            bytes: 64 << 20,
            files: 256,
        }
    }
}

/// A folder with compiled kernels.
#[derive(Debug)]
pub struct Cache {
    folder: PathBuf,
    limits: CacheLimits,
}

impl Cache {
    /// The cache in this folder, which is made when something is put there.
    #[must_use]
    pub fn at(folder: impl Into<PathBuf>, limits: CacheLimits) -> Self {
        Cache {
            folder: folder.into(),
            limits,
        }
    }

    /// `$XDG_CACHE_HOME/kvroom`, or `~/.cache/kvroom`; none if the environment says neither.
    #[must_use]
    pub fn usual() -> Option<Self> {
        let absolute = |name| {
            let path = PathBuf::from(std::env::var_os(name)?);
            path.is_absolute().then_some(path)
        };
        let base = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))?;
        Some(Cache::at(base.join("kvroom"), CacheLimits::default()))
    }

    /// The folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    pub(super) fn get(&self, key: &Key) -> Option<Vec<u8>> {
        self.is_ours().ok()?;
        let path = self.path(key);
        match read(&path, self.limits.bytes) {
            Ok(image) => Some(image),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "a cached kernel is compiled again");
                None
            }
        }
    }

    pub(super) fn put(&self, key: &Key, image: &[u8]) {
        if let Err(error) = self.try_put(key, image) {
            tracing::warn!(folder = %self.folder.display(), %error, "a kernel is not cached");
        }
    }

    fn try_put(&self, key: &Key, image: &[u8]) -> io::Result<()> {
        if image.len() as u64 > self.limits.bytes {
            return Err(io::Error::other("it is larger than the cache may be"));
        }
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.folder)?;
        self.is_ours()?;
        static NTH: AtomicU64 = AtomicU64::new(0);
        let nth = NTH.fetch_add(1, Ordering::Relaxed);
        let beside = format!(".{}-{nth}.writing", std::process::id());
        let beside = self.folder.join(beside);
        let written = write_new(&beside, image).and_then(|()| fs::rename(&beside, self.path(key)));
        if written.is_err() {
            let _ = fs::remove_file(&beside);
        }
        written.and_then(|()| self.shrink())
    }

    /// Removes the oldest, until what is left is within the limits.
    fn shrink(&self) -> io::Result<()> {
        let mut kept = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            let name = entry.file_name();
            let name = name.to_string_lossy();
            // Files that are gone already are somebody else's doing.
            let Ok(meta) = entry.metadata() else { continue };
            let time = meta.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            if name.ends_with(".kernel") {
                kept.push((time, meta.len(), entry.path()));
            } else if name.ends_with(".writing") && time.elapsed().is_ok_and(|age| age > WRITING) {
                let _ = fs::remove_file(entry.path());
            }
        }
        kept.sort();
        let mut bytes: u64 = kept.iter().map(|(_, bytes, _)| bytes).sum();
        let mut files = kept.len();
        for (_, of, path) in kept {
            if bytes <= self.limits.bytes && files <= self.limits.files {
                break;
            }
            fs::remove_file(path)?;
            bytes -= of;
            files -= 1;
        }
        Ok(())
    }

    fn path(&self, key: &Key) -> PathBuf {
        self.folder.join(format!("{}.kernel", key.0))
    }

    /// Only this user can put something into the folder.
    fn is_ours(&self) -> io::Result<()> {
        let meta = fs::metadata(&self.folder)?;
        // What this process makes belongs to whom it runs as.
        let own = fs::metadata("/proc/self")?.uid();
        if meta.is_dir() && meta.uid() == own && meta.mode() & 0o022 == 0 {
            Ok(())
        } else {
            Err(io::Error::other("others can write there"))
        }
    }
}

fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let most = most.saturating_add((MAGIC.len() + SUM) as u64);
    File::open(path)?.take(most + 1).read_to_end(&mut bytes)?;
    let bad = || io::Error::new(io::ErrorKind::InvalidData, "it is not what was written");
    let rest = bytes.strip_prefix(MAGIC).ok_or_else(bad)?;
    let (sum, image) = rest.split_at_checked(SUM).ok_or_else(bad)?;
    if sum != &Sha256::digest(image)[..] {
        return Err(bad());
    }
    Ok(image.to_vec())
}

fn write_new(path: &Path, image: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(MAGIC)?;
    file.write_all(&Sha256::digest(image))?;
    file.write_all(image)?;
    // So that a crash leaves the whole file or none under its name.
    file.sync_data()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let name = format!("kvroom-cache-{}-{name}", std::process::id());
            Folder(std::env::temp_dir().join(name))
        }

        fn files(&self) -> Vec<PathBuf> {
            let mut files: Vec<_> = fs::read_dir(&self.0)
                .map(|all| all.map(|e| e.unwrap().path()).collect())
                .unwrap_or_default();
            files.sort();
            files
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn program(source: &str, options: &[&str]) -> Program {
        Program {
            name: "test".to_owned(),
            source: source.to_owned(),
            options: options.iter().map(|option| (*option).to_owned()).collect(),
        }
    }

    fn key(nth: u32) -> Key {
        Key::of(&program("a", &[]), (9, 0), nth)
    }

    #[test]
    fn each_part_of_a_key_makes_another_one() {
        let keys = [
            Key::of(&program("ab", &[]), (9, 0), 12080),
            Key::of(&program("a", &["b"]), (9, 0), 12080),
            Key::of(&program("a", &["", "b"]), (9, 0), 12080),
            Key::of(&program("a", &[]), (9, 0), 12080),
            Key::of(&program("a", &[]), (8, 0), 12080),
            Key::of(&program("a", &[]), (0, 9), 12080),
            Key::of(&program("a", &[]), (9, 0), 12090),
        ];
        let mut names: Vec<_> = keys.iter().map(|key| &key.0).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), keys.len());
    }

    #[test]
    fn what_was_put_is_there_for_the_next_and_for_nobody_else() {
        let folder = Folder::new("put");
        let cache = Cache::at(&folder.0, CacheLimits::default());
        assert_eq!(cache.get(&key(1)), None);
        cache.put(&key(1), b"image");
        let next = Cache::at(&folder.0, CacheLimits::default());
        assert_eq!(next.get(&key(1)).unwrap(), b"image");
        assert_eq!(next.get(&key(2)), None);
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!(mode(&folder.0), 0o700);
        assert_eq!(mode(&folder.files()[0]), 0o600);
        assert_eq!(folder.files().len(), 1, "nothing is left beside it");
    }

    #[test]
    fn a_file_that_was_cut_or_changed_at_any_byte_is_none() {
        let folder = Folder::new("broken");
        let cache = Cache::at(&folder.0, CacheLimits::default());
        cache.put(&key(1), b"image");
        let file = folder.files()[0].clone();
        let whole = fs::read(&file).unwrap();
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 1;
            fs::write(&file, &changed).unwrap();
            assert_eq!(cache.get(&key(1)), None, "byte {at}");
            fs::write(&file, &whole[..at]).unwrap();
            assert_eq!(cache.get(&key(1)), None, "cut at {at}");
        }
        cache.put(&key(1), b"image");
        assert_eq!(cache.get(&key(1)).unwrap(), b"image");
    }

    #[test]
    fn a_folder_that_others_can_write_is_not_read_and_not_written() {
        let folder = Folder::new("open");
        let cache = Cache::at(&folder.0, CacheLimits::default());
        cache.put(&key(1), b"image");
        for mode in [0o777, 0o770, 0o702] {
            fs::set_permissions(&folder.0, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(cache.get(&key(1)), None, "{mode:o}");
            cache.put(&key(2), b"image");
            assert_eq!(folder.files().len(), 1, "{mode:o}");
        }
        fs::set_permissions(&folder.0, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(cache.get(&key(1)).is_some());
    }

    #[test]
    fn the_oldest_go_when_there_is_too_much() {
        let folder = Folder::new("large");
        let limits = CacheLimits {
            bytes: 1000,
            files: 3,
        };
        let cache = Cache::at(&folder.0, limits);
        let age = |nth: u32, seconds: u64| {
            let file = File::options().write(true).open(cache.path(&key(nth)));
            let time = SystemTime::now() - Duration::from_secs(seconds);
            file.unwrap().set_modified(time).unwrap();
        };
        for nth in 1..=3 {
            cache.put(&key(nth), b"image");
            age(nth, 100 - u64::from(nth));
        }
        cache.put(&key(4), b"image");
        let there = |nth| cache.get(&key(nth)).is_some();
        assert_eq!([1, 2, 3, 4].map(there), [false, true, true, true]);
        cache.put(&key(5), &[7; 900]);
        assert_eq!([2, 3, 4, 5].map(there), [false, false, false, true]);
        cache.put(&key(6), &[7; 1001]);
        assert_eq!([5, 6].map(there), [true, false], "too large for itself");
    }
}
