//! The stand-in for CUDA's driver, for programs that open `libcuda.so.1`: a folder for their library path.
#![allow(clippy::unwrap_used)] // Tests and their helpers.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

const LIBRARY: &str = "libkvroom_standin_libcuda.so";

/// The names under which the driver is looked for.
pub(crate) const DRIVER: [&str; 2] = ["libcuda.so.1", "libcuda.so"];
/// And the compiler.
pub(crate) const COMPILER: &str = "libnvrtc.so";

/// A folder with libraries, removed at the end.
pub(crate) struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Folder {
    /// One without libraries.
    pub(crate) fn empty(test: &str) -> Folder {
        let name = format!("kvroom-standin-{}-{test}", std::process::id());
        let folder = env::temp_dir().join(name);
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder).unwrap();
        Folder(folder)
    }

    /// One with the stand-in, under these names.
    pub(crate) fn with(test: &str, names: &[&str]) -> Folder {
        let folder = Folder::empty(test);
        for name in names {
            symlink(built(), folder.0.join(name)).unwrap();
        }
        folder
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// A program that finds these libraries, and else those of the system.
    pub(crate) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command.env("LD_LIBRARY_PATH", &self.0);
        command
    }
}

/// The stand-in, which cargo built since these tests depend on it.
fn built() -> PathBuf {
    let exe = env::current_exe().unwrap();
    let mut folders = exe.ancestors().skip(1).take(2);
    let found = folders.find_map(|at| Some(at.join(LIBRARY)).filter(|path| path.is_file()));
    found.unwrap_or_else(|| panic!("there is no {LIBRARY} beside {}", exe.display()))
}
