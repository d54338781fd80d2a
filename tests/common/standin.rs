//! The stand-in for CUDA's driver, for tests of processes that use devices.
//!
//! ```text
//!   #[test] ─▶ in_child: the same test again, in a process that finds the stand-in
//!                 ├─ the test's body: an engine, with memory and events on a device
//!                 └─ daemons, which find it, too, and are told to fail by files (Orders)
//! ```
//!
//! A test file takes it with `#[path = "common/standin.rs"] mod standin;`.
#![allow(dead_code)] // Each test file uses a part of it.
#![allow(
    clippy::unwrap_used,
    reason = "helpers of tests fail by panicking, as tests do"
)]

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, fs};

/// In a child: the folder with the libraries.
const FOLDER: &str = "KVROOM_TEST_STANDIN";
const LIBRARY: &str = "libkvroom_standin_libcuda.so";
const NAMES: [&str; 3] = ["libcuda.so.1", "libcuda.so", "libnvrtc.so"];

/// A folder, removed at the end.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Folder {
        let name = format!("kvroom-{}-{name}", std::process::id());
        let folder = env::temp_dir().join(name);
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder).unwrap();
        Folder(folder)
    }

    /// With the stand-in as the driver.
    pub(crate) fn with_driver(name: &str) -> Folder {
        let folder = Folder::new(name);
        let exe = env::current_exe().unwrap();
        let mut folders = exe.ancestors().skip(1).take(2);
        let found = folders.find_map(|at| Some(at.join(LIBRARY)).filter(|path| path.is_file()));
        let found = found.unwrap_or_else(|| panic!("no {LIBRARY} beside {}", exe.display()));
        for name in NAMES {
            symlink(&found, folder.0.join(name)).unwrap();
        }
        folder
    }

    /// With files in place of a driver that are none, so that none of the machine is found either.
    pub(crate) fn without_driver(name: &str) -> Folder {
        let folder = Folder::new(name);
        for name in NAMES {
            fs::write(folder.0.join(name), b"").unwrap();
        }
        folder
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Runs `body` in a process of its own that finds the stand-in. `test` is the full name of the test that
/// calls this.
pub(crate) fn in_child(test: &str, body: impl FnOnce(&Path)) {
    if let Some(folder) = env::var_os(FOLDER) {
        return body(Path::new(&folder));
    }
    // A colon would divide the library path.
    let folder = Folder::with_driver(&test.replace("::", "-"));
    let output = Command::new(env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(FOLDER, &folder.0)
        .env("LD_LIBRARY_PATH", &folder.0)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("1 passed"),
        "{test}: {}\n{said}{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
}

/// What the stand-in in another process is told.
pub(crate) struct Orders(Folder);

impl Orders {
    pub(crate) fn new(name: &str) -> Orders {
        Orders(Folder::new(&format!("orders-{name}")))
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.0.0
    }

    /// From now on: `fail-CALL` and `lose-DEVICE` with the driver's number, `hang-CALL` with any.
    pub(crate) fn give(&self, order: &str, number: u32) {
        // In one step: half a file is read as none.
        let (new, place) = (self.folder().join("new"), self.folder().join(order));
        fs::write(&new, number.to_string()).unwrap();
        fs::rename(new, place).unwrap();
    }

    /// As before.
    pub(crate) fn take_back(&self, order: &str) {
        fs::remove_file(self.folder().join(order)).unwrap();
    }
}
