//! The CUDA backend over a stand-in for the driver: its hand in the suite.
//!
//! A test runs itself again in a process whose library path has a folder with the stand-in, under the
//! names that are looked for.
#![allow(unsafe_code)] // Calls functions of the stand-in that the driver does not have.

use crate::rig::Rig;
use kvroom_actors::copy::device::cuda::open;
use kvroom_actors::copy::device::{Code, Context, DeviceError};
use std::ffi::{CStr, CString, c_char, c_void};
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, fs};

/// Set in a process that is to run a test over the stand-in.
const CHILD: &str = "KVROOM_DEVICE_CHILD";
/// In a child: the folder with the libraries.
pub(crate) const FOLDER: &str = "KVROOM_DEVICE_FOLDER";
const LIBRARY: &str = "libkvroom_standin_libcuda.so";
const NAMES: [&str; 3] = ["libcuda.so.1", "libcuda.so", "libnvrtc.so"];

pub(crate) struct Standin {
    pub(crate) library: *mut c_void,
}

/// What the stand-in has, as it tells it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stats {
    pub(crate) blocks: u64,
    pub(crate) streams: u64,
    pub(crate) events: u64,
    pub(crate) modules: u64,
    pub(crate) retained: u64,
    pub(crate) depth: u64,
    pub(crate) compiles: u64,
    pub(crate) batches: u64,
    pub(crate) singles: u64,
}

/// A folder with libraries, removed at the end.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Folder {
    fn new(test: &str) -> Folder {
        let name = test.replace(':', "-");
        let name = format!("kvroom-standin-{}-{name}", std::process::id());
        let folder = env::temp_dir().join(name);
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder).unwrap();
        Folder(folder)
    }
}

/// The stand-in, which cargo built since this test depends on it.
pub(crate) fn built() -> PathBuf {
    let exe = env::current_exe().unwrap();
    let mut folders = exe.ancestors().skip(1).take(2);
    let found = folders.find_map(|at| Some(at.join(LIBRARY)).filter(|path| path.is_file()));
    found.unwrap_or_else(|| panic!("there is no {LIBRARY} beside {}", exe.display()))
}

/// Runs `body` in a process of its own over the stand-in, with this in its environment.
pub(crate) fn in_child(test: &str, settings: &[(&str, &str)], body: impl FnOnce(&Standin)) {
    in_child_with(
        test,
        settings,
        &|folder| link(folder, &NAMES, &built()),
        body,
    );
}

pub(crate) fn link(folder: &Path, names: &[&str], library: &Path) {
    for name in names {
        symlink(library, folder.join(name)).unwrap();
    }
}

pub(crate) fn in_child_with(
    test: &str,
    settings: &[(&str, &str)],
    fill: &dyn Fn(&Path),
    body: impl FnOnce(&Standin),
) {
    if env::var_os(CHILD).is_some() {
        body(&Standin::new());
        return;
    }
    let folder = Folder::new(test);
    fill(&folder.0);
    let output = child(test, &folder.0)
        .envs(settings.iter().copied())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    for line in String::from_utf8_lossy(&output.stderr).lines() {
        if line.starts_with("SKIPPED") {
            // Not by a macro: what those print is kept from who runs the tests.
            let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
        }
    }
    assert!(
        output.status.success() && said.contains("1 passed"),
        "{test}: {}\n{said}{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
}

pub(crate) fn child(test: &str, folder: &Path) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(CHILD, "1")
        .env(FOLDER, folder)
        .env("LD_LIBRARY_PATH", folder)
        .stdin(Stdio::null());
    command
}

impl Standin {
    fn new() -> Self {
        // SAFETY: the stand-in's initialisers do nothing. Where there is none it is null.
        let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
        Standin { library }
    }

    fn find(&self, name: &CStr) -> *mut c_void {
        assert!(!self.library.is_null());
        // SAFETY: an open library and a text.
        let found = unsafe { libc::dlsym(self.library, name.as_ptr()) };
        assert!(!found.is_null(), "the stand-in has no {name:?}");
        found
    }

    pub(crate) fn stats(&self) -> Stats {
        let mut stats = Stats::default();
        let stats_of = self.find(c"standin_stats");
        // SAFETY: the type of the function in the stand-in's `control.rs`.
        let stats_of: unsafe extern "C" fn(*mut Stats) -> u32 =
            unsafe { std::mem::transmute(stats_of) };
        // SAFETY: writes the structure.
        assert_eq!(unsafe { stats_of(&mut stats) }, 0);
        stats
    }

    fn fail_named(&self, name: Option<&str>, nth: u64, code: u32) {
        let name = name.map(|name| CString::new(name).unwrap());
        let name_at = name.as_ref().map_or(std::ptr::null(), |name| name.as_ptr());
        let fail = self.find(c"standin_fail");
        // SAFETY: the type of the function in the stand-in's `control.rs`.
        let fail: unsafe extern "C" fn(*const c_char, u64, u32) =
            unsafe { std::mem::transmute(fail) };
        // SAFETY: a text that outlives the call, or null.
        unsafe { fail(name_at, nth, code) };
    }
}

impl Rig for Standin {
    fn try_context(&self, device: u32) -> Result<Context, DeviceError> {
        open(device)
    }

    fn code(&self) -> Code {
        Code::Ptx(b".entry add_to_bytes(\n.entry reverse_bytes(\n.entry poke(\n.entry add_by_structure(\n".to_vec())
    }

    fn fail(&self, nth: u64, code: u32) {
        self.fail_named(None, nth, code);
    }

    fn fail_call(&self, call: &'static str, nth: u64, code: u32) {
        self.fail_named(Some(call), nth, code);
    }

    fn has_failed(&self) -> bool {
        let failed = self.find(c"standin_failed");
        // SAFETY: the type of the function in the stand-in's `control.rs`.
        let failed: unsafe extern "C" fn() -> u64 = unsafe { std::mem::transmute(failed) };
        // SAFETY: takes nothing.
        let failed = unsafe { failed() };
        failed > 0
    }

    fn lose(&self, device: u32, code: u32) {
        let lose = self.find(c"standin_lose");
        // SAFETY: the type of the function in the stand-in's `control.rs`.
        let lose: unsafe extern "C" fn(u32, u32) = unsafe { std::mem::transmute(lose) };
        // SAFETY: takes numbers.
        unsafe { lose(device, code) };
    }

    fn blocks(&self) -> u64 {
        self.stats().blocks
    }

    fn renew(&self) {
        let heal = self.find(c"standin_heal");
        // SAFETY: the type of the function in the stand-in's `control.rs`.
        let heal: unsafe extern "C" fn() = unsafe { std::mem::transmute(heal) };
        // SAFETY: takes nothing.
        unsafe { heal() };
    }
}

/// A stand-in without some functions: their names are spoiled where the linker looks for them.
pub(crate) fn without(folder: &Path, names: &[&str]) {
    let mut library = fs::read(built()).unwrap();
    for name in names {
        let text = [b"\0", name.as_bytes(), b"\0"].concat();
        let mut from = 0;
        let mut spoiled = 0;
        while let Some(at) = library[from..].windows(text.len()).position(|w| w == text) {
            library[from + at + 1] = b'X';
            spoiled += 1;
            from += at + 1;
        }
        assert!(spoiled > 0, "the stand-in has no {name}");
    }
    fs::write(folder.join(LIBRARY), library).unwrap();
    link(folder, &NAMES, &folder.join(LIBRARY));
}
