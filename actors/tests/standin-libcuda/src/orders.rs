//! What a test tells the library in another process, by files of a folder.

use crate::state::State;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

fn folder() -> Option<&'static Path> {
    static FOLDER: OnceLock<Option<PathBuf>> = OnceLock::new();
    let found = FOLDER.get_or_init(|| std::env::var_os("STANDIN_ORDERS").map(PathBuf::from));
    found.as_deref()
}

fn number(folder: &Path, name: &str) -> Option<u32> {
    let text = std::fs::read_to_string(folder.join(name)).ok()?;
    text.trim().parse().ok()
}

/// Does what this call was told to do; the code that it is to return, if it is to fail.
pub(crate) fn follow(state: &State, call: &str) -> Option<u32> {
    let folder = folder()?;
    let hangs = folder.join(format!("hang-{call}"));
    if hangs.exists() {
        // For whoever waits for that.
        let _ = std::fs::write(folder.join(format!("hung-{call}")), "1");
    }
    while hangs.exists() {
        thread::sleep(Duration::from_millis(5));
    }
    for device in 0..state.devices.len() {
        if let Some(code) = number(folder, &format!("lose-{device}")) {
            state.lose(device, code);
        }
    }
    number(folder, &format!("fail-{call}"))
}
