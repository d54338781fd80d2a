//! Memory that was a pool by another name: a file that was renamed, or has two names.
//!
//! ```text
//!   x  x.kvroom ── killed, mv x y ──▶ y  x.kvroom      y's memory is the one that x.kvroom tells of
//! ```
//!
//! Rule: what lies beside the former name says who may still write the memory. While one of those is not
//! proven dead, the memory is no pool by another name: it is refused, and the former name is told.

use super::companion::{Companion, beside, wherever};
use super::error::SharedError;
use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// More files than this in the folder of a pool are not looked at: it is refused.
const MANY: usize = 65_536;

/// Which memory this is, for as long as the system runs; never 0.
///
/// # Errors
/// What the system says.
pub(crate) fn identity(memory: BorrowedFd<'_>) -> io::Result<u64> {
    let file = File::from(memory.try_clone_to_owned()?).metadata()?;
    // Files of one device differ in their number; those of two differ in this with near certainty.
    let device = file
        .dev()
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .rotate_left(17);
    Ok((device ^ file.ino()).max(1))
}

/// Refuses memory that was a pool in this folder by another name, if somebody may still write it.
///
/// # Errors
/// [`SharedError::Companion`] names what lies beside the former name, and the process.
pub(super) fn refuse_other_names(pool: &Path, memory: u64) -> Result<(), SharedError> {
    let own = beside(&wherever(pool)?, "");
    let Some(folder) = own.parent() else {
        return Ok(());
    };
    let fail = |e| SharedError::of(&folder.display().to_string(), 0, "readdir", e);
    let mut seen = 0;
    for entry in folder.read_dir().map_err(fail)? {
        let path = entry.map_err(fail)?.path();
        seen += 1;
        if seen > MANY {
            return Err(SharedError::Companion {
                path: folder.to_owned(),
                why: format!(
                    "has more than {MANY} files, too many to see whether one tells of a former life of this \
                     memory: use a folder of its own for pools"
                ),
            });
        }
        let is_beside = path.extension().is_some_and(|e| e == "kvroom");
        if !is_beside || path == own {
            continue;
        }
        if let Some(pid) = header(&path).and_then(|words| Companion::writer_of(&words, memory)) {
            return Err(SharedError::Companion {
                path,
                why: format!(
                    "tells that this memory was a pool by that name, and process {pid} may still write it: give the \
                     file its former name again, or end that process"
                ),
            });
        }
    }
    Ok(())
}

/// The first words of a file; none if it cannot be read, or is too short to be a companion.
fn header(path: &Path) -> Option<Vec<u64>> {
    let mut options = File::options();
    let options = options.read(true);
    let file = options
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path)
        .ok()?;
    let mut bytes = vec![0; Companion::HEADER];
    file.read_exact_at(&mut bytes, 0).ok()?;
    let words = bytes.chunks_exact(8);
    Some(
        words
            .map(|w| u64::from_ne_bytes(std::array::from_fn(|i| w[i])))
            .collect(),
    )
}
